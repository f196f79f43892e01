//! Every way to run one contraction through cuBLASLt: layouts of its tensors × mappings × forms × batchings × algorithms.

use super::algorithm::Listing;
use super::choice::{Choice, Units};
use super::description::{Batching, Description, Form};
use super::fused::Fused;
use crate::contraction::{ContractionSpace, Problem, Types};
use crate::kernel::{Space, TensorChoice};
use sdfg::config::KernelConfig;
use std::sync::Arc;

/// Figures of an H200, for the order in which configurations are tried alone: bytes in a second, flop in a second with factors of
/// two bytes and with others, seconds of a launch.
const BANDWIDTH: f64 = 4e12;
const NARROW_FLOP: f64 = 7e14;
const WIDE_FLOP: f64 = 5e13;
const LAUNCH: f64 = 2.5e-6;

/// Whoever knows which algorithms there are for a product.
pub trait Offer: Send + Sync {
    /// How many there are in a listing, if that has been asked before: asking takes longer than all else that a space does.
    fn known(&self, description: &Description, types: Types, units: Units, listing: Listing) -> Option<usize>;
}

/// All plain permutations of the tensors and all knobs of one contraction. A number of an algorithm that the library does not have
/// is refused when it is compiled.
pub struct CublasLtSpace {
    fused: Fused,
    mapped: ContractionSpace,
    offer: Arc<dyn Offer>,
}

impl CublasLtSpace {
    const RADICES: [u64; 4] = [Form::ALL.len() as u64, Batching::ALL.len() as u64, Units::ALL.len() as u64, Listing::ALL as u64];
    const KNOBS: u64 = Self::RADICES[0] * Self::RADICES[1] * Self::RADICES[2] * Self::RADICES[3];

    pub fn new(fused: Fused, offer: Arc<dyn Offer>) -> Self {
        let beside = fused.epilogue.iter().flat_map(|e| e.tensors()).collect();
        CublasLtSpace { mapped: ContractionSpace::new(fused.problem.clone(), 1).beside(beside), fused, offer }
    }

    fn problem(&self) -> &Problem {
        &self.fused.problem
    }

    fn described(&self, config: &KernelConfig) -> Option<(Choice, Description)> {
        let choice = Choice::of(self.problem(), config).ok()?;
        let description = self.fused.description(&choice, config).ok()?;
        Some((choice, description))
    }

    /// Predicted seconds; infinite where the library has no words or no such algorithm.
    fn seconds(&self, config: &KernelConfig) -> f64 {
        let Some((choice, description)) = self.described(config) else { return f64::INFINITY };
        let types = self.problem().types;
        let narrowed = types.narrows() && description.launches.iter().any(|l| l.accumulate);
        let (listing, number) = Listing::of(choice.algorithm);
        if narrowed || self.offer.known(&description, types, choice.units, listing).is_some_and(|known| number >= known) {
            return f64::INFINITY;
        }
        let peak = match choice.units {
            Units::Any if types.widths()[0] == 2 => NARROW_FLOP,
            Units::Any if types.tf32 => NARROW_FLOP / 2.0,
            _ => WIDE_FLOP,
        };
        let widths = types.widths();
        let Description { m, n, k, batch, .. } = description;
        // An auxiliary matrix is as large as the result, or one of bits, which is next to nothing.
        let large = |e: super::ending::Ending| e.aux.is_some() && !e.function.is_some_and(|f| f.keeps_bits());
        let stored = if description.epilogue.is_some_and(large) { 2 * m * n } else { m * n };
        let each = [m * k, k * n, stored].iter().zip(widths).map(|(elements, width)| (elements * width * batch) as f64).sum::<f64>();
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
        mapped.into_iter().chain(Self::RADICES).collect()
    }

    fn config(&self, n: u64) -> KernelConfig {
        let Ok((layouts, mapping)) = self.mapped.mapped(n / Self::KNOBS) else { return KernelConfig::default() };
        let mut rest = (n % Self::KNOBS) as usize;
        // Digits from the last, which is the fastest.
        let [form, batching, units, algorithm] = {
            let mut digits = [0; 4];
            for (digit, radix) in digits.iter_mut().zip(Self::RADICES).rev() {
                (*digit, rest) = (rest % radix as usize, rest / radix as usize);
            }
            digits
        };
        let (form, batching, units) = (Form::ALL[form], Batching::ALL[batching], Units::ALL[units]);
        let layouts = self.tensors().iter().map(|t| t.data.clone()).zip(layouts.into_iter().cloned()).collect();
        KernelConfig { layouts, knobs: Choice { mapping, form, batching, units, algorithm }.knobs() }
    }

    /// What the library is told, and the algorithm.
    fn identity(&self, n: u64) -> String {
        match self.described(&self.config(n)) {
            Some((choice, description)) => {
                let digest: String = description.digest()[..16].iter().map(|b| format!("{b:02x}")).collect();
                format!("{} {digest} {} {}", self.problem().types, choice.units, choice.algorithm)
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
        self.described(config).is_some_and(|(choice, d)| {
            d.launches.len() == 1 && choice.form == Form::Columns && choice.units == Units::Any && choice.algorithm == 0
        })
    }
}
