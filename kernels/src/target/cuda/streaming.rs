//! Every configuration of a kernel of streamed tiles (see [`crate::loopnest::streaming`]): layouts of its tensors × threads × columns at a
//! time × parts of the shared-memory ring × warps of a processor.

use crate::collapsed_dims::{CollapsedDims, FOLD};
use crate::config_space::{ConfigSpace, TensorChoice};
use crate::error::KernelError;
use crate::kernel::{ArgumentAccess, KernelSpec, unsupported};
use crate::loopnest::LoopNest;
use crate::loopnest::streaming::{FORM, STREAMING, StreamedTile};
use crate::maps::flatten::{IndexRange, statements};
use crate::mixed_radix::{MixedRadix, layouts};
use crate::target::cuda::emit::{self, Chip, WARP};
use crate::tiles::lower::lower;
use sdfg::Layout;
use sdfg::config::{KernelConfig, Knobs};

/// Rows of a warp.
const ROWS: i64 = 16;
const THREADS: [i64; 3] = [128, 256, 64];
/// Columns at a time.
const DEPTHS: [i64; 2] = [32, 64];
/// Parts of the ring.
const STAGES: [i64; 2] = [2, 3];
/// Warps that are to fit a processor: 12 of them leave each thread 168 registers, 16 leave 128. None where the compiler decides.
const WARPS: [Option<i64>; 4] = [Some(12), Some(16), None, Some(8)];
/// Values of 16 bits that a sector has: memory brings all of them where one is wanted.
const SECTOR: f64 = 16.0;

/// All layouts of the tensors and all knobs of one kernel of streamed tiles.
pub struct StreamedSpace {
    spec: KernelSpec,
    tensors: Vec<TensorChoice>,
    /// The innermost dim of each tensor's layouts, as the folded kernel calls it.
    near: Vec<Vec<String>>,
    sides: Sides,
    /// For each tensor its bytes, and how much longer it takes to bring, by innermost dim.
    lies: Vec<(f64, Vec<(String, f64)>)>,
}

impl StreamedSpace {
    /// # Errors
    /// Scopes whose tiles cannot be streamed, and GPUs without tensor cores for bf16.
    pub fn new(spec: &KernelSpec, chip: Chip) -> Result<Self, KernelError> {
        if !chip.tensor_cores {
            return Err(unsupported(spec, "this GPU has no tensor cores that take bf16"));
        }
        let (folded, sides, nest, plan) = found(spec, chip)?;
        let (mut tensors, mut near, mut lies) = (Vec::new(), Vec::new(), Vec::new());
        for argument in folded.spec.arguments() {
            let bytes = argument.dtype.bytes(folded.spec.shape(&argument.data)?.iter().product::<usize>() as u64) as f64;
            lies.push((bytes, weights(&folded.spec, &nest, &plan, &argument.data)));
            let layouts = Layout::permutations(&argument.dims);
            near.push(layouts.iter().map(|layout| layout.innermost().unwrap_or_default().to_string()).collect());
            tensors.push(TensorChoice { data: argument.data, layouts: layouts.iter().map(|layout| folded.unfolded(layout)).collect() });
        }
        Ok(StreamedSpace { spec: spec.clone(), tensors, near, sides, lies })
    }

    const KNOBS: u64 = (THREADS.len() * DEPTHS.len() * STAGES.len() * WARPS.len()) as u64;
}

/// The outer indices that are rows and, unless they are inner ones, columns; with the nest over tiles of rows. Dims are taken as one where
/// there is no other way: each takes layouts from the space.
fn found(spec: &KernelSpec, chip: Chip) -> Result<(CollapsedDims, Sides, LoopNest, StreamedTile), KernelError> {
    let mut why = unsupported(spec, "its tiles cannot be streamed");
    for folded in CollapsedDims::ways(spec) {
        let outer: Vec<IndexRange> = statements(&folded.spec, true)?.outer.into_iter().filter(|r| r.count > 1).collect();
        for row in &outer {
            for column in [None].into_iter().chain(outer.iter().filter(|r| r.index != row.index).map(Some)) {
                let column = column.map(|r| (r.index.clone(), r.count));
                let sides = Sides { row: row.index.clone(), column, fold: folded.knob() };
                let config = KernelConfig { knobs: sides.knobs([THREADS[0], DEPTHS[0], STAGES[0]], None), ..KernelConfig::default() };
                let Ok(nest) = lower(&folded.spec, &config) else { continue };
                let Some(plan) = StreamedTile::of(&nest).filter(|plan| plan.row.index == row.index) else { continue };
                match emit::emit(&folded.spec, &nest, &config, chip) {
                    Ok(_) => return Ok((folded, sides, nest, plan)),
                    Err(e) => why = e,
                }
            }
        }
    }
    Err(why)
}

/// The outer index that rows are, and the one that all columns of a tile are, with its iterations.
struct Sides {
    row: String,
    column: Option<(String, i64)>,
    /// The dims that are collapsed into one.
    fold: Option<String>,
}

