//! Every CUDA kernel that the pipeline generates for a shipped recipe, run on the CPU by the shim at small odd sizes, against the oracle.

use kernels::target::cuda::emit::Chip;
use kernels::target::cuda::templates::{source as cuda_source, space as cuda_space, specialized_dims};
use kernels::target::cuda::{CudaLibrary, Nvrtc};
use kernels::target::shim::{Shim, ShimRun};
use kernels::tiles;
use kernels::{AlignedBuffer, ArgumentAccess, ConfigSpace, KernelSpec};
use ndarray::ArrayD;
use rayon::prelude::*;
use recipes::load::{Overrides, load};
use recipes::pipeline::oracle::small_sizes::{with_small_sizes, with_small_sizes_for};
use recipes::pipeline::oracle::tensors::random_inputs;
use recipes::pipeline::variants::programs::{Programs, programs_on};
use recipes::pipeline::variants::table::VariantId;
use recipes::pipeline::variants::variant::Variant;
use sdfg::config::KernelConfig;
use sdfg::interpret::{Run, Tensors, interpret, interpret_unit};
use sdfg::tolerance::{Tolerance, compare, unit_tolerance};
use sdfg::{Dtype, Layout, Sdfg, Unit, random};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

type Failure = Box<dyn std::error::Error>;

const RUN: Run = Run { seed: 3, step: 2, dropout: true };
/// Configurations of each kernel: the best of a spread by predicted cost, and some of the others.
const PROMISING: usize = 1;
const OTHERS: u64 = 1;

fn configurations(space: &dyn ConfigSpace) -> Vec<KernelConfig> {
    let all = space.count();
    let spread = |count: u64| (0..count).map(move |n| ((n + 1) * 1_000_003 + n * n / 2 * 7919) % all);
    let mut promising: Vec<u64> = spread(100).collect();
    promising.sort_by(|a, b| space.predicted_cost(*a).total_cmp(&space.predicted_cost(*b)));
    promising.truncate(PROMISING);
    promising.into_iter().chain(spread(OTHERS)).map(|n| space.config(n)).collect()
}

/// A kernel with its inputs and the interpreter's results.
struct Reference {
    spec: KernelSpec,
    given: Tensors,
    want: Tensors,
    tolerances: BTreeMap<String, Tolerance>,
}

impl Reference {
    fn layout(&self, config: &KernelConfig, data: &str) -> Layout {
        config.layouts.get(data).cloned().unwrap_or_else(|| Layout::row_major(&self.spec.containers[data]))
    }

    fn buffers(&self, config: &KernelConfig) -> Result<Vec<AlignedBuffer>, Failure> {
        let mut buffers = Vec::new();
        for argument in self.spec.arguments() {
            let (container, layout) = (&self.spec.containers[&argument.data], self.layout(config, &argument.data));
            let mut buffer = AlignedBuffer::of(container, &self.spec.shape(&argument.data)?, &layout)?;
            match self.given.get(&argument.data) {
                Some(array) => buffer.pack(container, &layout, array)?,
                None => buffer.as_mut_slice().fill(0xff),
            }
            buffers.push(buffer);
        }
        Ok(buffers)
    }

    /// The worst error of all results in units of the tolerance.
    fn ratio(&self, config: &KernelConfig, buffers: &[AlignedBuffer]) -> Result<f64, Failure> {
        let mut worst = 0.0f64;
        for (argument, buffer) in self.spec.arguments().iter().zip(buffers).filter(|(a, _)| a.access == ArgumentAccess::Write) {
            let (container, layout) = (&self.spec.containers[&argument.data], self.layout(config, &argument.data));
            let got = buffer.unpack(container, &layout, &self.spec.shape(&argument.data)?)?;
            let found = compare(&got, &self.want[&argument.data], 1.0, &self.tolerances[&argument.data]).ratio;
            worst = if found.is_nan() { f64::INFINITY } else { worst.max(found) };
        }
        Ok(worst)
    }
}

