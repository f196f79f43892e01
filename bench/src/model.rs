//! The contents of a report as plain values: filled by the pipeline, exact through JSON, drawn by [`crate::report`].
//!
//! Every list may be empty: the report then states that the part was not run. Derived figures (speedups, reductions, gaps) are methods,
//! so that they cannot disagree with their inputs. No value is ever negative or NaN ([`crate::check`]).

use crate::layer_form::LayerForm;
use crate::memory::MemoryMap;
use crate::mue::{Mue, TensorVolume};
use crate::protocol::Timing;
use crate::record::Provenance;
use crate::stitching::StitchedProgram;
use crate::table::Cell;
use crate::unit::{Bytes, Flop, Measured, Milliseconds, Quantity};
use indexmap::IndexMap;
use sdfg::{Class, Direction};
use serde::{Deserialize, Serialize};

pub type Time = Quantity<Milliseconds>;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    pub program: String,
    pub about: String,
    /// Dim → size.
    pub sizes: IndexMap<String, u64>,
    pub provenance: Provenance,
    /// Unfused → fused → algebraic → layouts → selection.
    #[serde(default)]
    pub waterfall: Vec<WaterfallStep>,
    #[serde(default)]
    pub graph: DataflowGraph,
    /// Every kernel of the plan and of the unfused program once, matched with the kernels that compute the same.
    #[serde(default)]
    pub comparison: Vec<KernelComparison>,
    /// One row for each operator of the unfused program (Table III).
    #[serde(default)]
    pub operators: Vec<OperatorRow>,
    /// One row for each kernel of the fused program.
    #[serde(default)]
    pub kernels: Vec<OperatorRow>,
    /// Table I.
    #[serde(default)]
    pub classes: Vec<ClassShare>,
    /// Table II.
    #[serde(default)]
    pub algebraic: Vec<AlgebraicVariant>,
    /// Each way to undo a fusion of contractions, with its times.
    #[serde(default)]
    pub compositions: Vec<CompositionRow>,
    /// The stitched program's plan beside measurements.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stitched: Option<StitchedProgram>,
    /// Products of a library that offers several algorithms (Fig. 4).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub products: Vec<ProductRow>,
    #[serde(default)]
    pub sweeps: Vec<KernelSweep>,
    /// Kernels of several layers.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layer_forms: Vec<LayerForm>,
    #[serde(default)]
    pub config_graph: DrawnGraph,
    #[serde(default)]
    pub roofline: Roofline,
    /// Tables IV and V. The contender that is ours is marked; the others were interleaved with it.
    #[serde(default)]
    pub contenders: Vec<ContenderTimes>,
    #[serde(default)]
    pub movement: Vec<MovementRow>,
    #[serde(default)]
    pub selection: Vec<SelectionRow>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub coverage: Option<Coverage>,
    /// The robustness of the choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub certainty: Option<Certainty>,
    /// The memory of one step of the plan.
    #[serde(default)]
    pub memory: MemoryMap,
    #[serde(default)]
    pub policy: Vec<PolicyRow>,
    #[serde(default)]
    pub refusals: Vec<FusionRefusal>,
    /// Where the time of the command went until the report, with `--timings`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub phases: Vec<PhaseSeconds>,
}

/// Seconds of one phase of the command.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseSeconds {
    pub phase: String,
    pub wall_s: f64,
    /// Of all threads, and of all compilers.
    pub cpu_s: f64,
}

/// The program after one stage of the optimisation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaterfallStep {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub launches: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<Quantity<Bytes>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
    /// The change, in a phrase.
    #[serde(default)]
    pub note: String,
}

