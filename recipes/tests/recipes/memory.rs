//! Memory of a step: buffers share memory without changing results. Debug builds fill freed memory with NaN.

use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use kernels::{KernelSpec, Toolchain};
use recipes::analyze::memory::{ProgramMemory, memory};
use recipes::load::{Overrides, load};
use recipes::pipeline::check::plan::verify_small;
use recipes::pipeline::oracle::small_sizes::with_small_sizes;
use recipes::pipeline::oracle::tensors::random_inputs;
use recipes::pipeline::run::candidate::Candidate;
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use recipes::pipeline::variants::table::VariantId;
use sdfg::config::Configuration;
use sdfg::interpret::Run;
use sdfg::{Direction, Role, Sdfg};
use std::path::Path;
use std::sync::Arc;
use transforms::differentiate::differentiate;
use transforms::{Composition, DriverOptions, Expand, Fusion, WantedKernels, run_pipeline};

pub type Failure = Box<dyn std::error::Error>;

pub fn device() -> Result<Arc<dyn Device>, Failure> {
    let system = Toolchain::system()?;
    Ok(Arc::new(Cores { toolchain: Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..system } }))
}

/// A program with a configuration for each kernel: the first of its space, or a drawn one.
pub fn candidate(program: &Sdfg, device: &dyn Device, drawn: Option<u64>) -> Result<Candidate, Failure> {
    let mut configuration = Configuration::default();
    for (n, (_, _, unit)) in program.units().iter().enumerate() {
        let spec = KernelSpec::new(program, unit)?;
        let space = device.space(&spec)?;
        let number = drawn.map_or(0, |seed| (seed * 1_000_003 + n as u64 * 7919) % space.count());
        configuration.kernels.insert(spec.name.clone(), space.config(number));
    }
    Ok(Candidate {
        name: "drawn".into(),
        program: program.clone(),
        configuration,
        predicted_ms: 0.0,
        streams: 1,
        packed: false,
        beside: recipes::pipeline::run::candidate::BESIDE,
        exchanges: vec![],
        measured_as: Default::default(),
    })
}

/// Runs a candidate at small sizes against the interpreter. Returns the number of buffers that took the place of others.
pub fn checked(candidate: &Candidate, reference: &Sdfg, device: &Arc<dyn Device>, pool: &Pool) -> Result<usize, Failure> {
    let found = verify_small(candidate, reference, pool, device)?;
    assert!(found.worst() <= 1.0, "{found:?}");
    let execution = Execution::new(&with_small_sizes(&candidate.program), &candidate.configuration, device);
    // Tiles are made for the program's sizes: some do not fit the small ones.
    let Ok(execution) = execution else { return Ok(0) };
    let (peak, map) = (execution.memory, &execution.map);
    assert_eq!(peak.planned_bytes, peak.actual_bytes);
    assert!(peak.lower_bound_bytes <= peak.planned_bytes);
    let alive = map.fullest().map_or(0, |at| map.alive_bytes(at));
    assert!(map.given_bytes() + alive <= peak.planned_bytes);
    Ok(map.lives.iter().filter(|l| l.over.is_some()).count())
}

pub fn with_gradients(program: &Sdfg) -> Option<Sdfg> {
    let output = program.containers.values().find(|c| c.role == Role::Output && c.dtype.roundoff() > 0.0)?;
    let options = transforms::differentiate::Options { upstream: vec![output.name.clone()], ..Default::default() };
    differentiate(program, &options).ok()
}

#[test]
fn random_programs_keep_their_results() -> Result<(), Failure> {
    let (device, pool) = (device()?, Pool::new(2)?);
    let mut handed_over = 0;
    for seed in 0..6 {
        let forward = sdfg::random::program(seed);
        let program = with_gradients(&forward).unwrap_or(forward);
        let wanted = WantedKernels { accept: &|_| seed % 2 == 1, ..WantedKernels::default() };
        let passes: [&dyn transforms::Pass; 3] = [&Expand, &Composition { wanted }, &Fusion::default()];
        let fused = run_pipeline(&program, &passes, &DriverOptions::default())?.program;
        let drawn = (seed % 3 == 2).then_some(seed);
        handed_over += checked(&candidate(&fused, &*device, drawn)?, &program, &device, &pool).map_err(|e| format!("seed {seed}: {e}"))?;
    }
    assert!(handed_over > 5, "{handed_over} buffers took the place of others");
    Ok(())
}

#[test]
fn a_layer_keeps_its_results() -> Result<(), Failure> {
    let (device, pool) = (device()?, Pool::new(2)?);
    for (recipe, name) in [("mha.yaml", "fused"), ("bert-large-encoder.yaml", "gemm-fused")] {
        let programs = programs(&load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe), Overrides::default())?, false)?;
        let variant = programs.variants.iter().find(|v| v.key.to_string() == name).ok_or("a program")?;
        let handed_over = checked(&candidate(&variant.program, &*device, None)?, &programs.operators, &device, &pool)?;
        assert!(handed_over > 3, "{recipe}, {name}: {handed_over} buffers took the place of others");
    }
    Ok(())
}

