//! Programs for devices that fuse contractions in some forms only: products with the epilogues of cuBLASLt.

use kernels::device::Device;
use kernels::pool::Pool;
use kernels::target::cuda::cublaslt::{Bias, EpilogueFunction, FusedContraction};
use kernels::target::shim::ShimDevice;
use kernels::{AlignedBuffer, ArgumentAccess, ConfigSpace, KernelSpec, RunContext};
use ndarray::{ArrayD, IxDyn};
use recipes::load::{Overrides, Recipe, load_str};
use recipes::pipeline::oracle::operators::operators;
use recipes::pipeline::oracle::small_sizes::{with_small_sizes, with_small_sizes_for};
use recipes::pipeline::oracle::tensors::{random_inputs, results};
use recipes::pipeline::variants::gemm_fusion::GemmFusion;
use recipes::pipeline::variants::programs::programs_on;
use recipes::pipeline::variants::rewriting::Rewriting;
use recipes::pipeline::variants::table::VariantId;
use recipes::pipeline::variants::variant::Variant;
use sdfg::interpret::{Run, Tensors, interpret, interpret_unit};
use sdfg::tolerance::{compare, unit_tolerance};
use sdfg::{Dtype, Layout, Unit, random};
use std::collections::BTreeSet;
use std::sync::Arc;
use transforms::FusionKind;

const GPT2: &str = include_str!("../../gpt2-decoder.yaml");
const MLP: &str = include_str!("../../mlp.yaml");
const RUN: Run = Run { seed: 3, step: 1, dropout: true };

fn recipe(text: &str, dtype: Dtype) -> Recipe {
    load_str("test.yaml", text, Overrides { dtype: Some(dtype), ..Overrides::default() }).expect("a recipe")
}

fn composed(recipe: &Recipe) -> Variant {
    GemmFusion::of(&Arc::new(Rewriting::new(recipe, false, Some(FusedContraction::has))), VariantId::LibEpilogue, &[])
        .and_then(|c| c.fused(&|_| true))
        .expect("a composed program")
}

type EpilogueDesc = (Option<EpilogueFunction>, Option<Bias>, bool);

/// The epilogue of each such kernel: the function, the vector, whether there is an auxiliary matrix.
fn epilogues(variant: &Variant) -> Vec<(String, EpilogueDesc)> {
    let units = variant.program.units();
    let fused = units.iter().filter_map(|(_, _, unit)| {
        let spec = KernelSpec::new(&variant.program, unit).expect("a kernel");
        let epilogue = FusedContraction::of(&spec).ok()?.epilogue?;
        Some((unit.name().to_string(), (epilogue.function, epilogue.bias.map(|(bias, _)| bias), epilogue.aux.is_some())))
    });
    fused.collect()
}

/// The number of kernels with this epilogue.
fn count(variant: &Variant, wanted: EpilogueDesc) -> usize {
    epilogues(variant).iter().filter(|(_, ending)| *ending == wanted).count()
}

/// Checks that the fused program computes the same as its operators.
fn means_the_same(recipe: &Recipe, variant: &Variant) {
    let operators = with_small_sizes(&operators(recipe).expect("operators").0);
    let program = with_small_sizes(&variant.program);
    assert_eq!(sdfg::validate::validate(&program), vec![]);
    let given = random_inputs(&operators, 3).expect("inputs");
    let want = interpret(&operators, &given, &RUN).expect("operators");
    let got = interpret(&program, &given, &RUN).expect("a program");
    for container in results(&operators) {
        let (want, got) = (&want[&container.name], &got[&container.name]);
        let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
        let close = want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e4 * f64::EPSILON * scale);
        assert!(close, "`{}`", container.name);
    }
}

/// Configurations spread over a space, each with the first or the second algorithm, which is the last knob.
fn sampled(space: &dyn ConfigSpace) -> impl Iterator<Item = u64> {
    let algorithms = space.knobs().last().copied().unwrap_or(1);
    let others = space.count() / algorithms;
    (0..20_000u64).map(move |n| n.wrapping_mul(2_654_435_761) % others * algorithms + n % 2)
}

