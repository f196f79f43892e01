//! Every map kernel that the pipeline generates for a shipped recipe, at small odd sizes, in a spread of configurations.

use kernels::Toolchain;
use kernels::pool::Pool;
use kernels::target::cpu::Cores;
use layouts::measure::space::{Bench, KernelSpace};
use recipes::pipeline::measure::device_bench::DeviceBench;
use recipes::pipeline::measure::swept_kernel::swept_kernels;
use recipes::pipeline::variants::gemm_fusion::GemmFusion;
use recipes::pipeline::variants::programs::programs;
use recipes::pipeline::variants::rewriting::Rewriting;
use recipes::pipeline::variants::table::VariantId;
use sdfg::config::KernelConfig;
use sdfg::{Dtype, Sdfg, Unit};
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

type Failure = Box<dyn std::error::Error>;

/// Configurations of each kernel: the best of a spread by predicted cost, and some of the others. Compiling dominates.
const PROMISING: usize = 1;
const OTHERS: u64 = 1;

/// A spread over the whole space: the step has no small factor in common with the radices.
fn spread(space: &dyn KernelSpace, count: u64) -> impl Iterator<Item = u64> {
    let all = space.count();
    (0..count).map(move |n| ((n + 1) * 1_000_003 + n * n * 7919) % all)
}

fn checked(recipe: &str, dtype: Option<Dtype>) -> Result<(), Failure> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe);
    let loaded = recipes::load::load(&path, recipes::load::Overrides { dtype, ..Default::default() })?;
    let programs = programs(&loaded, false)?;
    checked_of(recipe, &programs.variants.iter().map(|v| &v.program).collect::<Vec<_>>())
}

fn checked_of(recipe: &str, programs: &[&Sdfg]) -> Result<(), Failure> {
    let system = Toolchain::system()?;
    let device = Cores { toolchain: Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..system } };
    let pool = Pool::new(2)?;
    let mut seen = BTreeSet::new();
    for program in programs {
        let kernels = swept_kernels(program, &device)?;
        let mut bench = DeviceBench::new(program, &kernels, &device, &pool);
        for kernel in kernels.iter().filter(|k| matches!(k.spec.unit, Unit::Scope(_)) && seen.insert(k.key().to_string())) {
            let mut promising: Vec<u64> = spread(kernel, 200).collect();
            promising.sort_by(|a, b| kernel.predicted_cost(*a).total_cmp(&kernel.predicted_cost(*b)));
            promising.truncate(PROMISING);
            for n in promising.into_iter().chain(spread(kernel, OTHERS)) {
                let config = kernel.config(n);
                let check = bench.check(kernel.name(), &config).map_err(|e| format!("{recipe}, {}: {e:?}", kernel.name()))?;
                assert!(check.ratio <= 1.0, "{recipe}, {}: {} times the tolerance under {config}", kernel.name(), check.ratio);
            }
        }
    }
    assert!(!seen.is_empty(), "{recipe} has map kernels");
    Ok(())
}

/// Where tensors are held in panels, a kernel is checked at sizes with two panels.
#[test]
fn products_and_their_neighbours_in_panels() -> Result<(), Failure> {
    let device = Cores { toolchain: Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..Toolchain::system()? } };
    let (pool, path) = (Pool::new(2)?, Path::new(env!("CARGO_MANIFEST_DIR")).join("mlp.yaml"));
    let programs = programs(&recipes::load::load(&path, &[])?, false)?;
    let program = &programs.variants[0].program;
    let kernels = swept_kernels(program, &device)?;
    let mut bench = DeviceBench::new(program, &kernels, &device, &pool);
    let mut held = BTreeSet::new();
    for kernel in &kernels {
        let panels = |config: &KernelConfig| config.layouts.values().any(|l| !l.is_plain());
        for config in spread(kernel, 2000).map(|n| kernel.config(n)).filter(panels).take(2) {
            let check = bench.check(kernel.name(), &config).map_err(|e| format!("{}: {e:?}", kernel.name()))?;
            assert!(check.ratio <= 1.0, "{}: {} times the tolerance under {config}", kernel.name(), check.ratio);
            held.extend(config.layouts.into_iter().filter(|(_, l)| !l.is_plain()).map(|(data, _)| data));
        }
    }
    assert!(["w1", "hidden", "d_w1"].iter().all(|data| held.contains(*data)), "{held:?}");
    Ok(())
}

/// Chains for GPUs are compared with kernels of the cores, which read back the tensors that they wrote on the way.
#[test]
fn chains_that_write_intermediate_results() -> Result<(), Failure> {
    let device = Cores { toolchain: Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..Toolchain::system()? } };
    let (pool, path) = (Pool::new(2)?, Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml"));
    let overrides = recipes::load::Overrides { dtype: Some(Dtype::Bf16), narrow: true, ..Default::default() };
    let recipe = recipes::load::load(&path, &overrides)?;
    for weights in [vec![], ["wq", "wk", "wv"].map(String::from).to_vec()] {
        // The rewrites are verified.
        let variant = GemmFusion::of(&Arc::new(Rewriting::new(&recipe, true, None)), VariantId::Streamed, &weights)?.fused(&|_| true)?;
        let kernels = swept_kernels(&variant.program, &device)?;
        let mut bench = DeviceBench::new(&variant.program, &kernels, &device, &pool);
        let chains: Vec<_> = kernels.iter().filter(|k| variant.compositions.iter().any(|c| c.name == k.name())).collect();
        let mut names: Vec<&str> = chains.iter().map(|k| k.name()).collect();
        names.sort();
        assert_eq!(names, ["d_kk", "d_qq", "d_vv", "gamma"]);
        for kernel in chains {
            for n in spread(kernel, 3) {
                let config = kernel.config(n);
                let check = bench.check(kernel.name(), &config).map_err(|e| format!("{}: {e:?}", kernel.name()))?;
                assert!(check.ratio <= 1.0, "{}: {} times the tolerance under {config}", kernel.name(), check.ratio);
            }
        }
    }
    Ok(())
}

