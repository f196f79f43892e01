//! Convolutions in Winograd's form against the interpreter: of every size of tiles, with borders on all sides, results that leave tiles
//! unfinished, blocks of channels, several images, and what follows a convolution.

use crate::common::Case;
use crate::harness::{Failure, Reference, toolchain};
use crate::windows::{MakeOfWindow, Window};
use kernels::constant::new_parameters;
use kernels::pool::Pool;
use kernels::target::cpu::templates;
use kernels::{AlignedBuffer, Completion, ConfigSpace, KernelSpec, RunContext, images};
use ndarray::ArrayD;
use sdfg::Layout;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::layout::Piece;

const WINDOWS: [(&str, Window); 6] = [
    ("plain", Window { channels: [32, 48, 1], ..Window::PLAIN }),
    ("smaller than a tile", Window { channels: [16, 16, 1], space: &[[2, 3, 1, 1, 1, 1], [3, 3, 1, 1, 1, 1]], ..Window::PLAIN }),
    ("padded on one side", Window { space: &[[7, 3, 1, 1, 0, 2], [12, 3, 1, 1, 2, 0]], ..Window::PLAIN }),
    ("without padding", Window { channels: [64, 32, 1], space: &[[10, 3, 1, 1, 0, 0], [14, 3, 1, 1, 0, 0]], ..Window::PLAIN }),
    ("three images", Window { batch: 3, space: &[[5, 3, 1, 1, 1, 1], [9, 3, 1, 1, 1, 1]], ..Window::PLAIN }),
    ("prime", Window { channels: [16, 80, 1], space: &[[13, 3, 1, 1, 1, 1], [29, 3, 1, 1, 1, 1]], ..Window::PLAIN }),
];

const KINDS: [(&str, MakeOfWindow); 2] = [("convolution", Window::convolution), ("with epilogue", Window::with_epilogue)];

/// Tiles of results: all, and parts of which the last one is smaller.
const TILES: [&str; 4] = ["o:64,p:64,q:64", "o:16,p:4,q:64", "o:32,p:3,q:5", "o:16,p:8,q:6,n:2"];

/// Images and results in vectors of channels.
pub fn blocked(spec: &KernelSpec, data: &str) -> Layout {
    let dims = &spec.containers[data].dims;
    let mut layout = Layout::of(dims);
    layout.pieces.push(Piece { dim: dims[1].clone(), block: Some(images::lanes() as u32) });
    layout
}

/// Weights as declared, with either kind of channels last, and in vectors of results.
pub fn weights(spec: &KernelSpec, n: usize) -> Layout {
    images::layouts(spec, "k").swap_remove(n % images::layouts(spec, "k").len())
}

fn configs(spec: &KernelSpec, n: usize) -> Vec<KernelConfig> {
    let images = spec.arguments().into_iter().filter(|a| a.dims.len() == 4 && a.data != "k").map(|a| a.data);
    let layouts = images.map(|data| (data.clone(), blocked(spec, &data))).chain([("k".to_string(), weights(spec, n))]);
    let layouts: std::collections::BTreeMap<_, _> = layouts.collect();
    let knobs = |m: &str, tile: &str| Knobs::default().with("tile", tile).with("form", "direct").with("winograd", m).with("vector", "o");
    let each = TILES.iter().flat_map(|tile| ["2", "4"].map(|m| KernelConfig { layouts: layouts.clone(), knobs: knobs(m, tile) }));
    each.collect()
}

