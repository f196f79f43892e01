//! The system's C compiler, and the cache of what it made.

use crate::cancel::CancelToken;
use crate::error::KernelError;
use crate::instruction_set::InstructionSet;
use crate::runtime::{dropout, stream};
use crate::single_flight::{InFlight, InFlightGuard};
use crate::target::cpu::canonical::canonical;
use crate::target::cpu::emit::CSource;
use rayon::prelude::*;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::{Duration, Instant};

/// Fast code without `-ffast-math`: at link time that would make the whole process flush subnormals, and −∞ masks and NaN
/// must keep their meaning. Neither are sums reordered nor divisions made products: generated code says itself which sums are vectors
/// (`omp simd reduction`) and which reciprocals are safe, and all else is computed as the program has it.
///
/// `-O2` with the vectoriser's full cost model takes half the time of `-O3`, which unrolls and splits loops whose time is in
/// memory anyway.
const FLAGS: [&str; 10] = [
    "-O2",
    "-ftree-vectorize",
    "-fvect-cost-model=dynamic",
    "-std=gnu11",
    "-ffp-contract=fast",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fopenmp-simd",
    "-shared",
    "-fPIC",
];

/// Texts that are compiled together at most.
const TOGETHER: usize = 8;
/// Parts for each core into which texts are divided at least, unless they are fewer.
const PARTS: usize = 4;
/// Functions of a generated text.
const FUNCTIONS: [&str; 5] = ["point", "in_panels", "memlet_kernel", "memlet_prepare", "memlet_finish"];
/// What a text defines for itself alone.
const MACROS: [&str; 4] = ["LANES", "pack_chunks", "pack_lines", "gemm"];

/// Libraries that some thread of this process compiles, by their paths.
static MAKING: InFlight = InFlight::new();

/// Microseconds that this process has spent on gemm libraries.
static GEMM_LIBRARIES: AtomicU64 = AtomicU64::new(0);

/// What this process has spent so far on gemm libraries, which kernels of one type share: no single kernel costs that.
pub fn spent_on_gemm_libraries() -> Duration {
    Duration::from_micros(GEMM_LIBRARIES.load(Ordering::Relaxed))
}

/// Texts that this process has compiled, and runs of the compiler.
static COMPILED: [AtomicU64; 2] = [AtomicU64::new(0), AtomicU64::new(0)];

/// How many texts this process has compiled so far, and in how many runs of the compiler.
pub fn compiled_so_far() -> (u64, u64) {
    (COMPILED[0].load(Ordering::Relaxed), COMPILED[1].load(Ordering::Relaxed))
}

/// What one run of the compiler makes.
enum CompileJob {
    /// A library of packing and products, of its text.
    GemmLibrary(Arc<str>),
    /// Kernels, of their hashes and texts.
    Kernels(Vec<(String, String)>),
}

/// A C compiler and a folder for what it makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolchain {
    pub command: String,
    /// First line of its `--version`: another compiler must not reuse what this one made.
    pub version: String,
    pub cache: PathBuf,
    /// Flags besides the usual ones.
    pub flags: Vec<String>,
    /// Whether kernels are made for their texts alone: nothing is compiled, and none of them can run.
    pub texts_only: bool,
}

pub(crate) type KernelFn = unsafe extern "C" fn(*const *mut u8, *const i64, *const Host, *mut u8, i64, i64);
pub(crate) type PrepareFn = unsafe extern "C" fn(*const *mut u8, *const i64, *const Host, i64, i64);
/// A function whose arguments only generated code knows.
pub(crate) type Opaque = unsafe extern "C" fn();
pub(crate) type FinishFn = unsafe extern "C" fn(*const *mut u8, *const i64, *const u8, i64, i64, i64, i64, i64);

/// What generated code gets from this program, besides its arguments.
#[repr(C)]
pub(crate) struct Host {
    pub keep: *const dropout::Keep,
    pub row: dropout::DrawRowFn,
    pub stream: stream::Stream,
    pub streams: i64,
    pub late: i64,
    pub around: Option<stream::Stream>,
    pub pack: Option<Opaque>,
    pub pack_lines: Option<Opaque>,
    pub gemm: Option<Opaque>,
}

