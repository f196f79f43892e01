//! Hashes the sources that generate code, for the version under which times of kernels are stored (`src/codegen_version.rs`).

use std::path::{Path, PathBuf};
use std::{env, fs, io};

/// Sources that neither generate nor run kernels: a change in them leaves stored times valid. All others count, new ones included.
const APART: &[&str] =
    &["error.rs", "cancel.rs", "alpha_equivalence.rs", "codegen_version.rs", "target/cuda/device.rs", "target/cuda/libraries.rs"];

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=src");
    println!("cargo::rerun-if-changed=build.rs");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("src");
    if let Some(missing) = APART.iter().find(|path| !root.join(path).exists()) {
        return Err(io::Error::other(format!(
            "kernels/build.rs leaves out `src/{missing}`, which does not exist: name it as it is called now"
        )));
    }
    let mut files = Vec::new();
    collect(&root, &root, &mut files)?;
    files.sort();
    let mut hash = Fnv::default();
    for file in &files {
        let text = fs::read_to_string(root.join(file))?;
        let is_rust = file.extension().is_some_and(|e| e == "rs");
        hash.update(stripped(&text, is_rust).as_bytes());
    }
    println!("cargo::rustc-env=MEMLET_CODEGEN_SOURCES={:016x}", hash.0);
    Ok(())
}

/// The files below a folder, relative to the root.
fn collect(root: &Path, folder: &Path, files: &mut Vec<PathBuf>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let relative = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
        if APART.iter().any(|apart| relative == Path::new(apart)) {
            continue;
        }
        if path.is_dir() {
            collect(root, &path, files)?;
        } else {
            files.push(relative);
        }
    }
    Ok(())
}

/// A source without comment lines, white space and, in Rust, the tests at its end. What is emitted as a comment counts in C.
fn stripped(text: &str, is_rust: bool) -> String {
    let code = if is_rust { text.split("#[cfg(test)]").next().unwrap_or(text) } else { text };
    let lines = code.lines().map(str::trim).filter(|line| !is_rust || !line.starts_with("//"));
    lines.flat_map(str::chars).filter(|c| !c.is_whitespace()).collect()
}

/// FNV-1a of 64 bits: enough to tell versions apart, and a build script without dependencies.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn update(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
