//! Kernels that cuBLASLt does as one product, with an epilogue or a batch by address: which scopes are, that each means what its
//! scope means under every layout that the library has words for, and what the library says to the descriptors.

use crate::common::*;
use crate::harness::{Failure, Reference};
use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cuda::CudaLibrary;
use kernels::target::cuda::cublaslt::{
    Batching, Bias, CublasLtConfig, CublasLtSpace, Descriptors, EpilogueFunction, Everything, FusedContraction, Units,
};
use kernels::target::shim::ShimDevice;
use kernels::{ConfigSpace, KernelSpec};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::library::calculus::pullback;
use sdfg::{Binary, Combine, Direction, Dtype, IndexKind, Item, Layout, Op, Operand, Operation, Role, Scalar, Scope, Unary, Unit};
use std::sync::Arc;

/// Columns of an auxiliary matrix begin at multiples of eight, those of bits at multiples of 128.
const SIZES: Sizes = &[("b", 2), ("j", 4), ("i", 3), ("u", 128)];
const FULL: [&str; 3] = ["u", "b", "j"];

/// y[u,b,j] = after(Σi w[u,i] x[i,b,j]) with a scalar `t` for the product, and whatever `declare` adds.
fn case(declare: impl Fn(&mut sdfg::Sdfg), after: Vec<Item>) -> Case {
    let mut p = program(SIZES);
    heap(&mut p, "w", &["u", "i"], Role::Parameter);
    heap(&mut p, "x", &["i", "b", "j"], Role::Input);
    heap(&mut p, "y", &FULL, Role::Output);
    local(&mut p, "t", &[]);
    declare(&mut p);
    let term = tasklet(wcr(at("t", &[]), Combine::Sum), v("w") * v("x"), vec![at("w", &["u", "i"]), at("x", &["i", "b", "j"])]);
    let mut body = vec![map("dot", &["i"], vec![term])];
    body.extend(after);
    Case { program: p, unit: Unit::Scope(Scope::new("fused", over(&FULL, IndexKind::Independent), body)) }
}

fn with_bias(p: &mut sdfg::Sdfg) {
    heap(p, "bias", &["u"], Role::Parameter);
}

fn with_argument(p: &mut sdfg::Sdfg) {
    with_bias(p);
    heap(p, "s", &FULL, Role::Output);
}

fn relu(x: Scalar) -> Scalar {
    Scalar::binary(Binary::Max, x, c(0.0))
}

fn gelu_tanh(x: Scalar) -> Scalar {
    let cubic = c(0.044715) * x.clone() * x.clone() * x.clone();
    let tanh = Scalar::unary(Unary::Tanh, c((2.0 / std::f64::consts::PI).sqrt()) * (x.clone() + cubic));
    c(0.5) * x * (c(1.0) + tanh)
}

fn bias_relu() -> Case {
    case(with_bias, vec![tasklet(at("y", &FULL), relu(v("t") * c(0.5) + v("bias")), vec![at("t", &[]), at("bias", &["u"])])])
}

fn bias_gelu_with_argument() -> Case {
    let sum = tasklet(at("s", &FULL), v("bias") + v("t"), vec![at("t", &[]), at("bias", &["u"])]);
    case(with_argument, vec![sum, tasklet(at("y", &FULL), gelu_tanh(v("s")), vec![at("s", &FULL)])])
}

fn gelu_gradient_with_sums() -> Case {
    let declare = |p: &mut sdfg::Sdfg| {
        heap(p, "s", &FULL, Role::Input);
        heap(p, "sums", &["u"], Role::Gradient);
    };
    let code = pullback(&gelu_tanh(v("s")), "s", v("t"));
    let reads = vec![at("t", &[]), at("s", &FULL)];
    case(declare, vec![tasklet(at("y", &FULL), code, reads), tasklet(wcr(at("sums", &["u"]), Combine::Sum), v("y"), vec![at("y", &FULL)])])
}

