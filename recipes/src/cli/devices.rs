//! `memlet devices`: what can be used on this machine, and what is missing.

use crate::pipeline::PipelineError;
use bench::Machine;
use clap::Args;
use kernels::Toolchain;
use serde::Serialize;

#[derive(Args)]
pub struct DevicesArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What CUDA kernels will need: libraries of the driver and of the toolkit, under the names that they are found by.
const CUDA: [(&str, &[&str]); 3] = [
    ("libcuda.so.1", &["libcuda.so.1"]),
    ("libnvrtc.so", &["libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"]),
    ("libcublasLt.so", &["libcublasLt.so", "libcublasLt.so.13", "libcublasLt.so.12"]),
];

#[derive(Serialize)]
struct Devices {
    machine: Machine,
    /// Extensions that the processor has, widest last.
    vector: Vec<&'static str>,
    compiler: Option<Compiler>,
    cuda: Vec<Library>,
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
        let cuda = CUDA.map(|(name, names)| Library { name, found: names.iter().any(|n| loads(n)) }).into();
        let devices = Devices { machine: Machine::here(), vector: vector(), compiler, cuda };
        if self.json {
            println!("{}", serde_json::to_string(&devices).map_err(|e| PipelineError::Internal(e.to_string()))?);
        } else {
            print!("{}", text(&devices));
        }
        toolchain?;
        Ok(())
    }
}

/// Whether the system finds the library.
fn loads(name: &str) -> bool {
    // SAFETY: these are libraries of the system's vendor; their initialisers are meant to run in any process.
    unsafe { libloading::Library::new(name) }.is_ok()
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
        lines.push(format!("CUDA      {}: {}", library.name, if library.found { "found" } else { "not found" }));
    }
    lines.push("Kernels are made for the CPU only so far.".into());
    lines.join("\n") + "\n"
}
