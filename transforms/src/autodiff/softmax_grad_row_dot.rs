//! The dot product of a row with its gradient, which the gradient of a softmax needs, computed from results instead of rows.
//!
//! ```text
//! forward:   a = s · keep;  o[j,p] = Σk a[j,k] · v[k,p]
//! backward:  g[j,k] = Σp u[j,p] · v[k,p];  d = g · keep
//!            dx = s · (d − Σk s·d)                      →    dx = s · (d − dot);  dot[j] = Σp u[j,p] · o[j,p]
//! ```
//!
//! *Legal since* `Σk s·d = Σk a·g = Σp u[j,p] · Σk a[j,k]·v[k,p]`.
//! *Moves more, by two results,* where rows are in memory anyway. *Computes less* where they are recomputed: then each row is computed
//! once, not once for its sum and once more for the elements that need the sum.
//! *Not handled*: subscripts other than plain indices; more than one factor between a softmax and a contraction.
//! *Source*: FlashAttention (Dao et al., 2022), appendix B.2, where it is the `D` of the backward pass.

use crate::pass::{Context, Pass, Rewritten, Stopped, refused_at};
use sdfg::library::calculus::fold_inline;
use sdfg::{BuildError, Combine, Container, Direction, Dtype, Expr, Op, Operand, Operation, Role, Scalar, Sdfg, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// Lets gradients of softmaxes take their sums from results where the rule holds.
#[derive(Clone, Copy, Debug, Default)]
pub struct SoftmaxGradRowDot;

impl Pass for SoftmaxGradRowDot {
    fn name(&self) -> &'static str {
        "softmax gradient row dot"
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let mut all = Vec::new();
        for (state, _, unit) in program.units() {
            let Unit::Operation(operation) = unit else {
                return Err(BuildError::NoOperation { program: program.name.clone(), unit: unit.name().to_string() }.into());
            };
            all.push((state, operation));
        }
        let operations: Vec<&Operation> = all.iter().map(|(_, o)| o).collect();
        let found: BTreeMap<&str, Dot> = operations.iter().filter_map(|o| Some((o.name.as_str(), Dot::of(o, &operations)?))).collect();
        if found.is_empty() {
            let gradients = operations.iter().filter(|o| matches!(o.op, Op::SoftmaxGrad { .. }));
            let why = "its row sums do not follow from the result of one contraction by one factor";
            let refused = gradients.map(|o| (*o, why.to_string()));
            return Err(refused_at(self.name(), program, refused, "there is no gradient of a softmax"));
        }
        let summary = format!("row sums of {} from results", found.keys().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "));
        let mut result = program.clone();
        for (id, _) in program.states() {
            result.map_operations(id, |result, operation| match found.get(operation.name.as_str()) {
                Some(dot) => {
                    let name = result.fresh_name(&format!("{}.dot", operation.name));
                    result.add_container(dot.container(program, &name));
                    dot.operations(&operation, &name)
                }
                None => vec![operation],
            })?;
        }
        Ok(Rewritten::program(summary, result))
    }
}

/// The sum of one softmax gradient: in the names of its indices, those that are summed over being new.
struct Dot {
    /// Indices of a row, with their dims, and those that the sum is over.
    row: Vec<(String, String)>,
    over: Vec<(String, String)>,
    gradient: Operand,
    result: Operand,
    scale: Scalar,
}

/// Names of one operation in those of another, by an operand that both have.
fn renaming(own: &Operand, there: &[String]) -> Option<BTreeMap<String, String>> {
    let own = own.index_names()?;
    (own.len() == there.len()).then(|| own.iter().map(|n| n.to_string()).zip(there.iter().cloned()).collect())
}

/// The factor by which an element-wise operation multiplies its only operand, with indices renamed.
fn factor(operation: &Operation, with: &BTreeMap<String, String>) -> Option<Scalar> {
    let (Op::Elementwise { code, .. }, [from]) = (&operation.op, &operation.inputs[..]) else { return None };
    let with = with.iter().map(|(from, to)| (from.clone(), Expr::sym(to.as_str()))).collect();
    crate::autodiff::save_local_derivative::linear(code, &from.connector)
        .then(|| fold_inline(code, &from.connector, &Scalar::Const(1.0)).substitute(&with))
}

impl Dot {
    fn of(softmax: &Operation, operations: &[&Operation]) -> Option<Self> {
        let Op::SoftmaxGrad { over } = &softmax.op else { return None };
        let maker = |data: &str| operations.iter().copied().find(|o| o.outputs.iter().any(|out| out.data == data));
        let (y, dy) = (softmax.input("y")?, softmax.input("dy")?);
        let here: Vec<String> = y.index_names()?.into_iter().map(String::from).collect();
        if dy.index_names()? != here {
            return None;
        }
        // Back from the gradient to the contraction that makes it, past one factor.
        let mut second = maker(&dy.data)?;
        let mut by = Scalar::Const(1.0);
        if let Op::Elementwise { .. } = second.op {
            let ([from], [to]) = (&second.inputs[..], &second.outputs[..]) else { return None };
            if from.subscripts != to.subscripts {
                return None;
            }
            by = factor(second, &renaming(to, &here)?)?;
            second = maker(&from.data)?;
        }
        // Forward from the softmax to what has the same factor.
        let forward = |o: &&&Operation| o.pass == Direction::Forward;
        let kept = if by == Scalar::Const(1.0) {
            y.data.as_str()
        } else {
            let same = |o: &&Operation| {
                let ([from], [to]) = (&o.inputs[..], &o.outputs[..]) else { return false };
                let own = renaming(to, &here);
                from.data == y.data && from.subscripts == to.subscripts && own.and_then(|own| factor(o, &own)).is_some_and(|f| f == by)
            };
            operations.iter().filter(forward).copied().find(same)?.outputs.first()?.data.as_str()
        };
        let readers = operations.iter().filter(forward).filter(|o| o.inputs.iter().any(|i| i.data == kept));
        let mut found = readers.filter_map(|first| Dot::between(first, kept, second, &here, over, softmax));
        found.next()
    }

    /// From the contractions that sum over rows, and that make their gradient.
    fn between(first: &Operation, kept: &str, second: &Operation, here: &[String], over: &[String], softmax: &Operation) -> Option<Self> {
        let (Op::Contraction { scale: t }, Op::Contraction { scale: s }) = (&first.op, &second.op) else { return None };
        let ([made], [result]) = (&second.outputs[..], &first.outputs[..]) else { return None };
        let (rows, v) = match &first.inputs[..] {
            [a, b] if a.data == kept => (a, b),
            [a, b] if b.data == kept => (b, a),
            _ => return None,
        };
        let (gradient, same) = match &second.inputs[..] {
            [a, b] if b.data == v.data => (a, b),
            [a, b] if a.data == v.data => (b, a),
            _ => return None,
        };
        let (mut one, mut two) = (renaming(rows, here)?, renaming(made, here)?);
        let mut summed: Vec<(String, String)> = Vec::new();
        for (a, b) in v.index_names()?.into_iter().zip(same.index_names()?) {
            match (one.get(a).cloned(), two.get(b).cloned()) {
                (Some(a), Some(b)) if a == b => {}
                (None, None) => {
                    let taken = |name: &str| softmax.indices.contains_key(name) || summed.iter().any(|(n, _)| n == name);
                    let name = (1..).map(|n| if n == 1 { b.to_string() } else { format!("{b}_{n}") }).find(|name| !taken(name))?;
                    summed.push((name.clone(), second.indices.get(b)?.clone()));
                    one.insert(a.to_string(), name.clone());
                    two.insert(b.to_string(), name);
                }
                _ => return None,
            }
        }
        let renamed = |operand: &Operand, with: &BTreeMap<String, String>, connector: &str| -> Option<Operand> {
            let subscripts: Option<Vec<Expr>> =
                operand.index_names()?.into_iter().map(|n| Some(Expr::sym(with.get(n)?.as_str()))).collect();
            Some(Operand { connector: connector.into(), data: operand.data.clone(), subscripts: subscripts?, fill: operand.fill })
        };
        let (gradient, result) = (renamed(gradient, &two, "a")?, renamed(result, &one, "b")?);
        let set = |operand: &Operand| -> BTreeSet<String> { operand.subscripts.iter().flat_map(Expr::symbols).collect() };
        let row: Vec<String> = here.iter().filter(|n| !over.contains(n)).cloned().collect();
        let whole: BTreeSet<String> = row.iter().chain(summed.iter().map(|(n, _)| n)).cloned().collect();
        // The first sums over rows alone, the second over what both results have beside.
        let sums = |name: &String| set(&gradient).contains(name) && set(&result).contains(name);
        let fits = set(&result) == whole && set(&gradient).is_subset(&whole) && summed.iter().all(|(n, _)| sums(n));
        let with_dims =
            |names: &[String]| names.iter().map(|n| Some((n.clone(), softmax.indices.get(n)?.clone()))).collect::<Option<Vec<_>>>();
        let scale = if *t == Scalar::Const(1.0) { s.clone() } else { s.clone() / t.clone() };
        (fits && !summed.is_empty()).then_some(Dot { row: with_dims(&row)?, over: summed, gradient, result, scale })
    }

    fn container(&self, program: &Sdfg, name: &str) -> Container {
        let dims: Vec<&str> = self.row.iter().map(|(_, dim)| dim.as_str()).collect();
        let dtype = program.containers.get(&self.gradient.data).map_or(Dtype::F32, |c| c.dtype.accumulator());
        Container::new(name, &dims, dtype, Role::Transient)
    }

    /// The operation that computes the sum, and the rest of the gradient.
    fn operations(&self, softmax: &Operation, name: &str) -> Vec<Operation> {
        let row: Vec<&str> = self.row.iter().map(|(n, _)| n.as_str()).collect();
        let code = Scalar::input("a") * Scalar::input("b");
        let sum = Operation {
            name: name.to_string(),
            op: Op::Reduce { label: "softmax dX".into(), combine: Combine::Sum, code, scale: self.scale.clone() },
            indices: self.row.iter().chain(&self.over).cloned().collect(),
            inputs: vec![self.gradient.clone(), self.result.clone()],
            outputs: vec![Operand::new("out", name, &row)],
            ..softmax.clone()
        };
        let code = Scalar::input("y") * (Scalar::input("dy") - Scalar::input("dot"));
        let rest = Operation {
            op: Op::Elementwise { label: "softmax dX".into(), code },
            inputs: softmax.inputs.iter().cloned().chain([Operand::new("dot", name, &row)]).collect(),
            outputs: softmax.outputs.iter().map(|o| Operand { connector: "out".into(), ..o.clone() }).collect(),
            ..softmax.clone()
        };
        vec![sum, rest]
    }
}
