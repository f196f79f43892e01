//! Plans the fusion of large graphs and proves the plans: unoptimised HLO text in, a table out.
//!
//! `cargo run --release -p bench --example stitch_scale -- FILE.hlo…`. Scores are those of the model for a device like a V100: a launch
//! takes 8 µs, memory moves 650 GB/s and half of that at 1 MiB, a block holds 48 KB. One thread.

mod hlo;

use layouts::packing::greedy::greedy_by;
use layouts::packing::problem::{FusionPattern, PackingProblem};
use layouts::packing::score::{Curve, ScoreModel};
use layouts::packing::verify::verify;
use layouts::packing::{Dag, PackingLimits, plan};
use std::collections::HashSet;
use std::time::Instant;
use transforms::stitch::{GrowthLimits, OperatorGraph, Savings, Sorting, explore, ladder, structure};

fn main() -> std::process::ExitCode {
    println!(
        "{:<22}{:>7}{:>8}{:>9}{:>8}{:>8}{:>8}{:>7}{:>8}{:>12}{:>12}{:>8}{:>8}{:>8}{:>7}",
        "graph",
        "ops",
        "ladder",
        "explored",
        "kept",
        "parts",
        "unique",
        "cuts",
        "kernels",
        "greedy us",
        "plan us",
        "gain",
        "proven",
        "chosen",
        "s"
    );
    let mut good = true;
    for file in std::env::args().skip(1) {
        match std::fs::read_to_string(&file).map_err(|e| e.to_string()).and_then(|text| hlo::read(&text).map_err(|e| e.to_string())) {
            Ok(graph) => good &= show(&file, &graph),
            Err(why) => {
                eprintln!("{file}: {why}");
                good = false;
            }
        }
    }
    std::process::ExitCode::from(u8::from(!good))
}

/// Operators of a graph that is sorted in three ways, and of one that is explored besides. Larger ones are sorted once and explored.
const SORTED: usize = 8_192;
const EXPLORED: usize = 2_048;

/// Whether the plan is proven, confirmed, and not below greedy.
fn show(file: &str, graph: &OperatorGraph) -> bool {
    let begin = Instant::now();
    let model = ScoreModel { curve: Curve::saturating(650e9, 1 << 20), launch_ps: 8_000_000, on_chip: 48 << 10 };
    // Patterns of several sortings overlap everywhere: the whole graph is one part then.
    let small = graph.len() <= SORTED;
    let others: Vec<_> = [Sorting::Latest, Sorting::Program].into_iter().filter(|_| small).map(|sorting| ladder(graph, sorting)).collect();
    let ladder = ladder(graph, Sorting::Earliest);
    let mut savings = Savings::new(graph);
    let mut score = |members: &[u32]| {
        let saving = savings.of(members);
        model.score(saving.bytes, saving.launches, saving.on_chip)
    };
    let mut patterns: Vec<FusionPattern> = Vec::new();
    for (_, members) in others.iter().chain([&ladder]).flat_map(|ladder| &ladder.patterns) {
        patterns.push(FusionPattern { score: score(members), members: members.clone() });
    }
    let rungs = patterns.len();
    let explored: &[Vec<u32>] = if !small || graph.len() <= EXPLORED { &ladder.segments } else { &[] };
    for segment in explored {
        let is_free = |members: &[u32]| members.iter().all(|m| !graph.operator(*m).class.is_product());
        for members in explore(graph, segment, GrowthLimits::default(), &mut |members| is_free(members)) {
            patterns.push(FusionPattern { score: score(&members), members });
        }
    }
    let explored = patterns.len() - rungs;
    let t_candidates = begin.elapsed().as_secs_f64();
    let dag = match Dag::new(graph.len(), graph.edges(), ladder.order) {
        Ok(dag) => dag,
        Err(why) => {
            eprintln!("{file}: {why}");
            return false;
        }
    };
    let problem = PackingProblem::new(dag, patterns);
    let found = plan(&problem, PackingLimits::default());
    let t_planned = begin.elapsed().as_secs_f64();
    let confirmed = verify(&problem, &found.certificate);
    let seconds = begin.elapsed().as_secs_f64();
    let kernels = graph.len() - found.chosen.iter().map(|p| problem.patterns[*p as usize].members.len() - 1).sum::<usize>();
    let unique: HashSet<String> = found.chosen.iter().map(|p| structure(graph, &problem.patterns[*p as usize].members)).collect();
    // A greedy choice by the score for each operator, too: the better of the two counts.
    let by_operator = greedy_by(&problem, |p| {
        let pattern = &problem.patterns[p as usize];
        std::cmp::Reverse(pattern.score / pattern.members.len() as i64)
    });
    let greedy = found.greedy_total.max(problem.total(&by_operator));
    let name = std::path::Path::new(file).file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
    println!(
        "{:<22}{:>7}{:>8}{:>9}{:>8}{:>8}{:>8}{:>7}{:>8}{:>12.1}{:>12.1}{:>7.1}%{:>8}{:>8}{:>7.2}",
        name,
        graph.len(),
        rungs,
        explored,
        problem.patterns.len(),
        found.statistics.parts,
        found.statistics.unique_parts,
        found.statistics.cuts,
        kernels,
        greedy as f64 / 1e6,
        found.total as f64 / 1e6,
        (found.total as f64 / greedy.max(1) as f64 - 1.0) * 100.0,
        if found.is_proven() { "yes" } else { "no" },
        unique.len(),
        seconds
    );
    if std::env::var_os("STITCH_DETAILS").is_some() {
        eprintln!(
            "  candidates {t_candidates:.2} s, planned {t_planned:.2} s, verified {seconds:.2} s; by score alone {:.1}, by operator {:.1}; {:?} {:?}",
            found.greedy_total as f64 / 1e6,
            problem.total(&by_operator) as f64 / 1e6,
            found.statistics,
            problem.dropped
        );
    }
    if let Err(why) = &confirmed {
        eprintln!("{file}: {why}");
    }
    found.is_proven() && confirmed.is_ok() && found.total >= found.greedy_total
}
