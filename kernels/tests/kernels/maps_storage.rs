//! Kernels over bf16: how values are rounded, and what is held in f32.

use crate::common::{at, c, heap, over, program, softmax_dropout, tasklet, v, wcr};
use crate::harness::{Failure, Reference, shim, toolchain};
use half::bf16;
use kernels::maps::MapSpace;
use kernels::pool::Pool;
use kernels::target::cpu;
use kernels::target::cuda;
use kernels::target::cuda::emit::Chip;
use kernels::{ConfigSpace, KernelSpec};
use ndarray::ArrayD;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::interpret::Tensors;
use sdfg::{Combine, Dtype, IndexKind, Item, Role, Scope, Sdfg, Unit, random};

/// Stores all of a program but the containers named in bf16.
fn narrow(program: &mut Sdfg, but: &[&str]) {
    for container in program.containers.values_mut().filter(|c| c.storage == sdfg::Storage::Heap && !but.contains(&c.name.as_str())) {
        container.dtype = Dtype::Bf16;
    }
}

/// Values of every kind, and both sides of ties between neighbours in bf16.
fn awkward() -> Vec<f64> {
    let mut found =
        vec![0.0, -0.0, 1.0, f64::INFINITY, f64::NEG_INFINITY, f64::NAN, f64::from(f32::MAX), f64::from(1e-40f32), f64::from(-3e-39f32)];
    let mut x = 1u32;
    for _ in 0..2000 {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let tie = x & 0xffff_0000 | 0x8000;
        found.extend([x, tie, tie - 1, tie + 1].map(|bits| f64::from(f32::from_bits(bits))).into_iter().filter(|v| v.is_finite()));
    }
    found
}

/// A cast from f32 rounds to the nearest, ties to even, as the crate `half` does; a NaN stays one, and back it is exact.
#[test]
fn stores_round_to_nearest_even() -> Result<(), Failure> {
    let given = awkward();
    let sizes = [("n", given.len() as i64)];
    let mut p = program(&sizes);
    heap(&mut p, "x", &["n"], Role::Input);
    heap(&mut p, "y", &["n"], Role::Output);
    heap(&mut p, "z", &["n"], Role::Output);
    narrow(&mut p, &["x", "z"]);
    let body = vec![tasklet(at("y", &["n"]), v("x"), vec![at("x", &["n"])]), tasklet(at("z", &["n"]), v("x"), vec![at("x", &["n"])])];
    let unit = Unit::Scope(Scope::new("cast", over(&["n"], IndexKind::Independent), body));
    let array = ArrayD::from_shape_vec(vec![given.len()], given.clone())?;
    let reference = Reference::of(&p, &unit, Tensors::from([("x".to_string(), array)]))?;
    let config = KernelConfig::default();
    let kernel = cpu::maps::compile(&reference.spec, &config, &toolchain()?)?;
    let got = reference.run(&kernel, &config, &Pool::new(1)?)?;
    for ((given, narrow), wide) in given.iter().zip(&got["y"]).zip(&got["z"]) {
        let want = bf16::from_f32(*given as f32).to_f64();
        assert!(*narrow == want || narrow.is_nan() && want.is_nan(), "{given:e} became {narrow:e}, not {want:e}");
        assert!(wide == given || wide.is_nan() && given.is_nan());
    }
    Ok(())
}

/// Doubles that are rounded to 16 bits are rounded once: just above and below halfway points a float on the way would decide otherwise.
#[test]
fn doubles_are_rounded_to_16_bits_at_once() -> Result<(), Failure> {
    let halfway = (0..0x7f80u32).step_by(7).map(|bits| f64::from(f32::from_bits(bits << 16 | 0x8000)));
    let halves =
        (1..0x7c00u16).step_by(5).map(|bits| (half::f16::from_bits(bits - 1).to_f64() + half::f16::from_bits(bits).to_f64()) / 2.0);
    let near = |v: f64| [v.next_down(), v, v.next_up()];
    let given: Vec<f64> = halfway.chain(halves).chain([1e300, 5e-324, 0.0, f64::INFINITY]).flat_map(near).flat_map(|v| [v, -v]).collect();
    let mut p = program(&[("n", given.len() as i64)]);
    heap(&mut p, "x", &["n"], Role::Input);
    heap(&mut p, "y", &["n"], Role::Output);
    heap(&mut p, "z", &["n"], Role::Output);
    for (name, dtype) in [("x", Dtype::F64), ("y", Dtype::Bf16), ("z", Dtype::F16)] {
        p.containers[name].dtype = dtype;
    }
    let copied = |to: &str| tasklet(at(to, &["n"]), v("x"), vec![at("x", &["n"])]);
    let unit = Unit::Scope(Scope::new("cast", over(&["n"], IndexKind::Independent), vec![copied("y"), copied("z")]));
    let array = ArrayD::from_shape_vec(vec![given.len()], given.clone())?;
    let reference = Reference::of(&p, &unit, Tensors::from([("x".to_string(), array)]))?;
    let config = KernelConfig::default();
    let compiled = reference.run(&cpu::maps::compile(&reference.spec, &config, &toolchain()?)?, &config, &Pool::new(1)?)?;
    let on_gpu = cuda::maps::CudaSpace::new(&reference.spec, Chip::HOPPER)?.config(0);
    let kernel = shim().compile(vec![cuda::maps::source(&reference.spec, &on_gpu, Chip::HOPPER)?])?.remove(0);
    let simulated = reference.emulate(&kernel, &on_gpu, 0)?;
    for (device, got) in [("C", compiled), ("CUDA", simulated)] {
        for (n, given) in given.iter().enumerate() {
            let want = [Dtype::Bf16.rounded(*given), Dtype::F16.rounded(*given)];
            assert_eq!([got["y"][n], got["z"][n]], want, "{given:e} on {device}");
        }
    }
    Ok(())
}

