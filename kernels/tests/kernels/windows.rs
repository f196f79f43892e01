//! Contractions and reductions over windows against the interpreter: convolutions and pooling with strides, dilation, asymmetric padding,
//! groups and channels of their own, in one to three dims of space.

use crate::common::{self, Case, c, v};
use crate::harness::{Failure, Reference, toolchain};
use kernels::pool::Pool;
use kernels::target::cpu::templates;
use kernels::target::cuda;
use kernels::target::cuda::emit::Chip;
use kernels::{ConfigSpace, KernelSpec};
use sdfg::config::KernelConfig;
use sdfg::{Binary, Combine, Expr, IndexKind, Memlet, Role, Scalar, Scope, Unit};

/// A convolution along some dims of space.
#[derive(Clone, Copy, Debug)]
pub struct Window {
    pub batch: i64,
    /// Channels that come in, those that go out, and groups of them.
    pub channels: [i64; 3],
    /// Of each dim of space: size, extent of the window, stride, dilation, padding before and after.
    pub space: &'static [[i64; 6]],
    /// Whether each channel has a window of its own.
    pub depthwise: bool,
}

const SPACE: [[&str; 3]; 3] = [["h", "r", "p"], ["w", "s", "q"], ["d", "t", "z"]];

impl Window {
    pub const PLAIN: Window =
        Window { batch: 1, channels: [16, 32, 1], space: &[[9, 3, 1, 1, 1, 1], [11, 3, 1, 1, 1, 1]], depthwise: false };

    fn sizes(&self) -> Vec<(&'static str, i64)> {
        let [inside, outside, groups] = self.channels;
        let mut sizes = vec![("n", self.batch), ("f", groups), ("i", inside / groups), ("c", inside), ("o", outside / groups)];
        for (names, [size, window, stride, dilation, before, after]) in SPACE.iter().zip(self.space) {
            let out = (size + before + after - (dilation * (window - 1) + 1)) / stride + 1;
            sizes.extend(names.iter().copied().zip([*size, *window, out]));
        }
        sizes
    }