/// Runs every kernel with an epilogue in a few configurations, as cuBLASLt would, against the oracle.
fn equals_the_oracle(variant: &Variant) -> usize {
    let device = ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into());
    let (pool, mut ran) = (Pool::new(1).expect("a worker"), 0);
    let mut small = with_small_sizes(&variant.program);
    // Columns of an auxiliary matrix begin at multiples of eight elements, or of 128 bits.
    let bits = small.containers.values().any(|c| c.dtype == Dtype::Bit);
    small.sizes.values_mut().for_each(|size| *size = (*size / 4 + 1) * if bits { 128 } else { 8 });
    let mut seen = BTreeSet::new();
    for (_, _, unit) in small.units() {
        let spec = KernelSpec::new(&small, &unit).expect("a kernel");
        if !matches!(unit, Unit::Scope(_)) || !FusedContraction::has(&spec) || !seen.insert(spec.key()) {
            continue;
        }
        let mut given = Tensors::new();
        for argument in spec.arguments().iter().filter(|a| a.access == ArgumentAccess::Read) {
            let shape = spec.shape(&argument.data).expect("a shape");
            let values = random::tensor(5, &argument.data, shape.iter().product()).into_iter().map(|v| argument.dtype.rounded(v)).collect();
            given.insert(argument.data.clone(), ArrayD::from_shape_vec(IxDyn(&shape), values).expect("an array"));
        }
        let mut want = given.clone();
        interpret_unit(&small, &unit, &mut want, &RUN).expect("the oracle");
        let tolerances = unit_tolerance(&small, &unit).expect("tolerances");
        let space = device.space(&spec).expect("a space");
        let fits = |n: &u64| space.predicted_cost(*n).is_finite();
        for config in sampled(&*space).filter(fits).map(|n| space.config(n)).take(2) {
            let layout = |data: &str| config.layouts.get(data).cloned().unwrap_or_else(|| Layout::row_major(&spec.containers[data]));
            let mut buffers = Vec::new();
            for argument in spec.arguments() {
                let (container, shape) = (&spec.containers[&argument.data], spec.shape(&argument.data).expect("a shape"));
                let mut buffer = AlignedBuffer::of(container, &shape, &layout(&argument.data)).expect("memory");
                match given.get(&argument.data) {
                    Some(array) => buffer.pack(container, &layout(&argument.data), array).expect("values"),
                    None => buffer.as_mut_slice().fill(0xff),
                }
                buffers.push(buffer);
            }
            let kernel = device.compile(&spec, &config).expect("a kernel");
            let pointers: Vec<*mut u8> = buffers.iter_mut().map(AlignedBuffer::as_mut_ptr).collect();
            let context = RunContext { seed: RUN.seed, step: RUN.step, dropout: RUN.dropout, pool: &pool, deadline: None, parameters: 0 };
            // SAFETY: one buffer for each argument, in the configuration's layouts.
            unsafe { kernel.run(&pointers, &context) }.expect("a run");
            for (argument, buffer) in spec.arguments().iter().zip(&buffers).filter(|(a, _)| a.access == ArgumentAccess::Write) {
                let (container, shape) = (&spec.containers[&argument.data], spec.shape(&argument.data).expect("a shape"));
                let got = buffer.unpack(container, &layout(&argument.data), &shape).expect("values");
                let found = compare(&got, &want[&argument.data], 1.0, &tolerances[&argument.data]);
                assert!(found.passes(), "`{}` of `{}` under {config}: {found:?}", argument.data, spec.name);
            }
            ran += 1;
        }
    }
    ran
}