#[test]
fn convolutions_in_winograds_form_equal_the_interpreter() -> Result<(), Failure> {
    let (pools, toolchain) = ([Pool::new(1)?, Pool::new(3)?], toolchain()?);
    let (mut cases, mut kernels) = (Vec::new(), Vec::new());
    for (n, (name, window)) in WINDOWS.iter().enumerate() {
        for (kind, make) in KINDS {
            let Case { mut program, unit } = make(window);
            program.winograd = true;
            let reference = Reference::new(&program, &unit)?;
            let configs = configs(&reference.spec, n);
            kernels.extend(configs.iter().map(|config| (reference.spec.clone(), config.clone())));
            cases.push((format!("{kind}, {name}"), reference, configs));
        }
    }
    templates::precompile(&kernels, &toolchain, kernels::CancelToken::default());
    for (name, reference, configs) in cases {
        for (n, config) in configs.into_iter().enumerate() {
            let kernel = templates::compile(&reference.spec, &config, &toolchain).map_err(|e| format!("{name} under {config}: {e}"))?;
            let m = config.knobs.get("winograd").unwrap_or_default();
            assert!(kernel.source().is_some_and(|code| code.contains(&format!("winograd_patch_{m}(patch"))), "{name} under {config}");
            let (ratio, place) = reference.ratio(&reference.run(kernel.as_ref(), &config, &pools[n % 2])?);
            // F(2×2) is about as exact as the sum itself; F(4×4) stays far below its bound.
            assert!(ratio <= if m == "2" { 0.01 } else { 0.05 }, "{name}: {place}, {ratio} times the tolerance, under {config}");
            assert!(ratio > 0.0, "{name}: sums of other orders round elsewhere, under {config}");
        }
    }
    Ok(())
}

/// The definition itself in f64, of one result.
fn by_definition(window: &Window, x: &ArrayD<f64>, k: &ArrayD<f64>, at: [usize; 4]) -> f64 {
    let [n, o, p, q] = at;
    let [[_, _, _, _, top, _], [_, _, _, _, left, _]] = [window.space[0], window.space[1]];
    let mut sum = 0.0;
    for (c, r, s) in (0..x.shape()[1]).flat_map(|c| (0..9).map(move |tap| (c, tap / 3, tap % 3))) {
        let (Some(h), Some(w)) = ((p + r).checked_sub(top as usize), (q + s).checked_sub(left as usize)) else { continue };
        sum += x.get(&[n, c, h, w][..]).copied().unwrap_or(0.0) * k[[o, c, r, s].as_slice()];
    }
    sum
}

#[test]
fn convolutions_in_winograds_form_are_convolutions() -> Result<(), Failure> {
    let (pool, toolchain) = (Pool::new(2)?, toolchain()?);
    for (name, window) in &WINDOWS {
        let Case { mut program, unit } = window.convolution();
        program.winograd = true;
        let reference = Reference::new(&program, &unit)?;
        for config in configs(&reference.spec, 2).into_iter().take(2) {
            let got = reference.run(templates::compile(&reference.spec, &config, &toolchain)?.as_ref(), &config, &pool)?;
            let (x, k, y) = (&reference.given["x"], &reference.given["k"], &got["y"]);
            let error =
                y.indexed_iter().map(|(at, y)| (y - by_definition(window, x, k, [at[0], at[1], at[2], at[3]])).abs()).fold(0.0, f64::max);
            let largest = y.iter().fold(0.0, |most: f64, y| most.max(y.abs()));
            assert!(largest > 1.0 && error < 1e-5 * largest, "{name}: off by {error}, under {config}");
        }
    }
    Ok(())
}

/// A space has the form if the program allows it, for windows of 3×3 with stride 1 alone.
#[test]
fn the_form_is_tried_where_the_program_allows_it() -> Result<(), Failure> {
    let strided = Window { space: &[[13, 3, 2, 1, 1, 1], [17, 3, 2, 1, 1, 1]], ..Window::PLAIN };
    let five = Window { space: &[[13, 5, 1, 1, 2, 2], [17, 3, 1, 1, 1, 1]], ..Window::PLAIN };
    for (window, allowed, tried) in
        [(Window::PLAIN, true, true), (Window::PLAIN, false, false), (strided, true, false), (five, true, false)]
    {
        let Case { mut program, unit } = window.convolution();
        program.winograd = allowed;
        let spec = KernelSpec::new(&program, &unit)?;
        let space = kernels::tiles::TileSpace::new(&spec)?;
        let any = (0..space.count()).any(|n| space.config(n).knobs.get("winograd").is_some());
        assert_eq!(any, tried, "{window:?}, allowed: {allowed}");
        let asked = configs(&spec, 0).swap_remove(0);
        assert_eq!(kernels::tiles::lower(&spec, &asked).is_ok(), allowed, "{window:?}");
    }
    Ok(())
}

