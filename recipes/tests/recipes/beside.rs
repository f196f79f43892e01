//! Comparing kernels of a plan with those of the cores: all are equal, and a mistake shows in the kernel that makes it.

use crate::device_support::{Fake, attention};
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use kernels::target::cuda::cublaslt::FusedContraction;
use kernels::target::shim::ShimDevice;
use kernels::{KernelSpec, Toolchain};
use recipes::load::{Overrides, load, load_str};
use recipes::pipeline::check::each_kernel::{KernelCheckProgress, compare_with_cores, compare_with_interpreter};
use recipes::pipeline::check::plan::verify_small;
use recipes::pipeline::oracle::tensors::random_inputs;
use recipes::pipeline::run::candidate::Candidate;
use recipes::pipeline::variants::programs::programs_on;
use recipes::pipeline::variants::table::VariantId;
use sdfg::config::Configuration;
use sdfg::interpret::Run;
use sdfg::{Dtype, Sdfg};
use std::path::Path;
use std::sync::Arc;

const MLP: &str = include_str!("../../mlp.yaml");

type Failure = Box<dyn std::error::Error>;

fn cores() -> Result<Cores, Failure> {
    Ok(Cores { toolchain: Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..Toolchain::system()? } })
}

/// A plan of each kernel's best configuration by predicted cost, among some.
fn promising(program: Sdfg, device: &dyn Device) -> Result<Candidate, Failure> {
    let mut configuration = Configuration::default();
    for (_, _, unit) in program.units() {
        let spec = KernelSpec::new(&program, &unit)?;
        let space = device.space(&spec)?;
        let some = (0..4000u64).map(|n| n.wrapping_mul(2_654_435_761) % space.count());
        let best = some.min_by(|a, b| space.predicted_cost(*a).total_cmp(&space.predicted_cost(*b))).ok_or("no configuration")?;
        configuration.kernels.insert(spec.name.clone(), space.config(best));
    }
    Ok(Candidate {
        name: "promising".into(),
        program,
        configuration,
        predicted_ms: 0.0,
        streams: 1,
        packed: false,
        beside: recipes::pipeline::run::candidate::BESIDE,
        exchanges: vec![],
        measured_as: Default::default(),
    })
}

/// A whole streamed step of attention against the interpreter, with projections stacked and not, and rows of the softmax recomputed and
/// not. In all variants but the plainest, every kernel is also compared with one of the cores.
#[test]
fn a_step_of_streamed_tiles() -> Result<(), Failure> {
    let sizes = [("b", 2), ("j", 40), ("h", 2), ("p", 16), ("i", 32)].map(|(name, size)| (name.to_string(), size)).to_vec();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml");
    let recipe = load(&path, Overrides { sizes, dtype: Some(Dtype::Bf16), narrow: true, ..Overrides::default() })?;
    let programs = programs_on(&recipe, false, Some(FusedContraction::has))?;
    let device: Arc<dyn Device> = Arc::new(ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into()));
    let (given, pool, run) = (random_inputs(&programs.operators, 1)?, Pool::new(1)?, Run { seed: 4, step: 2, dropout: true });
    let mut found = 0;
    for variant in programs.variants.into_iter().filter(|v| matches!(v.key.id, VariantId::Streamed | VariantId::StreamedRecompute)) {
        let candidate = promising(variant.program, device.as_ref())?;
        let tiles = |form: Option<&str>| {
            candidate.configuration.kernels.values().filter(|c| c.knobs.get("tile").is_some() && c.knobs.get("form") == form).count()
        };
        // Besides the chains there are the gradients of keys and values, which are products limited by memory.
        assert_eq!((tiles(Some("streaming")), tiles(None)), (2, 2), "{}: {:?}", variant.key, candidate.configuration);
        if !variant.key.is(VariantId::Streamed) {
            let compared = compare_with_cores(&candidate, &given, &run, &pool, (device.as_ref(), &cores()?), &mut |_| ())?;
            assert!(compared.iter().all(|c| c.ratio <= 1.0), "{}: {compared:?}", variant.key);
        }
        let verified = verify_small(&candidate, &programs.operators, &pool, &device)?;
        assert!(verified.worst() <= 1.0, "{}: {verified:?}", variant.key);
        found += 1;
    }
    assert_eq!(found, 4);
    Ok(())
}

/// Cores store bits as bytes, and f16 as f32.
#[test]
fn bits_and_f16_are_compared_with_wider_types_on_cores() -> Result<(), Failure> {
    let sizes = [("b", 6), ("i", 10), ("u", 128), ("o", 4)].map(|(name, size)| (name.to_string(), size));
    for dtype in [Dtype::F32, Dtype::F16] {
        let recipe = load_str("mlp.yaml", MLP, Overrides { dtype: Some(dtype), ..Overrides::from(&sizes) })?;
        let programs = programs_on(&recipe, false, Some(FusedContraction::has))?;
        let program = programs.variants.into_iter().find(|v| v.key.is(VariantId::LibReluBits)).ok_or("no program with signs")?.program;
        assert_eq!(program.containers.values().any(|c| c.dtype == Dtype::F16), dtype == Dtype::F16);
        let device = ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into());
        let candidate = promising(program, &device)?;
        let (given, pool, run) = (random_inputs(&programs.operators, 1)?, Pool::new(1)?, Run { seed: 4, step: 2, dropout: true });
        let compared = compare_with_cores(&candidate, &given, &run, &pool, (&device, &cores()?), &mut |_| ())?;
        assert!(compared.iter().any(|c| c.data == "hidden.positive") && compared.iter().all(|c| c.ratio <= 1.0), "{dtype}: {compared:?}");
    }
    Ok(())
}

