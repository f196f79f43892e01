//! Steps in which independent kernels share dispatches.

use kernels::KernelSpec;
use kernels::Toolchain;
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use recipes::load::{Overrides, load};
use recipes::pipeline::oracle::small_sizes::with_small_sizes;
use recipes::pipeline::oracle::tensors::random_inputs;
use recipes::pipeline::run::candidate::Candidate;
use recipes::pipeline::run::execute::Execution;
use recipes::pipeline::variants::programs::programs;
use sdfg::Layout;
use sdfg::config::Configuration;
use std::path::Path;
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

/// A packed step computes what the same step computes launch by launch, to the last bit, in fewer dispatches.
#[test]
fn a_packed_step_has_the_same_results_in_fewer_dispatches() -> Result<(), Failure> {
    let device: Arc<dyn Device> = Arc::new(Cores { toolchain: Toolchain::system()? });
    for name in ["mha", "perceptron", "resnet-18-block"] {
        let recipe = load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("{name}.yaml")), Overrides::default())?;
        let program = with_small_sizes(&programs(&recipe, false)?.variants.remove(0).program);
        let mut configuration = Configuration::default();
        for (_, _, unit) in program.units() {
            let spec = KernelSpec::new(&program, &unit)?;
            configuration.kernels.insert(spec.name.clone(), device.space(&spec)?.config(0));
        }
        configuration.layouts = program.containers.values().map(|c| (c.name.clone(), Layout::row_major(c))).collect();
        let given = random_inputs(&program, 3)?;
        let alone =
            Candidate { name: name.into(), program, configuration, predicted_ms: 0.0, streams: 1, packed: false, exchanges: vec![] };
        for workers in [1, 3] {
            let pool = Pool::new(workers)?;
            let run = |packed: bool| -> Result<_, Failure> {
                let mut execution = Execution::of(&Candidate { packed, ..alone.clone() }, &device)?;
                execution.load(&given)?;
                let mut seen = Vec::new();
                for step in 0..3 {
                    let times = execution.step(&pool, 7, step, true)?;
                    seen.push((execution.results()?, times.dispatches.iter().sum::<u64>()));
                }
                Ok((seen, execution.packing()))
            };
            let ((separate, none), (together, packing)) = (run(false)?, run(true)?);
            let (launches, packs) = packing.ok_or("the step is packed")?;
            assert!(none.is_none() && packs < launches, "{name}: {packs} packs of {launches} launches");
            for ((right, more), (found, fewer)) in separate.iter().zip(&together) {
                assert!(right == found, "{name} on {workers} threads");
                assert!(fewer < more, "{name}: {fewer} dispatches, {more} without packing");
            }
        }
    }
    Ok(())
}
