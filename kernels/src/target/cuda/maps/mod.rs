//! Scopes as CUDA kernels: the text of a configuration, and every configuration.

mod cost_model;

use crate::config_space::{ConfigSpace, TensorChoice};
use crate::error::KernelError;
use crate::kernel::{KernelArgument, KernelSpec};
use crate::maps::MapSpace;
use crate::maps::space::Picks;
use crate::mixed_radix::MixedRadix;
use crate::target::cuda::emit::schedule::{PREFETCH, PREFETCH_KNOB};
use crate::target::cuda::emit::{self, Chip, CudaSource};
use cost_model::{HeldRows, KernelFacts};
use sdfg::Unit;
use sdfg::config::KernelConfig;
use std::collections::{BTreeMap, BTreeSet};

/// The CUDA of a scope under a configuration.
///
/// # Errors
/// Knobs that kernels do not have; scopes that cannot be generated.
pub fn source(spec: &KernelSpec, config: &KernelConfig, chip: Chip) -> Result<CudaSource, KernelError> {
    let knobs = config.knobs.clone().with("lanes", emit::lanes(spec, config)?);
    let config = KernelConfig { layouts: config.layouts.clone(), knobs };
    let mut nest = crate::maps::lower(spec, &config)?;
    emit::elements_first(&mut nest);
    emit::emit(spec, &nest, &config, chip)
}

/// Dims whose sizes are constants of the text: those along which vectors run, since the number of strips of a thread is one.
pub fn specialized_dims(spec: &KernelSpec, config: &KernelConfig) -> Vec<String> {
    let (Unit::Scope(scope), Some(vector)) = (&spec.unit, config.knobs.get("vector")) else { return vec![] };
    let mut dims = Vec::new();
    crate::maps::space::collect(scope, &mut dims);
    dims.into_iter().filter(|(index, _)| index == vector).map(|(_, dim)| dim).take(1).collect()
}

/// Threads of a block.
const THREADS: [i64; 3] = [256, 128, 512];
/// Threads that share a point; 0 stands for the whole block.
const TEAMS: [i64; 3] = [32, 8, 0];
/// Neighbours that a thread takes: 4 is 16 bytes of f32, 8 of half precision.
const WIDTHS: [i64; 4] = [4, 1, 2, 8];
/// What happens between groups: values kept in registers, read again, or rows held in shared memory.
const BETWEEN: [(&str, &str); 3] = [("one", "registers"), ("two", "registers"), ("two", "shared")];
const UNROLL: [i64; 2] = [4, 1];
/// How results leave whose neighbours along the vectors lie far apart.
const OUT: [&str; 2] = ["direct", "turned"];
/// Blocks of a kernel with partial results for each processor: every one writes its own, and few leave the memory idle.
const SUMMING: [i64; 5] = [2, 1, 4, 6, 8];
/// Those of other kernels, each for several points: what a block begins with is done once for them. 0 stands for one point, a row.
const STAYING: [i64; 4] = [0, 4, 5, 8];
/// Choices of whether rows of the next point are read while sums of this one meet.
const LOOKING: usize = PREFETCH.len();
/// Numbers among which every knob of maps has each of its values.
const SEARCHED: u64 = 4096;

/// All layouts of the tensors and all knobs of one CUDA kernel: what [`MapSpace`] has, with threads, rows, width and unrolling in
/// the place of lanes.
pub struct CudaSpace {
    maps: MapSpace,
    /// Bytes of an element of the widest argument.
    widest: u64,
    /// Elements of partial results, where results are summed over points.
    partial: f64,
    facts: KernelFacts,
    /// Values of a point's rows whose sums meet before anything else is done to them.
    meeting: Option<i64>,
    /// Dims along which elements of masks are neighbours.
    masks: Vec<String>,
    /// Blocks for each processor.
    blocks: &'static [i64],
    processors: i64,
}

