//! Faults planted into generated C: the check that passes the kernels must refuse each of them.

use crate::common::{self, Case, Make};
use crate::harness::{Failure, Reference, toolchain};
use kernels::pool::Pool;
use kernels::target::cpu;
use sdfg::config::{KernelConfig, Knobs};

const SIZES: common::Sizes = &[("b", 3), ("h", 2), ("j", 19), ("k", 37), ("i", 21), ("u", 70)];

/// Which of the places where the text stands is changed.
#[derive(Clone, Copy)]
enum Which {
    All,
    First,
    Last,
}
use Which::{All, First, Last};

struct Mutation {
    fault: &'static str,
    case: Make,
    vector: &'static str,
    from: &'static str,
    to: &'static str,
    which: Which,
}

const fn plant(fault: &'static str, case: Make, vector: &'static str, from: &'static str, to: &'static str, which: Which) -> Mutation {
    Mutation { fault, case, vector, from, to, which }
}

const MUTATIONS: [Mutation; 18] = [
    plant("wrong stride", common::softmax_dropout, "k", " * s_t_x_1", " * s_t_x_2", All),
    plant("last element not written", common::softmax_dropout, "k", ", n_k);", ", n_k - 1);", Last),
    plant("mask of the next element", common::softmax_dropout, "k", "(&host->keep[0], ", "(&host->keep[0], 1 + ", All),
    plant("half the threshold", common::softmax_dropout, "k", "< threshold0", "< threshold0 / 2", All),
    plant("mask inverted", common::softmax_dropout, "k", "? (real)0 : factor0", "? factor0 : (real)0", All),
    plant("kept elements not scaled", common::softmax_dropout, "k", ": factor0", ": (real)1", All),
    plant("exponent scaled by 1.001", common::softmax_dropout, "k", "r_exp((", "r_exp(1.001f * (", All),
    plant("sum starts at 0.01", common::softmax_dropout, "k", "(0e0f);", "(1e-2f);", Last),
    plant("root dropped", common::layernorm, "i", "r_sqrt((", "((", All),
    plant("weight of another index", common::layernorm, "i", "t_gamma[i_i", "t_gamma[i_j", All),
    plant("mean of one element less", common::layernorm, "i", "i_i < end;", "i_i < end - 1;", First),
    plant("partial sums overwritten", common::layernorm_weights, "i", "(t_d_beta_partial[i_i] + ", "(", All),
    plant("one worker's part forgotten", common::layernorm_weights, "i", "int64_t w = 1;", "int64_t w = 2;", First),
    plant("reduction from 1", common::bias_gradient, "j", "int64_t i_j = piece;", "int64_t i_j = piece + 1;", All),
    plant("results not streamed", common::bias_relu_dropout, "u", "if (host->streams) host->stream(", "if (0) host->stream(", First),
    plant("bias dropped", common::bias_relu_dropout, "u", "(real)t_bias[i_u]", "(real)0", All),
    plant("another function", common::gelu, "u", "r_erf(", "r_tanh(", All),
    plant("diagonal masked", common::causal_softmax, "k", " <= ", " < ", All),
];

/// The text from the first point on, changed; `None` where the text to change does not stand there.
fn mutate(text: &str, mutation: &Mutation) -> Option<String> {
    let (prelude, kernel) = text.split_at(text.find("/* One point")?);
    let (from, to) = (mutation.from, mutation.to);
    let at = match mutation.which {
        All => return kernel.contains(from).then(|| format!("{prelude}{}", kernel.replace(from, to))),
        First => kernel.find(from)?,
        Last => kernel.rfind(from)?,
    };
    Some(format!("{prelude}{}{to}{}", &kernel[..at], &kernel[at + from.len()..]))
}

#[test]
fn every_planted_fault_is_caught() -> Result<(), Failure> {
    let (pool, toolchain) = (Pool::new(3)?, toolchain()?);
    let mut missed = Vec::new();
    for mutation in &MUTATIONS {
        let Case { program, unit } = (mutation.case)(SIZES);
        let reference = Reference::new(&program, &unit)?;
        let mut config = KernelConfig { knobs: Knobs::default().with("vector", mutation.vector), ..KernelConfig::default() };
        for argument in reference.spec.arguments() {
            let mut dims = argument.dims.clone();
            dims.sort_by_key(|d| d == mutation.vector);
            config.layouts.insert(argument.data, sdfg::Layout::of(&dims));
        }
        let kernel = cpu::maps::compile(&reference.spec, &config, &toolchain)?.streaming(true);
        let (ratio, place) = reference.ratio(&reference.run(&kernel, &config, &pool)?);
        assert!(ratio <= 1.0, "{place} before anything is planted");
        let mut planted = false;
        let kernel = kernel.rewritten(&toolchain, |text| {
            let mutated = mutate(text, mutation);
            planted = mutated.is_some();
            mutated.unwrap_or_else(|| text.to_string())
        })?;
        assert!(planted, "`{}` does not stand in the text that \"{}\" changes", mutation.from, mutation.fault);
        let (ratio, _) = reference.ratio(&reference.run(&kernel, &config, &pool)?);
        println!("{:30} {ratio:.1} times the tolerance", mutation.fault);
        if ratio <= 1.0 {
            missed.push(mutation.fault);
        }
    }
    println!("mutations caught: {} of {}", MUTATIONS.len() - missed.len(), MUTATIONS.len());
    assert!(missed.is_empty(), "not caught: {missed:?}");
    Ok(())
}
