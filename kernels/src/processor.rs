//! What of the processor at hand decides how matrices are multiplied.

use crate::caches::second_cache;
use crate::instruction_set::InstructionSet;

/// The register block that suits a processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PanelBlock {
    /// Bytes of a vector register.
    pub vector: usize,
    /// Most rows of a panel.
    pub height: usize,
    /// Vectors across a panel of columns.
    pub vectors: usize,
}

impl PanelBlock {
    /// The block for the processor that runs this program: as many results as leave registers for one row of columns and one
    /// broadcast value.
    pub fn native() -> Self {
        match InstructionSet::native() {
            InstructionSet::Avx512 => PanelBlock { vector: 64, height: 14, vectors: 2 },
            InstructionSet::Avx2 => PanelBlock { vector: 32, height: 6, vectors: 2 },
            InstructionSet::Neon => PanelBlock { vector: 16, height: 8, vectors: 3 },
            InstructionSet::Baseline => PanelBlock { vector: 16, height: 6, vectors: 2 },
        }
    }

    /// Columns of a panel, for elements of `bytes` bytes.
    pub fn width(self, bytes: usize) -> usize {
        self.vectors * self.vector / bytes
    }

    /// Whether rows are read where they lie as fast as packed ones: not where processors decode little in a cycle.
    pub fn reads_rows(self) -> bool {
        !is_intel()
    }
}

/// Whether this processor multiplies and adds pairs of bf16 by one instruction, and if so, whether that is faster than f32.
///
/// Intel's Emerald Rapids multiplies widened factors twice as fast (one core: 172 beside 80 Gflop/s), and others of that maker are
/// taken to be like it; with AMD's Zen 4 and 5, whole steps in bf16 were 1.7 to 1.8 times as fast as in f32. It only orders what is
/// measured.
pub fn pairs() -> Option<bool> {
    #[cfg(target_arch = "x86_64")]
    if InstructionSet::native() == InstructionSet::Avx512 && std::arch::is_x86_feature_detected!("avx512bf16") {
        return Some(!is_intel());
    }
    #[cfg(target_arch = "aarch64")]
    if std::arch::is_aarch64_feature_detected!("bf16") {
        return Some(true);
    }
    #[allow(unreachable_code)]
    None
}

/// Whether non-temporal stores were found to be faster on processors like this one: for results that no kernel reads soon, and, while the
/// workers' cores share no cache (`Pool::is_near`), for results that all workers read.
///
/// On AMD's Zen 4, cores that have no cache in common write what another has read since at 2.4 GB/s, at 9 to 28 where they have one,
/// and around the caches at 28 in either case. With AVX2, whose registers are half lines, one core writes 128 MB at 17.7 GB/s around the
/// caches and at 12.1 through them, with AVX-512 at 16.7 and 13.6. Of other makers' processors nothing has been measured.
pub fn streams() -> bool {
    InstructionSet::native() <= InstructionSet::Avx2 && !is_intel()
}

/// Whether a team of this number of workers uses non-temporal stores ([`streams`]).
pub(crate) fn streams_for(workers: usize) -> bool {
    workers > 1 && streams()
}

/// Cores that a prediction may count on; the pool decides how many there really are.
pub fn cores() -> usize {
    // The system reads files to say it, and predictions ask for every configuration.
    static CORES: std::sync::OnceLock<usize> = std::sync::OnceLock::new();
    *CORES.get_or_init(|| std::thread::available_parallelism().map_or(1, usize::from))
}

/// Whether Intel made this processor.
pub(crate) fn is_intel() -> bool {
    #[cfg(target_arch = "x86_64")]
    {
        // Virtual machines ask their host for it, which takes microseconds.
        static INTEL: std::sync::OnceLock<bool> = std::sync::OnceLock::new();
        *INTEL.get_or_init(|| {
            // SAFETY: every x86-64 processor has this leaf, its maker's name in three registers. Newer compilers know that it is safe.
            #[allow(unused_unsafe)]
            let leaf = unsafe { std::arch::x86_64::__cpuid(0) };
            [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes).concat() == b"GenuineIntel"
        })
    }
    #[cfg(not(target_arch = "x86_64"))]
    false
}

/// Bytes of packed columns that stay in the second cache while rows pass.
pub fn near() -> usize {
    second_cache() / 2
}