/// A configuration by positions and numbers.
struct Picked {
    maps: Picks,
    threads: i64,
    rows: i64,
    width: i64,
    loops: &'static str,
    /// Of kernels whose vectors do not run along points.
    hold: &'static str,
    unroll: i64,
    blocks: Option<i64>,
    turned: bool,
    ahead: bool,
    /// Whether vectors run along points, and whether a kernel has partial results.
    blocked: bool,
    summed: bool,
}

impl Picked {
    /// Neighbours that a team takes at a time.
    fn lanes(&self) -> f64 {
        self.threads as f64 / self.rows as f64 * self.width as f64
    }
}

impl CudaSpace {
    const RADICES: [usize; 7] = [THREADS.len(), TEAMS.len(), WIDTHS.len(), BETWEEN.len(), UNROLL.len(), OUT.len(), LOOKING];

    /// Settings of all knobs that maps do not have.
    fn own(&self) -> u64 {
        Self::RADICES.iter().product::<usize>() as u64 * self.blocks.len() as u64
    }

    /// # Errors
    /// Scopes that cannot be generated.
    pub fn new(spec: &KernelSpec, chip: Chip) -> Result<Self, KernelError> {
        let elements = |a: &KernelArgument| spec.shape(&a.data).map(|shape| shape.iter().product::<usize>() as f64);
        let mut arguments = Vec::new();
        for argument in spec.arguments() {
            arguments.push((argument.clone(), elements(&argument)?));
        }
        let maps = MapSpace::new(spec)?.without_lanes();
        // Sums over points, where there is a choice.
        let private = (0..maps.count().min(SEARCHED)).map(|n| maps.config(n)).find(|c| c.knobs.get("reduce") == Some("private"));
        let first = private.unwrap_or_else(|| maps.config(0));
        let reduce = first.knobs.get("reduce").map(String::from);
        let knobs = first.knobs.clone().with("lanes", emit::lanes(spec, &first)?);
        let nest = crate::maps::lower(spec, &KernelConfig { knobs, ..first })?;
        let mut rows = BTreeMap::new();
        for config in (0..maps.count().min(SEARCHED)).map(|n| maps.config(n)) {
            let vector = config.knobs.get("vector").unwrap_or_default().to_string();
            if config.knobs.get("reduce") == reduce.as_deref() && !rows.contains_key(&vector) {
                let knobs = config.knobs.clone().with("lanes", emit::lanes(spec, &config)?);
                let found = HeldRows::of(spec, &crate::maps::lower(spec, &KernelConfig { knobs, ..config })?, &vector);
                rows.insert(vector, found);
            }
        }
        let partial: f64 = emit::partials(&nest).map(|(_, _, elements)| elements as f64).sum();
        let targets: Vec<&str> = emit::partials(&nest).map(|(data, ..)| data.trim_end_matches(".partial")).collect();
        let named = |dim: &&String| targets.iter().all(|t| spec.containers.get(*t).is_some_and(|c| c.dims.contains(dim)));
        let all = targets.iter().filter_map(|t| spec.containers.get(*t)).flat_map(|c| &c.dims);
        let (apart, some): (BTreeSet<&String>, BTreeSet<&String>) = all.partition(named);
        let [apart, some] = [apart, some].map(|dims| dims.into_iter().cloned().collect::<BTreeSet<String>>());
        let blocks: &[i64] = if partial > 0.0 { &SUMMING } else { &STAYING };
        let facts = KernelFacts::new(&maps, &arguments, [&apart, &some], rows);
        let widest = arguments.iter().map(|(a, _)| a.dtype.bytes(1)).max().unwrap_or(4);
        let meeting = nest.groups.first().filter(|g| emit::prefetch::meets(g)).map(|g| g.loops[0].count);
        let masks = if let Unit::Scope(scope) = &spec.unit { crate::maps::space::masks(scope) } else { vec![] };
        Ok(CudaSpace { maps, widest, partial, facts, meeting, masks, blocks, processors: chip.processors })
    }

