//! The vector instructions that kernels use on this processor.
//!
//! The environment variable `MEMLET_INSTRUCTIONS` allows fewer than the processor has, so that code for another processor can be tested,
//! and timed, on this one.

use crate::error::KernelError;
use std::sync::OnceLock;

/// Vector instructions, from the most to the fewest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum InstructionSet {
    /// 64-byte registers: AVX-512F.
    Avx512,
    /// 32-byte registers: AVX2 and FMA.
    Avx2,
    /// 16-byte registers: NEON, which every 64-bit Arm has.
    Neon,
    /// What the compiler of this program assumes: SSE2 on x86-64.
    Baseline,
}

/// The names under which `MEMLET_INSTRUCTIONS` allows instructions.
const NAMES: [(&str, InstructionSet); 4] = [
    ("avx512", InstructionSet::Avx512),
    ("avx2", InstructionSet::Avx2),
    ("neon", InstructionSet::Neon),
    ("baseline", InstructionSet::Baseline),
];

impl InstructionSet {
    /// The widest that this processor has and `MEMLET_INSTRUCTIONS` allows. A value that [`InstructionSet::limit`] refuses limits nothing.
    pub fn native() -> Self {
        static NATIVE: OnceLock<InstructionSet> = OnceLock::new();
        *NATIVE.get_or_init(|| Self::limit().ok().flatten().map_or_else(Self::of_processor, |most| most.max(Self::of_processor())))
    }

    /// The widest that this processor has.
    pub fn of_processor() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if std::arch::is_x86_feature_detected!("avx512f") {
                return InstructionSet::Avx512;
            }
            if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
                return InstructionSet::Avx2;
            }
        }
        #[cfg(target_arch = "aarch64")]
        return InstructionSet::Neon;
        #[allow(unreachable_code)]
        InstructionSet::Baseline
    }

    /// What `MEMLET_INSTRUCTIONS` allows at most; `None` where it is not set.
    ///
    /// # Errors
    /// A value that names no instructions.
    pub fn limit() -> Result<Option<Self>, KernelError> {
        match std::env::var("MEMLET_INSTRUCTIONS") {
            Ok(name) if !name.is_empty() => Self::named(&name).map(Some),
            _ => Ok(None),
        }
    }

    /// Whether kernels may use fewer instructions than the processor has.
    pub fn is_limited() -> bool {
        Self::native() != Self::of_processor()
    }

    /// Makes the library `gemmkit`, which chooses its instructions by itself, keep to what is allowed.
    ///
    /// # Safety
    /// Sets a variable of the environment: no other thread may run yet that reads it other than through `std`.
    pub unsafe fn limit_libraries() {
        let name = match Self::native() {
            InstructionSet::Avx2 => "fma",
            InstructionSet::Baseline => "scalar",
            InstructionSet::Avx512 | InstructionSet::Neon => return,
        };
        if Self::is_limited() {
            // SAFETY: as the caller promises.
            unsafe { std::env::set_var("GEMMKIT_REQUIRE_ISA", name) };
        }
    }

    fn named(name: &str) -> Result<Self, KernelError> {
        let found = NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, set)| set);
        found.ok_or_else(|| KernelError::Instructions { asked: name.into(), known: NAMES.map(|(name, _)| name).join(", ") })
    }

    /// Bytes of a vector register.
    pub fn bytes(self) -> usize {
        match self {
            InstructionSet::Avx512 => 64,
            InstructionSet::Avx2 => 32,
            InstructionSet::Neon | InstructionSet::Baseline => 16,
        }
    }

    /// The flags that make a C compiler use these instructions: all of the processor's where nothing is limited. Only compilers for x86
    /// know a preferred width. For NEON elsewhere there are none: a compiler for 64-bit Arm takes it, and this processor's has vectors of
    /// the same width.
    pub fn compiler_flags(self) -> &'static [&'static str] {
        match (self == Self::of_processor(), self) {
            (true, InstructionSet::Neon) => &["-march=native"],
            (false, InstructionSet::Neon) => &[],
            (true, InstructionSet::Baseline) => &["-march=native"],
            (true, InstructionSet::Avx2) => &["-march=native", "-mprefer-vector-width=256"],
            (true, InstructionSet::Avx512) => &["-march=native", "-mprefer-vector-width=512"],
            (false, InstructionSet::Avx2) => &["-march=x86-64-v3", "-mprefer-vector-width=256"],
            (false, _) => &["-march=x86-64"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_known_or_refused_with_those_that_are() {
        assert_eq!(InstructionSet::named("avx2").ok(), Some(InstructionSet::Avx2));
        let refused = InstructionSet::named("avx").err().map(|e| e.to_string()).unwrap_or_default();
        assert!(refused.contains("`avx`") && refused.contains("avx512, avx2"), "{refused}");
    }
}
