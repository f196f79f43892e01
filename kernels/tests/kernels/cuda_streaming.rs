//! Streamed tiles, run on the CPU by the shim, against the interpreter.

use crate::common::{Case, Sizes};
use crate::gemms::{attention, narrow};
use crate::harness::{self, Failure, Reference};
use kernels::ConfigSpace;
use kernels::target::cuda;
use kernels::target::cuda::emit::Chip;
use kernels::target::cuda::tiles::CudaTileSpace;
use sdfg::Dtype;
use sdfg::config::KernelConfig;

const SIZES: Sizes = &[("b", 2), ("h", 2), ("j", 19), ("k", 37), ("i", 21), ("u", 40), ("p", 9)];
/// Several panels of rows and chunks of columns; rows of whole vectors, which are copied without a thread.
const LARGER: Sizes = &[("b", 1), ("h", 2), ("j", 72), ("k", 160), ("i", 80), ("u", 136), ("p", 64)];
/// Two chunks of steps, and as many columns as a thread has sums for.
const DEEP: Sizes = &[("b", 1), ("h", 1), ("j", 33), ("k", 64), ("i", 8), ("u", 8), ("p", 120)];

fn stored(half: bool) -> impl Fn(&sdfg::Container) -> Dtype {
    move |c| if half && narrow(c) == Dtype::Bf16 { Dtype::F16 } else { narrow(c) }
}

fn reference(sizes: Sizes, half: bool) -> Result<Reference, Failure> {
    let Case { mut program, unit } = attention(sizes);
    for container in program.containers.values_mut() {
        container.dtype = stored(half)(container);
    }
    Reference::new(&program, &unit)
}

/// Layouts of many, and knobs of streamed tiles.
fn configs(reference: &Reference, knobs: &[[i64; 4]]) -> Result<Vec<KernelConfig>, Failure> {
    let space = CudaTileSpace::new(&reference.spec, Chip::HOPPER)?;
    let each = knobs.iter().enumerate().map(|(n, [rows, depth, stages, threads])| {
        let n = n as u64;
        let layouts = if n == 0 { Default::default() } else { space.config((n * 1_000_003 + n * n * 7919) * 101 % space.count()).layouts };
        let knobs = sdfg::config::Knobs::default().with("tile", format!("j:{rows}")).with("depth", depth);
        let knobs = knobs.with("stages", stages).with("threads", threads).with("width", 8).with("form", "streaming");
        KernelConfig { layouts, knobs }
    });
    Ok(each.collect())
}

/// Layouts in which a row's steps, and a result's columns, are neighbours.
fn steps_near(mut config: KernelConfig) -> KernelConfig {
    for (data, layout) in [("q", "h,b,j,p"), ("kk", "h,b,k,p"), ("vv", "h,b,k,p"), ("o", "h,b,j,p")] {
        config.layouts.insert(data.into(), sdfg::Layout::of(&layout.split(',').map(String::from).collect::<Vec<_>>()));
    }
    config
}

#[test]
fn streamed_attention_equals_the_interpreter() -> Result<(), Failure> {
    let many: Vec<[i64; 4]> = (0..12).map(|n| [[16, 8, 19][n % 3], [32, 64][n % 2], [2, 3, 4][n % 3], [32, 64, 128][n / 2 % 3]]).collect();
    let (mut cases, mut sources) = (Vec::new(), Vec::new());
    for (sizes, half, knobs) in [
        (SIZES, false, &many[..]),
        (SIZES, true, &many[..4]),
        (LARGER, false, &[[64, 64, 3, 128], [72, 32, 2, 64]]),
        (DEEP, false, &[[32, 64, 2, 64], [16, 128, 2, 32]]),
    ] {
        let reference = reference(sizes, half)?;
        let configs = configs(&reference, knobs)?;
        for config in &configs {
            sources.push(cuda::tiles::source(&reference.spec, config, Chip::HOPPER)?);
        }
        cases.push(("attention", reference, configs));
    }
    // Whole rows and strips, but not whole chunks of columns; chunks that are whole, too, which come without a question.
    for (k, depths) in [(96, [64, 32, 128]), (128, [64, 32, 128])] {
        let reference = reference(&[("b", 1), ("h", 2), ("j", 64), ("k", k), ("i", 8), ("u", 8), ("p", 32)], false)?;
        let mut given = configs(&reference, &depths.map(|depth| [64, depth, 2, 128]))?;
        given.extend(configs(&reference, &depths.map(|depth| [32, depth, 3, 64]))?.into_iter().map(steps_near));
        for config in &given {
            sources.push(cuda::tiles::source(&reference.spec, config, Chip::HOPPER)?);
        }
        cases.push(("even", reference, given));
    }
    let promised = sources.iter().filter(|s| s.text.contains("bring<DEALT, true>")).count();
    assert!((3..sources.len()).contains(&promised), "{promised} of {}", sources.len());
    let checked = harness::each_equals(&cases, sources)?;
    assert_eq!(checked, 32);
    Ok(())
}
/// Faults planted into streamed tiles: the shim, or the comparison with the interpreter, must find each of them.
#[test]
fn planted_faults_are_found() -> Result<(), Failure> {
    let faults: [(&str, &str, &str, Option<&str>); 10] = [
        (
            "no barrier before values are made",
            "await_copies<STAGES - 2>();\n                __syncthreads();",
            "await_copies<STAGES - 2>();",
            Some("shared memory"),
        ),
        (
            "no barrier before rows are taken",
            "await_copies<STAGES - 1>();\n            __syncthreads();",
            "await_copies<STAGES - 1>();",
            Some("shared memory"),
        ),
        ("a panel is staged while the last one is multiplied", "__syncthreads();\n            Factor", "Factor", Some("shared memory")),
        ("a copy too few is waited for", "await_copies<STAGES - 2>();", "await_copies<STAGES - 1>();", Some("nobody has written")),
        ("columns dealt otherwise to the second product", "own = p + ((odd * 8 + near) * (N", "own = p + (near * (N", None),
        ("sums of a lane alone", "return f(x, __shfl_xor_sync(0xffffffffu, x, 2, 32));", "return x;", None),
        (
            "a sum that does not follow the largest",
            "t_sum_sum[half] *= r_exp(t_top_sum_before - t_top_sum[half]);\n                        ",
            "",
            None,
        ),
        (
            "sums of lanes less the largest of each",
            "t_sum_sum[half] *= r_exp(t_top_sum_before - t_top_sum[half]);\n                t_sum_sum[half] = row",
            "t_sum_sum[half] = row",
            None,
        ),
        ("a row too many", "own_row < n_j ?", "own_row < n_j + 1 ?", Some("no barrier between them")),
        ("squares of results left as they are", "if (high) low = come;", "if (!high) low = come;", None),
    ];
    // Ragged panels of rows of whole vectors; the last of six chunks is in a part that is filled first.
    let reference = reference(&[("b", 1), ("h", 2), ("j", 40), ("k", 80), ("i", 8), ("u", 8), ("p", 32)], false)?;
    let config = steps_near(configs(&reference, &[[40, 32, 4, 64]])?.remove(0));
    let sound = cuda::tiles::source(&reference.spec, &config, Chip::HOPPER)?;
    assert!(sound.text.contains("if (next_pass < 2)"), "the largest and the sum of exponentials less it are found in one pass");
    harness::faults_are_found(&reference, &config, &sound, &faults)
}
