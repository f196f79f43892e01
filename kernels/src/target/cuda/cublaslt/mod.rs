//! Contractions through cuBLASLt: the description of each call, as a value that needs no GPU, every way to describe it, and the calls.

mod algorithm;
mod catalogue;
mod config;
mod description;
mod descriptors;
mod epilogue;
mod epilogue_desc;
mod execute;
mod fused;
mod kernel;
mod reference;
mod space;

pub use algorithm::{Algorithm, Listing};
pub use catalogue::{AlgorithmCapabilities, AlgorithmConfig, catalogued};
pub use config::{CublasLtConfig, Units};
pub use description::{Batching, Description, DescriptionRefusal, GemmLaunch, MajorOrder, Matrix, MatrixOrder};
pub use descriptors::{Descriptors, Preference};
pub use epilogue::{Beside, Epilogue};
pub use epilogue_desc::{Bias, EpilogueDesc, EpilogueFunction};
pub use execute::{CublasLt, GemmAddresses, Matmul};
pub use fused::FusedContraction;
pub use kernel::CublasLtKernel;
pub use reference::{CublasLtReference, Everything, OperandView, carry_out};
pub use space::{AlgorithmQuery, AlgorithmSource, CublasLtSpace};
