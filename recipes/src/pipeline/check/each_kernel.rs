//! Compares every kernel of a plan at full size with a reference, on the same tensors. For a plan of another device the reference is a
//! plain kernel on this machine's cores. For a plan of the cores, which would be compared with itself, it is the f64 interpreter.
//!
//! The reference runs the program kernel by kernel. The plan's kernel gets the same inputs as the reference, in the plan's layouts, and
//! the results of both are compared. So an error shows in the kernel that makes it and in none of its successors.

use super::accuracy::agreed;
use crate::pipeline::PipelineError;
use crate::pipeline::oracle::within_jumps;
use crate::pipeline::run::{Candidate, default_config, whole_tensors};
use kernels::CancelToken;
use kernels::device::{CompileRequest, Device};
use kernels::pool::Pool;
use kernels::{ArgumentAccess, KernelSpec, KernelSpecs, RunContext};
use ndarray::{ArrayD, IxDyn};
use rayon::prelude::*;
use sdfg::config::KernelConfig;
use sdfg::interpret::{Run, Tensors, interpret_unit};
use sdfg::tolerance::{compare, unit_tolerance};
use sdfg::{Dtype, Layout, Sdfg, Unit};
use std::collections::VecDeque;

/// Tensors by the container that stores them, in the order of its dims.
type Values = Tensors;

/// One result of one kernel.
#[derive(Clone, Debug, PartialEq, serde::Serialize)]
pub struct Compared {
    pub kernel: String,
    pub data: String,
    /// The largest difference ÷ the tolerance of both sides together; correct up to 1.
    pub ratio: f64,
    pub max_error: f64,
    pub elements: usize,
    /// Elements that are NaN on both sides, as the logarithm of a negative number is: these agree.
    pub no_numbers: usize,
}

/// How far a comparison has come.
pub struct KernelCheckProgress<'a> {
    /// Kernels that are done, and the number of all kernels.
    pub done: usize,
    pub all: usize,
    /// The results of the last kernel.
    pub compared: &'a [Compared],
}

/// Runs every kernel of a candidate on its device and on the cores, and compares all results; calls `said` after each kernel.
///
/// # Errors
/// Kernels that cannot be compiled or run on either side, tensors that are missing.
pub fn compare_with_cores(
    candidate: &Candidate,
    given: &Tensors,
    run: &Run,
    pool: &Pool,
    (device, cores): (&dyn Device, &dyn Device),
    said: &mut dyn FnMut(&KernelCheckProgress),
) -> Result<Vec<Compared>, PipelineError> {
    let cores = Cores::of(&candidate.program, cores)?;
    compared(candidate, given, run, pool, (device, Some(cores)), said)
}

/// Runs every kernel of a candidate on its device and in the f64 interpreter, which is slow, and compares as [`compare_with_cores`] does.
///
/// # Errors
/// Kernels that cannot be compiled, run or interpreted, tensors that are missing.
pub fn compare_with_interpreter(
    candidate: &Candidate,
    given: &Tensors,
    run: &Run,
    pool: &Pool,
    device: &dyn Device,
    said: &mut dyn FnMut(&KernelCheckProgress),
) -> Result<Vec<Compared>, PipelineError> {
    compared(candidate, given, run, pool, (device, None), said)
}

