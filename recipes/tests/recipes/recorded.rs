//! Steps that a device records once and runs many times: with other masks each time, and on several streams.

use crate::device_support::{Call, Fake, attention};
use kernels::device::Device;
use kernels::pool::Pool;
use recipes::pipeline::oracle::tensors::random_inputs;
use recipes::pipeline::run::candidate::Candidate;
use recipes::pipeline::run::execute::Execution;
use sdfg::Sdfg;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::tolerance::{compare, program_tolerances};
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

/// The worst error of a step's results in units of the tolerance.
fn worst(candidate: &Candidate, operators: &Sdfg, given: &Tensors, got: &Tensors, run: &Run) -> Result<f64, Failure> {
    let (want, tolerances) = (interpret(operators, given, run)?, program_tolerances(&candidate.program)?);
    let ratios = got.iter().map(|(name, got)| compare(got, &want[name], 1.0, &tolerances[name]).ratio);
    Ok(ratios.fold(0.0, |a, b| if b.is_nan() { f64::INFINITY } else { f64::max(a, b) }))
}

#[test]
fn a_recorded_step_takes_the_masks_of_any_run() -> Result<(), Failure> {
    let fake = Arc::new(Fake::new(None));
    let device: Arc<dyn Device> = fake.clone();
    let (operators, candidate) = attention(&*device, 1)?;
    let (given, pool) = (random_inputs(&operators, 1)?, Pool::new(1)?);
    let mut execution = Execution::of(&candidate, &device)?;
    execution.load(&given)?;
    let mut seen: Vec<Tensors> = Vec::new();
    for (seed, step, dropout) in [(1, 0, true), (1, 1, true), (1, 2, true), (9, 2, true), (9, 2, false), (1, 0, true)] {
        execution.step(&pool, seed, step, dropout)?;
        let results = execution.results()?;
        let ratio = worst(&candidate, &operators, &given, &results, &Run { seed, step, dropout })?;
        assert!(ratio <= 1.0, "seed {seed}, step {step}, dropout {dropout}: {ratio} times the tolerance");
        seen.push(results);
    }
    assert_eq!(fake.called(Call::Record), 2, "forward and both are recorded once");
    assert_eq!(seen[0], seen[5]);
    assert!(seen[..5].iter().enumerate().all(|(n, one)| seen[n + 1..5].iter().all(|other| one["y"] != other["y"])));
    Ok(())
}

/// Steps on several streams, replayed in different orders that the streams allow: the number of wrong ones, and of all.
fn replayed(forgets: bool) -> Result<(usize, usize), Failure> {
    let mut fake = Fake::new(None);
    let (operators, candidate) = attention(&fake, 4)?;
    fake.forgets = forgets;
    let device: Arc<dyn Device> = Arc::new(fake);
    let (given, pool) = (random_inputs(&operators, 1)?, Pool::new(1)?);
    let mut execution = Execution::of(&candidate, &device)?;
    assert!(execution.breadth() > 2, "three projections need nothing of one another");
    execution.load(&given)?;
    let (mut wrong, steps) = (0, 8);
    for step in 0..steps {
        // Elements that a step fails to write must not keep correct values of an earlier step.
        execution.step(&pool, 1, step, true)?;
        let ratio = worst(&candidate, &operators, &given, &execution.results()?, &Run { seed: 1, step, dropout: true })?;
        wrong += usize::from(ratio > 1.0);
    }
    Ok((wrong, steps as usize))
}

#[test]
fn streams_wait_for_one_another_where_they_must() -> Result<(), Failure> {
    assert_eq!(replayed(false)?.0, 0);
    // Without the waits for launches, except those of the beginning and the end, results are wrong.
    let (wrong, of) = replayed(true)?;
    assert!(wrong > of / 2, "{wrong} of {of}");
    Ok(())
}