    /// Names of the dims of images, windows and results.
    pub fn names(&self, which: usize) -> Vec<&'static str> {
        SPACE[..self.space.len()].iter().map(|names| names[which]).collect()
    }

    /// The image under the window; `else` what lies outside.
    fn image(&self, data: &str, channel: Expr, fill: f64) -> Memlet {
        let places = SPACE.iter().zip(self.space).map(|([_, within, at], [_, _, stride, dilation, before, _])| {
            Expr::Int(*stride) * Expr::sym(*at) + Expr::Int(*dilation) * Expr::sym(*within) - Expr::Int(*before)
        });
        let mut memlet = Memlet::at(data, [Expr::sym("n"), channel].into_iter().chain(places));
        memlet.fill = Some(fill);
        memlet
    }

    /// Containers of images and results.
    fn program(&self) -> (sdfg::Sdfg, Vec<&'static str>) {
        let mut p = common::program(&self.sizes());
        let image: Vec<&str> = ["n", "c"].into_iter().chain(self.names(0)).collect();
        common::heap(&mut p, "x", &image, Role::Input);
        let out: Vec<&str> = match (self.depthwise, self.channels[2]) {
            (true, _) => vec!["n", "c"],
            (_, 1) => vec!["n", "o"],
            _ => vec!["n", "f", "o"],
        };
        let out: Vec<&str> = out.into_iter().chain(self.names(2)).collect();
        common::heap(&mut p, "y", &out, Role::Output);
        (p, out)
    }

    /// Subscripts of the weights, those of the image's channel, and the indices that are summed.
    fn parts(&self) -> (Vec<&'static str>, Expr, Vec<&'static str>) {
        let groups = self.channels[2];
        let (weights, channel, summed) = match (self.depthwise, groups) {
            (true, _) => (vec!["c"], Expr::sym("c"), vec![]),
            (_, 1) => (vec!["o", "c"], Expr::sym("c"), vec!["c"]),
            _ => (vec!["f", "o", "i"], Expr::Int(self.channels[0] / groups) * Expr::sym("f") + Expr::sym("i"), vec!["i"]),
        };
        let with = |first: Vec<&'static str>| first.into_iter().chain(self.names(1)).collect();
        (with(weights), channel, with(summed))
    }

    /// `y = Σ k · x`.
    pub fn convolution(&self) -> Case {
        self.filled(0.0)
    }

    /// `y = Σ k · x` of an image in a frame of some value.
    pub fn filled(&self, fill: f64) -> Case {
        let (mut p, out) = self.program();
        let (weights, channel, summed) = self.parts();
        common::heap(&mut p, "k", &weights, Role::Parameter);
        let mut indices = common::over(&out, IndexKind::Independent);
        indices.extend(common::over(&summed, IndexKind::Reduction));
        let write = common::wcr(common::at("y", &out), Combine::Sum);
        let sum = common::tasklet(write, v("k") * v("x"), vec![common::at("k", &weights), self.image("x", channel, fill)]);
        Case { program: p, unit: Unit::Scope(Scope::new("convolution", indices, vec![sum])) }
    }

    /// `y = relu(Σ k · x + b) + u`.
    pub fn with_epilogue(&self) -> Case {
        let (mut p, out) = self.program();
        let (weights, channel, summed) = self.parts();
        common::heap(&mut p, "k", &weights, Role::Parameter);
        let bias: Vec<&str> = out.iter().copied().filter(|d| ["f", "o"].contains(d) || (self.depthwise && *d == "c")).collect();
        common::heap(&mut p, "b", &bias, Role::Parameter);
        common::heap(&mut p, "u", &out, Role::Input);
        common::local(&mut p, "t", &[]);
        let write = common::wcr(common::at("t", &[]), Combine::Sum);
        let sum = common::tasklet(write, v("k") * v("x"), vec![common::at("k", &weights), self.image("x", channel, 0.0)]);
        let relu = Scalar::binary(Binary::Max, v("t") + v("b"), c(0.0)) + v("u");
        let reads = vec![common::at("t", &[]), common::at("b", &bias), common::at("u", &out)];
        let body = vec![common::map("sum", &summed, vec![sum]), common::tasklet(common::at("y", &out), relu, reads)];
        Case { program: p, unit: Unit::Scope(Scope::new("with_epilogue", common::over(&out, IndexKind::Independent), body)) }
    }

    /// `dk = Σ dy · x`, over all places of the window.
    pub fn weights(&self) -> Case {
        let (mut p, out) = self.program();
        p.containers.shift_remove("y");
        let (weights, channel, _) = self.parts();
        common::heap(&mut p, "dy", &out, Role::Input);
        common::heap(&mut p, "dk", &weights, Role::Gradient);
        let summed: Vec<&str> = out.iter().copied().filter(|d| !weights.contains(d)).collect();
        let mut indices = common::over(&weights, IndexKind::Independent);
        indices.extend(common::over(&summed, IndexKind::Reduction));
        let write = common::wcr(common::at("dk", &weights), Combine::Sum);
        let sum = common::tasklet(write, v("dy") * v("x"), vec![common::at("dy", &out), self.image("x", channel, 0.0)]);
        Case { program: p, unit: Unit::Scope(Scope::new("weights", indices, vec![sum])) }
    }

    /// The maximum under the window.
    pub fn pooling(&self) -> Case {
        let window = Window { depthwise: true, ..*self };
        let (p, out) = window.program();
        let mut indices = common::over(&out, IndexKind::Independent);
        indices.extend(common::over(&window.names(1), IndexKind::Reduction));
        let write = common::wcr(common::at("y", &out), Combine::Max);
        let max = common::tasklet(write, v("x"), vec![window.image("x", Expr::sym("c"), f64::NEG_INFINITY)]);
        Case { program: p, unit: Unit::Scope(Scope::new("pooling", indices, vec![max])) }
    }
}

