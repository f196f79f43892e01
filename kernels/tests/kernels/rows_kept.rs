//! Layers whose steps keep rows for one another, against the interpreter: borders with a bias, strides, windows of even size, strips and
//! steps that do not divide the rows, one worker and several, batches, chains of three layers, splits and merges.

use crate::harness::{Failure, Reference, toolchain};
use crate::layers::{IMAGE, Layers, RESULT, cases, straight};
use kernels::pool::Pool;
use kernels::target::cpu::template::template_of;
use kernels::target::cpu::{Toolchain, templates};
use kernels::tiles::{LayerFlop, LayerSpace};
use kernels::{ConfigSpace, KernelSpec};
use sdfg::config::{KernelConfig, Knobs};
use std::collections::BTreeSet;

/// Configurations of each case.
const CONFIGS: usize = 6;

/// Cases of layers with rows to keep.
fn with_rows() -> Vec<(&'static str, Layers)> {
    let near = "n,c,h+a-1,w+b-1 else 0";
    let mut all: Vec<(&str, Layers)> = cases().into_iter().filter(|(name, _)| *name != "depthwise and 1x1").collect();
    all.push(("even windows", straight(&[("r", 4), ("s", 2), ("p", 8), ("q", 11)], "n,c,h+a,w+b", "p+r-1", "q+s-1", false)));
    all.push(("no padding", straight(&[("p", 7), ("q", 9)], "n,c,h+a,w+b", "p+r", "q+s", false)));
    let image = [("h", 21), ("w", 6), ("q", 6), ("n", 3), ("p", 21)];
    all.push(("many rows", straight(&[&image[..], &[("a", 3), ("b", 3)]].concat(), near, "p+r-1", "q+s-1", false)));
    all.push(("more rows than a window", straight(&[("h", 24), ("p", 9), ("r", 5), ("s", 3)], "n,c,h+a,w+b", "3*p+r-2", "q+s-1", true)));
    all.push(("depthwise and 3x3", depthwise()));
    all.push(("pooling in between", pooled()));
    all.push(("three layers", three(1)));
    all.push(("three layers, stride 2", three(2)));
    all
}

/// A depthwise layer whose rows a 3×3 one reads.
fn depthwise() -> Layers {
    Layers::new(
        &[("n", 2), ("o", 16), ("h", 11), ("w", 7), ("f", 8), ("p", 11), ("q", 7), ("r", 3), ("s", 3), ("a", 3), ("b", 3)],
        &[("x", &IMAGE), ("k1", &["o", "a", "b"]), ("b1", &["o"]), ("k2", &["f", "o", "r", "s"]), ("b2", &["f"])],
        &[("t", &IMAGE), ("u", &IMAGE), ("z", &RESULT)],
        &[("y", &RESULT)],
    )
    .product("one", "n,o,h,w,a,b", ("t", "n,o,h,w"), ("k1", "o,a,b"), ("x", "n,o,h+a-1,w+b-1 else 0"))
    .relu("u", &IMAGE, "t", ("b1", &["o"]), None)
    .product("two", "n,f,p,q,o,r,s", ("z", "n,f,p,q"), ("k2", "f,o,r,s"), ("u", "n,o,p+r-1,q+s-1 else 0"))
    .relu("y", &RESULT, "z", ("b2", &["f"]), None)
}

/// 1×1, the maximum of 3×3 with stride 2, and 3×3.
fn pooled() -> Layers {
    let places = ["n", "o", "i", "j"];
    Layers::new(
        &[
            ("n", 2),
            ("c", 4),
            ("h", 17),
            ("w", 9),
            ("o", 8),
            ("i", 9),
            ("j", 5),
            ("f", 8),
            ("p", 9),
            ("q", 5),
            ("r", 3),
            ("s", 3),
            ("a", 3),
            ("b", 3),
        ],
        &[("x", &["n", "c", "h", "w"]), ("k1", &["o", "c"]), ("b1", &["o"]), ("k2", &["f", "o", "r", "s"]), ("b2", &["f"])],
        &[("t", &IMAGE), ("u", &IMAGE), ("m", &places), ("z", &RESULT)],
        &[("y", &RESULT)],
    )
    .product("one", "n,o,h,w,c", ("t", "n,o,h,w"), ("k1", "o,c"), ("x", "n,c,h,w"))
    .relu("u", &IMAGE, "t", ("b1", &["o"]), None)
    .maximum("m", &places, &["a", "b"], ("u", "n,o,2*i+a-1,2*j+b-1 else -inf"))
    .product("two", "n,f,p,q,o,r,s", ("z", "n,f,p,q"), ("k2", "f,o,r,s"), ("m", "n,o,p+r-1,q+s-1 else 0"))
    .relu("y", &RESULT, "z", ("b2", &["f"]), None)
}

