//! Products of factors in bf16, by each library.

use super::library::{Factor, Gemmkit, Library, Multiply, Product};
use super::widened::Widened;
use half::bf16;

impl Factor<bf16> for bf16 {
    fn implementation(library: Library) -> &'static dyn Multiply<bf16> {
        match library {
            Library::Gemm => &Widened(Library::Gemm),
            Library::Gemmkit => &GemmkitNarrow,
        }
    }
}

impl Factor<f32> for bf16 {
    fn implementation(library: Library) -> &'static dyn Multiply<bf16, f32> {
        match library {
            Library::Gemm => &Widened(Library::Gemm),
            Library::Gemmkit => &Widened(Library::Gemmkit),
        }
    }
}

/// Products of bf16 by crate `gemmkit`: native where the processor has them, else widened while they run. It takes alpha in bf16 only.
struct GemmkitNarrow;

impl Multiply<bf16> for GemmkitNarrow {
    unsafe fn run(&self, p: &Product<bf16>) {
        let alpha = sdfg::rounding::to_bf16(p.alpha);
        // SAFETY (both): promised by the caller.
        if alpha.to_f64() == p.alpha {
            unsafe { Gemmkit::product(p, alpha, if p.accumulate { bf16::ONE } else { bf16::ZERO }) };
        } else {
            unsafe { Widened(Library::Gemmkit).run(p) };
        }
    }
}