/// Compares with kernels of the cores, or with the interpreter.
fn compared(
    candidate: &Candidate,
    given: &Tensors,
    run: &Run,
    pool: &Pool,
    (device, mut cores): (&dyn Device, Option<Cores>),
    said: &mut dyn FnMut(&KernelCheckProgress),
) -> Result<Vec<Compared>, PipelineError> {
    let program = &candidate.program;
    let mut values = whole_tensors(program, given)?;
    let units = program.units();
    let all = KernelSpecs::of(program);
    let specs = units.iter().map(|(_, _, unit)| all.spec(unit)).collect::<Result<Vec<_>, _>>()?;
    let mut configs = Vec::new();
    for spec in &specs {
        let config = candidate.configuration.kernels.get(&spec.name);
        configs.push(config.ok_or_else(|| PipelineError::Internal(format!("the plan has no configuration for `{}`", spec.name)))?);
    }
    // Compiled in parallel, because compiling one by one would take longer than all the rest.
    device.precompile(
        &specs.iter().zip(&configs).map(|(spec, config)| CompileRequest::once(spec, config)).collect::<Vec<_>>(),
        CancelToken::default(),
    );
    let mut compared = Vec::new();
    for (n, (((_, _, unit), spec), config)) in units.iter().zip(&specs).zip(configs).enumerate() {
        let first = compared.len();
        // A kernel may be off by the tolerance, and the interpreter is exact.
        let (ours, sides) = match &mut cores {
            Some(cores) => (cores.outcome(unit, &values, run, pool)?, 2.0),
            None => (interpreted(program, unit, spec, &values, run)?, 1.0),
        };
        let theirs = outcome((program, unit, spec), config, &values, run, pool, device)?;
        let tolerances = unit_tolerance(program, unit).map_err(|e| PipelineError::Measure(e.to_string()))?;
        for (data, want) in ours {
            let missing = || PipelineError::Internal(format!("`{}` has no tolerance for `{data}`", spec.name));
            let (tolerance, got) = (tolerances.get(&data).ok_or_else(missing)?, theirs.get(&data).ok_or_else(missing)?);
            let agreed = agreed(got, &want);
            let no_numbers = agreed.as_ref().map_or(0, |(_, places)| *places);
            let [got, wanted] = agreed.as_ref().map_or([got, &want], |([got, want], _)| [got, want]);
            let found = compare(got, wanted, 1.0, tolerance);
            let ratio = within_jumps(unit, tolerance, got, wanted, found.ratio / sides);
            let ratio = if ratio.is_nan() { f64::INFINITY } else { ratio };
            let (kernel, elements) = (spec.name.clone(), want.len());
            compared.push(Compared { kernel, data: data.clone(), ratio, max_error: found.max_error, elements, no_numbers });
            // Both sides continue with values as the plan stores them.
            let dtype = program.containers.get(&data).map_or(Dtype::F64, |c| c.dtype);
            values.insert(data, rounded(want, dtype));
        }
        said(&KernelCheckProgress { done: n + 1, all: units.len(), compared: &compared[first..] });
        // Tensors that are no longer read are freed.
        let read = |data: &String| specs[n + 1..].iter().any(|s| s.arguments().iter().any(|a| a.data == *data));
        values.retain(|data, _| read(data));
    }
    Ok(compared)
}

/// Plain kernels of the cores, in the order in which the program runs them.
struct Cores<'a> {
    device: &'a dyn Device,
    program: Sdfg,
    plain: VecDeque<(KernelSpec, KernelConfig)>,
}

/// Kernels that the plan launches together run one by one on the cores.
fn inside(unit: &Unit) -> Vec<Unit> {
    match unit {
        Unit::Nested(nested) if nested.repeat.is_none() => nested.program.units().into_iter().map(|(_, _, unit)| unit).collect(),
        unit => vec![unit.clone()],
    }
}

impl<'a> Cores<'a> {
    fn of(program: &Sdfg, device: &'a dyn Device) -> Result<Self, PipelineError> {
        // Kernels of the cores neither address bits nor multiply f16.
        let mut program = program.clone();
        for container in program.containers.values_mut() {
            container.dtype = match container.dtype {
                Dtype::Bit => Dtype::U8,
                Dtype::F16 => Dtype::F32,
                other => other,
            };
        }
        let mut plain = VecDeque::new();
        for unit in program.units().iter().flat_map(|(_, _, unit)| inside(unit)) {
            let spec = KernelSpec::new(&program, &unit)?;
            let config = default_config(device, &spec)?;
            plain.push_back((spec, config));
        }
        device
            .precompile(&plain.iter().map(|(spec, config)| CompileRequest::once(spec, config)).collect::<Vec<_>>(), CancelToken::default());
        Ok(Cores { device, program, plain })
    }

