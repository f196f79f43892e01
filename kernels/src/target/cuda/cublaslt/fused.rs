//! Fused scopes that are a product with an epilogue of the library's.
//!
//! A scope is recognised if it computes exactly that, and refused otherwise: of GELU the tanh form is the library's, and its
//! auxiliary tensor is GELU's argument. That of ReLU is a container of bits, set where its argument is positive.

use crate::contraction::{ContractionProblem, IndexGroup, is_windowed};
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::target::cuda::cublaslt::config::CublasLtConfig;
use crate::target::cuda::cublaslt::description::Description;
use crate::target::cuda::cublaslt::epilogue::{Beside, Epilogue};
use crate::target::cuda::cublaslt::epilogue_desc::{Bias, EpilogueFunction};
use indexmap::IndexMap;
use sdfg::config::KernelConfig;
use sdfg::library::calculus::pullback;
use sdfg::{
    Binary, Class, Combine, Direction, Dtype, Expr, Fill, IndexKind, Memlet, Op, Operand, Operation, Scalar, Scope, Storage, Unary, Unit,
};
use std::collections::{BTreeMap, BTreeSet};

/// A contraction, alone or with an epilogue.
#[derive(Clone, Debug, PartialEq)]
pub struct FusedContraction {
    pub problem: ContractionProblem,
    pub epilogue: Option<Epilogue>,
}

impl FusedContraction {
    /// # Errors
    /// No contraction; a scope that is anything but a contraction with an epilogue of the library's.
    pub fn of(spec: &KernelSpec) -> Result<Self, KernelError> {
        let Unit::Scope(scope) = &spec.unit else { return Ok(FusedContraction { problem: ContractionProblem::of(spec)?, epilogue: None }) };
        let what = "it is no product with an epilogue that cuBLASLt has".into();
        recognised(spec, scope).ok_or(KernelError::Unsupported { kernel: spec.name.clone(), what })
    }

    /// Whether a unit is one.
    pub fn has(spec: &KernelSpec) -> bool {
        FusedContraction::of(spec).is_ok()
    }

    /// The product that the library is to do for a unit; `None` for a scope that is none.
    ///
    /// # Errors
    /// A contraction that is no matrix product.
    pub fn wanted(spec: &KernelSpec) -> Result<Option<Self>, KernelError> {
        match &spec.unit {
            Unit::Operation(o) if is_windowed(o) => Ok(None),
            Unit::Operation(o) if o.class() == Class::Contraction => FusedContraction::of(spec).map(Some),
            Unit::Scope(_) => Ok(FusedContraction::of(spec).ok()),
            _ => Ok(None),
        }
    }

    /// Dims that a unit's auxiliary matrix must have in multiples: any of them may be its columns.
    pub fn granules(spec: &KernelSpec) -> Vec<(String, i64)> {
        let epilogue = FusedContraction::wanted(spec).ok().flatten().and_then(|fused| fused.epilogue);
        let Some(Epilogue { function: Some(function), aux: Some(beside), .. }) = epilogue else { return vec![] };
        beside.dims().iter().map(|dim| (dim.clone(), function.column())).collect()
    }

    /// The description of the call under a configuration.
    ///
    /// # Errors
    /// As [`CublasLtConfig::description`] and [`Epilogue::ending`].
    pub fn description(&self, choice: &CublasLtConfig, config: &KernelConfig) -> Result<Description, KernelError> {
        let layouts = self.problem.layouts_of(config);
        let mut description = choice.description(&self.problem, layouts.each_ref())?;
        if let Some(epilogue) = &self.epilogue {
            let axes = self.problem.axes(layouts.each_ref())?;
            description.epilogue = Some(epilogue.ending(&description, &choice.mapping, &axes, &self.problem, config)?);
        }
        Ok(description)
    }

    /// Which arguments of the kernel stand beside the operands: vector, auxiliary matrix.
    pub fn beside(&self, spec: &KernelSpec) -> [Option<usize>; 2] {
        let position = |beside: &Beside| spec.arguments().iter().position(|a| a.data == beside.data);
        let epilogue = self.epilogue.as_ref();
        [epilogue.and_then(|e| position(&e.bias.as_ref()?.1)), epilogue.and_then(|e| position(e.aux.as_ref()?))]
    }
}

