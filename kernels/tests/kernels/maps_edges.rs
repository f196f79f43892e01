//! Map kernels at the edges of their contract: deadlines, identities, subscripts with offsets, reads beyond a container.

use crate::common::{self, at, heap, over, program, tasklet, v};
use crate::harness::{Failure, Reference, toolchain};
use kernels::maps::MapSpace;
use kernels::pool::Pool;
use kernels::target::cpu;
use kernels::{AlignedBuffer, Completion, ConfigSpace, Executable, KernelError, KernelSpec, RunContext};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Expr, IndexKind, Layout, Memlet, Role, Scope, Unit};
use std::collections::BTreeMap;
use std::time::Instant;

const SIZES: common::Sizes = &[("b", 3), ("h", 2), ("j", 19), ("k", 37), ("i", 21), ("u", 70)];

fn checked(reference: &Reference, config: &KernelConfig) -> Result<(), Failure> {
    let kernel = cpu::maps::compile(&reference.spec, config, &toolchain()?)?;
    let (ratio, place) = reference.ratio(&reference.run(&kernel, config, &Pool::new(2)?)?);
    assert!(ratio <= 1.0, "{place}, {ratio} times the tolerance, under {config}");
    Ok(())
}

/// Two halves of a stacked container, in one kernel: `y[p,i] = x[p,i] − x[p+P,i]`.
#[test]
fn subscripts_with_offsets() -> Result<(), Failure> {
    let mut p = program(&[("p", 9), ("q", 18), ("i", 21)]);
    heap(&mut p, "x", &["q", "i"], Role::Input);
    heap(&mut p, "y", &["p", "i"], Role::Output);
    let half = Expr::sym("p") + Expr::sym("size_p");
    let reads = vec![("first".to_string(), at("x", &["p", "i"])), ("second".to_string(), Memlet::at("x", [half, Expr::sym("i")]))];
    let mut item = tasklet(at("y", &["p", "i"]), v("first") - v("second"), vec![]);
    if let sdfg::Item::Tasklet(computation) = &mut item {
        computation.reads = reads;
    }
    let unit = Unit::Scope(Scope::new("halves", over(&["p", "i"], IndexKind::Independent), vec![item]));
    let reference = Reference::new(&p, &unit)?;
    for (vector, layout) in [("i", ["q", "i"]), ("p", ["i", "q"]), ("p", ["q", "i"])] {
        let knobs = Knobs::default().with("vector", vector);
        let layouts = BTreeMap::from([("x".to_string(), Layout::of(&layout)), ("y".to_string(), Layout::of(&["i", "p"]))]);
        checked(&reference, &KernelConfig { layouts, knobs })?;
    }
    Ok(())
}

/// A read beyond the container gives the memlet's fill: `y[j] = x[j−1] + x[j+1]` with 7 outside.
#[test]
fn reads_beyond_a_container() -> Result<(), Failure> {
    let mut p = program(SIZES);
    heap(&mut p, "x", &["j"], Role::Input);
    heap(&mut p, "y", &["j"], Role::Output);
    let beside = |by: i64| Memlet { fill: Some(7.0), ..Memlet::at("x", [Expr::sym("j") + Expr::Int(by)]) };
    let mut item = tasklet(at("y", &["j"]), v("left") + v("right"), vec![]);
    if let sdfg::Item::Tasklet(computation) = &mut item {
        computation.reads = vec![("left".into(), beside(-1)), ("right".into(), beside(1))];
    }
    let unit = Unit::Scope(Scope::new("beside", over(&["j"], IndexKind::Independent), vec![item]));
    checked(&Reference::new(&p, &unit)?, &KernelConfig::default())
}

#[test]
fn a_deadline_in_the_past_stops_a_kernel() -> Result<(), Failure> {
    let case = common::gelu(SIZES);
    let spec = KernelSpec::new(&case.program, &case.unit)?;
    let kernel = cpu::maps::compile(&spec, &KernelConfig::default(), &toolchain()?)?;
    let mut buffers = Vec::new();
    for argument in spec.arguments() {
        let container = &spec.containers[argument.data.as_str()];
        buffers.push(AlignedBuffer::of(container, &spec.shape(&argument.data)?, &Layout::row_major(container))?);
    }
    let pointers: Vec<*mut u8> = buffers.iter_mut().map(AlignedBuffer::as_mut_ptr).collect();
    let pool = Pool::new(2)?;
    let context = RunContext { seed: 0, step: 0, dropout: true, pool: &pool, deadline: Some(Instant::now()), parameters: 0 };
    // SAFETY: one buffer for each argument, in its natural layout.
    assert_eq!(unsafe { kernel.run(&pointers, &context) }?, Completion::DeadlineExceeded);
    // SAFETY: a kernel looks at no pointer before it has counted them.
    let refused = unsafe { kernel.run(&pointers[1..], &context) };
    assert!(matches!(refused, Err(KernelError::Arguments { .. })), "{refused:?}");
    Ok(())
}

