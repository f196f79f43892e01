//! A GPU's device on libraries that stand in for CUDA's: descriptions of products, and algorithms requested in the background.

use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cuda::CudaDevice;
use kernels::target::cuda::cublaslt::FusedContraction;
use kernels::target::shim::stand_in::StandIn;
use layouts::measure::space::{Bench, Coming, Fault, KernelSpace};
use recipes::load::Overrides;
use recipes::pipeline::measure::device_bench::DeviceBench;
use recipes::pipeline::measure::sweep::build_problem;
use recipes::pipeline::variants::programs::programs_on;
use sdfg::config::KernelConfig;
use std::path::Path;
use std::process::Command;

/// Libraries are loaded once in a process, so each test with these libraries runs in a process of its own.
fn in_its_own_process(name: &str, test: impl FnOnce(&Path)) {
    if let Some(folder) = std::env::var_os("MEMLET_STAND_IN") {
        return test(Path::new(&folder));
    }
    let stand_in = StandIn::make(Path::new(env!("CARGO_TARGET_TMPDIR"))).expect("the stand-in is compiled");
    let mut again = Command::new(std::env::current_exe().expect("this program"));
    again.args(["--exact", name, "--nocapture"]).envs(stand_in.environment());
    let output = again.output().expect("this program starts again");
    let text = String::from_utf8_lossy(&output.stdout) + String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// Algorithm numbers: of the heuristic, beyond its offers, of the catalogue, and beyond that.
const ALGORITHMS: [u64; 7] = [0, 1, 2, 3, 128, 131, 140];
/// Configurations of each product.
const EACH: usize = 30;

/// Every product of the layer, separate and stacked, with epilogues and without, in many layouts and forms.
#[test]
fn products_mean_what_the_library_is_told() {
    in_its_own_process("stand_in::products_mean_what_the_library_is_told", |folder| {
        let device = CudaDevice::new(0, folder.join("cache")).expect("a device");
        assert_eq!(device.name().as_deref(), Some("Stand-in GPU"));
        let pool = Pool::new(1).expect("a pool");
        let sizes = ["b=2", "j=16", "h=2", "p=8", "i=16", "u=128"];
        let (mut right, mut refused, mut wrong) = (0, 0, Vec::new());
        for (dtype, narrow) in [(sdfg::Dtype::F32, false), (sdfg::Dtype::Bf16, true), (sdfg::Dtype::F16, false)] {
            let sets = sizes.iter().map(|s| s.split_once('=').map(|(d, n)| (d.to_string(), n.parse().expect("a size"))).expect("a dim"));
            let overrides = Overrides { sizes: sets.collect(), dtype: Some(dtype), narrow, ..Overrides::default() };
            let recipe = Path::new(env!("CARGO_MANIFEST_DIR")).join("bert-large-encoder.yaml");
            let recipe = recipes::load::load(&recipe, &overrides).expect("a recipe");
            for variant in programs_on(&recipe, false, Some(FusedContraction::has)).expect("programs").variants {
                if !["fused", "stacked wq+wk+wv", "library epilogues", "library epilogues, relu bits"]
                    .contains(&variant.key.to_string().as_str())
                {
                    continue;
                }
                let kernels = build_problem(&variant.program, &device).expect("a problem").kernels;
                let mut bench = DeviceBench::new(&variant.program, &kernels, &device, &pool);
                for kernel in kernels.iter().filter(|k| FusedContraction::wanted(&k.spec).is_ok_and(|f| f.is_some())) {
                    let (stems, mut configs) = (kernel.count() / kernel.ranking_batch(), Vec::new());
                    for try_ in 0..2000u64 {
                        let stem = try_.wrapping_mul(0x9e37_79b9_7f4a_7c15) % stems;
                        let n = stem * kernel.ranking_batch() + ALGORITHMS[try_ as usize % ALGORITHMS.len()];
                        if configs.len() < EACH && kernel.predicted_cost(n) < f64::INFINITY {
                            configs.push(kernel.config(n));
                        }
                    }
                    for at in 0..configs.len() {
                        // As in a sweep, the next configurations are prepared in the background.
                        let same_kernel = |count: usize| configs[at + 1..].iter().take(count).cloned().collect::<Vec<KernelConfig>>();
                        bench.ahead(kernel.name(), &configs[at], &Coming { same_kernel: &same_kernel, in_turns: &|_| vec![] });
                        match bench.check(kernel.name(), &configs[at]) {
                            Ok(check) if check.passed() => right += 1,
                            Ok(check) => wrong.push(format!("{} {}: {}", kernel.name(), configs[at], check.ratio)),
                            Err(Fault::Configuration(_)) => refused += 1,
                            Err(fault) => panic!("{} {}: {fault}", kernel.name(), configs[at]),
                        }
                    }
                }
            }
        }
        println!("{right} right, {refused} refused");
        assert!(wrong.is_empty(), "{} wrong: {:#?}", wrong.len(), &wrong[..wrong.len().min(5)]);
        assert!(right > 1000 && refused > 0, "{right} right, {refused} refused");
    });
}
