//! Tile kernels on GPUs: the text of a configuration, and every configuration.

use crate::collapsed_dims::CollapsedDims;
use crate::config_space::{ConfigSpace, TensorChoice};
use crate::error::KernelError;
use crate::kernel::{KernelSpec, unsupported};
use crate::loopnest::streaming::is_streamed;
use crate::maps::flatten::statements;
use crate::target::cuda::emit::{self, Chip, CudaSource};
use crate::tiles::space::{TileSpace, Tiles};
use sdfg::config::KernelConfig;

/// Shared memory for the factors of a product while they are multiplied, in bytes: what large tiles of most types take, in two parts
/// and in three.
const STAGE: [i64; 2] = [19 << 10, 48 << 10];
/// Less shared memory than that has no room for 64 steps of the depth, nor for three parts, in bytes.
const DEEP: i64 = 96 << 10;
/// Threads of a block.
const THREADS: [i64; 2] = [256, 128];
/// Neighbours that a thread takes of what surrounds products, and of what draws a mask: eight of them are drawn together.
const WIDTHS: [i64; 3] = [4, 2, 8];
const DRAWING: [i64; 3] = [8, 4, 2];
/// Most parts of the shared-memory ring: while one is multiplied, all others are being copied.
const STAGES: [i64; 3] = [3, 4, 2];

/// Tiles for the shared memory of a block, and the registers of its threads.
pub fn blocks(chip: Chip) -> Tiles {
    Tiles {
        short: &[64, 128, 32, 16],
        long: &[128, 64, 256],
        depths: if chip.shared < DEEP { &[32, 16] } else { &[32, 64, 16] },
        usual: [64.0, 128.0],
        local: (chip.shared - STAGE[usize::from(chip.shared >= DEEP)]) / size_of::<f32>() as i64,
        // Rows of one instruction of a tensor core.
        unit: 16,
        banks: Some(emit::BANKS),
        processors: chip.processors,
    }
}

/// The CUDA of a scope with matrix products under a configuration.
///
/// # Errors
/// Scopes without a matrix product, or that cannot be generated; knobs that kernels do not have.
pub fn source(spec: &KernelSpec, config: &KernelConfig, chip: Chip) -> Result<CudaSource, KernelError> {
    if is_streamed(config) {
        let folded = CollapsedDims::under(spec, config)?;
        let config = folded.config(config).ok_or_else(|| unsupported(spec, "dims that it takes as one do not lie together"))?;
        return emit::emit(&folded.spec, &crate::tiles::lower(&folded.spec, &config)?, &config, chip);
    }
    emit::emit(spec, &crate::tiles::lower(spec, config)?, config, chip)
}

/// Whether a unit is a scope of one product, and nothing else but rounding and scaling it, that has tiles on some GPU.
pub fn is_plain_gemm(spec: &KernelSpec) -> bool {
    let alone =
        || statements(spec, true).is_ok_and(|found| found.statements.iter().filter(|flat| flat.statement.combine.is_some()).count() == 1);
    matches!(spec.unit, sdfg::Unit::Scope(_)) && alone() && CudaTileSpace::new(spec, Chip::HOPPER).is_ok()
}

/// All layouts of the tensors and all knobs of one tile kernel on a GPU: what [`TileSpace`] has, with threads, stages and width.
pub struct CudaTileSpace {
    tiles: TileSpace,
    widths: [i64; 3],
}

impl CudaTileSpace {
    const KNOBS: u64 = (THREADS.len() * STAGES.len() * WIDTHS.len()) as u64;

    /// Threads, stages and width of a number below all of them.
    fn setting(&self, n: usize) -> [i64; 3] {
        let (threads, rest) = (n % THREADS.len(), n / THREADS.len());
        [THREADS[threads], STAGES[rest % STAGES.len()], self.widths[rest / STAGES.len()]]
    }

    /// # Errors
    /// Scopes without a matrix product, or that cannot be generated.
    pub fn new(spec: &KernelSpec, chip: Chip) -> Result<Self, KernelError> {
        let draws = statements(spec, true)?.statements.iter().any(|flat| flat.statement.code.drops());
        Ok(CudaTileSpace { tiles: TileSpace::of(spec, blocks(chip))?, widths: if draws { DRAWING } else { WIDTHS } })
    }
}

impl ConfigSpace for CudaTileSpace {
    fn tensors(&self) -> &[TensorChoice] {
        self.tiles.tensors()
    }

    fn count(&self) -> u64 {
        self.tiles.count().saturating_mul(Self::KNOBS)
    }

    fn config(&self, n: u64) -> KernelConfig {
        let [threads, stages, width] = self.setting((n % Self::KNOBS) as usize);
        let KernelConfig { layouts, knobs } = self.tiles.config(n / Self::KNOBS);
        KernelConfig { layouts, knobs: knobs.with("threads", threads).with("stages", stages).with("width", width) }
    }

    fn identity(&self, n: u64) -> String {
        let rest = n % Self::KNOBS;
        format!("{rest} {}", self.tiles.identity(n / Self::KNOBS))
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        self.tiles.predicted_cost(n / Self::KNOBS) * (1.0 + 0.01 * (n % Self::KNOBS) as f64)
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        self.tiles.matches_rule_of_thumb(config)
            && config.knobs.get("threads") == Some("256")
            && config.knobs.get("width") == Some(&self.widths[0].to_string())
    }
}