/// Softmax with its statistics on chip: over bf16 it is as far from the oracle as its stores alone allow.
#[test]
fn statistics_are_f32_over_narrow_tensors() -> Result<(), Failure> {
    let mut case = softmax_dropout(&[("h", 3), ("b", 2), ("j", 5), ("k", 37)]);
    narrow(&mut case.program, &[]);
    let spec = KernelSpec::new(&case.program, &case.unit)?;
    let shape = spec.shape("x")?;
    let values = random::tensor(3, "x", shape.iter().product()).into_iter().map(|v| Dtype::Bf16.rounded(4.0 * v)).collect();
    let given = Tensors::from([("x".to_string(), ArrayD::from_shape_vec(shape, values)?)]);
    let reference = Reference::of(&case.program, &case.unit, given)?;
    let (space, pool, toolchain) = (MapSpace::new(&reference.spec)?, Pool::new(2)?, toolchain()?);
    for n in (0..space.count()).step_by(space.count() as usize / 6 + 1) {
        let config = space.config(n);
        let kernel = cpu::maps::compile(&reference.spec, &config, &toolchain)?;
        let got = reference.run(&kernel, &config, &pool)?;
        let (ratio, at) = reference.ratio(&got);
        assert!(ratio > 0.0 && ratio <= 1.0, "{config}: {at}");
        // And no further: what is stored is the nearest to a value that is right in f32, from 37 terms and a few functions.
        let sums = sdfg::tolerance::gamma(37 + 4 * sdfg::tolerance::FUNCTION, Dtype::F32.roundoff());
        for (got, want) in got["y"].iter().zip(reference_softmax(&reference.given["x"])) {
            assert!((got - want).abs() <= (Dtype::Bf16.roundoff() + sums) * want, "{config}: {got} and {want}");
        }
    }
    Ok(())
}

/// Softmax over the last axis.
fn reference_softmax(x: &ArrayD<f64>) -> Vec<f64> {
    let row = x.shape()[x.ndim() - 1];
    let values: Vec<f64> = x.iter().map(|v| v.exp()).collect();
    values.chunks(row).flat_map(|r| r.iter().map(|v| v / r.iter().sum::<f64>()).collect::<Vec<_>>()).collect()
}

/// Adding up in a bf16 container would round every partial sum: for each `h`, rows of `b` are added to `s[h,i]`, which is in
/// memory, not in a register, because another map runs over `i` too.
#[test]
fn sums_are_held_in_f32_until_they_are_whole() -> Result<(), Failure> {
    let mut p = program(&[("h", 3), ("b", 4), ("i", 9)]);
    heap(&mut p, "x", &["h", "b", "i"], Role::Input);
    heap(&mut p, "s", &["h", "i"], Role::Output);
    heap(&mut p, "top", &["h", "b"], Role::Output);
    let sum = tasklet(wcr(at("s", &["h", "i"]), Combine::Sum), v("x") * c(2.0), vec![at("x", &["h", "b", "i"])]);
    let mut rows = over(&["b"], IndexKind::Reduction);
    rows.extend(over(&["i"], IndexKind::Independent));
    let top = tasklet(wcr(at("top", &["h", "b"]), Combine::Max), v("x"), vec![at("x", &["h", "b", "i"])]);
    let mut columns = over(&["b"], IndexKind::Independent);
    columns.extend(over(&["i"], IndexKind::Reduction));
    let body = vec![Item::Scope(Scope::new("rows", rows, vec![sum])), Item::Scope(Scope::new("columns", columns, vec![top]))];
    let unit = Unit::Scope(Scope::new("sum", over(&["h"], IndexKind::Independent), body));
    let config = KernelConfig { knobs: Knobs::default().with("vector", "i"), ..KernelConfig::default() };
    narrow(&mut p, &["top"]);
    let text = cpu::maps::source(&KernelSpec::new(&p, &unit)?, &config)?.text;
    assert!(text.contains("real *restrict const t_s_sum"), "{text}");
    Ok(())
}