/// Checks every generated kernel of a recipe, fused ones as well, with tensors of this type, and counts configurations.
fn checked(recipe: &str, dtype: Dtype) -> Result<usize, Failure> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe);
    let programs = programs_on(&recipes::load::load(&path, &[])?, false, Some(kernels::target::cuda::cublaslt::FusedContraction::has))?;
    checked_of(recipe, &programs.variants.iter().collect::<Vec<_>>(), Some(dtype), with_small_sizes, |_| true)
}

/// The same for some kernels of these programs at other sizes, with tensors of another type in place of f32.
fn checked_of(
    recipe: &str,
    variants: &[&Variant],
    retyped: Option<Dtype>,
    sized: fn(&Sdfg) -> Sdfg,
    which: fn(&KernelSpec) -> bool,
) -> Result<usize, Failure> {
    let separate = variants.first().ok_or("no program")?;
    let (mut seen, mut sources, mut cases) = (BTreeSet::new(), Vec::new(), Vec::new());
    for variant in variants {
        // A group has its types inside as well, so it is formed after the types are set.
        let is_grouped = variant.key.is(VariantId::GroupedGemm);
        let mut small = sized(if is_grouped { &separate.program } else { &variant.program });
        for container in small.containers.values_mut().filter(|c| c.dtype == Dtype::F32) {
            container.dtype = retyped.unwrap_or(Dtype::F32);
        }
        if is_grouped {
            let grouped = transforms::run_pipeline(&small, &[&transforms::GroupedGemm], &transforms::DriverOptions::default())?;
            assert!(!grouped.steps.is_empty(), "a group");
            small = grouped.program;
        }
        // Statistics drawn at random do not match the drawn values, which makes values on chip too large for f16.
        let own = if retyped == Some(Dtype::F16) { interpret(&small, &random_inputs(&small, 5)?, &RUN)? } else { Tensors::new() };
        for (_, _, unit) in small.units() {
            let spec = KernelSpec::new(&small, &unit)?;
            // Only a library's products handle bits.
            let bits = spec.containers.values().any(|c| c.dtype == Dtype::Bit);
            if bits || !matches!(unit, Unit::Scope(_) | Unit::Nested(_)) || !seen.insert(spec.key()) || !which(&spec) {
                continue;
            }
            let case = |wanted: fn(f64) -> f64| -> Result<(Tensors, Tensors), Failure> {
                let mut given = Tensors::new();
                // Of a container that a kernel writes in part, the other elements stay.
                let given_to = |a: &&kernels::KernelArgument| a.access == ArgumentAccess::Read || unit.writes_part(&small, &a.data);
                for argument in spec.arguments().iter().filter(given_to) {
                    let shape = spec.shape(&argument.data)?;
                    let mut values: Vec<f64> = match own.get(&argument.data) {
                        Some(values) => values.iter().copied().collect(),
                        None => random::tensor(5, &argument.data, shape.iter().product()),
                    };
                    values.iter_mut().for_each(|v| *v = wanted(*v));
                    // Values for the interpreter can be stored exactly.
                    let mut buffer = AlignedBuffer::of(&spec.containers[&argument.data], &shape, &Layout::of(&argument.dims))?;
                    let array = ArrayD::from_shape_vec(shape.clone(), values)?;
                    buffer.pack(&spec.containers[&argument.data], &Layout::of(&argument.dims), &array)?;
                    let stored = buffer.unpack(&spec.containers[&argument.data], &Layout::of(&argument.dims), &shape)?;
                    given.insert(argument.data.clone(), stored);
                }
                let mut want = given.clone();
                interpret_unit(&small, &unit, &mut want, &RUN)?;
                Ok((given, want))
            };
            let (mut given, mut want) = case(|v| v)?;
            // The logarithm of a negative number is NaN, which cannot be compared.
            if want.values().flatten().any(|v| v.is_nan()) {
                (given, want) = case(f64::abs)?;
            }
            let reference = Reference { tolerances: unit_tolerance(&small, &unit)?, spec, given, want };
            // Tiles shrink in proportion, so that there are as many as at full size.
            let whole = KernelSpec::new(&variant.program, &unit)?;
            let space = cuda_space(&whole, Chip::HOPPER)?;
            let configs = configurations(space.as_ref()).into_iter().map(|c| tiles::scaled(&c, &whole, &reference.spec));
            let configs: Vec<KernelConfig> = configs.collect();
            for config in &configs {
                sources.push(
                    cuda_source(&reference.spec, config, Chip::HOPPER).map_err(|e| format!("{recipe}, {}: {e}", reference.spec.name))?,
                );
            }
            cases.push((reference, configs));
        }
    }
    let shim = Shim::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/kernels/shim").into());
    let mut kernels = shim.compile(sources)?.into_iter();
    let mut count = 0;
    for (reference, configs) in &cases {
        for (config, kernel) in configs.iter().zip(kernels.by_ref()) {
            let name = format!("{recipe}, {} under {config}", reference.spec.name);
            let mut buffers = reference.buffers(config)?;
            let run = ShimRun { run: RUN, order: count as u64 };
            let unwritten = kernel.run(&reference.spec, &mut buffers, &run).map_err(|e| format!("{name}: {e}"))?;
            let unwritten: Vec<_> = unwritten.iter().filter(|u| !reference.given.contains_key(&u.data)).collect();
            assert!(unwritten.is_empty(), "{name}: {unwritten:?}");
            let ratio = reference.ratio(config, &buffers)?;
            assert!(ratio <= 1.0, "{name}: {ratio} times the tolerance");
            count += 1;
        }
    }
    let dtype = retyped.map_or_else(String::new, |dtype| format!(" in {dtype}"));
    println!("{recipe}: {count} configurations of {} CUDA kernels{dtype} equal the oracle", cases.len());
    assert!(count > 0, "{recipe} has generated kernels");
    Ok(count)
}

