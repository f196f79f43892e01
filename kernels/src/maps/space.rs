//! Every configuration of a map kernel: layouts of its tensors × vector index × loop order × lanes × place of reductions.

use crate::config_space::{ConfigSpace, TensorChoice};
use crate::error::KernelError;
use crate::images;
use crate::kernel::KernelSpec;
use crate::loopnest::slope;
use crate::maps::flatten::flatten;
use crate::mixed_radix::{MixedRadix, layouts};
use indexmap::IndexSet;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Expr, Layout, Scalar, Unit};

/// Lanes of a block: one and four cache lines of f32.
const LANES: [u32; 2] = [16, 64];
/// Iterations that are too few for a loop over vectors of images.
const SHORT: i64 = 8;
/// Loop orders: the scope's own, and those induced by the largest tensors.
pub(crate) const ORDERS: usize = 3;

/// All layouts of the tensors and all knobs of one map kernel.
pub struct MapSpace {
    spec: KernelSpec,
    tensors: Vec<TensorChoice>,
    /// Positions of the tensors, largest first.
    largest: Vec<usize>,
    vectors: Vec<String>,
    /// Index → dim, outermost first: outer indices, and whether reductions can be moved inside.
    outer: Vec<(String, String)>,
    reduces: &'static [&'static str],
    has_inner: bool,
    dims: Vec<(String, String)>,
    /// For each dropout mask the dim along which its elements are neighbours.
    masks: Vec<String>,
    /// Lanes of a block.
    lanes: &'static [u32],
}

/// A configuration as positions in the lists of choices: predicted for very many configurations, without names.
pub(crate) struct Picks {
    /// Of each tensor.
    pub layouts: Vec<usize>,
    pub vector: usize,
    pub order: usize,
    pub reduce: usize,
    lanes: usize,
}

impl MapSpace {
    /// # Errors
    /// Scopes that cannot be generated.
    pub fn new(spec: &KernelSpec) -> Result<Self, KernelError> {
        let flattened = flatten(spec, false)?;
        let mut tensors = Vec::new();
        let mut bytes = Vec::new();
        for argument in spec.arguments() {
            let elements: usize = spec.shape(&argument.data)?.iter().product();
            bytes.push(argument.dtype.bytes(elements as u64));
            tensors.push(TensorChoice { data: argument.data, layouts: Layout::permutations(&argument.dims) });
        }
        let mut largest: Vec<usize> = (0..tensors.len()).collect();
        largest.sort_by_key(|n| std::cmp::Reverse(bytes[*n]));
        let mut dims: Vec<(String, String)> = Vec::new();
        let mut masks = Vec::new();
        if let Unit::Scope(scope) = &spec.unit {
            collect(scope, &mut dims);
            masks = self::masks(scope);
        }
        let vectors: IndexSet<String> =
            flattened.outer.iter().chain(flattened.statements.iter().flat_map(|f| &f.inner)).map(|r| r.index.clone()).collect();
        // The default (digit 0) walks the largest tensor in its natural order.
        let mut vectors: Vec<String> = vectors.into_iter().collect();
        // Images are walked as the largest result is: what is read may have no dim that any index runs along. Windows are too short for
        // vectors.
        let is_written = |n: &&usize| spec.arguments().get(**n).is_some_and(|a| a.access == crate::kernel::ArgumentAccess::Write);
        let main = if spec.images { largest.iter().find(is_written) } else { largest.first() };
        let natural = main.map(|n| tensors[*n].layouts[0].clone()).unwrap_or_default();
        if spec.images {
            let ranges = || flattened.outer.iter().chain(flattened.statements.iter().flat_map(|f| &f.inner));
            let is_short = |index: &String| ranges().any(|r| r.index == *index && r.count < SHORT);
            if !vectors.iter().all(is_short) {
                vectors.retain(|index| !is_short(index));
            }
        }
        let along =
            |index: &String| dims.iter().find(|(i, _)| i == index).and_then(|(_, d)| natural.pieces.iter().position(|p| p.dim == *d));
        vectors.sort_by_key(|index| std::cmp::Reverse(along(index)));
        let has_inner = flattened.statements.iter().any(|f| !f.inner.is_empty());
        let movable = !has_inner && flattened.outer.iter().any(|r| r.reduction);
        let dim = |index: &str| dims.iter().find(|(i, _)| i == index).map_or_else(String::new, |(_, d)| d.clone());
        let outer = flattened.outer.iter().map(|r| (r.index.clone(), dim(&r.index))).collect();
        Ok(MapSpace {
            spec: spec.clone(),
            tensors,
            largest,
            vectors,
            outer,
            reduces: if movable { &["inner", "private"] } else { &["inner"] },
            has_inner: has_inner || movable,
            dims,
            masks,
            lanes: &LANES,
        })
    }