/// d_w[u,i] = Σ dy[u,b,j] x[i,b,j], d_bias[u] = Σ dy[u,b,j]: as composition makes it, the outer index shared.
fn sums_of_an_operand() -> Case {
    let mut p = program(SIZES);
    heap(&mut p, "dy", &FULL, Role::Input);
    heap(&mut p, "x", &["i", "b", "j"], Role::Input);
    heap(&mut p, "d_w", &["u", "i"], Role::Gradient);
    heap(&mut p, "d_bias", &["u"], Role::Gradient);
    let term = tasklet(wcr(at("d_w", &["u", "i"]), Combine::Sum), v("dy") * v("x"), vec![at("dy", &FULL), at("x", &["i", "b", "j"])]);
    let sum = tasklet(wcr(at("d_bias", &["u"]), Combine::Sum), v("dy"), vec![at("dy", &FULL)]);
    let body = vec![map("d_w", &["i", "b", "j"], vec![term]), map("d_bias", &["b", "j"], vec![sum])];
    Case { program: p, unit: Unit::Scope(Scope::new("d_w", over(&["u"], IndexKind::Independent), body)) }
}

/// As the argument of GELU, but a bit an element.
fn with_signs(p: &mut sdfg::Sdfg) {
    with_argument(p);
    p.containers["s"].dtype = Dtype::Bit;
}

fn bias_relu_with_signs() -> Case {
    let declare = |p: &mut sdfg::Sdfg| {
        with_signs(p);
        local(p, "r", &[]);
    };
    let sum = tasklet(at("r", &[]), v("bias") + v("t"), vec![at("t", &[]), at("bias", &["u"])]);
    let positive = Scalar::binary(Binary::Gt, v("r"), c(0.0));
    let result = tasklet(at("y", &FULL), relu(v("r")), vec![at("r", &[])]);
    case(declare, vec![sum, result, tasklet(at("s", &FULL), positive, vec![at("r", &[])])])
}

fn relu_gradient_with_sums() -> Case {
    let declare = |p: &mut sdfg::Sdfg| {
        heap(p, "s", &FULL, Role::Input);
        p.containers["s"].dtype = Dtype::Bit;
        heap(p, "sums", &["u"], Role::Gradient);
    };
    let code = Scalar::select(Scalar::binary(Binary::Gt, v("s"), c(0.0)), v("t"), c(0.0));
    let reads = vec![at("t", &[]), at("s", &FULL)];
    case(declare, vec![tasklet(at("y", &FULL), code, reads), tasklet(wcr(at("sums", &["u"]), Combine::Sum), v("y"), vec![at("y", &FULL)])])
}

type Meant = (Option<EpilogueFunction>, Option<Bias>, bool);

fn cases() -> [(Case, Meant); 6] {
    [
        (bias_relu(), (Some(EpilogueFunction::Relu), Some(Bias::Added), false)),
        (bias_gelu_with_argument(), (Some(EpilogueFunction::Gelu), Some(Bias::Added), true)),
        (gelu_gradient_with_sums(), (Some(EpilogueFunction::GeluGradient), Some(Bias::OfResult), true)),
        (sums_of_an_operand(), (None, Some(Bias::OfA), false)),
        (bias_relu_with_signs(), (Some(EpilogueFunction::Relu), Some(Bias::Added), true)),
        (relu_gradient_with_sums(), (Some(EpilogueFunction::ReluGradient), Some(Bias::OfResult), true)),
    ]
}

fn meant(fused: &FusedContraction) -> Meant {
    let epilogue = fused.epilogue.as_ref().expect("an epilogue");
    (epilogue.function, epilogue.bias.as_ref().map(|(bias, _)| *bias), epilogue.aux.is_some())
}

/// In f32, and in f16 with f16 all around it.
#[test]
fn what_is_recognised_means_the_scope_in_every_layout() -> Result<(), Failure> {
    let device = ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into());
    let pool = Pool::new(1)?;
    for (n, dtype) in [Dtype::F32, Dtype::F16].into_iter().enumerate() {
        for (mut case, want) in cases() {
            for container in case.program.containers.values_mut().filter(|c| c.storage == sdfg::Storage::Heap && c.dtype != Dtype::Bit) {
                container.dtype = dtype;
            }
            let reference = Reference::new(&case.program, &case.unit)?;
            assert_eq!(meant(&FusedContraction::of(&reference.spec)?), want);
            let space = device.space(&reference.spec)?;
            let mut seen = std::collections::BTreeSet::new();
            // Algorithms, which are numbered last, are all alike to the reference.
            let numbers = (n as u64..space.count()).step_by(128).filter(|number| space.predicted_cost(*number).is_finite());
            let different: Vec<u64> = numbers.filter(|number| seen.insert(space.identity(*number))).collect();
            for config in different.iter().map(|number| space.config(*number)) {
                let kernel = device.compile(&reference.spec, &config)?;
                let (ratio, what) = reference.ratio(&reference.run(&*kernel, &config, &pool)?);
                assert!(ratio <= 1.0, "{want:?} in {dtype}, {config}: {what}");
            }
            let ran = different.len();
            println!("{want:?} in {dtype}: {ran} configurations equal the oracle");
            assert!(ran >= 6, "{want:?} in {dtype}: {ran}");
        }
    }
    Ok(())
}

