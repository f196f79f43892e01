//! A contraction on its own, on the cores: generated code as a rival of the libraries. Products of matrices are walked in tiles; those of a
//! matrix and a vector are loops like any others.

use crate::config_space::{ConfigSpace, TensorChoice};
use crate::target::cpu::gemm_library::ContractionSpace;
use crate::tiles;
use sdfg::config::KernelConfig;

/// Libraries and generated products: for each combination of layouts first the knobs of the former, then of the latter.
pub struct GemmSpace {
    libraries: ContractionSpace,
    generated: Box<dyn ConfigSpace>,
    /// Configurations for one combination of layouts.
    knobs: [u64; 2],
    /// Predicted cost of the generated code at its best.
    least: f64,
}

impl GemmSpace {
    /// `None` if the two do not take the same tensors.
    pub fn new(libraries: ContractionSpace, generated: Box<dyn ConfigSpace>, least: f64) -> Option<Self> {
        let alike = |(a, b): (&TensorChoice, &TensorChoice)| a.data == b.data && b.layouts.starts_with(&a.layouts);
        let both = || libraries.tensors().iter().zip(generated.tensors());
        if libraries.tensors().len() != generated.tensors().len() || !both().all(alike) {
            return None;
        }
        let layouts = |tensors: &[TensorChoice]| tensors.iter().map(|t| t.layouts.len() as u64).product::<u64>();
        let knobs = [libraries.count() / layouts(libraries.tensors()), generated.count() / layouts(generated.tensors())];
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
            // Operands with bad strides cost packing, which is little compared with the multiplications.
            (_, n) => self.libraries.best() * (0.9 + 0.1 * self.generated.predicted_cost(n) / self.least),
        }
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        if is_generated(config) { self.generated.matches_rule_of_thumb(config) } else { self.libraries.matches_rule_of_thumb(config) }
    }
}

/// Whether a configuration of a contraction is of generated code, not of a library.
pub fn is_generated(config: &KernelConfig) -> bool {
    tiles::is_tiled(config) || config.knobs.get("order").is_some()
}