/// Entry points of a loaded kernel. Libraries are never unloaded, so they stay valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry {
    pub prepare: Option<PrepareFn>,
    pub kernel: KernelFn,
    pub finish: Option<FinishFn>,
    /// Packing of columns, of rows, and products, of a kernel that calls them.
    pub gemm: [Option<Opaque>; 3],
}

impl Entry {
    /// Of a text that is not compiled.
    fn absent(prepares: bool, finishes: bool) -> Self {
        unsafe extern "C" fn kernel(_: *const *mut u8, _: *const i64, _: *const Host, _: *mut u8, _: i64, _: i64) {
            std::process::abort();
        }
        unsafe extern "C" fn prepare(_: *const *mut u8, _: *const i64, _: *const Host, _: i64, _: i64) {
            std::process::abort();
        }
        unsafe extern "C" fn finish(_: *const *mut u8, _: *const i64, _: *const u8, _: i64, _: i64, _: i64, _: i64, _: i64) {
            std::process::abort();
        }
        Entry { prepare: prepares.then_some(prepare as PrepareFn), kernel, finish: finishes.then_some(finish as FinishFn), gemm: [None; 3] }
    }
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
        let flags: Vec<String> = InstructionSet::native().compiler_flags().iter().map(ToString::to_string).collect();
        // Another measurement must not be taken for this one, nor another cache be shared.
        let version = InstructionSet::limit()?.map_or(version.clone(), |most| format!("{version}, {most:?} at most"));
        Ok(Toolchain { command, version, cache, flags, texts_only: false })
    }

    /// A toolchain for the texts of kernels alone, which needs no compiler.
    pub fn texts() -> Self {
        let flags = InstructionSet::native().compiler_flags().iter().map(ToString::to_string).collect();
        Toolchain { command: String::new(), version: String::new(), cache: PathBuf::new(), flags, texts_only: true }
    }

    /// The flags that generated code is compiled with, without those for shared libraries.
    pub fn code_flags(&self) -> Vec<String> {
        let usual = FLAGS.into_iter().filter(|flag| !["-shared", "-fPIC"].contains(flag)).map(String::from);
        usual.chain(self.flags.iter().cloned()).collect()
    }

    /// Compiles and loads a source, unless that has been done before.
    pub(crate) fn load(&self, name: &str, source: &CSource) -> Result<Entry, KernelError> {
        if self.texts_only {
            return Ok(Entry::absent(source.preparations > 0, !source.partials.is_empty()));
        }
        static LOADED: OnceLock<Mutex<BTreeMap<String, Entry>>> = OnceLock::new();
        let loaded = LOADED.get_or_init(Mutex::default);
        let text = canonical(&source.text, &source.names);
        let hash = self.hash(&text);
        if let Some(entry) = loaded.lock().unwrap_or_else(|e| e.into_inner()).get(&hash) {
            return Ok(*entry);
        }
        self.together(name, &[(hash.clone(), text)])?;
        let library = self.library(&hash);
        let mut entry = open(&library, &hash, source.preparations > 0, !source.partials.is_empty())?;
        if let Some(products) = &source.library {
            entry.gemm = self.functions(products)?;
        }
        loaded.lock().unwrap_or_else(|e| e.into_inner()).insert(hash, entry);
        Ok(entry)
    }

    /// Compiles the sources that have no library yet, on all cores, until it is cancelled. Errors are reported where a source is loaded.
    pub(crate) fn precompile(&self, sources: Vec<CSource>, until: CancelToken) {
        if self.texts_only {
            return;
        }
        let products: BTreeSet<Arc<str>> = sources.iter().filter_map(|source| source.library.clone()).collect();
        let mut parts: Vec<CompileJob> = products.into_iter().map(CompileJob::GemmLibrary).collect();
        for double in [false, true] {
            let mine = sources.par_iter().filter(|source| source.double == double).map(|source| canonical(&source.text, &source.names));
            let texts: BTreeMap<String, String> = mine.map(|text| (self.hash(&text), text)).collect();
            let texts: Vec<(String, String)> = texts.into_iter().filter(|(hash, _)| !self.library(hash).exists()).collect();
            // Several parts for each core: some texts take ten times as long as others, and a core that has finished takes the next part.
            let share = texts.len().div_ceil(PARTS * rayon::current_num_threads()).clamp(1, TOGETHER);
            parts.extend(texts.chunks(share).map(|texts| CompileJob::Kernels(texts.to_vec())));
        }
        // A gemm library takes as long as many kernels: it comes first, and kernels beside it.
        parts.into_iter().par_bridge().filter(|_| until.goes_on()).for_each(|part| match part {
            CompileJob::GemmLibrary(text) => drop(self.gemm_library(&text)),
            CompileJob::Kernels(texts) => drop(self.together("", &texts)),
        });
    }

    /// Compiles those of some texts that have no library yet, by their hashes and in the order of these, as one: starting a compiler,
    /// assembler and linker takes as long as a kernel. Each text has a library of its own name, which is the same file for all of them.
    fn together(&self, name: &str, texts: &[(String, String)]) -> Result<(), KernelError> {
        let missing = |(hash, _): &&(String, String)| !self.library(hash).exists();
        let _making: Vec<InFlightGuard> = texts.iter().filter(missing).map(|(hash, _)| self.claim(hash)).collect();
        // Other threads may have compiled some of them while this one waited.
        let texts: Vec<&(String, String)> = texts.iter().filter(missing).collect();
        let [(first, _), rest @ ..] = &texts[..] else { return Ok(()) };
        let whole: String = texts.iter().map(|(hash, text)| renamed(hash, text)).collect();
        let library = self.library(first);
        self.compile(name, &whole, &library)?;
        COMPILED[0].fetch_add(rest.len() as u64, Ordering::Relaxed);
        for (hash, _) in rest {
            let link = self.library(hash);
            match std::fs::hard_link(&library, &link) {
                Err(source) if !link.exists() => return Err(KernelError::Cache { path: link, source }),
                _ => {}
            }
        }
        Ok(())
    }

    /// The right to make the library of a text, once no other thread is at it.
    fn claim(&self, hash: &str) -> InFlightGuard<'static> {
        MAKING.claim(&self.library(hash).to_string_lossy())
    }

    /// Where the library made of a text is, or will be.
    fn library(&self, hash: &str) -> PathBuf {
        self.cache.join(format!("{hash}.so"))
    }

    /// Packing of columns, of rows, and products, of the library made of a text.
    pub(crate) fn functions(&self, text: &str) -> Result<[Option<Opaque>; 3], KernelError> {
        open_gemm_library(&self.gemm_library(text)?)
    }

    /// The library of packing and products made of a text, now or before.
    fn gemm_library(&self, text: &str) -> Result<PathBuf, KernelError> {
        let hash = self.hash(text);
        let library = self.library(&hash);
        if !library.exists() {
            let _making = self.claim(&hash);
            if !library.exists() {
                let began = Instant::now();
                self.compile("products", text, &library)?;
                GEMM_LIBRARIES.fetch_add(began.elapsed().as_micros() as u64, Ordering::Relaxed);
            }
        }
        Ok(library)
    }

    /// Content hash of the library compiled from a text by this toolchain.
    fn hash(&self, text: &str) -> String {
        let mut hasher = blake3::Hasher::new();
        let flags: Vec<&str> = FLAGS.into_iter().chain(self.flags.iter().map(String::as_str)).collect();
        for part in [self.command.as_str(), &self.version, &flags.join(" "), &FUNCTIONS.join(" "), text] {
            hasher.update(part.as_bytes()).update(b"\0");
        }
        // `-march=native` code must not be found by another machine that shares the folder.
        hasher.update(processor().as_bytes());
        hasher.finalize().to_hex().to_string()
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
        let mut compiler = Command::new(&self.command);
        compiler.args(FLAGS).args(&self.flags).arg("-o").arg(&library_aside).arg(&source_aside).arg("-lm");
        let made = run(&mut compiler, name, &file, &self.cache);
        std::fs::rename(&source_aside, &file).map_err(cache(&file))?;
        made?;
        COMPILED.iter().for_each(|count| _ = count.fetch_add(1, Ordering::Relaxed));
        std::fs::rename(&library_aside, library).map_err(cache(library))
    }
}

