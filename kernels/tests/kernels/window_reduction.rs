//! Maxima and sums under small windows against the interpreter: along every index that may give lanes, with and without a padded copy, and
//! where an image holds NaN.

use crate::common::Case;
use crate::harness::{Failure, Reference, toolchain};
use crate::windows::{WINDOWS, Window};
use kernels::pool::Pool;
use kernels::target::cpu::templates;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::interpret::Tensors;
use sdfg::{Combine, Layout, Unit};

/// `y[n,c,p,q]`, reduced over windows of `x`; `fill` lies outside the image.
fn reduced(window: &Window, combine: Combine, fill: f64) -> Case {
    let case = Window { depthwise: true, ..*window }.pooling();
    let Unit::Scope(mut scope) = case.unit else { return case };
    for item in &mut scope.body {
        if let sdfg::Item::Tasklet(computation) = item {
            computation.reads.iter_mut().for_each(|(_, memlet)| memlet.fill = Some(fill));
            computation.writes.iter_mut().for_each(|(_, memlet)| memlet.wcr = Some(combine));
        }
    }
    Case { unit: Unit::Scope(scope), ..case }
}

/// Configurations with lanes along an index, under layouts with one of the first dims innermost.
fn configs(reference: &Reference, vector: &str, inner: usize) -> Vec<KernelConfig> {
    let turned = |data: &str| {
        let mut dims = reference.spec.containers[data].dims.clone();
        let dim = dims.remove(inner);
        dims.push(dim);
        Layout::of(&dims)
    };
    let layouts = ["x", "y"].map(|data| (data.to_string(), turned(data)));
    let of = |lanes: i64| Knobs::default().with("vector", vector).with("lanes", lanes);
    [16, 64].map(|lanes| KernelConfig { layouts: layouts.iter().cloned().collect(), knobs: of(lanes) }).into()
}

#[test]
fn windows_of_every_kind_equal_the_interpreter() -> Result<(), Failure> {
    let (pool, toolchain) = (Pool::new(2)?, toolchain()?);
    for (name, window) in &WINDOWS {
        for (combine, fill) in [(Combine::Max, f64::NEG_INFINITY), (Combine::Min, f64::INFINITY), (Combine::Sum, 0.0), (Combine::Max, 0.25)]
        {
            let Case { program, unit } = reduced(window, combine, fill);
            let reference = Reference::new(&program, &unit)?;
            let last = if window.space.len() == 1 { "p" } else { "q" };
            for (vector, inner) in [("c", 1), (last, 2 + usize::from(last == "q")), ("n", 0)] {
                for config in configs(&reference, vector, inner) {
                    let kernel = templates::compile(&reference.spec, &config, &toolchain)?;
                    let (ratio, place) = reference.ratio(&reference.run(kernel.as_ref(), &config, &pool)?);
                    assert!(ratio <= 1.0, "{combine:?} of {name}, fill {fill}: {place}, {ratio} times the tolerance, under {config}");
                }
            }
        }
    }
    Ok(())
}

/// NaN anywhere in a window is its maximum, as in PyTorch, and no other window has it.
#[test]
fn nan_is_the_maximum_of_its_windows() -> Result<(), Failure> {
    let window = Window { channels: [19, 19, 1], space: &[[13, 3, 2, 1, 1, 1], [17, 3, 2, 1, 1, 1]], ..Window::PLAIN };
    let Case { program, unit } = reduced(&window, Combine::Max, f64::NEG_INFINITY);
    let drawn = Reference::new(&program, &unit)?;
    let mut given: Tensors = drawn.given.clone();
    let image = given.get_mut("x").ok_or("the image is given")?;
    image.iter_mut().step_by(41).for_each(|value| *value = f64::NAN);
    let (pool, toolchain) = (Pool::new(2)?, toolchain()?);
    let reference = Reference::of(&program, &unit, given)?;
    for config in configs(&reference, "c", 1) {
        let kernel = templates::compile(&reference.spec, &config, &toolchain)?;
        let got = reference.run(kernel.as_ref(), &config, &pool)?;
        let (want, got) = (&reference.want["y"], &got["y"]);
        let mut unknown = 0;
        for (want, got) in want.iter().zip(got) {
            assert!(want == got || (want.is_nan() && got.is_nan()), "{got} for {want} under {config}");
            unknown += usize::from(want.is_nan());
        }
        assert!(unknown > 0 && unknown < want.len());
    }
    Ok(())
}
