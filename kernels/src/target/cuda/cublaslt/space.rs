//! Every way to run one contraction through cuBLASLt: layouts of its tensors × mappings × forms × batchings × algorithms.

use crate::config_space::{ConfigSpace, TensorChoice};
use crate::contraction::{ContractionProblem, MappedSpace, Types};
use crate::target::cuda::cublaslt::algorithm::Listing;
use crate::target::cuda::cublaslt::config::{CublasLtConfig, Units};
use crate::target::cuda::cublaslt::description::{Batching, Description, MatrixOrder};
use crate::target::cuda::cublaslt::fused::FusedContraction;
use rayon::prelude::*;
use sdfg::config::KernelConfig;
use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

/// Figures of an H200, for the order in which configurations are tried alone: bytes in a second, flop in a second with factors of
/// two bytes and with others, seconds of a launch.
const BANDWIDTH: f64 = 4e12;
const NARROW_FLOP: f64 = 7e14;
const WIDE_FLOP: f64 = 5e13;
const LAUNCH: f64 = 2.5e-6;

/// A source of the algorithms that there are for a product.
pub trait AlgorithmSource: Send + Sync {
    /// How many there are in a listing, if that has been asked before: asking takes longer than all else that a space does.
    fn known(&self, asked: &AlgorithmQuery, listing: Listing) -> Option<usize>;
}

/// A product as the library is asked about it: its types and units, and its description.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct AlgorithmQuery {
    types: String,
    digest: [u8; 32],
}

impl AlgorithmQuery {
    pub fn of(description: &Description, types: Types, units: Units) -> Self {
        AlgorithmQuery { types: format!("{types} {units}"), digest: description.digest() }
    }
}

/// What configurations have in common that differ in their algorithm alone.
struct Stem {
    asked: AlgorithmQuery,
    /// Equal for equal descriptions.
    identity: String,
    /// Predicted, of the library's first algorithm; infinite where the library has no words.
    seconds: f64,
}

/// All plain permutations of the tensors and all knobs of one contraction. A number of an algorithm that the library does not have
/// is refused when it is compiled.
pub struct CublasLtSpace {
    fused: FusedContraction,
    mapped: MappedSpace,
    count: u64,
    offer: Arc<dyn AlgorithmSource>,
    /// By number without its algorithm; `None` where layouts and knobs do not fit. Working one out takes a hundred times as long as
    /// all else that is asked about a configuration, and it is asked about again with every algorithm.
    stems: RwLock<BTreeMap<u64, Option<Arc<Stem>>>>,
}

impl CublasLtSpace {
    const RADICES: [u64; 4] = [MatrixOrder::ALL.len() as u64, Batching::ALL.len() as u64, Units::ALL.len() as u64, Listing::ALL as u64];
    const ALGORITHMS: u64 = Listing::ALL as u64;
    const KNOBS: u64 = Self::RADICES[0] * Self::RADICES[1] * Self::RADICES[2] * Self::RADICES[3];

    pub fn new(fused: FusedContraction, offer: Arc<dyn AlgorithmSource>) -> Self {
        let beside = fused.epilogue.iter().flat_map(|e| e.tensors()).collect();
        let mapped = MappedSpace::new(fused.problem.clone()).beside(beside);
        let count = mapped.radices().iter().product::<u64>() * Self::KNOBS;
        CublasLtSpace { mapped, fused, count, offer, stems: RwLock::default() }
    }

    fn problem(&self) -> &ContractionProblem {
        &self.fused.problem
    }

    fn described(&self, config: &KernelConfig) -> Option<(CublasLtConfig, Description)> {
        let choice = CublasLtConfig::of(self.problem(), config).ok()?;
        let description = self.fused.description(&choice, config).ok()?;
        Some((choice, description))
    }

    /// What number `n` has in common with those that differ from it in their algorithm alone.
    fn stem(&self, n: u64) -> Option<Arc<Stem>> {
        let key = n % self.count.max(1) / Self::ALGORITHMS;
        if let Some(known) = self.stems.read().unwrap_or_else(PoisonError::into_inner).get(&key) {
            return known.clone();
        }
        let found = self.described(&self.config(n)).map(|(choice, description)| Arc::new(self.worked_out(&choice, &description)));
        self.stems.write().unwrap_or_else(PoisonError::into_inner).insert(key, found.clone());
        found
    }

    fn worked_out(&self, choice: &CublasLtConfig, description: &Description) -> Stem {
        let types = self.problem().types;
        let digest: String = description.digest()[..16].iter().map(|b| format!("{b:02x}")).collect();
        Stem {
            asked: AlgorithmQuery::of(description, types, choice.units),
            identity: format!("{types} {digest} {}", choice.units),
            seconds: self.first(choice, description),
        }
    }

