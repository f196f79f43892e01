//! Proofs of a choice: certificates, a checker that shares nothing but formats with the solver, and explanations.

pub mod certificate;
pub mod explain;
pub mod verify;
