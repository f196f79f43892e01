//! Rows for operators and kernels: computation, movement and time of each (Tables I and III, the roofline).

use super::Timed;
use super::kernel_matches::KernelMatch;
use super::{Finished, Plan, counted, measured};
use crate::analyze::{OccurrenceIndex, occurrences};
use crate::pipeline::PipelineError;
use bench::model::{Ceiling, ClassShare, KernelComparison, MueFactors, OperatorRow, Roofline, RooflinePoint};
use bench::mue::{Mue, TensorVolume};
use bench::unit::{Bytes, Flop, Measured, Milliseconds, Quantity};
use sdfg::movement::{Movement, movement};
use sdfg::{Class, Direction, Sdfg};
use std::collections::{BTreeMap, BTreeSet};

/// The fastest contraction that was measured, in Gflop/s: the machine's attained peak, not its data sheet's.
pub fn peak(run: &Finished) -> Result<Option<f64>, PipelineError> {
    let mut peak: Option<f64> = None;
    for swept in run.sweeps.variants.iter().chain(&run.sweeps.unfused) {
        for kernel in movement(&swept.program).map_err(counted)?.iter().filter(|k| k.class == Class::Contraction) {
            let Some(key) = swept.problem.kernel(&kernel.name).map(|k| &k.key) else { continue };
            let least = run.store.of(key).filter_map(|m| run.store.ms(m)).fold(f64::INFINITY, f64::min);
            let reached = gigaflop_per_second(kernel.flop, least);
            if reached > 0.0 {
                peak = Some(peak.map_or(reached, |p| p.max(reached)));
            }
        }
    }
    Ok(peak)
}

fn gigaflop_per_second(flop: u64, ms: f64) -> f64 {
    if ms > 0.0 { flop as f64 / ms / 1e6 } else { 0.0 }
}

/// A kernel or a relayout as it ran in a step.
pub struct TimedLaunch {
    pub kernel: Movement,
    /// Median in milliseconds; `None` if it has no time.
    pub ms: Option<f64>,
}

/// The launches of a program as it was timed, in their order, including relayouts.
pub fn launches(program: &Sdfg, kernels: &[Movement], timed: &Timed) -> Vec<TimedLaunch> {
    let by_name: BTreeMap<&str, &Movement> = kernels.iter().map(|k| (k.name.as_str(), k)).collect();
    let launch = |(name, pass, samples): &(String, Direction, Vec<f64>)| {
        let kernel = by_name.get(name.as_str()).map_or_else(|| relayout(program, name, *pass), |kernel| (*kernel).clone());
        TimedLaunch { kernel, ms: layouts::record::median(samples) }
    };
    timed.launches.iter().map(launch).collect()
}

/// The sum of the times of some launches; `None` unless there are some and all have one.
fn together<'a>(launches: impl IntoIterator<Item = &'a TimedLaunch>) -> Option<f64> {
    let mut all = launches.into_iter().map(|launch| launch.ms).peekable();
    all.peek()?;
    all.sum()
}

fn picked<'a>(launches: &'a [TimedLaunch], places: &'a [usize]) -> impl Iterator<Item = &'a TimedLaunch> {
    places.iter().filter_map(|n| launches.get(*n))
}

/// The plan's launches in comparison with the baseline's launches for the same operators: all launches of both, each once.
pub fn comparison(plan: &Plan) -> Vec<KernelComparison> {
    let row = |m: &KernelMatch| {
        let names = |launches: &[TimedLaunch], places: &[usize]| picked(launches, places).map(|l| l.kernel.name.clone()).collect();
        let time = |launches: &[TimedLaunch], places: &[usize]| together(picked(launches, places)).map(measured);
        KernelComparison {
            kernels: names(&plan.ours, &m.ours),
            operators: names(&plan.before, &m.unfused),
            unfused: time(&plan.before, &m.unfused),
            ours: time(&plan.ours, &m.ours),
        }
    };
    plan.matches.iter().map(row).collect()
}

/// The unfused operators as they ran in the baseline, with the kernel of the plan that holds each.
pub fn operators(run: &Finished, plan: &Plan) -> Result<Vec<OperatorRow>, PipelineError> {
    // The launches of each operator, and the match of each launch.
    let mut launches: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (n, launch) in plan.before.iter().enumerate() {
        launch.kernel.operators.iter().for_each(|operator| launches.entry(operator).or_default().push(n));
    }
    let each = plan.matches.iter().enumerate().flat_map(|(at, found)| found.unfused.iter().map(move |n| (*n, at)));
    let matched: BTreeMap<usize, usize> = each.collect();
    let mut rows = Vec::new();
    for row in sdfg::movement::operators(&run.programs.operators).map_err(counted)? {
        let m = &row.movement;
        let own: BTreeSet<usize> = m.operators.iter().filter_map(|operator| launches.get(operator.as_str())).flatten().copied().collect();
        let own: Vec<usize> = own.into_iter().collect();
        let unfused = together(picked(&plan.before, &own));
        let held: BTreeSet<usize> = own.iter().filter_map(|n| matched.get(n)).copied().collect();
        let held: Vec<&KernelMatch> = held.into_iter().map(|at| &plan.matches[at]).collect();
        let held_by: Vec<&str> = held.iter().flat_map(|found| picked(&plan.ours, &found.ours)).map(|l| l.kernel.name.as_str()).collect();
        // Where the kernels hold no other operator, their time is that of this operator.
        let alone = held.iter().all(|found| found.unfused.iter().all(|n| own.contains(n)));
        let ours = if alone { together(held.iter().flat_map(|found| picked(&plan.ours, &found.ours))) } else { None };
        let mut shown = shown(plan, m, unfused);
        // The class already names a contraction.
        if m.class != Class::Contraction && row.label != m.name {
            shown.name = format!("{} ({})", row.label, m.name);
        }
        shown.unfused = unfused.map(measured);
        shown.ours = ours.map(measured);
        shown.kernel = (!held_by.is_empty()).then(|| held_by.join(", "));
        rows.push(shown);
    }
    Ok(rows)
}

