//! Products of bf16 by way of f32: strips of the operands are widened, multiplied by an f32 library, and rounded to what the
//! output stores. Exact but for the f32 sums and that one rounding.
//!
//! For processors that multiply bf16 no faster than f32, for outputs that keep the f32 sums, and as a rival elsewhere.

use crate::target::cpu::gemm_library::library::{GemmCall, GemmFactor, GemmLibrary, Multiply};
use half::bf16;
use rayon::prelude::*;
use std::cell::Cell;

/// Rows and columns of the output that are made at once: both widened strips stay in the caches at usual depths.
const ROWS: usize = 256;
const COLUMNS: usize = 2048;
/// Rows of a register tile: smaller strips waste it.
const TILE: usize = 16;

thread_local! {
    /// Memory of this thread for a widened strip, kept between products.
    static STRIPS: Cell<Vec<Vec<f32>>> = const { Cell::new(Vec::new()) };
}

/// Runs `work` on at least `length` f32, whatever they hold.
fn with_strip<R>(length: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    let mut all = STRIPS.take();
    let mut strip = all.pop().unwrap_or_default();
    STRIPS.set(all);
    if strip.len() < length {
        strip.resize(length, 0.0);
    }
    let result = work(&mut strip[..length]);
    let mut all = STRIPS.take();
    all.push(strip);
    STRIPS.set(all);
    result
}

/// A matrix: first element, row stride, column stride.
type Matrix<T> = (*const T, isize, isize);

/// An address that several threads may use.
#[derive(Clone, Copy)]
struct Shared<T>(T);
// SAFETY: threads write disjoint elements through it, as its users see to.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}

impl<T: Copy> Shared<T> {
    fn get(self) -> T {
        self.0
    }
}

/// What an output of f32 sums is stored in.
pub trait GemmOutput: Copy + Send + Sync + 'static {
    /// Whether an f32 library may write it.
    const SUMS: bool;
    /// Stores the sum, added to the stored value if `accumulate`.
    fn store(&mut self, sum: f32, accumulate: bool);
    /// Stores a row of sums.
    fn store_row(to: &mut [Self], sums: &[f32]);
}

impl GemmOutput for f32 {
    const SUMS: bool = true;

    fn store(&mut self, sum: f32, accumulate: bool) {
        *self = if accumulate { *self + sum } else { sum };
    }

    fn store_row(to: &mut [f32], sums: &[f32]) {
        to.copy_from_slice(sums);
    }
}

impl GemmOutput for bf16 {
    const SUMS: bool = false;

    fn store(&mut self, sum: f32, accumulate: bool) {
        *self = bf16::from_f32(if accumulate { self.to_f32() + sum } else { sum });
    }

    fn store_row(to: &mut [bf16], sums: &[f32]) {
        simd(|| to.iter_mut().zip(sums).for_each(|(to, sum)| *to = rounded(*sum)));
    }
}

/// To the nearest, ties to even; a NaN stays one. Without branches, so that loops of it become vectors.
#[inline(always)]
fn rounded(x: f32) -> bf16 {
    let bits = x.to_bits();
    let near = (bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16) as u16;
    bf16::from_bits(if x.is_nan() { 0x7fc0 } else { near })
}

/// Runs a loop with the widest vectors of this processor.
#[inline(always)]
fn simd(work: impl FnOnce()) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn wide(work: impl FnOnce()) {
            work();
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the processor has the feature.
            return unsafe { wide(work) };
        }
    }
    work();
}