/// Every shipped recipe, each with tensors of one type.
const RECIPES: [(&str, Dtype); 12] = [
    ("llama-decoder.yaml", Dtype::Bf16),
    ("bert-base-encoder.yaml", Dtype::F32),
    ("bert-large-encoder.yaml", Dtype::Bf16),
    ("bert-large-pytorch.yaml", Dtype::Bf16),
    ("gpt2-decoder.yaml", Dtype::F32),
    ("gru.yaml", Dtype::Bf16),
    ("mha-cross.yaml", Dtype::F16),
    ("mha-general.yaml", Dtype::Bf16),
    ("mha.yaml", Dtype::F32),
    ("classifier.yaml", Dtype::F32),
    ("mlp.yaml", Dtype::F32),
    ("softmax.yaml", Dtype::Bf16),
];
/// Convolutional networks: some hundred kernels each, all of the families that `kernels/tests/kernels/windows.rs` holds against the oracle.
const NETWORKS: [&str; 9] = [
    "googlenet.yaml",
    "inception-v3.yaml",
    "mobilenet-v1.yaml",
    "resnet-18-block.yaml",
    "resnet-18.yaml",
    "resnet-50.yaml",
    "squeezenet-1.0.yaml",
    "squeezenet-1.1.yaml",
    "vgg-19.yaml",
];
/// Workloads of "FusionStitching": kernels of the families above, and loops over time, which run on cores alone.
const WORKLOADS: [&str; 11] = [
    "bi-rnn.yaml",
    "dialog.yaml",
    "dyn-rnn.yaml",
    "figure-1.yaml",
    "logistic.yaml",
    "multi-interests.yaml",
    "nmt.yaml",
    "perceptron.yaml",
    "speech.yaml",
    "var-encoder.yaml",
    "word2vec.yaml",
];
/// The least number of configurations in all recipes together.
const ENOUGH: usize = 200;

#[test]
fn every_recipe_is_here() {
    let folder = std::fs::read_dir(env!("CARGO_MANIFEST_DIR")).expect("the recipes");
    let files = folder.flatten().map(|f| f.file_name().to_string_lossy().into_owned());
    let shipped: BTreeSet<String> = files.filter(|name| name.ends_with(".yaml")).collect();
    let known = RECIPES.map(|(name, _)| name).into_iter().chain(NETWORKS).chain(WORKLOADS);
    assert_eq!(shipped, known.map(String::from).collect());
}

