//! Speed of convolutions on one core.
//!
//! `cargo run --release -p kernels --example windows [LAYOUT [NAME [CHANNELS PLACES [FORM]]]]` prints GFLOP/s (10⁹ flop a second, the
//! least time of many runs, warm, one worker) of the convolutions whose name contains `NAME`. `LAYOUT` is `blocked` (images
//! `n,c,h,w,c%16`, weights `o,c,r,s,o%16`), `last` (channels innermost) or `plain`. `CHANNELS` and `PLACES` are output channels and
//! places of a tile; `FORM` is 2 or 4 for Winograd's form, of which the flop are those of the sum of products, too. Weights are packed
//! before the first run.

use kernels::constant::new_parameters;
use kernels::pool::Pool;
use kernels::target::cpu::templates;
use kernels::tiles::TileSpace;
use kernels::{AlignedBuffer, KernelSpec, RunContext, Toolchain};
use sdfg::config::KernelConfig;
use sdfg::{
    Binary, Combine, Computation, Container, Dtype, Expr, Index, IndexKind, Item, Layout, Memlet, Role, Scalar, Scope, Sdfg, Tasklet, Unit,
};
use std::error::Error;
use std::time::Instant;

/// Channels in and out, size of the image, window, stride; whether each channel has a window of its own.
const CONVOLUTIONS: [(&str, [i64; 5], bool); 15] = [
    ("3x3 64-64 @56", [64, 64, 56, 3, 1], false),
    ("3x3 128-128 @28", [128, 128, 28, 3, 1], false),
    ("3x3 256-256 @14", [256, 256, 14, 3, 1], false),
    ("3x3 512-512 @7", [512, 512, 7, 3, 1], false),
    ("3x3/2 64-128 @56", [64, 128, 56, 3, 2], false),
    ("1x1 64-256 @56", [64, 256, 56, 1, 1], false),
    ("1x1 256-64 @56", [256, 64, 56, 1, 1], false),
    ("1x1 1024-256 @14", [1024, 256, 14, 1, 1], false),
    ("1x1 64-16 @56", [64, 16, 56, 1, 1], false),
    ("3x3 16-64 @56", [16, 64, 56, 3, 1], false),
    ("1x1 192-16 @28", [192, 16, 28, 1, 1], false),
    ("5x5 16-32 @28", [16, 32, 28, 5, 1], false),
    ("7x7/2 3-64 @224", [3, 64, 224, 7, 2], false),
    ("depthwise 16 @80", [16, 16, 80, 3, 1], true),
    ("depthwise 256 @28", [256, 256, 28, 3, 1], true),
];

fn over(dims: &[&str], kind: IndexKind) -> Vec<Index> {
    dims.iter().map(|d| Index::over(*d, *d, Expr::sym(*d), kind)).collect()
}

/// `y = relu(Σ k · x + b)`.
fn convolution([inside, outside, size, window, stride]: [i64; 5], depthwise: bool) -> Result<(KernelSpec, f64), Box<dyn Error>> {
    let mut program = Sdfg::new("windows");
    let places = (size + 2 * (window / 2) - window) / stride + 1;
    let sizes =
        [("n", 1), ("c", inside), ("o", outside), ("h", size), ("w", size), ("r", window), ("s", window), ("p", places), ("q", places)];
    for (dim, size) in sizes {
        program.dims.insert(dim.into(), Expr::sym(dim));
        program.sizes.insert(dim.into(), size);
    }
    let channel = if depthwise { "c" } else { "o" };
    let weights: &[&str] = if depthwise { &["c", "r", "s"] } else { &["o", "c", "r", "s"] };
    let out = ["n", channel, "p", "q"];
    for (name, dims, role) in [
        ("x", &["n", "c", "h", "w"][..], Role::Transient),
        ("k", weights, Role::Parameter),
        ("b", &[channel], Role::Parameter),
        ("y", &out, Role::Transient),
    ] {
        program.add_container(Container::new(name, dims, Dtype::F32, role));
    }
    program.add_container(Container::local("t", vec![], Dtype::F32));
    let at = |data: &str, dims: &[&str]| Memlet::at(data, dims.iter().map(|d| Expr::sym(*d)));
    let tasklet = |name: &str, write: Memlet, code: Scalar, reads: Vec<Memlet>| {
        Item::Tasklet(Computation {
            tasklet: Tasklet { name: name.into(), code: vec![("out".into(), code)], operator: name.into(), origin: None },
            reads: reads.into_iter().map(|m| (m.data.clone(), m)).collect(),
            writes: vec![("out".into(), write)],
        })
    };
    let place = |out: &str, within: &str| Expr::Int(stride) * Expr::sym(out) + Expr::sym(within) - Expr::Int(window / 2);
    let mut image = Memlet::at("x", [Expr::sym("n"), Expr::sym("c"), place("p", "r"), place("q", "s")]);
    image.fill = Some(0.0);
    let sum = at("t", &[]).with_wcr(Some(Combine::Sum));
    let product = tasklet("sum", sum, Scalar::input("k") * Scalar::input("x"), vec![at("k", weights), image]);
    let relu = Scalar::binary(Binary::Max, Scalar::input("t") + Scalar::input("b"), Scalar::Const(0.0));
    let last = tasklet("relu", at("y", &out), relu, vec![at("t", &[]), at("b", &[channel])]);
    let summed: &[&str] = if depthwise { &["r", "s"] } else { &["c", "r", "s"] };
    let body = vec![Item::Scope(Scope::new("sum", over(summed, IndexKind::Reduction), vec![product])), last];
    let unit = Unit::Scope(Scope::new("convolution", over(&out, IndexKind::Independent), body));
    let flop = 2.0 * (outside * places * places * window * window) as f64 * if depthwise { 1.0 } else { inside as f64 };
    Ok((KernelSpec::new(&program, &unit)?, flop))
}