    /// The same with layouts in panels of `width` columns as well; of images with the layouts that these are held in.
    pub fn in_panels(self, width: usize) -> Self {
        let choice = |t: TensorChoice| match self.spec.images {
            true => TensorChoice { layouts: images::layouts(&self.spec, &t.data), ..t },
            false => crate::split_blocked_dims::with_panels(&self.spec, t, width),
        };
        let tensors = self.tensors.into_iter().map(choice).collect();
        MapSpace { tensors, ..self }
    }

    /// The same space where something else decides about the lanes of a block.
    pub(crate) fn without_lanes(self) -> Self {
        MapSpace { lanes: &LANES[..1], ..self }
    }

    /// Values of each knob, slowest first, as [`MapSpace::config`] decodes them.
    pub(crate) fn knob_radices(&self) -> Vec<u64> {
        [self.vectors.len().max(1), ORDERS, self.reduces.len(), self.lanes.len()].map(|radix| radix as u64).into()
    }

    pub(crate) fn spec(&self) -> &KernelSpec {
        &self.spec
    }

    /// Indices that vectors may run along: one of no name where there are none.
    pub(crate) fn vectors(&self) -> &[String] {
        const NONE: &[String] = &[String::new()];
        if self.vectors.is_empty() { NONE } else { &self.vectors }
    }

    /// Places of reductions.
    pub(crate) fn reduces(&self) -> &'static [&'static str] {
        self.reduces
    }

    /// The tensor that each order is induced by; `None` for the scope's own.
    pub(crate) fn induced(&self) -> [Option<usize>; ORDERS] {
        std::array::from_fn(|order| self.largest.get(order).copied().filter(|_| order + 1 < ORDERS))
    }

    pub(crate) fn picks(&self, n: u64) -> Picks {
        let mut digits = MixedRadix::of(n, self.count());
        let (lanes, reduce, order) = (digits.below(self.lanes.len()), digits.below(self.reduces.len()), digits.below(ORDERS));
        let vector = digits.below(self.vectors.len());
        Picks { layouts: digits.picks(&self.tensors), vector, order, reduce, lanes }
    }

    /// Whether vectors along an index run along points.
    pub(crate) fn blocked(&self, vector: &str, reduce: &str) -> bool {
        self.outer.iter().any(|(i, _)| i == vector) && (reduce == "private" || !self.reduction(vector))
    }

    /// Outer indices, and their dims, in the order of a layout; those that it lacks come first.
    pub(crate) fn order(&self, layout: &Layout, reduce: &str) -> Vec<&(String, String)> {
        let mut outer: Vec<&(String, String)> = self.outer.iter().filter(|(i, _)| reduce == "private" || !self.reduction(i)).collect();
        outer.sort_by_key(|(_, dim)| layout.pieces.iter().position(|p| p.dim == *dim).map_or(0, |at| at + 1));
        outer
    }

    /// The same by names.
    fn named_order(&self, layout: &Layout, reduce: &str) -> String {
        self.order(layout, reduce).iter().map(|(i, _)| i.as_str()).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn config_of(&self, picks: &Picks) -> KernelConfig {
        let layout = |(t, l): (&TensorChoice, &usize)| (t.data.clone(), t.layouts[*l].clone());
        let layouts = self.tensors.iter().zip(&picks.layouts).map(layout).collect();
        let (lanes, reduce) = (self.lanes[picks.lanes], self.reduces[picks.reduce]);
        let natural = Layout::default();
        let induced = self.induced()[picks.order].map_or(&natural, |t| &self.tensors[t].layouts[picks.layouts[t]]);
        let mut knobs = Knobs::default().with("order", self.named_order(induced, reduce));
        let vector = self.vectors()[picks.vector].as_str();
        if !vector.is_empty() {
            knobs = knobs.with("vector", vector);
        }
        if self.reduces.len() > 1 {
            knobs = knobs.with("reduce", reduce);
        }
        if self.has_inner && self.lanes.len() > 1 && self.blocked(vector, reduce) {
            knobs = knobs.with("lanes", lanes);
        }
        KernelConfig { layouts, knobs }
    }

    /// Whether an outer index moves inside under `reduce=inner`.
    fn reduction(&self, index: &str) -> bool {
        let Unit::Scope(scope) = &self.spec.unit else { return false };
        self.reduces.len() > 1 && scope.map.indices.iter().any(|i| i.name == index && i.kind == sdfg::IndexKind::Reduction)
    }

    fn layout(&self, config: &KernelConfig, data: &str) -> Layout {
        config.layouts.get(data).cloned().unwrap_or_default()
    }

    pub(crate) fn dim(&self, index: &str) -> &str {
        self.dims.iter().find(|(i, _)| i == index).map_or("", |(_, d)| d)
    }

    /// Bytes, weighted by how badly each tensor is walked. The weights are ratios of times on a current x86 processor.
    fn cost(&self, config: &KernelConfig) -> f64 {
        let vector = self.dim(config.knobs.get("vector").unwrap_or_default());
        let order: Vec<&str> = config.knobs.get("order").map_or(vec![], |o| o.split(',').map(|i| self.dim(i)).collect());
        let next = order.iter().rev().find(|d| **d != vector).copied().unwrap_or_default();
        let lanes = config.knobs.get("lanes");
        let mut total = 0.0;
        let mut largest = 0.0f64;
        for tensor in &self.tensors {
            let (layout, shape) = (self.layout(config, &tensor.data), self.spec.shape(&tensor.data).unwrap_or_default());
            let bytes = 4.0 * shape.iter().product::<usize>() as f64;
            let inner = layout.innermost().unwrap_or_default();
            let second = layout.pieces.iter().rev().nth(1).map_or("", |p| p.dim.as_str());
            // Lanes of a block of the layout, where vectors run along it.
            let block = layout.pieces.last().filter(|p| p.dim == vector).and_then(|p| p.block).map(i64::from);
            let asked = lanes.and_then(|l| l.parse::<i64>().ok());
            let weight = match (layout.pieces.iter().any(|p| p.dim == vector), inner == vector, lanes) {
                (true, true, None) => 1.0,
                (true, true, Some(_)) if block.is_some() && block == asked => 1.0,
                // A loop over more lanes than there are has no known length.
                (true, true, Some(_)) if block < asked && block.is_some() => 4.0,
                // What one row keeps in registers, a block keeps in memory.
                (true, true, Some("16")) => 2.2,
                (true, true, Some(_)) => 1.5,
                // Lines fetched for one lane are used by the next iterations, while they are in the cache.
                (true, false, Some("16")) if !order.contains(&inner) => 6.0,
                (true, false, Some(_)) if !order.contains(&inner) => 8.0,
                (true, false, _) => 20.0,
                (false, _, _) => 1.0,
            };
            let far = if inner == vector && !second.is_empty() && second != next { 1.1 } else { 1.0 };
            let later = if layout.is_plain() { 1.0 } else { crate::split_blocked_dims::LATER };
            total += bytes * weight * far * later;
            largest = largest.max(bytes);
        }
        if config.knobs.get("reduce") == Some("private") {
            total *= 1.2;
        }
        // Eight neighbours share a block of random bits: cheap along the vector, or if the next iterations use the others.
        let masks = self.masks.iter().map(|unit| match unit.as_str() {
            unit if unit == vector => 0.5,
            unit if unit == next || !order.contains(&unit) => 0.7,
            _ => 6.0,
        });
        total + largest * masks.sum::<f64>()
    }
}

