//! The system's C compiler, and the cache of what it made.

mod canonical;

use crate::emit::c::Source;
use crate::error::KernelError;
use crate::maps::{dropout, stream};
use canonical::canonical;
use rayon::prelude::*;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Instant;

/// Fast code without `-ffast-math`: at link time that would make the whole process flush subnormals, and −∞ masks and NaN
/// must keep their meaning.
///
/// `-O2` with the vectoriser's full cost model takes half the time of `-O3`, which unrolls and splits loops whose time is in
/// memory anyway.
const FLAGS: [&str; 15] = [
    "-O2",
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-march=native",
    "-std=gnu11",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-freciprocal-math",
    "-fopenmp-simd",
    "-mprefer-vector-width=512",
    "-shared",
    "-fPIC",
];

/// A C compiler and a folder for what it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    pub command: String,
    /// First line of its `--version`: another compiler must not reuse what this one made.
    pub version: String,
    pub cache: PathBuf,
    /// What it is told besides the usual.
    pub flags: Vec<String>,
}

pub(crate) type Kernel = unsafe extern "C" fn(*const *mut u8, *const i64, *const Host, *mut u8, i64, i64);
pub(crate) type Prepare = unsafe extern "C" fn(*const *mut u8, *const i64, *const Host, i64, i64);
/// A function of which only generated code knows the arguments.
pub(crate) type Opaque = unsafe extern "C" fn();
pub(crate) type Finish = unsafe extern "C" fn(*const *mut u8, *const i64, *const u8, i64, i64, i64, i64, i64);

/// What generated code gets from this program, besides its arguments.
#[repr(C)]
pub(crate) struct Host {
    pub keep: *const dropout::Keep,
    pub row: dropout::Row,
    pub stream: stream::Stream,
    pub streams: i64,
    pub pack: Option<Opaque>,
    pub product: Option<Opaque>,
}

/// Entry points of a loaded kernel. Libraries are never unloaded, so they stay valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub prepare: Option<Prepare>,
    pub kernel: Kernel,
    pub finish: Option<Finish>,
    /// Packing and products, of a kernel that calls them.
    pub products: [Option<Opaque>; 2],
}

impl Toolchain {
    /// The compiler named by `CC`, else `cc`; the cache in `MEMLET_CACHE_DIR`, else under the XDG cache folder.
    ///
    /// # Errors
    /// No compiler that starts.
    pub fn system() -> Result<Self, KernelError> {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        let command = set("CC").map_or_else(|| "cc".to_string(), |c| c.to_string_lossy().into_owned());
        Toolchain::new(command, Toolchain::cache())
    }

