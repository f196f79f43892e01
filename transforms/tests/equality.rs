//! Every transform leaves what a program computes alone: the interpreter before and after, on random programs and
//! inputs, forward and backward.

use ndarray::{ArrayD, IxDyn};
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Role, Sdfg};
use transforms::differentiate::differentiate;
use transforms::{
    Cluster, Composition, DriverOptions, Expand, Fusion, FusionKind, GroupedGemm, PipelineOutcome, RecomputeFrom, RowStatistics,
    moved_bytes, run_pipeline,
};

fn inputs(seed: u64, program: &Sdfg) -> Tensors {
    let given = program.containers.values().filter(|c| matches!(c.role, Role::Input | Role::Parameter));
    given
        .map(|c| {
            let shape = program.shape_of(&c.name).expect("bound sizes");
            let values = sdfg::random::tensor(seed, &c.name, shape.iter().product());
            (c.name.clone(), ArrayD::from_shape_vec(IxDyn(&shape), values).expect("shape"))
        })
        .collect()
}

/// Results that a person sees agree; the order of sums may differ, so the bound is that of f64 sums of a few hundred terms.
fn assert_equal(seed: u64, what: &str, before: &Sdfg, after: &Sdfg) {
    let run = Run { seed: 5, step: 2, dropout: true };
    let tensors = inputs(seed, before);
    let want = interpret(before, &tensors, &run).unwrap_or_else(|e| panic!("seed {seed}, before {what}: {e}"));
    let got = interpret(after, &tensors, &run).unwrap_or_else(|e| panic!("seed {seed}, after {what}: {e}"));
    for container in before.containers.values().filter(|c| matches!(c.role, Role::Output | Role::Gradient)) {
        let (want, got) = (&want[&container.name], &got[&container.name]);
        let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
        for (w, g) in want.iter().zip(got) {
            assert!(
                (w - g).abs() <= 1000.0 * f64::EPSILON * scale || (w.is_nan() && g.is_nan()),
                "seed {seed}, {what}, `{}`: {w} became {g}",
                container.name
            );
        }
    }
}

fn composed(program: &Sdfg, accept: &dyn Fn(&Cluster) -> bool) -> PipelineOutcome {
    run_pipeline(program, &[&Composition { wanted: accept.into() }], &DriverOptions::default()).expect("composition")
}

fn with_gradients(program: &Sdfg) -> Option<Sdfg> {
    let output = program.containers.values().find(|c| c.role == Role::Output && c.dtype.roundoff() > 0.0)?;
    let options = transforms::differentiate::Options { upstream: vec![output.name.clone()], ..Default::default() };
    differentiate(program, &options).ok()
}

#[test]
fn expansion_and_fusion_keep_the_meaning() {
    let mut differentiated = 0;
    for seed in 0..80 {
        let forward = sdfg::random::program(seed);
        let program = with_gradients(&forward).inspect(|_| differentiated += 1).unwrap_or(forward);
        let expanded = run_pipeline(&program, &[&Expand], &DriverOptions::default()).expect("expansion").program;
        assert_equal(seed, "expansion", &program, &expanded);
        let fused = run_pipeline(&expanded, &[&Fusion::default()], &DriverOptions::default()).expect("fusion").program;
        assert_equal(seed, "fusion", &program, &fused);
    }
    assert!(differentiated > 40, "most random programs are differentiable: {differentiated}");
}

/// Consumers that read one tensor transposed, along a diagonal, and straight. `MEMLET_CASES` asks for more programs than the suite tries.
#[test]
fn tensors_read_at_several_index_orders_keep_their_meaning() {
    let cases = std::env::var("MEMLET_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(400);
    let (mut differentiated, mut fewer) = (0, 0);
    for seed in 0..cases {
        let forward = sdfg::random::permuted_program(seed, seed % 2 == 0);
        let program = with_gradients(&forward).inspect(|_| differentiated += 1).unwrap_or(forward);
        let expanded = run_pipeline(&program, &[&Expand], &DriverOptions::default()).expect("expansion").program;
        assert_equal(seed, "expansion", &program, &expanded);
        let fused = run_pipeline(&expanded, &[&Fusion::default()], &DriverOptions::default()).expect("fusion").program;
        assert_equal(seed, "fusion", &program, &fused);
        assert_eq!(sdfg::validate::validate(&fused), vec![], "seed {seed}");
        fewer += usize::from(fused.units().len() < expanded.units().len());
        let composed = composed(&expanded, &|_| true).program;
        assert_equal(seed, "composition", &program, &composed);
        let fused = run_pipeline(&composed, &[&Fusion::default()], &DriverOptions::default()).expect("fusion").program;
        assert_equal(seed, "fusion after composition", &program, &fused);
        assert_eq!(sdfg::validate::validate(&fused), vec![], "seed {seed}");
    }
    assert!(differentiated as u64 > cases / 2, "programs without diagonals are differentiable: {differentiated}");
    assert!(fewer as u64 > cases / 2, "most programs have something to fuse: {fewer}");
}

/// Contractions with their neighbours, backward both saving rows and computing them again.
#[test]
fn composition_keeps_the_meaning_and_moves_less() {
    let mut kernels = 0;
    for seed in 0..120 {
        let forward = sdfg::random::program(seed);
        let program = with_gradients(&forward).unwrap_or(forward);
        let rows = |start| run_pipeline(&program, &[&RowStatistics { start }], &DriverOptions::default()).expect("a policy");
        let again = rows(RecomputeFrom::Contraction);
        assert_equal(seed, "row statistics", &program, &again.program);
        let from_memory = rows(RecomputeFrom::Memory);
        assert_equal(seed, "row statistics, from memory", &program, &from_memory.program);
        for operators in [&program, &again.program] {
            let expanded = run_pipeline(operators, &[&Expand], &DriverOptions::default()).expect("expansion").program;
            // Compositions of one kind or other are not wanted.
            let unwanted = FusionKind::ALL[seed as usize % FusionKind::ALL.len()];
            let part = composed(&expanded, &|cluster| !cluster.kinds.contains(&unwanted));
            assert!(part.facts.kernels.iter().all(|c| !c.kinds.contains(&unwanted)), "seed {seed}");
            assert_equal(seed, "composition in part", &program, &part.program);
            let composed = composed(&expanded, &|_| true);
            assert_eq!(sdfg::validate::validate(&composed.program), vec![], "seed {seed}");
            assert_equal(seed, "composition", &program, &composed.program);
            assert!(moved_bytes(&composed.program) <= moved_bytes(&expanded), "seed {seed}");
            kernels += composed.facts.kernels.len();
            let fused = composed.then(&[&Fusion::default()], &DriverOptions::default()).expect("fusion").program;
            assert_equal(seed, "fusion after composition", &program, &fused);
        }
    }
    assert!(kernels > 60, "random programs have contractions with neighbours: {kernels}");
}

/// Gradients of weights as one kernel: a program inside the program.
#[test]
fn grouping_keeps_the_meaning() {
    let mut found = 0;
    for seed in 0..80 {
        let Some(program) = with_gradients(&sdfg::random::program(seed)) else { continue };
        let outcome = run_pipeline(&program, &[&GroupedGemm], &DriverOptions::default()).expect("a patch that fits");
        if outcome.steps.is_empty() {
            continue;
        }
        let grouped = outcome.program;
        assert_eq!(sdfg::validate::validate(&grouped), vec![], "seed {seed}");
        assert_equal(seed, "grouping", &program, &grouped);
        assert!(grouped.units().len() < program.units().len());
        found += 1;
    }
    assert!(found > 3, "some programs have gradients of several contractions: {found}");
}