    /// What a number stands for.
    fn picked(&self, n: u64) -> Picked {
        let maps = self.maps.picks(n / self.own());
        let mut digits = MixedRadix::of(n, self.own());
        let ahead = digits.below(LOOKING) > 0;
        let out = OUT[digits.below(OUT.len())];
        let (unroll, (loops, hold)) = (UNROLL[digits.below(UNROLL.len())], BETWEEN[digits.below(BETWEEN.len())]);
        let (width, team) = (WIDTHS[digits.below(WIDTHS.len())], TEAMS[digits.below(TEAMS.len())]);
        let threads = THREADS[digits.below(THREADS.len())];
        let rows = if team == 0 { 1 } else { threads / team };
        // Where there is a choice, sums that are no kernel's points are no partial results.
        let inner = self.maps.reduces().len() > 1 && self.maps.reduces()[maps.reduce] == "inner";
        let summed = self.partial > 0.0 && !inner;
        let blocked = self.facts.blocked(maps.vector, maps.reduce);
        let mut picked =
            Picked { maps, threads, rows, width, loops, hold, unroll, blocks: None, turned: false, ahead: false, blocked, summed };
        // Blocks beyond those that points need are none.
        let most = ((self.facts.points(&picked) / rows as f64).ceil() as i64).max(1);
        // More than can run at a time would have some wait for others.
        let each = self.blocks[digits.below(self.blocks.len())].min((emit::LEAN / threads).max(1));
        picked.blocks = match each * self.processors {
            blocks if summed => Some(blocks.min(most)),
            // All at once, but for the last few: then each has one point, and the text says how many are to be resident together.
            blocks if blocks > SUMMING[0] * self.processors && blocks < most + self.processors => Some(blocks),
            _ => None,
        };
        picked.turned = rows > 1 && out != OUT[0] && self.facts.crossed(&picked);
        let even = self.meeting.is_some_and(|values| values % (threads / rows * width) == 0);
        picked.ahead = ahead && even && picked.blocks.is_some() && !picked.turned && !blocked;
        picked
    }
}

impl ConfigSpace for CudaSpace {
    fn tensors(&self) -> &[TensorChoice] {
        self.maps.tensors()
    }

    fn count(&self) -> u64 {
        self.maps.count().saturating_mul(self.own())
    }

    fn knobs(&self) -> Vec<u64> {
        let own = [self.blocks.len()].into_iter().chain(Self::RADICES).map(|radix| radix as u64);
        self.maps.knob_radices().into_iter().chain(own).collect()
    }

    fn config(&self, n: u64) -> KernelConfig {
        let picked = self.picked(n);
        let KernelConfig { layouts, knobs } = self.maps.config_of(&picked.maps);
        let mut knobs =
            knobs.with("threads", picked.threads).with("rows", picked.rows).with("width", picked.width).with("loops", picked.loops);
        if let Some(blocks) = picked.blocks {
            knobs = knobs.with("blocks", blocks);
        }
        if picked.turned {
            knobs = knobs.with("out", OUT[1]);
        }
        if picked.ahead {
            knobs = knobs.with(PREFETCH_KNOB, PREFETCH[1]);
        }
        // What a lane of a block holds is in its registers, and it has one strip.
        if !picked.blocked {
            knobs = knobs.with("unroll", picked.unroll).with("hold", picked.hold);
        }
        KernelConfig { layouts, knobs }
    }

    fn identity(&self, n: u64) -> String {
        format!("{} {}", self.config(n).knobs, self.maps.identity(n / self.own()))
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        let picked = self.picked(n);
        // Which of two that move the same is faster is for measurement to say; one that looks ahead is asked first.
        self.cost(&picked) * if picked.ahead { 0.98 } else { 1.0 }
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        let has = |key: &str, value: &str| config.knobs.get(key).is_none_or(|v| v == value);
        self.maps.matches_rule_of_thumb(config)
            && has("threads", "256")
            && has("rows", "8")
            && has("width", if self.widest == 2 { "8" } else { "4" })
            && has("unroll", "4")
            && has("loops", "one")
            && has("out", "direct")
    }
}
