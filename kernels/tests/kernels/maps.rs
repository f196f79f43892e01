//! Generated map kernels against the interpreter, over layouts and knobs.

use crate::common::{self, CASES, Case};
use crate::harness::{Failure, Reference, toolchain};
use kernels::CancelToken;
use kernels::maps::MapSpace;
use kernels::pool::Pool;
use kernels::target::cpu;
use kernels::target::cpu::templates::precompile;
use kernels::{AlignedBuffer, ConfigSpace, Executable, KernelSpec, RunContext, split_blocked_dims};
use ndarray::ArrayD;
use sdfg::config::KernelConfig;
use sdfg::{Dtype, Layout, random};

const SIZES: common::Sizes = &[("b", 3), ("h", 2), ("j", 19), ("k", 37), ("i", 21), ("u", 70)];

/// A fixed spread of configurations of each space.
fn spread(space: &dyn ConfigSpace, wanted: u64) -> impl Iterator<Item = KernelConfig> {
    let count = space.count();
    // A step with no small factor in common with the radices visits all of their digits.
    (0..wanted).map(move |n| space.config((n * 1_000_003 + n * n * 7919) % count))
}

fn each_case(sizes: common::Sizes, wanted: u64, dtype: Dtype) -> Result<(), Failure> {
    each_equals(sizes, dtype, |_, spec| {
        let space = MapSpace::new(spec)?;
        Ok(spread(&space, wanted).collect())
    })
}

/// Runs configurations of every case, compiled together: a compiler reads what all of them include once.
fn each_equals(
    sizes: common::Sizes,
    dtype: Dtype,
    configs: impl Fn(&str, &KernelSpec) -> Result<Vec<KernelConfig>, Failure>,
) -> Result<(), Failure> {
    let (pools, toolchain) = ([Pool::new(1)?, Pool::new(3)?], toolchain()?);
    let (mut cases, mut kernels) = (Vec::new(), Vec::new());
    for (name, make) in CASES {
        let Case { mut program, unit } = make(sizes);
        for container in program.containers.values_mut() {
            container.dtype = dtype;
        }
        let reference = Reference::new(&program, &unit)?;
        let configs = configs(name, &reference.spec)?;
        kernels.extend(configs.iter().map(|config| (reference.spec.clone(), config.clone())));
        cases.push((name, reference, configs));
    }
    precompile(&kernels, &toolchain, CancelToken::default());
    for (name, reference, configs) in cases {
        for (n, config) in configs.into_iter().enumerate() {
            let (spec, split) = split_blocked_dims::split(&reference.spec, &config)?;
            let kernel = cpu::maps::compile(&spec, &split, &toolchain)?.streaming(n % 2 == 1);
            let (ratio, place) = reference.ratio(&reference.run(&kernel, &config, &pools[n % 2])?);
            assert!(ratio <= 1.0, "{name}: {place}, {ratio} times the tolerance, under {config}");
        }
    }
    Ok(())
}

#[test]
fn every_case_equals_the_interpreter_over_its_space() -> Result<(), Failure> {
    each_case(SIZES, 14, Dtype::F32)
}

/// Rows of several pieces and more lanes of a mask than are made at once, streamed and not.
#[test]
fn long_rows() -> Result<(), Failure> {
    each_case(&[("b", 1), ("h", 2), ("j", 3), ("k", 1500), ("i", 1100), ("u", 5000)], 6, Dtype::F32)
}

/// Layouts in panels of some tensors, plain ones of others.
#[test]
fn panels() -> Result<(), Failure> {
    let width = kernels::processor::PanelBlock::native().width(4) as i64;
    let sizes = [("b", 2), ("h", 2), ("j", 3), ("k", 3 * width), ("i", 2 * width), ("u", 2 * width)];
    each_equals(&sizes, Dtype::F32, |name, spec| {
        let space = MapSpace::new(spec)?.in_panels(width as usize);
        let in_panels = spread(&space, 400).filter(|c| c.layouts.values().any(|l| !l.is_plain()));
        let found: Vec<KernelConfig> = in_panels.take(8).collect();
        assert_eq!(found.len(), 8, "{name}");
        Ok(found)
    })
}

#[test]
fn double_precision() -> Result<(), Failure> {
    each_case(SIZES, 2, Dtype::F64)
}

