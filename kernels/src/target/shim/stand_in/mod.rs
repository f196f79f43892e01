//! Libraries that take the place of CUDA's on a machine without a GPU, for tests: a device of NVIDIA's kind is all the same to whoever
//! uses it, down to the driver's calls, and what it is asked is carried out on cores.
//!
//! The shim ([`crate::target::shim::ShimDevice`]) runs kernels and products; this runs the code that puts them on a GPU: contexts, memory,
//! streams, captured graphs, events, compilation in the background, algorithms, and errors of the driver.

use crate::error::KernelError;
use crate::target::shim::{made, simulator};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What the libraries are made of, and their names.
const SOURCES: [(&str, &str, &str); 3] = [
    ("cuda.cpp", include_str!("cuda.cpp"), "libcuda.so"),
    ("nvrtc.cpp", include_str!("nvrtc.cpp"), "libnvrtc.so"),
    ("cublaslt.cpp", include_str!("cublaslt.cpp"), "libcublasLt.so"),
];
/// What kernels are linked with.
const SIMULATOR: &str = "libsimulator.so";
/// Opened beside the run-time compiler; nothing is in it.
const BUILTINS: &str = "libnvrtc-builtins.so";

/// Where the libraries lie.
pub struct StandIn {
    pub folder: PathBuf,
}

impl StandIn {
    /// Makes the libraries in a folder below this one, unless they are there.
    ///
    /// # Errors
    /// A compiler that is missing or refuses; a folder that cannot be written.
    pub fn make(cache: &Path) -> Result<Self, KernelError> {
        let simulator = simulator::text();
        let set = std::env::var("CXX").ok().filter(|v| !v.is_empty());
        let command = set.unwrap_or_else(|| "c++".into());
        let texts =
            SOURCES.iter().map(|(_, text, _)| *text).chain([&*simulator, include_str!("stand_in.h"), include_str!("mod.rs"), &command]);
        let folder = cache.join(format!("stand-in-{}", &blake3::hash(texts.collect::<String>().as_bytes()).to_hex()[..16]));
        if made(&folder, |aside| StandIn::make_in(aside, &command))? {
            simulator::precompile(&folder, &command);
        }
        Ok(StandIn { folder })
    }

    fn make_in(aside: &Path, command: &str) -> Result<(), KernelError> {
        let write = |name: &str, text: &str| {
            let path = aside.join(name);
            std::fs::write(&path, text).map_err(|source| KernelError::Cache { path, source })
        };
        let made = aside.join("made");
        std::fs::create_dir_all(&made).map_err(|source| KernelError::Cache { path: made, source })?;
        simulator::make_in(aside, SIMULATOR, command)?;
        write("stand_in.h", include_str!("stand_in.h"))?;
        write("empty.cpp", "")?;
        for (file, text, _) in SOURCES {
            write(file, text)?;
        }
        for (file, library) in SOURCES.iter().map(|(file, _, library)| (*file, *library)).chain([("empty.cpp", BUILTINS)]) {
            let mut compiler = Command::new(command);
            compiler.current_dir(aside).args(["-std=c++17", "-O1", "-shared", "-fPIC", "-o", library, file]);
            compiler.arg(format!("-Wl,-soname,{library}"));
            if library == "libnvrtc.so" {
                // What it asks the compiler for, beside the names of files.
                let linked = simulator::linked(Path::new("."), SIMULATOR, "..");
                let flags = simulator::FLAGS.join(" ") + " -include " + simulator::HEADER;
                compiler.arg(format!("-DFLAGS=\"{flags}\"")).arg(format!("-DLINKED=\"'{}'\"", linked.join("' '")));
            }
            if library == "libcublasLt.so" {
                compiler.args(["-L.", "-lcuda", "-Wl,-rpath,$ORIGIN"]);
            }
            let output = compiler.output().map_err(|source| KernelError::NoCompiler { command: command.into(), source })?;
            if !output.status.success() {
                let message = String::from_utf8_lossy(&output.stderr).lines().take(30).collect::<Vec<_>>().join("\n");
                return Err(KernelError::Compile { kernel: library.into(), source_file: aside.join(file), message });
            }
        }
        Ok(())
    }

    /// What a process needs in its environment to find them in the place of CUDA's. What it compiles stays with them: a GPU's code has
    /// the same names.
    pub fn environment(&self) -> [(&'static str, PathBuf); 3] {
        let at = |name: &str| self.folder.join(name);
        [("MEMLET_CUDA_PATH", self.folder.clone()), ("MEMLET_STAND_IN", self.folder.clone()), ("MEMLET_CACHE_DIR", at("cache"))]
    }
}
