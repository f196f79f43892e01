//! Generated CUDA kernels, run on the CPU by the shim, against the interpreter.

// Each file of tests uses a part of these.
#[allow(dead_code)]
mod common;
#[allow(dead_code)]
mod harness;

use common::{CASES, Case};
use harness::{Failure, Reference, shim};
use kernels::maps::{self, CudaSpace};
use kernels::{KernelError, Space};
use sdfg::Dtype;
use sdfg::config::{KernelConfig, Knobs};

const SIZES: common::Sizes = &[("b", 2), ("h", 2), ("j", 7), ("k", 37), ("i", 21), ("u", 70)];

/// Runs configurations of every case: all kernels of a case are one compilation.
fn each_case(sizes: common::Sizes, dtype: Dtype, configs: impl Fn(&CudaSpace) -> Vec<KernelConfig>) -> Result<usize, Failure> {
    let mut checked = 0;
    for (name, make) in CASES {
        let Case { mut program, unit } = make(sizes);
        for container in program.containers.values_mut() {
            container.dtype = dtype;
        }
        let reference = Reference::new(&program, &unit)?;
        let configs = configs(&CudaSpace::new(&reference.spec)?);
        let sources: Result<Vec<_>, KernelError> = configs.iter().map(|c| maps::cuda_source(&reference.spec, c)).collect();
        for (n, (kernel, config)) in shim().compile(sources?)?.iter().zip(&configs).enumerate() {
            let results = reference.emulate(kernel, config, n as u64).map_err(|e| format!("{name} under {config}: {e}"))?;
            let (ratio, place) = reference.ratio(&results);
            assert!(ratio <= 1.0, "{name}: {place}, {ratio} times the tolerance, under {config}");
            checked += 1;
        }
    }
    println!("{checked} configurations of {} kernels in {dtype}", CASES.len());
    Ok(checked)
}

/// A fixed spread of configurations: a step with no small factor in common with the radices visits all of their digits.
fn spread(space: &CudaSpace, wanted: u64) -> Vec<KernelConfig> {
    let count = space.count();
    (0..wanted).map(|n| space.config((n * 1_000_003 + n * n * 7919) % count)).collect()
}

#[test]
fn every_case_equals_the_interpreter_over_its_space() -> Result<(), Failure> {
    let checked = each_case(SIZES, Dtype::F32, |space| spread(space, 16))?;
    assert_eq!(checked, 16 * CASES.len());
    Ok(())
}

#[test]
fn half_precision_storage() -> Result<(), Failure> {
    each_case(SIZES, Dtype::Bf16, |space| spread(space, 4))?;
    each_case(SIZES, Dtype::F16, |space| spread(space, 4))?;
    Ok(())
}

#[test]
fn double_precision() -> Result<(), Failure> {
    each_case(SIZES, Dtype::F64, |space| spread(space, 2))?;
    Ok(())
}

#[test]
fn dims_of_size_one() -> Result<(), Failure> {
    each_case(&[("b", 1), ("h", 1), ("j", 5), ("k", 1), ("i", 1), ("u", 3)], Dtype::F32, |space| spread(space, 4))?;
    Ok(())
}

/// Rows longer than what a team holds in registers, few blocks for many points.
#[test]
fn long_rows_and_few_blocks() -> Result<(), Failure> {
    let sizes = &[("b", 1), ("h", 1), ("j", 5), ("k", 700), ("i", 1030), ("u", 259)];
    let knobs = Knobs::default().with("threads", 32).with("blocks", 2);
    let configs = ["registers", "shared"].map(|hold| {
        let knobs = knobs.clone().with("rows", 4).with("width", 2).with("hold", hold);
        KernelConfig { knobs, ..KernelConfig::default() }
    });
    each_case(sizes, Dtype::F32, |_| configs.to_vec())?;
    Ok(())
}

#[test]
fn indices_of_64_bits_where_32_do_not_suffice() -> Result<(), Failure> {
    let index = |sizes: common::Sizes| -> Result<bool, Failure> {
        let Case { program, unit } = common::gelu(sizes);
        let source = maps::cuda_source(&kernels::KernelSpec::new(&program, &unit)?, &KernelConfig::default())?;
        assert!(source.grid <= i64::from(i32::MAX));
        Ok(source.text.contains("typedef long long index_t;"))
    };
    assert!(!index(&[("b", 96), ("j", 512), ("u", 4096)])?);
    assert!(index(&[("b", 96), ("j", 5120), ("u", 40960)])?);
    assert!(index(&[("b", 1 << 30), ("j", 1 << 20), ("u", 8)])?);
    Ok(())
}

#[test]
fn knobs_that_do_not_exist_are_refused() -> Result<(), Failure> {
    let Case { program, unit } = common::gelu(SIZES);
    let spec = kernels::KernelSpec::new(&program, &unit)?;
    for (key, value) in [
        ("threads", "48"),
        ("threads", "4096"),
        ("rows", "3"),
        ("rows", "4"),
        ("width", "16"),
        ("loops", "3"),
        ("hold", "x"),
        ("unroll", "0"),
    ] {
        let config = KernelConfig { knobs: Knobs::default().with(key, value), ..KernelConfig::default() };
        let error = maps::cuda_source(&spec, &config).expect_err("refused").to_string();
        assert!(error.contains(&format!("`{key}={value}`")), "{error}");
    }
    Ok(())
}