/// Operators or kernels, and the tensors that flow between them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataflowGraph {
    pub nodes: Vec<GraphNode>,
    pub edges: Vec<GraphEdge>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphNode {
    /// Unique in the graph.
    pub id: String,
    pub label: String,
    /// None for a tensor at the boundary of the program.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<Class>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pass: Option<Direction>,
    /// The kernel that computes it in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    pub flop: Flop,
    /// Further facts: layouts, recipe line, configuration.
    #[serde(default)]
    pub details: IndexMap<String, String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GraphEdge {
    /// Ids of nodes.
    pub from: String,
    pub to: String,
    pub tensor: String,
    pub bytes: Bytes,
    /// The memlet in the text form.
    #[serde(default)]
    pub memlet: String,
}

/// Kernels of the plan, and the kernels of the unfused program that together compute the same: the smallest groups whose times can be
/// compared. Either side may be empty: a relayout, or an operator for which the plan needs no kernel.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelComparison {
    pub kernels: Vec<String>,
    pub operators: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfused: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<Time>,
}

impl KernelComparison {
    pub fn speedup(&self) -> Option<f64> {
        quotient(self.unfused?.value().0, self.ours?.value().0)
    }

    /// Milliseconds of all kernels of one side; `None` where one has no time.
    pub fn total(
        rows: &[KernelComparison],
        names: fn(&KernelComparison) -> &[String],
        time: fn(&KernelComparison) -> Option<Time>,
    ) -> Option<f64> {
        let all = rows.iter().filter(|row| !names(row).is_empty());
        all.map(|row| time(row).map(|t| t.value().0)).sum::<Option<f64>>().map(|ms| ms + 0.0)
    }
}

/// An operator or a kernel (Table III).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OperatorRow {
    pub name: String,
    pub class: Class,
    pub pass: Direction,
    pub flop: Flop,
    pub input_elements: u64,
    pub output_elements: u64,
    pub bytes: Bytes,
    /// For a kernel that shares no operator with another one: the sum over all that it holds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfused: Option<Time>,
    /// For an operator that is part of a kernel, None: only the kernel has a time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<Time>,
    /// Percent of the measured peak of the device, 0 to 100.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub percent_of_peak: Option<f64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mue: Option<MueFactors>,
    /// The tensors that Q of the MUE is made of.
    #[serde(default)]
    pub moves: Vec<TensorVolume>,
    /// For an operator: the kernel that holds it. For a kernel: its name in the paper, if it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<String>,
    /// For a kernel: the operators that it holds.
    #[serde(default)]
    pub holds: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MueFactors {
    /// Q/D.
    pub io: f64,
    /// B/B̂.
    pub bandwidth: f64,
}

impl From<&Mue> for MueFactors {
    fn from(mue: &Mue) -> Self {
        MueFactors { io: mue.io, bandwidth: mue.bandwidth }
    }
}

