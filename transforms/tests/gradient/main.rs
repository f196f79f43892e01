//! Gradients against finite differences in f64 and against formulas written out by hand; every pass against its promise.

mod builder;
mod common_subexpressions;
mod difference;
mod dots;
mod every_pass;
mod formulas;
mod from_output;
mod layers;
mod operators;
mod planted;
mod policy;
mod programs;
mod slope;
mod storage;
mod structure;
mod transposed_windows;
mod unread_elements;
