//! Gradients against finite differences in f64 and against formulas written out by hand.

mod builder;
mod difference;
mod dots;
mod formulas;
mod layers;
mod operators;
mod policy;
mod programs;
mod slope;
mod storage;
mod structure;
