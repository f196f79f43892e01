//! Errors between a recipe and its report, and the exit code of each.

use kernels::KernelError;
use kernels::contraction::ContractionError;
use thiserror::Error;
use transforms::{DriverError, PassError};

/// An error with the exit code that it ends in.
#[derive(Debug, Error)]
pub enum PipelineError {
    #[error("{0}")]
    Recipe(#[from] crate::load::RecipeErrors),
    #[error(transparent)]
    Import(#[from] crate::import::ImportErrors),
    #[error(transparent)]
    Dace(#[from] crate::dace::DaceError),
    #[error(transparent)]
    Driver(#[from] DriverError),
    #[error(transparent)]
    Size(#[from] sdfg::SymbolError),
    #[error("{file}: {why}")]
    Tensors { file: String, why: String },
    #[error("{file}: {why}")]
    Plan { file: String, why: String },
    #[error(transparent)]
    Kernel(#[from] kernels::KernelError),
    #[error(transparent)]
    Store(#[from] layouts::StoreError),
    #[error(transparent)]
    Sweep(#[from] layouts::SweepError),
    #[error(transparent)]
    Select(#[from] layouts::SelectError),
    #[error(transparent)]
    Certificate(#[from] layouts::certificate::CertificateError),
    #[error("{file}: {error}")]
    Refused { file: String, error: Box<layouts::verify::VerifyError> },
    #[error(transparent)]
    Interpret(#[from] sdfg::interpret::InterpretError),
    #[error("{0}")]
    Measure(String),
    #[error("kernels of several programs cannot be put together: {0}")]
    Combined(String),
    #[error("no program of this recipe fits into memory: {0}; use smaller sizes, or a larger --memory if there is more")]
    Memory(String),
    #[error("{0}")]
    Variants(String),
    #[error("the result is wrong: {0}")]
    Mismatch(String),
    #[error("{0}")]
    Overflow(String),
    #[error("Memlet itself is at fault: {0}; please report it with the recipe")]
    Internal(String),
}

impl PipelineError {
    /// The message; for a recipe also its faulty lines.
    pub fn with_lines(&self) -> String {
        match self {
            PipelineError::Recipe(errors) => errors.with_lines(),
            other => other.to_string(),
        }
    }

    /// Whether the same command can be restarted after a kernel broke the device's context: it continues without that kernel.
    pub fn goes_on(&self) -> bool {
        matches!(self, PipelineError::Sweep(layouts::SweepError::Device { fault: layouts::Fault::Crash(_), .. }))
    }

    /// 1 failed, 2 bad input, 3 verification mismatch, 4 device or toolchain missing.
    pub fn exit_code(&self) -> u8 {
        match self {
            PipelineError::Recipe(_)
            | PipelineError::Import(_)
            | PipelineError::Dace(_)
            | PipelineError::Driver(DriverError::Pass(PassError::Differentiate(_)))
            | PipelineError::Size(_)
            | PipelineError::Tensors { .. }
            | PipelineError::Memory(_)
            | PipelineError::Variants(_)
            | PipelineError::Store(_)
            | PipelineError::Select(_)
            | PipelineError::Certificate(_)
            | PipelineError::Refused { .. }
            | PipelineError::Plan { .. } => 2,
            PipelineError::Kernel(KernelError::MissingRow { .. }) => 2,
            // Spaces have no such configuration: somebody has written it into a plan. Or it is a recipe's kernel that no template takes.
            PipelineError::Kernel(KernelError::Knob { .. } | KernelError::Unsupported { .. }) => 2,
            // No kernel takes these types, so the recipe asks for an unsupported combination.
            PipelineError::Kernel(KernelError::Contraction(ContractionError::Dtype { .. } | ContractionError::Cores { .. })) => 2,
            PipelineError::Driver(DriverError::Verification { .. }) => 3,
            PipelineError::Mismatch(_) | PipelineError::Overflow(_) => 3,
            PipelineError::Kernel(error) if error.missing() => 4,
            _ => 1,
        }
    }
}
