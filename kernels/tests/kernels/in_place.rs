//! Kernels that write one argument where they read another: right wherever it is allowed, and refused where it would not be.

use crate::common::*;
use crate::harness::{Failure, Reference, toolchain};
use kernels::CancelToken;
use kernels::in_place::with;
use kernels::maps::MapSpace;
use kernels::pool::Pool;
use kernels::target::cpu;
use kernels::target::cpu::templates::in_place;
use kernels::target::cpu::templates::precompile;
use kernels::tiles::TileSpace;
use kernels::{ConfigSpace, InPlace, KernelError};
use sdfg::config::KernelConfig;
use sdfg::{Combine, Expr, IndexKind, Item, Layout, Memlet, Role, Scope, Unit};

const SIZES: Sizes = &[("b", 3), ("h", 2), ("j", 19), ("k", 19), ("i", 21), ("u", 150)];

fn pair(written: &str, read: &str) -> InPlace {
    InPlace { written: written.into(), read: read.into() }
}

/// A fixed spread of configurations.
fn spread(space: &dyn ConfigSpace, wanted: u64) -> impl Iterator<Item = KernelConfig> {
    let count = space.count();
    (0..wanted).map(move |n| space.config((n * 1_000_003 + n * n * 7919) % count))
}

/// y[b,j,u] = r[b,j,u] + Σi w[u,i] x[b,j,i]: a residual on the tile of a product.
fn residual(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    let full = ["b", "j", "u"];
    heap(&mut p, "w", &["u", "i"], Role::Parameter);
    heap(&mut p, "x", &["b", "j", "i"], Role::Input);
    heap(&mut p, "r", &full, Role::Input);
    heap(&mut p, "y", &full, Role::Output);
    local(&mut p, "t", &[]);
    let reads = vec![at("w", &["u", "i"]), at("x", &["b", "j", "i"])];
    let body = vec![
        map("dot", &["i"], vec![tasklet(wcr(at("t", &[]), Combine::Sum), v("w") * v("x"), reads)]),
        tasklet(at("y", &full), v("t") + v("r"), vec![at("t", &[]), at("r", &full)]),
    ];
    Case { program: p, unit: Unit::Scope(Scope::new("residual", over(&full, IndexKind::Independent), body)) }
}

/// y[j] = Σb x[j]: made apart, then written once.
fn sum(sizes: Sizes) -> Case {
    let mut p = program(sizes);
    heap(&mut p, "x", &["j"], Role::Input);
    heap(&mut p, "y", &["j"], Role::Output);
    let body = vec![tasklet(wcr(at("y", &["j"]), Combine::Sum), v("x"), vec![at("x", &["j"])])];
    let indices = over(&["j"], IndexKind::Independent).into_iter().chain(over(&["b"], IndexKind::Reduction)).collect();
    Case { program: p, unit: Unit::Scope(Scope::new("sum", indices, body)) }
}

/// Every pair that is allowed, alone, under a spread of configurations, with results around the caches and through them.
#[test]
fn what_is_allowed_is_right() -> Result<(), Failure> {
    let (toolchain, pool) = (toolchain()?, Pool::new(3)?);
    type Make = fn(Sizes) -> Case;
    let cases: [(Make, usize); 7] =
        [(softmax_dropout, 2), (bias_relu_dropout, 2), (layernorm, 1), (gelu, 1), (causal_softmax, 2), (residual, 1), (sum, 1)];
    for (make, least) in cases {
        let Case { program, unit } = make(SIZES);
        let reference = Reference::new(&program, &unit)?;
        let tiled = TileSpace::new(&reference.spec).ok();
        let mapped = MapSpace::new(&reference.spec)?;
        let space: &dyn ConfigSpace = tiled.as_ref().map_or(&mapped, |t| t);
        let mut asked = Vec::new();
        for mut config in spread(space, 6) {
            // Layouts that agree, in an order of their own.
            let orders: Vec<_> = config.layouts.values().cloned().collect();
            for (data, layout) in &mut config.layouts {
                let dims = &reference.spec.containers[data.as_str()].dims;
                if let Some(same) = orders.iter().find(|l| l.pieces.len() == dims.len() && l.pieces.iter().all(|p| dims.contains(&p.dim))) {
                    *layout = same.clone();
                }
            }
            let found = in_place(&reference.spec, &config);
            asked.extend(found.into_iter().map(|pair| (with(&config, std::slice::from_ref(&pair)), pair)));
        }
        // Together: a compiler reads what all of them include once.
        let kernels: Vec<_> = asked.iter().map(|(config, _)| (reference.spec.clone(), config.clone())).collect();
        precompile(&kernels, &toolchain, CancelToken::default());
        for (seen, (config, pair)) in asked.iter().enumerate() {
            let kernel = match tiled.is_some() {
                true => cpu::tiles::compile(&reference.spec, config, &toolchain)?,
                false => cpu::maps::compile(&reference.spec, config, &toolchain)?.streaming(seen % 2 == 1),
            };
            let got = reference.run_in_place(&kernel, config, std::slice::from_ref(pair), &pool)?;
            let (ratio, place) = reference.ratio(&got);
            assert!(ratio <= 1.0, "{pair:?}: {place}, {ratio} times the tolerance, under {config}");
        }
        let seen = asked.len();
        assert!(seen >= least, "{}: {seen} pairs", unit.name());
    }
    Ok(())
}

