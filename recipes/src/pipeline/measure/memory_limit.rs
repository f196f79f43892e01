//! How much memory a program may fill on a device, and whether measuring and comparing it fits.

use crate::pipeline::PipelineError;
use crate::pipeline::run::expected;
use bench::machine::Machine;
use bench::unit::Bytes;
use kernels::KernelSpecs;
use kernels::device::Device;
use sdfg::{Container, Dtype, Role, Sdfg};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// How much memory a program may fill, and where; 0 bytes where the amount is unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryLimit {
    /// The kernels and the host code that draws and compares tensors share it.
    Machine(Bytes),
    /// The device has memory of its own; the host draws and compares tensors in its memory.
    Device(Bytes),
}

impl MemoryLimit {
    pub const UNKNOWN: MemoryLimit = MemoryLimit::Machine(Bytes(0));

    /// The memory that is there, or the allowed amount.
    ///
    /// # Errors
    /// A device that failed.
    pub fn on(device: &dyn Device, allowed: Option<Bytes>) -> Result<Self, PipelineError> {
        Ok(match device.free()? {
            Some(free) => MemoryLimit::Device(allowed.unwrap_or(Bytes(free))),
            None => MemoryLimit::Machine(allowed.unwrap_or_else(|| Machine::here().memory)),
        })
    }

    pub fn bytes(self) -> Bytes {
        match self {
            MemoryLimit::Machine(bytes) | MemoryLimit::Device(bytes) => bytes,
        }
    }

    pub fn holds(self, bytes: Bytes) -> bool {
        self.bytes() == Bytes(0) || bytes <= self.bytes()
    }

    /// Why a program cannot run there; `None` where it can.
    ///
    /// # Errors
    /// Sizes without a value.
    pub fn too_small(self, program: &Sdfg) -> Result<Option<String>, PipelineError> {
        if most(program).is_ok_and(|most| self.holds(most)) {
            return Ok(None);
        }
        let needed = self.needed(program)?;
        let of = if matches!(self, MemoryLimit::Device(_)) { "of the device's memory" } else { "of memory" };
        let why = || format!("it would need {needed} {of} and may have {}", self.bytes());
        Ok((!self.holds(needed)).then(why))
    }

    /// The memory that measuring and comparing a program takes, as far as it is known before a configuration is chosen.
    ///
    /// # Errors
    /// Sizes without a value.
    pub fn needed(self, program: &Sdfg) -> Result<Bytes, PipelineError> {
        match self {
            MemoryLimit::Machine(_) => needed(program),
            MemoryLimit::Device(_) => {
                let step = expected(program)?;
                Ok((Bytes(step.given_bytes()) + Bytes(step.arena_bytes())).max(operands(program)?))
            }
        }
    }
}

/// An upper bound in bytes: every container alive at once, read and written, with three copies of its values in f64. It is found at once,
/// while the exact need takes a search over orders of kernels.
fn most(program: &Sdfg) -> Result<Bytes, PipelineError> {
    let each = |name: &str| -> Result<Bytes, PipelineError> {
        let (stored, in_f64) = (program.bytes(name)? + sdfg::lifetime::ALIGNMENT, Dtype::F64.bytes(program.elements(name)?));
        Ok(Bytes(stored.saturating_mul(2).saturating_add(in_f64.saturating_mul(3))))
    };
    program.containers.keys().map(|name| each(name)).sum()
}

/// On the host, the larger of two needs: the scratch operands of the kernels; or the step with its inputs in f64 and its results in f64
/// twice.
///
/// # Errors
/// Sizes without a value.
pub fn needed(program: &Sdfg) -> Result<Bytes, PipelineError> {
    let step = expected(program)?;
    let seen = |given: bool| {
        let of = program.containers.values().filter(|c| c.role != Role::Transient && c.view.is_none());
        of.filter(move |c| matches!(c.role, Role::Input | Role::Parameter) == given)
    };
    let in_f64 = |c: &Container| Ok(Dtype::F64.bytes(program.elements(&c.name)?));
    let drawn: u64 = seen(true).map(in_f64).sum::<Result<_, PipelineError>>()?;
    let results: u64 = seen(false).map(in_f64).sum::<Result<_, PipelineError>>()?;
    let whole = Bytes(step.given_bytes()) + Bytes(step.arena_bytes()) + Bytes(drawn) + Bytes(results) + Bytes(results);
    Ok(whole.max(operands(program)?))
}

/// Bytes of the scratch operands on which all kernels and relayouts of a program are timed ([`super::scratch_operands`]). Read and
/// written arguments have memory of their own, and so has each type; each holds the largest arguments that are needed at once.
fn operands(program: &Sdfg) -> Result<Bytes, PipelineError> {
    let mut held: BTreeMap<(String, bool), Vec<u64>> = BTreeMap::new();
    let mut take = |arguments: Vec<(Dtype, bool, u64)>| {
        let mut taken: BTreeMap<(String, bool), Vec<u64>> = BTreeMap::new();
        for (dtype, written, bytes) in arguments {
            taken.entry((dtype.to_string(), written)).or_default().push(bytes);
        }
        for (kind, mut bytes) in taken {
            bytes.sort_by_key(|b| Reverse(*b));
            let held = held.entry(kind).or_default();
            held.resize(held.len().max(bytes.len()), 0);
            held.iter_mut().zip(bytes).for_each(|(held, bytes)| *held = (*held).max(bytes));
        }
    };
    let specs = KernelSpecs::of(program);
    for (_, _, unit) in program.units() {
        let spec = specs.spec(&unit)?;
        let written = |a: &kernels::KernelArgument| a.access == kernels::ArgumentAccess::Write;
        let arguments = spec.arguments().into_iter().map(|a| Ok((a.dtype, written(&a), program.bytes(&a.data)?)));
        take(arguments.collect::<Result<_, PipelineError>>()?);
    }
    for container in program.containers.values().filter(|c| c.view.is_none() && c.dims.len() > 1) {
        let bytes = program.bytes(&container.name)?;
        take(vec![(container.dtype, false, bytes), (container.dtype, true, bytes)]);
    }
    Ok(held.into_values().flatten().map(Bytes).sum())
}
