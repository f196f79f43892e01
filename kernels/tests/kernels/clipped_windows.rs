//! Convolutions whose windows leave the image: products leave out what lies outside, in register blocks at borders and inside, with windows
//! that are walked in either direction. What cannot be left out is copied with the fill around it.

use crate::common::Case;
use crate::harness::{Failure, Reference, toolchain};
use crate::windows::{MakeOfWindow, Window, compiled};
use crate::winograd::{blocked, weights};
use kernels::pool::Pool;
use kernels::processor::PanelBlock;
use kernels::target::cpu::templates;
use kernels::{KernelSpec, images};
use sdfg::config::{KernelConfig, Knobs};
use std::collections::{BTreeMap, BTreeSet};

/// Padding on both sides, on one, on none of a dim; strides and dilation; windows as large as the image; windows that are walked backwards,
/// as those of gradients are; one dim of space and three; channels of their own.
const WINDOWS: [(&str, Window); 17] = [
    ("plain", Window { space: &[[23, 3, 1, 1, 1, 1], [37, 3, 1, 1, 1, 1]], ..Window::PLAIN }),
    ("small", Window { channels: [32, 64, 1], space: &[[7, 3, 1, 1, 1, 1], [7, 3, 1, 1, 1, 1]], ..Window::PLAIN }),
    ("small pictures", Window { batch: 2, channels: [16, 32, 1], space: &[[14, 3, 1, 1, 1, 1], [14, 3, 1, 1, 1, 1]], ..Window::PLAIN }),
    ("prime pictures", Window { channels: [16, 24, 1], space: &[[13, 3, 1, 1, 1, 1], [13, 5, 1, 1, 2, 2]], ..Window::PLAIN }),
    ("prime pictures of 48", Window { channels: [16, 48, 1], space: &[[13, 3, 1, 1, 1, 1], [13, 5, 1, 1, 2, 2]], ..Window::PLAIN }),
    ("narrow", Window { channels: [16, 32, 1], space: &[[20, 5, 1, 1, 2, 2], [3, 3, 1, 1, 1, 1]], ..Window::PLAIN }),
    ("halved", Window { channels: [16, 32, 1], space: &[[14, 3, 2, 1, 1, 1], [15, 3, 2, 1, 1, 1]], ..Window::PLAIN }),
    ("strided", Window { batch: 2, space: &[[15, 3, 2, 1, 1, 1], [34, 5, 2, 1, 1, 2]], ..Window::PLAIN }),
    ("dilated", Window { space: &[[17, 3, 1, 2, 2, 2], [20, 2, 3, 3, 2, 1]], ..Window::PLAIN }),
    ("one side", Window { space: &[[9, 3, 1, 1, 0, 2], [33, 7, 1, 1, 6, 0]], ..Window::PLAIN }),
    ("one row", Window { space: &[[6, 1, 1, 1, 0, 0], [41, 7, 1, 1, 3, 3]], ..Window::PLAIN }),
    ("one column", Window { space: &[[29, 5, 1, 1, 2, 2], [5, 1, 1, 1, 0, 0]], ..Window::PLAIN }),
    ("larger than the image", Window { batch: 3, space: &[[2, 5, 1, 1, 3, 2], [3, 7, 1, 1, 3, 3]], ..Window::PLAIN }),
    ("backwards", Window { space: &[[12, 3, 1, -1, -1, -1], [30, 5, 1, -1, -2, -2]], ..Window::PLAIN }),
    ("signal", Window { batch: 2, space: &[[101, 7, 4, 1, 2, 0]], ..Window::PLAIN }),
    ("volume", Window { space: &[[4, 3, 1, 1, 1, 1], [5, 3, 2, 1, 1, 1], [19, 2, 1, 1, 0, 1]], ..Window::PLAIN }),
    ("depthwise", Window { channels: [32, 32, 1], depthwise: true, space: &[[19, 3, 1, 1, 1, 1], [40, 3, 2, 1, 1, 1]], ..Window::PLAIN }),
];

