//! `memlet devices`: the devices and libraries of this machine, and those that are missing.

use super::out::{out, outln};
use crate::pipeline::PipelineError;
use crate::pipeline::measure::launch_and_copy;
use bench::Machine;
use clap::Args;
use kernels::contraction::Types;
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cuda::{self, CudaDevice, Driver, GemmCeiling, Nvrtc};
use kernels::{KernelError, Toolchain};
use layouts::packing::score::ScoreModel;
use sdfg::Dtype;
use serde::Serialize;

#[derive(Args)]
pub struct DevicesArgs {
    /// Also measure each GPU's rates: a copy, and products of matrices
    #[arg(long)]
    measure: bool,
    /// Measure a dispatch to all cores, and copies of 1 KiB to 256 MiB, for plans of fusion; the result is stored for this machine
    #[arg(long)]
    cores: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Devices {
    machine: Machine,
    /// Vector extensions of the processor, widest last.
    vector: Vec<&'static str>,
    compiler: Option<Compiler>,
    cuda: Vec<Library>,
    gpus: Gpus,
    /// A dispatch to all cores, and the time of copies by volume.
    #[serde(skip_serializing_if = "Option::is_none")]
    cores: Option<ScoreModel>,
}

#[derive(Serialize)]
struct Compiler {
    command: String,
    version: String,
    /// Folder of compiled kernels.
    cache: String,
}

#[derive(Serialize)]
struct Library {
    name: &'static str,
    found: bool,
    /// The folder that it was found in, unless the system's loader finds it.
    folder: Option<String>,
    /// Advice where it is missing.
    advice: Option<&'static str>,
}

/// The parts of CUDA that were found and can be used.
#[derive(Serialize, Default)]
struct Gpus {
    /// The newest version of CUDA that the driver supports, and the version of the run-time compiler.
    driver: Option<String>,
    compiler: Option<String>,
    gpus: Vec<Gpu>,
    /// Why there is no GPU.
    missing: Option<String>,
}

#[derive(Serialize)]
struct Gpu {
    number: i32,
    name: String,
    capability: String,
    bytes: usize,
    processors: i64,
    measured: Option<Measured>,
}

/// Measured rates of a GPU.
#[derive(Serialize)]
struct Measured {
    toolchain: String,
    /// Bytes read plus bytes written by a copy that fits no cache.
    copy_gb_per_s: Option<f64>,
    products: Vec<GemmCeiling>,
}

/// Products that are measured: a large one, and those of a BERT-large layer with 4096 tokens.
const PRODUCTS: [[usize; 3]; 5] = [[8192; 3], [4096, 3072, 1024], [4096, 1024, 1024], [4096, 4096, 1024], [4096, 1024, 4096]];

impl DevicesArgs {
    /// # Errors
    /// Without a compiler, after everything else was printed.
    pub fn run(&self) -> Result<(), PipelineError> {
        let toolchain = Toolchain::system();
        let compiler = toolchain.as_ref().ok().map(|t| Compiler {
            command: t.command.clone(),
            version: t.version.clone(),
            cache: t.cache.display().to_string(),
        });
        let mut devices = Devices { machine: Machine::here(), vector: vector(), compiler, cuda: libraries(), gpus: gpus(), cores: None };
        if self.cores {
            let pool = Pool::new(0)?;
            let model = launch_and_copy::measure(&pool);
            launch_and_copy::store(pool.workers(), &model)?;
            devices.cores = Some(model);
        }
        if self.measure {
            if let Some(missing) = &devices.gpus.missing {
                return Err(KernelError::NoGpu { what: missing.clone() }.into());
            }
            for gpu in &mut devices.gpus.gpus {
                gpu.measured = Some(measured(gpu.number)?);
            }
        }
        if self.json {
            outln!("{}", serde_json::to_string(&devices).map_err(|e| PipelineError::Internal(e.to_string()))?);
        } else {
            out!("{}", text(&devices));
        }
        // Measuring GPUs needs no C compiler.
        if !self.measure {
            toolchain?;
        }
        Ok(())
    }
}

fn measured(gpu: i32) -> Result<Measured, PipelineError> {
    let device = CudaDevice::new(gpu.max(0) as usize, Toolchain::cache())?;
    let bf16 = Types { factor: Dtype::Bf16, out: Dtype::Bf16, tf32: false };
    let single = Types { factor: Dtype::F32, out: Dtype::F32, tf32: false };
    let mut products = PRODUCTS.map(|sizes| device.ceiling(bf16, sizes)).into_iter().collect::<Result<Vec<_>, _>>()?;
    products.push(device.ceiling(single, [4096; 3])?);
    products.push(device.ceiling(Types { tf32: true, ..single }, [4096; 3])?);
    Ok(Measured { toolchain: device.toolchain(), copy_gb_per_s: device.copy_bandwidth()?, products })
}

/// The libraries that CUDA kernels and contractions need.
fn libraries() -> Vec<Library> {
    let each = |library: cuda::CudaLibrary| {
        let found = library.load();
        let folder = found.as_ref().ok().and_then(|f| f.as_ref().map(|f| f.display().to_string()));
        Library { name: library.name(), found: found.is_ok(), folder, advice: found.is_err().then(|| library.advice()) }
    };
    cuda::CudaLibrary::ALL.map(each).into()
}

fn gpus() -> Gpus {
    let version = |(major, minor): (i32, i32)| format!("{major}.{minor}");
    let compiler = Nvrtc::find().ok().map(|n| version(n.version));
    match Driver::find() {
        Err(e) => Gpus { compiler, missing: Some(e.to_string()), ..Gpus::default() },
        Ok(driver) => {
            Gpus { driver: Some(version(driver.version)), compiler, gpus: driver.gpus.into_iter().map(gpu).collect(), missing: None }
        }
    }
}

fn gpu(gpu: cuda::Gpu) -> Gpu {
    let capability = format!("{}.{}", gpu.capability / 10, gpu.capability % 10);
    Gpu { number: gpu.number, name: gpu.name, capability, bytes: gpu.memory, processors: gpu.chip.processors, measured: None }
}

#[cfg(target_arch = "x86_64")]
fn vector() -> Vec<&'static str> {
    let known = [
        ("SSE2", true),
        ("AVX", is_x86_feature_detected!("avx")),
        ("AVX2", is_x86_feature_detected!("avx2")),
        ("FMA", is_x86_feature_detected!("fma")),
        ("AVX-512F", is_x86_feature_detected!("avx512f")),
        ("AVX-512 BF16", is_x86_feature_detected!("avx512bf16")),
    ];
    known.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

#[cfg(target_arch = "aarch64")]
fn vector() -> Vec<&'static str> {
    vec!["NEON"]
}