/// GELU in the library's form.
fn gelu(x: Scalar) -> Scalar {
    let cubic = Scalar::Const(0.044715) * x.clone() * x.clone() * x.clone();
    let slope = Scalar::Const((2.0 / std::f64::consts::PI).sqrt());
    Scalar::Const(0.5) * x.clone() * (Scalar::Const(1.0) + Scalar::unary(Unary::Tanh, slope * (x + cubic)))
}

/// No connector is called that.
fn value(data: &str) -> Scalar {
    Scalar::input(format!("@{data}"))
}

fn product() -> Scalar {
    Scalar::input("@")
}

/// A store of the scope: its place, and its value in terms of the product and of the operands.
struct Stored {
    data: String,
    indices: Vec<String>,
    code: Scalar,
}

fn names(memlet: &Memlet) -> Option<Vec<String>> {
    memlet.fill.is_none().then_some(())?;
    memlet.point()?.into_iter().map(|e| e.as_sym().map(str::to_string)).collect()
}

fn recognised(spec: &KernelSpec, scope: &Scope) -> Option<FusedContraction> {
    let heap = |data: &str| spec.containers.get(data).is_some_and(|c| c.storage == Storage::Heap);
    let (mut sum, mut inside) = (None, BTreeMap::new());
    let (mut stored, mut sums): (Vec<Stored>, Vec<Stored>) = (vec![], vec![]);
    let mut loads: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (indices, computation) in scope.computations() {
        let whole = |i: &&sdfg::Index| {
            let size = spec.size(&i.dim).ok().map(|s| s as i64);
            i.kind != IndexKind::Sequential && i.start == Expr::Int(0) && i.step == Expr::Int(1) && i.stop.eval(&spec.sizes).ok() == size
        };
        indices.iter().all(whole).then_some(())?;
        for (connector, write) in &computation.writes {
            let (_, code) = computation.tasklet.code.iter().find(|(c, _)| c == connector)?;
            let read = |name: &Scalar| match name {
                Scalar::Input(name) => computation.reads.iter().find(|(c, _)| c == name).map(|(_, m)| m).filter(|m| heap(&m.data)),
                _ => None,
            };
            if let (Scalar::Binary(Binary::Mul, x, y), Some(Combine::Sum), None) = (code, write.wcr, &sum)
                && let (Some(a), Some(b)) = (read(x), read(y))
            {
                sum = Some((indices.clone(), a.clone(), b.clone()));
                inside.insert(write.data.clone(), product());
                if heap(&write.data) {
                    stored.push(Stored { data: write.data.clone(), indices: names(write)?, code: product() });
                }
                continue;
            }
            let mut code = code.clone();
            for (connector, memlet) in &computation.reads {
                let known = inside.get(&memlet.data).cloned();
                if known.is_none() {
                    let indices = names(memlet)?;
                    (heap(&memlet.data) && *loads.entry(memlet.data.clone()).or_insert_with(|| indices.clone()) == indices).then_some(())?;
                }
                code = code.inline(connector, &known.unwrap_or_else(|| value(&memlet.data)));
            }
            match write.wcr {
                None => {
                    inside.insert(write.data.clone(), code.clone());
                    if heap(&write.data) {
                        stored.push(Stored { data: write.data.clone(), indices: names(write)?, code });
                    }
                }
                Some(Combine::Sum) if heap(&write.data) => sums.push(Stored { data: write.data.clone(), indices: names(write)?, code }),
                Some(_) => return None,
            }
        }
    }
    let (indices, a, b) = sum?;
    let types = |data: &str| spec.containers.get(data).map(|c| c.dtype);
    let (out, others) = result(stored, &|stored| types(&stored.data) == Some(Dtype::Bit))?;
    let (function, argument) = peeled(&out.code, &loads);
    let (scale, added) = summed(&argument)?;
    let mut epilogue = Epilogue { function: function.as_ref().map(|(f, _)| *f), bias: None, aux: None };
    if let Some(data) = &added {
        epilogue.bias = Some((Bias::Added, Beside::new(spec, data, loads.get(data)?)?));
    }
    match (function, others) {
        (Some((EpilogueFunction::GeluGradient | EpilogueFunction::ReluGradient, aux)), None) => {
            epilogue.aux = Some(Beside::new(spec, &aux, loads.get(&aux)?)?)
        }
        (Some((EpilogueFunction::Gelu, _)), Some(other)) if other.code == argument && other.indices.len() == out.indices.len() => {
            epilogue.aux = Some(Beside::new(spec, &other.data, &other.indices)?);
        }
        (Some((EpilogueFunction::Relu, _)), Some(other))
            if other.code == positive(argument) && other.indices.len() == out.indices.len() =>
        {
            epilogue.aux = Some(Beside::new(spec, &other.data, &other.indices)?);
        }
        (_, None) => {}
        _ => return None,
    }
    let gradient = matches!(epilogue.function, Some(EpilogueFunction::GeluGradient | EpilogueFunction::ReluGradient));
    if let [sum] = sums.as_slice() {
        let plain = added.is_none() && scale == Scalar::Const(1.0);
        let operand = |m: &Memlet| sum.code == value(&m.data) && epilogue.function.is_none();
        // The sum may walk its operand by names of its own.
        let renamed = |m: &Memlet| -> Option<Vec<String>> {
            let (own, theirs) = (loads.get(&m.data)?, names(m)?);
            sum.indices.iter().map(|i| own.iter().position(|o| o == i).map(|at| theirs[at].clone())).collect()
        };
        let (bias, indices) = match () {
            () if !plain => return None,
            () if sum.code == out.code && gradient => (Bias::OfResult, sum.indices.clone()),
            () if operand(&a) => (Bias::OfA, renamed(&a)?),
            () if operand(&b) => (Bias::OfB, renamed(&b)?),
            () => return None,
        };
        epilogue.bias = Some((bias, Beside::new(spec, &sum.data, &indices)?));
    } else if !sums.is_empty() {
        return None;
    }
    let beside: Vec<&str> = epilogue.bias.iter().map(|(_, b)| b).chain(&epilogue.aux).map(|b| b.data.as_str()).collect();
    // Nothing else is read, and types are the result's, or bits.
    let bits = epilogue.aux.as_ref().filter(|_| epilogue.function.is_some_and(EpilogueFunction::keeps_bits)).map(|aux| aux.data.as_str());
    let alike = |data: &str| types(data) == if bits == Some(data) { Some(Dtype::Bit) } else { types(&out.data) };
    let used = |data: &String| beside.contains(&data.as_str()) || [&a.data, &b.data].contains(&data);
    let some = epilogue.function.is_some() || epilogue.bias.is_some();
    (some && loads.keys().all(used) && beside.iter().all(|data| alike(data))).then_some(())?;
    let at = |connector: &str, data: &str, subscripts: &[&Expr], fill: Option<f64>| Operand {
        connector: connector.into(),
        data: data.into(),
        subscripts: subscripts.iter().map(|e| (*e).clone()).collect(),
        fill: fill.map(Fill),
    };
    let subscripts: Vec<Expr> = out.indices.iter().map(|i| Expr::sym(i.as_str())).collect();
    let operation = Operation {
        name: spec.name.clone(),
        op: Op::Contraction { scale },
        indices: indices.iter().map(|i| (i.name.clone(), i.dim.clone())).collect::<IndexMap<_, _>>(),
        inputs: vec![at("a", &a.data, &a.point()?, a.fill), at("b", &b.data, &b.point()?, b.fill)],
        outputs: vec![at("out", &out.data, &subscripts.iter().collect::<Vec<_>>(), None)],
        pass: Direction::Forward,
        origin: None,
    };
    let problem = ContractionProblem::within(spec, &operation).ok()?;
    placed(&problem, &epilogue).then_some(())?;
    Some(FusedContraction { problem, epilogue: Some(epilogue) })
}

