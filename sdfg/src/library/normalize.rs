//! Normalization by mean and variance over any set of indices: layer, batch, group, instance.
//!
//! The variance is the mean of squared deviations, never E\[x²\]−E\[x\]², which cancels. A first mean is off by the roundings of a long
//! sum: deviations from it add up to what it lacks, and mean and variance are corrected by that (Chan, Golub and LeVeque, 1983, the
//! corrected two-pass algorithm). So a constant row has exactly its value as mean, and is normalized to 0. Mean and reciprocal standard
//! deviation are outputs: the derivative reads them instead of computing them again.
//!
//! Flop per element follow Table III: 7 forward (sum, subtraction, square, sum, and multiply by rstd, scale, shift), 4
//! for scale and shift gradients (x̂ as one multiply-add, product, two sums), 9 for the input's.

use super::elementwise::{at, computation, indices};
use super::operator::{Field, FieldKind};
use super::reduce::{combined, container};
use super::softmax::statistic;
use super::*;
use crate::scalar::{Binary, Unary};
use crate::scope::Item;

/// `out = gamma · (x − mean) · rstd + beta`, statistics over `over`.
pub struct Normalize<'a> {
    pub over: &'a [String],
    pub eps: &'a f64,
}

impl Normalize<'_> {
    pub(super) const DEFINITION: OperatorSyntax = OperatorSyntax {
        keyword: "normalize",
        shape: &[FieldKind::Over, FieldKind::Number("eps")],
        build: |fields| Some(Op::Normalize { over: fields.over()?, eps: fields.number()? }),
    };
}

impl<'a> Operator<'a> for Normalize<'a> {
    fn definition(&self) -> &'static OperatorSyntax {
        &Self::DEFINITION
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::Over(self.over.to_vec()), Field::Number(*self.eps)]
    }

    fn label(&self) -> &'a str {
        "norm"
    }

    fn ports(&self) -> Ports {
        Ports { inputs: &["x"], outputs: &["out", "mean", "rstd"], optional_inputs: &["gamma", "beta"], ..Ports::default() }
    }

    fn flop(&self, operation: &Operation, program: &Sdfg) -> Expr {
        Expr::Int(7) * operation.points(program)
    }

    fn expand(&self, operation: &Operation, program: &Sdfg) -> Result<Expansion, OperatorError> {
        expand(operation, program, self.over, *self.eps)
    }

    fn differentiate(&self, forward: &Operation, _: &Sdfg, wanted: &WantedGradients) -> Result<Derivative, OperatorError> {
        derivative::normalize::differentiate(forward, self.over, wanted)
    }
}

/// The derivative of a normalization by `x`.
pub struct GradX<'a> {
    pub over: &'a [String],
}

impl GradX<'_> {
    pub(super) const DEFINITION: OperatorSyntax = OperatorSyntax {
        keyword: "normalize_grad_x",
        shape: &[FieldKind::Over],
        build: |fields| Some(Op::NormalizeGradX { over: fields.over()? }),
    };
}

impl<'a> Operator<'a> for GradX<'a> {
    fn definition(&self) -> &'static OperatorSyntax {
        &Self::DEFINITION
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::Over(self.over.to_vec())]
    }

    fn label(&self) -> &'a str {
        "norm dX"
    }

    fn ports(&self) -> Ports {
        Ports { inputs: &["x", "mean", "rstd", "dy"], outputs: &["dx"], optional_inputs: &["gamma"], ..Ports::default() }
    }

    fn flop(&self, operation: &Operation, program: &Sdfg) -> Expr {
        Expr::Int(9) * operation.points(program)
    }

    fn expand(&self, operation: &Operation, program: &Sdfg) -> Result<Expansion, OperatorError> {
        expand_grad_x(operation, program, self.over)
    }

    fn differentiate(&self, forward: &Operation, _: &Sdfg, _: &WantedGradients) -> Result<Derivative, OperatorError> {
        Err(derivative::second_derivative(forward))
    }
}

/// The derivative of a normalization by scale and shift.
pub struct GradW;

impl GradW {
    pub(super) const DEFINITION: OperatorSyntax =
        OperatorSyntax { keyword: "normalize_grad_w", shape: &[], build: |_| Some(Op::NormalizeGradW) };
}