    /// Folder of compiled kernels: `MEMLET_CACHE_DIR`, else under the XDG cache folder.
    pub fn cache() -> PathBuf {
        let set = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty());
        set("MEMLET_CACHE_DIR")
            .map(PathBuf::from)
            .or_else(|| set("XDG_CACHE_HOME").map(|d| PathBuf::from(d).join("memlet")))
            .or_else(|| set("HOME").map(|d| PathBuf::from(d).join(".cache").join("memlet")))
            .unwrap_or_else(|| std::env::temp_dir().join("memlet"))
    }

    /// # Errors
    /// A compiler that does not start.
    pub fn new(command: String, cache: PathBuf) -> Result<Self, KernelError> {
        let output = Command::new(&command)
            .arg("--version")
            .output()
            .map_err(|source| KernelError::NoCompiler { command: command.clone(), source })?;
        let version = String::from_utf8_lossy(&output.stdout).lines().next().unwrap_or("unknown").to_string();
        Ok(Toolchain { command, version, cache, flags: vec![] })
    }

    /// Compiles and loads a source, unless that has been done before.
    pub(crate) fn load(&self, name: &str, source: &Source) -> Result<Entry, KernelError> {
        static LOADED: OnceLock<Mutex<BTreeMap<String, Entry>>> = OnceLock::new();
        let loaded = LOADED.get_or_init(Mutex::default);
        let text = canonical(&source.text);
        let hash = self.hash(&text);
        if let Some(entry) = loaded.lock().unwrap_or_else(|e| e.into_inner()).get(&hash) {
            return Ok(*entry);
        }
        let mut entry = open(&self.library(name, &text)?, source.preparations > 0, !source.partials.is_empty())?;
        if let Some(products) = &source.library {
            entry.products = open_products(&self.library("products", products)?)?;
        }
        loaded.lock().unwrap_or_else(|e| e.into_inner()).insert(hash, entry);
        Ok(entry)
    }

    /// Compiles what has not been compiled before, as many at a time as the machine has cores, until that time. Whoever loads a
    /// source that cannot be compiled is told so.
    pub(crate) fn prepare(&self, sources: Vec<(&str, Source)>, until: Option<Instant>) {
        let texts = sources
            .into_iter()
            .flat_map(|(name, source)| [(canonical(&source.text), name)].into_iter().chain(source.library.map(|text| (text, "products"))));
        let texts: BTreeMap<String, &str> = texts.collect();
        texts.into_par_iter().for_each(|(text, name)| {
            if until.is_none_or(|until| Instant::now() < until) {
                drop(self.library(name, &text));
            }
        });
    }

    /// Content hash of what is made of a text here.
    fn hash(&self, text: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        let flags: Vec<&str> = FLAGS.into_iter().chain(self.flags.iter().map(String::as_str)).collect();
        for part in [self.command.as_str(), &self.version, &flags.join(" "), text] {
            hasher.update(part.as_bytes()).update(b"\0");
        }
        // `-march=native` code must not be found by another machine that shares the folder.
        hasher.update(processor().as_bytes());
        hasher.finalize().to_hex().to_string()
    }

    /// The library made of a text, now or before.
    fn library(&self, name: &str, text: &str) -> Result<PathBuf, KernelError> {
        let library = self.cache.join(format!("{}.so", self.hash(text)));
        if !library.exists() {
            self.compile(name, text, &library)?;
        }
        Ok(library)
    }

    fn compile(&self, name: &str, text: &str, library: &Path) -> Result<(), KernelError> {
        static NUMBER: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
        let cache = |path: &Path| {
            let path = path.to_path_buf();
            move |source| KernelError::Cache { path, source }
        };
        std::fs::create_dir_all(&self.cache).map_err(cache(&self.cache))?;
        let number = NUMBER.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let file = library.with_extension("c");
        // Written aside and renamed, so that no other process sees half a file.
        let aside = |extension: &str| library.with_extension(format!("{}-{number}.{extension}", std::process::id()));
        let (source_aside, library_aside) = (aside("c"), aside("so"));
        std::fs::write(&source_aside, text).map_err(cache(&source_aside))?;
        let output = Command::new(&self.command)
            .args(FLAGS)
            .args(&self.flags)
            .arg("-o")
            .arg(&library_aside)
            .arg(&source_aside)
            .arg("-lm")
            .output()
            .map_err(|source| KernelError::NoCompiler { command: self.command.clone(), source })?;
        std::fs::rename(&source_aside, &file).map_err(cache(&file))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr).lines().take(20).collect::<Vec<_>>().join("\n");
            return Err(KernelError::Compile { kernel: name.to_string(), source_file: file, message });
        }
        std::fs::rename(&library_aside, library).map_err(cache(library))
    }
}

/// Model of the processor, as far as the system tells.
fn processor() -> &'static str {
    static MODEL: OnceLock<String> = OnceLock::new();
    MODEL.get_or_init(|| {
        let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        info.lines().filter(|l| l.starts_with("model name") || l.starts_with("flags")).take(2).collect()
    })
}

fn open(path: &Path, prepares: bool, finishes: bool) -> Result<Entry, KernelError> {
    let failed = |e: libloading::Error| KernelError::Load { path: path.to_path_buf(), message: e.to_string() };
    let library = open_library(path)?;
    // SAFETY: `emit::c` prints these functions with these types.
    let entry = unsafe {
        Entry {
            prepare: if prepares { Some(*library.get::<Prepare>(b"memlet_prepare\0").map_err(failed)?) } else { None },
            kernel: *library.get::<Kernel>(b"memlet_kernel\0").map_err(failed)?,
            finish: if finishes { Some(*library.get::<Finish>(b"memlet_finish\0").map_err(failed)?) } else { None },
            products: [None; 2],
        }
    };
    std::mem::forget(library);
    Ok(entry)
}

/// Packing and products of tiles.
fn open_products(path: &Path) -> Result<[Option<Opaque>; 2], KernelError> {
    let failed = |e: libloading::Error| KernelError::Load { path: path.to_path_buf(), message: e.to_string() };
    let library = open_library(path)?;
    // SAFETY: `product.c` has both; only code that `Products::calls` declares them for calls them.
    let found = unsafe { [*library.get::<Opaque>(b"memlet_pack\0").map_err(failed)?, *library.get(b"memlet_product\0").map_err(failed)?] };
    std::mem::forget(library);
    Ok(found.map(Some))
}

fn open_library(path: &Path) -> Result<libloading::Library, KernelError> {
    let failed = |e: libloading::Error| KernelError::Load { path: path.to_path_buf(), message: e.to_string() };
    // SAFETY: the library was generated by this crate; it has no initialisers.
    unsafe { libloading::Library::new(path) }.map_err(failed)
}
