//! Generated CUDA compiles for real GPUs: NVRTC needs no GPU. Skipped, and saying so, where the library is not found.

use crate::common::{self, CASES, Case};
use crate::gemms::{TILES, narrow};
use crate::windows::{KINDS, WINDOWS};
use kernels::KernelSpec;
use kernels::target::cuda;
use kernels::target::cuda::emit::Chip;
use kernels::target::cuda::templates::{source as cuda_source, space as cuda_space};
use kernels::target::cuda::{CudaLibrary, Nvrtc};
use sdfg::config::KernelConfig;
use sdfg::{Dtype, Layout, Unit};

type Failure = Box<dyn std::error::Error>;

/// The BERT-large layer.
const SIZES: common::Sizes = &[("b", 8), ("h", 16), ("j", 512), ("k", 512), ("i", 1024), ("u", 4096), ("p", 64)];
/// Volta, Turing (where Volta is no longer known), Ampere, Hopper.
const CAPABILITIES: [u32; 4] = [70, 75, 80, 90];
const HOPPER: u32 = 90;

fn nvrtc() -> Option<Nvrtc> {
    let found = Nvrtc::find();
    if let Err(e) = &found {
        println!("skipped: NVRTC not found, {} ({e})", CudaLibrary::Nvrtc.advice());
    }
    found.ok()
}

/// The compiler and the generations of these tests that it knows, with the head of the table that they print.
fn generations() -> Option<(Nvrtc, Vec<u32>)> {
    let nvrtc = nvrtc()?;
    let known: Vec<u32> = CAPABILITIES.into_iter().filter(|c| nvrtc.capabilities.contains(c)).collect();
    println!("NVRTC {}.{} for {known:?} of {CAPABILITIES:?}", nvrtc.version.0, nvrtc.version.1);
    assert!(known.contains(&80) && known.contains(&HOPPER), "{:?}", nvrtc.capabilities);
    println!(
        "{:18} {:5} {:4} {:>14} {:>9} {:>6} {:>6} {:>6}  knobs",
        "kernel", "type", "cc", "function", "registers", "spills", "stack", "shared"
    );
    Some((nvrtc, known))
}

#[test]
fn windows_compile_for_hopper() -> Result<(), Failure> {
    let Some((nvrtc, _)) = generations() else { return Ok(()) };
    for (name, window) in [WINDOWS[1], WINDOWS[7], WINDOWS[8]] {
        for (kind, make) in KINDS {
            let Case { program, unit } = make(&window);
            let spec = KernelSpec::new(&program, &unit)?;
            let space = cuda_space(&spec, Chip::HOPPER)?;
            let configs = [KernelConfig::default(), space.config(space.count() / 3)];
            compiles(&nvrtc, &format!("{kind}, {name}"), Dtype::F32, &spec, &configs, &[HOPPER])?;
        }
    }
    Ok(())
}

#[test]
fn every_family_of_maps_compiles_for_every_generation() -> Result<(), Failure> {
    let Some((nvrtc, known)) = generations() else { return Ok(()) };
    for (n, (name, make)) in CASES.into_iter().enumerate() {
        let dtype = [Dtype::F32, Dtype::Bf16, Dtype::F16][n % 3];
        let Case { mut program, unit } = make(SIZES);
        for container in program.containers.values_mut() {
            container.dtype = dtype;
        }
        let spec = KernelSpec::new(&program, &unit)?;
        let space = cuda_space(&spec, Chip::HOPPER)?;
        assert!(matches!(spec.unit, Unit::Scope(_)));
        let with = |knob: &str| (0..4000).map(|n| space.config(n * 1_000_003 % space.count())).find(|c| c.knobs.get(knob).is_some());
        let more = [with("out"), with("next")].into_iter().flatten();
        let configs: Vec<KernelConfig> = [KernelConfig::default(), space.config(space.count() / 3)].into_iter().chain(more).collect();
        compiles(&nvrtc, name, dtype, &spec, &configs, &known)?;
    }
    Ok(())
}

