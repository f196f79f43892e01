//! Runs map kernels on small tensors and compares them with the interpreter.

use kernels::device::cpu::Pool;
use kernels::maps::MapKernel;
use kernels::{Access, Buffer, Completion, Executable, KernelSpec, RunContext, Toolchain};
use ndarray::ArrayD;
use sdfg::config::KernelConfig;
use sdfg::interpret::{Run, Tensors, interpret_unit};
use sdfg::tolerance::{Tolerance, compare, unit_tolerance};
use sdfg::{Layout, Sdfg, Unit, random};
use std::collections::BTreeMap;

pub type Failure = Box<dyn std::error::Error>;

pub const RUN: Run = Run { seed: 11, step: 5, dropout: true };

/// What these tests compile stays in the build folder.
pub fn toolchain() -> Result<Toolchain, Failure> {
    let system = Toolchain::system()?;
    Ok(Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..system })
}

/// A kernel with its inputs and what the interpreter makes of them.
pub struct Reference {
    pub spec: KernelSpec,
    pub given: Tensors,
    want: Tensors,
    tolerances: BTreeMap<String, Tolerance>,
}

impl Reference {
    pub fn new(program: &Sdfg, unit: &Unit) -> Result<Self, Failure> {
        let spec = KernelSpec::new(program, unit)?;
        let mut given = Tensors::new();
        for argument in spec.arguments().iter().filter(|a| a.access == Access::Read) {
            let shape = spec.shape(&argument.data)?;
            let values = random::tensor(3, &argument.data, shape.iter().product());
            given.insert(argument.data.clone(), ArrayD::from_shape_vec(shape, values)?);
        }
        Reference::of(program, unit, given)
    }

    pub fn of(program: &Sdfg, unit: &Unit, given: Tensors) -> Result<Self, Failure> {
        let mut want = given.clone();
        interpret_unit(program, unit, &mut want, &RUN)?;
        Ok(Reference { spec: KernelSpec::new(program, unit)?, given, want, tolerances: unit_tolerance(program, unit)? })
    }

    pub fn run(&self, kernel: &MapKernel, config: &KernelConfig, pool: &Pool) -> Result<Tensors, Failure> {
        let arguments = self.spec.arguments();
        let mut buffers = Vec::new();
        for argument in &arguments {
            let container = &self.spec.containers[argument.data.as_str()];
            let natural = Layout::natural(container);
            let (layout, shape) = (config.layouts.get(&argument.data).unwrap_or(&natural).clone(), self.spec.shape(&argument.data)?);
            let mut buffer = Buffer::of(container, &shape, &layout)?;
            match self.given.get(&argument.data) {
                Some(array) => buffer.pack(container, &layout, array)?,
                // All bits set is NaN: what a kernel forgets to write is found.
                None => buffer.as_mut_slice().fill(0xff),
            }
            buffers.push((buffer, layout));
        }
        let pointers: Vec<*mut u8> = buffers.iter_mut().map(|(b, _)| b.as_mut_ptr()).collect();
        let context = RunContext { seed: RUN.seed, step: RUN.step, dropout: RUN.dropout, pool, deadline: None };
        // SAFETY: one buffer for each argument, in the configuration's layouts.
        assert_eq!(unsafe { kernel.run(&pointers, &context) }?, Completion::Done);
        let mut results = Tensors::new();
        for (argument, (buffer, layout)) in arguments.iter().zip(&buffers).filter(|(a, _)| a.access == Access::Write) {
            let container = &self.spec.containers[argument.data.as_str()];
            results.insert(argument.data.clone(), buffer.unpack(container, layout, &self.spec.shape(&argument.data)?)?);
        }
        Ok(results)
    }

    /// The worst error of all results in units of what the derivation of tolerances allows, and where it is.
    pub fn ratio(&self, got: &Tensors) -> (f64, String) {
        let mut worst = (0.0, String::new());
        for (data, got) in got {
            let found = compare(got, &self.want[data], 1.0, &self.tolerances[data]);
            if found.ratio > worst.0 {
                worst = (found.ratio, format!("{data}{:?} is off by {:e}", found.at, found.max_error));
            }
        }
        worst
    }
}
