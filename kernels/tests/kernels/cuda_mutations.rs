//! Faults planted into generated CUDA: the shim, or the comparison with the interpreter, must find each of them.

use crate::common::{self, Case, Make};
use crate::harness::{Failure, Reference, shim};
use kernels::target::cuda;
use kernels::target::cuda::emit::Chip;
use sdfg::config::{KernelConfig, Knobs};

const SIZES: common::Sizes = &[("b", 2), ("h", 2), ("j", 7), ("k", 37), ("i", 21), ("u", 70)];

struct Mutation {
    fault: &'static str,
    case: Make,
    /// Knobs as `key=value`.
    knobs: &'static [(&'static str, &'static str)],
    from: &'static str,
    to: &'static str,
    /// Part of what the shim says; `None` if the results are wrong instead.
    says: Option<&'static str>,
}

const WARP: &[(&str, &str)] = &[("threads", "64"), ("rows", "2"), ("width", "2")];
const BLOCK: &[(&str, &str)] = &[("threads", "64"), ("rows", "1"), ("width", "1"), ("hold", "shared")];
const ACROSS: &[(&str, &str)] =
    &[("vector", "j"), ("order", "b,j,u"), ("threads", "128"), ("rows", "16"), ("width", "2"), ("out", "turned")];
const WIDE: &[(&str, &str)] = &[("threads", "64"), ("rows", "8"), ("width", "8")];
const EIGHT: &[(&str, &str)] = &[("threads", "32"), ("rows", "4"), ("width", "2")];
/// Elements of one sum are told apart by what another sums over, so that parts are added to in memory.
const APART: &[(&str, &str)] =
    &[("vector", "i"), ("order", "b,j,i"), ("reduce", "private"), ("threads", "64"), ("rows", "2"), ("width", "2")];

const MUTATIONS: [Mutation; 22] = [
    Mutation {
        fault: "no barrier before the warps' results are read",
        case: common::softmax_dropout,
        knobs: BLOCK,
        from: "threadIdx.x / 32] = x[n];\n    __syncthreads();",
        to: "threadIdx.x / 32] = x[n];",
        says: Some("nobody has written"),
    },
    Mutation {
        fault: "the next reduction where this one is read",
        case: common::softmax_dropout,
        knobs: BLOCK,
        from: "turn ^= 1;",
        to: "",
        says: Some("no barrier between them"),
    },
    Mutation {
        fault: "no barrier before partial sums are added to",
        case: common::both_ways,
        knobs: APART,
        from: "    team_sync();\n    const index_t chunk",
        to: "    const index_t chunk",
        says: Some("no barrier between them"),
    },
    Mutation {
        fault: "a barrier for one thread alone",
        case: common::softmax_dropout,
        knobs: BLOCK,
        from: "        team_sync();",
        to: "        if (member == 0) team_sync();",
        says: Some("barriers diverge"),
    },
    Mutation {
        fault: "a shuffle without its own lane",
        case: common::layernorm,
        knobs: EIGHT,
        from: "__shfl_xor_sync(team_mask(), ",
        to: "__shfl_xor_sync(0xffu, ",
        says: Some("is not in the mask"),
    },
    Mutation {
        fault: "a shuffle with lanes that are elsewhere",
        case: common::softmax_dropout,
        knobs: EIGHT,
        from: "__shfl_xor_sync(team_mask(), ",
        to: "__shfl_xor_sync(threadIdx.x < 8 ? 0xffffu : team_mask(), ",
        says: Some("barriers diverge"),
    },
    Mutation {
        fault: "one element too many is read and written",
        case: common::gelu,
        knobs: WARP,
        from: "live_of(n_u - first_lane)",
        to: "live_of(n_u + 1 - first_lane)",
        says: Some("which has 980"),
    },
    Mutation {
        fault: "the last element is not written",
        case: common::gelu,
        knobs: WARP,
        from: "live_of(n_u - first_lane)",
        to: "live_of(n_u - 1 - first_lane)",
        says: Some("are not written"),
    },
    Mutation {
        fault: "one team's points left out",
        case: common::bias_relu_dropout,
        knobs: WARP,
        from: "from = team, to = points",
        to: "from = team, to = points - 1",
        says: Some("are not written"),
    },
    Mutation {
        fault: "all threads of a team write one result",
        case: common::layernorm,
        knobs: WARP,
        from: "if (member == 0) t_mean",
        to: "t_mean",
        says: Some("no barrier between them"),
    },
    Mutation {
        fault: "partial sums begin with nothing",
        case: common::both_ways,
        knobs: APART,
        from: "for (index_t e = member;",
        to: "for (index_t e = member + 1;",
        says: Some("nobody has written"),
    },
    Mutation {
        fault: "one slice of the teams forgotten",
        case: common::bias_gradient,
        knobs: &[("vector", "i"), ("reduce", "private"), ("threads", "64")],
        from: "for (int s = 1; s < 32; ++s)",
        to: "for (int s = 2; s < 32; ++s)",
        says: None,
    },
    Mutation {
        fault: "no barrier before rows put their sums together",
        case: common::layernorm_weights,
        knobs: WARP,
        from: "gathered[w * THREADS + threadIdx.x] = x[w];\n    __syncthreads();",
        to: "gathered[w * THREADS + threadIdx.x] = x[w];",
        says: Some("nobody has written"),
    },
    Mutation {
        fault: "no barrier before a row's strip is taken from where they met",
        case: common::layernorm_weights,
        knobs: WARP,
        from: "gathered[at] = whole;\n    }\n    __syncthreads();",
        to: "gathered[at] = whole;\n    }",
        says: Some("no barrier"),
    },
    Mutation {
        fault: "one row's sums forgotten",
        case: common::layernorm_weights,
        knobs: WARP,
        from: "for (int row = 1; row < ROWS; ++row)",
        to: "for (int row = 2; row < ROWS; ++row)",
        says: None,
    },
    Mutation {
        fault: "a section that ends one point too soon",
        case: common::layernorm_weights,
        knobs: WARP,
        from: "to = min_of(run, from + chunk)",
        to: "to = min_of(run - 1, from + chunk)",
        says: None,
    },
    Mutation {
        fault: "a vector where none may begin",
        case: common::gelu,
        knobs: WIDE,
        from: "load_row<false>",
        to: "load_row<true>",
        says: Some("no multiple of its size"),
    },
    Mutation {
        fault: "no barrier before rows are turned",
        case: common::gelu,
        knobs: ACROSS,
        from: "    __syncthreads();\n    for (int e = threadIdx.x; e < ROWS",
        to: "    for (int e = threadIdx.x; e < ROWS",
        says: Some("nobody has written"),
    },
    Mutation {
        fault: "a row without a point of its own writes",
        case: common::gelu,
        knobs: ACROSS,
        from: "lives[row] = active ? ",
        to: "lives[row] = true ? ",
        says: Some("no barrier between them"),
    },
    Mutation {
        fault: "rows go where their neighbours belong",
        case: common::gelu,
        knobs: ACROSS,
        from: "p[heads[to] + n * step]",
        to: "p[heads[to ^ 1] + n * step]",
        says: None,
    },
    Mutation {
        fault: "mask of the next element",
        case: common::softmax_dropout,
        knobs: WARP,
        from: "skipped = (uint32_t)first & 7",
        to: "skipped = ((uint32_t)first + 1) & 7",
        says: None,
    },
    Mutation {
        fault: "another round of the generator",
        case: common::bias_relu_dropout,
        knobs: WARP,
        from: "round < 10",
        to: "round < 9",
        says: None,
    },
];

