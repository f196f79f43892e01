//! Operators and kernels: what each computes, moves and takes (Tables I and III, the roofline).

use super::{Finished, Plan, counted, launches, measured};
use crate::analyze::{covers, occurrences};
use crate::pipeline::PipelineError;
use bench::model::{Ceiling, ClassShare, MueFactors, OperatorRow, Roofline, RooflinePoint};
use bench::mue::{Mue, TensorVolume};
use bench::unit::{Bytes, Flop, Measured, Milliseconds, Quantity};
use sdfg::movement::{Movement, movement};
use sdfg::{Class, Pass};
use std::collections::{BTreeMap, BTreeSet};

/// The fastest contraction that was measured, in Gflop/s: what this machine reaches, not what its data sheet says.
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

/// Median of each launch of the baseline, if there is one.
fn before<'a>(plan: &Plan<'a>) -> BTreeMap<&'a str, f64> {
    plan.baseline.map(launches).unwrap_or_default()
}

/// The unfused operators as they ran in the baseline, with the kernel of the plan that holds each.
pub fn operators(run: &Finished, plan: &Plan) -> Result<Vec<OperatorRow>, PipelineError> {
    let (before, now) = (before(plan), launches(plan.timed));
    let mut rows = Vec::new();
    for row in sdfg::movement::operators(&run.programs.operators).map_err(counted)? {
        let m = &row.movement;
        let unfused = time_of(&plan.unfused, &m.operators, &before);
        let held_by: Vec<&Movement> = plan.kernels.iter().filter(|k| k.operators.iter().any(|o| m.operators.contains(o))).collect();
        let alone = match held_by.as_slice() {
            [kernel] if kernel.operators.iter().all(|o| m.operators.contains(o)) => now.get(kernel.name.as_str()).copied(),
            _ => None,
        };
        let mut shown = shown(plan, m, unfused);
        // The class says already that a contraction is one.
        if m.class != Class::Contraction && row.label != m.name {
            shown.name = format!("{} ({})", row.label, m.name);
        }
        shown.unfused = unfused.map(measured);
        shown.ours = alone.map(measured);
        shown.kernel = (!held_by.is_empty()).then(|| held_by.iter().map(|k| k.name.as_str()).collect::<Vec<_>>().join(", "));
        rows.push(shown);
    }
    Ok(rows)
}

/// The kernels of the plan as they ran in it, relayouts among them.
pub fn kernels(run: &Finished, plan: &Plan) -> Vec<OperatorRow> {
    let before = before(plan);
    let by_name: BTreeMap<&str, &Movement> = plan.kernels.iter().map(|k| (k.name.as_str(), k)).collect();
    let places = run.programs.variants.iter().find(|v| v.name == plan.swept.name).map(|v| occurrences(&v.operators)).unwrap_or_default();
    let mut rows = Vec::new();
    for (name, pass, samples) in &plan.timed.launches {
        let ours = layouts::record::median(samples);
        let Some(kernel) = by_name.get(name.as_str()) else {
            rows.push(relayout(plan, name, *pass, ours));
            continue;
        };
        let mut row = shown(plan, kernel, ours);
        row.ours = ours.map(measured);
        row.unfused = time_of(&plan.unfused, &kernel.operators, &before).map(measured);
        let paper: Vec<String> = covers(&kernel.operators, &places).iter().map(ToString::to_string).collect();
        row.kernel = (!paper.is_empty()).then(|| paper.join(", "));
        row.holds = kernel.operators.clone();
        rows.push(row);
    }
    rows
}

/// Time of the unfused kernels that are made of these operations; `None` unless every one of them ran there. A part of an
/// operator (`a.softmax.max`) ran in it, and what a composed kernel computes again (`a.again`) the unfused program computes
/// once, elsewhere.
fn time_of(unfused: &[Movement], operations: &[String], times: &BTreeMap<&str, f64>) -> Option<f64> {
    let ran = |operation: &str| unfused.iter().find(|k| k.operators.iter().any(|o| o == operation));
    let whole = |operation: &str| ran(operation).or_else(|| ran(operation.rsplit_once('.')?.0));
    let mut kernels = BTreeSet::new();
    for operation in operations.iter().filter(|o| !o.ends_with(".again")) {
        kernels.insert(whole(operation)?.name.as_str());
    }
    if kernels.is_empty() { None } else { kernels.into_iter().map(|k| times.get(k).copied()).sum() }
}

