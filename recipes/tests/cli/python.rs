//! The Python package on libraries of `memlet build`, where Python has NumPy.

use std::path::Path;
use std::process::Command;

/// Whether a Python with NumPy is there: the one in `MEMLET_PYTHON`, or `python3`.
fn python() -> Option<String> {
    let python = std::env::var("MEMLET_PYTHON").unwrap_or_else(|_| "python3".into());
    let found = Command::new(&python).args(["-c", "import numpy"]).output().is_ok_and(|output| output.status.success());
    found.then_some(python)
}

/// The package's own tests: values against NumPy in f64, tensors in place, mistakes.
#[test]
fn the_python_package_passes_its_tests() {
    passes("test_library.py");
}

/// The choice among finalists of plans that share a workspace.
#[test]
fn plans_are_chosen_together() {
    passes("test_plans.py");
}

/// Two processes over loopback, gradients averaged between them, against one process and against NumPy in f64.
#[test]
fn two_processes_train_as_one() {
    passes("test_processes.py");
}

fn passes(test: &str) {
    let Some(python) = python() else {
        eprintln!("skipped: there is no Python with NumPy; MEMLET_PYTHON names one");
        return;
    };
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("python/tests").join(test);
    let output = Command::new(python)
        .arg(script)
        .env("MEMLET", env!("CARGO_BIN_EXE_memlet"))
        .env("MEMLET_CACHE_DIR", concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .output()
        .expect("Python starts");
    let told = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && told.contains("OK"), "{told}");
}