#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
fn vector() -> Vec<&'static str> {
    vec![]
}

/// One volume of the copy's curve, its bandwidth also as a bar of 2 GB/s each.
fn copy_line(volume: u64, ps: i64, bandwidth: f64) -> String {
    let (size, unit) = if volume >= 1 << 20 { (volume >> 20, "MiB") } else { (volume >> 10, "KiB") };
    let bar = "#".repeat((bandwidth / 2e9).round().clamp(0.0, 80.0) as usize);
    format!("          {size:>4} {unit}  {:>11.2} us  {:>6.1} GB/s  {bar}", ps as f64 / 1e6, bandwidth / 1e9)
}

fn text(devices: &Devices) -> String {
    let machine = &devices.machine;
    let caches: Vec<String> = machine.caches.iter().map(|c| format!("{} {} × {}", c.name, c.bytes_each, c.count)).collect();
    let mut lines = vec![
        format!("CPU       {}", machine.line()),
        format!("threads   {}", machine.threads),
        format!("caches    {}", caches.join(", ")),
        format!("vectors   {}", devices.vector.join(", ")),
    ];
    match &devices.compiler {
        Some(c) => lines.extend([format!("compiler  {} ({})", c.version, c.command), format!("kernels   {}", c.cache)]),
        None => lines.push("compiler  missing".into()),
    }
    if let Some(ScoreModel { curve, launch_ps, .. }) = &devices.cores {
        lines.push(format!("cores     {:.2} us for a dispatch to {} workers", *launch_ps as f64 / 1e6, machine.threads));
        lines.extend(curve.points().iter().map(|(volume, ps)| copy_line(*volume, *ps, curve.bandwidth(*volume))));
    }
    for library in &devices.cuda {
        lines.push(match (&library.folder, library.advice) {
            (Some(folder), _) => format!("CUDA      {}: found in {folder}", library.name),
            (None, None) => format!("CUDA      {}: found", library.name),
            (None, Some(advice)) => format!("CUDA      {}: not found; {advice}", library.name),
        });
    }
    let Gpus { driver, compiler, gpus, missing } = &devices.gpus;
    if let Some(version) = compiler {
        lines.push(format!("NVRTC     {version}"));
    }
    if let Some(version) = driver {
        lines.push(format!("driver    CUDA {version}"));
    }
    for g in gpus {
        let Gpu { number, name, capability, processors, bytes, measured } = g;
        lines.push(format!("GPU {number}     {name}, compute capability {capability}, {processors} processors, {bytes} bytes"));
        let Some(Measured { toolchain, copy_gb_per_s, products }) = measured else { continue };
        lines.push(format!("          {toolchain}"));
        lines.extend(copy_gb_per_s.map(|rate| format!("          copy: {rate:.0} GB/s, bytes read plus bytes written")));
        for GemmCeiling { types, sizes: [m, n, k], first, best, algorithms } in products {
            lines.push(format!(
                "          {types} {m}×{n}×{k}: {best:.1} TFLOP/s, the library's own choice {first:.1}; {algorithms} algorithms"
            ));
        }
    }
    lines.extend(missing.iter().map(|m| format!("GPU       {m}")));
    lines.join("\n") + "\n"
}