#[test]
fn what_the_library_has_no_epilogue_for_is_no_product() -> Result<(), Failure> {
    let refused = |case: Case| -> Result<(), Failure> {
        let spec = KernelSpec::new(&case.program, &case.unit)?;
        assert!(!FusedContraction::has(&spec) && FusedContraction::wanted(&spec)?.is_none(), "{:?}", case.unit);
        Ok(())
    };
    let both = || vec![at("t", &[]), at("bias", &["u"])];
    // GELU by the error function, a dropout, a bias twice, nothing at all.
    let erf = c(0.5) * v("t") * (c(1.0) + Scalar::unary(Unary::Erf, v("t") * c(std::f64::consts::FRAC_1_SQRT_2)));
    refused(case(|_| {}, vec![tasklet(at("y", &FULL), erf, vec![at("t", &[])])]))?;
    refused(case(with_bias, vec![tasklet(at("y", &FULL), (v("t") + v("bias")) * keep("y", &FULL, 0.1), both())]))?;
    refused(case(with_bias, vec![tasklet(at("y", &FULL), v("t") + v("bias") + v("bias"), both())]))?;
    refused(case(|_| {}, vec![tasklet(at("y", &FULL), v("t"), vec![at("t", &[])])]))?;
    // ReLU's argument in memory: the library would write bits.
    let sum = tasklet(at("s", &FULL), v("t") + v("bias"), both());
    refused(case(with_argument, vec![sum, tasklet(at("y", &FULL), relu(v("s")), vec![at("s", &FULL)])]))?;
    // A bias of another type than the result.
    let mut mixed = bias_relu();
    for name in ["w", "x", "y"] {
        mixed.program.containers[name].dtype = Dtype::Bf16;
    }
    refused(mixed)
}

/// Where f32 may be TF32, tensor cores and plain units compete; else there is one way to multiply it.
#[test]
fn f32_has_plain_units_beside_tensor_cores_where_it_may_be_tf32() -> Result<(), Failure> {
    let Case { mut program, unit } = bias_relu();
    for tf32 in [false, true] {
        program.tf32 = tf32;
        let spec = KernelSpec::new(&program, &unit)?;
        let fused = FusedContraction::of(&spec)?;
        let space = CublasLtSpace::new(fused.clone(), Arc::new(Everything));
        let some = (0..space.count()).step_by(128).map(|n| space.config(n)).filter(|c| c.knobs.get("units") == Some("plain"));
        let plain =
            some.filter(|c| CublasLtConfig::of(&fused.problem, c).is_ok_and(|choice| fused.description(&choice, c).is_ok())).count();
        assert_eq!(plain > 0, tf32);
        // A sum of 40 products, each factor with 10 bits of fraction.
        let tolerances = sdfg::tolerance::unit_tolerance(&program, &unit)?;
        assert_eq!(tolerances["y"].stored > sdfg::tolerance::TF32, tf32);
    }
    Ok(())
}

/// What tensor cores bring is measured: beside a product stands the same on plain units, by the library's own choice. Not where
/// plain units multiply anyway, nor beside an epilogue.
#[test]
fn tensor_cores_are_held_against_plain_units() -> Result<(), Failure> {
    let product = || {
        let (w, x) = (Operand::new("a", "w", &["u", "i"]), Operand::new("b", "x", &["i", "b", "j"]));
        let op = Op::Contraction { scale: c(1.0) };
        let indices = ["u", "b", "j", "i"].map(|d| (d.to_string(), d.to_string())).into_iter().collect();
        let outputs = vec![Operand::new("out", "y", &FULL)];
        let operation = Operation { name: "y".into(), op, indices, inputs: vec![w, x], outputs, pass: Direction::Forward, origin: None };
        Case { unit: Unit::Operation(operation), ..case(|_| (), vec![]) }
    };
    for (Case { mut program, unit }, dtype, expected) in
        [(product(), Dtype::Bf16, true), (product(), Dtype::F32, false), (bias_relu(), Dtype::Bf16, false)]
    {
        for container in program.containers.values_mut().filter(|c| !c.dims.is_empty()) {
            container.dtype = dtype;
        }
        let space = CublasLtSpace::new(FusedContraction::of(&KernelSpec::new(&program, &unit)?)?, Arc::new(Everything));
        // The third algorithm of the first description.
        let found = space.control(2);
        assert_eq!(found.is_some(), expected, "{dtype:?} {found:?}");
        let Some(plain) = found else { continue };
        let mut same = space.config(2);
        same.knobs = same.knobs.with("units", "plain").with("algorithm", 0);
        assert_eq!(space.config(plain), same);
        assert_eq!(space.control(plain), None, "what runs on plain units has no other");
    }
    Ok(())
}

