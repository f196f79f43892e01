//! Tile kernels in CUDA, run on the CPU by the shim, against the interpreter.

use crate::common::{Case, Sizes};
use crate::gemms::{self, Stored, TILES, attention, mixed, narrow};
use crate::harness::{self, Failure, Reference, shim};
use kernels::target::cuda;
use kernels::target::cuda::emit::Chip;
use kernels::target::cuda::tiles::CudaTileSpace;
use kernels::{ConfigSpace, KernelError};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Dtype, Unit};

const SIZES: Sizes = &[("b", 2), ("h", 2), ("j", 19), ("k", 37), ("i", 21), ("u", 40), ("p", 9)];
/// Several panels of rows and columns, and chunks of the depth; rows of whole vectors.
const LARGER: Sizes = &[("b", 1), ("h", 2), ("j", 136), ("k", 48), ("i", 80), ("u", 136), ("p", 32)];

/// A fixed spread of configurations: a step with no small factor in common with the radices visits all of their digits.
fn spread(space: &CudaTileSpace, wanted: u64) -> impl Iterator<Item = KernelConfig> {
    let count = space.count();
    (0..wanted).map(move |n| space.config((n * 1_000_003 + n * n * 7919) % count))
}

/// Runs configurations of every case, all kernels in one compilation; with `tile` under these tiles.
fn each_case(sizes: Sizes, wanted: u64, stored: Stored, tile: Option<&str>) -> Result<usize, Failure> {
    let (mut cases, mut sources) = (Vec::new(), Vec::new());
    for (name, make) in TILES {
        let Case { mut program, unit } = make(sizes);
        for container in program.containers.values_mut() {
            container.dtype = stored(container);
        }
        let reference = Reference::new(&program, &unit)?;
        let mut configs: Vec<KernelConfig> = spread(&CudaTileSpace::new(&reference.spec, Chip::HOPPER)?, wanted).collect();
        for config in &mut configs {
            if let Some(tile) = tile {
                let outer = |part: &&str| match &unit {
                    Unit::Scope(scope) => scope.map.indices.iter().any(|i| part.starts_with(&format!("{}:", i.name)) && i.name != "i"),
                    _ => false,
                };
                let parts: Vec<&str> = tile.split(',').filter(outer).collect();
                config.knobs = config.knobs.clone().with("tile", parts.join(","));
            }
            sources.push(cuda::tiles::source(&reference.spec, config, Chip::HOPPER)?);
        }
        cases.push((name, reference, configs));
    }
    let checked = harness::each_equals(&cases, sources)?;
    println!("{checked} configurations of {} kernels", TILES.len());
    Ok(checked)
}

#[test]
fn every_case_equals_the_interpreter_over_its_space() -> Result<(), Failure> {
    let checked = each_case(SIZES, 8, |_| Dtype::F32, None)?;
    assert_eq!(checked, 8 * TILES.len());
    Ok(())
}

#[test]
fn several_panels_and_chunks() -> Result<(), Failure> {
    each_case(LARGER, 2, |_| Dtype::F32, Some("j:136,u:136"))?;
    Ok(())
}

#[test]
fn ragged_tiles() -> Result<(), Failure> {
    each_case(SIZES, 3, |_| Dtype::F32, Some("j:8,u:32,b:2,h:2"))?;
    each_case(SIZES, 2, narrow, Some("j:8,u:32,b:2,h:2"))?;
    Ok(())
}

/// What one chip has in shared memory is in global memory on a smaller one.
#[test]
fn chips_with_less_shared_memory() -> Result<(), Failure> {
    let (turing, hopper) = (Chip { shared: 64 << 10, processors: 40, tensor_cores: false }, Chip::HOPPER);
    let (mut checked, mut fewer) = (0, 0);
    for (name, make) in TILES {
        let Case { program, unit } = make(LARGER);
        let reference = Reference::new(&program, &unit)?;
        // Tiles as a larger chip would have them.
        let (mut configs, mut sources) = (Vec::new(), Vec::new());
        for config in spread(&CudaTileSpace::new(&reference.spec, hopper)?, 40) {
            let large = cuda::tiles::source(&reference.spec, &config, hopper)?;
            let small = match cuda::tiles::source(&reference.spec, &config, turing) {
                Err(KernelError::Knob { key, allowed, .. }) if key == "depth" && allowed.contains("65536 bytes") => continue,
                small => small?,
            };
            assert!(small.shared <= turing.shared && large.shared <= hopper.shared, "{name}: {} and {} bytes", small.shared, large.shared);
            // A smaller one may have fewer parts of the stage, too.
            if small.shared < large.shared && small.scratch > large.scratch && configs.len() < 2 {
                configs.push(config);
                sources.push(small);
            }
        }
        fewer += configs.len();
        for (kernel, config) in shim().compile(sources)?.iter().zip(&configs) {
            let (ratio, place) = reference.ratio(&reference.emulate(kernel, config, 1)?);
            assert!(ratio <= 1.0, "{name}: {place}, {ratio} times the tolerance, under {config}");
            checked += 1;
        }
    }
    assert!(fewer > 3 && checked == fewer, "{fewer}");
    println!("{checked} configurations with less in shared memory");
    Ok(())
}

