//! Softmax over any set of indices, by the row maximum, so that no exponential overflows; −∞ masks give exact zeros.
//!
//! Flop per element: 5 forward (maximum, subtraction, exponential, sum, division) and 4 backward (product, sum,
//! subtraction, product). With the dropout that follows it, these are the 6 and 5 of the paper's "scaled softmax".

use super::elementwise::{at, computation, indices};
use super::operator::{Field, FieldKind};
use super::reduce::container;
use super::*;
use crate::scalar::Unary;
use crate::scope::Item;

/// `out = exp(x − max x) / Σ exp(x − max x)` over `over`.
pub struct Softmax<'a> {
    pub over: &'a [String],
}

impl Softmax<'_> {
    pub(super) const DEFINITION: OperatorSyntax =
        OperatorSyntax { keyword: "softmax", shape: &[FieldKind::Over], build: |fields| Some(Op::Softmax { over: fields.over()? }) };
}

impl<'a> Operator<'a> for Softmax<'a> {
    fn definition(&self) -> &'static OperatorSyntax {
        &Self::DEFINITION
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::Over(self.over.to_vec())]
    }

    fn label(&self) -> &'a str {
        "softmax"
    }

    fn ports(&self) -> Ports {
        Ports { inputs: &["x"], outputs: &["out"], ..Ports::default() }
    }

    fn flop(&self, operation: &Operation, program: &Sdfg) -> Expr {
        Expr::Int(5) * operation.points(program)
    }

    fn expand(&self, operation: &Operation, program: &Sdfg) -> Result<Expansion, OperatorError> {
        expand(operation, program, self.over)
    }

    fn differentiate(&self, forward: &Operation, _: &Sdfg, wanted: &WantedGradients) -> Result<Derivative, OperatorError> {
        derivative::softmax::differentiate(forward, self.over, wanted)
    }
}

/// `dx = y · (dy − Σ dy·y)` over `over`.
pub struct SoftmaxGrad<'a> {
    pub over: &'a [String],
}

impl SoftmaxGrad<'_> {
    pub(super) const DEFINITION: OperatorSyntax = OperatorSyntax {
        keyword: "softmax_grad",
        shape: &[FieldKind::Over],
        build: |fields| Some(Op::SoftmaxGrad { over: fields.over()? }),
    };
}

impl<'a> Operator<'a> for SoftmaxGrad<'a> {
    fn definition(&self) -> &'static OperatorSyntax {
        &Self::DEFINITION
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::Over(self.over.to_vec())]
    }

    fn label(&self) -> &'a str {
        "softmax dX"
    }

    fn ports(&self) -> Ports {
        Ports { inputs: &["y", "dy"], outputs: &["dx"], ..Ports::default() }
    }

    fn flop(&self, operation: &Operation, program: &Sdfg) -> Expr {
        Expr::Int(4) * operation.points(program)
    }

    fn expand(&self, operation: &Operation, program: &Sdfg) -> Result<Expansion, OperatorError> {
        expand_grad(operation, program, self.over)
    }

    fn differentiate(&self, forward: &Operation, _: &Sdfg, _: &WantedGradients) -> Result<Derivative, OperatorError> {
        Err(derivative::second_derivative(forward))
    }
}

/// A statistic of an operation: a transient over the indices that are not in `over`, in the accumulator's type, and its
/// subscripts.
pub(super) fn statistic(
    operation: &Operation,
    program: &Sdfg,
    over: &[String],
    like: &str,
    suffix: &str,
) -> Result<(Container, Vec<Expr>), OperatorError> {
    let kept: Vec<(&String, &String)> = operation.indices.iter().filter(|(name, _)| !over.contains(name)).collect();
    let like = container(operation, program, like)?;
    let made = Container {
        dims: kept.iter().map(|(_, dim)| (*dim).clone()).collect(),
        dtype: like.dtype.accumulator(),
        ..like.like(program.fresh_name(&format!("{}.{suffix}", operation.name)))
    };
    Ok((made, kept.iter().map(|(name, _)| Expr::sym(name.as_str())).collect()))
}