#[test]
fn a_mistake_shows_in_the_kernel_that_makes_it() -> Result<(), Failure> {
    let mut fake = Fake::new(None);
    let (operators, candidate) = attention(&fake, 1)?;
    let cores = cores()?;
    let (given, pool, run) = (random_inputs(&operators, 1)?, Pool::new(1)?, Run { seed: 4, step: 2, dropout: true });
    let mut told = Vec::new();
    let mut said = |p: &KernelCheckProgress| told.push((p.done, p.all, p.compared.to_vec()));
    let compared = compare_with_cores(&candidate, &given, &run, &pool, (&fake, &cores), &mut said)?;
    let count = candidate.program.units().len();
    assert!(told.iter().enumerate().all(|(n, (done, all, _))| (*done, *all) == (n + 1, count)) && told.len() == count, "each kernel once");
    assert_eq!(told.into_iter().flat_map(|(_, _, results)| results).collect::<Vec<_>>(), compared);
    let kernels: Vec<String> = candidate.program.units().iter().map(|(_, _, unit)| unit.name().to_string()).collect();
    assert!(kernels.iter().all(|name| compared.iter().any(|c| c.kernel == *name)), "every kernel is compared");
    assert!(compared.iter().all(|c| c.ratio <= 1.0), "{compared:?}");
    assert!(compared.iter().any(|c| c.ratio > 0.0), "two ways to compute differ somewhere");
    // In the first kernel, in one in the middle, and in the last.
    for name in [&kernels[0], &kernels[kernels.len() / 2], &kernels[kernels.len() - 1]] {
        fake.spoiled = Some(name.clone());
        let wrong: Vec<_> = compare_with_cores(&candidate, &given, &run, &pool, (&fake, &cores), &mut |_| ())?
            .into_iter()
            .filter(|c| c.ratio > 1.0)
            .collect();
        assert!(wrong.len() == 1 && wrong[0].kernel == *name, "{name}: {wrong:?}");
        // The interpreter finds the same kernel, and differs from a correct one by rounding alone.
        let found = compare_with_interpreter(&candidate, &given, &run, &pool, &fake, &mut |_| ())?;
        let wrong: Vec<_> = found.iter().filter(|c| c.ratio > 1.0).collect();
        assert!(wrong.len() == 1 && wrong[0].kernel == *name, "{name}: {wrong:?}");
    }
    Ok(())
}

/// A kernel of the cores equals itself; the interpreter shows its rounding errors.
#[test]
fn kernels_of_the_cores_are_compared_with_the_interpreter() -> Result<(), Failure> {
    let device = cores()?;
    let (operators, candidate) = attention(&device, 1)?;
    let (given, pool, run) = (random_inputs(&operators, 1)?, Pool::new(1)?, Run { seed: 4, step: 2, dropout: true });
    let found = compare_with_interpreter(&candidate, &given, &run, &pool, &device, &mut |_| ())?;
    assert!(found.iter().all(|c| c.ratio <= 1.0) && found.iter().any(|c| c.max_error > 0.0), "{found:?}");
    Ok(())
}

/// NaN on both sides is no fault of the kernel, and is counted.
#[test]
fn a_logarithm_of_negative_numbers() -> Result<(), Failure> {
    let text = "model: m\ndims: {n: 60}\ninputs: {x: [n]}\nsteps:\n  - \"y[n] = log(x[n])\"\n";
    let program = programs_on(&load_str("m.yaml", text, &[])?, false, None)?.unfused;
    let given = [("x".to_string(), ndarray::Array1::linspace(-29.5, 29.5, 60).into_dyn())].into();
    let (device, pool, run) = (cores()?, Pool::new(1)?, Run { seed: 1, step: 0, dropout: true });
    let candidate = promising(program, &device)?;
    let compared = compare_with_cores(&candidate, &given, &run, &pool, (&device, &device), &mut |_| {})?;
    let [found] = compared.as_slice() else { return Err("one result".into()) };
    assert_eq!((found.no_numbers, found.elements, found.ratio), (30, 60, 0.0));
    Ok(())
}

/// Backward finds the largest element, also where the stored value was rounded and the compared one was not: otherwise its gradient would
/// be zero.
#[test]
fn the_largest_element_is_found_in_backward() -> Result<(), Failure> {
    let text = "model: m\ndims: {i: 16, k: 8}\ninputs:\n  z: [i, k]\nsteps:\n  - \"y[k] = max(softmax(0.25 * z[i,k], over: i), over: i)\"\n  \
                - \"s[i] = min(tanh(z[i,k]), over: k)\"\n  - \"t[i,k] = y[k] + s[i]\"\ntrain: {upstream: t}\n";
    let (device, pool): (Arc<dyn Device>, _) = (Arc::new(cores()?), Pool::new(1)?);
    for narrow in [false, true] {
        let overrides = Overrides { dtype: Some(Dtype::Bf16), narrow, ..Overrides::default() };
        let programs = programs_on(&load_str("m.yaml", text, &overrides)?, false, None)?;
        for variant in &programs.variants {
            let candidate = promising(variant.program.clone(), device.as_ref())?;
            verify_small(&candidate, &programs.operators, &pool, &device).map_err(|e| format!("{}, narrow {narrow}: {e}", variant.key))?;
        }
    }
    Ok(())
}