/// Sums over rows are walked in order by one processor for each head; what leaves processors idle is not tried first.
#[test]
fn sums_are_private_where_processors_would_idle() -> Result<(), Failure> {
    let best = |heads: i64, processors: i64| -> Result<String, Failure> {
        let sizes: Sizes = &[("b", 1), ("h", heads), ("j", 2048), ("k", 512), ("i", 8), ("u", 8), ("p", 64)];
        let Case { program, unit } = gemms::keys(sizes);
        let space = CudaTileSpace::new(&kernels::KernelSpec::new(&program, &unit)?, Chip { processors, ..Chip::HOPPER })?;
        // Layouts are the slowest digits.
        let layouts = space.config(0).layouts;
        let knobs = (0..space.count()).take_while(|n| space.config(*n).layouts == layouts);
        let first = knobs.min_by(|x, y| space.predicted_cost(*x).total_cmp(&space.predicted_cost(*y))).ok_or("no configuration")?;
        Ok(space.config(first).knobs.get("reduce").unwrap_or_default().to_string())
    };
    for (heads, processors, expected) in
        [(1, 1, "sequential"), (1, 2, "private"), (1, 132, "private"), (16, 2, "sequential"), (16, 132, "private")]
    {
        assert_eq!(best(heads, processors)?, expected, "{heads} heads on {processors} processors");
    }
    Ok(())
}

/// By tensor cores, whose operands the shim spreads as NVIDIA's manual says.
#[test]
fn half_precision() -> Result<(), Failure> {
    each_case(SIZES, 6, narrow, None)?;
    each_case(LARGER, 2, narrow, Some("j:136,u:136"))?;
    each_case(SIZES, 3, |_| Dtype::Bf16, None)?;
    let half = |c: &sdfg::Container| if narrow(c) == Dtype::Bf16 { Dtype::F16 } else { Dtype::F32 };
    each_case(SIZES, 4, half, None)?;
    Ok(())
}

#[test]
fn bf16_beside_f32() -> Result<(), Failure> {
    each_case(SIZES, 3, mixed, None)?;
    Ok(())
}

#[test]
fn double_precision() -> Result<(), Failure> {
    each_case(SIZES, 2, |_| Dtype::F64, None)?;
    Ok(())
}

#[test]
fn dims_of_size_one() -> Result<(), Failure> {
    let sizes = &[("b", 1), ("h", 1), ("j", 5), ("k", 1), ("i", 1), ("u", 3), ("p", 1)];
    each_case(sizes, 3, |_| Dtype::F32, None)?;
    each_case(sizes, 3, narrow, None)?;
    // Sums over nothing but these.
    let sizes = &[("b", 1), ("h", 1), ("j", 1), ("k", 8), ("i", 72), ("u", 72), ("p", 8)];
    each_case(sizes, 3, narrow, None)?;
    Ok(())
}

/// Faults planted into products: the shim, or the comparison with the interpreter, must find each of them.
#[test]
fn planted_faults_are_found() -> Result<(), Failure> {
    let faults: [(&str, &str, &str, Option<&str>); 8] = [
        ("no barrier before what was staged is multiplied", "2>();\n            __syncthreads();", "2>();", Some("shared memory")),
        ("a part is filled while it is multiplied", "ahead = 1 - STAGES", "ahead = -STAGES", Some("no barrier")),
        ("what was copied is not waited for", "await_copies<STAGES - 2>();\n", "\n", Some("nobody has written")),
        ("a copy too few is waited for", "await_copies<STAGES - 2>();\n", "await_copies<STAGES - 1>();\n", Some("nobody has written")),
        ("squares of a staged factor in the wrong order", "step + (ALONG ? odd : high)", "step + (ALONG ? high : odd)", None),
        ("squares of a factor on chip in the wrong order", "s + (ALONG ? n % 2 : n / 2)", "s + (ALONG ? n / 2 : n % 2)", None),
        ("steps beyond the depth", "n - next_j, k - next_s", "n - next_j, k + 1 - next_s", Some("which has")),
        ("a column of a result left out", "j + column + y < n)", "j + column + y < n - 1)", Some("nobody has written")),
    ];
    let Case { mut program, unit } = attention(SIZES);
    for container in program.containers.values_mut() {
        container.dtype = narrow(container);
    }
    let reference = Reference::new(&program, &unit)?;
    let knobs = Knobs::default().with("tile", "j:16").with("depth", 16).with("threads", 64).with("width", 2);
    let config = KernelConfig { knobs, ..KernelConfig::default() };
    let sound = cuda::tiles::source(&reference.spec, &config, Chip::HOPPER)?;
    harness::faults_are_found(&reference, &config, &sound, &faults)
}