impl<'a> Operator<'a> for GradW {
    fn definition(&self) -> &'static OperatorSyntax {
        &Self::DEFINITION
    }

    fn fields(&self) -> Vec<Field> {
        vec![]
    }

    fn label(&self) -> &'a str {
        "norm dW"
    }

    fn ports(&self) -> Ports {
        Ports { inputs: &["x", "mean", "rstd", "dy"], optional_outputs: &["dgamma", "dbeta"], ..Ports::default() }
    }

    fn flop(&self, operation: &Operation, program: &Sdfg) -> Expr {
        Expr::Int(4) * operation.points(program)
    }

    fn expand(&self, operation: &Operation, program: &Sdfg) -> Result<Expansion, OperatorError> {
        expand_grad_w(operation, program)
    }

    fn differentiate(&self, forward: &Operation, _: &Sdfg, _: &WantedGradients) -> Result<Derivative, OperatorError> {
        Err(derivative::second_derivative(forward))
    }
}

/// 1 / number of elements that a statistic is taken over.
fn reciprocal_count(operation: &Operation, program: &Sdfg, over: &[String]) -> Scalar {
    let sizes = operation.indices.iter().filter(|(name, _)| over.contains(name)).map(|(_, dim)| program.size_of(dim));
    Scalar::Const(1.0) / Scalar::Index(Expr::product(sizes))
}

fn read(connector: &str, operand: &Operand) -> (String, Memlet) {
    (connector.to_string(), operand.memlet())
}

fn expand(operation: &Operation, program: &Sdfg, over: &[String], eps: f64) -> Result<Expansion, OperatorError> {
    let (x, out) = (operation.need_input("x")?, operation.need_output("out")?);
    let (mean, rstd) = (operation.need_output("mean")?, operation.need_output("rstd")?);
    let (squares, row) = statistic(operation, program, over, &mean.data, "var")?;
    let (first, _) = statistic(operation, program, over, &mean.data, "first")?;
    let (drift, _) = statistic(operation, program, over, &mean.data, "drift")?;
    let reduced: Vec<&str> = over.iter().map(String::as_str).collect();
    let (each, reduce) = (indices(operation, program, &[]), indices(operation, program, &reduced));
    let kept: Vec<Index> = each.iter().filter(|i| !over.contains(&i.name)).cloned().collect();
    let share = reciprocal_count(operation, program, over);
    let scope = |suffix: &str, map: Vec<Index>, code: Scalar, reads: Vec<(String, Memlet)>, write: Memlet| {
        let name = format!("{}.{suffix}", operation.name);
        Scope::new(name.clone(), map, vec![Item::Tasklet(computation(operation, &name, code, reads, write))])
    };
    let deviation = Scalar::input("x") - Scalar::input("first");
    let (read_first, read_drift) = (("first".to_string(), at(&first.name, &row, None)), ("drift".to_string(), at(&drift.name, &row, None)));
    let left = Scalar::input("drift") * share.clone();
    let variance = Scalar::input("var") * share.clone() - left.clone() * left.clone();
    let mut normalized = (Scalar::input("x") - Scalar::input("mean")) * Scalar::input("rstd");
    let mut reads = vec![read("x", x), read("mean", mean), read("rstd", rstd)];
    if let Some(gamma) = operation.input("gamma") {
        normalized = normalized * Scalar::input("gamma");
        reads.push(read("gamma", gamma));
    }
    if let Some(beta) = operation.input("beta") {
        normalized = normalized + Scalar::input("beta");
        reads.push(read("beta", beta));
    }
    let scopes = vec![
        scope("first", reduce.clone(), Scalar::input("x") * share, vec![read("x", x)], at(&first.name, &row, Some(Combine::Sum))),
        scope(
            "drift",
            reduce.clone(),
            deviation.clone(),
            vec![read("x", x), read_first.clone()],
            at(&drift.name, &row, Some(Combine::Sum)),
        ),
        scope(
            "var",
            reduce,
            deviation.clone() * deviation,
            vec![read("x", x), read_first.clone()],
            at(&squares.name, &row, Some(Combine::Sum)),
        ),
        scope(
            "mean",
            kept.clone(),
            Scalar::input("first") + left,
            vec![read_first, read_drift.clone()],
            at(&mean.data, &mean.subscripts, None),
        ),
        scope(
            "rstd",
            kept,
            Scalar::unary(Unary::Rsqrt, Scalar::binary(Binary::Max, variance, Scalar::Const(0.0)) + Scalar::Const(eps)),
            vec![("var".into(), at(&squares.name, &row, None)), read_drift],
            at(&rstd.data, &rstd.subscripts, None),
        ),
        scope("apply", each, normalized, reads, at(&out.data, &out.subscripts, None)),
    ];
    Ok(Expansion { containers: vec![first, drift, squares], scopes })
}

/// x̂ = (x − mean)·rstd, and the memlets it reads.
fn normalized(operation: &Operation) -> Result<(Scalar, Vec<(String, Memlet)>), OperatorError> {
    let reads = vec![
        read("x", operation.need_input("x")?),
        read("mean", operation.need_input("mean")?),
        read("rstd", operation.need_input("rstd")?),
    ];
    Ok(((Scalar::input("x") - Scalar::input("mean")) * Scalar::input("rstd"), reads))
}

