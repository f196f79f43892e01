//! The interpreter's results for single kernels at small sizes.

use super::largest_finite::largest_finite;
use super::tensors::{self, RANGES};
use crate::pipeline::PipelineError;
use kernels::KernelSpec;
use layouts::measure::space::Fault;
use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::{Run, Tensors, interpret, interpret_unit_within};
use sdfg::tolerance::{self, Tolerance};
use sdfg::{Bindings, Dtype, Op, Range, Role, Sdfg, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// The seed of drawn inputs.
pub const SEED: u64 = 1;
/// Seed, step and dropout of every reference run.
pub const RUN: Run = Run { seed: SEED, step: 0, dropout: true };

/// The interpreter's result for one kernel at small sizes.
pub struct Reference {
    pub spec: KernelSpec,
    pub inputs: Tensors,
    pub outputs: Tensors,
    pub tolerances: BTreeMap<String, Tolerance>,
    /// The least magnitude that errors are relative to: that of the terms of the results, which may cancel.
    pub scale: f64,
}

/// The reference interpreter with its results so far.
#[derive(Default)]
pub struct ReferenceCache {
    /// By kernel and sizes.
    expected: BTreeMap<(String, Bindings), Reference>,
    /// By sizes: the whole program's values on drawn inputs at small sizes, where they were needed.
    made: Vec<(Bindings, Tensors)>,
}

impl ReferenceCache {
    /// A kernel's reference at some sizes, once the kernel was run at them.
    pub fn says(&self, name: &str, sizes: &Bindings) -> Option<&Reference> {
        self.expected.get(&(name.to_string(), sizes.clone()))
    }

    /// Runs a kernel in the program at small sizes.
    pub fn run(&mut self, kernel: &KernelSpec, small: &Sdfg) -> Result<(), Fault> {
        let name = &kernel.name;
        let fault = |e: &dyn std::fmt::Display| Fault::Configuration(format!("`{name}` has no reference: {e}"));
        let spec = kernel.with_sizes(&small.sizes).map_err(|e| fault(&e))?;
        let case = |own: Option<&Tensors>, range| Case::new(&spec, small, own, range).map_err(|e| fault(&e));
        let numbers_alone: Tensors;
        let numbers = |case: &Case| !case.overflows && !case.outputs.values().flatten().any(|v| v.is_nan());
        let numbers_read = single_numbers(&spec);
        let own = match ReferenceCache::runs_all(&spec) {
            true => Some(self.own_values(small)?),
            false if numbers_read.is_empty() => None,
            false => {
                let made = self.own_values(small)?.iter().filter(|(name, _)| numbers_read.contains(*name));
                numbers_alone = made.map(|(name, value)| (name.clone(), value.clone())).collect();
                Some(&numbers_alone)
            }
        };
        let mut tried = case(own, RANGES[0])?;
        // Drawn values may lead to NaN, as in a logarithm of negatives, or to numbers that f32 cannot hold. The whole program has values
        // for which the kernel's results are finite.
        if !numbers(&tried) && !ReferenceCache::runs_all(&spec) {
            tried = case(Some(self.own_values(small)?), RANGES[0])?;
        }
        for range in &RANGES[1..] {
            if !numbers(&tried) {
                tried = case(None, *range)?;
            }
        }
        let Case { inputs, outputs, scale, .. } = tried;
        let tolerances = tolerance::unit_tolerance(small, &spec.unit).map_err(|e| fault(&e))?;
        self.expected.insert((name.to_string(), small.sizes.clone()), Reference { spec, inputs, outputs, tolerances, scale });
        Ok(())
    }

    /// Whether a kernel gets its inputs from a run of the whole program. Kernels of f16 do, because f16 ends at 65504: values recomputed
    /// from independently drawn statistics would go beyond.
    pub fn runs_all(spec: &KernelSpec) -> bool {
        spec.containers.values().any(|c| c.dtype == Dtype::F16) || reads_by_value(&spec.unit)
    }

    /// The small program's values on drawn inputs.
    fn own_values(&mut self, small: &Sdfg) -> Result<&Tensors, Fault> {
        let at = match self.made.iter().position(|(sizes, _)| *sizes == small.sizes) {
            Some(at) => at,
            None => {
                let fault = |e: &dyn std::fmt::Display| Fault::Configuration(format!("`{}` cannot be interpreted: {e}", small.name));
                let given = tensors::inputs_to_compare(small, SEED).map_err(|e| fault(&e))?;
                let made = interpret(small, &given, &RUN).map_err(|e| fault(&e))?;
                self.made.push((small.sizes.clone(), made));
                self.made.len() - 1
            }
        };
        Ok(&self.made[at].1)
    }
}

/// Single numbers that a kernel reads and others compute, such as a rate or what is added to a divisor. They are those of the program: a
/// drawn one may make what a kernel computes with it as inexact as a difference of equal numbers.
fn single_numbers(spec: &KernelSpec) -> BTreeSet<String> {
    let arguments = spec.arguments().into_iter().filter(|a| a.access == kernels::ArgumentAccess::Read);
    let is_single = |name: &String| spec.containers.get(name).is_some_and(|c| c.dims.is_empty() && c.role == Role::Transient);
    arguments.map(|a| a.data.clone()).filter(is_single).collect()
}

/// Whether a unit reads or writes rows that a container names: drawn numbers would name rows that do not exist.
fn reads_by_value(unit: &Unit) -> bool {
    let by_value = |range: &Range| matches!(range, Range::At(at) if at.reads_elements());
    match unit {
        Unit::Operation(operation) => matches!(operation.op, Op::Scatter { .. }),
        Unit::Scope(scope) => scope.computations().iter().any(|(_, c)| c.reads.iter().any(|(_, m)| m.subset.iter().any(by_value))),
        Unit::Nested(_) => false,
    }
}

/// A kernel run by the interpreter.
struct Case {
    inputs: Tensors,
    outputs: Tensors,
    scale: f64,
    /// Whether an intermediate value is larger than kernels can hold.
    overflows: bool,
}

impl Case {
    /// A run on drawn values, or on the program's `own` ones where there are any; `wanted` maps each of these to an input.
    fn new(spec: &KernelSpec, small: &Sdfg, own: Option<&Tensors>, wanted: fn(f64) -> f64) -> Result<Self, PipelineError> {
        let mut inputs = Tensors::new();
        for argument in spec.arguments() {
            let shape = spec.shape(&argument.data)?;
            if let Some(value) = own.and_then(|own| own.get(&argument.data)) {
                inputs.insert(argument.data.clone(), value.mapv(|v| argument.dtype.rounded(wanted(v))));
                continue;
            }
            let mut values = tensors::values(small, &spec.containers[&argument.data], shape.iter().product(), SEED, wanted)?;
            tensors::store(small, &spec.containers[&argument.data], &mut values)?;
            let array = ArrayD::from_shape_vec(IxDyn(&shape), values).map_err(|e| PipelineError::Internal(e.to_string()))?;
            inputs.insert(argument.data.clone(), array);
        }
        // Drawn values have magnitude 1.
        let read = inputs.values().flatten().filter(|v| own.is_some() && v.is_finite());
        let scale = read.fold(1.0, |most, v| f64::max(most, v.abs()));
        let mut outputs = inputs.clone();
        for argument in spec.arguments().iter().filter(|a| a.access == kernels::ArgumentAccess::Write) {
            // Elements that a kernel leaves alone keep their values; a container that it writes entirely begins empty.
            if !spec.unit.writes_part(small, &argument.data) {
                outputs.remove(&argument.data);
            }
        }
        let overflow = interpret_unit_within(small, &spec.unit, &mut outputs, &RUN, largest_finite(spec.containers.values()))?;
        Ok(Case { inputs, outputs, scale, overflows: overflow.is_some() })
    }
}
