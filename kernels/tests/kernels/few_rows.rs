//! A matrix and few rows at the end of a network of images: the matrix is read where it lies, or packed once.

use crate::common::{self, Case, c, v};
use crate::harness::{Failure, Reference, toolchain};
use kernels::pool::Pool;
use kernels::target::cpu::templates;
use kernels::tiles::TileSpace;
use kernels::{ConfigSpace, KernelSpec};
use sdfg::{Binary, Combine, IndexKind, Role, Scalar, Scope, Unit};

/// `y = relu(Σ k · x + b)`, or with the factors exchanged.
fn rows(n: i64, channels: i64, classes: i64, exchanged: bool) -> Case {
    let mut p = common::program(&[("n", n), ("c", channels), ("o", classes)]);
    common::heap(&mut p, "x", &["n", "c"], Role::Input);
    common::heap(&mut p, "k", &["o", "c"], Role::Parameter);
    common::heap(&mut p, "b", &["o"], Role::Parameter);
    common::heap(&mut p, "y", &["n", "o"], Role::Output);
    common::local(&mut p, "t", &[]);
    let write = common::wcr(common::at("t", &[]), Combine::Sum);
    let product = if exchanged { v("x") * v("k") } else { v("k") * v("x") };
    let sum = common::tasklet(write, product, vec![common::at("k", &["o", "c"]), common::at("x", &["n", "c"])]);
    let relu = Scalar::binary(Binary::Max, v("t") + v("b"), c(0.0));
    let last = common::tasklet(common::at("y", &["n", "o"]), relu, vec![common::at("t", &[]), common::at("b", &["o"])]);
    let body = vec![common::map("sum", &["c"], vec![sum]), last];
    Case { program: p, unit: Unit::Scope(Scope::new("rows", common::over(&["n", "o"], IndexKind::Independent), body)) }
}

fn of_images(spec: &KernelSpec) -> KernelSpec {
    KernelSpec { images: true, ..spec.clone() }
}

#[test]
fn few_rows_are_multiplied_where_the_matrix_lies() -> Result<(), Failure> {
    let (pools, toolchain) = ([Pool::new(1)?, Pool::new(3)?], toolchain()?);
    for (n, channels, classes, exchanged) in [(1, 64, 100, false), (1, 37, 48, true), (3, 40, 33, true), (2, 16, 1000, false)] {
        let Case { program, unit } = rows(n, channels, classes, exchanged);
        let mut reference = Reference::new(&program, &unit)?;
        reference.spec = of_images(&reference.spec);
        let space = TileSpace::new(&reference.spec)?;
        assert!(space.is_direct(), "{n} rows of {channels}");
        let count = space.count();
        for config in (0..12).map(|n| space.config(n * 1_000_003 % count)) {
            let kernel = templates::compile(&reference.spec, &config, &toolchain)?;
            let got = reference.run(kernel.as_ref(), &config, &pools[(n % 2) as usize])?;
            let (x, k, b) = (&reference.given["x"], &reference.given["k"], &reference.given["b"]);
            for (at, y) in got["y"].indexed_iter() {
                let terms = (0..channels as usize).map(|c| k[[at[1], c].as_slice()] * x[[at[0], c].as_slice()]);
                let right = (terms.sum::<f64>() + b[[at[1]].as_slice()]).max(0.0);
                assert!((y - right).abs() < 1e-4 * channels as f64, "{y} is not {right} at {at:?}, under {config}");
            }
        }
    }
    Ok(())
}

/// Many rows use what is packed often enough, and a program without images may have its matrices in any order.
#[test]
fn many_rows_are_packed() -> Result<(), Failure> {
    let Case { program, unit } = rows(64, 32, 32, false);
    let spec = KernelSpec::new(&program, &unit)?;
    assert!(!TileSpace::new(&of_images(&spec))?.is_direct());
    let Case { program, unit } = rows(1, 32, 32, false);
    assert!(!TileSpace::new(&KernelSpec::new(&program, &unit)?)?.is_direct());
    Ok(())
}