/// What is composed around matrix products: by tensor cores where there are any, and by plain units.
#[test]
fn every_family_of_tiles_compiles_for_every_generation() -> Result<(), Failure> {
    let Some((nvrtc, known)) = generations() else { return Ok(()) };
    for (name, make) in TILES {
        for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16] {
            let Case { mut program, unit } = make(SIZES);
            for container in program.containers.values_mut().filter(|c| narrow(c) == Dtype::Bf16) {
                container.dtype = dtype;
            }
            let spec = KernelSpec::new(&program, &unit)?;
            // One type for every generation: texts differ in little else.
            let generations = if dtype == Dtype::Bf16 { &known[..] } else { &[HOPPER] };
            let (older, newer): (Vec<u32>, Vec<u32>) = generations.iter().partition(|c| **c < 80);
            for (generations, tensor_cores) in [(older, false), (newer, true)].into_iter().filter(|(g, _)| !g.is_empty()) {
                let space = cuda_space(&spec, Chip { tensor_cores, ..Chip::HOPPER })?;
                compiles(&nvrtc, name, dtype, &spec, &[space.config(0), space.config(space.count() / 3)], &generations)?;
            }
        }
    }
    Ok(())
}

#[test]
fn relayouts_compile() -> Result<(), Failure> {
    let Some(nvrtc) = nvrtc() else { return Ok(()) };
    let dims = [("a", 5), ("b", 37), ("c", 19)].map(|(d, n)| (d.to_string(), n));
    let layouts = Layout::permutations(&dims.each_ref().map(|(d, _)| d.clone()));
    for dtype in [Dtype::F32, Dtype::Bf16, Dtype::F16, Dtype::F64] {
        // Along the same dim, and from one to another.
        for to in [&layouts[1], layouts.last().ok_or("layouts")?] {
            let (spec, source) = cuda::relayout::source("x", dtype, &dims, &layouts[0], to)?;
            let compiled = nvrtc.compile(&spec.name, &source.text, HOPPER)?;
            let spilled = compiled.resources.iter().any(|r| r.spill_stores + r.spill_loads > 0);
            assert!(!compiled.resources.is_empty() && !spilled, "{dtype}, {} to {to}", layouts[0]);
        }
    }
    Ok(())
}

/// Every generation for the first configuration, the newest for the others.
fn compiles(nvrtc: &Nvrtc, name: &str, dtype: Dtype, spec: &KernelSpec, configs: &[KernelConfig], known: &[u32]) -> Result<(), Failure> {
    for (n, config) in configs.iter().enumerate() {
        let source = cuda_source(spec, config, Chip::HOPPER)?;
        for capability in known.iter().filter(|c| n == 0 || **c == HOPPER) {
            let compiled = nvrtc.compile(name, &source.text, *capability)?;
            assert!(!compiled.code.is_empty() && !compiled.resources.is_empty(), "{name} for {capability}");
            for r in &compiled.resources {
                let (registers, spills, stack) = (r.registers, r.spill_stores + r.spill_loads, r.stack);
                let shared = i64::from(r.shared) + if r.function == "memlet_kernel" { source.shared } else { 0 };
                println!(
                    "{name:18} {dtype:5} {capability:4} {:>14} {registers:9} {spills:6} {stack:6} {shared:6}  {}",
                    r.function, config.knobs
                );
                assert!(registers > 0 && i64::from(registers) * source.threads <= 65536, "{name} cannot be launched");
                // Where a block does many things one after the other, ptxas spills some of what waits.
                // For older generations it fills all registers with loads, beside rows of partial results, and keeps two words
                // of what waits for the end of the block in memory.
                let allowed = match kernels::tiles::is_tiled(config) {
                    true => 1024,
                    false if *capability < HOPPER && source.finish.is_some() => 32,
                    false => 0,
                };
                assert!(n > 0 || spills <= allowed, "{name} spills {spills} bytes in its first configuration");
            }
        }
    }
    Ok(())
}

#[test]
fn what_is_not_cuda_is_refused_with_its_line() -> Result<(), Failure> {
    let Some(nvrtc) = nvrtc() else { return Ok(()) };
    let error = nvrtc.compile("broken", "extern \"C\" __global__ void k() {\n    no_such_name = 1;\n}\n", HOPPER).expect_err("refused");
    let text = error.to_string();
    assert!(
        text.contains("`broken` for compute capability 9.0") && text.contains("memlet.cu(2)") && text.contains("no_such_name"),
        "{text}"
    );
    Ok(())
}
