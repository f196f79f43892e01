//! The algorithms that cuBLASLt names for products, asked for at their first use.

use crate::device::CompileRequest;
use crate::error::{Blame, KernelError};
use crate::kernel::KernelSpec;
use crate::target::cuda::CudaContext;
use crate::target::cuda::context::locked;
use crate::target::cuda::cublaslt::{
    Algorithm, AlgorithmQuery, AlgorithmSource, CublasLt, CublasLtConfig, FusedContraction, Listing, Matmul, Units,
};
use sdfg::config::KernelConfig;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

/// Bytes that products may use besides their operands: what NVIDIA's manual recommends for Hopper.
const WORKSPACE: usize = 32 << 20;

/// The library's answer, once it was asked.
#[derive(Default)]
struct Answer {
    said: OnceLock<Arc<Vec<Algorithm>>>,
    /// Locked by the thread that asks.
    asking: Mutex<()>,
}

/// The library, and the algorithms that it has named.
pub struct AlgorithmCache {
    pub library: Arc<CublasLt>,
    offered: Mutex<BTreeMap<AlgorithmQuery, BTreeMap<Listing, Arc<Answer>>>>,
}

impl AlgorithmSource for AlgorithmCache {
    fn known(&self, asked: &AlgorithmQuery, listing: Listing) -> Option<usize> {
        locked(&self.offered).get(asked)?.get(&listing)?.said.get().map(|algorithms| algorithms.len())
    }
}

impl AlgorithmCache {
    /// # Errors
    /// No library; no memory.
    pub fn new(context: &Arc<CudaContext>) -> Result<Self, KernelError> {
        Ok(AlgorithmCache { library: Arc::new(CublasLt::new(context, WORKSPACE)?), offered: Mutex::default() })
    }

    /// Algorithms of a product, of what it offers the library's own choice first.
    ///
    /// # Errors
    /// A device that failed.
    pub fn algorithms(
        &self,
        matmul: &Matmul,
        units: Units,
        asked: &AlgorithmQuery,
        listing: Listing,
    ) -> Result<Arc<Vec<Algorithm>>, KernelError> {
        let answer = locked(&self.offered).entry(asked.clone()).or_default().entry(listing).or_default().clone();
        if let Some(known) = answer.said.get() {
            return Ok(known.clone());
        }
        let _asking = locked(&answer.asking);
        // Another thread may have asked before this one got the lock.
        if let Some(known) = answer.said.get() {
            return Ok(known.clone());
        }
        // A product that the library refuses has none: it is not asked again.
        let found = match listing {
            Listing::Heuristic => matmul.algorithms(units),
            Listing::Catalogue => {
                let offered = self.algorithms(matmul, units, asked, Listing::Heuristic)?;
                // What offers nothing is refused as a whole.
                if offered.is_empty() { Ok(vec![]) } else { matmul.catalogued(units, &offered) }
            }
        };
        let found = match found {
            Err(error) if error.blame() == Blame::Configuration => vec![],
            found => found?,
        };
        Ok(answer.said.get_or_init(|| Arc::new(found)).clone())
    }

    /// A contraction's choice and product, with everything that the library says about it.
    ///
    /// # Errors
    /// Configurations that the library has no words for; a device that failed.
    pub fn matmul(
        &self,
        fused: &FusedContraction,
        config: &KernelConfig,
    ) -> Result<(CublasLtConfig, Matmul, Arc<Vec<Algorithm>>), KernelError> {
        let choice = CublasLtConfig::of(&fused.problem, config)?;
        let description = fused.description(&choice, config)?;
        let types = fused.problem.types;
        let matmul = self.library.matmul(&description, types, choice.units)?;
        let (listing, _) = Listing::of(choice.algorithm);
        let offered = self.algorithms(&matmul, choice.units, &AlgorithmQuery::of(&description, types, choice.units), listing)?;
        Ok((choice, matmul, offered))
    }

    /// At other sizes the library offers other algorithms: one of those.
    pub fn scaled(&self, config: &KernelConfig, from: &KernelSpec, to: &KernelSpec) -> KernelConfig {
        let Some(number) = config.knobs.get("algorithm").and_then(|text| text.parse::<usize>().ok()) else { return config.clone() };
        // Of those that the heuristic offers: the catalogue would take longer to list than everything else.
        let (listing, number) = Listing::of(number);
        let with = |number: usize| KernelConfig { knobs: config.knobs.clone().with("algorithm", number), ..config.clone() };
        let offered =
            |spec: &KernelSpec| self.matmul(&FusedContraction::of(spec).ok()?, &with(0)).ok().map(|(_, _, offered)| offered.len());
        // An algorithm that does not exist at the timed sizes is not replaced by another one in the check.
        let absent = || offered(from).is_some_and(|offered| listing == Listing::Heuristic && number >= offered);
        // An error in the configuration is reported when it is compiled.
        match offered(to) {
            Some(offered) if !absent() => with(number % offered.max(1)),
            _ => config.clone(),
        }
    }

    /// Asks for the algorithms of a kernel that is about to be checked and timed. Errors are reported where the kernel is compiled.
    pub fn ask(&self, request: &CompileRequest) {
        if let Some(small) = &request.checked {
            drop(self.scaled(&request.config, &request.timed, small));
        }
        if let Ok(fused) = FusedContraction::of(&request.timed) {
            drop(self.matmul(&fused, &request.config));
        }
    }
}
