//! Contractions through cuBLASLt: what each call is told, as a value that needs no GPU, every way to tell it, and the calls.

mod algorithm;
mod choice;
mod description;
mod descriptors;
mod execute;
mod product;
mod reference;
mod space;

pub use algorithm::Algorithm;
pub use choice::Choice;
pub use description::{Batching, Description, Form, Launch, Matrix, Order, Refusal};
pub use descriptors::{Descriptors, Preference};
pub use execute::{CublasLt, Matmul};
pub use product::Product;
pub use reference::{Everything, Reference, carry_out};
pub use space::{CublasLtSpace, Offer};