/// The library takes every epilogue, and notes which it is.
#[test]
fn the_library_takes_every_epilogue() -> Result<(), Failure> {
    if let Err(missing) = CudaLibrary::CublasLt.load() {
        println!("skipped: {missing}");
        return Ok(());
    }
    // The numbers of the manual; sums of an operand are those of the other one where operands are exchanged.
    for ((case, want), numbers) in cases().into_iter().zip([&[6][..], &[164], &[208], &[256, 512], &[134], &[152]]) {
        let spec = KernelSpec::new(&case.program, &case.unit)?;
        let fused = FusedContraction::of(&spec)?;
        let space = CublasLtSpace::new(fused.clone(), Arc::new(Everything));
        let mut found = std::collections::BTreeSet::new();
        for number in (0..space.count()).step_by(128) {
            let config = space.config(number);
            let choice = CublasLtConfig::of(&fused.problem, &config)?;
            let Ok(description) = fused.description(&choice, &config) else { continue };
            let descriptors = Descriptors::new(&description, fused.problem.types, Units::Any)?;
            drop(descriptors.address([64, 128])?);
            let (epilogue, leading) = descriptors.noted_epilogue()?;
            assert_eq!(leading, if want.2 { description.d.leading as i64 } else { 0 });
            found.insert(epilogue);
        }
        assert!(!found.is_empty() && found.iter().all(|n| numbers.contains(n)), "{want:?}: {found:?}");
    }
    Ok(())
}

/// Heads and positions of a batch at strides of their own: all products at once by address, one launch for each head otherwise.
#[test]
fn batches_by_address_where_strides_do_not_describe_them() -> Result<(), Failure> {
    let mut p = program(&[("b", 3), ("h", 2), ("j", 4), ("k", 5), ("p", 3)]);
    let dims = [("q", ["p", "h", "b", "k"]), ("r", ["p", "h", "b", "j"]), ("s", ["h", "b", "j", "k"])];
    for (name, dims) in &dims {
        heap(&mut p, name, dims, if *name == "s" { Role::Output } else { Role::Input });
    }
    let operand = |connector: &str, n: usize| Operand::new(connector, dims[n].0, &dims[n].1);
    let operation = Operation {
        name: "scores".into(),
        op: Op::Contraction { scale: c(0.5) },
        indices: ["h", "b", "j", "k", "p"].map(|i| (i.to_string(), i.to_string())).into_iter().collect(),
        inputs: vec![operand("a", 0), operand("b", 1)],
        outputs: vec![operand("out", 2)],
        pass: Direction::Forward,
        origin: None,
    };
    let reference = Reference::new(&p, &Unit::Operation(operation))?;
    let (fused, pool) = (FusedContraction::of(&reference.spec)?, Pool::new(1)?);
    let device = ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into());
    let config = |q: [&str; 4], batching: Batching| KernelConfig {
        layouts: [("q", q), ("r", ["h", "b", "j", "p"]), ("s", ["h", "b", "j", "k"])].map(|(d, l)| (d.to_string(), Layout::of(&l))).into(),
        knobs: Knobs::default().with("batching", batching),
    };
    for (batching, launches, batch) in [(Batching::Pointers, 1, 6), (Batching::Strided, 2, 3), (Batching::Launches, 6, 1)] {
        let config = config(["b", "h", "k", "p"], batching);
        let description = fused.description(&CublasLtConfig::of(&fused.problem, &config)?, &config)?;
        assert_eq!((description.launches.len(), description.batch), (launches, batch), "{batching}");
        let (ratio, what) = reference.ratio(&reference.run(&*device.compile(&reference.spec, &config)?, &config, &pool)?);
        assert!(ratio <= 1.0, "{batching}: {what}");
    }
    let refused = device.compile(&reference.spec, &config(["h", "b", "k", "p"], Batching::Pointers)).err().map(|e| e.to_string());
    assert!(refused.is_some_and(|why| why.contains("a stride describes its batch")));
    Ok(())
}
