//! CUDA kernels on the CPU: compiled as C++ against a header of ours, run thread by thread, every access checked.
//!
//! For tests on machines without a GPU. Nothing here is fast, and nothing is timed.

mod device;
mod recording;
mod simulator;
pub mod stand_in;

pub use device::ShimDevice;

use crate::buffer::AlignedBuffer;
use crate::error::KernelError;
use crate::kernel::{ArgumentAccess, KernelArgument, KernelSpec};
use crate::single_flight::InFlight;
use crate::target::cpu::compile::{Toolchain, run};
use crate::target::cuda::emit::{CudaSource, drawn};
use sdfg::interpret::Run;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A C++ compiler and a folder for what it makes.
#[derive(Clone, Debug)]
pub struct Shim {
    pub command: String,
    /// First line of its `--version`: what one compiler has made of the shim another does not read.
    version: String,
    pub cache: PathBuf,
}

/// The shim in the registry.
pub static TARGET: super::TargetInfo = super::TargetInfo {
    id: "shim",
    title: "generated CUDA carried out on the cores, for tests",
    is_numbered: true,
    is_for_tests: true,
    open: |_| Ok(std::sync::Arc::new(ShimDevice::new(Toolchain::cache().join("shim")))),
    epilogues: Some(super::cuda::cublaslt::FusedContraction::has),
    code: super::cuda::assumed_code,
    template: super::cuda::template::template_of,
    generated: |spec| super::cuda::templates::space(spec, super::cuda::emit::Chip::HOPPER),
};

/// A CUDA kernel that the CPU can run.
pub struct ShimKernel {
    source: CudaSource,
    which: c_int,
    run: Entry,
}

/// What a run is given besides its arguments.
#[derive(Clone, Copy, Debug)]
pub struct ShimRun {
    pub run: Run,
    /// Decides about the order of threads and blocks.
    pub order: u64,
}

/// Elements of a result that were not written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unwritten {
    pub data: String,
    pub elements: usize,
    pub first: usize,
}

#[repr(C)]
struct Region {
    base: *mut u8,
    bytes: i64,
    element: i64,
    name: *const c_char,
    writable: i64,
    given: i64,
    unwritten: i64,
    first: i64,
}

#[repr(C)]
struct Launch {
    grid: i64,
    threads: i64,
    finish_grid: i64,
    finish_threads: i64,
    arguments: *const c_void,
    regions: *mut Region,
    count: i64,
    seed: i64,
    message: *mut c_char,
    room: i64,
}

type Entry = unsafe extern "C" fn(which: c_int, launch: *mut Launch) -> c_int;

/// Files that some thread of this process makes, by their paths: tests and sweeps ask for the same from several.
static MAKING: InFlight = InFlight::new();

/// Room for what the shim says about a fault.
const MESSAGE: usize = 512;

impl Shim {
    /// The compiler named by `CXX`, else `c++`.
    pub fn new(cache: PathBuf) -> Self {
        let set = std::env::var("CXX").ok().filter(|v| !v.is_empty());
        let command = set.unwrap_or_else(|| "c++".into());
        // One that is missing is named as soon as it is asked to compile.
        let version = Toolchain::new(command.clone(), cache.clone()).map_or_else(|_| String::new(), |found| found.version);
        Shim { command, version, cache }
    }

    /// Compiles kernels together: most of a compiler's time is spent once for each file.
    ///
    /// # Errors
    /// A compiler that is missing or refuses.
    pub fn compile(&self, sources: Vec<CudaSource>) -> Result<Vec<ShimKernel>, KernelError> {
        let mut text = String::new();
        let mut cases = String::new();
        for (n, source) in sources.iter().enumerate() {
            text += &format!("\nnamespace k{n} {{\n{}\n", source.text);
            text += "static void kernel(const void *a) { memlet_kernel(*(const Arguments *)a); }\n";
            let finish = if source.finish.is_some() {
                text += "static void finish(const void *a) { memlet_finish(*(const Arguments *)a); }\n";
                format!("k{n}::finish")
            } else {
                "nullptr".to_string()
            };
            text += "}\n";
            cases += &format!("    case {n}: return shim::launch(k{n}::kernel, {finish}, launch);\n");
        }
        text += &format!(
            "\nextern \"C\" int memlet_shim(int which, shim::Launch *launch) {{\n    switch (which) {{\n{cases}    }}\n    return 2;\n}}\n"
        );
        let run = self.load(&text)?;
        let kernels = sources.into_iter().enumerate();
        Ok(kernels.map(|(which, source)| ShimKernel { source, which: which as c_int, run }).collect())
    }