/// Kernels that write in place would read their own results when they are run repeatedly.
#[test]
fn kernels_that_run_repeatedly_get_the_same_inputs() -> Result<(), Failure> {
    let (device, pool) = (device()?, Pool::new(2)?);
    let programs = programs(&load(&Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml"), Overrides::default())?, false)?;
    let program = with_small_sizes(&programs.variants[0].program);
    let configuration = candidate(&program, &*device, None)?.configuration;
    let (given, run) = (random_inputs(&program, 5)?, Run { seed: 5, step: 0, dropout: true });
    let results = |again: usize| -> Result<_, Failure> {
        let mut execution = Execution::new(&program, &configuration, &device)?;
        assert!(execution.map.lives.iter().any(|l| l.over.is_some()), "something is written in place");
        execution.load(&given)?;
        match again {
            0 => execution.step(&pool, run.seed, run.step, run.dropout).map(drop)?,
            _ => assert_eq!(execution.alone(&pool, &run, again)?.len(), execution.launches().count()),
        }
        Ok(execution.results()?)
    };
    assert_eq!(results(0)?, results(3)?);
    Ok(())
}

/// Peaks of a shipped recipe in MB: the inputs, the fused program, the gemm-fused one.
fn peaks(recipe: &str, no_dropout: bool) -> Result<[f64; 3], Failure> {
    let overrides = Overrides { no_dropout, ..Overrides::default() };
    let found = memory(&load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe), &overrides)?)?;
    let [separate, composed]: [ProgramMemory; 2] = found.try_into().map_err(|_| "two programs")?;
    Ok([separate.given_bytes, separate.peak_bytes, composed.peak_bytes].map(|bytes| bytes as f64 / 1e6))
}

/// Compared with the count of `bench/peers/tensor_bytes.py` for PyTorch 2.15 eager at the same sizes, with and without dropout.
#[test]
fn the_papers_layer_needs_at_most_half_of_eager() -> Result<(), Failure> {
    for (recipe, no_dropout, eager) in [
        ("bert-large-encoder.yaml", false, 939.6),
        ("bert-large-encoder.yaml", true, 608.3),
        ("mha.yaml", false, 692.1),
        ("mha.yaml", true, 524.3),
    ] {
        let [given, separate, composed] = peaks(recipe, no_dropout)?;
        assert!(given < composed && composed < separate && separate < 0.85 * eager, "{recipe}: {separate} MB");
        assert!(composed <= 0.5 * eager, "{recipe}, without dropout {no_dropout}: {composed} MB of {eager} MB");
    }
    Ok(())
}

/// A container that is held in panels although no kernel names them: small sizes must fit them.
#[test]
fn held_in_panels_that_no_kernel_names() -> Result<(), Failure> {
    let (device, pool) = (device()?, Pool::new(2)?);
    let recipe = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../recipes/mlp.yaml"));
    let loaded = load(recipe, Overrides::default())?;
    let all = programs(&loaded, false)?;
    let variant = all.variants.first().ok_or("no program")?;
    let mut candidate = candidate(&variant.program, device.as_ref(), None)?;
    let held = variant.program.containers.values().find(|c| c.role == Role::Input && c.dims.len() == 2).ok_or("no matrix is given")?;
    let panels = sdfg::Layout::panels(&held.dims, &held.dims[1], 16).ok_or("no panels")?;
    candidate.configuration.layouts.insert(held.name.clone(), panels);
    let found = verify_small(&candidate, &all.operators, &pool, &device)?;
    assert!(found.worst() <= 1.0, "{found:?}");
    Ok(())
}

/// Every kernel reads `x` in another layout than the held one: it is relayouted once for the forward pass, and once for the backward
/// pass.
#[test]
fn a_copy_in_another_layout_serves_all_kernels_of_a_pass() -> Result<(), Failure> {
    let (device, pool) = (device()?, Pool::new(2)?);
    let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("bert-large-encoder.yaml");
    let all = programs(&load(&recipe, Overrides::default())?, false)?;
    let program = with_small_sizes(&all.variants.iter().find(|v| v.key.is(VariantId::Fused)).ok_or("a program")?.program);
    let mut candidate = candidate(&program, &*device, None)?;
    let x = program.containers.get("x").ok_or("no x")?;
    let held = sdfg::Layout::permutations(&x.dims).into_iter().last().ok_or("no layout")?;
    candidate.configuration.layouts.insert(x.name.clone(), held);
    let execution = Execution::new(&program, &candidate.configuration, &device)?;
    let turned: Vec<Direction> = execution.launches().filter(|(name, _)| name.starts_with("relayout x ")).map(|(_, pass)| pass).collect();
    assert_eq!(turned, [Direction::Forward, Direction::Backward]);
    let reading = |pass: &str| {
        let units = program.units();
        let of_pass = units.iter().filter(|(state, ..)| program.state(*state).is_some_and(|s| s.name == pass));
        of_pass.filter(|(_, _, unit)| KernelSpec::new(&program, unit).is_ok_and(|s| s.arguments().iter().any(|a| a.data == "x"))).count()
    };
    assert!(reading("forward") > 1 && reading("backward") > 1, "several kernels read x");
    let found = verify_small(&candidate, &all.operators, &pool, &device)?;
    assert!(found.worst() <= 1.0, "{found:?}");
    Ok(())
}
