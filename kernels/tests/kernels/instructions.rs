//! Kernels with the vector instructions of other processors: tests of this binary in a process that is allowed fewer, and the instructions
//! that compilers choose for functions.

use crate::common::{self, at, heap, program, tasklet, v};
use crate::harness::Failure;
use kernels::target::cpu::templates::source;
use kernels::{InstructionSet, KernelSpec};
use sdfg::config::KernelConfig;
use sdfg::{Role, Scalar, Scope, Unary, Unit};
use std::io::Write;
use std::process::{Command, Stdio};

/// Tests of kernels against the interpreter, by the beginnings of their names: products, functions, masks and copies.
const TESTS: [&str; 4] = ["gemms::", "maps::", "maps_functions::", "tiles::"];

/// What runs the tests with no more than these instructions prints; `None` where the processor has no more anyway.
fn passes_with(name: &str, most: InstructionSet) -> Option<Result<(), String>> {
    if InstructionSet::native() >= most {
        println!("skipped: this process has no more than {name}");
        return None;
    }
    let output = Command::new(std::env::current_exe().ok()?).args(TESTS).arg("--test-threads=2").env("MEMLET_INSTRUCTIONS", name).output();
    let output = output.map_err(|e| e.to_string());
    Some(output.and_then(|o| if o.status.success() { Ok(()) } else { Err(String::from_utf8_lossy(&o.stdout).into_owned()) }))
}

#[test]
fn kernels_are_right_with_avx2() {
    if let Some(Err(why)) = passes_with("avx2", InstructionSet::Avx2) {
        panic!("{why}");
    }
}

/// The assembly that a compiler makes of a loop over a function; `None` where there is no such compiler.
fn assembly(compiler: &str, flags: &[&str], function: Unary) -> Result<Option<String>, Failure> {
    let mut p = program(&[("n", 4096)]);
    heap(&mut p, "x", &["n"], Role::Input);
    heap(&mut p, "y", &["n"], Role::Output);
    let body = vec![tasklet(at("y", &["n"]), Scalar::unary(function, v("x")), vec![at("x", &["n"])])];
    let unit = Unit::Scope(Scope::new("function", common::over(&["n"], sdfg::IndexKind::Independent), body));
    let text = source(&KernelSpec::new(&p, &unit)?, &KernelConfig::default()).ok_or("a map has a text")?.text;
    let mut command = Command::new(compiler);
    command.args(kernels::Toolchain::texts().code_flags().iter().filter(|flag| !flag.starts_with("-m")));
    command.args(flags).args(["-S", "-x", "c", "-o", "-", "-"]);
    let Ok(mut child) = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn() else { return Ok(None) };
    child.stdin.take().ok_or("a pipe")?.write_all(text.as_bytes())?;
    let output = child.wait_with_output()?;
    Ok(output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned()))
}

/// Those that are written out in C. Most powers, sines and cosines are calls of the C library in every level.
#[test]
fn functions_are_vector_code_for_avx2_and_neon() -> Result<(), Failure> {
    let levels: [(&str, &[&str], &str); 2] =
        [("cc", &["-march=x86-64-v3", "-mprefer-vector-width=256"], "ymm"), ("aarch64-linux-gnu-gcc", &[], ".4s")];
    for (compiler, flags, register) in levels {
        for function in [Unary::Exp, Unary::Log, Unary::Tanh, Unary::Erf, Unary::Sigmoid] {
            let Some(text) = assembly(compiler, flags, function)? else {
                println!("skipped: no {compiler} that knows {flags:?}");
                continue;
            };
            let products = text.lines().filter(|l| (l.contains("vfmadd") || l.contains("fmla")) && l.contains(register)).count();
            assert!(products > 1, "{compiler} {flags:?} {function:?}: {products} multiply-adds of whole vectors\n{text}");
        }
    }
    Ok(())
}