/// y[j,k] = … from x at other places: what another point still reads is not overwritten.
#[test]
fn what_would_be_wrong_is_refused() -> Result<(), Failure> {
    let full = ["j", "k"];
    let beside = Memlet { fill: Some(0.0), ..Memlet::at("x", [Expr::sym("j"), Expr::sym("k") + Expr::Int(1)]) };
    let reads = [
        ("its own element", Memlet::at("x", [Expr::sym("j"), Expr::sym("k")]), true),
        ("a neighbour", beside, false),
        ("the transposed", Memlet::at("x", [Expr::sym("k"), Expr::sym("j")]), false),
        ("a diagonal", Memlet::at("x", [Expr::sym("j"), Expr::sym("j")]), false),
    ];
    for (what, read, legal) in reads {
        let mut p = program(SIZES);
        heap(&mut p, "x", &full, Role::Input);
        heap(&mut p, "y", &full, Role::Output);
        let mut item = tasklet(at("y", &full), v("x") * c(2.0), vec![]);
        if let Item::Tasklet(computation) = &mut item {
            computation.reads = vec![("x".into(), read)];
        }
        let unit = Unit::Scope(Scope::new("map", over(&full, IndexKind::Independent), vec![item]));
        let spec = Reference::new(&p, &unit)?.spec;
        let config = MapSpace::new(&spec)?.config(0);
        let want = if legal { vec![pair("y", "x")] } else { vec![] };
        assert_eq!(in_place(&spec, &config), want, "{what}");
        // Asking for it all the same is no way around.
        let asked = cpu::maps::source(&spec, &with(&config, &[pair("y", "x")]));
        assert_eq!(asked.is_ok(), legal, "{what}");
        assert!(legal || matches!(asked, Err(KernelError::Knob { .. })), "{what}");
    }
    Ok(())
}

/// A row that every point of it reads whole, and a row that one point reads whole before it writes.
#[test]
fn rows_are_read_by_one_point_or_by_all() -> Result<(), Failure> {
    let full = ["b", "j", "k"];
    for (outer, legal) in [(&["b", "j"][..], true), (&["b", "j", "k"], false)] {
        let mut p = program(SIZES);
        heap(&mut p, "x", &full, Role::Input);
        heap(&mut p, "y", &full, Role::Output);
        local(&mut p, "top", &[]);
        let over_row = [Expr::sym("b"), Expr::sym("j"), Expr::sym("r")];
        let mut most = tasklet(wcr(at("top", &[]), Combine::Max), v("x"), vec![]);
        if let Item::Tasklet(computation) = &mut most {
            computation.reads = vec![("x".into(), Memlet::at("x", over_row))];
        }
        let row = sdfg::Index::over("r", "k", p.size_of("k"), IndexKind::Independent);
        let most = Item::Scope(Scope::new("most", vec![row], vec![most]));
        let apply = tasklet(at("y", &full), v("x") - v("top"), vec![at("x", &full), at("top", &[])]);
        let apply = if legal { map("apply", &["k"], vec![apply]) } else { apply };
        let unit = Unit::Scope(Scope::new("rows", over(outer, IndexKind::Independent), vec![most, apply]));
        let spec = Reference::new(&p, &unit)?.spec;
        let found = in_place(&spec, &MapSpace::new(&spec)?.config(0));
        assert_eq!(found, if legal { vec![pair("y", "x")] } else { vec![] }, "{outer:?}");
    }
    Ok(())
}

#[test]
fn other_layouts_and_types_stay_apart() -> Result<(), Failure> {
    let Case { mut program, unit } = gelu(SIZES);
    let spec = Reference::new(&program, &unit)?.spec;
    let mut config = MapSpace::new(&spec)?.config(0);
    assert_eq!(in_place(&spec, &config), [pair("y", "x")]);
    config.layouts.insert("x".into(), Layout::of(&["u", "b", "j"]));
    assert_eq!(in_place(&spec, &config), []);
    for container in program.containers.values_mut().filter(|c| c.name == "x") {
        container.dtype = sdfg::Dtype::Bf16;
    }
    let spec = Reference::new(&program, &unit)?.spec;
    assert_eq!(in_place(&spec, &MapSpace::new(&spec)?.config(0)), []);
    Ok(())
}

/// Where results lie over what is read, pointers are not `restrict`: a number at file scope that could be changed might lie there too,
/// and no loop that reads it would become vector code.
#[test]
fn nothing_at_file_scope_can_be_changed() -> Result<(), Failure> {
    let Case { program, unit } = gelu(SIZES);
    let spec = Reference::new(&program, &unit)?.spec;
    let text = cpu::maps::source(&spec, &with(&MapSpace::new(&spec)?.config(0), &[pair("y", "x")]))?.text;
    let numbers = |line: &&str| ["float ", "double ", "int", "uint"].iter().any(|kind| line.starts_with(kind)) && line.contains(" = ");
    let found: Vec<&str> = text.lines().filter(numbers).collect();
    assert_eq!(found, Vec::<&str>::new());
    assert!(text.contains("const float memlet_erf_range"));
    Ok(())
}