    /// Predicted seconds of the library's first algorithm.
    fn first(&self, choice: &CublasLtConfig, description: &Description) -> f64 {
        let types = self.problem().types;
        if types.narrows() && description.launches.iter().any(|l| l.accumulate) {
            return f64::INFINITY;
        }
        let peak = match choice.units {
            Units::Any if types.widths()[0] == 2 => NARROW_FLOP,
            Units::Any if types.tf32 => NARROW_FLOP / 2.0,
            _ => WIDE_FLOP,
        };
        let widths = types.widths();
        let Description { m, n, k, batch, .. } = *description;
        // An auxiliary matrix is as large as the result, or one of bits, which is next to nothing.
        let large =
            |e: crate::target::cuda::cublaslt::epilogue_desc::EpilogueDesc| e.aux.is_some() && !e.function.is_some_and(|f| f.keeps_bits());
        let stored = if description.epilogue.is_some_and(large) { 2 * m * n } else { m * n };
        let each = [m * k, k * n, stored].iter().zip(widths).map(|(elements, width)| (elements * width * batch) as f64).sum::<f64>();
        let launches = description.launches.len() as f64;
        let work = (description.flop() / peak).max(each * launches / BANDWIDTH);
        // Matrices in columns are what the library was made for.
        let form = if choice.form == MatrixOrder::Columns { 1.0 } else { 1.005 };
        (work + launches * LAUNCH) * form
    }
}

impl ConfigSpace for CublasLtSpace {
    fn tensors(&self) -> &[TensorChoice] {
        self.mapped.tensors()
    }

    fn count(&self) -> u64 {
        self.count
    }

    fn knobs(&self) -> Vec<u64> {
        let mapped = self.mapped.radices().split_off(self.tensors().len());
        mapped.into_iter().chain(Self::RADICES).collect()
    }

    fn config(&self, n: u64) -> KernelConfig {
        let Ok((layouts, mapping)) = self.mapped.at(n / Self::KNOBS) else { return KernelConfig::default() };
        let mut rest = (n % Self::KNOBS) as usize;
        // Digits from the last, which is the fastest.
        let [form, batching, units, algorithm] = {
            let mut digits = [0; 4];
            for (digit, radix) in digits.iter_mut().zip(Self::RADICES).rev() {
                (*digit, rest) = (rest % radix as usize, rest / radix as usize);
            }
            digits
        };
        let (form, batching, units) = (MatrixOrder::ALL[form], Batching::ALL[batching], Units::ALL[units]);
        let layouts = self.tensors().iter().map(|t| t.data.clone()).zip(layouts.into_iter().cloned()).collect();
        KernelConfig { layouts, knobs: CublasLtConfig { mapping, form, batching, units, algorithm }.knobs() }
    }

    /// The description of the call, and the algorithm.
    fn identity(&self, n: u64) -> String {
        match self.stem(n) {
            Some(stem) => format!("{} {}", stem.identity, n % Self::ALGORITHMS),
            None => format!("number {n}"),
        }
    }

    fn ranking_batch(&self) -> u64 {
        Self::ALGORITHMS
    }

    /// Predicted seconds, as the bytes that the memory moves in that time; infinite where the library has no description or no such
    /// algorithm.
    fn predicted_cost(&self, n: u64) -> f64 {
        let algorithm = (n % Self::ALGORITHMS) as usize;
        let (listing, place) = Listing::of(algorithm);
        match self.stem(n) {
            Some(stem) if self.offer.known(&stem.asked, listing).is_none_or(|offered| place < offered) => {
                // What the library puts first is seldom far from the best.
                stem.seconds * (1.0 + 0.01 * algorithm as f64) * BANDWIDTH
            }
            _ => f64::INFINITY,
        }
    }

    fn predicted_costs(&self, numbers: &[u64]) -> Vec<f64> {
        // Together those of one stem, so that it is worked out once.
        let alike = |a: &u64, b: &u64| a / Self::ALGORITHMS == b / Self::ALGORITHMS;
        numbers.par_chunk_by(alike).flat_map_iter(|numbers| numbers.iter().map(|n| self.predicted_cost(*n))).collect()
    }

    /// One launch in columns, with the algorithm that the library chooses itself.
    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        self.described(config).is_some_and(|(choice, d)| {
            d.launches.len() == 1 && choice.form == MatrixOrder::Columns && choice.units == Units::Any && choice.algorithm == 0
        })
    }

    /// The same product on plain units, with the algorithm that the library chooses itself: what tensor cores bring. `None` where
    /// no tensor cores multiply, and beside an epilogue, whose product is another kernel as well.
    fn control(&self, n: u64) -> Option<u64> {
        let plain = n - n % Self::ALGORITHMS + Self::ALGORITHMS;
        let (choice, _) = self.described(&self.config(n))?;
        (choice.units == Units::Any && self.fused.epilogue.is_none() && self.stem(plain).is_some()).then_some(plain)
    }
}
