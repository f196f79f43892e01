//! Scatter: `out[v, …] = base[v, …] + Σ code(x)` over the points at which `at` is `v`: what hands the gradient of a gather back to the
//! rows that were read. Rows may be met several times.
//!
//! Connectors: `x` with `at`, then `x1` with `at1`, …: each pair has an iteration space of its own, and `base` may be left out, which
//! means 0. `code` is a multiple of `x`; all other inputs are single numbers.
//!
//! Flop: the code's arithmetic plus one (the addition) per point of each pair.

use super::elementwise::{arithmetic, at, computation};
use super::operator::{Field, FieldKind};
use super::*;
use crate::scalar::Binary;
use crate::scope::Item;

/// `out[v, …] = base[v, …] + Σ code(x)` where `at` is `v`; `over` names `v`.
pub struct Scatter<'a> {
    pub label: &'a str,
    pub over: &'a [String],
    pub code: &'a Scalar,
}

impl Scatter<'_> {
    pub(super) const DEFINITION: OperatorSyntax = OperatorSyntax {
        keyword: "scatter",
        shape: &[FieldKind::Label, FieldKind::Over, FieldKind::Code("code")],
        build: |fields| Some(Op::Scatter { label: fields.label()?, over: fields.over()?, code: fields.code()? }),
    };
}

/// A pair of operands: what is added, and the row that it is added to.
pub struct ScatterTerm<'a> {
    pub x: &'a Operand,
    pub at: &'a Operand,
}

impl ScatterTerm<'_> {
    /// The indices of its iteration space, in order of the operation's.
    pub fn indices<'o>(&self, operation: &'o Operation) -> Vec<&'o String> {
        let mentions = |index: &String| self.x.subscripts.iter().chain(&self.at.subscripts).any(|s| s.symbols().contains(index));
        operation.indices.keys().filter(|index| mentions(index)).collect()
    }
}

/// The pairs of a scatter.
pub fn parts(operation: &Operation) -> Vec<ScatterTerm<'_>> {
    let pair = |n: usize| {
        let suffix = if n == 0 { String::new() } else { n.to_string() };
        Some(ScatterTerm { x: operation.input(&format!("x{suffix}"))?, at: operation.input(&format!("at{suffix}"))? })
    };
    (0..).map_while(pair).collect()
}

impl<'a> Operator<'a> for Scatter<'a> {
    fn definition(&self) -> &'static OperatorSyntax {
        &Self::DEFINITION
    }

    fn fields(&self) -> Vec<Field> {
        vec![Field::Label(self.label.to_string()), Field::Over(self.over.to_vec()), Field::Code(self.code.clone())]
    }

    fn label(&self) -> &'a str {
        self.label
    }

    fn ports(&self) -> Ports {
        Ports { inputs: &["x", "at"], outputs: &["out"], free_inputs: true, ..Ports::default() }
    }

    fn flop(&self, operation: &Operation, program: &Sdfg) -> Expr {
        let points = |part: &ScatterTerm| Expr::product(part.indices(operation).iter().map(|i| program.size_of(&operation.indices[*i])));
        let all = parts(operation).iter().fold(Expr::Int(0), |all, part| all + points(part));
        Expr::Int(1 + arithmetic(self.code)) * all
    }

    /// A sum over all points for every row, of which most are masked out: what a scatter means, not how it is computed.
    fn expand(&self, operation: &Operation, program: &Sdfg) -> Result<Expansion, OperatorError> {
        let out = operation.need_output("out")?;
        let declared = reduce::container(operation, program, &out.data)?;
        let row = self.over.first().cloned().unwrap_or_default();
        let of_out = |index: &String| out.subscripts.iter().any(|s| s.symbols().contains(index));
        let indices_of = |wanted: &dyn Fn(&String) -> bool| -> Vec<Index> {
            let kind = |index: &String| if of_out(index) { IndexKind::Independent } else { IndexKind::Reduction };
            let all = operation.indices.iter().filter(|(index, _)| wanted(index));
            all.map(|(index, dim)| Index::over(index, dim, program.size_of(dim), kind(index))).collect()
        };
        let (mut containers, mut scopes, mut sums) = (Vec::new(), Vec::new(), Vec::new());
        for (n, part) in parts(operation).iter().enumerate() {
            let own: Vec<String> = part.indices(operation).into_iter().cloned().collect();
            let sum = Container {
                dtype: declared.dtype.accumulator(),
                ..declared.like(program.fresh_name(&format!("{}.part{n}", operation.name)))
            };
            let here = Scalar::binary(Binary::Eq, Scalar::input("at"), Scalar::Index(Expr::sym(row.as_str())));
            let code = Scalar::select(here, self.code.clone(), Scalar::Const(0.0));
            let mut reads = vec![("at".to_string(), part.at.memlet()), ("x".to_string(), part.x.memlet())];
            let others = operation.inputs.iter().filter(|o| o.connector != "x" && self.code.inputs().contains(&o.connector));
            reads.extend(others.map(|o| (o.connector.clone(), o.memlet())));
            let name = format!("{}.part{n}", operation.name);
            let write = at(&sum.name, &out.subscripts, Some(Combine::Sum));
            let map = indices_of(&|index| of_out(index) || own.contains(index));
            scopes.push(Scope::new(name.clone(), map, vec![Item::Tasklet(computation(operation, &name, code, reads, write))]));
            sums.push(sum.name.clone());
            containers.push(sum);
        }
        let mut code = if operation.input("base").is_some() { Scalar::input("base") } else { Scalar::Const(0.0) };
        let mut reads: Vec<(String, Memlet)> = operation.input("base").map(|o| (o.connector.clone(), o.memlet())).into_iter().collect();
        for (n, sum) in sums.iter().enumerate() {
            code = code + Scalar::input(format!("s{n}"));
            reads.push((format!("s{n}"), at(sum, &out.subscripts, None)));
        }
        let finish = computation(operation, &operation.name, code, reads, at(&out.data, &out.subscripts, None));
        scopes.push(Scope::new(operation.name.clone(), indices_of(&|index| of_out(index)), vec![Item::Tasklet(finish)]));
        Ok(Expansion { containers, scopes })
    }

    fn differentiate(&self, forward: &Operation, _: &Sdfg, wanted: &WantedGradients) -> Result<Derivative, OperatorError> {
        let connector = wanted.gradients.keys().next().cloned().unwrap_or_default();
        let why = "a scatter is a derivative itself; only first derivatives are made".into();
        Err(OperatorError::NotDifferentiable { operation: forward.name.clone(), connector, why })
    }
}
