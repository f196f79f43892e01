//! Every way to run one contraction through cuBLASLt: layouts of its tensors × mappings × forms × batchings × algorithms.

use super::choice::Choice;
use super::description::{Batching, Description, Form};
use crate::contraction::{ContractionSpace, Problem, Types};
use crate::error::KernelError;
use crate::kernel::{KernelSpec, Space, TensorChoice};
use sdfg::config::KernelConfig;
use std::sync::Arc;

/// Algorithms of a product that are numbered; the library has fewer for most.
const ALGORITHMS: u64 = 64;
/// Batches of addresses are described, but not launched yet.
const BATCHINGS: [Batching; 2] = [Batching::Strided, Batching::Launches];
/// Figures of an H200, for the order in which configurations are tried alone: bytes in a second, flop in a second with factors of
/// two bytes and with others, seconds of a launch.
const BANDWIDTH: f64 = 4e12;
const NARROW_FLOP: f64 = 7e14;
const WIDE_FLOP: f64 = 5e13;
const LAUNCH: f64 = 2.5e-6;

/// Whoever knows which algorithms there are for a product.
pub trait Offer: Send + Sync {
    /// How many there are, if that has been asked before: asking takes longer than all else that a space does.
    fn known(&self, description: &Description, types: Types) -> Option<usize>;
}

/// All plain permutations of the tensors and all knobs of one contraction. A number of an algorithm that the library does not have
/// is refused when it is compiled.
pub struct CublasLtSpace {
    mapped: ContractionSpace,
    offer: Arc<dyn Offer>,
}

impl CublasLtSpace {
    const KNOBS: u64 = Form::ALL.len() as u64 * BATCHINGS.len() as u64 * ALGORITHMS;

    /// # Errors
    /// Anything but a contraction; one that is no matrix product.
    pub fn new(spec: &KernelSpec, offer: Arc<dyn Offer>) -> Result<Self, KernelError> {
        Ok(CublasLtSpace { mapped: ContractionSpace::of(spec, 1)?, offer })
    }

    fn problem(&self) -> &Problem {
        self.mapped.problem()
    }

    fn described(&self, config: &KernelConfig) -> Option<(Choice, Description)> {
        let layouts = self.problem().layouts_of(config);
        let choice = Choice::of(self.problem(), config).ok()?;
        let description = choice.description(self.problem(), layouts.each_ref()).ok()?;
        Some((choice, description))
    }

    /// Predicted seconds; infinite where the library has no words or no such algorithm.
    fn seconds(&self, config: &KernelConfig) -> f64 {
        let Some((choice, description)) = self.described(config) else { return f64::INFINITY };
        let types = self.problem().types;
        let narrowed = types.narrows() && description.launches.iter().any(|l| l.accumulate);
        if narrowed || self.offer.known(&description, types).is_some_and(|known| choice.algorithm >= known) {
            return f64::INFINITY;
        }
        let peak = if types.widths()[0] == 2 { NARROW_FLOP } else { WIDE_FLOP };
        let widths = types.widths();
        let Description { m, n, k, batch, .. } = description;
        let each = [m * k, k * n, m * n].iter().zip(widths).map(|(elements, width)| (elements * width * batch) as f64).sum::<f64>();
        let launches = description.launches.len() as f64;
        let work = (description.flop() / peak).max(each * launches / BANDWIDTH);
        // What the library puts first is seldom far from the best; matrices in columns are what it was made for.
        let place = 1.0 + 0.01 * choice.algorithm as f64 + if choice.form == Form::Columns { 0.0 } else { 0.005 };
        (work + launches * LAUNCH) * place
    }
}

impl Space for CublasLtSpace {
    fn tensors(&self) -> &[TensorChoice] {
        self.mapped.tensors()
    }

    fn count(&self) -> u64 {
        self.mapped.mapped_radices().iter().product::<u64>() * Self::KNOBS
    }

    fn knobs(&self) -> Vec<u64> {
        let mapped = self.mapped.mapped_radices().split_off(self.tensors().len());
        mapped.into_iter().chain([Form::ALL.len() as u64, BATCHINGS.len() as u64, ALGORITHMS]).collect()
    }

    fn config(&self, n: u64) -> KernelConfig {
        let Ok((layouts, mapping)) = self.mapped.mapped(n / Self::KNOBS) else { return KernelConfig::default() };
        let rest = (n % Self::KNOBS) as usize;
        let (algorithm, rest) = (rest % ALGORITHMS as usize, rest / ALGORITHMS as usize);
        let (batching, form) = (BATCHINGS[rest % BATCHINGS.len()], Form::ALL[rest / BATCHINGS.len()]);
        let layouts = self.tensors().iter().map(|t| t.data.clone()).zip(layouts.into_iter().cloned()).collect();
        KernelConfig { layouts, knobs: Choice { mapping, form, batching, algorithm }.knobs() }
    }

    /// What the library is told, and the algorithm.
    fn identity(&self, n: u64) -> String {
        match self.described(&self.config(n)) {
            Some((choice, description)) => {
                let digest: String = description.digest()[..16].iter().map(|b| format!("{b:02x}")).collect();
                format!("{} {digest} {}", self.problem().types, choice.algorithm)
            }
            None => format!("number {n}"),
        }
    }

    /// Predicted seconds, as the bytes that the memory would move meanwhile.
    fn promise(&self, n: u64) -> f64 {
        self.seconds(&self.config(n)) * BANDWIDTH
    }

    /// One launch in columns, with the algorithm that the library chooses itself.
    fn intuitive(&self, config: &KernelConfig) -> bool {
        self.described(config).is_some_and(|(choice, d)| d.launches.len() == 1 && choice.form == Form::Columns && choice.algorithm == 0)
    }
}