    fn load(&self, text: &str) -> Result<Entry, KernelError> {
        let simulator = self.simulator()?;
        let library = self.cache.join(format!("{}.so", self.hash(text)));
        let _making = MAKING.claim(&library.to_string_lossy());
        if !library.exists() {
            let aside = aside(&library);
            let file = aside.with_extension("cpp");
            std::fs::write(&file, text).map_err(cache(&file))?;
            let mut compiler = Command::new(&self.command);
            compiler.args(simulator::FLAGS).arg("-include").arg(simulator.join(simulator::HEADER)).arg("-o").arg(&aside).arg(&file);
            let name = simulator.file_name().unwrap_or_default().to_string_lossy();
            compiler.args(simulator::linked(&simulator, &library_of(&simulator), &name));
            run(&mut compiler, "shim", &file, &self.cache)?;
            std::fs::rename(&aside, &library).map_err(cache(&library))?;
            std::fs::rename(&file, library.with_extension("cpp")).map_err(cache(&file))?;
        }
        let failed = |e: libloading::Error| KernelError::Load { path: library.clone(), message: e.to_string() };
        // SAFETY: the library was just made of generated text; it has no initialisers.
        let loaded = unsafe { libloading::Library::new(&library) }.map_err(failed)?;
        // SAFETY: the text defines this function with this type.
        let entry = unsafe { *loaded.get::<Entry>(b"memlet_shim\0").map_err(failed)? };
        std::mem::forget(loaded);
        Ok(entry)
    }

    fn hash(&self, text: &str) -> String {
        blake3::hash(format!("{} {} {} {text}", self.command, self.version, simulator::text()).as_bytes()).to_hex().to_string()
    }

    /// The folder of what kernels are compiled against and linked with.
    fn simulator(&self) -> Result<PathBuf, KernelError> {
        let folder = self.cache.join(format!("simulator-{}", &self.hash("")[..16]));
        let _making = MAKING.claim(&folder.to_string_lossy());
        if made(&folder, |aside| simulator::make_in(aside, &library_of(&folder), &self.command))? {
            simulator::precompile(&folder, &self.command);
        }
        Ok(folder)
    }
}

/// Makes a folder with all that is in it, unless it is there: aside, and renamed when it is whole, as other processes may be making the
/// same. Whether it was made here.
fn made(folder: &Path, make: impl FnOnce(&Path) -> Result<(), KernelError>) -> Result<bool, KernelError> {
    if folder.exists() {
        return Ok(false);
    }
    let aside = aside(folder);
    std::fs::create_dir_all(&aside).map_err(cache(&aside))?;
    let made = make(&aside).and_then(|()| match std::fs::rename(&aside, folder) {
        Err(source) if !folder.exists() => Err(cache(folder)(source)),
        renamed => Ok(renamed.is_ok()),
    });
    // The remaining files are no longer used.
    let _ = std::fs::remove_dir_all(&aside);
    made
}

/// The library in a folder of the simulator. What one process loads from several folders must not have one name.
fn library_of(folder: &Path) -> String {
    format!("{}.so", folder.file_name().unwrap_or_default().to_string_lossy())
}

/// A name beside a file or a folder that no other thread or process has: it is written there and renamed.
fn aside(file: &Path) -> PathBuf {
    static NUMBER: AtomicUsize = AtomicUsize::new(0);
    file.with_extension(format!("{}-{}.so", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed)))
}

fn cache(path: &Path) -> impl FnOnce(std::io::Error) -> KernelError {
    let path = path.to_path_buf();
    move |source| KernelError::Cache { path, source }
}

impl ShimKernel {
    /// The same code for a source of the same text.
    fn of(&self, source: CudaSource) -> ShimKernel {
        ShimKernel { source, ..*self }
    }