/// Whether there is one product, the vector beside it has all of its rows or all of its columns, and columns of the auxiliary matrix
/// can begin where the library wants them.
fn placed(problem: &ContractionProblem, epilogue: &Epilogue) -> bool {
    let all = |wanted: IndexGroup| {
        let indices = problem.indices.iter().filter(|(_, group, extent)| *group == wanted && *extent != 1);
        indices.map(|(index, ..)| index.as_str()).collect::<BTreeSet<_>>()
    };
    let along = |beside: &Beside, group: IndexGroup| {
        let walked = |index: &&str| problem.indices.iter().any(|(i, _, extent)| i == index && *extent != 1);
        beside.indices().filter(walked).collect::<BTreeSet<_>>() == all(group)
    };
    let vector = epilogue.bias.as_ref().is_none_or(|(bias, beside)| match bias {
        Bias::OfA => along(beside, IndexGroup::Rows),
        Bias::OfB => along(beside, IndexGroup::Columns),
        Bias::Added | Bias::OfResult => along(beside, IndexGroup::Rows) || along(beside, IndexGroup::Columns),
    });
    let column = epilogue.function.filter(|_| epilogue.aux.is_some()).map_or(1, EpilogueFunction::column);
    let elements = |wanted: IndexGroup| -> i64 {
        problem.indices.iter().filter(|(_, group, _)| *group == wanted).map(|(_, _, extent)| *extent as i64).product()
    };
    let held = [IndexGroup::Rows, IndexGroup::Columns].into_iter().any(|side| elements(side) % column == 0);
    vector && held && all(IndexGroup::Batch).is_empty()
}

