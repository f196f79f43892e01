//! A contraction as a kernel on a GPU.

use crate::error::KernelError;
use crate::executable::Executable;
use crate::kernel::KernelSpec;
use crate::run_context::{Completion, RunContext};
use crate::target::cuda::cublaslt::algorithm::{Algorithm, Listing};
use crate::target::cuda::cublaslt::config::CublasLtConfig;
use crate::target::cuda::cublaslt::execute::{GemmAddresses, Matmul};
use crate::target::cuda::cublaslt::fused::FusedContraction;

/// A contraction under one configuration on a GPU.
pub struct CublasLtKernel {
    name: String,
    matmul: Matmul,
    algorithm: Algorithm,
    arguments: usize,
    /// Which argument is `a`, `b`, `out`.
    position: [usize; 3],
    /// Which are vector and auxiliary matrix of an epilogue.
    beside: [Option<usize>; 2],
    text: String,
}

impl CublasLtKernel {
    /// Works a configuration out; `offered` are the algorithms that the library has for it, listed where the choice says.
    ///
    /// # Errors
    /// An algorithm that the library does not have.
    pub fn new(
        spec: &KernelSpec,
        fused: &FusedContraction,
        choice: &CublasLtConfig,
        matmul: Matmul,
        offered: &[Algorithm],
    ) -> Result<Self, KernelError> {
        let (listing, number) = Listing::of(choice.algorithm);
        let algorithm = offered.get(number).cloned().ok_or_else(|| KernelError::Cuda {
            what: match listing {
                Listing::Heuristic => {
                    format!("cuBLASLt offers {} algorithms for `{}`, none with number {number}", offered.len(), spec.name)
                }
                Listing::Catalogue => format!(
                    "cuBLASLt's catalogue has {} more algorithms for `{}`, numbered from {}, none with number {}",
                    offered.len(),
                    spec.name,
                    Listing::CATALOGUE,
                    choice.algorithm
                ),
            },
        })?;
        let text = format!(
            "/* cublasLtMatmul, {}\n   {:#?}\n   algorithm {}: {algorithm} */\n",
            fused.problem.types, matmul.descriptors.description, choice.algorithm
        );
        let (position, beside) = (fused.problem.positions(spec)?, fused.beside(spec));
        Ok(CublasLtKernel { name: spec.name.clone(), matmul, algorithm, arguments: spec.arguments().len(), position, beside, text })
    }
}

impl Executable for CublasLtKernel {
    /// Returns before the products are done, whatever the deadline.
    unsafe fn run(&self, arguments: &[*mut u8], _: &RunContext) -> Result<Completion, KernelError> {
        if arguments.len() != self.arguments {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments, given: arguments.len() });
        }
        let address = |p: usize| arguments[p] as u64;
        let addresses = GemmAddresses { operands: self.position.map(address), beside: self.beside.map(|p| p.map_or(0, address)) };
        // SAFETY: as promised by the caller.
        unsafe { self.matmul.launch(addresses, &self.algorithm)? };
        Ok(Completion::Done)
    }

    fn source(&self) -> Option<&str> {
        Some(&self.text)
    }
}