#[test]
fn every_planted_fault_is_caught() -> Result<(), Failure> {
    let (mut sources, mut references) = (Vec::new(), Vec::new());
    for mutation in &MUTATIONS {
        let Case { program, unit } = (mutation.case)(SIZES);
        let reference = Reference::new(&program, &unit)?;
        let knobs = mutation.knobs.iter().fold(Knobs::default(), |k, (key, value)| k.with(key, value));
        let config = KernelConfig { knobs, ..KernelConfig::default() };
        let source = cuda::maps::source(&reference.spec, &config, Chip::HOPPER)?;
        let mut planted = source.clone();
        planted.text = source.text.replace(mutation.from, mutation.to);
        assert_ne!(planted.text, source.text, "`{}` does not stand in the text that \"{}\" changes", mutation.from, mutation.fault);
        sources.extend([source, planted]);
        references.push((reference, config));
    }
    let kernels = shim().compile(sources)?;
    let mut missed = Vec::new();
    for ((mutation, pair), (reference, config)) in MUTATIONS.iter().zip(kernels.chunks(2)).zip(&references) {
        let (ratio, place) = reference.ratio(&reference.emulate(&pair[0], config, 1)?);
        assert!(ratio <= 1.0, "{place} before anything is planted");
        let outcome = reference.emulate(&pair[1], config, 1).map_err(|e| e.to_string());
        println!("{:45} {}", mutation.fault, outcome.as_ref().err().map_or("", String::as_str));
        let caught = match (&outcome, mutation.says) {
            (Err(message), Some(says)) => message.contains(says),
            (Ok(results), None) => reference.ratio(results).0 > 1.0,
            _ => false,
        };
        if !caught {
            missed.push(mutation.fault);
        }
    }
    assert!(missed.is_empty(), "not caught: {missed:?}");
    Ok(())
}
