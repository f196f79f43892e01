//! CUDA's libraries: where they are looked for, and what was found.
//!
//! The bindings load a library by its name alone. A library that was opened before, by its path, is found under its name too;
//! so folders that the system's loader does not know are tried here first.

use crate::error::KernelError;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// A library that CUDA kernels or contractions need.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CudaLibrary {
    /// The driver: comes with the graphics card's driver alone.
    Driver,
    Nvrtc,
    CublasLt,
}

impl CudaLibrary {
    pub const ALL: [CudaLibrary; 3] = [CudaLibrary::Driver, CudaLibrary::Nvrtc, CudaLibrary::CublasLt];

    /// The name under which systems know it.
    pub fn name(self) -> &'static str {
        match self {
            CudaLibrary::Driver => "libcuda.so.1",
            CudaLibrary::Nvrtc => "libnvrtc.so",
            CudaLibrary::CublasLt => "libcublasLt.so",
        }
    }

    /// What to do where it is missing.
    pub fn advice(self) -> &'static str {
        match self {
            CudaLibrary::Driver => "install NVIDIA's driver (580 or newer for CUDA 13)",
            CudaLibrary::Nvrtc => {
                "install the CUDA toolkit, or `pip install nvidia-cuda-nvrtc==13.0.88` and set MEMLET_CUDA_PATH to its folder nvidia/cu13"
            }
            CudaLibrary::CublasLt => {
                "install the CUDA toolkit, or `pip install nvidia-cublas==13.0.*` and set MEMLET_CUDA_PATH to its folder nvidia/cu13"
            }
        }
    }

    /// Files to open, in this order: first what the library itself opens by name.
    fn files(self) -> &'static [&'static str] {
        match self {
            CudaLibrary::Driver => &["libcuda.so"],
            CudaLibrary::Nvrtc => &["libnvrtc-builtins.so", "libnvrtc.so"],
            CudaLibrary::CublasLt => &["libcublasLt.so"],
        }
    }

    fn present(self) -> bool {
        // SAFETY: these libraries of the system's vendor are meant to be loaded into any process.
        unsafe {
            match self {
                CudaLibrary::Driver => cudarc::driver::sys::is_culib_present(),
                CudaLibrary::Nvrtc => cudarc::nvrtc::sys::is_culib_present(),
                CudaLibrary::CublasLt => cudarc::cublaslt::sys::is_culib_present(),
            }
        }
    }

    /// Loads the library: from the folders of `MEMLET_CUDA_PATH`, `CUDA_HOME`, `CUDA_PATH`, `/usr/local/cuda` and
    /// `/usr/local/nvidia`, else as the system finds it. Returns where it was found; `None` stands for the system's own folders.
    ///
    /// # Errors
    /// A library that is nowhere.
    pub fn load(self) -> Result<Option<PathBuf>, KernelError> {
        static FOUND: [OnceLock<Option<Option<PathBuf>>>; 3] = [const { OnceLock::new() }; 3];
        let found = FOUND[self as usize].get_or_init(|| {
            let folder = folders().into_iter().find(|folder| self.files().iter().all(|file| open(folder, file)));
            self.present().then_some(folder)
        });
        found.clone().ok_or_else(|| {
            let mut tried: Vec<String> = folders().iter().map(|f| f.display().to_string()).collect();
            tried.push("the system's folders".into());
            KernelError::NoLibrary { library: self.name(), tried, advice: self.advice() }
        })
    }
}

/// Folders in which libraries of CUDA may lie.
fn folders() -> Vec<PathBuf> {
    let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    // The last one is where containers find the driver.
    let usual = ["/usr/local/cuda", "/usr/local/nvidia"].map(|root| Some(root.into()));
    let roots = [set("MEMLET_CUDA_PATH"), set("CUDA_HOME"), set("CUDA_PATH")].into_iter().chain(usual);
    let inside = |root: PathBuf| [root.join("lib"), root.join("lib64"), root];
    roots.flatten().flat_map(inside).filter(|folder| folder.is_dir()).collect()
}

/// Opens the newest version of a library in a folder, and keeps it open.
fn open(folder: &Path, file: &str) -> bool {
    let Ok(entries) = std::fs::read_dir(folder) else { return false };
    let version = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let numbers = name.strip_prefix(file)?.split('.').filter(|n| !n.is_empty()).map(|n| n.parse::<u32>().ok());
        numbers.collect::<Option<Vec<u32>>>()
    };
    let mut versions: Vec<(Vec<u32>, PathBuf)> =
        entries.flatten().map(|e| e.path()).filter_map(|path| Some((version(&path)?, path))).collect();
    versions.sort();
    versions.into_iter().rev().any(|(_, path)| {
        // SAFETY: as for `present`.
        let library = unsafe { libloading::Library::new(path) };
        library.map(std::mem::forget).is_ok()
    })
}
