//! Contractions against a plain sum in f64: every mapping, library and way to use the cores.

use half::bf16;
use indexmap::IndexMap;
use kernels::contraction::{ContractionError, ContractionProblem, IndexGroup};
use kernels::pool::Pool;
use kernels::target::cpu::gemm_library::{ContractionConfig, ContractionKernel, ContractionSpace};
use kernels::{AlignedBuffer, Completion, ConfigSpace, Executable, KernelError, KernelSpec, RunContext};
use ndarray::ArrayD;
use proptest::prelude::*;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Bindings, Container, Direction, Dtype, Expr, Layout, Op, Operand, Operation, Role, Scalar, Sdfg, Unary, Unit, View};
use std::collections::BTreeSet;
use std::time::Instant;

/// A contraction written `phi,ibj->phbj`: one letter is one index along a dim of the same name.
struct Einsum {
    operation: Operation,
    containers: IndexMap<String, Container>,
    dims: IndexMap<String, Expr>,
    sizes: Bindings,
}

impl Einsum {
    fn new(text: &str, sizes: &[(char, i64)], dtype: Dtype, scale: Scalar) -> Self {
        let (inputs, out) = text.split_once("->").unwrap();
        let (a, b) = inputs.split_once(',').unwrap();
        let mut indices = IndexMap::new();
        let (mut containers, mut operands) = (IndexMap::new(), Vec::new());
        for (connector, data, subscripts) in [("a", "A", a), ("b", "B", b), ("out", "C", out)] {
            let names: Vec<String> = subscripts.chars().map(String::from).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            indices.extend(names.iter().map(|n| (n.to_string(), n.to_string())));
            containers.insert(data.to_string(), Container::new(data, &names, dtype, Role::Transient));
            operands.push(Operand::new(connector, data, &names));
        }
        let outputs = operands.split_off(2);
        let (name, op) = ("product".to_string(), Op::Contraction { scale });
        let operation = Operation { name, op, indices, inputs: operands, outputs, pass: Direction::Forward, origin: None };
        let sizes: Bindings = sizes.iter().map(|(c, n)| (c.to_string(), *n)).collect();
        let dims = sizes.keys().map(|s| (s.clone(), Expr::sym(s))).collect();
        Einsum { operation, containers, dims, sizes }
    }

    /// The same with an output of another type.
    fn into(mut self, out: Dtype) -> Self {
        self.containers["C"].dtype = out;
        self
    }

    fn problem(&self) -> Result<ContractionProblem, ContractionError> {
        ContractionProblem::new(&self.operation, &self.containers, &self.dims, &self.sizes)
    }

    fn space(&self) -> ContractionSpace {
        ContractionSpace::new(self.problem().unwrap(), 2)
    }
}

fn names(space: &ContractionSpace) -> Vec<&str> {
    space.tensors().iter().map(|t| t.data.as_str()).collect()
}

fn number(x: f64) -> Scalar {
    Scalar::Const(x)
}

