//! Code made ahead: many configurations in a few compiler runs, each as right as if it were compiled alone.

use crate::common;
use crate::harness::{Failure, Reference, toolchain_told};
use kernels::CancelToken;
use kernels::device::Device;
use kernels::maps::MapSpace;
use kernels::pool::Pool;
use kernels::target::cpu;
use kernels::{ConfigSpace, Toolchain};
use sdfg::{Dtype, Unit};
use std::path::Path;
use std::sync::Arc;

const SIZES: common::Sizes = &[("b", 3), ("h", 2), ("j", 19), ("k", 37), ("i", 21), ("u", 70)];

const MADE: [(common::Make, Dtype); 3] =
    [(common::layernorm, Dtype::F32), (common::softmax_dropout, Dtype::F32), (common::gelu, Dtype::F64)];

/// A compiler whose code nobody else in this process has.
fn alone(cache: &Path) -> Result<Toolchain, Failure> {
    Ok(Toolchain { cache: cache.into(), ..toolchain_told(format!("-DALONE={}", cache.display()))? })
}

/// Files of this kind in a folder.
fn files(folder: &Path, extension: &str) -> usize {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter(|e| e.path().extension().is_some_and(|found| found == extension)).count()
}

#[test]
fn what_was_prepared_is_loaded_and_right() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let toolchain = alone(folder.path())?;
    let pool = Pool::new(2)?;
    let mut cases = Vec::new();
    for (make, dtype) in MADE {
        let mut case = make(SIZES);
        for container in case.program.containers.values_mut() {
            container.dtype = dtype;
        }
        let reference = Reference::new(&case.program, &case.unit)?;
        let space = MapSpace::new(&reference.spec)?;
        let configs: Vec<_> = (0..8u64).map(|n| space.config((n * 1_000_003 + n * n * 7919) % space.count())).collect();
        cases.push((reference, configs));
    }
    let wanted: Vec<_> = cases.iter().flat_map(|(r, configs)| configs.iter().map(|c| (r.spec.clone(), c.clone()))).collect();
    cpu::templates::precompile(&wanted, &toolchain, CancelToken::default());
    let (libraries, runs) = (files(folder.path(), "so"), files(folder.path(), "c"));
    assert!(runs > 1 && libraries > runs, "{libraries} libraries by {runs} runs of the compiler");
    for (reference, configs) in &cases {
        for config in configs {
            let kernel = cpu::maps::compile(&reference.spec, config, &toolchain)?;
            let (ratio, place) = reference.ratio(&reference.run(&kernel, config, &pool)?);
            assert!(ratio <= 1.0, "{place}, {ratio} times the tolerance, under {config}");
        }
    }
    assert_eq!((files(folder.path(), "so"), files(folder.path(), "c")), (libraries, runs), "nothing was left to compile");
    Ok(())
}

/// Plans hold one instance of a kernel under a configuration, of one compiler and at one size.
#[test]
fn plans_share_kernels() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let cores = cpu::Cores { toolchain: alone(folder.path())? };
    let common::Case { program, unit } = common::gelu(SIZES);
    let spec = kernels::KernelSpec::new(&program, &unit)?;
    let space = MapSpace::new(&spec)?;
    let [first, other] = [0, space.count() - 1].map(|n| space.config(n));
    assert!(!cores.has_for_plan(&spec, &first));
    let made = cores.compile_for_plan(&spec, &first)?;
    assert!(cores.has_for_plan(&spec, &first) && !cores.has_for_plan(&spec, &other));
    assert!(Arc::ptr_eq(&made, &cores.compile_for_plan(&spec, &first)?));
    assert!(!Arc::ptr_eq(&made, &cores.compile_for_plan(&spec, &other)?));
    let mut sizes = spec.sizes.clone();
    sizes.values_mut().for_each(|size| *size += 1);
    assert!(!cores.has_for_plan(&spec.with_sizes(&sizes)?, &first));
    let elsewhere = tempfile::tempdir()?;
    assert!(!cpu::Cores { toolchain: alone(elsewhere.path())? }.has_for_plan(&spec, &first));
    Ok(())
}

/// Kernels that compute the same of containers with other names are one text.
#[test]
fn names_are_compiled_once() -> Result<(), Failure> {
    let folder = tempfile::tempdir()?;
    let toolchain = alone(folder.path())?;
    let spec = |name: &str| -> Result<_, Failure> {
        let common::Case { mut program, unit: Unit::Scope(mut scope) } = common::gelu(SIZES) else {
            return Err("a scope".into());
        };
        common::heap(&mut program, name, &["b", "j", "u"], sdfg::Role::Input);
        for item in &mut scope.body {
            let sdfg::Item::Tasklet(computation) = item else { continue };
            computation.reads.iter_mut().for_each(|(_, memlet)| memlet.data = name.into());
        }
        Ok(kernels::KernelSpec::new(&program, &Unit::Scope(scope))?)
    };
    for name in ["x", "another.name", "x"] {
        let spec = spec(name)?;
        cpu::maps::compile(&spec, &MapSpace::new(&spec)?.config(0), &toolchain)?;
    }
    assert_eq!(files(folder.path(), "so"), 1);
    Ok(())
}