/// Strides, dilation, padding on one side only, windows larger than the image, one row, prime sizes, several images, one dim and three.
pub const WINDOWS: [(&str, Window); 11] = [
    ("plain", Window::PLAIN),
    ("strided", Window { space: &[[13, 3, 2, 1, 1, 1], [17, 3, 2, 1, 1, 1]], ..Window::PLAIN }),
    ("dilated", Window { space: &[[13, 3, 1, 2, 2, 2], [16, 2, 3, 3, 0, 1]], ..Window::PLAIN }),
    ("asymmetric", Window { batch: 2, space: &[[7, 3, 2, 1, 0, 1], [7, 5, 2, 1, 1, 3]], ..Window::PLAIN }),
    ("one row", Window { space: &[[6, 1, 1, 1, 0, 0], [19, 7, 1, 1, 3, 3]], ..Window::PLAIN }),
    ("larger than the image", Window { batch: 3, space: &[[2, 5, 1, 1, 3, 2], [3, 7, 1, 1, 3, 3]], ..Window::PLAIN }),
    ("prime", Window { channels: [7, 37, 1], space: &[[23, 3, 1, 1, 1, 1], [29, 3, 1, 1, 1, 1]], ..Window::PLAIN }),
    ("groups", Window { channels: [24, 48, 3], ..Window::PLAIN }),
    ("depthwise", Window { batch: 2, channels: [24, 24, 1], depthwise: true, space: &[[9, 3, 2, 1, 1, 1], [14, 3, 1, 1, 1, 1]] }),
    ("signal", Window { batch: 2, channels: [5, 19, 1], space: &[[101, 9, 4, 1, 2, 0]], ..Window::PLAIN }),
    ("volume", Window { space: &[[4, 3, 1, 1, 1, 1], [5, 3, 2, 1, 1, 1], [9, 2, 1, 1, 0, 1]], ..Window::PLAIN }),
];

/// Makes a case of a window.
pub type MakeOfWindow = fn(&Window) -> Case;

/// What is made of a window.
pub const KINDS: [(&str, MakeOfWindow); 4] = [
    ("convolution", Window::convolution),
    ("with epilogue", Window::with_epilogue),
    ("weights", Window::weights),
    ("pooling", Window::pooling),
];

/// A fixed spread of configurations of a space.
fn spread(space: &dyn ConfigSpace, wanted: u64) -> impl Iterator<Item = KernelConfig> {
    let count = space.count();
    (0..wanted).map(move |n| space.config((n * 1_000_003 + n * n * 7919) % count))
}

/// Kinds of every window with configurations of each, all compiled.
pub fn compiled(
    windows: &[(&str, Window)],
    kinds: &[(&str, MakeOfWindow)],
    configs: impl Fn(usize, &Window, &KernelSpec) -> Result<Vec<KernelConfig>, Failure>,
) -> Result<Vec<(String, Reference, Vec<KernelConfig>)>, Failure> {
    let (mut cases, mut kernels) = (Vec::new(), Vec::new());
    for (n, (name, window)) in windows.iter().enumerate() {
        for (kind, make) in kinds {
            let Case { program, unit } = make(window);
            let reference = Reference::new(&program, &unit)?;
            let configs = configs(n, window, &reference.spec)?;
            kernels.extend(configs.iter().map(|config| (reference.spec.clone(), config.clone())));
            cases.push((format!("{kind}, {name}"), reference, configs));
        }
    }
    templates::precompile(&kernels, &toolchain()?, kernels::CancelToken::default());
    Ok(cases)
}

/// Runs configurations of every kind of every window; the number of them.
fn each_equals(windows: &[(&str, Window)], configs: impl Fn(&KernelSpec) -> Result<Vec<KernelConfig>, Failure>) -> Result<usize, Failure> {
    let (pools, toolchain) = ([Pool::new(1)?, Pool::new(3)?], toolchain()?);
    let mut checked = 0;
    for (name, reference, configs) in compiled(windows, &KINDS, |_, _, spec| configs(spec))? {
        for (n, config) in configs.into_iter().enumerate() {
            let kernel = templates::compile(&reference.spec, &config, &toolchain).map_err(|e| format!("{name} under {config}: {e}"))?;
            let (ratio, place) = reference.ratio(&reference.run(kernel.as_ref(), &config, &pools[n % 2])?);
            assert!(ratio <= 1.0, "{name}: {place}, {ratio} times the tolerance, under {config}");
            checked += 1;
        }
    }
    Ok(checked)
}

#[test]
fn maps_over_windows_equal_the_interpreter() -> Result<(), Failure> {
    each_equals(&WINDOWS, |spec| {
        let space = kernels::maps::MapSpace::new(spec)?;
        Ok(spread(&space, 3).collect())
    })?;
    Ok(())
}