/// Tiles of results: all of them, rows, parts of rows, channels in several tiles, single places.
const TILES: [&str; 5] = ["o:64,c:64,p:64,q:64", "o:16,c:16,p:4,q:64", "o:32,c:16,p:3,q:17", "o:64,c:32,q:64", "o:64,c:64,p:5"];

fn configs(spec: &KernelSpec, n: usize, window: &Window) -> Vec<KernelConfig> {
    let images = spec.arguments().into_iter().filter(|a| ["x", "y", "u"].contains(&a.data.as_str())).map(|a| a.data);
    let mut layouts: BTreeMap<_, _> = images.map(|data| (data.clone(), blocked(spec, &data))).collect();
    if !window.depthwise {
        layouts.insert("k".to_string(), weights(spec, n));
    }
    let lane = if window.depthwise { "c" } else { "o" };
    let walks = |index: &str| index == lane || window.names(2).contains(&index);
    let of_scope = |tile: &str| tile.split(',').filter(|part| walks(&part[..1])).collect::<Vec<_>>().join(",");
    let knobs = |tile: &str| Knobs::default().with("tile", of_scope(tile)).with("form", "direct").with("vector", lane);
    TILES.iter().map(|tile| KernelConfig { layouts: layouts.clone(), knobs: knobs(tile) }).collect()
}

#[test]
fn what_lies_outside_an_image_is_left_out() -> Result<(), Failure> {
    let (pools, toolchain) = ([Pool::new(1)?, Pool::new(3)?], toolchain()?);
    let mut in_runs = BTreeSet::new();
    let kinds = [("convolution", Window::convolution as MakeOfWindow), ("with epilogue", Window::with_epilogue)];
    // Channels lie in blocks of a vector each.
    let fit: Vec<_> = WINDOWS.into_iter().filter(|(_, window)| window.channels[1] % images::lanes() == 0).collect();
    for (name, reference, configs) in compiled(&fit, &kinds, |n, window, spec| Ok(configs(spec, n, window)))? {
        for (n, config) in configs.into_iter().enumerate() {
            let kernel = templates::compile(&reference.spec, &config, &toolchain).map_err(|e| format!("{name} under {config}: {e}"))?;
            let code = kernel.source().unwrap_or_default();
            assert!(!code.lines().any(|line| line.contains("pad_run(") && !line.contains("ALWAYS")), "{name} under {config} copies");
            let has_runs = code.contains("static const int16_t runs[");
            assert!(code.contains("const int64_t at0 = ") || has_runs, "{name} under {config}");
            if has_runs {
                in_runs.insert(name.clone());
            }
            let (ratio, place) = reference.ratio(&reference.run(kernel.as_ref(), &config, &pools[n % 2])?);
            assert!(ratio <= 1.0, "{name}: {place}, {ratio} times the tolerance, under {config}");
        }
    }
    // Sixteen registers hold no good rectangle of these pictures; with 32 there is one.
    let small = ["small", "small pictures", "prime pictures", "halved"];
    let missing = small.iter().flat_map(|name| kinds.iter().map(move |(kind, _)| format!("{kind}, {name}")));
    let missing: Vec<String> = missing.filter(|name| PanelBlock::native().vector == 32 && !in_runs.contains(name)).collect();
    assert!(missing.is_empty(), "no runs of places: {missing:?}");
    Ok(())
}

/// A fill that is not zero belongs to the sum: it is copied around the image.
#[test]
fn a_fill_that_counts_is_copied() -> Result<(), Failure> {
    let (pool, toolchain) = (Pool::new(2)?, toolchain()?);
    let Case { program, unit } = Window::PLAIN.filled(0.5);
    let reference = Reference::new(&program, &unit)?;
    for config in configs(&reference.spec, 0, &Window::PLAIN) {
        let kernel = templates::compile(&reference.spec, &config, &toolchain)?;
        assert!(kernel.source().is_some_and(|code| code.lines().any(|line| line.contains("pad_run(") && !line.contains("ALWAYS"))));
        let (ratio, place) = reference.ratio(&reference.run(kernel.as_ref(), &config, &pool)?);
        assert!(ratio <= 1.0, "{place}, {ratio} times the tolerance, under {config}");
    }
    Ok(())
}