/// Widens `lines` lines of `length` elements, `line` apart and `step` from element to element, into lines without gaps.
///
/// # Safety
/// The elements must be readable.
unsafe fn widen(from: *const bf16, (lines, line): (usize, isize), (length, step): (usize, isize), to: &mut [f32], threads: usize) {
    let from = Shared(from);
    let one = |(n, to): (usize, &mut [f32])| {
        // SAFETY: promised by the caller.
        let start = unsafe { from.get().offset(n as isize * line) };
        if step == 1 {
            // SAFETY: as above; elements one step apart are a slice.
            let from = unsafe { std::slice::from_raw_parts(start, length) };
            simd(|| to.iter_mut().zip(from).for_each(|(to, from)| *to = f32::from_bits(u32::from(from.to_bits()) << 16)));
        } else {
            for (m, to) in to.iter_mut().enumerate() {
                // SAFETY: as above.
                *to = unsafe { start.offset(m as isize * step).read() }.to_f32();
            }
        }
    };
    let to = &mut to[..lines * length];
    if length == 0 {
        return;
    }
    if threads > 1 && to.len() > 1 << 16 {
        to.par_chunks_mut(length).enumerate().for_each(one);
    } else {
        to.chunks_mut(length).enumerate().for_each(one);
    }
}

/// Widens a matrix into `to`, along whichever stride is the smaller; returns the widened one.
///
/// # Safety
/// As for [`widen`].
unsafe fn widened(m: Matrix<bf16>, rows: usize, columns: usize, to: &mut [f32], threads: usize) -> Matrix<f32> {
    let (from, row, column) = m;
    // SAFETY (both): promised by the caller.
    if column.unsigned_abs() <= row.unsigned_abs() {
        unsafe { widen(from, (rows, row), (columns, column), to, threads) };
        (to.as_ptr(), columns as isize, 1)
    } else {
        unsafe { widen(from, (columns, column), (rows, row), to, threads) };
        (to.as_ptr(), 1, rows as isize)
    }
}

/// Widens, multiplies with this library, rounds.
pub struct ViaF32(pub GemmLibrary);

impl ViaF32 {
    /// # Safety
    /// As for [`Multiply::run`].
    unsafe fn strip<O: GemmOutput>(&self, p: &GemmCall<bf16, O>, right: Matrix<f32>) {
        with_strip(p.m * p.k, |left| {
            // SAFETY: promised by the caller.
            let left = unsafe { widened(p.a, p.m, p.k, left, 1) };
            let library = <f32 as GemmFactor<f32>>::implementation(self.0);
            let product = |c: (*mut f32, isize, isize), accumulate: bool| GemmCall {
                m: p.m,
                n: p.n,
                k: p.k,
                a: left,
                b: right,
                c,
                alpha: p.alpha,
                accumulate,
                threads: 1,
            };
            if O::SUMS {
                // SAFETY: an output that takes sums is one of f32.
                unsafe { library.run(&product((p.c.0.cast(), p.c.1, p.c.2), p.accumulate)) };
                return;
            }
            with_strip(p.m * p.n, |sums| {
                // Lines of the sums run along the output's nearer elements.
                let by_rows = p.c.2.unsigned_abs() <= p.c.1.unsigned_abs();
                let (lines, length, line, step) = if by_rows { (p.m, p.n, p.c.1, p.c.2) } else { (p.n, p.m, p.c.2, p.c.1) };
                let (row, column) = if by_rows { (length as isize, 1) } else { (1, length as isize) };
                // SAFETY: the sums have one element for each of the product's.
                unsafe { library.run(&product((sums.as_mut_ptr(), row, column), false)) };
                for n in 0..lines {
                    let sums = &sums[n * length..][..length];
                    // SAFETY (all): elements of the output, as promised by the caller.
                    let start = unsafe { p.c.0.offset(n as isize * line) };
                    if step == 1 && !p.accumulate {
                        O::store_row(unsafe { std::slice::from_raw_parts_mut(start, length) }, sums);
                    } else {
                        for (m, sum) in sums.iter().enumerate() {
                            unsafe { (*start.offset(m as isize * step)).store(*sum, p.accumulate) };
                        }
                    }
                }
            });
        });
    }
}

