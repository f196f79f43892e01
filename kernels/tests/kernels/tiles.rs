//! Tile kernels against the interpreter, over layouts and knobs.

use crate::common::{self, Case, Sizes};
use crate::gemms::{Stored, TILES, attention, keys, mixed, narrow, plain, scores_backward};
use crate::harness::{Failure, Reference, toolchain, toolchain_told};
use kernels::CancelToken;
use kernels::pool::Pool;
use kernels::target::cpu;
use kernels::target::cpu::templates::precompile;
use kernels::tiles::TileSpace;
use kernels::{ConfigSpace, Executable, Toolchain};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Container, Dtype, Layout, Unit};

const SIZES: Sizes = &[("b", 3), ("h", 2), ("j", 19), ("k", 37), ("i", 21), ("u", 70), ("p", 9)];
/// Several panels of columns and chunks of the depth.
const LARGER: Sizes = &[("b", 2), ("h", 2), ("j", 45), ("k", 150), ("i", 300), ("u", 140), ("p", 40)];

/// A fixed spread of configurations of each space.
fn spread(space: &dyn ConfigSpace, wanted: u64) -> impl Iterator<Item = KernelConfig> {
    let count = space.count();
    (0..wanted).map(move |n| space.config((n * 1_000_003 + n * n * 7919) % count))
}

fn each_case(sizes: Sizes, wanted: u64, stored: Stored, tile: Option<&str>, toolchain: &Toolchain) -> Result<(), Failure> {
    let pools = [Pool::new(1)?, Pool::new(3)?];
    let (mut references, mut cases, mut kernels) = (Vec::new(), Vec::new(), Vec::new());
    for (name, make) in TILES {
        let Case { mut program, unit } = make(sizes);
        for container in program.containers.values_mut() {
            container.dtype = stored(container);
        }
        let reference = Reference::new(&program, &unit)?;
        let space = TileSpace::new(&reference.spec)?;
        let number = references.len();
        for (n, mut config) in spread(&space, wanted).enumerate() {
            if let Some(tile) = tile {
                let outer = |part: &&str| match &unit {
                    Unit::Scope(scope) => scope.map.indices.iter().any(|i| part.starts_with(&format!("{}:", i.name)) && i.name != "i"),
                    _ => false,
                };
                let parts: Vec<&str> = tile.split(',').filter(outer).collect();
                config.knobs = config.knobs.with("tile", parts.join(",")).with("depth", 64);
            }
            if n % 2 == 1 {
                config.knobs = config.knobs.with("columns", "across");
            }
            kernels.push((reference.spec.clone(), config.clone()));
            cases.push((name, number, n, config));
        }
        references.push(reference);
    }
    // Together: a compiler reads what all of them include once.
    precompile(&kernels, toolchain, CancelToken::default());
    for (name, number, n, config) in cases {
        let reference = &references[number];
        let kernel = cpu::tiles::compile(&reference.spec, &config, toolchain)?.streaming(n / 2 % 2 == 1);
        let (ratio, place) = reference.ratio(&reference.run(&kernel, &config, &pools[n % 2])?);
        assert!(ratio <= 1.0, "{name}: {place}, {ratio} times the tolerance, under {config}");
    }
    Ok(())
}

#[test]
fn every_case_equals_the_interpreter_over_its_space() -> Result<(), Failure> {
    each_case(SIZES, 8, |_| Dtype::F32, None, &toolchain()?)
}

/// Products of little depth or few columns are also multiplied where their factors lie, which is tried first.
#[test]
fn thin_products_are_packed_or_not() -> Result<(), Failure> {
    const THIN: Sizes = &[("b", 3), ("h", 2), ("j", 21), ("k", 37), ("i", 3), ("u", 35), ("p", 2)];
    let Case { program, unit } = attention(THIN);
    let space = TileSpace::new(&Reference::new(&program, &unit)?.spec)?;
    let direct = |config: &KernelConfig| config.knobs.get("form") == Some("direct");
    assert_eq!([true, false].map(|is| spread(&space, 20).any(|config| direct(&config) == is)), [true, true]);
    let best = (0..space.count().min(5000)).min_by(|a, b| space.predicted_cost(*a).total_cmp(&space.predicted_cost(*b)));
    assert!(best.is_some_and(|n| direct(&space.config(n))));
    each_case(THIN, 10, |_| Dtype::F32, None, &toolchain()?)?;
    each_case(THIN, 2, |_| Dtype::F64, Some("j:8,u:32,b:2"), &toolchain()?)
}