/// A logarithm in another kernel than the sum it is taken of: half of the drawn values would have none.
#[test]
fn a_logarithm_is_checked_on_the_values_of_its_program() -> Result<(), Failure> {
    let device = Cores { toolchain: Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..Toolchain::system()? } };
    let (pool, path) = (Pool::new(2)?, Path::new(env!("CARGO_MANIFEST_DIR")).join("classifier.yaml"));
    let program = programs(&recipes::load::load(&path, &[])?, false)?.unfused;
    let kernels = swept_kernels(&program, &device)?;
    let mut bench = DeviceBench::new(&program, &kernels, &device, &pool);
    let kernel = kernels.iter().find(|k| k.name() == "miss").ok_or("a kernel with the logarithm")?;
    let check = bench.check("miss", &kernel.config(0)).map_err(|e| format!("{e:?}"))?;
    assert!(check.ratio <= 1.0, "{}", check.ratio);
    Ok(())
}

/// The recipe's own sum has the name that the sum inside the mean around it would get: kernels must not confuse the two.
#[test]
fn a_sum_within_a_mean() -> Result<(), Failure> {
    let text = "model: m\ndims: {n: 64, c: 10}\ninputs:\n  x: [n, c]\n  w: [n, c]\nsteps:\n  - \"y = mean(1 - sum(w[n,c] * x[n,c], over: c), over: n)\"\n";
    let programs = programs(&recipes::load::load_str("m.yaml", text, &[])?, false)?;
    assert!(programs.unfused.containers.contains_key("y.sum"));
    checked_of("m.yaml", &[&programs.unfused])
}

/// A softmax in parts has a kernel with the name of the recipe's own sum within its step: plans identify kernels by name.
#[test]
fn kernels_have_names_of_their_own() -> Result<(), Failure> {
    let text = "model: m\ndims: {i: 20, b: 6}\ninputs:\n  x: [b, i]\nsteps:\n  - \"y[i] = softmax(tanh(sum(x[b,i], over: b)), over: i)\"\n\
                train: {upstream: y}\n";
    let programs = programs(&recipes::load::load_str("m.yaml", text, &[])?, false)?;
    let all: Vec<&Sdfg> = programs.variants.iter().map(|v| &v.program).chain([&programs.unfused]).collect();
    for program in &all {
        let units = program.units();
        let names: BTreeSet<&str> = units.iter().map(|(_, _, unit)| unit.name()).collect();
        assert_eq!(names.len(), units.len(), "{names:?}");
    }
    checked_of("m.yaml", &all)
}

/// The number of joint layouts of this many tensors exceeds 64 bits.
#[test]
fn more_configurations_than_can_be_counted() -> Result<(), Failure> {
    let names: Vec<String> = (0..14).map(|n| format!("x{n}")).collect();
    let inputs: String = names.iter().map(|n| format!("  {n}: [a, b, c, d]\n")).collect();
    let text = format!("model: m\ndims: {{a: 4, b: 5, c: 6, d: 7}}\ninputs:\n{inputs}steps:\n  - \"y[a,b,c,d] = {}\"\n", names.join(" + "));
    let programs = programs(&recipes::load::load_str("m.yaml", &text, &[])?, false)?;
    let device = Cores { toolchain: Toolchain { cache: concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels").into(), ..Toolchain::system()? } };
    for kernel in swept_kernels(&programs.variants[0].program, &device)? {
        let seeds = kernel.seeds();
        assert!(!seeds.is_empty() && seeds.iter().all(|n| kernel.config(*n).layouts.len() == 15));
    }
    Ok(())
}

macro_rules! recipes {
    ($($name:ident: $file:literal),* $(,)?) => {$(
        #[test]
        fn $name() -> Result<(), Failure> {
            checked($file, None)
        }
    )*};
}

/// Includes fused kernels, which multiply bf16.
#[test]
fn bert_base_encoder_in_bf16() -> Result<(), Failure> {
    checked("bert-base-encoder.yaml", Some(Dtype::Bf16))
}

/// Scores that a logarithm of a sum reads are f32 there.
#[test]
fn classifier_in_bf16() -> Result<(), Failure> {
    checked("classifier.yaml", Some(Dtype::Bf16))
}

recipes! {
    bert_base_encoder: "bert-base-encoder.yaml",
    bert_large_encoder: "bert-large-encoder.yaml",
    gpt2_decoder: "gpt2-decoder.yaml",
    gru: "gru.yaml",
    llama_decoder: "llama-decoder.yaml",
    mha_cross: "mha-cross.yaml",
    mha_general: "mha-general.yaml",
    mha: "mha.yaml",
    classifier: "classifier.yaml",
    mlp: "mlp.yaml",
    softmax: "softmax.yaml",
}
