//! All that is known about a network on a device: baselines, the paper's method, the plan, its simulation and its bound.

use super::certificate::ScheduleCertificate;
use super::derive::{self, NoLayer};
use super::device::Accelerator;
use super::greedy::{REUSES, greedy};
use super::layers::LayerGraph;
use super::moves::{Moves, NoRoom};
use super::partition::{StepPartition, Unplanned, partition};
use super::schedules::{GroupSchedule, Price};
use super::simulate::{MovedElements, SimulationFault, simulate};
use super::steps::FusedSteps;
use super::verify::{ScheduleVerifyError, verify};
use indexmap::IndexMap;
use sdfg::Sdfg;
use serde::Serialize;

/// Why a program has no plan for a device.
#[derive(Debug, thiserror::Error)]
pub enum AcceleratorError {
    #[error(transparent)]
    Layer(#[from] NoLayer),
    #[error(transparent)]
    Unplanned(#[from] Unplanned),
    #[error("the plan does not fit into the on-chip memory: {0}")]
    NoRoom(#[from] NoRoom),
    #[error("the plan is wrong: {0}")]
    Fault(#[from] SimulationFault),
    #[error("the proof of the plan does not hold: {0}")]
    Unproven(#[from] ScheduleVerifyError),
    #[error("the program has no layers; a plan needs at least one")]
    Empty,
}

/// A plan with all that it is compared with. Bytes and seconds are of one image.
#[derive(Clone, Debug, Serialize)]
pub struct PlanComparison {
    pub device: Accelerator,
    /// Every layer alone, each of its tensors once, as the paper counts.
    pub baseline_bytes: u64,
    /// The same with norms, scales and activations in the layer before them.
    pub pointwise_fused_bytes: u64,
    /// The paper's method without reuse, with reuse by lifetimes, and with outputs over their inputs.
    pub greedy: IndexMap<String, u64>,
    pub greedy_speedup: IndexMap<String, f64>,
    pub planned_bytes: u64,
    /// Parameters, inputs and results once.
    pub bound_bytes: u64,
    /// Seconds of every layer alone, first moving and then computing, over those of the plan, which does both at once.
    pub speedup: f64,
    /// The same with both doing both at once.
    pub speedup_overlapped: f64,
    /// Operations of the plan over those of the network.
    pub recomputed: f64,
    pub groups: Vec<GroupSummary>,
    /// Bytes that the simulator counted; the same as those planned.
    pub simulated_bytes: u64,
    /// Intervals of steps whose price was worked out in the order that was chosen.
    pub priced_groups: usize,
    #[serde(skip)]
    pub certificate: ScheduleCertificate,
    #[serde(skip)]
    pub graph: LayerGraph,
    #[serde(skip)]
    pub partition: StepPartition,
    #[serde(skip)]
    pub moves: Moves,
    #[serde(skip)]
    pub traffic: MovedElements,
}

/// One group of the plan.
#[derive(Clone, Debug, Serialize)]
pub struct GroupSummary {
    /// The layers that it runs, in order.
    pub layers: Vec<String>,
    /// In words: the form of its schedule and what that fixes.
    pub schedule: String,
    pub bytes: u64,
    /// All that it reads and writes, once.
    pub floor_bytes: u64,
    pub flop: u64,
    /// The most bytes that are on chip at once.
    pub peak_bytes: u64,
    pub seconds: f64,
}

impl PlanComparison {
    /// Plans a program's forward pass for a device.
    ///
    /// # Errors
    /// An operation that is no layer, a layer that fits under no schedule, and faults of the planner that the simulator found.
    pub fn of_program(program: &Sdfg, device: &Accelerator) -> Result<PlanComparison, AcceleratorError> {
        PlanComparison::of(derive::layers(program)?, device)
    }

    /// Plans a network for a device.
    ///
    /// # Errors
    /// As [`PlanComparison::of_program`].
    pub fn of(graph: LayerGraph, device: &Accelerator) -> Result<PlanComparison, AcceleratorError> {
        let element = graph.element_bytes;
        let capacity = device.on_chip_bytes / element;
        let partition = partition(&graph, capacity)?;
        if partition.groups.is_empty() {
            return Err(AcceleratorError::Empty);
        }
        let moves = Moves::of(&partition.steps, &partition.groups, capacity)?;
        let traffic = simulate(&partition.steps, &moves, capacity)?;
        let certificate = ScheduleCertificate::of(&partition, capacity);
        verify(&partition.steps, &certificate, &traffic.groups)?;
        let alone = |at: usize| seconds(device, graph.alone(at) * element, graph.layers[at].flop);
        let layers = || (0..graph.layers.len()).map(alone);
        let (apart, together): (f64, f64) = (layers().map(|(l, c)| l + c).sum(), layers().map(|(l, c)| l.max(c)).sum());
        let longest = |price: &Price| {
            let (load, compute) = seconds(device, price.moved * element, price.flop);
            load.max(compute)
        };
        let planned: f64 = partition.groups.iter().map(|g| longest(&g.price)).sum();
        let (mut bytes, mut speedups) = (IndexMap::new(), IndexMap::new());
        for reuse in REUSES {
            if let Some(groups) = greedy(&graph, reuse, device.on_chip_bytes) {
                bytes.insert(reuse.name().to_string(), groups.iter().map(|g| g.price.moved).sum::<u64>() * element);
                speedups.insert(reuse.name().to_string(), apart / groups.iter().map(|g| longest(&g.price)).sum::<f64>());
            }
        }
        let groups = partition.groups.iter().zip(&moves.peaks).map(|(group, peak)| GroupSummary {
            layers: layer_names(&graph, &partition.steps, group.steps.begin..group.steps.end),
            schedule: described(&group.schedule),
            bytes: group.price.moved * element,
            floor_bytes: partition.steps.floor(group.steps) * element,
            flop: group.price.flop,
            peak_bytes: peak * element,
            seconds: longest(&group.price),
        });
        Ok(PlanComparison {
            baseline_bytes: graph.baseline_bytes(),
            pointwise_fused_bytes: graph.pointwise_fused_bytes(),
            greedy: bytes,
            greedy_speedup: speedups,
            planned_bytes: partition.groups.iter().map(|g| g.price.moved).sum::<u64>() * element,
            bound_bytes: graph.bound_bytes(),
            speedup: apart / planned,
            speedup_overlapped: together / planned,
            recomputed: partition.groups.iter().map(|g| g.price.flop).sum::<u64>() as f64 / graph.flop().max(1) as f64,
            groups: groups.collect(),
            simulated_bytes: traffic.moved() * element,
            priced_groups: partition.priced.len(),
            device: device.clone(),
            certificate,
            graph,
            partition,
            moves,
            traffic,
        })
    }

    /// The share of the bytes of `of` that the plan spares.
    pub fn less_than(&self, of: u64) -> f64 {
        1.0 - self.planned_bytes as f64 / of.max(1) as f64
    }
}

/// Seconds to move bytes, and to compute.
fn seconds(device: &Accelerator, bytes: u64, flop: u64) -> (f64, f64) {
    (bytes as f64 / device.bytes_per_second, flop as f64 / device.flop_per_second)
}

/// The layers of some steps, in the order of the plan.
fn layer_names(graph: &LayerGraph, steps: &FusedSteps, of: std::ops::Range<usize>) -> Vec<String> {
    // The plan may have brought the layers into another order than the program's.
    let order = [graph.clone(), graph.depth_first(false), graph.depth_first(true)].into_iter().find(|g| FusedSteps::of(g) == *steps);
    let name = |layer: &usize| order.as_ref().unwrap_or(graph).layers[*layer].name.clone();
    steps.steps[of].iter().flat_map(|s| s.layers.iter().map(name)).collect()
}

/// A schedule in words.
pub fn described(schedule: &GroupSchedule) -> String {
    let many = |count: usize, what: &str| if count == 1 { format!("1 {what}") } else { format!("{count} {what}s") };
    match schedule {
        GroupSchedule::Strips(s) if s.strips * s.tiles == 1 => "whole maps, weights streamed".into(),
        GroupSchedule::Strips(s) => {
            let form = if s.kept { "rows kept" } else { "overlapped" };
            let tiles = if s.tiles == 1 { String::new() } else { format!(" in {}", many(s.tiles, "tile")) };
            format!("{form}: {}{tiles}", many(s.strips, "strip"))
        }
        GroupSchedule::Maps(_) => "whole maps, weights streamed".into(),
        GroupSchedule::Chunks(c) => format!("chunks: {} at a time, {}", many(c.channels, "output channel"), many(c.strips, "strip")),
    }
}