/// A softmax's sum backward multiplies point by point: it has no rows and columns, so nothing of its kernel is thin. The product beside it
/// is thin where its own depth is.
#[test]
fn sums_for_each_point_are_no_thin_products() -> Result<(), Failure> {
    let form = |p: i64| -> Result<[bool; 2], Failure> {
        let sizes = [("b", 3), ("h", 2), ("j", 21), ("k", 37), ("p", p)];
        let Case { program, unit } = scores_backward(&sizes);
        let space = TileSpace::new(&Reference::new(&program, &unit)?.spec)?;
        let direct = |config: &KernelConfig| config.knobs.get("form") == Some("direct");
        Ok([true, false].map(|is| spread(&space, 40).any(|config| direct(&config) == is)))
    };
    assert_eq!((form(35)?, form(2)?), ([false, true], [true, true]));
    Ok(())
}

#[test]
fn several_panels_and_chunks() -> Result<(), Failure> {
    each_case(LARGER, 3, |_| Dtype::F32, Some("j:20,u:64,b:2"), &toolchain()?)
}

/// More columns than stay in the second cache: they are packed and used some at a time.
#[test]
fn more_columns_than_stay() -> Result<(), Failure> {
    let small = toolchain_told("-DNEAR=16384".into())?;
    each_case(LARGER, 2, |_| Dtype::F32, Some("j:45,u:140,b:2"), &small)?;
    each_case(LARGER, 1, |_| Dtype::F64, Some("j:20,u:140,b:2"), &small)
}

/// Rows that several tiles of columns use are packed once for all of them: whole, in tiles of their own, several portions of panels
/// and chunks of the depth; and by each tile where its rows are ragged.
#[test]
fn rows_packed_once() -> Result<(), Failure> {
    const SIZES: Sizes = &[("b", 1), ("j", 130), ("i", 75), ("u", 600)];
    let emulated = toolchain_told("-DEMULATE_PAIRS".into())?;
    let cases: [(Stored, Toolchain); 4] =
        [(|_| Dtype::F32, toolchain()?), (|_| Dtype::F64, toolchain()?), (|_| Dtype::Bf16, toolchain()?), (narrow, emulated)];
    let pools = [Pool::new(1)?, Pool::new(3)?];
    for (stored, toolchain) in cases {
        let Case { mut program, unit } = plain(SIZES);
        for container in program.containers.values_mut() {
            container.dtype = stored(container);
        }
        let reference = Reference::new(&program, &unit)?;
        let space = TileSpace::new(&reference.spec)?;
        let mut once = 0;
        // Rows along the depth, and rows that are neighbours.
        for x in [["b", "j", "i"], ["b", "i", "j"]] {
            for (n, tile) in ["j:130,u:150", "j:26,u:150", "j:130,u:32", "j:40,u:150"].iter().enumerate() {
                let mut config = space.config(n as u64);
                config.layouts.insert("x".into(), Layout::of(&x));
                config.layouts.insert("y".into(), Layout::of(&["b", "j", "u"]));
                config.knobs = config.knobs.with("tile", tile.to_string()).with("depth", 32).with("vector", "u");
                let kernel = cpu::tiles::compile(&reference.spec, &config, &toolchain)?;
                once += usize::from(kernel.source().is_some_and(|text| text.contains("pack_lines(")));
                let (ratio, place) = reference.ratio(&reference.run(&kernel, &config, &pools[n % 2])?);
                assert!(ratio <= 1.0, "{place}, {ratio} times the tolerance, under {config}");
                assert!(*tile != "j:40,u:150" || kernel.source().is_some_and(|text| !text.contains("pack_lines(")));
            }
        }
        assert!(once >= 2, "{once}");
    }
    Ok(())
}