#[test]
fn a_decoder_in_f32() {
    let recipe = recipe(GPT2, Dtype::F32);
    let variant = composed(&recipe);
    means_the_same(&recipe, &variant);
    let all = epilogues(&variant);
    // Backward reads GELU's argument, and the gradient of its bias is an epilogue too.
    assert_eq!(count(&variant, (Some(EpilogueFunction::Gelu), Some(Bias::Added), true)), 1, "{all:#?}");
    assert_eq!(count(&variant, (Some(EpilogueFunction::GeluGradient), Some(Bias::OfResult), true)), 1, "{all:#?}");
    // Queries, keys, values and the two projections behind them.
    assert_eq!(count(&variant, (None, Some(Bias::Added), false)), 5, "{all:#?}");
    // Gradients of other biases, in kernels of the weights' gradients.
    let beside = count(&variant, (None, Some(Bias::OfA), false)) + count(&variant, (None, Some(Bias::OfB), false));
    assert!(beside >= 2, "{all:#?}");
    assert!(equals_the_oracle(&variant) >= all.len(), "{all:#?}");
}

/// The library requires biases in the type of the result: they are cast, and gradients in f32 remain next to results in f32.
#[test]
fn a_decoder_in_f16() {
    let recipe = recipe(GPT2, Dtype::F16);
    let variant = composed(&recipe);
    means_the_same(&recipe, &variant);
    let all = epilogues(&variant);
    assert!(variant.program.containers.contains_key("b1.f16"), "{:?}", variant.program.containers.keys());
    assert_eq!(count(&variant, (Some(EpilogueFunction::Gelu), Some(Bias::Added), true)), 1, "{all:#?}");
    assert_eq!(count(&variant, (Some(EpilogueFunction::GeluGradient), None, true)), 1, "{all:#?}");
    assert!(equals_the_oracle(&variant) >= all.len(), "{all:#?}");
}

#[test]
fn only_epilogues_that_the_library_computes_exactly() {
    let erf = composed(&recipe(&GPT2.replace("form: tanh", "form: erf"), Dtype::F32));
    let all = epilogues(&erf);
    assert!(all.iter().all(|(_, (function, ..))| function.is_none()) && !all.is_empty(), "{all:#?}");
    let relu = composed(&recipe(MLP, Dtype::F32));
    assert_eq!(count(&relu, (Some(EpilogueFunction::Relu), Some(Bias::Added), false)), 1, "{:#?}", epilogues(&relu));
    // Chains and rows have no form: every fused kernel is one product.
    assert!(erf.compositions.iter().chain(&relu.compositions).all(|c| c.contractions.len() == 1 && !c.kinds.is_empty()));
}

/// ReLU's gradient reads the sign of its argument, a bit for each element, which the preceding product has stored. With a dropout behind
/// the ReLU, the sign after the dropout serves both.
#[test]
fn signs_are_kept_as_bits() {
    let with_signs = |text: &str| {
        let recipe = recipe(text, Dtype::F32);
        let all = programs_on(&recipe, false, Some(FusedContraction::has)).expect("programs").variants;
        all.into_iter().find(|v| v.key.is(VariantId::LibReluBits)).map(|variant| (recipe, variant))
    };
    let (recipe, variant) = with_signs(MLP).expect("a program with signs");
    means_the_same(&recipe, &variant);
    let all = epilogues(&variant);
    assert_eq!(variant.program.containers["hidden.positive"].dtype, Dtype::Bit);
    assert_eq!(count(&variant, (Some(EpilogueFunction::Relu), Some(Bias::Added), true)), 1, "{all:#?}");
    assert_eq!(count(&variant, (Some(EpilogueFunction::ReluGradient), Some(Bias::OfResult), true)), 1, "{all:#?}");
    assert!(equals_the_oracle(&variant) >= all.len(), "{all:#?}");
    assert!(with_signs(&MLP.replace("relu(w1[u,i] * x[i,b] + b1[u])", "dropout(relu(w1[u,i] * x[i,b] + b1[u]), rate: 0.5)")).is_none());
}

