//! Runs map kernels on small tensors and compares them with the interpreter.

use kernels::pool::Pool;
use kernels::target::cuda::emit::CudaSource;
use kernels::target::shim::{Shim, ShimKernel, ShimRun};
use kernels::{AlignedBuffer, ArgumentAccess, Completion, Executable, InPlace, KernelSpec, RunContext, Toolchain};
use ndarray::ArrayD;
use sdfg::config::KernelConfig;
use sdfg::interpret::{Run, Tensors, interpret_unit};
use sdfg::tolerance::{Tolerance, compare, unit_tolerance};
use sdfg::{Layout, Sdfg, Unit, random};
use std::collections::BTreeMap;

pub type Failure = Box<dyn std::error::Error>;

pub const RUN: Run = Run { seed: 11, step: 5, dropout: true };

/// What these tests compile stays in the build folder, and takes the compiler a fifth of what is timed: shipped kernels are checked as they
/// run, in the tests of `recipes`.
pub fn toolchain() -> Result<Toolchain, Failure> {
    let system = Toolchain::system()?;
    let flags = system.flags.iter().cloned().chain(["-O0".to_string()]).collect();
    Ok(Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), flags, ..system })
}

/// The same, told something more.
pub fn toolchain_told(flag: String) -> Result<Toolchain, Failure> {
    let mut toolchain = toolchain()?;
    toolchain.flags.push(flag);
    Ok(toolchain)
}

/// Compiles CUDA kernels for the CPU.
pub fn shim() -> Shim {
    Shim::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into())
}

/// A kernel with its inputs and what the interpreter makes of them.
pub struct Reference {
    pub spec: KernelSpec,
    pub given: Tensors,
    pub want: Tensors,
    tolerances: BTreeMap<String, Tolerance>,
}

impl Reference {
    pub fn new(program: &Sdfg, unit: &Unit) -> Result<Self, Failure> {
        let spec = KernelSpec::new(program, unit)?;
        let mut given = Tensors::new();
        for argument in spec.arguments().iter().filter(|a| a.access == ArgumentAccess::Read) {
            let shape = spec.shape(&argument.data)?;
            // What is given lies in the container's type: only what kernels round themselves is held against them.
            let drawn = random::tensor(3, &argument.data, shape.iter().product());
            let values = drawn.into_iter().map(|v| argument.dtype.rounded(v)).collect();
            given.insert(argument.data.clone(), ArrayD::from_shape_vec(shape, values)?);
        }
        Reference::of(program, unit, given)
    }

    pub fn of(program: &Sdfg, unit: &Unit, given: Tensors) -> Result<Self, Failure> {
        let mut want = given.clone();
        interpret_unit(program, unit, &mut want, &RUN)?;
        Ok(Reference { spec: KernelSpec::new(program, unit)?, given, want, tolerances: unit_tolerance(program, unit)? })
    }

    /// Expects what the interpreter makes of the inputs in another run.
    pub fn expect(&mut self, program: &Sdfg, unit: &Unit, run: &Run) -> Result<(), Failure> {
        self.want = self.given.clone();
        Ok(interpret_unit(program, unit, &mut self.want, run)?)
    }

    /// Memory for all arguments in the layouts of a configuration, inputs filled in.
    fn buffers(&self, config: &KernelConfig) -> Result<Vec<AlignedBuffer>, Failure> {
        let mut buffers = Vec::new();
        for argument in self.spec.arguments() {
            let container = &self.spec.containers[argument.data.as_str()];
            let (layout, shape) = (self.layout(config, &argument.data), self.spec.shape(&argument.data)?);
            let mut buffer = AlignedBuffer::of(container, &shape, &layout)?;
            match self.given.get(&argument.data) {
                Some(array) => buffer.pack(container, &layout, array)?,
                // All bits set is NaN: what a kernel forgets to write is found.
                None => buffer.as_mut_slice().fill(0xff),
            }
            buffers.push(buffer);
        }
        Ok(buffers)
    }

    fn layout(&self, config: &KernelConfig, data: &str) -> Layout {
        config.layouts.get(data).cloned().unwrap_or_else(|| Layout::row_major(&self.spec.containers[data]))
    }

    fn results(&self, config: &KernelConfig, buffers: &[AlignedBuffer]) -> Result<Tensors, Failure> {
        let mut results = Tensors::new();
        for (argument, buffer) in self.spec.arguments().iter().zip(buffers).filter(|(a, _)| a.access == ArgumentAccess::Write) {
            let container = &self.spec.containers[argument.data.as_str()];
            let layout = self.layout(config, &argument.data);
            results.insert(argument.data.clone(), buffer.unpack(container, &layout, &self.spec.shape(&argument.data)?)?);
        }
        Ok(results)
    }

