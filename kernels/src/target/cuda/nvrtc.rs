//! CUDA C to code for a GPU, by NVRTC: needs the library, but no GPU.

use crate::error::KernelError;
use crate::executable::Resources;
use crate::target::cuda::CudaLibrary;
use cudarc::nvrtc::{result, sys};
use std::ffi::{CString, c_char, c_int};
use std::path::PathBuf;

/// The run-time compiler.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nvrtc {
    pub version: (i32, i32),
    /// Compute capabilities that it compiles for, times 10: 90 is 9.0.
    pub capabilities: Vec<u32>,
    /// Where it was found; `None` stands for the system's folders.
    pub folder: Option<PathBuf>,
}

/// Code for a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    pub code: Vec<u8>,
    pub resources: Vec<Resources>,
}

const OPTIONS: [&str; 3] = ["--std=c++17", "--ptxas-options=-v", "--diag-suppress=177"];

fn failed(what: &str) -> impl Fn(result::NvrtcError) -> KernelError + '_ {
    move |e| KernelError::Cuda { what: format!("{what}: {e}") }
}

/// The library's texts come as NUL-terminated characters.
fn text(characters: &[c_char]) -> String {
    let bytes: Vec<u8> = characters.iter().map(|c| *c as u8).take_while(|b| *b != 0).collect();
    String::from_utf8_lossy(&bytes).into_owned()
}

impl Nvrtc {
    /// # Errors
    /// No library.
    pub fn find() -> Result<Self, KernelError> {
        let folder = CudaLibrary::Nvrtc.load()?;
        let (mut major, mut minor, mut count) = (0, 0, 0);
        // SAFETY: the library is loaded; the pointers are to integers that live long enough, the last one to `count` of them.
        let capabilities = unsafe {
            sys::nvrtcVersion(&mut major, &mut minor).result().map_err(failed("nvrtcVersion"))?;
            sys::nvrtcGetNumSupportedArchs(&mut count).result().map_err(failed("nvrtcGetNumSupportedArchs"))?;
            let mut capabilities: Vec<c_int> = vec![0; count.max(0) as usize];
            sys::nvrtcGetSupportedArchs(capabilities.as_mut_ptr()).result().map_err(failed("nvrtcGetSupportedArchs"))?;
            capabilities
        };
        let capabilities = capabilities.into_iter().filter_map(|c| u32::try_from(c).ok()).collect();
        Ok(Nvrtc { version: (major, minor), capabilities, folder })
    }

    /// The cache key of the code compiled from a text.
    pub fn key(&self, source: &str, capability: u32) -> String {
        blake3::hash(format!("{:?} {capability} {OPTIONS:?} {source}", self.version).as_bytes()).to_hex().to_string()
    }

    /// Compiles a file for a compute capability (times 10).
    ///
    /// # Errors
    /// What the compiler says about a file that it refuses.
    pub fn compile(&self, kernel: &str, source: &str, capability: u32) -> Result<Compiled, KernelError> {
        let refused = |message: String| KernelError::Nvrtc { kernel: kernel.into(), capability, message };
        let source = CString::new(source).map_err(|e| refused(e.to_string()))?;
        let program = Program(result::create_program(&source, Some(c"memlet.cu")).map_err(failed("nvrtcCreateProgram"))?);
        let architecture = format!("--gpu-architecture=sm_{capability}");
        let options: Vec<&str> = OPTIONS.iter().copied().chain([architecture.as_str()]).collect();
        // SAFETY: the program was made above and lives until the end of this function.
        let (outcome, log) = unsafe { (result::compile_program(program.0, &options), result::get_program_log(program.0)) };
        let log = log.map(|l| text(&l)).unwrap_or_default();
        outcome.map_err(|e| refused(if log.is_empty() { e.to_string() } else { log.clone() }))?;
        let mut size = 0;
        // SAFETY: as above; the buffer has the size that the library asks for.
        let code = unsafe {
            sys::nvrtcGetCUBINSize(program.0, &mut size).result().map_err(failed("nvrtcGetCUBINSize"))?;
            let mut code = vec![0u8; size];
            sys::nvrtcGetCUBIN(program.0, code.as_mut_ptr().cast()).result().map_err(failed("nvrtcGetCUBIN"))?;
            code
        };
        Ok(Compiled { code, resources: resources(&log) })
    }
}

struct Program(sys::nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: made by `create_program`, destroyed once.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

/// What the assembler says about each function: `Used 44 registers, used 1 barriers, 1024 bytes smem`.
pub fn resources(log: &str) -> Vec<Resources> {
    let before = |line: &str, what: &str| -> Option<u32> { line.split(what).next()?.split_whitespace().last()?.parse().ok() };
    let mut found: Vec<Resources> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            found.push(Resources { function: rest.split('\'').next().unwrap_or_default().into(), ..Resources::default() });
        }
        let Some(last) = found.last_mut() else { continue };
        if line.contains("bytes stack frame") {
            for part in line.split(',') {
                if let Some(n) = before(part, " bytes stack frame")
                    && part.contains("stack frame")
                {
                    last.stack = n;
                } else if let Some(n) = before(part, " bytes spill stores")
                    && part.contains("stores")
                {
                    last.spill_stores = n;
                } else if let Some(n) = before(part, " bytes spill loads")
                    && part.contains("loads")
                {
                    last.spill_loads = n;
                }
            }
        }
        if let Some((_, used)) = line.split_once("Used ") {
            for part in used.split(',') {
                if part.contains("registers") {
                    last.registers = before(part, " registers").unwrap_or(0);
                } else if part.contains("smem") {
                    last.shared = before(part, " bytes smem").unwrap_or(0);
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_are_read_from_the_log() {
        let log = "ptxas info    : Compiling entry function 'memlet_kernel' for 'sm_90'\n\
                   ptxas info    : Function properties for memlet_kernel\n\
                   ptxas         .     288 bytes stack frame, 364 bytes spill stores, 12 bytes spill loads\n\
                   ptxas info    : Used 44 registers, used 1 barriers, 288 bytes cumulative stack size, 1024 bytes smem\n";
        let want =
            Resources { function: "memlet_kernel".into(), registers: 44, stack: 288, spill_stores: 364, spill_loads: 12, shared: 1024 };
        assert_eq!(resources(log), [want]);
    }
}