fn positive(x: Scalar) -> Scalar {
    Scalar::binary(Binary::Gt, x, Scalar::Const(0.0))
}

/// The result that is stored last, and the results before it; bits are no result.
fn result(mut stored: Vec<Stored>, bits: &dyn Fn(&Stored) -> bool) -> Option<(Stored, Option<Stored>)> {
    let mut out = stored.pop()?;
    let mut other = stored.pop();
    if let Some(before) = other.as_mut().filter(|_| bits(&out)) {
        std::mem::swap(before, &mut out);
    }
    stored.is_empty().then_some((out, other))
}

/// The function around an argument, with the tensor that it reads if it is a gradient.
fn peeled(code: &Scalar, loads: &BTreeMap<String, Vec<String>>) -> (Option<(EpilogueFunction, String)>, Scalar) {
    match code {
        Scalar::Binary(Binary::Max, x, zero) if **zero == Scalar::Const(0.0) => {
            return (Some((EpilogueFunction::Relu, String::new())), (**x).clone());
        }
        Scalar::Select(condition, value_there, zero) if **zero == Scalar::Const(0.0) && **value_there == product() => {
            if let Some(data) = loads.keys().find(|data| **condition == positive(value(data))) {
                return (Some((EpilogueFunction::ReluGradient, data.clone())), product());
            }
        }
        Scalar::Binary(Binary::Mul, half, _) => {
            if let Scalar::Binary(Binary::Mul, _, x) = &**half
                && gelu((**x).clone()) == *code
            {
                return (Some((EpilogueFunction::Gelu, String::new())), (**x).clone());
            }
        }
        _ => {}
    }
    let gradient = pullback(&gelu(Scalar::input("x")), "x", Scalar::input("dy")).inline("dy", &product());
    match loads.keys().find(|data| gradient.inline("x", &value(data)) == *code) {
        Some(data) => (Some((EpilogueFunction::GeluGradient, data.clone())), product()),
        None => (None, code.clone()),
    }
}

/// The scale of the product, and the term added to it.
fn summed(code: &Scalar) -> Option<(Scalar, Option<String>)> {
    let scaled = |code: &Scalar| match code {
        Scalar::Binary(Binary::Mul, x, scale) if **x == product() && scale.inputs().is_empty() => Some((**scale).clone()),
        other => (*other == product()).then_some(Scalar::Const(1.0)),
    };
    let data = |code: &Scalar| match code {
        Scalar::Input(name) => name.strip_prefix('@').filter(|name| !name.is_empty()).map(str::to_string),
        _ => None,
    };
    match code {
        Scalar::Binary(Binary::Add, x, y) => {
            let both = |x: &Scalar, y: &Scalar| Some((scaled(x)?, Some(data(y)?)));
            both(x, y).or_else(|| both(y, x))
        }
        other => Some((scaled(other)?, None)),
    }
}