/// Columns that are neighbours and that few rows pass are read where they lie: whole panels, in chunks of the depth, and in a second
/// cache that holds one panel. So few rows that they are few for the lowest register block, of six. Rows that all want the same places
/// of the first cache, where a line of x is 2 KiB, are copied to where they do not.
#[test]
fn columns_where_they_lie() -> Result<(), Failure> {
    const FEW_ROWS: Sizes = &[("b", 2), ("h", 2), ("j", 29), ("k", 64), ("i", 75), ("u", 192), ("p", 64)];
    let small = toolchain_told("-DNEAR=4096".into())?;
    let packed = toolchain_told("-DFEW=0".into())?;
    let cases = [(Dtype::F32, toolchain()?), (Dtype::F64, toolchain()?), (Dtype::F32, small), (Dtype::F32, packed)];
    each_case(FEW_ROWS, 4, |_| Dtype::F32, None, &cases[0].1)?;
    let deep: Vec<(&str, i64)> = FEW_ROWS.iter().map(|(dim, size)| (*dim, if *dim == "i" { 512 } else { *size })).collect();
    for ((stored, toolchain), sizes) in cases.iter().flat_map(|case| [(case, FEW_ROWS), (case, &deep[..])]) {
        let Case { mut program, unit } = plain(sizes);
        for container in program.containers.values_mut() {
            container.dtype = *stored;
        }
        let reference = Reference::new(&program, &unit)?;
        let space = TileSpace::new(&reference.spec)?;
        for x in [["b", "j", "i"], ["b", "i", "j"]] {
            for tile in ["b:2,j:29,u:64", "b:2,j:29,u:96", "b:2,j:29,u:192"] {
                let mut config = space.config(0);
                for (data, dims) in [("x", &x[..]), ("w", &["i", "u"]), ("y", &["b", "j", "u"])] {
                    config.layouts.insert(data.into(), Layout::of(dims));
                }
                config.knobs = config.knobs.with("tile", tile.to_string()).with("depth", 32).with("vector", "u");
                let kernel = cpu::tiles::compile(&reference.spec, &config, toolchain)?;
                let (ratio, place) = reference.ratio(&reference.run(&kernel, &config, &Pool::new(2)?)?);
                assert!(ratio <= 1.0, "{place}, {ratio} times the tolerance, under {config}");
            }
        }
    }
    Ok(())
}

/// Each point tells a product where the next one finds the factor that moves; not where the other is, packed once for all of them.
#[test]
fn the_next_point_is_named() -> Result<(), Failure> {
    let Case { program, unit } = plain(SIZES);
    let reference = Reference::new(&program, &unit)?;
    let mut config = TileSpace::new(&reference.spec)?.config(0);
    for (data, dims) in [("x", ["b", "j", "i"]), ("y", ["b", "j", "u"])] {
        config.layouts.insert(data.into(), Layout::of(&dims));
    }
    config.knobs = config.knobs.with("tile", "j:10,u:70").with("depth", 32).with("vector", "u");
    let kernel = cpu::tiles::compile(&reference.spec, &config, &toolchain()?)?;
    let text = kernel.source().unwrap_or_default();
    // The factor that moves is x. Of its two outer indices the last runs fastest, and the first moves on when that starts again.
    let (moved, given) = text.split_once("const void *next_a").ok_or("no next point")?;
    let steps: Vec<&str> = moved.lines().rev().map(str::trim).filter(|line| !line.is_empty()).take(2).collect();
    assert!(steps[0].contains(") != 0 ? i_") && steps[1].contains(" + 1 < n_") && !steps[1].contains("!= 0"), "{steps:?}");
    assert!(given.contains("= &t_x[") && !given.split("gemm(").next().unwrap_or_default().contains("t_w["), "{given}");
    let (ratio, place) = reference.ratio(&reference.run(&kernel, &config, &Pool::new(2)?)?);
    assert!(ratio <= 1.0, "{place}, {ratio} times the tolerance, under {config}");
    Ok(())
}

#[test]
fn ragged_tiles() -> Result<(), Failure> {
    each_case(SIZES, 3, |_| Dtype::F32, Some("j:8,u:32,b:2,h:2"), &toolchain()?)
}