/// With g = gamma·dy: `dx = rstd · (g − mean(g) − x̂·mean(g·x̂))`.
fn expand_grad_x(operation: &Operation, program: &Sdfg, over: &[String]) -> Result<Expansion, OperatorError> {
    let (dy, dx) = (operation.need_input("dy")?, operation.need_output("dx")?);
    let (hat_code, hat_reads) = normalized(operation)?;
    let like = container(operation, program, &dx.data)?;
    let full = |suffix: &str| Container {
        dtype: like.dtype.accumulator(),
        ..like.like(program.fresh_name(&format!("{}.{suffix}", operation.name)))
    };
    let (hat, scaled) = (full("hat"), full("scaled"));
    let (mean_g, row) = statistic(operation, program, over, &dx.data, "mean_g")?;
    let (mean_gh, _) = statistic(operation, program, over, &dx.data, "mean_gh")?;
    let reduced: Vec<&str> = over.iter().map(String::as_str).collect();
    let (each, reduce) = (indices(operation, program, &[]), indices(operation, program, &reduced));
    let share = reciprocal_count(operation, program, over);
    let scope = |suffix: &str, map: &Vec<Index>, code: Scalar, reads: Vec<(String, Memlet)>, write: Memlet| {
        let name = format!("{}.{suffix}", operation.name);
        Scope::new(name.clone(), map.clone(), vec![Item::Tasklet(computation(operation, &name, code, reads, write))])
    };
    let (mut g, mut g_reads) = (Scalar::input("dy"), vec![read("dy", dy)]);
    if let Some(gamma) = operation.input("gamma") {
        g = g * Scalar::input("gamma");
        g_reads.push(read("gamma", gamma));
    }
    let read_hat = ("hat".to_string(), at(&hat.name, &dx.subscripts, None));
    let read_g = ("g".to_string(), at(&scaled.name, &dx.subscripts, None));
    let rstd = operation.need_input("rstd")?;
    let scopes = vec![
        scope("hat", &each, hat_code, hat_reads, at(&hat.name, &dx.subscripts, None)),
        scope("scaled", &each, g, g_reads, at(&scaled.name, &dx.subscripts, None)),
        scope("mean_g", &reduce, Scalar::input("g") * share.clone(), vec![read_g.clone()], at(&mean_g.name, &row, Some(Combine::Sum))),
        scope(
            "mean_gh",
            &reduce,
            Scalar::input("g") * Scalar::input("hat") * share,
            vec![read_g.clone(), read_hat.clone()],
            at(&mean_gh.name, &row, Some(Combine::Sum)),
        ),
        scope(
            "apply",
            &each,
            (Scalar::input("g") - Scalar::input("mean_g") - Scalar::input("hat") * Scalar::input("mean_gh")) * Scalar::input("rstd"),
            vec![
                read_g,
                read_hat,
                ("mean_g".into(), at(&mean_g.name, &row, None)),
                ("mean_gh".into(), at(&mean_gh.name, &row, None)),
                read("rstd", rstd),
            ],
            at(&dx.data, &dx.subscripts, None),
        ),
    ];
    Ok(Expansion { containers: vec![hat, scaled, mean_g, mean_gh], scopes })
}

/// `dgamma = Σ dy·x̂`, `dbeta = Σ dy`, over the indices that they lack. One map for each that is wanted.
fn expand_grad_w(operation: &Operation, program: &Sdfg) -> Result<Expansion, OperatorError> {
    let dy = operation.need_input("dy")?;
    let mut expansion = Expansion::default();
    for (connector, with_hat) in [("dgamma", true), ("dbeta", false)] {
        let Some(out) = operation.output(connector) else { continue };
        let kept: Vec<&str> = out.subscripts.iter().filter_map(Expr::as_sym).collect();
        let reduced: Vec<&str> = operation.indices.keys().map(String::as_str).filter(|i| !kept.contains(i)).collect();
        let (mut code, mut reads) = (Scalar::input("dy"), vec![read("dy", dy)]);
        if with_hat {
            let (hat, hat_reads) = normalized(operation)?;
            code = code * hat;
            reads.extend(hat_reads);
        }
        let name = format!("{}.{connector}", operation.name);
        let sum = |write: Memlet| {
            let body = computation(operation, &name, code, reads, write);
            Scope::new(name.clone(), indices(operation, program, &reduced), vec![Item::Tasklet(body)])
        };
        let made = combined(operation, program, &name, (out, Combine::Sum), &Scalar::Const(1.0), sum)?;
        expansion.containers.extend(made.containers);
        expansion.scopes.extend(made.scopes);
    }
    Ok(expansion)
}
