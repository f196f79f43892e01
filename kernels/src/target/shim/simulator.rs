//! What CUDA kernels are compiled against on the CPU, and what runs them: a header, and a library that is compiled once for all of them.

use crate::error::KernelError;
use crate::target::cpu::compile::run;
use std::path::Path;
use std::process::Command;

/// Of kernels: what one does itself is little beside what the simulator does about it, so they are to be compiled quickly.
pub const FLAGS: [&str; 7] = ["-O0", "-std=c++17", "-w", "-shared", "-fPIC", "-ffp-contract=off", "-fno-strict-aliasing"];
const OPTIMISED: &str = "-O2";
const TEXT: &str = include_str!("shim.h");
/// What the header only declares.
const SIMULATOR: &str = include_str!("simulator.cpp");
/// The header's name in its folder.
pub const HEADER: &str = "shim.h";

/// Everything that the compiled simulator depends on.
pub fn text() -> String {
    format!("{FLAGS:?} {OPTIMISED} {TEXT} {SIMULATOR}")
}

/// Writes the header into a folder, and makes the library there, under this name.
///
/// # Errors
/// A compiler that is missing or refuses; a folder that cannot be written.
pub fn make_in(folder: &Path, library: &str, command: &str) -> Result<(), KernelError> {
    let write = |name: &str, text: &str| {
        let path = folder.join(name);
        std::fs::write(&path, text).map(|()| path.clone()).map_err(|source| KernelError::Cache { path, source })
    };
    write(HEADER, TEXT)?;
    let source = write("simulator.cpp", SIMULATOR)?;
    run(compiler(command).arg(OPTIMISED).arg("-o").arg(folder.join(library)).arg(&source), "shim", &source, folder)
}

/// Makes of the header, once for all kernels, what a compiler reads in its place: reading the header takes as long as a small kernel. To
/// be called where the folder stays: clang asks for the header where it was.
pub fn precompile(folder: &Path, command: &str) {
    let (header, aside, known) = (folder.join(HEADER), folder.join("shim.h.aside"), folder.join("shim.h.gch"));
    // Compilers that cannot do so read it each time.
    if run(compiler(command).args(["-x", "c++-header", "-o"]).arg(&aside).arg(&header), "shim", &header, folder).is_ok() {
        let _ = std::fs::rename(&aside, &known);
    }
}

fn compiler(command: &str) -> Command {
    let mut compiler = Command::new(command);
    compiler.args(FLAGS);
    compiler
}

/// The compiler's arguments that link with the library in a folder, which is found at run time from there.
pub fn linked(folder: &Path, library: &str, from: &str) -> [String; 3] {
    [format!("-L{}", folder.display()), format!("-l:{library}"), format!("-Wl,-rpath,$ORIGIN/{from}")]
}