/// 1×1, 3×3 and 3×3, the last one with a stride.
fn three(stride: i64) -> Layers {
    let (rows, places) = (13, ["n", "g", "i", "j"]);
    let results = (rows - 1) / stride + 1;
    Layers::new(
        &[
            ("n", 1),
            ("c", 4),
            ("h", rows),
            ("w", 9),
            ("o", 8),
            ("g", 8),
            ("i", rows),
            ("j", 9),
            ("f", 8),
            ("p", results),
            ("q", 9),
            ("r", 3),
            ("s", 3),
            ("a", 3),
            ("b", 3),
        ],
        &[
            ("x", &["n", "c", "h", "w"]),
            ("k1", &["o", "c"]),
            ("b1", &["o"]),
            ("k2", &["g", "o", "a", "b"]),
            ("b2", &["g"]),
            ("k3", &["f", "g", "r", "s"]),
            ("b3", &["f"]),
        ],
        &[("t", &IMAGE), ("u", &IMAGE), ("m", &places), ("v", &places), ("z", &RESULT)],
        &[("y", &RESULT)],
    )
    .product("one", "n,o,h,w,c", ("t", "n,o,h,w"), ("k1", "o,c"), ("x", "n,c,h,w"))
    .relu("u", &IMAGE, "t", ("b1", &["o"]), None)
    .product("two", "n,g,i,j,o,a,b", ("m", "n,g,i,j"), ("k2", "g,o,a,b"), ("u", "n,o,i+a-1,j+b-1 else 0"))
    .relu("v", &places, "m", ("b2", &["g"]), None)
    .product("three", "n,f,p,q,g,r,s", ("z", "n,f,p,q"), ("k3", "f,g,r,s"), ("v", &format!("n,g,{stride}*p+r-1,q+s-1 else 0")))
    .relu("y", &RESULT, "z", ("b3", &["f"]), None)
}

/// Rows of a step, from the knobs of a configuration: one where no tile is named.
fn step(config: &KernelConfig, index: &str) -> i64 {
    let tile = config.knobs.get("tile").unwrap_or_default();
    tile.split(',').find_map(|part| part.strip_prefix(index)?.strip_prefix(':')?.parse().ok()).unwrap_or(1)
}

/// Configurations that keep rows, of different steps, strips and layouts: strips as the space has them, of two steps, of three and of all.
fn configs(spec: &KernelSpec) -> Result<Vec<KernelConfig>, Failure> {
    let space = LayerSpace::new(spec)?;
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for n in 0..4000u64 {
        let config = space.config(n.wrapping_mul(1_000_003).wrapping_add(n * n * 7919) % space.count());
        let (Some("rows"), Some(strip)) = (config.knobs.get("form"), config.knobs.get("strip")) else { continue };
        let Some((index, _)) = strip.split_once(':') else { continue };
        let rows = step(&config, index);
        // Strips are cut anew below, so that tiles alone tell configurations apart.
        if !seen.insert((config.knobs.get("tile").map(String::from), config.knobs.get("vector").map(String::from))) {
            continue;
        }
        let strip = match found.len() % 4 {
            0 => strip.to_string(),
            1 => format!("{index}:{}", 2 * rows),
            2 => format!("{index}:1000"),
            _ => format!("{index}:{}", 3 * rows),
        };
        let knobs = config.knobs.clone().with("strip", strip);
        let config = KernelConfig { knobs, ..config };
        // A strip of one step keeps nothing.
        if kernels::tiles::lower(spec, &config)?.strip.is_some() {
            found.push(config);
        }
        if found.len() == CONFIGS {
            break;
        }
    }
    Ok(found)
}