/// Columns of several indices that do not follow on in memory: blocks of whole panels, from one of which to the next results and
/// factors jump. Packed once for all tiles, for a tile, and in a second cache that holds a panel.
#[test]
fn columns_in_blocks() -> Result<(), Failure> {
    const BLOCKS: Sizes = &[("b", 3), ("h", 3), ("j", 32), ("k", 64), ("i", 13), ("u", 64), ("p", 64)];
    let small = toolchain_told("-DNEAR=4096".into())?;
    each_case(BLOCKS, 8, |_| Dtype::F32, None, &toolchain()?)?;
    each_case(BLOCKS, 8, |_| Dtype::F32, Some("j:16,h:2,p:64,b:2"), &toolchain()?)?;
    each_case(BLOCKS, 4, |_| Dtype::F32, Some("j:16,h:2,p:64,b:2"), &small)?;
    each_case(BLOCKS, 3, narrow, Some("j:16,h:2,p:64,b:2"), &toolchain()?)
}

/// Layouts in panels, in every place that has any: packed factors, results, the depth of rows, and what surrounds products.
#[test]
fn panels() -> Result<(), Failure> {
    let width = kernels::processor::PanelBlock::native().width(4) as i64;
    let (two, three) = (2 * width, 3 * width);
    let sizes = [("b", 2), ("h", 2), ("j", two), ("k", three), ("i", three), ("u", two), ("p", two)];
    let (pools, toolchain) = ([Pool::new(1)?, Pool::new(3)?], toolchain()?);
    for (name, make) in TILES {
        let Case { program, unit } = make(&sizes);
        let reference = Reference::new(&program, &unit)?;
        let space = TileSpace::new(&reference.spec)?.in_panels(width as usize);
        let some = |config: &KernelConfig| config.layouts.values().any(|l| !l.is_plain());
        let mut seen = 0;
        for (n, mut config) in spread(&space, 400).filter(some).take(9).enumerate() {
            if n % 3 == 1 {
                config.knobs = config.knobs.with("columns", "across");
            }
            if n % 3 == 2 {
                config.knobs = config.knobs.with("depth", width);
            }
            let kernel = kernels::compile(&reference.spec, &config, &toolchain)?;
            let (ratio, place) = reference.ratio(&reference.run(kernel.as_ref(), &config, &pools[n % 2])?);
            assert!(ratio <= 1.0, "{name}: {place}, {ratio} times the tolerance, under {config}");
            seen += 1;
        }
        assert!(seen == 9 || space.tensors().iter().all(|t| t.layouts.iter().all(Layout::is_plain)), "{name}: {seen}");
    }
    Ok(())
}

#[test]
fn double_precision() -> Result<(), Failure> {
    each_case(SIZES, 2, |_| Dtype::F64, None, &toolchain()?)
}

/// With the processor's own products of pairs where it has them, else by way of f32.
#[test]
fn bf16() -> Result<(), Failure> {
    each_case(SIZES, 4, narrow, None, &toolchain()?)?;
    each_case(LARGER, 2, narrow, Some("j:20,u:64,b:2"), &toolchain()?)?;
    each_case(SIZES, 2, |_| Dtype::Bf16, Some("j:8,u:32,b:2,h:2"), &toolchain()?)
}

#[test]
fn bf16_beside_f32() -> Result<(), Failure> {
    each_case(SIZES, 3, mixed, None, &toolchain()?)?;
    each_case(LARGER, 1, mixed, Some("j:20,u:64,b:2"), &toolchain()?)
}

/// What processors without products of pairs can test of those that have them: packing, and the kernels around them.
#[test]
fn pairs_of_bf16() -> Result<(), Failure> {
    let emulated = toolchain_told("-DEMULATE_PAIRS".into())?;
    each_case(SIZES, 3, narrow, None, &emulated)?;
    each_case(LARGER, 1, narrow, Some("j:20,u:64,b:2"), &emulated)?;
    each_case(SIZES, 1, |_| Dtype::Bf16, Some("j:8,u:32,b:2,h:2"), &emulated)?;
    each_case(&[("b", 1), ("h", 1), ("j", 5), ("k", 3), ("i", 1), ("u", 3), ("p", 2)], 1, narrow, None, &emulated)
}