/// What GPUs run, in the simulator: maps of every kind of every window.
#[test]
fn windows_on_gpus_equal_the_interpreter() -> Result<(), Failure> {
    let (mut cases, mut sources) = (Vec::new(), Vec::new());
    for (name, window) in &WINDOWS {
        // Few channels: each thread is simulated.
        let [inside, outside, groups] = window.channels;
        let few = if window.depthwise { [3, 3, 1] } else { [inside.min(2 * groups), outside.min(2 * groups), groups] };
        let window = Window { batch: 1, channels: few, ..*window };
        for (_, make) in KINDS {
            let Case { program, unit } = make(&window);
            let reference = Reference::new(&program, &unit)?;
            let space = cuda::templates::space(&reference.spec, Chip::HOPPER)?;
            let configs: Vec<KernelConfig> = spread(space.as_ref(), 5).collect();
            for config in &configs {
                sources.push(cuda::templates::source(&reference.spec, config, Chip::HOPPER)?);
            }
            cases.push((*name, reference, configs));
        }
    }
    assert_eq!(crate::harness::each_equals(&cases, sources)?, 5 * KINDS.len() * WINDOWS.len());
    Ok(())
}

/// Products that read their factors where they lie, in plain and blocked layouts of images and weights, with and without an epilogue.
#[test]
fn direct_products_over_windows_equal_the_interpreter() -> Result<(), Failure> {
    let checked = each_equals(&WINDOWS, |spec| {
        let Ok(space) = kernels::tiles::TileSpace::new(spec) else { return Ok(vec![]) };
        Ok(spread(&space, 4).collect())
    })?;
    assert_eq!(checked, 3 * 4 * WINDOWS.len());
    Ok(())
}

/// Windows of one element: products of images and matrices, without any fill.
#[test]
fn products_of_images_and_matrices_equal_the_interpreter() -> Result<(), Failure> {
    let windows = [
        ("square", Window { channels: [48, 64, 1], space: &[[9, 1, 1, 1, 0, 0], [13, 1, 1, 1, 0, 0]], ..Window::PLAIN }),
        ("narrow", Window { batch: 3, channels: [5, 16, 1], space: &[[4, 1, 1, 1, 0, 0], [6, 1, 1, 1, 0, 0]], ..Window::PLAIN }),
    ];
    let checked = each_equals(&windows, |spec| {
        let Ok(space) = kernels::tiles::TileSpace::new(&KernelSpec { images: true, ..spec.clone() }) else { return Ok(vec![]) };
        assert!(space.is_direct());
        Ok(spread(&space, 6).collect())
    })?;
    assert_eq!(checked, 3 * 6 * windows.len());
    Ok(())
}

/// A convolution that writes a part of a joined tensor, whose dims have other names, is walked in the order of that tensor's layout: whole
/// rows, and channels as lanes.
#[test]
fn parts_of_joined_tensors_are_walked_in_their_layout() -> Result<(), Failure> {
    let mut p =
        common::program(&[("n", 1), ("c", 16), ("h", 9), ("w", 56), ("r", 3), ("s", 3), ("p", 9), ("q", 56), ("o", 32), ("joined", 64)]);
    common::heap(&mut p, "x", &["n", "c", "h", "w"], Role::Input);
    common::heap(&mut p, "k", &["o", "c", "r", "s"], Role::Parameter);
    common::heap(&mut p, "y", &["n", "joined", "h", "w"], Role::Output);
    common::local(&mut p, "t", &[]);
    let mut part = common::at("y", &["n", "o", "p", "q"]);
    part.subset[1] = sdfg::Range::At(Expr::sym("o") + Expr::Int(32));
    let image = Window::PLAIN.image("x", Expr::sym("c"), 0.0);
    let reads = vec![common::at("k", &["o", "c", "r", "s"]), image];
    let sum = common::tasklet(common::wcr(common::at("t", &[]), Combine::Sum), v("k") * v("x"), reads);
    let body = vec![common::map("sum", &["c", "r", "s"], vec![sum]), common::tasklet(part, v("t"), vec![common::at("t", &[])])];
    let unit = Unit::Scope(Scope::new("part", common::over(&["n", "o", "p", "q"], IndexKind::Independent), body));
    let reference = Reference::new(&p, &unit)?;
    let space = kernels::tiles::TileSpace::new(&KernelSpec { images: true, ..reference.spec.clone() })?;
    assert!(space.is_direct());
    let best =
        (0..space.count()).map(|n| space.config(n)).min_by(|a, b| space.cost(a).total_cmp(&space.cost(b))).ok_or("no configuration")?;
    assert_eq!(best.layouts["y"].innermost(), Some("joined"), "{best}");
    let tile = best.knobs.get("tile").unwrap_or_default();
    assert!(tile.contains("q:56") && !tile.contains("p:9"), "{best}");
    Ok(())
}