/// A row with everything that follows from what is moved and from the time that it took.
fn shown(plan: &Plan, m: &Movement, ms: Option<f64>) -> OperatorRow {
    let volume = |t: &sdfg::movement::Traffic| TensorVolume { tensor: t.data.clone(), bytes: Bytes(t.bytes) };
    let moves: Vec<TensorVolume> = m.reads.iter().chain(&m.writes).map(volume).collect();
    // D is what the generated loops ask memory for, each container once: traffic is not counted by hardware here.
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

/// The container that a launch changes the layout of, if that is what it does: kernels have no blanks in their names.
pub fn relayouted(launch: &str) -> Option<&str> {
    launch.strip_prefix("relayout ")?.split(' ').next()
}

/// A relayout computes nothing: it reads a container and writes it.
fn relayout(plan: &Plan, name: &str, pass: Pass, ms: Option<f64>) -> OperatorRow {
    let data = relayouted(name).unwrap_or_default();
    let traffic = |program: &sdfg::Sdfg| sdfg::movement::Traffic {
        data: data.to_string(),
        elements: program.elements(data).unwrap_or(0),
        bytes: program.bytes(data).unwrap_or(0),
    };
    let traffic = traffic(&plan.candidate.program);
    let moved = Movement {
        name: name.to_string(),
        operators: vec![],
        pass,
        class: Class::Elementwise,
        flop: 0,
        reads: vec![traffic.clone()],
        writes: vec![traffic],
        masks: vec![],
    };
    let mut row = shown(plan, &moved, ms);
    row.ours = ms.map(measured);
    row
}

/// Flop and time of each class, before and after.
pub fn classes(plan: &Plan, kernels: &[OperatorRow]) -> Vec<ClassShare> {
    let before = before(plan);
    let of = |class: Class| {
        let unfused = plan.unfused.iter().filter(|k| k.class == class).map(|k| before.get(k.name.as_str()).copied()).sum::<Option<f64>>();
        let ours = kernels.iter().filter(|k| k.class == class).map(|k| k.ours.map(|t| t.value().0)).sum::<Option<f64>>();
        let flop = plan.unfused.iter().filter(|k| k.class == class).map(|k| Flop(k.flop)).sum();
        // The sum of nothing is -0.
        let time = |ms: Option<f64>| ms.map(|ms| measured(ms + 0.0));
        ClassShare { class, flop, unfused: time(unfused), ours: time(ours) }
    };
    [Class::Contraction, Class::Normalization, Class::Elementwise].map(of).into()
}

/// The plan's kernels under what was reached in the same run.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_an_operator_ran_where_the_operator_did() {
        let kernel = |name: &str, operators: &[&str]| Movement {
            name: name.into(),
            operators: operators.iter().map(|o| o.to_string()).collect(),
            pass: Pass::Forward,
            class: Class::Contraction,
            flop: 0,
            reads: vec![],
            writes: vec![],
            masks: vec![],
        };
        let unfused = [kernel("beta", &["beta"]), kernel("a", &["a.softmax"]), kernel("c", &["c"])];
        let times = BTreeMap::from([("beta", 1.0), ("a", 2.0), ("c", 4.0)]);
        let time = |operations: &[&str]| time_of(&unfused, &operations.iter().map(|o| o.to_string()).collect::<Vec<_>>(), &times);
        assert_eq!(time(&["beta", "a.softmax.max", "a.softmax.sum", "a.softmax"]), Some(3.0));
        assert_eq!(time(&["beta.again", "a.softmax.again", "c"]), Some(4.0), "recomputation is ours alone");
        assert_eq!(time(&["beta", "unknown"]), None);
        assert_eq!(time(&["beta.again"]), None);
    }
}