    /// The results of the next plain kernels, which together are one unit of the plan.
    fn outcome(&mut self, unit: &Unit, values: &Values, run: &Run, pool: &Pool) -> Result<Values, PipelineError> {
        let mut written = Values::new();
        for unit in inside(unit) {
            let Some((spec, config)) = self.plain.pop_front() else { break };
            written.extend(outcome((&self.program, &unit, &spec), &config, values, run, pool, self.device)?);
        }
        Ok(written)
    }
}

/// The f64 interpreter's results for a unit.
fn interpreted(program: &Sdfg, unit: &Unit, spec: &KernelSpec, values: &Values, run: &Run) -> Result<Values, PipelineError> {
    let mut tensors = Tensors::new();
    for argument in spec.arguments() {
        let part = unit.writes_part(program, &argument.data);
        match values.get(&argument.data) {
            Some(value) if argument.access == ArgumentAccess::Read || part => drop(tensors.insert(argument.data.clone(), value.clone())),
            // Parts that other kernels have not written yet are zero on both sides.
            None if part => drop(tensors.insert(argument.data.clone(), ArrayD::zeros(IxDyn(&spec.shape(&argument.data)?)))),
            _ => {}
        }
    }
    interpret_unit(program, unit, &mut tensors, run)?;
    let written = spec.arguments().into_iter().filter(|argument| argument.access == ArgumentAccess::Write);
    Ok(written.filter_map(|argument| Some((argument.data.clone(), tensors.remove(&argument.data)?))).collect())
}

/// Values rounded to a container's type.
fn rounded(mut values: ArrayD<f64>, dtype: Dtype) -> ArrayD<f64> {
    match values.as_slice_mut() {
        Some(all) => all.par_iter_mut().for_each(|v| *v = dtype.rounded(*v)),
        None => values.mapv_inplace(|v| dtype.rounded(v)),
    }
    values
}

/// The results of a kernel on a device.
fn outcome(
    (program, unit, spec): (&Sdfg, &Unit, &KernelSpec),
    config: &KernelConfig,
    values: &Values,
    run: &Run,
    pool: &Pool,
    device: &dyn Device,
) -> Result<Values, PipelineError> {
    let mut memories = Vec::new();
    for argument in spec.arguments() {
        let (container, shape) = (&spec.containers[&argument.data], spec.shape(&argument.data)?);
        let layout = config.layouts.get(&argument.data).cloned().unwrap_or_else(|| Layout::row_major(container));
        let misfit = || PipelineError::Internal(format!("the layout {layout} does not fit `{}`", argument.data));
        let elements = layout.extent(&container.dims, &shape).ok_or_else(misfit)?;
        let mut memory = device.memory(container.dtype.bytes(elements as u64) as usize)?;
        let part = unit.writes_part(program, &argument.data);
        match values.get(&argument.data) {
            Some(value) if argument.access == ArgumentAccess::Read || part => memory.pack(container, &layout, value)?,
            None if argument.access == ArgumentAccess::Read => {
                return Err(PipelineError::Internal(format!("`{}` is read before it is written", argument.data)));
            }
            // Parts that other kernels have not written yet are zero on both sides.
            None if part => memory.pack(container, &layout, &ArrayD::zeros(IxDyn(&shape)))?,
            // All bits set is NaN: an element that is not written is found.
            _ => memory.fill(&[0xff])?,
        }
        memories.push((argument, memory, layout, shape));
    }
    let executable = device.compile(spec, config)?;
    let pointers: Vec<*mut u8> = memories.iter_mut().map(|(_, memory, _, _)| memory.address()).collect();
    let context = RunContext { seed: run.seed, step: run.step, dropout: run.dropout, pool, deadline: None, parameters: 0 };
    // SAFETY: one piece of memory for each argument, as large as its container in its layout.
    unsafe { executable.run(&pointers, &context)? };
    let written = memories.iter().filter(|(argument, _, _, _)| argument.access == ArgumentAccess::Write);
    written
        .map(|(argument, memory, layout, shape)| {
            Ok((argument.data.clone(), memory.unpack(0, &spec.containers[&argument.data], layout, shape)?))
        })
        .collect()
}