/// Runs a compiler on the text of a kernel, which is or will be in that file, for a cache.
pub(crate) fn run(compiler: &mut Command, kernel: &str, source_file: &Path, cache: &Path) -> Result<(), KernelError> {
    let command = compiler.get_program().to_string_lossy().into_owned();
    let kernel = kernel.to_string();
    // In a process group of its own, so that Ctrl-C does not stop the compiler: what it makes is kept.
    let output = match compiler.process_group(0).output() {
        Ok(output) => output,
        Err(source) => return Err(KernelError::NoCompiler { command, source }),
    };
    let message = String::from_utf8_lossy(&output.stderr).lines().take(30).collect::<Vec<_>>().join("\n");
    match output.status.code() {
        Some(0) => Ok(()),
        None => Err(KernelError::CompilerStopped { kernel, status: output.status }),
        // Of the cache, or of the folder for what a compiler makes on its way.
        Some(_) if message.contains("No space left on device") => {
            Err(KernelError::Cache { path: cache.to_path_buf(), source: std::io::ErrorKind::StorageFull.into() })
        }
        Some(_) => Err(KernelError::Compile { kernel, source_file: source_file.to_path_buf(), message }),
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

/// The name under which a function of the text with this hash is found.
fn symbol(function: &str, hash: &str) -> String {
    format!("{function}_{}", &hash[..16])
}

/// A text whose functions have names of their own, so that it can be compiled together with other texts.
fn renamed(hash: &str, text: &str) -> String {
    let define: String = FUNCTIONS.iter().map(|name| format!("#define {name} {}\n", symbol(name, hash))).collect();
    let undefine: String = FUNCTIONS.iter().chain(&MACROS).map(|name| format!("#undef {name}\n")).collect();
    format!("{define}{text}{undefine}")
}

fn open(path: &Path, hash: &str, prepares: bool, finishes: bool) -> Result<Entry, KernelError> {
    let failed = |e: libloading::Error| KernelError::Load { path: path.to_path_buf(), message: e.to_string() };
    let library = open_library(path)?;
    let [prepare, kernel, finish] = ["memlet_prepare", "memlet_kernel", "memlet_finish"].map(|name| symbol(name, hash) + "\0");
    // SAFETY: `emit::c` prints these functions with these types.
    let entry = unsafe {
        Entry {
            prepare: if prepares { Some(*library.get::<PrepareFn>(prepare.as_bytes()).map_err(failed)?) } else { None },
            kernel: *library.get::<KernelFn>(kernel.as_bytes()).map_err(failed)?,
            finish: if finishes { Some(*library.get::<FinishFn>(finish.as_bytes()).map_err(failed)?) } else { None },
            gemm: [None; 3],
        }
    };
    std::mem::forget(library);
    Ok(entry)
}

/// Packing and products of tiles.
fn open_gemm_library(path: &Path) -> Result<[Option<Opaque>; 3], KernelError> {
    let failed = |e: libloading::Error| KernelError::Load { path: path.to_path_buf(), message: e.to_string() };
    let library = open_library(path)?;
    // SAFETY: `gemm.c` has them all; only code that `GemmPlan::calls` declares them for calls them.
    let find = |name: &str| unsafe { library.get::<Opaque>(name.as_bytes()) }.map(|f| Some(*f)).map_err(failed);
    let found = [find("memlet_pack\0")?, find("memlet_pack_rows\0")?, find("memlet_gemm\0")?];
    std::mem::forget(library);
    Ok(found)
}

fn open_library(path: &Path) -> Result<libloading::Library, KernelError> {
    let failed = |e: libloading::Error| KernelError::Load { path: path.to_path_buf(), message: e.to_string() };
    // SAFETY: the library was generated by this crate; it has no initialisers.
    unsafe { libloading::Library::new(path) }.map_err(failed)
}