#[test]
fn every_kernel_of_every_recipe_equals_the_oracle() {
    // Each recipe is one large file for the compiler, which uses one core.
    let counts = RECIPES.par_iter().with_max_len(1).map(|(recipe, dtype)| checked(recipe, *dtype).unwrap_or_else(|e| panic!("{e}")));
    let total: usize = counts.sum();
    println!("in all: {total} configurations of CUDA kernels of {} recipes equal the oracle", RECIPES.len());
    assert!(total >= ENOUGH, "{total} configurations");
}

/// Where rows and columns divide evenly, element-wise operands of a streamed tile come through the shared-memory ring buffer with the
/// factors.
#[test]
fn operands_of_streamed_tiles_come_with_the_factors() -> Result<(), Failure> {
    let sizes = [("b", 1), ("h", 2), ("j", 128), ("p", 16), ("i", 32), ("u", 32)].map(|(dim, size)| (dim.to_string(), size)).to_vec();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpt2-decoder.yaml");
    let model = load(&path, Overrides { sizes, dtype: Some(Dtype::Bf16), narrow: true, ..Overrides::default() })?;
    let programs = programs_on(&model, false, Some(kernels::target::cuda::cublaslt::FusedContraction::has))?;
    let swept: Vec<&Variant> = programs.variants.iter().filter(|v| v.key.is(VariantId::Streamed)).collect();
    let unit = swept[0].program.units().into_iter().map(|(_, _, unit)| unit).find(|unit| unit.name() == "d_qq").ok_or("d_qq")?;
    let spec = KernelSpec::new(&swept[0].program, &unit)?;
    let text = cuda_source(&spec, &configurations(cuda_space(&spec, Chip::HOPPER)?.as_ref())[0], Chip::HOPPER)?.text;
    assert!(text.contains("widen_pack(x") && text.contains("read_pack<W>(from, "), "{text}");
    checked_of("gpt2-decoder.yaml", &swept, None, Sdfg::clone, |_| true)?;
    Ok(())
}

/// Streamed chains with 16-bit tensors: attention and its gradient, also with causal masks.
#[test]
fn attention_is_walked_in_sweeps() -> Result<(), Failure> {
    let recipes = [
        ("bert-large-pytorch.yaml", Dtype::Bf16, true),
        ("bert-large-encoder.yaml", Dtype::F16, false),
        ("gpt2-decoder.yaml", Dtype::Bf16, true),
        ("mha-cross.yaml", Dtype::F16, true),
        ("llama-decoder.yaml", Dtype::Bf16, true),
    ];
    let checked = recipes.par_iter().with_max_len(1).map(|(recipe, dtype, narrow)| {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe);
        let model = load(&path, Overrides { dtype: Some(*dtype), narrow: *narrow, ..Overrides::default() }).expect("a recipe");
        let programs = programs_on(&model, false, Some(kernels::target::cuda::cublaslt::FusedContraction::has)).expect("programs");
        let swept: Vec<&Variant> =
            programs.variants.iter().filter(|v| matches!(v.key.id, VariantId::Streamed | VariantId::StreamedRecompute)).collect();
        let composed: Vec<&String> = swept.iter().flat_map(|v| &v.compositions).map(|c| &c.name).collect();
        println!("{recipe}: {composed:?}");
        assert!(composed.len() >= 2, "{recipe}: {composed:?}");
        // Dropout's result need not be written: backward recomputes it from scores, next to the gradient's own product.
        let again = swept.iter().find(|v| v.key.is(VariantId::StreamedRecompute));
        assert_eq!(again.is_some(), *recipe != "llama-decoder.yaml", "{recipe}");
        for (_, _, unit) in again.iter().flat_map(|v| v.program.units()).filter(|(_, _, unit)| unit.name() == "d_qq") {
            let members = &again.and_then(|v| v.compositions.iter().find(|c| c.name == "d_qq")).expect("a composition").members;
            assert!(["beta.again", "d_alpha", "d_qq"].iter().all(|m| members.iter().any(|n| n == m)), "{recipe}: {members:?}");
            let spec = KernelSpec::new(&again.expect("a program").program, &unit).expect("a kernel");
            assert!(spec.arguments().iter().all(|a| a.data != "alpha.softmax"), "{recipe}");
        }
        // The maximum of a row and the sum that follows it are found in one pass over the tiles, also with a mask.
        for (_, _, unit) in swept[0].program.units().into_iter().filter(|(_, _, unit)| unit.name() == "gamma") {
            let spec = KernelSpec::new(&swept[0].program, &unit).expect("a kernel");
            let config = cuda_space(&spec, Chip::HOPPER).expect("a space").config(0);
            let text = cuda_source(&spec, &config, Chip::HOPPER).expect("a source").text;
            assert!(text.contains("if (next_pass < 2)"), "{recipe}: {config}");
        }
        // The kernels next to them occur in every recipe.
        let in_tiles = |spec: &KernelSpec| cuda_space(spec, Chip::HOPPER).is_ok_and(|s| s.config(0).knobs.get("tile").is_some());
        checked_of(recipe, &swept, None, with_small_sizes, in_tiles).unwrap_or_else(|e| panic!("{e}"))
    });
    assert!(checked.sum::<usize>() > 0);
    Ok(())
}

