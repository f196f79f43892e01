//! Every way to run one contraction through cuBLASLt: layouts of its tensors × mappings × forms × batchings × algorithms.

use super::algorithm::Listing;
use super::choice::{Choice, Units};
use super::description::{Batching, Description, Form};
use super::fused::Fused;
use crate::contraction::{ContractionSpace, Problem, Types};
use crate::kernel::{Space, TensorChoice};
use rayon::prelude::*;
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
    fn known(&self, asked: &Asked, listing: Listing) -> Option<usize>;
}

/// A product as the library is asked about it: its types and units, and its description.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Asked {
    types: String,
    digest: [u8; 32],
}

impl Asked {
    pub fn of(description: &Description, types: Types, units: Units) -> Self {
        Asked { types: format!("{types} {units}"), digest: description.digest() }
    }
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

    /// What all algorithms of a configuration have in common, the first of which takes so many seconds; `None` where the library has
    /// no words.
    fn stem(&self, config: &KernelConfig) -> Option<(Asked, f64)> {
        let (choice, description) = self.described(config)?;
        let types = self.problem().types;
        if types.narrows() && description.launches.iter().any(|l| l.accumulate) {
            return None;
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
        // Matrices in columns are what the library was made for.
        let form = if choice.form == Form::Columns { 1.0 } else { 1.005 };
        Some((Asked::of(&description, types, choice.units), (work + launches * LAUNCH) * form))
    }

    /// Predicted seconds of configurations that differ in their algorithm alone; infinite where the library has no words or no such
    /// algorithm.
    fn seconds(&self, numbers: &[u64]) -> Vec<f64> {
        let stem = numbers.first().and_then(|n| self.stem(&self.config(*n)));
        let Some((asked, first)) = stem else { return vec![f64::INFINITY; numbers.len()] };
        let known = [Listing::Heuristic, Listing::Catalogue].map(|listing| (listing, self.offer.known(&asked, listing)));
        let each = numbers.iter().map(|n| {
            let algorithm = (n % Listing::ALL as u64) as usize;
            let (listing, place) = Listing::of(algorithm);
            let offered = known.iter().find(|(l, _)| *l == listing).and_then(|(_, known)| *known);
            // What the library puts first is seldom far from the best.
            if offered.is_some_and(|known| place >= known) { f64::INFINITY } else { first * (1.0 + 0.01 * algorithm as f64) }
        });
        each.collect()
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
        self.promises(&[n])[0]
    }

    /// What configurations have in common that differ in their algorithm alone takes far longer to work out than all else.
    fn promises(&self, numbers: &[u64]) -> Vec<f64> {
        let alike = |a: &u64, b: &u64| a / Listing::ALL as u64 == b / Listing::ALL as u64;
        numbers.par_chunk_by(alike).flat_map_iter(|numbers| self.seconds(numbers)).map(|seconds| seconds * BANDWIDTH).collect()
    }

    /// One launch in columns, with the algorithm that the library chooses itself.
    fn intuitive(&self, config: &KernelConfig) -> bool {
        self.described(config).is_some_and(|(choice, d)| {
            d.launches.len() == 1 && choice.form == Form::Columns && choice.units == Units::Any && choice.algorithm == 0
        })
    }
}
