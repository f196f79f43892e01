//! Compiles the library, where there is a compiler.

use super::files::SourceFile;
use crate::pipeline::PipelineError;
use crate::pipeline::parallel::in_order;
use kernels::{KernelError, Toolchain};
use rayon::prelude::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles sources into `libNAME.so` in a folder; `None` where no compiler starts.
///
/// # Errors
/// A compiler that refuses.
pub fn shared(name: &str, out: &Path, sources: &[SourceFile]) -> Result<Option<PathBuf>, PipelineError> {
    let Ok(toolchain) = Toolchain::system() else { return Ok(None) };
    let scratch = |e: std::io::Error| PipelineError::Kernel(KernelError::Cache { path: std::env::temp_dir(), source: e });
    let objects = tempfile::tempdir().map_err(scratch)?;
    let object = |n: usize| objects.path().join(format!("{n}.o"));
    let include = format!("-I{}", out.join("include").display());
    in_order(sources.par_iter().enumerate().map(|(n, source)| {
        let mut command = Command::new(&toolchain.command);
        command.args(["-O2", "-std=gnu11", "-fvisibility=hidden", "-fPIC", "-c", &include]);
        if source.is_generated {
            command.args(toolchain.code_flags());
        }
        let path = out.join(&source.path);
        command.arg("-o").arg(object(n)).arg(&path);
        run(command, &path)
    }))?;
    let library = out.join(format!("lib{name}.so"));
    let mut command = Command::new(&toolchain.command);
    command.arg("-shared").arg("-o").arg(&library).args((0..sources.len()).map(object)).args(["-lm", "-lpthread"]);
    run(command, &library)?;
    Ok(Some(library))
}

fn run(mut command: Command, of: &Path) -> Result<(), PipelineError> {
    let program = command.get_program().to_string_lossy().into_owned();
    let output = command.output().map_err(|source| PipelineError::Kernel(KernelError::NoCompiler { command: program, source }))?;
    if output.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&output.stderr).lines().take(30).collect::<Vec<_>>().join("\n");
    let kernel = of.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    Err(PipelineError::Kernel(KernelError::Compile { kernel, source_file: of.to_path_buf(), message }))
}