#[test]
fn dims_of_size_one() -> Result<(), Failure> {
    each_case(&[("b", 1), ("h", 1), ("j", 5), ("k", 1), ("i", 1), ("u", 3)], 4, Dtype::F32)
}

#[test]
fn relayout_moves_every_element() -> Result<(), Failure> {
    let dims = [("a".to_string(), 5i64), ("b".to_string(), 33), ("c".to_string(), 18)];
    let panels = ["c,a,b,c%6", "b,a,c,b%3"].map(|text| text.parse::<Layout>());
    let names: Vec<String> = dims.iter().map(|(d, _)| d.clone()).collect();
    let container = sdfg::Container::new("x", &["a", "b", "c"], sdfg::Dtype::F32, sdfg::Role::Input);
    let shape = [5, 33, 18];
    let array = ArrayD::from_shape_vec(shape.to_vec(), random::tensor(1, "x", shape.iter().product()))?;
    let (pool, toolchain) = (Pool::new(2)?, toolchain()?);
    let from = Layout::of(&["c", "a", "b"]);
    let [by_six, by_three] = panels;
    let (by_six, by_three) = (by_six?, by_three?);
    let pairs = Layout::permutations(&names).into_iter().map(|to| (from.clone(), to));
    let others = [(&from, &by_six), (&by_six, &from), (&by_six, &by_three)].map(|(a, b)| (a.clone(), b.clone()));
    for (from, to) in pairs.chain(others) {
        let kernel = cpu::relayout::relayout("x", container.dtype, &dims, &from, &to, &toolchain)?;
        let (mut source, mut target) = (AlignedBuffer::of(&container, &shape, &from)?, AlignedBuffer::of(&container, &shape, &to)?);
        source.pack(&container, &from, &array)?;
        let context = RunContext { seed: 0, step: 0, dropout: false, pool: &pool, deadline: None, parameters: 0 };
        // SAFETY: both buffers hold the container in its layout.
        unsafe { kernel.run(&[source.as_mut_ptr(), target.as_mut_ptr()], &context) }?;
        assert_eq!(target.unpack(&container, &to, &shape)?, array, "{to}");
    }
    Ok(())
}

/// From one innermost dim to another, in all widths, at sizes with and without whole squares, along source and target.
#[test]
fn turned_relayouts_move_every_element() -> Result<(), Failure> {
    let (pool, toolchain) = (Pool::new(2)?, toolchain()?);
    let context = RunContext { seed: 0, step: 0, dropout: false, pool: &pool, deadline: None, parameters: 0 };
    let mut ran = 0;
    for shape in [[3, 32, 48], [2, 17, 35], [1, 1, 40], [40, 2, 1], [64, 16, 5]] {
        let names = ["a", "b", "c"];
        let dims: Vec<(String, i64)> = names.iter().zip(shape).map(|(d, n)| (d.to_string(), n as i64)).collect();
        let layouts = Layout::permutations(&names.map(String::from));
        for dtype in [Dtype::F32, Dtype::F64, Dtype::Bf16, Dtype::F16, Dtype::U8, Dtype::I16, Dtype::I64] {
            let container = sdfg::Container::new("x", &names, dtype, sdfg::Role::Input);
            let values = (0..shape.iter().product::<usize>()).map(|n| dtype.rounded((n % 251) as f64));
            let array = ArrayD::from_shape_vec(shape.to_vec(), values.collect())?;
            for (from, to) in layouts.iter().flat_map(|from| layouts.iter().map(move |to| (from, to))) {
                if from.innermost() == to.innermost() {
                    continue;
                }
                let kernel = cpu::relayout::relayout("x", dtype, &dims, from, to, &toolchain)?.streaming(ran % 2 == 1);
                let (mut source, mut target) = (AlignedBuffer::of(&container, &shape, from)?, AlignedBuffer::of(&container, &shape, to)?);
                source.pack(&container, from, &array)?;
                // SAFETY: both buffers hold the container in its layout.
                unsafe { kernel.run(&[source.as_mut_ptr(), target.as_mut_ptr()], &context) }?;
                assert_eq!(target.unpack(&container, to, &shape)?, array, "{dtype}: {from} to {to} of {shape:?}");
                ran += 1;
            }
        }
    }
    assert_eq!(ran, 5 * 7 * 24);
    Ok(())
}
