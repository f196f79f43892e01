//! Scopes as CUDA kernels: the text of a configuration, and every configuration.

use super::MapSpace;
use crate::digits::Digits;
use crate::emit::cuda::{self, Chip, Source};
use crate::error::KernelError;
use crate::kernel::{Access, Argument, KernelSpec, Space, TensorChoice};
use crate::loopnest::{self, Element, Group, LoopNest};
use rayon::prelude::*;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Layout, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// The CUDA of a scope under a configuration.
///
/// # Errors
/// Knobs that kernels do not have; scopes that cannot be generated.
pub fn cuda_source(spec: &KernelSpec, config: &KernelConfig, chip: Chip) -> Result<Source, KernelError> {
    let knobs = config.knobs.clone().with("lanes", cuda::lanes(spec, config)?);
    let config = KernelConfig { layouts: config.layouts.clone(), knobs };
    cuda::emit(spec, &super::lower(spec, &config)?, &config, chip)
}

/// Dims whose sizes are written into the text: those that vectors run along, of which a team takes so many strips.
pub fn cuda_written(spec: &KernelSpec, config: &KernelConfig) -> Vec<String> {
    let (Unit::Scope(scope), Some(vector)) = (&spec.unit, config.knobs.get("vector")) else { return vec![] };
    let mut dims = Vec::new();
    super::space::collect(scope, &mut dims);
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
/// Numbers among which every knob of maps has each of its values.
const SEARCHED: u64 = 4096;
/// Threads of a processor that keep the memory busy.
const ENOUGH: f64 = 1024.0;
/// Registers of a processor.
const REGISTERS: f64 = 65536.0;
/// Values of a row that a thread may hold; of a longer one it holds nothing.
const MOST: f64 = 64.0;
/// How many times as long a kernel takes that adds to partial results in memory at every point.
const SCATTERED: f64 = 2.0;
/// Bytes that the memory of a GPU moves at least.
const SECTOR: f64 = 32.0;

/// All layouts of the tensors and all knobs of one CUDA kernel: what [`MapSpace`] has, with threads, rows, width and unrolling in
/// the place of lanes.
pub struct CudaSpace {
    maps: MapSpace,
    /// The kernel's arguments, and how many elements each has.
    arguments: Vec<(Argument, f64)>,
    /// Elements of partial results, where results are summed over points, and their dims.
    partial: f64,
    apart: BTreeSet<String>,
    /// What a thread holds of rows along each index that vectors may run along.
    rows: BTreeMap<String, Rows>,
    /// Blocks for each processor.
    blocks: &'static [i64],
    processors: i64,
}

/// What vectors along an index come to.
#[derive(Clone, Debug, Default)]
struct Rows {
    /// Containers that groups hand on, of which a thread holds its part of a row, if there is room.
    handed: f64,
    /// Results of all points, of which it holds the same.
    summed: f64,
    /// Of what is handed on, what memory does not have.
    local: f64,
    /// Most iterations of a group.
    inner: f64,
    /// Dims of arguments that the index runs along: a dim may have a second name.
    along: BTreeMap<String, String>,
}

impl Rows {
    fn of(spec: &KernelSpec, nest: &LoopNest, vector: &str) -> Self {
        let along = |group: &Group, element: &Element| {
            group.loops.last().is_some_and(|last| element.subscripts.iter().any(|s| s.symbols().contains(&last.index)))
        };
        let uses = |data: &str| {
            let touches = |g: &&Group| {
                let all = g.statements.iter().flat_map(|s| s.reads.iter().map(|(_, e)| e).chain([&s.write]));
                all.filter(|e| e.data == *data).any(|e| along(g, e))
            };
            nest.groups.iter().filter(touches).count()
        };
        let mut rows = Rows::default();
        for (data, tensor) in &nest.tensors {
            match tensor.space {
                loopnest::Space::Private { .. } => rows.summed += f64::from(uses(data) > 0),
                loopnest::Space::Heap { .. } => rows.handed += f64::from(uses(data) > 1),
                _ => rows.local += f64::from(uses(data) > 1),
            }
        }
        rows.handed += rows.local;
        rows.inner = nest.groups.iter().map(|g| g.loops.iter().map(|l| l.count as f64).product()).fold(1.0, f64::max);
        let statements = || nest.groups.iter().flat_map(|g| &g.statements);
        for element in statements().flat_map(|s| s.reads.iter().map(|(_, e)| e).chain([&s.write])) {
            let Some(loopnest::Space::Heap { root, .. }) = nest.tensors.get(&element.data).map(|t| &t.space) else { continue };
            let subscript = element.subscripts.iter().position(|s| s.symbols().contains(vector));
            // A view has the dims of what it views, under names of its own.
            let dim = subscript.and_then(|n| spec.containers.get(root)?.dims.get(n));
            rows.along.extend(dim.map(|dim| (root.clone(), dim.clone())));
        }
        rows
    }
}

impl CudaSpace {
    const RADICES: [usize; 6] = [THREADS.len(), TEAMS.len(), WIDTHS.len(), BETWEEN.len(), UNROLL.len(), OUT.len()];

    /// Settings of all knobs that maps do not have.
    fn own(&self) -> u64 {
        Self::RADICES.iter().product::<usize>() as u64 * self.blocks.len() as u64
    }

    /// # Errors
    /// Scopes that cannot be generated.
    pub fn new(spec: &KernelSpec, chip: Chip) -> Result<Self, KernelError> {
        let elements = |a: &Argument| spec.shape(&a.data).map(|shape| shape.iter().product::<usize>() as f64);
        let mut arguments = Vec::new();
        for argument in spec.arguments() {
            arguments.push((argument.clone(), elements(&argument)?));
        }
        let maps = MapSpace::new(spec)?.without_lanes();
        // Sums over points, where there is a choice.
        let private = (0..maps.count().min(SEARCHED)).map(|n| maps.config(n)).find(|c| c.knobs.get("reduce") == Some("private"));
        let first = private.unwrap_or_else(|| maps.config(0));
        let reduce = first.knobs.get("reduce").map(String::from);
        let knobs = first.knobs.clone().with("lanes", cuda::lanes(spec, &first)?);
        let nest = super::lower(spec, &KernelConfig { knobs, ..first })?;
        let mut rows = BTreeMap::new();
        for config in (0..maps.count().min(SEARCHED)).map(|n| maps.config(n)) {
            let vector = config.knobs.get("vector").unwrap_or_default().to_string();
            if config.knobs.get("reduce") == reduce.as_deref() && !rows.contains_key(&vector) {
                let knobs = config.knobs.clone().with("lanes", cuda::lanes(spec, &config)?);
                let found = Rows::of(spec, &super::lower(spec, &KernelConfig { knobs, ..config })?, &vector);
                rows.insert(vector, found);
            }
        }
        let partial: f64 = cuda::partials(&nest).map(|(_, _, elements)| elements as f64).sum();
        let targets: Vec<&str> = cuda::partials(&nest).map(|(data, ..)| data.trim_end_matches(".partial")).collect();
        let named = |dim: &&String| targets.iter().all(|t| spec.containers.get(*t).is_some_and(|c| c.dims.contains(dim)));
        let all = targets.iter().filter_map(|t| spec.containers.get(*t)).flat_map(|c| &c.dims);
        let apart: BTreeSet<String> = all.filter(named).cloned().collect();
        let blocks: &[i64] = if partial > 0.0 { &SUMMING } else { &STAYING };
        Ok(CudaSpace { maps, arguments, partial, apart, rows, blocks, processors: chip.processors })
    }

    fn number(config: &KernelConfig, key: &str) -> f64 {
        config.knobs.get(key).and_then(|t| t.parse().ok()).unwrap_or(1.0)
    }

    fn results(&self) -> impl Iterator<Item = &str> {
        self.arguments.iter().filter(|(a, _)| a.access == Access::Write).map(|(a, _)| a.data.as_str())
    }

    /// Whether neighbours along the vectors lie far apart in a tensor.
    fn crossed(&self, config: &KernelConfig, data: &str) -> bool {
        let (vector, layout) = (self.maps.dim(config.knobs.get("vector").unwrap_or_default()), self.maps.layout(config, data));
        layout.innermost() != Some(vector) && layout.pieces.iter().any(|p| p.dim == vector)
    }

    /// Whether a kernel has partial results.
    fn summed(&self, config: &KernelConfig) -> bool {
        self.partial > 0.0 && config.knobs.get("reduce") != Some("inner")
    }

    /// Whether indices that tell partial results apart come before all that are summed over.
    fn in_sections(&self, config: &KernelConfig) -> bool {
        let order = config.knobs.get("order").unwrap_or_default().split(',').filter(|i| !i.is_empty());
        let several = order.map(|i| self.maps.dim(i)).filter(|dim| self.maps.spec().size(dim).is_ok_and(|n| n > 1));
        several.skip_while(|dim| self.apart.iter().any(|d| d == dim)).all(|dim| !self.apart.iter().any(|d| d == dim))
    }

    /// Points that teams work on; where vectors run along one of their indices, its strips.
    fn points(&self, config: &KernelConfig) -> f64 {
        let size = |dim: &str| self.maps.spec().size(dim).unwrap_or(1) as f64;
        let order = config.knobs.get("order").unwrap_or_default().split(',').filter(|i| !i.is_empty());
        let points: f64 = order.map(|i| size(self.maps.dim(i))).product();
        if !self.maps.blocked(config) {
            return points;
        }
        let along = size(self.maps.dim(config.knobs.get("vector").unwrap_or_default()));
        let lanes = Self::number(config, "threads") / Self::number(config, "rows") * Self::number(config, "width");
        points / along * (along / lanes).ceil()
    }

    /// Bytes moved, those that nobody asked for included, times the threads that have nothing to do.
    fn cost(&self, config: &KernelConfig) -> f64 {
        let spec = self.maps.spec();
        let vector = self.maps.dim(config.knobs.get("vector").unwrap_or_default());
        let (threads, rows, width) = (Self::number(config, "threads"), Self::number(config, "rows"), Self::number(config, "width"));
        let mut total = 0.0;
        let along = self.rows.get(config.knobs.get("vector").unwrap_or_default());
        // Rows that are neighbours in a result leave together where they are turned.
        let rows_along = |layout: &Layout| {
            let last = config.knobs.get("order").and_then(|o| o.split(',').map(|i| self.maps.dim(i)).rfind(|d| *d != vector));
            last.is_some() && layout.innermost() == last
        };
        for (argument, elements) in &self.arguments {
            let size = argument.dtype.bytes(1) as f64;
            let layout = self.maps.layout(config, &argument.data);
            let vector = along.and_then(|rows| rows.along.get(&argument.data)).map_or(vector, String::as_str);
            let has = layout.pieces.iter().any(|p| p.dim == vector);
            total += elements
                * match (has, layout.innermost() == Some(vector)) {
                    // An access of less than 16 bytes keeps the memory less busy.
                    (true, true) => size * (1.0 + 0.1 * (16.0 / (width * size)).log2().abs()),
                    (true, false) if argument.access == Access::Write && config.knobs.get("out").is_some() && rows_along(&layout) => {
                        size * (1.2 + 0.1 * (SECTOR / (rows * size)).log2().max(0.0))
                    }
                    (true, false) => (width * SECTOR).min(8.0 * SECTOR),
                    (false, _) => size,
                };
        }
        let along = spec.size(vector).unwrap_or(1) as f64;
        let lanes = threads / rows * width;
        // Every block writes what it has summed, of one strip where it has one, and reads it again: every row of it, and of all strips,
        // where what tells elements apart does not come first in the order.
        let summed = self.summed(config);
        let blocks = config.knobs.get("blocks").and_then(|n| n.parse().ok()).unwrap_or((SUMMING[0] * self.processors) as f64);
        if summed {
            let parts = match (self.in_sections(config), self.maps.blocked(config)) {
                (false, _) => blocks * rows,
                (true, true) => blocks * (lanes / along).min(1.0),
                (true, false) => blocks,
            };
            total += 2.0 * size_of::<f32>() as f64 * self.partial * parts;
        }
        let strips = (along / lanes).ceil();
        let idle = strips * lanes / along;
        let points = self.points(config);
        // Fewer threads than that leave the memory idle, unless each asks for more than 16 bytes at a time, two for a value.
        let running = if summed { (points / rows).min(blocks) } else { points / rows };
        let values = if self.maps.blocked(config) { width } else { strips * width };
        let asked = if values <= MOST { (values / 8.0).clamp(0.5, 4.0) } else { 1.0 };
        let few = (self.processors as f64 * ENOUGH / (running * threads * asked)).max(1.0).sqrt();
        // Rows longer than what registers hold are read again.
        let again = match (config.knobs.get("loops"), self.maps.blocked(config)) {
            (Some("one"), false) if strips * width <= MOST => 1.0,
            _ => 1.2,
        };
        let scattered = if summed && self.held_apart(config, values) > MOST { SCATTERED } else { 1.0 };
        // Knobs that often make no difference: one of each kind is tried before another of the same.
        let seldom = |key: &str, usual: &str| config.knobs.get(key).is_some_and(|v| v != usual);
        let later = [seldom("loops", "one"), seldom("unroll", "4"), seldom("hold", "registers")].into_iter().filter(|l| *l).count();
        total * idle * again * few * scattered * self.spilled(config, values) * (1.0 + 0.002 * later as f64)
    }

    /// Partial results of one container that a thread has to hold at a point, where its part of a row has so many values.
    fn held_apart(&self, config: &KernelConfig, values: f64) -> f64 {
        let vector = self.maps.dim(config.knobs.get("vector").unwrap_or_default());
        let outer: Vec<&str> =
            config.knobs.get("order").unwrap_or_default().split(',').filter(|i| !i.is_empty()).map(|i| self.maps.dim(i)).collect();
        let inner = self.apart.iter().filter(|d| !outer.contains(&d.as_str()));
        let size = |dim: &String| if dim == vector { values } else { self.maps.spec().size(dim).map_or(1.0, |n| n as f64) };
        inner.map(size).product()
    }

    /// How many times as long a kernel takes whose threads hold more of rows, of which each has so many values, than registers do.
    fn spilled(&self, config: &KernelConfig, values: f64) -> f64 {
        let Some(rows) = self.rows.get(config.knobs.get("vector").unwrap_or_default()) else { return 1.0 };
        let (threads, width) = (Self::number(config, "threads"), Self::number(config, "width"));
        let held = config.knobs.get("loops") == Some("one") || config.knobs.get("hold") == Some("registers");
        let handed = if held && values <= MOST { rows.handed } else { 0.0 };
        let summed = if self.summed(config) && values <= MOST { rows.summed } else { 0.0 };
        // Where vectors run along points, a thread has whole rows of them.
        let rows = if self.maps.blocked(config) { rows.inner * width * rows.local } else { values * (handed + summed) };
        // And some vectors, and places.
        let needed = rows + 4.0 * width + 24.0;
        let blocks: Option<f64> = config.knobs.get("blocks").and_then(|n| n.parse().ok());
        let each = blocks.map_or(1.0, |n: f64| (n / self.processors as f64).floor().min((cuda::LEAN as f64 / threads).floor()).max(1.0));
        let room = (REGISTERS / (threads * each)).min(255.0);
        if needed > room { 1.3 + (needed - room) / room } else { 1.0 }
    }
}

impl Space for CudaSpace {
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
        let KernelConfig { layouts, knobs } = self.maps.config(n / self.own());
        let mut digits = Digits::of(n, self.own());
        let out = OUT[digits.below(OUT.len())];
        let (unroll, between) = (UNROLL[digits.below(UNROLL.len())], BETWEEN[digits.below(BETWEEN.len())]);
        let (width, team) = (WIDTHS[digits.below(WIDTHS.len())], TEAMS[digits.below(TEAMS.len())]);
        let threads = THREADS[digits.below(THREADS.len())];
        let rows = if team == 0 { 1 } else { threads / team };
        let knobs: Knobs = knobs.with("threads", threads).with("rows", rows).with("width", width).with("loops", between.0);
        let config = KernelConfig { layouts, knobs };
        // Blocks beyond those that points need are none; sums that are no kernel's points are no partial results.
        let most = ((self.points(&config) / rows as f64).ceil() as i64).max(1);
        let summed = self.summed(&config);
        // More than can run at a time would have some wait for others.
        let each = self.blocks[digits.below(self.blocks.len())].min((cuda::LEAN / threads).max(1));
        let config = match each * self.processors {
            blocks if summed => KernelConfig { knobs: config.knobs.with("blocks", blocks.min(most)), ..config },
            blocks if blocks > SUMMING[0] * self.processors && blocks < most => {
                KernelConfig { knobs: config.knobs.with("blocks", blocks), ..config }
            }
            _ => config,
        };
        let turned = rows > 1 && out != OUT[0] && self.results().any(|data| self.crossed(&config, data));
        let config = if turned { KernelConfig { knobs: config.knobs.with("out", out), ..config } } else { config };
        // What a lane of a block holds is in its registers, and it has one strip.
        if self.maps.blocked(&config) {
            return config;
        }
        KernelConfig { knobs: config.knobs.with("unroll", unroll).with("hold", between.1), ..config }
    }

    fn identity(&self, n: u64) -> String {
        format!("{} {}", self.config(n).knobs, self.maps.identity(n / self.own()))
    }

    fn promise(&self, n: u64) -> f64 {
        self.cost(&self.config(n))
    }

    fn promises(&self, numbers: &[u64]) -> Vec<f64> {
        numbers.par_iter().map(|n| self.promise(*n)).collect()
    }

    fn intuitive(&self, config: &KernelConfig) -> bool {
        let has = |key: &str, value: &str| config.knobs.get(key).is_none_or(|v| v == value);
        let widest = self.arguments.iter().map(|(a, _)| a.dtype.bytes(1)).max().unwrap_or(4);
        self.maps.intuitive(config)
            && has("threads", "256")
            && has("rows", "8")
            && has("width", if widest == 2 { "8" } else { "4" })
            && has("unroll", "4")
            && has("loops", "one")
            && has("out", "direct")
    }
}