/// The compiler; without it a test prints that it is skipped, and what to install.
fn nvrtc() -> Option<Nvrtc> {
    Nvrtc::find().inspect_err(|e| println!("skipped: NVRTC not found, {} ({e})", CudaLibrary::Nvrtc.advice())).ok()
}

/// The paper's layer at its own sizes, in the types of its recipe: the grouped kernel compiles without spills.
#[test]
fn weight_gradients_compile_as_one_launch() -> Result<(), Failure> {
    let Some(nvrtc) = nvrtc() else { return Ok(()) };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("bert-large-encoder.yaml");
    let recipe = load(&path, Overrides { dtype: Some(Dtype::Bf16), ..Overrides::default() })?;
    let programs = programs_on(&recipe, false, Some(kernels::target::cuda::cublaslt::FusedContraction::has))?;
    let program = &programs.variants.iter().find(|v| v.key.is(VariantId::GroupedGemm)).ok_or("a group")?.program;
    let unit = program.units().into_iter().find_map(|(_, _, unit)| matches!(unit, Unit::Nested(_)).then_some(unit)).ok_or("a group")?;
    let spec = KernelSpec::new(program, &unit)?;
    let source = cuda_source(&spec, &cuda_space(&spec, Chip::HOPPER)?.config(0), Chip::HOPPER)?;
    // A block computes 128 by 128 values of each gradient.
    assert_eq!((source.members.len(), source.grid), (6, 2 * 32 * 8 + 4 * 8 * 8));
    let compiled = nvrtc.compile(&spec.name, &source.text, 90)?;
    for r in &compiled.resources {
        println!("{}: {} registers, {} bytes spilled, {} bytes of shared memory", r.function, r.registers, r.spill_stores, source.shared);
        assert!(i64::from(r.registers) * source.threads <= 65536 && r.spill_stores == 0);
    }
    Ok(())
}

/// The best configuration of a kernel by predicted cost, under the recipe's order of dims.
fn most_promising(space: &dyn ConfigSpace) -> Result<KernelConfig, Failure> {
    // Knobs are the fastest digits.
    let numbers: Vec<u64> = (0..space.knobs().iter().product()).collect();
    let promises = space.predicted_costs(&numbers);
    let best = numbers.iter().zip(promises).min_by(|(_, a), (_, b)| a.total_cmp(b)).ok_or("no configuration")?;
    Ok(space.config(*best.0))
}

/// The layer in PyTorch's order of dims at its own sizes.
fn paper_layer() -> Result<Programs, Failure> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("bert-large-pytorch.yaml");
    let recipe = load(&path, Overrides { dtype: Some(Dtype::Bf16), narrow: true, ..Overrides::default() })?;
    Ok(programs_on(&recipe, false, Some(kernels::target::cuda::cublaslt::FusedContraction::has))?)
}