impl Sides {
    fn knobs(&self, [threads, depth, stages]: [i64; 3], warps: Option<i64>) -> Knobs {
        let columns = self.column.as_ref().map_or_else(String::new, |(index, count)| format!(",{index}:{count}"));
        let tile = format!("{}:{}{columns}", self.row, threads / WARP * ROWS);
        let knobs = Knobs::default().with("tile", tile).with("depth", depth).with("width", 8);
        let knobs = knobs.with("threads", threads).with("stages", stages).with(FORM, STREAMING);
        let knobs = self.fold.iter().fold(knobs, |knobs, fold| knobs.with(FOLD, fold));
        warps.map_or(knobs.clone(), |n| knobs.with("resident", n * WARP / threads))
    }
}

/// Whether the tiles of a unit can be streamed on some GPU.
pub fn is_streamable(spec: &KernelSpec) -> bool {
    matches!(spec.unit, sdfg::Unit::Scope(_)) && found(spec, Chip::HOPPER).is_ok()
}

/// How much longer a tensor takes to bring or to write under each innermost dim.
fn weights(spec: &KernelSpec, nest: &LoopNest, plan: &StreamedTile, data: &str) -> Vec<(String, f64)> {
    let Some(container) = spec.containers.get(data) else { return vec![] };
    let mut found: Vec<(String, f64)> = container.dims.iter().map(|d| (d.clone(), 0.0)).collect();
    for group in &nest.groups {
        for (element, read) in group.statements.iter().flat_map(|s| s.reads.iter().map(|(_, e)| (e, true)).chain([(&s.write, false)])) {
            if spec.root(&element.data) != data {
                continue;
            }
            let (row, column) = (plan.row.index.as_str(), plan.column.index.as_str());
            let first = plan.first.iter().any(|g| g.statements.iter().flat_map(|s| &s.reads).any(|(_, r)| r == element));
            for (subscript, (_, weight)) in element.subscripts.iter().zip(&mut found) {
                let along = |index: &str| subscript.symbols().contains(index);
                let free = group.loops.iter().any(|l| l.index != row && l.index != column && along(&l.index));
                // Whole 8x8 matrices are loaded where steps of a first product, or columns of a last one, are neighbours in memory.
                let own = match (group.is_gemm && read, first) {
                    (true, true) if free => 1.0,
                    (true, true) if along(column) => 3.0,
                    (true, true) if along(row) => 1.5,
                    (true, false) if free => 1.0,
                    (true, false) if along(column) => 1.5,
                    (false, _) if free || along(column) => 1.0,
                    (false, _) if group.loops.iter().all(|l| l.index == row || l.count == 1) && along(row) => 1.0,
                    _ => SECTOR,
                };
                *weight = f64::max(*weight, own);
            }
        }
    }
    found
}

impl ConfigSpace for StreamedSpace {
    fn tensors(&self) -> &[TensorChoice] {
        &self.tensors
    }

    fn count(&self) -> u64 {
        layouts(&self.tensors).saturating_mul(Self::KNOBS)
    }

    fn knobs(&self) -> Vec<u64> {
        // The fastest digit is taken first.
        [WARPS.len(), STAGES.len(), DEPTHS.len(), THREADS.len()].map(|n| n as u64).into()
    }

    fn config(&self, n: u64) -> KernelConfig {
        let mut digits = MixedRadix::of(n, self.count());
        let (threads, depth) = (THREADS[digits.below(THREADS.len())], DEPTHS[digits.below(DEPTHS.len())]);
        let (stages, warps) = (STAGES[digits.below(STAGES.len())], WARPS[digits.below(WARPS.len())]);
        KernelConfig { layouts: digits.layouts(&self.tensors), knobs: self.sides.knobs([threads, depth, stages], warps) }
    }

    fn identity(&self, n: u64) -> String {
        crate::config_space::identity(&self.spec, &self.tensors, &self.config(n))
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        let mut digits = MixedRadix::of(n, self.count());
        let knobs: f64 =
            [THREADS.len(), DEPTHS.len(), STAGES.len(), WARPS.len()].map(|radix| digits.below(radix) as f64 * 0.02).iter().sum();
        let picks = digits.picks(&self.tensors);
        let brought = self.near.iter().zip(picks).zip(&self.lies).map(|((near, pick), (bytes, weights))| {
            bytes * weights.iter().find(|(dim, _)| *dim == near[pick]).map_or(1.0, |(_, weight)| *weight)
        });
        brought.sum::<f64>() * (1.0 + knobs)
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        let written = self.spec.arguments().into_iter().filter(|a| a.access == ArgumentAccess::Write);
        let largest = written.max_by_key(|a| self.spec.shape(&a.data).map_or(0, |s| s.iter().product::<usize>()));
        let near = largest.and_then(|a| {
            let n = self.tensors.iter().position(|t| t.data == a.data)?;
            let at = self.tensors[n].layouts.iter().position(|l| Some(l) == config.layouts.get(&a.data))?;
            Some((n, &self.near[n][at]))
        });
        let best = |(n, dim): (usize, &String)| self.lies[n].1.iter().any(|(d, weight)| d == dim && *weight <= 1.0);
        near.is_none_or(best) && config.knobs.get("threads") == Some("128") && config.knobs.get("resident") == Some("3")
    }
}