    pub fn source(&self) -> &CudaSource {
        &self.source
    }

    /// Runs the kernel on containers in the order of [`KernelSpec::arguments`], and says which results are incomplete.
    ///
    /// # Errors
    /// What the shim has found wrong: accesses outside a container, missing or diverging barriers, reads of memory that was not written.
    pub fn run(&self, spec: &KernelSpec, buffers: &mut [AlignedBuffer], run: &ShimRun) -> Result<Vec<Unwritten>, KernelError> {
        let arguments = spec.arguments();
        if arguments.len() != buffers.len() {
            return Err(KernelError::Arguments { kernel: spec.name.clone(), expected: arguments.len(), given: buffers.len() });
        }
        let memory: Vec<(*mut u8, usize)> = buffers.iter_mut().map(|b| (b.as_mut_ptr(), b.len())).collect();
        // SAFETY: buffers are as large as they say.
        unsafe { self.run_at(&spec.name, &arguments, &memory, run) }
    }

    /// The same on memory wherever it is: where each container begins, and its bytes.
    ///
    /// # Errors
    /// As [`ShimKernel::run`].
    ///
    /// # Safety
    /// The memory is valid, and no other thread uses it during the run.
    pub unsafe fn run_at(
        &self,
        kernel: &str,
        arguments: &[KernelArgument],
        memory: &[(*mut u8, usize)],
        run: &ShimRun,
    ) -> Result<Vec<Unwritten>, KernelError> {
        let real = if self.source.double { 8 } else { 4 };
        let mut scratch = AlignedBuffer::new((self.source.teams * self.source.scratch * real) as usize)?;
        let names: Vec<CString> = arguments.iter().map(|a| CString::new(a.data.replace('\0', "")).unwrap_or_default()).collect();
        let mut regions = Vec::new();
        let mut region = |(base, bytes): (*mut u8, usize), element: u64, name: &CStr, writable: bool| {
            regions.push(Region {
                base,
                bytes: bytes as i64,
                element: element as i64,
                name: name.as_ptr(),
                writable: i64::from(writable),
                given: i64::from(!writable),
                unwritten: 0,
                first: 0,
            });
        };
        for ((argument, memory), name) in arguments.iter().zip(memory).zip(&names) {
            region(*memory, argument.dtype.bytes(1), name, argument.access == ArgumentAccess::Write);
        }
        region((scratch.as_mut_ptr(), scratch.len()), real as u64, c"scratch", true);
        let mut draw = drawn(&run.run);
        region((draw.as_mut_ptr().cast(), size_of_val(&draw)), size_of::<u64>() as u64, c"what is drawn", false);
        let pointers: Vec<u64> = memory.iter().map(|(base, _)| *base as u64).collect();
        let packed = self.source.pack(&pointers, scratch.as_mut_ptr() as u64, draw.as_mut_ptr() as u64);
        let mut message = [0u8; MESSAGE];
        let (finish_grid, finish_threads) = self.source.finish.unwrap_or((0, 0));
        let mut launch = Launch {
            grid: self.source.grid,
            threads: self.source.threads,
            finish_grid,
            finish_threads,
            arguments: packed.as_ptr().cast(),
            regions: regions.as_mut_ptr(),
            count: regions.len() as i64,
            seed: run.order as i64,
            message: message.as_mut_ptr().cast(),
            room: MESSAGE as i64,
        };
        // SAFETY: regions and arguments are what this source takes; every access is checked against the regions.
        let failed = unsafe { (self.run)(self.which, &mut launch) };
        if failed != 0 {
            let end = message.iter().position(|b| *b == 0).unwrap_or(MESSAGE);
            let what = String::from_utf8_lossy(&message[..end]).into_owned();
            return Err(KernelError::Shim { kernel: kernel.to_string(), what });
        }
        let results = regions.iter().zip(arguments).filter(|(r, a)| a.access == ArgumentAccess::Write && r.unwritten > 0);
        Ok(results.map(|(r, a)| Unwritten { data: a.data.clone(), elements: r.unwritten as usize, first: r.first as usize }).collect())
    }
}
