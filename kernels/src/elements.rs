//! Elements of a container in memory: what they are stored as, and where the runs of an array lie.

use rayon::prelude::*;
use sdfg::layout::BlockedStride;

/// Elements from which on all cores go over an array.
const PARALLEL: usize = 1 << 16;

/// The runs of an array along its last axis, and where their elements lie.
pub struct ElementRows<'a> {
    /// Extents and steps of the axes before the last.
    outer: Vec<(usize, BlockedStride)>,
    last: Option<&'a BlockedStride>,
    /// Elements of a run; at least 1.
    long: usize,
}

impl<'a> ElementRows<'a> {
    pub fn new(shape: &[usize], steps: &'a [BlockedStride]) -> Self {
        let outer = shape.iter().copied().zip(steps.iter().copied()).take(shape.len().saturating_sub(1)).collect();
        ElementRows { outer, last: steps.last(), long: shape.last().copied().unwrap_or(1).max(1) }
    }

    /// Where run `n` begins.
    fn first(&self, mut n: usize) -> usize {
        let mut first = 0;
        for (extent, step) in self.outer.iter().rev() {
            first += step.offset(n % (*extent).max(1));
            n /= (*extent).max(1);
        }
        first
    }

    /// Calls `f` with the place of each of the elements of run `n`. A dim that is not cut takes no division.
    fn run(&self, n: usize, elements: usize, mut f: impl FnMut(usize, usize)) {
        let first = self.first(n);
        match self.last {
            Some(step) if step.block == 1 => (0..elements).for_each(|i| f(i, first + i * step.across)),
            Some(step) => (0..elements).for_each(|i| f(i, first + step.offset(i))),
            None => (0..elements).for_each(|i| f(i, first)),
        }
    }

    /// Calls `f` with the number of each element and its place, one after the other.
    pub fn each(&self, elements: usize, mut f: impl FnMut(usize, usize)) {
        for n in 0..elements.div_ceil(self.long) {
            self.run(n, self.long.min(elements - n * self.long), |i, at| f(n * self.long + i, at));
        }
    }

    /// Writes an array, whose runs these are.
    ///
    /// # Safety
    /// Every element has a place of its own within the bytes.
    pub unsafe fn store<E: StoredElement>(&self, bytes: &mut [u8], values: &[f64]) {
        let start = Shared(bytes.as_mut_ptr());
        let put = |(n, row): (usize, &[f64])| {
            // SAFETY: so the caller promises, and no other thread has the bytes.
            self.run(n, row.len(), |i, at| unsafe { start.at(at * size_of::<E>()).cast::<E>().write_unaligned(E::of(row[i])) });
        };
        match values.len() < PARALLEL {
            true => values.chunks(self.long).enumerate().for_each(put),
            false => values.par_chunks(self.long).enumerate().for_each(put),
        }
    }

    /// Reads an array, whose runs these are.
    ///
    /// # Safety
    /// Every element has its place within the bytes.
    pub unsafe fn load<E: StoredElement>(&self, bytes: &[u8], values: &mut [f64]) {
        let get = |(n, row): (usize, &mut [f64])| {
            // SAFETY: so the caller promises.
            self.run(n, row.len(), |i, at| {
                row[i] = unsafe { bytes.as_ptr().add(at * size_of::<E>()).cast::<E>().read_unaligned() }.value()
            });
        };
        match values.len() < PARALLEL {
            true => values.chunks_mut(self.long).enumerate().for_each(get),
            false => values.par_chunks_mut(self.long).enumerate().for_each(get),
        }
    }
}

/// The beginning of bytes that several threads write, each its own.
struct Shared(*mut u8);

// SAFETY: threads that write through it write disjoint elements.
unsafe impl Sync for Shared {}

impl Shared {
    fn at(&self, byte: usize) -> *mut u8 {
        self.0.wrapping_add(byte)
    }
}

/// What an element is stored as; every pattern of its bits is one.
pub trait StoredElement: Copy {
    fn of(value: f64) -> Self;
    fn value(self) -> f64;
}

macro_rules! stored {
    ($($type:ty: $of:expr, $value:expr;)*) => {$(
        impl StoredElement for $type {
            fn of(value: f64) -> Self {
                $of(value)
            }
            fn value(self) -> f64 {
                $value(self)
            }
        }
    )*};
}

stored! {
    f64: |v| v, |v| v;
    f32: |v| v as f32, f64::from;
    half::bf16: sdfg::rounding::to_bf16, half::bf16::to_f64;
    half::f16: sdfg::rounding::to_f16, half::f16::to_f64;
    i64: |v| v as i64, |v| v as f64;
    i32: |v| v as i32, f64::from;
    i16: |v| v as i16, f64::from;
    u8: |v| v as u8, f64::from;
}