/// Factors of bf16 as pairs, where rows of whole pairs are read where they lie, and widened; with columns on either side.
#[test]
fn both_arithmetics_of_bf16() -> Result<(), Failure> {
    let emulated = toolchain_told("-DEMULATE_PAIRS".into())?;
    let pool = Pool::new(2)?;
    for (name, make) in TILES {
        let Case { mut program, unit } = make(LARGER);
        for container in program.containers.values_mut() {
            container.dtype = narrow(container);
        }
        let reference = Reference::new(&program, &unit)?;
        let KernelConfig { layouts, .. } = TileSpace::new(&reference.spec)?.config(0);
        let native = toolchain()?;
        for (toolchain, arithmetic, columns) in [
            (&native, None, None),
            (&native, Some("f32"), None),
            (&emulated, None, None),
            (&emulated, None, Some("across")),
            (&emulated, Some("f32"), None),
        ] {
            let knobs = [("arithmetic", arithmetic), ("columns", columns)];
            let set = knobs.into_iter().filter_map(|(name, value)| Some((name, value?)));
            let knobs = set.fold(Knobs::default(), |knobs, (name, value)| knobs.with(name, value));
            let config = KernelConfig { layouts: layouts.clone(), knobs };
            let kernel = cpu::tiles::compile(&reference.spec, &config, toolchain)?;
            let (ratio, place) = reference.ratio(&reference.run(&kernel, &config, &pool)?);
            assert!(ratio <= 1.0, "{name}: {place}, {ratio} times the tolerance, under {config}");
        }
    }
    Ok(())
}

/// The space of bf16 has both arithmetics where the processor has both, that of f32 has one everywhere.
#[test]
fn arithmetics_of_a_space() -> Result<(), Failure> {
    for (stored, both) in [(narrow as Stored, kernels::processor::pairs().is_some()), (|_: &Container| Dtype::F32, false)] {
        let Case { mut program, unit } = plain(LARGER);
        for container in program.containers.values_mut() {
            container.dtype = stored(container);
        }
        let space = TileSpace::new(&kernels::KernelSpec::new(&program, &unit)?)?;
        let widened = (0..space.count()).filter(|n| space.config(*n).knobs.get("arithmetic").is_some()).count() as u64;
        assert_eq!(widened, if both { space.count() / 2 } else { 0 });
    }
    Ok(())
}

/// Turning a large result costs more than turning a factor as it is packed; turning a small one costs less than a large factor.
#[test]
fn what_is_turned_is_the_smaller_side() -> Result<(), Failure> {
    let across = |sizes: Sizes, layouts: [(&str, &str); 3]| -> Result<bool, Failure> {
        let Case { program, unit } = plain(sizes);
        let space = TileSpace::new(&kernels::KernelSpec::new(&program, &unit)?)?;
        let is = |config: &KernelConfig| layouts.iter().all(|(data, layout)| config.layouts[*data].to_string() == *layout);
        let best = (0..space.count())
            .filter(|n| is(&space.config(*n)))
            .min_by(|x, y| space.predicted_cost(*x).total_cmp(&space.predicted_cost(*y)));
        Ok(space.config(best.ok_or("no such layouts")?).knobs.get("columns").is_some())
    };
    // y[b,j,u] of w[u,i] and x[b,j,i], all along the depth: w becomes columns.
    let wide = across(&[("b", 8), ("j", 128), ("i", 768), ("u", 3072)], [("w", "u,i"), ("x", "b,j,i"), ("y", "b,j,u")])?;
    // A factor w that is larger than both others: it is read where it lies.
    let large = across(&[("b", 1), ("j", 64), ("i", 4096), ("u", 4096)], [("w", "u,i"), ("x", "b,j,i"), ("y", "b,j,u")])?;
    assert_eq!((wide, large), (false, true));
    Ok(())
}

/// Twelve of a dim leave room for 21 of the next, and 64 in tiles of 21 would leave one.
#[test]
fn no_tile_is_a_leftover() -> Result<(), Failure> {
    const SIZES: Sizes = &[("b", 12), ("j", 64), ("i", 32), ("u", 96)];
    let Case { program, unit } = plain(SIZES);
    let space = TileSpace::new(&kernels::KernelSpec::new(&program, &unit)?)?;
    let mut cut = 0;
    for config in spread(&space, 2000) {
        for part in config.knobs.get("tile").unwrap_or_default().split(',') {
            let Some((index, size)) = part.split_once(':') else { continue };
            let (size, count) = (size.parse::<i64>()?, SIZES.iter().find(|(i, _)| *i == index).map_or(1, |(_, n)| *n));
            let left = count % size;
            assert!(left == 0 || 2 * left >= size, "{count} in tiles of {size} leave {left} under {config}");
            cut += usize::from(index == "j" && size < count);
        }
    }
    assert!(cut > 0, "no tile of this space is smaller than its dim");
    Ok(())
}