/// Dims along which the elements of the scope's dropout masks are neighbours.
pub(crate) fn masks(scope: &sdfg::Scope) -> Vec<String> {
    let mut found = Vec::new();
    for (around, computation) in scope.computations() {
        for (_, code) in &computation.tasklet.code {
            code.walk(&mut |s| {
                if let Scalar::Keep { element, .. } = s
                    && let Some(unit) = around.iter().find(|i| slope(element, &i.name) == Some(Expr::Int(1)))
                {
                    found.push(unit.dim.clone());
                }
            });
        }
    }
    found
}

/// Indices of a scope and of those inside it, each with its dim.
pub(crate) fn collect(scope: &sdfg::Scope, into: &mut Vec<(String, String)>) {
    into.extend(scope.map.indices.iter().map(|i| (i.name.clone(), i.dim.clone())));
    for item in &scope.body {
        if let sdfg::Item::Scope(inner) = item {
            collect(inner, into);
        }
    }
}

impl ConfigSpace for MapSpace {
    fn tensors(&self) -> &[TensorChoice] {
        &self.tensors
    }

    fn count(&self) -> u64 {
        let knobs = (self.vectors.len().max(1) * ORDERS * self.lanes.len() * self.reduces.len()) as u64;
        layouts(&self.tensors).saturating_mul(knobs)
    }

    fn config(&self, n: u64) -> KernelConfig {
        self.config_of(&self.picks(n))
    }

    fn identity(&self, n: u64) -> String {
        crate::config_space::identity(&self.spec, &self.tensors, &self.config(n))
    }

    fn predicted_cost(&self, n: u64) -> f64 {
        self.cost(&self.config(n))
    }

    fn matches_rule_of_thumb(&self, config: &KernelConfig) -> bool {
        let Some(largest) = self.largest.first().map(|n| &self.tensors[*n].data) else { return true };
        let layout = self.layout(config, largest);
        let vector = config.knobs.get("vector").map(|v| self.dim(v));
        let reduce = config.knobs.get("reduce").unwrap_or("inner");
        vector == layout.innermost()
            && config.knobs.get("order") == Some(self.named_order(&layout, reduce).as_str())
            && config.knobs.get("lanes").is_none_or(|l| l == if layout.is_plain() { "64" } else { "16" })
    }
}
