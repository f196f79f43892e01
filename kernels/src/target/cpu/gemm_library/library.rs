//! The libraries that multiply matrices, behind one trait. All take any strides, write the output without reading it
//! first (unless told to add), and split one product over the threads of the pool that they are called in.

use crate::instruction_set::InstructionSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Once;

/// One matrix product: `c (+)= alpha · a · b`, with `a` m×k, `b` k×n and `c` m×n; factors in `T`, output in `O`.
#[derive(Clone, Copy, Debug)]
pub struct GemmCall<T, O = T> {
    pub m: usize,
    pub n: usize,
    pub k: usize,
    /// (row stride, column stride) in elements.
    pub a: (*const T, isize, isize),
    pub b: (*const T, isize, isize),
    pub c: (*mut O, isize, isize),
    pub alpha: f64,
    /// Add to `c` instead of overwriting it.
    pub accumulate: bool,
    /// Threads of the surrounding pool to use; 1 runs on the calling thread.
    pub threads: usize,
}

/// A way to run a [`GemmCall`].
pub trait Multiply<T, O = T>: Sync {
    /// # Safety
    /// `a` and `b` must be readable and `c` writable at every row and column; no element of `c` may lie in `a` or `b`
    /// nor be reached by two pairs of row and column.
    unsafe fn run(&self, product: &GemmCall<T, O>);
}

/// An element type that the libraries multiply by themselves.
pub trait GemmElement: gemmkit::GemmScalar + Send + Sync + 'static {
    /// Rounded to nearest.
    fn from_f64(value: f64) -> Self;
}

impl GemmElement for f32 {
    fn from_f64(value: f64) -> f32 {
        value as f32
    }
}

impl GemmElement for f64 {
    fn from_f64(value: f64) -> f64 {
        value
    }
}

/// An element type of factors whose products can be stored as `O`.
pub trait GemmFactor<O: 'static>: Sized + Send + Sync + 'static {
    fn implementation(library: GemmLibrary) -> &'static dyn Multiply<Self, O>;
}

impl<T: GemmElement> GemmFactor<T> for T {
    fn implementation(library: GemmLibrary) -> &'static dyn Multiply<T> {
        match library {
            GemmLibrary::Gemm => &Gemm,
            GemmLibrary::Gemmkit => &Gemmkit,
        }
    }
}

/// Crate `gemm`.
struct Gemm;

impl<T: GemmElement> Multiply<T> for Gemm {
    unsafe fn run(&self, p: &GemmCall<T>) {
        let parallelism = match p.threads {
            0 | 1 => gemm::Parallelism::None,
            n => gemm::Parallelism::Rayon(n),
        };
        // This crate scales what `c` held by its first factor and the product by its second one; columns come before rows.
        // SAFETY: the caller's promise is what this call asks for; with `read_dst` false `c` is only written.
        unsafe {
            gemm::gemm(
                p.m,
                p.n,
                p.k,
                p.c.0,
                p.c.2,
                p.c.1,
                p.accumulate,
                p.a.0,
                p.a.2,
                p.a.1,
                p.b.0,
                p.b.2,
                p.b.1,
                T::from_f64(1.0),
                T::from_f64(p.alpha),
                false,
                false,
                false,
                parallelism,
            );
        }
    }
}

/// Crate `gemmkit`.
pub(crate) struct Gemmkit;

impl<T: GemmElement> Multiply<T> for Gemmkit {
    unsafe fn run(&self, p: &GemmCall<T>) {
        let beta = T::from_f64(if p.accumulate { 1.0 } else { 0.0 });
        // SAFETY: promised by the caller.
        unsafe { Gemmkit::multiply(p, T::from_f64(p.alpha), beta) };
    }
}

impl Gemmkit {
    /// # Safety
    /// As for [`Multiply::run`].
    pub(crate) unsafe fn multiply<T: gemmkit::GemmScalar>(p: &GemmCall<T>, alpha: T, beta: T) {
        let parallelism = match p.threads {
            0 | 1 => gemmkit::Parallelism::Serial,
            n => gemmkit::Parallelism::Rayon(n),
        };
        // SAFETY: the caller's promise is what this call asks for; with beta 0 `c` is only written.
        unsafe {
            gemmkit::gemm_unchecked(p.m, p.k, p.n, alpha, p.a.0, p.a.1, p.a.2, p.b.0, p.b.1, p.b.2, beta, p.c.0, p.c.1, p.c.2, parallelism);
        }
    }
}

/// Lets gemmkit count the cores. It counts once, at its first large product, and a thread that is kept on one core
/// would count one: every product after it would run on a single thread.
pub fn count_cores() {
    const SIZE: usize = 96;
    static COUNTED: Once = Once::new();
    COUNTED.call_once(|| {
        let (a, b, mut c) = (vec![1f32; SIZE * SIZE], vec![1f32; SIZE * SIZE], vec![0f32; SIZE * SIZE]);
        let row = SIZE as isize;
        let (a, b, c) = ((a.as_ptr(), row, 1), (b.as_ptr(), row, 1), (c.as_mut_ptr(), row, 1));
        // SAFETY: three matrices of this size.
        unsafe { Gemmkit.run(&GemmCall { m: SIZE, n: SIZE, k: SIZE, a, b, c, alpha: 1.0, accumulate: false, threads: 2 }) };
    });
}

/// The knob `library`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum GemmLibrary {
    Gemm,
    Gemmkit,
}

impl GemmLibrary {
    pub const ALL: [GemmLibrary; 2] = [GemmLibrary::Gemm, GemmLibrary::Gemmkit];

    /// The libraries that may be measured. `gemm` takes the widest instructions of the processor, whatever is allowed.
    pub fn allowed() -> &'static [GemmLibrary] {
        if InstructionSet::is_limited() { &[GemmLibrary::Gemmkit] } else { &Self::ALL }
    }

    /// What runs when nothing is chosen.
    pub fn usual() -> GemmLibrary {
        Self::allowed()[0]
    }

    pub fn name(self) -> &'static str {
        match self {
            GemmLibrary::Gemm => "gemm",
            GemmLibrary::Gemmkit => "gemmkit",
        }
    }
}

/// The knob `threads`: what the cores share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Threads {
    /// One product after the other, each split over all cores.
    Inside,
    /// Whole products, taken by the cores as they become free.
    Batch,
}

impl Threads {
    pub const ALL: [Threads; 2] = [Threads::Inside, Threads::Batch];

    pub fn name(self) -> &'static str {
        match self {
            Threads::Inside => "inside",
            Threads::Batch => "batch",
        }
    }
}

impl fmt::Display for GemmLibrary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for GemmLibrary {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|l| l.name() == text).ok_or(())
    }
}

impl FromStr for Threads {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|t| t.name() == text).ok_or(())
    }
}
