//! Contractions through cuBLASLt: what each call is told, as a value that needs no GPU.

mod description;

pub use description::{Batching, Description, Epilogue, Form, Launch, Matrix, Order, Refusal};