/// An index over keys runs along the queries of stacked projections: two names for one dim, and layouts use the first.
#[test]
fn a_second_name_is_the_dim_that_it_runs_along() -> Result<(), Failure> {
    let programs = paper_layer()?;
    let program = &programs.variants.iter().find(|v| v.key.to_string() == "stacked wq+wk+wv").ok_or("stacked projections")?.program;
    let units = program.units();
    let unit = units.iter().map(|(_, _, unit)| unit).find(|unit| unit.name() == "d_bq").ok_or("sums of projections' gradients")?;
    let spec = KernelSpec::new(program, unit)?;
    let config = most_promising(cuda_space(&spec, Chip::HOPPER)?.as_ref())?;
    let inner = config.layouts.get("d_qq.stack3").and_then(|l| l.innermost()).map(String::from);
    let strange: Vec<&str> = ["k", "j"].into_iter().filter(|index| config.knobs.get("vector") == Some(index)).collect();
    assert!(strange.is_empty() && inner.as_deref() == Some("p"), "{config}");
    Ok(())
}

/// The best of some configurations by predicted cost, in any layouts.
fn in_any_order(space: &dyn ConfigSpace) -> KernelConfig {
    let numbers: Vec<u64> = (0..SAMPLED).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % space.count()).collect();
    let ranked = numbers.iter().zip(space.predicted_costs(&numbers));
    space.config(ranked.min_by(|(_, a), (_, b)| a.total_cmp(b)).map_or(0, |(n, _)| *n))
}

/// Sums of three results next to rows of 768 values, where a block may have 128 registers for each thread or 255.
#[test]
fn sums_beside_rows_spill_nothing() -> Result<(), Failure> {
    let Some(nvrtc) = nvrtc() else { return Ok(()) };
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("gpt2-decoder.yaml");
    let recipe = load(&path, Overrides { dtype: Some(Dtype::Bf16), narrow: true, ..Overrides::default() })?;
    let program = programs_on(&recipe, false, Some(kernels::target::cuda::cublaslt::FusedContraction::has))?.variants[0].program.clone();
    let units = program.units();
    let unit = units.iter().map(|(_, _, unit)| unit).find(|unit| unit.name() == "d_bo").ok_or("the gradient of a normalization")?;
    let spec = KernelSpec::new(&program, unit)?;
    let best = in_any_order(cuda_space(&spec, Chip::HOPPER)?.as_ref());
    let compiled = nvrtc.compile(&spec.name, &cuda_source(&spec, &best, Chip::HOPPER)?.text, 90)?;
    assert!(
        compiled.resources.len() == 2 && compiled.resources.iter().all(|r| r.spill_stores == 0),
        "{:?} under {best}",
        compiled.resources
    );
    Ok(())
}

/// The layer in PyTorch's order of dims at its own sizes: the first configuration of each kernel needs no more than the registers.
#[test]
fn the_first_configurations_spill_nothing() -> Result<(), Failure> {
    let Some(nvrtc) = nvrtc() else { return Ok(()) };
    let programs = paper_layer()?;
    let program = &programs.variants[0].program;
    let mut checked = 0;
    for (_, _, unit) in program.units().into_iter().filter(|(_, _, unit)| matches!(unit, Unit::Scope(_))) {
        let spec = KernelSpec::new(program, &unit)?;
        let best = most_promising(cuda_space(&spec, Chip::HOPPER)?.as_ref())?;
        let compiled = nvrtc.compile(&spec.name, &cuda_source(&spec, &best, Chip::HOPPER)?.text, 90)?;
        for r in &compiled.resources {
            println!("{}, {}: {} registers, {} bytes spilled", spec.name, r.function, r.registers, r.spill_stores);
            assert!(r.spill_stores == 0, "{}: {} bytes under {}", spec.name, r.spill_stores, best);
        }
        checked += 1;
    }
    assert!(checked > 8, "{checked}");
    Ok(())
}