/// A case by its name, what is expected of it, and its configurations.
type Prepared = (&'static str, Reference, Vec<KernelConfig>);

fn prepared(cases: Vec<(&'static str, Layers)>, toolchain: &Toolchain) -> Result<Vec<Prepared>, Failure> {
    let (mut all, mut kernels) = (Vec::new(), Vec::new());
    for (name, layers) in cases {
        let (program, unit) = layers.fused();
        let reference = Reference::new(&program, &unit)?;
        let configs = configs(&reference.spec).map_err(|e| format!("{name}: {e}"))?;
        kernels.extend(configs.iter().map(|config| (reference.spec.clone(), config.clone())));
        all.push((name, reference, configs));
    }
    templates::precompile(&kernels, toolchain, kernels::CancelToken::default());
    Ok(all)
}

#[test]
fn layers_that_keep_rows_equal_the_interpreter() -> Result<(), Failure> {
    let (pools, toolchain) = ([Pool::new(1)?, Pool::new(3)?], toolchain()?);
    for (name, reference, configs) in prepared(with_rows(), &toolchain)? {
        // Two rows are one step of each size but 1.
        let least = if name == "small picture" { 1 } else { 3 };
        assert!(configs.len() >= least, "{name} has {} configurations that keep rows", configs.len());
        for (n, config) in configs.into_iter().enumerate() {
            let kernel = templates::compile(&reference.spec, &config, &toolchain).map_err(|e| format!("{name} under {config}: {e}"))?;
            for pool in [&pools[n % 2], &pools[1 - n % 2]] {
                let (ratio, place) = reference.ratio(&reference.run(kernel.as_ref(), &config, pool)?);
                assert!(ratio <= 1.0, "{name}: {place}, {ratio} times the tolerance, under {config}");
            }
        }
    }
    Ok(())
}

/// A chain of two 3×3 layers on 21 rows, whose first one has 5 channels and 8 results, and whose second one has 16 results.
fn chain() -> Result<Reference, Failure> {
    let sizes = [("h", 21), ("w", 6), ("q", 6), ("n", 3), ("p", 21), ("a", 3), ("b", 3)];
    let (program, unit) = straight(&sizes, "n,c,h+a-1,w+b-1 else 0", "p+r-1", "q+s-1", false).fused();
    Reference::new(&program, &unit)
}

fn knobs(all: &[(&str, &str)]) -> KernelConfig {
    let knobs = all.iter().fold(Knobs::default(), |knobs, (name, value)| knobs.with(name, value));
    KernelConfig { knobs, ..KernelConfig::default() }
}

#[test]
fn steps_compute_nothing_again_but_at_the_beginning_of_strips() -> Result<(), Failure> {
    let reference = chain()?;
    // Multiplications and additions of a row of either layer.
    let (first, second) = ((3 * 8 * 6 * 5 * 9 * 2) as f64, (3 * 16 * 6 * 8 * 9 * 2) as f64);
    let flop = |rows: f64| rows * first + 21.0 * second;
    let found = |config: &[(&str, &str)]| LayerFlop::of(&reference.spec, &knobs(config));
    // Strips of 6 rows: the window of each but the first begins two rows before the last one's end.
    let strips = found(&[("form", "rows"), ("tile", "p:2,q:6"), ("strip", "p:6")])?.ok_or("no layers")?;
    assert_eq!((strips.done, strips.alone), (flop(21.0 + 3.0 * 2.0), flop(21.0)));
    // 11 steps of 2 rows are 4 strips of 3 steps. Workers share the strips alone.
    let template = template_of(&reference.spec, &knobs(&[("form", "rows"), ("tile", "p:2,q:6"), ("strip", "p:6")]))?;
    let template = template.ok_or("a template")?.to_string();
    assert!(template.contains("GRID_4-THREAD_3-CTA_2"), "{template}");
    let whole = found(&[("form", "rows"), ("tile", "p:2,q:6")])?.ok_or("no layers")?;
    assert_eq!((whole.done, whole.again()), (flop(21.0), 0.0));
    // Tiles that overlap: 3 rows at the top, 4 for each of nine, and 2 for the last row of the picture.
    let tiles = LayerFlop::overlapped(&reference.spec, &knobs(&[("form", "rows"), ("tile", "p:2,q:6"), ("strip", "p:6")]))?;
    assert_eq!(tiles.map(|t| t.done), Some(flop(3.0 + 9.0 * 4.0 + 2.0)));
    Ok(())
}

#[test]
fn a_step_that_does_not_keep_its_rows_is_found() -> Result<(), Failure> {
    let (reference, toolchain, pool) = (chain()?, toolchain()?, Pool::new(2)?);
    let config = knobs(&[("form", "rows"), ("tile", "p:2,q:6"), ("strip", "p:6"), ("vector", "w_in,q")]);
    let nest = kernels::tiles::lower(&reference.spec, &config)?;
    let kernel = || kernels::target::cpu::tiles::compile(&reference.spec, &config, &toolchain);
    assert!(nest.strip.is_some_and(|strip| strip.each == 3));
    let (ratio, place) = reference.ratio(&reference.run(&kernel()?, &config, &pool)?);
    assert!(ratio <= 1.0, "{place}: {ratio}");
    let changed = kernel()?.rewritten(&toolchain, |text| text.replace("__builtin_memmove(", "(void)("))?;
    let (ratio, _) = reference.ratio(&reference.run(&changed, &config, &pool)?);
    assert!(ratio > 1.0, "rows that are not moved are off by {ratio} of the tolerance alone");
    Ok(())
}

#[test]
fn strips_of_what_is_no_row_are_refused() -> Result<(), Failure> {
    let reference = chain()?;
    let refused = |all: &[(&str, &str)]| match kernels::tiles::lower(&reference.spec, &knobs(all)) {
        Ok(_) => String::new(),
        Err(error) => error.to_string(),
    };
    for strip in ["p", "p:0", "p:-2", "n:3", "f:8", "nothing:4", "p:x"] {
        let text = refused(&[("form", "rows"), ("tile", "p:2,q:6"), ("strip", strip)]);
        assert!(text.contains("strip") && text.contains("rows above 0"), "{strip}: {text}");
    }
    let along = refused(&[("form", "rows"), ("tile", "p:2,q:2"), ("strip", "q:6"), ("vector", "w_in,q")]);
    assert!(along.contains("choose another `vector`"), "{along}");
    Ok(())
}