impl<O: GemmOutput> Multiply<bf16, O> for ViaF32 {
    unsafe fn run(&self, p: &GemmCall<bf16, O>) {
        if p.m < p.n {
            // Strips are taken of the longer side: Cᵀ = BᵀAᵀ.
            let turned = GemmCall { m: p.n, n: p.m, a: (p.b.0, p.b.2, p.b.1), b: (p.a.0, p.a.2, p.a.1), c: (p.c.0, p.c.2, p.c.1), ..*p };
            // SAFETY: the same product.
            return unsafe { self.run(&turned) };
        }
        let rows = p.m.div_ceil(p.threads.max(1)).next_multiple_of(TILE).min(ROWS);
        for first in (0..p.n).step_by(COLUMNS) {
            let columns = COLUMNS.min(p.n - first);
            with_strip(p.k * columns, |right| {
                // SAFETY (all): parts of the operands.
                let (b, c) = unsafe { (p.b.0.offset(first as isize * p.b.2), p.c.0.offset(first as isize * p.c.2)) };
                let right = unsafe { widened((b, p.b.1, p.b.2), p.k, columns, right, p.threads) };
                let shared = Shared((*p, c, right));
                let strip = |n: usize| {
                    let (p, c, right) = shared.get();
                    let start = (n * rows) as isize;
                    let (a, c) = unsafe { (p.a.0.offset(start * p.a.1), c.offset(start * p.c.1)) };
                    let m = rows.min(p.m - n * rows);
                    unsafe { self.strip(&GemmCall { m, n: columns, a: (a, p.a.1, p.a.2), c: (c, p.c.1, p.c.2), ..p }, right) };
                };
                let strips = p.m.div_ceil(rows);
                if p.threads > 1 { (0..strips).into_par_iter().for_each(strip) } else { (0..strips).for_each(strip) }
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Integers of which every sum is exact in f32: the result is the rounded sum, whatever the strips. More rows and columns
    /// than a strip has.
    #[test]
    fn strips_cover_the_product() {
        let (m, n, k) = (2051, 2057, 3);
        let number = |at: usize, seed: usize| ((at * 7919 + seed) % 23) as f32 - 11.0;
        let matrix = |size: usize, seed| (0..size).map(|at| bf16::from_f32(number(at, seed))).collect::<Vec<_>>();
        let (a, b) = (matrix(m * k, 1), matrix(k * n, 2));
        let mut c = vec![bf16::NAN; m * n];
        for (threads, turned) in [(1, false), (2, true)] {
            c.fill(bf16::NAN);
            let c_strides = if turned { (1, m as isize) } else { (n as isize, 1) };
            let product = GemmCall {
                m,
                n,
                k,
                a: (a.as_ptr(), k as isize, 1),
                b: (b.as_ptr(), n as isize, 1),
                c: (c.as_mut_ptr(), c_strides.0, c_strides.1),
                alpha: 1.0,
                accumulate: false,
                threads,
            };
            // SAFETY: three matrices of these sizes.
            unsafe { ViaF32(GemmLibrary::Gemm).run(&product) };
            for i in 0..m {
                for j in 0..n {
                    let sum: f32 = (0..k).map(|l| a[i * k + l].to_f32() * b[l * n + j].to_f32()).sum();
                    let at = i * c_strides.0 as usize + j * c_strides.1 as usize;
                    assert_eq!(c[at], bf16::from_f32(sum), "{i}, {j}, {threads} threads");
                }
            }
        }
    }

    /// Of every kind of number, and on both sides of every tie: as the crate `half` rounds.
    #[test]
    fn rounding_is_to_nearest_even() {
        let mut x = 1u32;
        for _ in 0..200_000 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            for bits in [x, x & 0xffff_0000, x & 0xffff_0000 | 0x8000, x & 0xffff_0000 | 0x7fff, x & 0xffff_0000 | 0x8001] {
                let (value, want) = (f32::from_bits(bits), bf16::from_f32(f32::from_bits(bits)));
                let got = rounded(value);
                assert!(got == want || got.is_nan() && want.is_nan(), "{value:e}: {got} and {want}");
            }
        }
        assert!(rounded(f32::NAN).is_nan() && rounded(f32::MAX).is_infinite());
    }
}
