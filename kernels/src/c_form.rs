//! Kernels as data that C without this crate can run: generated texts with their numbers, and loops over them.

use crate::error::KernelError;
use crate::executable::Executable;
use crate::packing::packed::Packed;
use crate::target::cpu::emit::CSource;
use sdfg::Dtype;
use std::sync::Arc;

/// A kernel of the cores.
pub enum CForm<'a> {
    Generated(GeneratedC<'a>),
    Scatter(ScatterC),
    Loop(&'a dyn Unrolled),
}

/// A generated text and what it is called with.
#[derive(Clone, Copy, Debug)]
pub struct GeneratedC<'a> {
    pub source: &'a CSource,
    /// Whether results are written around the caches.
    pub streams: bool,
    /// One for each phase.
    pub stages: &'a [KernelStage],
    /// Positions of a step along the index that divides its points, and the points of a step.
    pub divided: (i64, i64),
}

/// What happens between two barriers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelStage {
    /// Factors of products are packed.
    Prepare,
    Points,
    /// Partial results of the workers are added up: those of these numbers, by one worker; or those of one, by all.
    Combine(usize, usize),
    CombineShared(usize),
}

/// A scatter as C: `void memlet_scatter(char *const *p, int64_t copies, int64_t worker, int64_t workers)` does a worker's part of one
/// phase, `copies` where it copies the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScatterC {
    pub text: String,
    /// Whether each phase copies.
    pub phases: Vec<bool>,
}

/// A loop whose times follow one another as launches of the kernels of its body.
pub trait Unrolled {
    /// The kernels of the body.
    fn kernels(&self) -> Vec<&dyn Executable>;

    /// The launches of all times in order.
    ///
    /// # Errors
    /// Slices outside of what was given.
    fn launches(&self) -> Result<Vec<UnrolledLaunch>, KernelError>;

    /// How all of them are packed for a number of workers; `None` where a kernel gives out its work by itself.
    ///
    /// # Errors
    /// As [`Unrolled::launches`].
    fn packed(&self, workers: usize) -> Result<Option<Arc<Packed>>, KernelError>;

    /// Bytes of the loop's own memory, and the parts of it that hold one value from the beginning.
    fn own(&self) -> (usize, &[Filled]);
}

/// A run of a kernel of a loop's body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnrolledLaunch {
    pub kernel: usize,
    pub arguments: Vec<UnrolledAddress>,
}

/// Where an argument lies, in bytes from the beginning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UnrolledAddress {
    /// Of an argument of the loop.
    Argument(usize, usize),
    /// Of the loop's own memory.
    Own(usize),
}

/// Elements of one value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Filled {
    pub at: usize,
    pub elements: usize,
    pub dtype: Dtype,
    pub value: f64,
}
