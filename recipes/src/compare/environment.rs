//! Checks that the named Pythons have the modules that the peers need, before anything takes time.

use super::CompareError;
use super::contender::{Framework, PeerVariant, Pythons};
use std::path::Path;
use std::process::{Command, Stdio};

/// Imports each module in its arguments, prints why a module cannot be imported, and ends with `done`.
const SCRIPT: &str = r#"
import importlib, os, sys
answers = os.fdopen(os.dup(1), "w")
os.dup2(2, 1)
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except BaseException as error:
        absent = isinstance(error, ModuleNotFoundError) and error.name == name
        why = "" if absent else " ".join(f"{type(error).__name__}: {error}".split())[:300]
        print(f"{name}\t{why}", file=answers)
print("done", file=answers, flush=True)
"#;

impl Framework {
    pub const ALL: [Framework; 4] = [Framework::Torch, Framework::Jax, Framework::Onnx, Framework::Openvino];

    fn option(self) -> &'static str {
        match self {
            Framework::Torch => "--torch",
            Framework::Jax => "--jax",
            Framework::Onnx => "--onnx",
            Framework::Openvino => "--openvino",
        }
    }

    /// The modules that its workers import, which are also the names of their packages.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Framework::Torch => &["torch", "numpy", "safetensors"],
            Framework::Jax => &["jax", "numpy", "safetensors"],
            Framework::Onnx => &["onnx", "onnxruntime", "numpy", "safetensors"],
            Framework::Openvino => &["openvino", "onnx", "numpy", "safetensors"],
        }
    }
}

/// Checks the Python of every framework with a variant that takes part.
///
/// # Errors
/// [`CompareError::NoPeer`] if none is named; [`CompareError::Missing`] with a line for each that lacks something.
pub fn check_pythons(variants: &[PeerVariant], pythons: &Pythons) -> Result<(), CompareError> {
    let takes_part = |framework: &Framework| variants.iter().any(|v| v.framework() == *framework);
    let named: Vec<(Framework, &Path)> =
        Framework::ALL.into_iter().filter(takes_part).filter_map(|f| Some((f, pythons.of(f)?.as_path()))).collect();
    if named.is_empty() {
        return Err(CompareError::NoPeer);
    }
    let lines: Vec<String> = named.into_iter().filter_map(|(framework, python)| missing(framework, python)).collect();
    if lines.is_empty() { Ok(()) } else { Err(CompareError::Missing { lines }) }
}

/// `torch, numpy and safetensors`.
fn listed(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} and {last}", first.join(", ")),
        all => all.join(", "),
    }
}

/// The missing modules of a Python, in a line; `None` if it has all.
fn missing(framework: Framework, python: &Path) -> Option<String> {
    let (option, shown) = (framework.option(), python.display());
    let run = Command::new(python)
        .args(["-c", SCRIPT])
        .args(framework.modules())
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output();
    let answers = match run {
        Ok(output) => String::from_utf8_lossy(&output.stdout).into_owned(),
        Err(error) => return Some(format!("{option} {shown} cannot be run: {error}; name the Python of an environment that has it")),
    };
    if !answers.lines().any(|line| line == "done") {
        return Some(format!("{option} {shown} is no Python: it ended without an answer"));
    }
    let told: Vec<(&str, &str)> = answers.lines().filter_map(|line| line.split_once('\t')).collect();
    let absent: Vec<&str> = told.iter().filter(|(_, why)| why.is_empty()).map(|(name, _)| *name).collect();
    let broken: Vec<String> =
        told.iter().filter(|(_, why)| !why.is_empty()).map(|(name, why)| format!("cannot import {name} ({why})")).collect();
    let lacks = (!absent.is_empty()).then(|| format!("lacks {}", listed(&absent)));
    let faults: Vec<String> = lacks.into_iter().chain(broken).collect();
    let wanted: Vec<&str> = told.iter().map(|(name, _)| *name).collect();
    (!faults.is_empty())
        .then(|| format!("{option} {shown} {}; install with: {shown} -m pip install {}", faults.join(", "), wanted.join(" ")))
}
