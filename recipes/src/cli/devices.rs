//! `memlet devices`: what can be used on this machine, and what is missing.

use crate::pipeline::PipelineError;
use bench::Machine;
use clap::Args;
use kernels::Toolchain;
use kernels::device::cuda::{self, Driver, Nvrtc};
use serde::Serialize;

#[derive(Args)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Devices {
    machine: Machine,
    /// Extensions that the processor has, widest last.
    vector: Vec<&'static str>,
    compiler: Option<Compiler>,
    cuda: Vec<Library>,
    gpus: Gpus,
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
    /// Where, unless the system's loader finds it.
    folder: Option<String>,
    /// What to do where it is missing.
    advice: Option<&'static str>,
}

/// The parts of CUDA that were found and can be used.
#[derive(Serialize, Default)]
struct Gpus {
    /// Version of CUDA that the driver runs, and that the run-time compiler is of.
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
    processors: u32,
}

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
        let devices = Devices { machine: Machine::here(), vector: vector(), compiler, cuda: libraries(), gpus: gpus() };
        if self.json {
            println!("{}", serde_json::to_string(&devices).map_err(|e| PipelineError::Internal(e.to_string()))?);
        } else {
            print!("{}", text(&devices));
        }
        toolchain?;
        Ok(())
    }
}

/// What CUDA kernels and contractions need.
fn libraries() -> Vec<Library> {
    let each = |library: cuda::Library| {
        let found = library.load();
        let folder = found.as_ref().ok().and_then(|f| f.as_ref().map(|f| f.display().to_string()));
        Library { name: library.name(), found: found.is_ok(), folder, advice: found.is_err().then(|| library.advice()) }
    };
    cuda::Library::ALL.map(each).into()
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
    Gpu { number: gpu.number, name: gpu.name, capability, bytes: gpu.memory, processors: gpu.processors }
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
    lines.extend(gpus.iter().map(|g| {
        format!("GPU {}     {}, compute capability {}, {} processors, {} bytes", g.number, g.name, g.capability, g.processors, g.bytes)
    }));
    lines.extend(missing.iter().map(|m| format!("GPU       {m}")));
    lines.join("\n") + "\n"
}
