//! Contractions through cuBLASLt: what each call is told, as a value that needs no GPU.

mod description;
mod execute;

pub use description::{Batching, Description, Form, Launch, Matrix, Order, Refusal};
pub use execute::{Algorithm, CublasLt, Matmul};