/// The kernels of the plan as they ran in it, including relayouts. A kernel that shares no operator with another one also has the time of
/// the unfused kernels for the same operators.
pub fn kernels(run: &Finished, plan: &Plan) -> Vec<OperatorRow> {
    let found = run.programs.variants.iter().find(|v| v.key == plan.key).map(|v| occurrences(&v.operators)).unwrap_or_default();
    let places = OccurrenceIndex::of(&found);
    let alone = plan.matches.iter().filter_map(|found| <[usize; 1]>::try_from(found.ours.as_slice()).ok().map(|[n]| (n, found)));
    let alone: BTreeMap<usize, &KernelMatch> = alone.collect();
    let row = |(n, launch): (usize, &TimedLaunch)| {
        let mut row = shown(plan, &launch.kernel, launch.ms);
        row.ours = launch.ms.map(measured);
        let same = alone.get(&n);
        row.unfused = same.and_then(|found| together(picked(&plan.before, &found.unfused))).map(measured);
        let paper: Vec<String> = places.covered(&launch.kernel.operators).iter().map(ToString::to_string).collect();
        row.kernel = (!paper.is_empty()).then(|| paper.join(", "));
        row.holds = launch.kernel.operators.clone();
        row
    };
    plan.ours.iter().enumerate().map(row).collect()
}

/// A row with everything that follows from the movement and the time.
fn shown(plan: &Plan, m: &Movement, ms: Option<f64>) -> OperatorRow {
    let volume = |t: &sdfg::movement::Traffic| TensorVolume { tensor: t.data.clone(), bytes: Bytes(t.bytes) };
    let moves: Vec<TensorVolume> = m.reads.iter().chain(&m.writes).map(volume).collect();
    // D, the moved bytes, counts each container that the generated loops access once: hardware counters are not read here.
    let mue = ms.zip(plan.copy).and_then(|(ms, copy)| {
        Mue::new(&m.name, moves.clone(), Bytes(m.bytes()), Measured(Milliseconds(ms)), copy).ok().map(|m| MueFactors::from(&m))
    });
    let reached = ms.map(|ms| gigaflop_per_second(m.flop, ms));
    OperatorRow {
        name: m.name.clone(),
        class: m.class,
        pass: m.pass,
        flop: Flop(m.flop),
        input_elements: m.input_elements(),
        output_elements: m.output_elements(),
        bytes: Bytes(m.bytes()),
        unfused: None,
        ours: None,
        percent_of_peak: reached.zip(plan.peak).map(|(reached, peak)| 100.0 * reached / peak),
        mue,
        moves,
        kernel: None,
        holds: vec![],
    }
}

/// The container that a launch relayouts, if the launch is a relayout: names of kernels have no blanks.
pub fn relayouted(launch: &str) -> Option<&str> {
    launch.strip_prefix("relayout ")?.split(' ').next()
}

/// A relayout computes nothing: it reads a container and writes it.
fn relayout(program: &Sdfg, name: &str, pass: Direction) -> Movement {
    let data = relayouted(name).unwrap_or_default();
    let traffic = sdfg::movement::Traffic {
        data: data.to_string(),
        elements: program.elements(data).unwrap_or(0),
        bytes: program.bytes(data).unwrap_or(0),
    };
    Movement {
        name: name.to_string(),
        operators: vec![],
        pass,
        class: Class::Elementwise,
        flop: 0,
        reads: vec![traffic.clone()],
        writes: vec![traffic],
        masks: vec![],
    }
}

/// Flop and time of each class, before and after. A kernel that holds operators of several classes counts in its own.
pub fn classes(plan: &Plan) -> Vec<ClassShare> {
    let of = |class: Class| {
        let time = |launches: &[TimedLaunch]| {
            let all: Option<f64> = launches.iter().filter(|l| l.kernel.class == class).map(|l| l.ms).sum();
            // The empty sum is -0.
            all.map(|ms| measured(ms + 0.0))
        };
        let flop = plan.unfused.iter().filter(|k| k.class == class).map(|k| Flop(k.flop)).sum();
        ClassShare { class, flop, unfused: time(&plan.before).filter(|_| plan.baseline.is_some()), ours: time(&plan.ours) }
    };
    [Class::Contraction, Class::Normalization, Class::Elementwise].map(of).into()
}

/// The plan's kernels under the ceilings that were measured in the same run.
pub fn roofline(plan: &Plan, kernels: &[OperatorRow]) -> Roofline {
    let ceiling = |name: String, value| Ceiling { name, value: Quantity::Measured(value) };
    let stores = |non_temporal| if non_temporal { "copy (NT)" } else { "copy" };
    let point = |row: &OperatorRow| {
        let reached = gigaflop_per_second(row.flop.0, row.ours?.value().0);
        let flop_per_byte = row.flop_per_byte().filter(|f| *f > 0.0)?;
        let gigaflop_per_second = Quantity::Measured(reached);
        Some(RooflinePoint { name: row.name.clone(), class: row.class, flop_per_byte, gigaflop_per_second })
    };
    Roofline {
        compute: plan.peak.map(|p| ceiling("GEMM".into(), p)).into_iter().collect(),
        bandwidth: plan.copy.map(|c| ceiling(stores(c.non_temporal).into(), c.gigabytes_per_second.0)).into_iter().collect(),
        points: kernels.iter().filter_map(point).collect(),
    }
}