    pub fn run(&self, kernel: &dyn Executable, config: &KernelConfig, pool: &Pool) -> Result<Tensors, Failure> {
        self.run_in_place(kernel, config, &[], pool)
    }

    /// Runs a kernel that writes some arguments where it reads others.
    pub fn run_in_place(&self, kernel: &dyn Executable, config: &KernelConfig, pairs: &[InPlace], pool: &Pool) -> Result<Tensors, Failure> {
        let mut buffers = self.buffers(config)?;
        let arguments = self.spec.arguments();
        let place = |data: &str| arguments.iter().position(|a| a.data == data).ok_or("no such argument");
        let mut pointers: Vec<*mut u8> = buffers.iter_mut().map(|b| b.as_mut_ptr()).collect();
        for pair in pairs {
            pointers[place(&pair.written)?] = pointers[place(&pair.read)?];
        }
        let context = RunContext { seed: RUN.seed, step: RUN.step, dropout: RUN.dropout, pool, deadline: None, parameters: 0 };
        // SAFETY: one buffer for each argument, in the configuration's layouts, shared where it says so.
        assert_eq!(unsafe { kernel.run(&pointers, &context) }?, Completion::Done);
        for pair in pairs {
            buffers.swap(place(&pair.written)?, place(&pair.read)?);
        }
        self.results(config, &buffers)
    }

    /// Runs a CUDA kernel on the CPU; `order` decides about the order of its threads.
    pub fn emulate(&self, kernel: &ShimKernel, config: &KernelConfig, order: u64) -> Result<Tensors, Failure> {
        self.emulate_as(kernel, config, ShimRun { run: RUN, order })
    }

    /// The same as any run.
    pub fn emulate_as(&self, kernel: &ShimKernel, config: &KernelConfig, run: ShimRun) -> Result<Tensors, Failure> {
        let mut buffers = self.buffers(config)?;
        let unwritten = kernel.run(&self.spec, &mut buffers, &run)?;
        match unwritten.first() {
            Some(u) => Err(format!("{} elements of `{}` are not written, the first is {}", u.elements, u.data, u.first).into()),
            None => self.results(config, &buffers),
        }
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

/// Runs CUDA kernels on the CPU: of each case its configurations, in the order of their sources. Says how many there were.
pub fn each_equals(cases: &[(&str, Reference, Vec<KernelConfig>)], sources: Vec<CudaSource>) -> Result<usize, Failure> {
    let mut kernels = shim().compile(sources)?.into_iter();
    let mut checked = 0;
    for (name, reference, configs) in cases {
        for (n, (config, kernel)) in configs.iter().zip(kernels.by_ref()).enumerate() {
            let results = reference.emulate(&kernel, config, n as u64).map_err(|e| format!("{name} under {config}: {e}"))?;
            let (ratio, place) = reference.ratio(&results);
            assert!(ratio <= 1.0, "{name}: {place}, {ratio} times the tolerance, under {config}");
            checked += 1;
        }
    }
    Ok(checked)
}

/// Runs a kernel as it is, and under planted faults, places of its text and what stands there instead. Each must be found: by what the
/// shim says, or because results are wrong.
pub fn faults_are_found(
    reference: &Reference,
    config: &KernelConfig,
    sound: &CudaSource,
    faults: &[(&str, &str, &str, Option<&str>)],
) -> Result<(), Failure> {
    let mut sources = vec![sound.clone()];
    for (fault, from, to, _) in faults {
        let text = sound.text.replace(from, to);
        assert_ne!(text, sound.text, "{fault}: there is no such place");
        sources.push(CudaSource { text, ..sound.clone() });
    }
    let kernels = shim().compile(sources)?;
    let (ratio, _) = reference.ratio(&reference.emulate(&kernels[0], config, 1)?);
    assert!(ratio <= 1.0, "{ratio} times the tolerance without a fault");
    for (kernel, (fault, _, _, says)) in kernels[1..].iter().zip(faults) {
        let found = (0..4).find_map(|order| match (reference.emulate(kernel, config, order), says) {
            (Err(e), Some(says)) if e.to_string().contains(says) => Some(e.to_string()),
            (Ok(results), None) if reference.ratio(&results).0 > 1.0 => Some("the results are wrong".into()),
            (Err(e), _) => panic!("{fault}: {e}"),
            _ => None,
        });
        println!("{fault}: {}", found.as_deref().unwrap_or("not found"));
        assert!(found.is_some(), "{fault} is not found");
    }
    Ok(())
}