#[test]
fn dims_of_size_one() -> Result<(), Failure> {
    each_case(&[("b", 1), ("h", 1), ("j", 5), ("k", 3), ("i", 1), ("u", 3), ("p", 2)], 3, |_| Dtype::F32, None, &toolchain()?)
}

#[test]
fn scopes_without_products_are_refused() -> Result<(), Failure> {
    let Case { program, unit } = common::layernorm(SIZES);
    let spec = kernels::KernelSpec::new(&program, &unit)?;
    let refused = TileSpace::new(&spec).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(refused.contains("no matrix product"), "{refused}");
    Ok(())
}

#[test]
fn f16_is_refused_and_left_to_other_templates() -> Result<(), Failure> {
    let Case { mut program, unit } = plain(SIZES);
    for container in program.containers.values_mut() {
        container.dtype = Dtype::F16;
    }
    let spec = kernels::KernelSpec::new(&program, &unit)?;
    let refused = TileSpace::new(&spec).err().map(|e| e.to_string()).unwrap_or_default();
    assert!(refused.contains("tiles hold f64, f32 and bf16, and `") && refused.contains("is f16"), "{refused}");
    let space = cpu::templates::space(&spec)?;
    assert!(space.count() > 0 && !kernels::tiles::is_tiled(&space.config(0)));
    Ok(())
}

/// The statements of a kernel in order: what is written, `*` where a product of matrices writes it, and how.
fn statements(case: Case) -> Result<(Vec<String>, indexmap::IndexMap<String, String>), Failure> {
    let spec = kernels::KernelSpec::new(&case.program, &case.unit)?;
    let nest = kernels::tiles::lower(&spec, &KernelConfig { knobs: Knobs::default().with("tile", "j:16"), ..KernelConfig::default() })?;
    let line = |g: &kernels::loopnest::LoopGroup, s: &kernels::loopnest::NestStatement| {
        format!("{}{} = {}", s.write.data, if g.is_gemm { " *" } else { "" }, serde_json::to_string(&s.code).unwrap_or_default())
    };
    let lines = nest.groups.iter().flat_map(|g| g.statements.iter().map(move |s| line(g, s))).collect();
    Ok((lines, nest.reuses))
}

#[test]
fn what_all_terms_share_is_applied_to_their_sum() -> Result<(), Failure> {
    let (lines, _) = statements(attention(SIZES))?;
    let at = |start: &str| lines.iter().position(|l| l.starts_with(start)).ok_or(format!("no `{start}` in {lines:#?}"));
    let (made, product, divided) = (at("a = ")?, at("o.undivided *")?, at("o = ")?);
    assert!(made < product && product < divided, "{lines:#?}");
    assert!(!lines[made].contains('/') && lines[divided].contains("sum/by"), "{lines:#?}");
    Ok(())
}

#[test]
fn locals_share_memory_when_one_is_done_with() -> Result<(), Failure> {
    let (lines, slots) = statements(attention(SIZES))?;
    // Scores, and what is left of their exponentials by dropout: one after the other in the same place.
    assert_eq!(slots.get("a").map(String::as_str), Some("s"), "{slots:?} {lines:#?}");
    // Both products of the keys read what `d` holds, after `s` is done with.
    let (lines, slots) = statements(keys(SIZES))?;
    assert_eq!(slots.get("d").map(String::as_str), Some("s"), "{slots:?} {lines:#?}");
    Ok(())
}

#[test]
fn knobs_are_checked() -> Result<(), Failure> {
    let Case { program, unit } = plain(SIZES);
    let spec = kernels::KernelSpec::new(&program, &unit)?;
    for (knob, value) in
        [("tile", "x:3"), ("tile", "u"), ("tile", "u:0"), ("depth", "0"), ("vector", "q"), ("reduce", "maybe"), ("arithmetic", "f64")]
    {
        let config =
            KernelConfig { layouts: [("y".to_string(), Layout::of(&["b", "j", "u"]))].into(), knobs: Knobs::default().with(knob, value) };
        assert!(kernels::tiles::lower(&spec, &config).is_err(), "{knob}={value}");
    }
    Ok(())
}