fn expand(operation: &Operation, program: &Sdfg, over: &[String]) -> Result<Expansion, OperatorError> {
    let (x, out) = (operation.need_input("x")?, operation.need_output("out")?);
    let (top, row) = statistic(operation, program, over, &out.data, "max")?;
    let (sum, _) = statistic(operation, program, over, &out.data, "sum")?;
    let like = container(operation, program, &out.data)?;
    let powers = Container { dtype: like.dtype.accumulator(), ..like.like(program.fresh_name(&format!("{}.exp", operation.name))) };
    let reduced: Vec<&str> = over.iter().map(String::as_str).collect();
    let (each, reduce) = (indices(operation, program, &[]), indices(operation, program, &reduced));
    let scope = |suffix: &str, map: &Vec<Index>, code: Scalar, reads: Vec<(String, Memlet)>, write: Memlet| {
        let name = format!("{}.{suffix}", operation.name);
        Scope::new(name.clone(), map.clone(), vec![Item::Tasklet(computation(operation, &name, code, reads, write))])
    };
    let read = |connector: &str, data: &str, subscripts: &[Expr]| (connector.to_string(), at(data, subscripts, None));
    let scopes = vec![
        scope("max", &reduce, Scalar::input("x"), vec![("x".to_string(), x.memlet())], at(&top.name, &row, Some(Combine::Max))),
        scope(
            "exp",
            &each,
            Scalar::unary(Unary::Exp, Scalar::input("x") - Scalar::input("max")),
            vec![("x".to_string(), x.memlet()), read("max", &top.name, &row)],
            at(&powers.name, &out.subscripts, None),
        ),
        scope(
            "sum",
            &reduce,
            Scalar::input("exp"),
            vec![read("exp", &powers.name, &out.subscripts)],
            at(&sum.name, &row, Some(Combine::Sum)),
        ),
        scope(
            "div",
            &each,
            Scalar::input("exp") / Scalar::input("sum"),
            vec![read("exp", &powers.name, &out.subscripts), read("sum", &sum.name, &row)],
            at(&out.data, &out.subscripts, None),
        ),
    ];
    Ok(Expansion { containers: vec![top, powers, sum], scopes })
}

/// `dx = y · (dy − Σ dy·y)`.
fn expand_grad(operation: &Operation, program: &Sdfg, over: &[String]) -> Result<Expansion, OperatorError> {
    let (y, dy, dx) = (operation.need_input("y")?, operation.need_input("dy")?, operation.need_output("dx")?);
    let (dot, row) = statistic(operation, program, over, &dx.data, "dot")?;
    let reduced: Vec<&str> = over.iter().map(String::as_str).collect();
    let both = vec![("y".to_string(), at(&y.data, &y.subscripts, None)), ("dy".to_string(), at(&dy.data, &dy.subscripts, None))];
    let mut all = both.clone();
    all.push(("dot".to_string(), at(&dot.name, &row, None)));
    let dot_name = format!("{}.dot", operation.name);
    let sum = computation(operation, &dot_name, Scalar::input("y") * Scalar::input("dy"), both, at(&dot.name, &row, Some(Combine::Sum)));
    let apply = computation(
        operation,
        &operation.name,
        Scalar::input("y") * (Scalar::input("dy") - Scalar::input("dot")),
        all,
        at(&dx.data, &dx.subscripts, None),
    );
    let scopes = vec![
        Scope::new(dot_name, indices(operation, program, &reduced), vec![Item::Tasklet(sum)]),
        Scope::new(operation.name.clone(), indices(operation, program, &[]), vec![Item::Tasklet(apply)]),
    ];
    Ok(Expansion { containers: vec![dot], scopes })
}
