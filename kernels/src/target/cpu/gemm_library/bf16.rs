//! Products of factors in bf16, by each library.

use crate::target::cpu::gemm_library::bf16_via_f32::ViaF32;
use crate::target::cpu::gemm_library::library::{GemmCall, GemmFactor, GemmLibrary, Gemmkit, Multiply};
use half::bf16;

impl GemmFactor<bf16> for bf16 {
    fn implementation(library: GemmLibrary) -> &'static dyn Multiply<bf16> {
        match library {
            GemmLibrary::Gemm => &ViaF32(GemmLibrary::Gemm),
            GemmLibrary::Gemmkit => &GemmkitBf16,
        }
    }
}

impl GemmFactor<f32> for bf16 {
    fn implementation(library: GemmLibrary) -> &'static dyn Multiply<bf16, f32> {
        match library {
            GemmLibrary::Gemm => &ViaF32(GemmLibrary::Gemm),
            GemmLibrary::Gemmkit => &ViaF32(GemmLibrary::Gemmkit),
        }
    }
}

/// Products of bf16 by crate `gemmkit`: native where the processor has them, else widened while they run. It takes alpha in bf16 only.
struct GemmkitBf16;

impl Multiply<bf16> for GemmkitBf16 {
    unsafe fn run(&self, p: &GemmCall<bf16>) {
        let alpha = sdfg::rounding::to_bf16(p.alpha);
        // SAFETY (both): promised by the caller.
        if alpha.to_f64() == p.alpha {
            unsafe { Gemmkit::multiply(p, alpha, if p.accumulate { bf16::ONE } else { bf16::ZERO }) };
        } else {
            unsafe { ViaF32(GemmLibrary::Gemmkit).run(p) };
        }
    }
}