/// Epilogues compete with separate kernels: as a program, and each by a trial of its own.
#[test]
fn each_epilogue_can_be_undone() {
    let recipe = recipe(MLP, Dtype::F32);
    let all = programs_on(&recipe, false, Some(FusedContraction::has)).expect("programs").variants;
    assert!(all.iter().any(|v| v.compositions.is_empty()) && all.iter().any(|v| v.key.is(VariantId::GemmFused)));
    let composing = GemmFusion::of(&Arc::new(Rewriting::new(&recipe, false, Some(FusedContraction::has))), VariantId::LibEpilogue, &[])
        .expect("a program");
    let (whole, made) = recipes::pipeline::choose::partial_fusion_search::trial(&composing, &Default::default()).expect("a mixture");
    let undoings: Vec<_> = made.undoings().into_iter().filter(|change| change.without.is_superset(&change.kinds)).collect();
    assert_eq!(undoings.len(), whole.compositions.len());
    for change in undoings {
        let (without, _) =
            recipes::pipeline::choose::partial_fusion_search::trial(&composing, &change.of(&made.fusion_set)).expect("a mixture");
        assert_eq!(without.compositions.len() + 1, whole.compositions.len(), "{change}");
    }
    assert!(whole.compositions.iter().any(|c| c.kinds.contains(&FusionKind::Beside)), "{:#?}", whole.compositions);
}

/// A check at small sizes obeys the alignment of an auxiliary matrix: at odd sizes no configuration could be measured.
#[test]
fn kept_arguments_are_checked_at_sizes_that_fit() {
    let recipe = recipe(GPT2, Dtype::F32);
    let variant = composed(&recipe);
    let device = ShimDevice::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into());
    let mut seen = 0;
    for (_, _, unit) in variant.program.units() {
        let spec = KernelSpec::new(&variant.program, &unit).expect("a kernel");
        let granules = device.granules(&spec);
        if granules.is_empty() {
            continue;
        }
        let small = with_small_sizes_for(&variant.program, std::iter::empty(), &granules, (&[], i64::MAX));
        assert!(small.sizes.iter().all(|(name, size)| *size <= variant.program.sizes[name] && *size < 20), "{:?}", small.sizes);
        let space = device.space(&spec).expect("a space");
        let config = sampled(&*space).find(|n| space.predicted_cost(*n).is_finite()).map(|n| space.config(n)).expect("a configuration");
        let at =
            |program| device.compile(&KernelSpec::new(program, &unit).expect("a kernel"), &config).map(|_| ()).map_err(|e| e.to_string());
        assert_eq!(at(&small), Ok(()), "{} under {config}", spec.name);
        let odd = KernelSpec::new(&with_small_sizes(&variant.program), &unit).expect("a kernel");
        assert!(!FusedContraction::has(&odd), "there it is no product with an epilogue: another kernel would be checked");
        seen += 1;
    }
    assert_eq!(seen, 2, "GELU and its gradient");
}

/// TF32 is allowed in every program of a recipe that allows it, and in no other.
#[test]
fn tf32_is_allowed_by_the_recipe_alone() -> Result<(), Box<dyn std::error::Error>> {
    for (said, allowed) in [("", false), ("tf32: false\n", false), ("tf32: true\n", true)] {
        let recipe = load_str("mlp.yaml", &format!("{said}{MLP}"), &[])?;
        let programs = programs_on(&recipe, false, Some(FusedContraction::has))?;
        for variant in &programs.variants {
            for (_, _, unit) in variant.program.units() {
                let spec = KernelSpec::new(&variant.program, &unit)?;
                if let Some(fused) = FusedContraction::wanted(&spec)? {
                    assert_eq!(fused.problem.types.tf32, allowed, "{}", spec.name);
                }
            }
        }
    }
    let wrong = load_str("mlp.yaml", &format!("tf32: fast\n{MLP}"), &[]).expect_err("no truth value");
    assert!(wrong.to_string().contains("`tf32`") && wrong.to_string().contains("true or false"), "{wrong}");
    Ok(())
}
