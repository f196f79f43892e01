//! Contractions through cuBLASLt: what each call is told, as a value that needs no GPU, every way to tell it, and the calls.

mod algorithm;
mod catalogue;
mod choice;
mod description;
mod descriptors;
mod ending;
mod epilogue;
mod execute;
mod fused;
mod product;
mod reference;
mod space;

pub use algorithm::{Algorithm, Listing};
pub use catalogue::{Abilities, Told, catalogued};
pub use choice::{Choice, Units};
pub use description::{Batching, Description, Form, Launch, Matrix, Order, Refusal};
pub use descriptors::{Descriptors, Preference};
pub use ending::{Bias, Ending, Function};
pub use epilogue::{Beside, Epilogue};
pub use execute::{Addresses, CublasLt, Matmul};
pub use fused::Fused;
pub use product::Product;
pub use reference::{Everything, Operand, Reference, carry_out};
pub use space::{Asked, CublasLtSpace, Offer};
