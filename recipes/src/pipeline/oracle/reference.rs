//! What the oracle says about single kernels at small sizes.

use super::largest_finite::largest_finite;
use super::tensors::{self, RANGES};
use crate::pipeline::PipelineError;
use kernels::KernelSpec;
use layouts::measure::space::Fault;
use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::{Run, Tensors, interpret, interpret_unit_within};
use sdfg::tolerance::{self, Tolerance};
use sdfg::{Bindings, Dtype, Sdfg};
use std::collections::BTreeMap;

/// What inputs are drawn from.
pub const SEED: u64 = 1;
/// What every run is.
pub const RUN: Run = Run { seed: SEED, step: 0, dropout: true };

/// What the oracle says about one kernel at small sizes.
pub struct Reference {
    pub spec: KernelSpec,
    pub inputs: Tensors,
    pub outputs: Tensors,
    pub tolerances: BTreeMap<String, Tolerance>,
    /// What errors are relative to at least: the size of the terms that results are made of, which may cancel.
    pub scale: f64,
}

/// The reference interpreter, and what it has said.
#[derive(Default)]
pub struct ReferenceCache {
    /// By kernel, and by size symbol.
    expected: BTreeMap<(String, Bindings), Reference>,
    /// What the program itself makes of drawn inputs at small sizes, where that was needed.
    made: Vec<(Bindings, Tensors)>,
}

impl ReferenceCache {
    /// What a kernel makes of its inputs at some sizes, once it was run at them.
    pub fn says(&self, name: &str, sizes: &Bindings) -> Option<&Reference> {
        self.expected.get(&(name.to_string(), sizes.clone()))
    }

    /// Runs a kernel in the program at small sizes.
    pub fn run(&mut self, kernel: &KernelSpec, small: &Sdfg) -> Result<(), Fault> {
        let name = &kernel.name;
        let fault = |e: &dyn std::fmt::Display| Fault::Configuration(format!("`{name}` has no reference: {e}"));
        let spec = kernel.with_sizes(&small.sizes).map_err(|e| fault(&e))?;
        let case = |own: Option<&Tensors>, range| Case::new(&spec, small, own, range).map_err(|e| fault(&e));
        let numbers = |case: &Case| !case.overflows && !case.outputs.values().flatten().any(|v| v.is_nan());
        let own = if ReferenceCache::runs_all(&spec) { Some(self.own_values(small)?) } else { None };
        let mut tried = case(own, RANGES[0])?;
        // A logarithm of what is negative: nothing agrees with what is no number, nor with what f32 does not hold. The program has what
        // there is one of.
        if !numbers(&tried) && own.is_none() {
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

    /// Whether a kernel is given what the program itself makes of it, which then runs as a whole: kernels of f16 are, because f16 ends
    /// at 65504, and what is made on chip of statistics that were drawn, and are not those of the values beside them, goes beyond.
    pub fn runs_all(spec: &KernelSpec) -> bool {
        spec.containers.values().any(|c| c.dtype == Dtype::F16)
    }

    /// What the small program makes of what it is given.
    fn own_values(&mut self, small: &Sdfg) -> Result<&Tensors, Fault> {
        let at = match self.made.iter().position(|(sizes, _)| *sizes == small.sizes) {
            Some(at) => at,
            None => {
                let fault = |e: &dyn std::fmt::Display| Fault::Configuration(format!("`{}` cannot be interpreted: {e}", small.name));
                let given = tensors::random_inputs(small, SEED).map_err(|e| fault(&e))?;
                let made = interpret(small, &given, &RUN).map_err(|e| fault(&e))?;
                self.made.push((small.sizes.clone(), made));
                self.made.len() - 1
            }
        };
        Ok(&self.made[at].1)
    }
}

/// A kernel run by the interpreter.
struct Case {
    inputs: Tensors,
    outputs: Tensors,
    scale: f64,
    /// Whether something on the way is larger than kernels can hold.
    overflows: bool,
}

impl Case {
    /// Of drawn values, or of those that the program itself has for its containers: of what is `wanted` of each.
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
        // Drawn values are of size 1.
        let read = inputs.values().flatten().filter(|v| own.is_some() && v.is_finite());
        let scale = read.fold(1.0, |most, v| f64::max(most, v.abs()));
        let mut outputs = inputs.clone();
        for argument in spec.arguments().iter().filter(|a| a.access == kernels::Access::Write) {
            // What a kernel leaves alone keeps its value; what it must write begins as nothing.
            if !spec.unit.writes_part(small, &argument.data) {
                outputs.remove(&argument.data);
            }
        }
        let overflow = interpret_unit_within(small, &spec.unit, &mut outputs, &RUN, largest_finite(spec.containers.values()))?;
        Ok(Case { inputs, outputs, scale, overflows: overflow.is_some() })
    }
}