impl MueFactors {
    pub fn percent(&self) -> f64 {
        self.io * self.bandwidth * 100.0
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bound {
    Memory,
    /// More bytes a second than memory gives: they came from caches.
    Caches,
    Compute,
}

impl OperatorRow {
    pub fn speedup(&self) -> Option<f64> {
        quotient(self.unfused?.value().0, self.ours?.value().0)
    }

    /// The limiting resource: the larger of % of peak and MUE shows which one is nearer to its limit.
    pub fn bound(&self) -> Option<Bound> {
        let (mue, peak) = (self.mue?.percent(), self.percent_of_peak?);
        Some(match mue > peak {
            true if mue > 100.0 => Bound::Caches,
            true => Bound::Memory,
            false => Bound::Compute,
        })
    }

    pub fn flop_per_byte(&self) -> Option<f64> {
        quotient(self.flop.0 as f64, self.bytes.0 as f64)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClassShare {
    pub class: Class,
    pub flop: Flop,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unfused: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ours: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AlgebraicVariant {
    /// The contractions that may be fused, e.g. `Q, K, V projections`.
    pub site: String,
    /// `separate`, `Q with K`, `all three`.
    pub variant: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Time>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward: Option<Time>,
    pub chosen: bool,
}

/// A fused kernel, compared with the kernels that replace it where it is split entirely or in part.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompositionRow {
    /// The kernel, or the weights that could be stacked.
    pub subject: String,
    /// `epilogue`, `rows`, `prologue`, `chain`.
    pub holds: Vec<String>,
    /// The change, e.g. `norm1 without rows`.
    pub change: String,
    /// Kernels that run only without the change, and those that run only after it.
    pub with: Vec<CompositionPart>,
    pub instead: Vec<CompositionPart>,
    /// Whether the change was made in the partially fused program.
    pub changed: bool,
    /// A fusion that the change prevents, and why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A contraction under every measured algorithm: the cost of taking the library's own choice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ProductRow {
    pub kernel: String,
    /// Measured configurations, and distinct descriptions among them, each with algorithms of its own.
    pub measured: u64,
    pub descriptions: u64,
    /// The fastest time of all.
    pub best: Time,
    /// The library's own choice for that description; `None` if it has no time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first: Option<Time>,
    /// The largest ratio of the library's own choice to the best, over all descriptions with both times.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub worst: Option<f64>,
    /// The fastest time on plain units alone; `None` where there are no other units, or none was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<Time>,
}

impl ProductRow {
    /// The excess of the library's own choice over the best time, as a part of the best.
    pub fn loss(&self) -> Option<f64> {
        Some(quotient(self.first?.value().0, self.best.value().0)? - 1.0)
    }

    /// How many times longer plain units take.
    pub fn gain(&self) -> Option<f64> {
        quotient(self.plain?.value().0, self.best.value().0)
    }
}

/// A kernel that one of two programs runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompositionPart {
    pub kernel: String,
    /// The best measured time; `None` if the budget did not suffice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<Time>,
}

impl CompositionRow {
    /// Milliseconds without the change; `None` where a kernel has no time.
    pub fn with_ms(&self) -> Option<f64> {
        self.with.iter().map(|p| p.time.map(|t| t.value().0)).sum()
    }

    /// Milliseconds after the change.
    pub fn instead_ms(&self) -> Option<f64> {
        self.instead.iter().map(|p| p.time.map(|t| t.value().0)).sum()
    }
}

/// Every measured configuration of one kernel (Figs. 4 and 5).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct KernelSweep {
    pub kernel: String,
    pub class: Class,
    pub configurations: Vec<SweptConfiguration>,
    /// Index into `configurations` of the one in the plan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chosen: Option<usize>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SweptConfiguration {
    /// Layouts and knobs.
    pub label: String,
    pub median: Measured<Milliseconds>,
    /// Whether it follows the paper's rules: vectorised dim innermost, reduced and vectorised dim equal.
    #[serde(default)]
    pub intuitive: bool,
}

impl KernelSweep {
    /// The fastest; the first of equals.
    pub fn best(&self) -> Option<&SweptConfiguration> {
        self.configurations.iter().min_by(|a, b| a.median.0.0.total_cmp(&b.median.0.0))
    }

    pub fn worst(&self) -> Option<&SweptConfiguration> {
        self.configurations.iter().max_by(|a, b| a.median.0.0.total_cmp(&b.median.0.0))
    }

    pub fn chosen(&self) -> Option<&SweptConfiguration> {
        self.configurations.get(self.chosen?)
    }
}

/// The layout-configuration DAG (Fig. 6), or an excerpt of it around the chosen path.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DrawnGraph {
    /// The tensors or cuts between kernels, from source to sink.
    pub layers: Vec<String>,
    pub nodes: Vec<DrawnNode>,
    pub edges: Vec<DrawnEdge>,
    /// Nodes and edges of the whole graph that are not listed here.
    #[serde(default)]
    pub omitted_nodes: u64,
    #[serde(default)]
    pub omitted_edges: u64,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrawnNode {
    /// Index into `layers`.
    pub layer: usize,
    /// The layouts.
    pub label: String,
    pub chosen: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DrawnEdge {
    /// Indices into `nodes`.
    pub from: usize,
    pub to: usize,
    /// The kernel, or `relayout`.
    pub label: String,
    pub time: Measured<Milliseconds>,
    pub chosen: bool,
    /// On the shortest path, which the paper's method takes.
    #[serde(default)]
    pub shortest: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Roofline {
    /// In Gflop/s.
    pub compute: Vec<Ceiling>,
    /// In GB/s.
    pub bandwidth: Vec<Ceiling>,
    pub points: Vec<RooflinePoint>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ceiling {
    pub name: String,
    pub value: Quantity<f64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RooflinePoint {
    pub name: String,
    pub class: Class,
    pub flop_per_byte: f64,
    pub gigaflop_per_second: Quantity<f64>,
}

/// Times of a whole training step, raw.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ContenderTimes {
    pub name: String,
    /// The plan that the report is about.
    pub ours: bool,
    /// Whether the plan is compared with it and could not have been taken instead.
    #[serde(default)]
    pub baseline: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forward: Option<Timing>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backward: Option<Timing>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<Timing>,
    /// The most bytes of tensors at once, inputs and results among them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak: Option<Bytes>,
}

/// Bytes moved under one definition of the unfused baseline.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MovementRow {
    pub definition: String,
    pub unfused: Bytes,
    pub fused: Bytes,
    /// With kernels fused around contractions, where contractions are counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub composed: Option<Bytes>,
}

impl MovementRow {
    /// In percent of the unfused bytes; negative where more is moved.
    pub fn reduction(&self, to: Bytes) -> Option<f64> {
        Some(100.0 - 100.0 * quotient(to.0 as f64, self.unfused.0 as f64)?)
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SelectionRow {
    pub method: String,
    pub total: Time,
    /// Sum of the per-operator minima over all measured configurations and variants.
    pub lower_bound: Time,
    /// Whether the method proves that no plan from measured configurations is faster. Unmeasured ones are not covered.
    pub proven: bool,
}

impl SelectionRow {
    /// In percent above the bound.
    pub fn gap(&self) -> Option<f64> {
        Some(100.0 * quotient(self.total.value().0, self.lower_bound.value().0)? - 100.0)
    }
}

/// The outcomes of the configurations; the last six add up to the first, unless the numbers saturate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    pub enumerated: u64,
    /// Equal to another configuration in code and strides.
    pub identical: u64,
    pub bounded_out: u64,
    pub raced: u64,
    pub full: u64,
    /// Configurations with wrong results, and those that did not compile or run.
    #[serde(default)]
    pub unfit: u64,
    pub not_reached: u64,
}

impl Coverage {
    /// Settled without a full set of samples.
    pub fn ruled_out(&self) -> u64 {
        // The counts may saturate, so that a difference would be wrong.
        [self.identical, self.bounded_out, self.raced, self.unfit].into_iter().fold(0, u64::saturating_add)
    }

    /// The measurements that a choice is relative to; every statement of a proof carries them.
    pub fn relative(&self) -> String {
        let count = |n: u64| Cell::count(n).text;
        let others = if self.ruled_out() > 0 { format!(", {} were ruled out", count(self.ruled_out())) } else { String::new() };
        let left = if self.not_reached == 0 { ", none is left" } else { "" };
        format!("relative to what was measured: {} of {} configurations were timed{others}{left}", count(self.full), count(self.enumerated))
    }
}

/// How often the choice stays the best when all times are resampled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Certainty {
    pub redraws: u64,
    /// Share of resamplings, 0 to 1, in which no choice costs less.
    pub best: f64,
    /// The largest excess of the choice over the best in any resampling, as a share of the best.
    pub worst_regret: f64,
}

impl std::fmt::Display for Certainty {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (best, regret) = (100.0 * self.best, 100.0 * self.worst_regret);
        write!(f, "with all times drawn again from their samples the choice is the best in {best:.0}% of {} draws", self.redraws)?;
        if self.best < 1.0 { write!(f, ", and at most {regret:.1}% above it") } else { Ok(()) }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReportedPolicy {
    Saved,
    Recomputed,
}

/// Whether the backward pass reads or recomputes one tensor of the forward pass.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PolicyRow {
    pub tensor: String,
    pub policy: ReportedPolicy,
    pub bytes: Bytes,
    #[serde(default)]
    pub reason: String,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FusionRefusal {
    pub first: String,
    pub second: String,
    pub reason: String,
    /// The text that refusals for this kind of reason share; empty if there is only the reason.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub kind: String,
}

/// None where the quotient has no meaning.
pub(crate) fn quotient(above: f64, below: f64) -> Option<f64> {
    (below > 0.0 && above.is_finite() && below.is_finite()).then(|| above / below)
}