#[test]
fn knobs_of_another_kernel_are_refused() -> Result<(), Failure> {
    let case = common::softmax_dropout(SIZES);
    let spec = KernelSpec::new(&case.program, &case.unit)?;
    for (key, value) in [("vector", "u"), ("order", "h,b"), ("lanes", "0"), ("reduce", "somewhere")] {
        let config = KernelConfig { knobs: Knobs::default().with(key, value), ..KernelConfig::default() };
        let refused = kernels::maps::lower(&spec, &config);
        assert!(matches!(&refused, Err(KernelError::Knob { key: k, .. }) if k == key), "{key}={value}");
    }
    Ok(())
}

/// Configurations with one identity run the same code; those that run different code have different identities.
#[test]
fn identities_name_the_code() -> Result<(), Failure> {
    for make in [common::softmax_dropout, common::layernorm, common::bias_gradient] {
        let case = make(&[("b", 2), ("h", 3), ("j", 4), ("k", 5), ("i", 6), ("u", 7)]);
        let spec = KernelSpec::new(&case.program, &case.unit)?;
        let space = MapSpace::new(&spec)?;
        let mut texts: BTreeMap<String, String> = BTreeMap::new();
        let step = (space.count() / 400).max(1) | 1;
        for n in (0..space.count()).step_by(step as usize) {
            let config = space.config(n);
            let source = cpu::maps::source(&spec, &config)?;
            let text = format!("{}\n{:?}", source.text, source.integers);
            let known = texts.entry(space.identity(n)).or_insert_with(|| text.clone());
            assert!(*known == text, "{config} has the identity of a configuration with other code");
        }
        assert!(texts.len() > 1);
    }
    Ok(())
}

/// A copy `y[j,i] = x[j,i]`, or of 32 columns of `x` from one on.
fn copy(from: Option<i64>) -> Result<KernelSpec, Failure> {
    let mut p = program(&[("j", 8), ("i", 64), ("k", 32)]);
    heap(&mut p, "x", &["j", "i"], Role::Input);
    let walked = if from.is_some() { ["j", "k"] } else { ["j", "i"] };
    heap(&mut p, "y", &walked, Role::Output);
    let from = from.map_or(at("x", &walked), |from| Memlet::at("x", [Expr::sym("j"), Expr::sym("k") + Expr::Int(from)]));
    let unit = Unit::Scope(Scope::new("copy", over(&walked, IndexKind::Independent), vec![tasklet(at("y", &walked), v("x"), vec![from])]));
    Ok(KernelSpec::new(&p, &unit)?)
}

#[test]
fn blocks_that_do_not_fit_are_refused() -> Result<(), Failure> {
    let split = |spec: &KernelSpec, x: &str, y: &str| -> Result<String, Failure> {
        let layouts = BTreeMap::from([("x".to_string(), x.parse::<Layout>()?), ("y".to_string(), y.parse()?)]);
        let config = KernelConfig { layouts, knobs: Knobs::default().with("order", "j,i").with("vector", "i") };
        Ok(match kernels::split_blocked_dims::split(spec, &config) {
            Ok((_, config)) => config.to_string(),
            Err(why) => why.to_string(),
        })
    };
    let whole = copy(None)?;
    assert_eq!(split(&whole, "i,j,i%32", "j,i")?, "x[i,j,i.in] y[j,i,i.in] order=j,i,i.in vector=i.in");
    assert_eq!(split(&whole, "i,j,i%32", "j,i%32,i")?, "x[i,j,i.in] y[j,i.in,i] order=j,i,i.in vector=i.in");
    for (x, y, why) in [
        ("i,j,i%48", "j,i", "blocks of 48 do not divide"),
        ("i,j,i%32", "i,j,i%16", "blocks of different sizes"),
        ("i,j,i%32,i%4", "j,i", "each in blocks of one size at most"),
    ] {
        let found = split(&whole, x, y)?;
        assert!(found.contains(why), "{x} {y}: {found}");
    }
    // A part of a dim is walked, by an index of another one: it must begin with a block.
    assert_eq!(split(&copy(Some(32))?, "i,j,i%16", "j,k")?, "x[i,j,i.in] y[j,k,k.in] order=j,i vector=i");
    let found = split(&copy(Some(24))?, "i,j,i%16", "j,k")?;
    assert!(found.contains("do not divide the offset"), "{found}");
    assert_eq!(kernels::split_blocked_dims::panels(&copy(Some(24))?, "x", 16), vec![]);
    Ok(())
}