fn layout(kind: &str, container: &Container, size: impl Fn(&str) -> i64) -> Result<Layout, Box<dyn Error>> {
    let dims = &container.dims;
    let own = if dims.len() == 4 && container.role != Role::Parameter { 1 } else { 0 };
    let mut last = dims.clone();
    let dim = last.remove(own);
    Ok(match kind {
        "blocked" if dims.len() > 1 && size(&dim) % 16 == 0 => format!("{},{dim}%16", dims.join(",")).parse()?,
        "last" if dims.len() > 1 => format!("{},{dim}", last.join(",")).parse()?,
        _ => Layout::of(dims),
    })
}

fn main() -> Result<(), Box<dyn Error>> {
    let given: Vec<String> = std::env::args().skip(1).collect();
    let kind = given.first().map_or("blocked", String::as_str);
    let wanted = given.get(1).map_or("", String::as_str);
    let [channels, places, form] = [2, 3, 4].map(|n| given.get(n).and_then(|t| t.parse::<i64>().ok()));
    let (pool, toolchain) = (Pool::new(1)?, Toolchain::system()?);
    for (name, shape, depthwise) in CONVOLUTIONS.iter().filter(|(name, ..)| name.contains(wanted)) {
        let (mut spec, flop) = convolution(*shape, *depthwise)?;
        spec.winograd = true;
        let space = TileSpace::new(&spec)?;
        let mut config = KernelConfig::default();
        for argument in spec.arguments() {
            let container = &spec.containers[argument.data.as_str()];
            config.layouts.insert(argument.data, layout(kind, container, |dim| spec.dims[dim])?);
        }
        config.knobs = space.walk_windows(&config, channels.unwrap_or(64), places.unwrap_or(224), form.unwrap_or(0));
        let kernel = templates::compile(&spec, &config, &toolchain)?;
        let mut buffers = Vec::new();
        for argument in spec.arguments() {
            let container = &spec.containers[argument.data.as_str()];
            let mut buffer = AlignedBuffer::of(container, &spec.shape(&argument.data)?, &config.layouts[&argument.data])?;
            let values = buffer.as_mut_slice();
            values.chunks_exact_mut(4).for_each(|value| value.copy_from_slice(&0.5f32.to_ne_bytes()));
            buffers.push(buffer);
        }
        let pointers: Vec<*mut u8> = buffers.iter_mut().map(AlignedBuffer::as_mut_ptr).collect();
        let context = RunContext { seed: 1, step: 1, dropout: false, pool: &pool, deadline: None, parameters: new_parameters() };
        let mut least = f64::INFINITY;
        for _ in 0..(2e10 / flop).clamp(20.0, 3000.0) as usize {
            let began = Instant::now();
            // SAFETY: one buffer for each argument, in its layout.
            unsafe { kernel.run(&pointers, &context) }?;
            least = least.min(began.elapsed().as_secs_f64());
        }
        println!("{name:20} {:7.1} GFLOP/s {:8.1} us  {}", flop / least / 1e9, least * 1e6, config.knobs);
    }
    Ok(())
}