/// `y = relu(Σ k3 · relu(Σ k1 · x + Σ k2 · z + b))`: two products whose sum stays with the worker, and one of that.
fn merged(sizes: common::Sizes) -> Case {
    let mut p = common::program(sizes);
    let (image, out) = (["n", "c", "h", "w"], ["n", "o", "h", "w"]);
    common::heap(&mut p, "x", &image, Role::Input);
    common::heap(&mut p, "z", &image, Role::Input);
    common::heap(&mut p, "k1", &["m", "c"], Role::Parameter);
    common::heap(&mut p, "k2", &["m", "c"], Role::Parameter);
    common::heap(&mut p, "b", &["m"], Role::Parameter);
    common::heap(&mut p, "k3", &["o", "m"], Role::Parameter);
    common::heap(&mut p, "y", &out, Role::Output);
    ["t", "s", "u", "a"].into_iter().for_each(|name| common::local(&mut p, name, &["m"]));
    common::local(&mut p, "f", &["o"]);
    let product = |label: &str, sum: &str, dims: [&str; 2], a: Memlet, b: Memlet| {
        let code = v(&a.data) * v(&b.data);
        common::map(label, &dims, vec![common::tasklet(common::wcr(common::at(sum, &dims[..1]), Combine::Sum), code, vec![a, b])])
    };
    let m = |data: &str| common::at(data, &["m"]);
    let relu = |x: Scalar| Scalar::binary(Binary::Max, x, c(0.0));
    let body = vec![
        product("first", "t", ["m", "c"], common::at("k1", &["m", "c"]), common::at("x", &image)),
        common::map("biased", &["m"], vec![common::tasklet(m("s"), v("t") + v("b"), vec![m("t"), m("b")])]),
        product("second", "u", ["m", "c"], common::at("k2", &["m", "c"]), common::at("z", &image)),
        common::map("added", &["m"], vec![common::tasklet(m("a"), relu(v("u") + v("s")), vec![m("u"), m("s")])]),
        product("third", "f", ["o", "m"], common::at("k3", &["o", "m"]), m("a")),
        common::map("last", &["o"], vec![common::tasklet(common::at("y", &out), relu(v("f")), vec![common::at("f", &["o"])])]),
    ];
    Case { program: p, unit: Unit::Scope(Scope::new("merged", common::over(&["n", "h", "w"], IndexKind::Independent), body)) }
}

#[test]
fn products_of_what_a_worker_has_made_equal_the_interpreter() -> Result<(), Failure> {
    let (pools, toolchain) = ([Pool::new(1)?, Pool::new(3)?], toolchain()?);
    for sizes in
        [[("n", 2), ("c", 16), ("h", 5), ("w", 7), ("m", 48), ("o", 32)], [("n", 1), ("c", 5), ("h", 3), ("w", 11), ("m", 13), ("o", 6)]]
    {
        let Case { program, unit } = merged(&sizes);
        let reference = Reference::new(&program, &unit)?;
        let space = kernels::tiles::TileSpace::new(&KernelSpec { images: true, ..reference.spec.clone() })?;
        assert!(space.is_direct());
        for (n, mut config) in spread(&space, 6).enumerate() {
            if n % 2 == 1 {
                config.knobs = config.knobs.with("tile", "w:4,h:2").with("vector", ["m", "w"][n / 2 % 2]);
            }
            let kernel = templates::compile(&reference.spec, &config, &toolchain)?;
            let (ratio, place) = reference.ratio(&reference.run(kernel.as_ref(), &config, &pools[n % 2])?);
            assert!(ratio <= 1.0, "{place}, {ratio} times the tolerance, under {config}");
        }
    }
    Ok(())
}