/// The paper's layer at its own sizes, in its own order of dims and in PyTorch's: the first configuration keeps neighbours of a mask in
/// neighbouring lanes, where one draw serves eight elements. Kernels do not favour the layer's own order: there the best configuration in
/// any order is taken.
#[test]
fn the_first_configurations_draw_along_their_masks() -> Result<(), Failure> {
    let mut drawing = Vec::new();
    for (recipe, in_its_order) in [("bert-large-encoder.yaml", false), ("bert-large-pytorch.yaml", true)] {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(recipe);
        let recipe = load(&path, Overrides { dtype: Some(Dtype::Bf16), narrow: true, ..Overrides::default() })?;
        let program =
            programs_on(&recipe, false, Some(kernels::target::cuda::cublaslt::FusedContraction::has))?.variants[0].program.clone();
        for (_, _, unit) in program.units().into_iter().filter(|(_, _, unit)| matches!(unit, Unit::Scope(_))) {
            let spec = KernelSpec::new(&program, &unit)?;
            let space = cuda_space(&spec, Chip::HOPPER)?;
            let best = if in_its_order { most_promising(space.as_ref())? } else { in_any_order(space.as_ref()) };
            let text = cuda_source(&spec, &best, Chip::HOPPER)?.text;
            let draws = |call: &str| text.lines().filter(|line| line.trim_start().starts_with(call)).count();
            let others = ["keep_line<false>(", "keep_row(", "keep_rows(", "keep_turn("].map(draws);
            assert_eq!(others, [0; 4], "{}: {best}", spec.name);
            drawing.extend((draws("keep_line<true>(") > 0).then(|| spec.name.clone()));
        }
    }
    // Backward redraws masks that no result shows which it reads anyway.
    let each = ["alpha", "norm1", "ff1", "y", "d_b2", "d_bo", "d_beta"];
    assert_eq!(drawing, [each, each].concat());
    Ok(())
}

/// Configurations among which the best by predicted cost is taken.
const SAMPLED: u64 = 20_000;

/// The paper's layer at its own sizes. At small sizes, except for dims whose sizes are constants in the code, the code is the same. So a
/// sweep checks the code that it times, and compiles it once.
#[test]
fn the_checked_code_is_the_timed_code() -> Result<(), Failure> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("bert-large-encoder.yaml");
    let recipe = load(&path, Overrides { dtype: Some(Dtype::Bf16), narrow: true, ..Overrides::default() })?;
    let programs = programs_on(&recipe, false, Some(kernels::target::cuda::cublaslt::FusedContraction::has))?;
    let program = &programs.variants[0].program;
    let mut counts: BTreeMap<String, (usize, usize)> = BTreeMap::new();
    for (_, _, unit) in program.units().into_iter().filter(|(_, _, unit)| matches!(unit, Unit::Scope(_))) {
        let whole = KernelSpec::new(program, &unit)?;
        let space = cuda_space(&whole, Chip::HOPPER)?;
        let mut numbers: Vec<u64> = (0..SAMPLED).map(|n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % space.count()).collect();
        let promises = space.predicted_costs(&numbers);
        let mut ranked: Vec<(f64, u64)> = promises.into_iter().zip(numbers.drain(..)).collect();
        ranked.sort_by(|(a, _), (b, _)| a.total_cmp(b));
        for (_, n) in ranked.into_iter().take(40) {
            let config = space.config(n);
            let written = specialized_dims(&whole, &config);
            assert_eq!(written.len(), 1, "{}: {config}", whole.name);
            let text = |spec: &KernelSpec| cuda_source(spec, &config, Chip::HOPPER).map(|source| source.text);
            let Ok(timed) = text(&whole) else { continue };
            let same = |most: i64| -> Result<bool, Failure> {
                let small = with_small_sizes_for(program, config.layouts.values(), &[], (&written, most));
                Ok(text(&whole.with_sizes(&small.sizes)?)? == timed)
            };
            let (checked, least) = (same(i64::MAX)?, same(1)?);
            // A pass over the whole attention matrix is too slow for the interpreter, unless all other dims are smallest.
            if ["alpha", "d_beta"].contains(&whole.name.as_str()) {
                assert_eq!(checked, least, "{}: {config}", whole.name);
            }
            let count = counts.entry(whole.name.clone()).or_default();
            count.0 += usize::from(checked);
            count.1 += 1;
        }
    }
    let (same, all) = counts.values().fold((0, 0), |(a, b), (c, d)| (a + c, b + d));
    println!("{same} of {all} texts: {counts:?}");
    assert!(all > 400 && same * 10 >= all * 9, "{same} of {all} texts: {counts:?}");
    Ok(())
}
