//! Generated CUDA kernels, run on the CPU by the shim, against the interpreter.

// Each file of tests uses a part of these.
#[allow(dead_code)]
mod common;
#[allow(dead_code)]
mod harness;

use common::{CASES, Case};
use harness::{Failure, Reference, shim};
use kernels::maps;
use sdfg::config::KernelConfig;

const SIZES: common::Sizes = &[("b", 3), ("h", 2), ("j", 19), ("k", 37), ("i", 21), ("u", 70)];

#[test]
fn every_case_with_default_knobs() -> Result<(), Failure> {
    let (mut sources, mut references) = (Vec::new(), Vec::new());
    for (_, make) in CASES {
        let Case { program, unit } = make(SIZES);
        let reference = Reference::new(&program, &unit)?;
        sources.push(maps::cuda_source(&reference.spec, &KernelConfig::default())?);
        references.push(reference);
    }
    for (kernel, reference) in shim().compile(sources)?.iter().zip(&references) {
        let (ratio, place) = reference.ratio(&reference.emulate(kernel, &KernelConfig::default(), 1)?);
        assert!(ratio <= 1.0, "{}: {place}, {ratio} times the tolerance", reference.spec.name);
    }
    Ok(())
}
