//! Contractions through cuBLASLt: what each call is told, as a value that needs no GPU, every way to tell it, and the calls.

mod choice;
mod description;
mod execute;
mod reference;
mod space;

pub use choice::Choice;
pub use description::{Batching, Description, Form, Launch, Matrix, Order, Refusal};
pub use execute::{Algorithm, CublasLt, Descriptors, Matmul, Product};
pub use reference::{Everything, Reference, carry_out};
pub use space::{CublasLtSpace, Offer};