/// Values in (−1, 1) that are exact in f32.
fn value(seed: u64, n: usize) -> f64 {
    let mut x = (n as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_mul(0xD1B5_4A32_D192_ED03);
    x ^= x >> 29;
    x = x.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 32;
    (x >> 43) as f64 / (1u64 << 20) as f64 - 1.0
}

/// Every point of a box, the last coordinate fastest.
fn points(shape: &[usize]) -> Vec<Vec<usize>> {
    let mut found = vec![vec![]];
    for extent in shape {
        found = found.iter().flat_map(|p: &Vec<usize>| (0..*extent).map(move |x| [&p[..], &[x]].concat())).collect();
    }
    found
}

/// What the contraction of such values, rounded to what the factors store, means in f64 and in the containers' own order:
/// values and sums of magnitudes, for the error bound.
fn naive(problem: &ContractionProblem) -> (Vec<f64>, Vec<f64>) {
    let extents: Vec<usize> = problem.indices.iter().map(|(_, _, e)| *e).collect();
    // How far an index moves in a tensor: an odometer over all indices then needs no lists.
    let strides = |t: usize| -> Vec<usize> {
        let tensor = &problem.tensors[t];
        // An index may stand twice.
        let along = |index: &String| -> usize {
            let places = (0..tensor.indices.len()).filter(|d| tensor.indices[*d] == *index);
            places.map(|d| tensor.shape[d + 1..].iter().product::<usize>()).sum()
        };
        problem.indices.iter().map(|(index, ..)| along(index)).collect()
    };
    let steps = [strides(0), strides(1), strides(2)];
    let given = |t: usize| -> Vec<f64> {
        let size = problem.tensors[t].shape.iter().product();
        (0..size).map(|n| problem.types.factor.rounded(value(t as u64 + 1, n))).collect()
    };
    let factors = [given(0), given(1)];
    let size = problem.tensors[2].shape.iter().product();
    let (mut values, mut magnitudes) = (vec![0.0; size], vec![0.0; size]);
    let (mut point, mut places) = (vec![0; extents.len()], [0; 3]);
    for _ in 0..extents.iter().product() {
        let term = problem.scale * factors[0][places[0]] * factors[1][places[1]];
        values[places[2]] += term;
        magnitudes[places[2]] += term.abs();
        for d in (0..extents.len()).rev() {
            point[d] += 1;
            (0..3).for_each(|t| places[t] += steps[t][d]);
            if point[d] < extents[d] {
                break;
            }
            point[d] = 0;
            (0..3).for_each(|t| places[t] -= steps[t][d] * extents[d]);
        }
    }
    (values, magnitudes)
}

/// Positions of a tensor's elements in its storage, in the containers' own order.
fn positions(problem: &ContractionProblem, t: usize, layout: &Layout) -> Vec<usize> {
    let tensor = &problem.tensors[t];
    let strides = layout.strides(&tensor.dims, &tensor.storage).unwrap();
    let position = |point: &Vec<usize>| (0..point.len()).map(|d| (point[d] + tensor.offsets[d]) * strides[d]).sum();
    points(&tensor.shape).iter().map(position).collect()
}

trait Number: Copy {
    fn from_f64(value: f64) -> Self;
    fn to_f64(self) -> f64;
}

impl Number for f32 {
    fn from_f64(value: f64) -> f32 {
        value as f32
    }

    fn to_f64(self) -> f64 {
        self.into()
    }
}

impl Number for f64 {
    fn from_f64(value: f64) -> f64 {
        value
    }

    fn to_f64(self) -> f64 {
        self
    }
}

impl Number for bf16 {
    fn from_f64(value: f64) -> bf16 {
        bf16::from_f64(value)
    }

    fn to_f64(self) -> f64 {
        self.into()
    }
}

struct Bench {
    space: ContractionSpace,
    problem: ContractionProblem,
    values: Vec<f64>,
    magnitudes: Vec<f64>,
    pool: rayon::ThreadPool,
}

impl Bench {
    fn new(einsum: &Einsum) -> Self {
        let problem = einsum.problem().unwrap();
        let (values, magnitudes) = naive(&problem);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(2).build().unwrap();
        Bench { space: einsum.space(), problem, values, magnitudes, pool }
    }

    /// Runs a choice on fresh tensors whose output holds NaN, and compares.
    ///
    /// Bound: each of the K products of an element and of the K − 1 sums is rounded once, however they are grouped; the
    /// scale and its multiplication are two more, and the sums over products of several steps multiply it in each step.
    /// So |error| ≤ γ(K + 3) · Σ|terms|, γ(n) = n·u / (1 − n·u), for any order of the sum, with the u of what is summed in;
    /// an output that stores less rounds the sum, which may be off by so much, once more.
    fn check<T: Number, O: Number>(&self, choice: &ContractionConfig) {
        let plan = self.space.plan(choice).unwrap();
        let layouts: Vec<&Layout> = self
            .problem
            .tensors
            .iter()
            .map(|t| &choice.layouts[self.space.tensors().iter().position(|c| c.data == t.data).unwrap()])
            .collect();
        let length = |t: usize| self.problem.tensors[t].storage.iter().product();
        let mut factors: Vec<Vec<T>> = (0..2)
            .map(|t| {
                let mut buffer = vec![T::from_f64(f64::NAN); length(t)];
                for (n, position) in positions(&self.problem, t, layouts[t]).into_iter().enumerate() {
                    buffer[position] = T::from_f64(value(t as u64 + 1, n));
                }
                buffer
            })
            .collect();
        let mut out = vec![O::from_f64(f64::NAN); length(2)];
        let tensors = [factors[0].as_mut_ptr().cast(), factors[1].as_mut_ptr().cast(), out.as_mut_ptr().cast()];
        // SAFETY: three separate buffers of the sizes that the problem states.
        assert!(unsafe { plan.run(tensors, &self.pool, &|| false) });
        let steps = (self.problem.reduction() + 3) as f64 * self.problem.types.factor.accumulator().roundoff();
        let gamma = steps / (1.0 - steps);
        let places = positions(&self.problem, 2, layouts[2]);
        for (n, position) in places.iter().enumerate() {
            let error = (out[*position].to_f64() - self.values[n]).abs();
            let sums = gamma * self.magnitudes[n];
            let stored = if self.problem.types.narrows() { self.problem.types.out.roundoff() } else { 0.0 };
            let bound = sums + stored * (self.values[n].abs() + sums);
            assert!(error <= bound, "{choice:?}: element {n} is off by {error:e}, allowed are {bound:e}");
        }
        for position in places {
            out[position] = O::from_f64(f64::NAN);
        }
        assert!(out.iter().all(|v| v.to_f64().is_nan()), "{choice:?} wrote outside its part");
    }

    /// All choices under the first combination of layouts, and every `stride`th of all.
    fn check_many<T: Number, O: Number>(&self, stride: usize) {
        let natural: Vec<Layout> = self.space.choice(0).unwrap().layouts;
        let first = (0..self.space.count()).map_while(|n| self.space.choice(n).ok().filter(|c| c.layouts == natural));
        let spread = (0..self.space.count()).step_by(stride).map(|n| self.space.choice(n).unwrap());
        for choice in first.chain(spread) {
            self.check::<T, O>(&choice);
        }
    }
}

/// Self-attention and feed-forward of a transformer layer, forward.
const FORWARD: [&str; 5] = ["phi,ibj->phbj", "phbk,phbj->hbjk", "whbk,hbjk->whbj", "whi,whbj->ibj", "ui,ibj->ubj"];

/// The gradients by `a` and by `b`.
fn gradients(text: &str) -> [String; 2] {
    let (inputs, out) = text.split_once("->").unwrap();
    let (a, b) = inputs.split_once(',').unwrap();
    [format!("{out},{b}->{a}"), format!("{a},{out}->{b}")]
}

fn layer() -> Vec<String> {
    FORWARD.iter().flat_map(|text| std::iter::once(text.to_string()).chain(gradients(text))).collect()
}

const SMALL: [(char, i64); 8] = [('p', 3), ('w', 3), ('h', 2), ('i', 5), ('b', 3), ('j', 4), ('k', 5), ('u', 7)];

#[test]
fn every_contraction_of_a_layer_agrees_in_every_mapping() {
    for text in layer() {
        let bench = Bench::new(&Einsum::new(&text, &SMALL, Dtype::F32, number(0.375)));
        // Prime, so that the samples do not fall in step with any radix.
        let stride = bench.space.count() as usize / 1000 + 1;
        bench.check_many::<f32, f32>(stride | 1);
    }
}

#[test]
fn sizes_beyond_the_small_paths_of_the_libraries_agree() {
    let sizes = [('p', 33), ('w', 33), ('h', 2), ('i', 70), ('b', 3), ('j', 37), ('k', 41), ('u', 67)];
    for text in layer() {
        let bench = Bench::new(&Einsum::new(&text, &sizes, Dtype::F32, number(1.0)));
        bench.check_many::<f32, f32>(bench.space.count() as usize / 5 + 1);
        let bench = Bench::new(&Einsum::new(&text, &sizes, Dtype::F64, number(-2.0)));
        bench.check_many::<f64, f64>(bench.space.count() as usize / 3 + 1);
    }
}

/// bf16 factors, with sums that are rounded to bf16 and with sums that are kept; a scale that bf16 cannot hold.
#[test]
fn narrow_factors_agree_in_every_mapping() {
    for text in layer() {
        let einsum = |sizes: &[(char, i64)], scale| Einsum::new(&text, sizes, Dtype::Bf16, number(scale));
        let bench = Bench::new(&einsum(&SMALL, 0.375));
        bench.check_many::<bf16, bf16>((bench.space.count() as usize / 300 + 1) | 1);
        let bench = Bench::new(&einsum(&SMALL, 0.3).into(Dtype::F32));
        bench.check_many::<bf16, f32>((bench.space.count() as usize / 300 + 1) | 1);
        let sizes = [('p', 33), ('w', 33), ('h', 2), ('i', 70), ('b', 3), ('j', 37), ('k', 41), ('u', 67)];
        let bench = Bench::new(&einsum(&sizes, 0.3));
        bench.check_many::<bf16, bf16>(bench.space.count() as usize / 5 + 1);
        let bench = Bench::new(&einsum(&sizes, 1.0).into(Dtype::F32));
        bench.check_many::<bf16, f32>(bench.space.count() as usize / 5 + 1);
    }
}

/// More rows than one widened strip has, and a longer side that is not the first one.
#[test]
fn narrow_products_of_several_strips_agree() {
    for (m, n, k) in [(5, 519, 17), (600, 7, 31)] {
        let sizes = [('m', m), ('n', n), ('k', k)];
        for text in ["mk,kn->mn", "mk,nk->nm"] {
            let bench = Bench::new(&Einsum::new(text, &sizes, Dtype::Bf16, number(0.7)));
            bench.check_many::<bf16, bf16>(11);
            let bench = Bench::new(&Einsum::new(text, &sizes, Dtype::Bf16, number(1.0)).into(Dtype::F32));
            bench.check_many::<bf16, f32>(11);
        }
    }
}

#[test]
fn products_with_vectors_and_scalars_agree() {
    for text in ["mk,k->m", "k,kn->n", "k,k->", "m,n->mn", "b,b->b", "bk,bk->b", "bm,b->bm", ",n->n"] {
        let sizes = [('m', 37), ('n', 19), ('k', 41), ('b', 5)];
        Bench::new(&Einsum::new(text, &sizes, Dtype::F32, number(1.0))).check_many::<f32, f32>(1);
        Bench::new(&Einsum::new(text, &sizes, Dtype::F64, number(1.0))).check_many::<f64, f64>(1);
        Bench::new(&Einsum::new(text, &sizes, Dtype::Bf16, number(1.0))).check_many::<bf16, bf16>(1);
        Bench::new(&Einsum::new(text, &sizes, Dtype::Bf16, number(1.0)).into(Dtype::F32)).check_many::<bf16, f32>(1);
    }
}

#[test]
fn extents_of_one_and_zero_are_no_special_case() {
    for (letter, extent) in [('b', 1), ('h', 1), ('j', 1), ('k', 1), ('p', 1), ('k', 0), ('p', 0), ('b', 0), ('j', 0)] {
        let sizes = SMALL.map(|(l, e)| (l, if l == letter { extent } else { e }));
        for text in ["phbk,phbj->hbjk", "hbjk,phbj->phbk", "phbj,ibj->phi"] {
            let bench = Bench::new(&Einsum::new(text, &sizes, Dtype::F32, number(1.0)));
            bench.check_many::<f32, f32>(bench.space.count() as usize / 200 + 1);
        }
    }
}

#[test]
fn views_are_read_and_written_in_place() {
    let mut einsum = Einsum::new("phi,ibj->phbj", &SMALL, Dtype::F32, number(1.0));
    einsum.sizes.extend([("P".to_string(), 8), ("I".to_string(), 9)]);
    einsum.dims.extend([("P".to_string(), Expr::sym("P")), ("I".to_string(), Expr::sym("I"))]);
    for (part, whole, dims, offset) in [("C", "stacked", ["P", "h", "b", "j"].as_slice(), 5), ("B", "wide", &["I", "b", "j"], 2)] {
        einsum.containers.insert(whole.into(), Container::new(whole, dims, Dtype::F32, Role::Transient));
        let mut offsets = vec![Expr::Int(0); dims.len()];
        offsets[0] = Expr::Int(offset);
        einsum.containers.get_mut(part).unwrap().view = Some(View { of: whole.into(), offsets });
    }
    let bench = Bench::new(&einsum);
    assert_eq!(names(&bench.space), ["A", "wide", "stacked"]);
    bench.check_many::<f32, f32>(7);
    // One element too far.
    einsum.containers.get_mut("C").unwrap().view.as_mut().unwrap().offsets[0] = Expr::Int(6);
    assert!(matches!(einsum.problem(), Err(ContractionError::View { .. })));
}

#[test]
fn an_index_that_stands_twice_in_an_operand_walks_its_diagonal() {
    let mut einsum = Einsum::new("kl,kn->n", &[('k', 5), ('l', 5), ('n', 3)], Dtype::F32, number(1.0));
    einsum.operation.inputs[0].subscripts = vec![Expr::sym("k"), Expr::sym("k")];
    Bench::new(&einsum).check_many::<f32, f32>(1);
}

#[test]
fn a_container_that_is_both_operands_has_one_layout() {
    let mut einsum = Einsum::new("mk,nk->mn", &[('m', 5), ('n', 5), ('k', 7)], Dtype::F32, number(1.0));
    einsum.operation.inputs[1].data = "A".into();
    let space = einsum.space();
    assert_eq!(names(&space), ["A", "C"]);
    // 2 · 2 layouts, one mapping, two libraries, two ways to use the cores.
    assert_eq!(space.count(), 4 * 4);
}

#[test]
fn the_scale_is_evaluated_under_the_sizes() {
    let scale = Scalar::Const(1.0) / Scalar::unary(Unary::Sqrt, Scalar::Index(Expr::sym("k")));
    let einsum = Einsum::new("mk,kn->mn", &[('m', 3), ('n', 2), ('k', 16)], Dtype::F64, scale);
    assert_eq!(einsum.problem().unwrap().scale, 0.25);
}

#[test]
fn what_is_no_matrix_product_is_refused_by_name() {
    let sizes = [('m', 3), ('n', 2), ('k', 4), ('s', 5)];
    let refusal = |text: &str, dtype| Einsum::new(text, &sizes, dtype, number(1.0)).problem().unwrap_err().to_string();
    assert!(refusal("mks,kn->mn", Dtype::F32).contains("sum(…, over: s)"));
    assert!(refusal("mk,kn->mns", Dtype::F32).contains("`s` stands in the output only"));
    assert!(refusal("mk,kn->mnn", Dtype::F32).contains("stands twice in the output `C`"));
    assert!(
        refusal("mk,kn->mn", Dtype::I32)
            .contains("types i32, i32, i32; matrix products exist for f64 or f32 throughout, or factors of bf16")
    );
    let mixed = Einsum::new("mk,kn->mn", &[('m', 2), ('k', 2), ('n', 2)], Dtype::F32, number(1.0)).into(Dtype::Bf16);
    assert!(mixed.problem().unwrap_err().to_string().contains("types f32, f32, bf16"));
    let scaled = Einsum::new("mk,kn->mn", &sizes, Dtype::F32, Scalar::input("x"));
    assert!(scaled.problem().unwrap_err().to_string().contains("the connector `x`"));
}

/// Triples of layouts that one cuBLAS call accepts, as the reference implementation of the paper enumerates them: rows and
/// columns of each matrix fused in the same order on both sides, a unit stride in each matrix, batches at a fixed distance.
#[test]
fn feasible_triples_are_as_many_as_in_the_paper() {
    let sizes = [('p', 64), ('h', 12), ('i', 768), ('b', 8), ('j', 128), ('k', 128), ('u', 3072), ('w', 64), ('c', 3)];
    let feasible = |text: &str| Einsum::new(text, &sizes, Dtype::F32, number(1.0)).space().mapped().feasible().unwrap().0;
    assert_eq!(feasible("ui,ibj->ubj"), 16);
    assert_eq!(feasible("phi,ibj->phbj"), 32);
    assert_eq!(feasible("whi,whbj->ibj"), 32);
    assert_eq!(feasible("phbk,phbj->hbjk"), 128);
    assert_eq!(feasible("whbk,hbjk->whbj"), 128);
    assert_eq!(feasible("cphi,ibj->cphbj"), 96);
}

#[test]
fn number_zero_is_the_plain_choice_and_numbers_wrap_around() {
    let sizes = [('p', 64), ('h', 12), ('i', 768), ('b', 8), ('j', 128)];
    let space = Einsum::new("phi,ibj->phbj", &sizes, Dtype::F32, number(1.0)).space();
    // 6 · 6 · 24 layouts, 3 sets of rows, 3 of columns, 1 of depth, 2 libraries, 2 ways to use the cores.
    assert_eq!(space.count(), 6 * 6 * 24 * 9 * 4);
    assert_eq!(space.config(0).to_string(), "A[p,h,i] B[i,b,j] C[p,h,b,j] library=gemm mapping=p,h/b,j/i threads=inside");
    assert!(space.matches_rule_of_thumb(&space.config(0)));
    assert_eq!(space.config(space.count() + 5), space.config(5));
}

#[test]
fn a_kernel_runs_a_configuration_on_its_arguments() {
    let einsum = Einsum::new("phbk,phbj->hbjk", &SMALL, Dtype::F32, number(0.5));
    let mut program = Sdfg::new("test");
    (program.sizes, program.dims, program.containers) = (einsum.sizes.clone(), einsum.dims.clone(), einsum.containers.clone());
    let spec = KernelSpec::new(&program, &Unit::Operation(einsum.operation.clone())).unwrap();
    let (space, problem, pool) = (ContractionSpace::of(&spec, 2).unwrap(), einsum.problem().unwrap(), Pool::new(2).unwrap());
    let (values, _) = naive(&problem);
    for n in (0..space.count()).step_by(9973) {
        let config = space.config(n);
        let mut buffers: Vec<AlignedBuffer> = Vec::new();
        for (t, argument) in spec.arguments().iter().enumerate() {
            let (container, layout) = (&spec.containers[&argument.data], &config.layouts[&argument.data]);
            let shape = spec.shape(&argument.data).unwrap();
            let elements: Vec<f64> = (0..shape.iter().product()).map(|n| if t < 2 { value(t as u64 + 1, n) } else { f64::NAN }).collect();
            let mut buffer = AlignedBuffer::of(container, &shape, layout).unwrap();
            buffer.pack(container, layout, &ArrayD::from_shape_vec(shape, elements).unwrap()).unwrap();
            buffers.push(buffer);
        }
        let kernel = ContractionKernel::new(&spec, &config, 2).unwrap();
        let pointers: Vec<*mut u8> = buffers.iter_mut().map(AlignedBuffer::as_mut_ptr).collect();
        let context = RunContext { seed: 0, step: 0, dropout: true, pool: &pool, deadline: None, parameters: 0 };
        // SAFETY: buffers made for the kernel's arguments in the configuration's layouts.
        assert_eq!(unsafe { kernel.run(&pointers, &context) }.unwrap(), Completion::Done);
        let out = buffers[2].unpack(&spec.containers["C"], &config.layouts["C"], &spec.shape("C").unwrap()).unwrap();
        // Three terms below 1/2 each: γ(6) · 3/2 bounds every error.
        let bound = 6.0 * Dtype::F32.roundoff() / (1.0 - 6.0 * Dtype::F32.roundoff()) * 1.5;
        assert!(out.iter().zip(&values).all(|(x, y)| (x - y).abs() <= bound), "{config}");
        // SAFETY: nothing is touched, because the number of arguments is wrong.
        assert!(matches!(unsafe { kernel.run(&pointers[..2], &context) }, Err(KernelError::Arguments { .. })));
        let late = RunContext { deadline: Some(Instant::now()), ..context };
        // SAFETY: as above.
        assert_eq!(unsafe { kernel.run(&pointers, &late) }.unwrap(), Completion::DeadlineExceeded);
    }
    let wrong = KernelConfig { knobs: Knobs::default().with("mapping", "p/j/k"), ..KernelConfig::default() };
    let message = ContractionKernel::new(&spec, &wrong, 2).unwrap_err().to_string();
    assert_eq!(message, "`product` has no knob setting `mapping=p/j/k`; it may be one of: k/j/p");
}

/// Exchanging the operands, or layouts of groups that are walked as one anyway, gives the same call.
#[test]
fn configurations_that_make_the_same_call_share_an_identity() {
    let identity = |text: &str| Einsum::new(text, &SMALL, Dtype::F32, number(1.0)).space().identity(0);
    assert_eq!(identity("ui,ibj->ubj"), "f32 gemm inside 12×7×5 a(1,12) b(1,5) c(1,12)");
    let space = Einsum::new("ui,ij->uj", &SMALL, Dtype::F32, number(1.0)).space();
    let distinct: BTreeSet<String> = (0..space.count()).map(|n| space.identity(n)).collect();
    // Of 2³ triples of layouts each is its own call; libraries and threads make 4 of each.
    assert_eq!(distinct.len(), 8 * 4);
    let bmm = Einsum::new("hbik,hbkj->hbij", &SMALL, Dtype::F32, number(1.0)).space();
    let distinct: BTreeSet<String> = (0..bmm.count()).map(|n| bmm.identity(n)).collect();
    assert!((distinct.len() as u64) < bmm.count());
}

#[test]
fn a_run_past_its_deadline_stops_before_the_next_product() {
    let bench = Bench::new(&Einsum::new("bmk,bkn->bmn", &[('b', 4), ('m', 3), ('n', 3), ('k', 3)], Dtype::F32, number(1.0)));
    let choice = bench.space.choice(0).unwrap();
    let mut buffers = [vec![1f32; 36], vec![1f32; 36], vec![7f32; 36]];
    let tensors = buffers.each_mut().map(|b| b.as_mut_ptr());
    let plan = bench.space.plan(&choice).unwrap();
    // SAFETY: three separate buffers of the sizes that the problem states.
    assert!(!unsafe { plan.run(tensors.map(<*mut f32>::cast), &bench.pool, &|| true) });
    assert!(buffers[2].iter().all(|x| *x == 7.0));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// Up to seven indices of any group and extent, each tensor's dims in any order, any configuration.
    #[test]
    fn any_einsum_agrees_in_any_configuration(
        indices in prop::collection::vec((0u8..4, 1i64..5), 1..7),
        orders in prop::array::uniform3(any::<u64>()),
        picks in prop::collection::vec(any::<u64>(), 8),
    ) {
        let groups = [IndexGroup::Batch, IndexGroup::Rows, IndexGroup::Columns, IndexGroup::Depth];
        let mut operands = [String::new(), String::new(), String::new()];
        let mut sizes = Vec::new();
        for (n, (group, extent)) in indices.iter().enumerate() {
            let letter = (b'a' + n as u8) as char;
            sizes.push((letter, *extent));
            let without = match groups[*group as usize] {
                IndexGroup::Batch => 3,
                IndexGroup::Rows => 1,
                IndexGroup::Columns => 0,
                IndexGroup::Depth => 2,
            };
            for (t, operand) in operands.iter_mut().enumerate().filter(|(t, _)| *t != without) {
                // More than four dims would have more permutations than a test has time for.
                prop_assume!(operand.len() < 4);
                operand.insert((orders[t] >> (4 * n)) as usize % (operand.len() + 1), letter);
            }
        }
        let text = format!("{},{}->{}", operands[0], operands[1], operands[2]);
        let bench = Bench::new(&Einsum::new(&text, &sizes, Dtype::F32, number(1.5)));
        for pick in picks {
            bench.check::<f32, f32>(&bench.space.choice(pick % bench.space.count()).unwrap());
        }
    }
}