/// Transformed weights are kept while parameters are the same, and made anew when they change, or may have.
#[test]
fn what_is_packed_of_weights_is_kept_while_parameters_are_the_same() -> Result<(), Failure> {
    let Case { mut program, unit } = Window::PLAIN.convolution();
    program.winograd = true;
    // What a program says of its parameters ([`kernels::constant`]), of which this unit alone is no whole one.
    let spec = KernelSpec { constants: ["k".to_string()].into(), ..KernelSpec::new(&program, &unit)? };
    let config = configs(&spec, 0).swap_remove(0);
    let kernel = templates::compile(&spec, &config, &toolchain()?)?;
    let pool = Pool::new(2)?;
    let mut buffers: Vec<AlignedBuffer> = Vec::new();
    for argument in spec.arguments() {
        let mut buffer =
            AlignedBuffer::of(&spec.containers[&argument.data], &spec.shape(&argument.data)?, &config.layouts[&argument.data])?;
        floats(&mut buffer).fill(1.0);
        buffers.push(buffer);
    }
    let place = |data: &str| spec.arguments().iter().position(|a| a.data == data).ok_or("no such argument");
    let (weights, result) = (place("k")?, place("y")?);
    // The middle of the image: 3×3 ones of 16 channels, times the weight.
    let mut middle = |parameters: u64, weight: f32| -> Result<f32, Failure> {
        floats(&mut buffers[weights]).fill(weight);
        let pointers: Vec<*mut u8> = buffers.iter_mut().map(AlignedBuffer::as_mut_ptr).collect();
        let context = RunContext { seed: 0, step: 0, dropout: false, pool: &pool, deadline: None, parameters };
        // SAFETY: one buffer for each argument, in the configuration's layouts.
        assert_eq!(unsafe { kernel.run(&pointers, &context) }?, Completion::Done);
        let all = buffers[result].unpack(&spec.containers["y"], &config.layouts["y"], &spec.shape("y")?)?;
        Ok(all[[0, 5, 4, 5]] as f32)
    };
    let (first, second) = (new_parameters(), new_parameters());
    assert_eq!(middle(first, 1.0)?.round(), 144.0);
    assert_eq!(middle(first, 2.0)?.round(), 144.0, "parameters were said to be the same");
    assert_eq!(middle(second, 2.0)?.round(), 288.0);
    assert_eq!(middle(0, 3.0)?.round(), 432.0, "nothing is known of the parameters");
    assert_eq!(middle(second, 1.0)?.round(), 144.0, "others were packed meanwhile");
    Ok(())
}

fn floats(buffer: &mut AlignedBuffer) -> &mut [f32] {
    let bytes = buffer.as_mut_slice();
    // SAFETY: any bits are a number, and buffers are aligned to a cache line.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<f32>()) }
}

/// The form of the configuration with the least predicted cost, where images and results are in vectors.
fn foreseen(channels: i64, places: &'static [[i64; 6]]) -> Result<String, Failure> {
    let Case { mut program, unit } = Window { channels: [channels, channels, 1], space: places, ..Window::PLAIN }.convolution();
    program.winograd = true;
    let spec = KernelSpec::new(&program, &unit)?;
    let space = kernels::tiles::TileSpace::new(&spec)?;
    let layouts = configs(&spec, 2).swap_remove(0).layouts;
    let same = |n: &u64| layouts.iter().all(|(data, layout)| space.config(*n).layouts.get(data) == Some(layout));
    let best = (0..space.count()).filter(same).min_by(|a, b| space.predicted_cost(*a).total_cmp(&space.predicted_cost(*b)));
    let best = best.ok_or("no configuration has these layouts")?;
    Ok(space.config(best).knobs.get("winograd").unwrap_or("sum").to_string())
}

/// With many places the form with fewest products comes first, with few the sum of products: the form's weights are read for few tiles.
#[test]
fn the_form_that_is_tried_first_suits_the_number_of_places() -> Result<(), Failure> {
    assert_eq!(foreseen(64, &[[56, 3, 1, 1, 1, 1], [56, 3, 1, 1, 1, 1]])?, "4");
    assert_eq!(foreseen(512, &[[7, 3, 1, 1, 1, 1], [7, 3, 1, 1, 1, 1]])?, "sum");
    Ok(())
}
