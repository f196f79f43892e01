//! A contraction on its own as a tile kernel: the generated products beside the libraries.

use super::TileSpace;
use crate::contraction::ContractionSpace;
use crate::error::KernelError;
use crate::kernel::{ConfigSpace, KernelSpec, TensorChoice};
use sdfg::config::KernelConfig;
use sdfg::{Sdfg, Unit};

/// The scope that a contraction means.
///
/// # Errors
/// Anything but an operation that expands into one scope.
pub fn expanded(spec: &KernelSpec) -> Result<KernelSpec, KernelError> {
    let unsupported = |what: String| KernelError::Unsupported { kernel: spec.name.clone(), what };
    let Unit::Operation(operation) = &spec.unit else { return Err(unsupported("it is no operation".into())) };
    let mut program = Sdfg::new("contraction");
    program.dims = spec.extents.clone();
    program.sizes = spec.sizes.clone();
    program.containers = spec.containers.clone();
    // Tile kernels round a sum where they store it: no container stands between.
    for out in &operation.outputs {
        if let Some(container) = program.containers.get_mut(&out.data) {
            container.dtype = container.dtype.accumulator();
        }
    }
    let expansion = operation.expand(&program).map_err(|e| unsupported(e.to_string()))?;
    let [scope] = <[_; 1]>::try_from(expansion.scopes).map_err(|_| unsupported("it means more than one scope".into()))?;
    Ok(KernelSpec { unit: Unit::Scope(scope), ..spec.clone() })
}

/// Libraries and generated products: for each combination of layouts first the knobs of the former, then of the latter.
pub struct GemmSpace {
    libraries: ContractionSpace,
    generated: TileSpace,
    /// Configurations for one combination of layouts.
    knobs: [u64; 2],
    /// Predicted bytes of the generated product at its best.
    least: f64,
}

impl GemmSpace {
    /// `None` if the two do not take the same tensors.
    pub fn new(libraries: ContractionSpace, generated: TileSpace) -> Option<Self> {
        let alike = |(a, b): (&TensorChoice, &TensorChoice)| a.data == b.data && b.layouts.starts_with(&a.layouts);
        let both = || libraries.tensors().iter().zip(generated.tensors());
        if libraries.tensors().len() != generated.tensors().len() || !both().all(alike) {
            return None;
        }
        let layouts = |tensors: &[TensorChoice]| tensors.iter().map(|t| t.layouts.len() as u64).product::<u64>();
        let knobs = [libraries.count() / layouts(libraries.tensors()), generated.count() / layouts(generated.tensors())];
        let least = generated.bytes();
        Some(GemmSpace { libraries, generated, knobs, least })
    }

    /// Which space, and the number in it.
    fn place(&self, n: u64) -> (usize, u64) {
        let all = self.knobs[0] + self.knobs[1];
        let (layouts, knob) = (n % self.count() / all, n % all);
        if knob >= self.knobs[0] {
            return (1, layouts * self.knobs[1] + knob - self.knobs[0]);
        }
        // Libraries know of plain layouts alone: with others, their numbers are generated products once more.
        let (mut rest, mut plain, mut weight) = (layouts, Some(0), 1);
        for (all, known) in self.generated.tensors().iter().zip(self.libraries.tensors()).rev() {
            let (all, known) = (all.layouts.len() as u64, known.layouts.len() as u64);
            plain = plain.filter(|_| rest % all < known).map(|plain| plain + rest % all * weight);
            (rest, weight) = (rest / all, weight * known);
        }
        match plain {
            Some(plain) => (0, plain * self.knobs[0] + knob),
            None => (1, layouts * self.knobs[1] + knob % self.knobs[1]),
        }
    }
}

impl ConfigSpace for GemmSpace {
    fn tensors(&self) -> &[TensorChoice] {
        self.generated.tensors()
    }

    fn count(&self) -> u64 {
        self.generated.count() / self.knobs[1] * (self.knobs[0] + self.knobs[1])
    }

    fn config(&self, n: u64) -> KernelConfig {
        match self.place(n) {
            (0, n) => self.libraries.config(n),
            (_, n) => self.generated.config(n),
        }
    }

    fn identity(&self, n: u64) -> String {
        match self.place(n) {
            (0, n) => self.libraries.identity(n),
            (_, n) => self.generated.identity(n),
        }
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        match self.place(n) {
            (0, n) => self.libraries.predicted_cost(n),
            // What is badly walked costs packing, of which there is little beside the multiplications.
            (_, n) => self.libraries.best() * (0.9 + 0.1 * self.generated.predicted_cost(n) / self.least),
        }
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        if super::is_tiled(config) { self.generated.matches_rule_of_thumb(config) } else { self.libraries.matches_rule_of_thumb(config) }
    }
}
