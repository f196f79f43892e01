//! Another name for everything that a unit of a program names: the one traversal that knows where names stand.
//!
//! Every struct is taken apart field by field, so that a new field does not compile before it is decided here whether it names something.

use crate::library::Op;
use crate::library::operator::Field;
use crate::memlet::{Memlet, Range};
use crate::node::{Computation, Index, Map, Operand, Operation, Tasklet};
use crate::scalar::Scalar;
use crate::scope::{Item, Scope, Unit};
use crate::symbol::Expr;

/// What a name stands for. Equal names of different kinds have nothing to do with each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum NameKind {
    Container,
    /// The index of a map or of an operation.
    Index,
    Dim,
    /// A size in an integer expression: a symbol that is no index around it.
    Symbol,
    /// A connector of a tasklet; those of operations are fixed by the operator.
    Connector,
    /// The stream of random numbers of a dropout mask.
    Stream,
    /// A name for people: of units, maps, tasklets and operators.
    Title,
}

/// Gives names.
type Rename<'r> = &'r mut dyn FnMut(NameKind, &str) -> String;

impl Unit {
    /// The same unit under other names, in the order in which they come; `None` for nested programs. Origins are left
    /// out: they speak of the names before.
    pub fn renamed(&self, rename: Rename) -> Option<Unit> {
        let mut walk = Walk { rename, bound: Vec::new() };
        match self {
            Unit::Scope(scope) => Some(Unit::Scope(walk.scope(scope))),
            Unit::Operation(operation) => Some(Unit::Operation(walk.operation(operation))),
            Unit::Nested(_) => None,
        }
    }
}

struct Walk<'r> {
    rename: Rename<'r>,
    /// The indices around the current place.
    bound: Vec<String>,
}

impl Walk<'_> {
    fn name(&mut self, kind: NameKind, name: &str) -> String {
        (self.rename)(kind, name)
    }

    fn scope(&mut self, scope: &Scope) -> Scope {
        let Scope { map: Map { label, indices }, body } = scope;
        let label = self.name(NameKind::Title, label);
        // The bounds of an index may have the indices before it.
        let around = self.bound.len();
        let mut renamed = Vec::with_capacity(indices.len());
        for index in indices {
            renamed.push(self.index(index));
            self.bound.push(index.name.clone());
        }
        let body = body.iter().map(|item| self.item(item)).collect();
        self.bound.truncate(around);
        Scope { map: Map { label, indices: renamed }, body }
    }

    fn index(&mut self, index: &Index) -> Index {
        let Index { name, dim, start, stop, step, kind } = index;
        Index {
            name: self.name(NameKind::Index, name),
            dim: self.name(NameKind::Dim, dim),
            start: self.expr(start),
            stop: self.expr(stop),
            step: self.expr(step),
            kind: *kind,
        }
    }

    fn item(&mut self, item: &Item) -> Item {
        match item {
            Item::Scope(scope) => Item::Scope(self.scope(scope)),
            Item::Tasklet(computation) => Item::Tasklet(self.computation(computation)),
            Item::Operation(operation) => Item::Operation(self.operation(operation)),
        }
    }

    fn computation(&mut self, computation: &Computation) -> Computation {
        let Computation { tasklet, reads, writes } = computation;
        let reads = self.memlets(reads);
        let Tasklet { name, code, operator, origin: _ } = tasklet;
        let tasklet = Tasklet {
            name: self.name(NameKind::Title, name),
            code: code.iter().map(|(connector, code)| (self.name(NameKind::Connector, connector), self.scalar(code, true))).collect(),
            operator: self.name(NameKind::Title, operator),
            origin: None,
        };
        Computation { tasklet, reads, writes: self.memlets(writes) }
    }

    fn memlets(&mut self, memlets: &[(String, Memlet)]) -> Vec<(String, Memlet)> {
        memlets.iter().map(|(connector, memlet)| (self.name(NameKind::Connector, connector), self.memlet(memlet))).collect()
    }

    fn memlet(&mut self, memlet: &Memlet) -> Memlet {
        let Memlet { data, subset, volume, wcr, dynamic, fill } = memlet;
        Memlet {
            data: self.name(NameKind::Container, data),
            subset: subset.iter().map(|range| self.range(range)).collect(),
            volume: self.expr(volume),
            wcr: *wcr,
            dynamic: *dynamic,
            fill: *fill,
        }
    }

    fn range(&mut self, range: &Range) -> Range {
        match range {
            Range::At(at) => Range::At(self.expr(at)),
            Range::Span { start, stop, step } => Range::Span { start: self.expr(start), stop: self.expr(stop), step: self.expr(step) },
        }
    }

    fn operation(&mut self, operation: &Operation) -> Operation {
        let Operation { name, op, indices, inputs, outputs, pass, origin: _ } = operation;
        let around = self.bound.len();
        self.bound.extend(indices.keys().cloned());
        let renamed = Operation {
            name: self.name(NameKind::Title, name),
            indices: indices.iter().map(|(index, dim)| (self.name(NameKind::Index, index), self.name(NameKind::Dim, dim))).collect(),
            op: self.op(op),
            inputs: inputs.iter().map(|operand| self.operand(operand)).collect(),
            outputs: outputs.iter().map(|operand| self.operand(operand)).collect(),
            pass: *pass,
            origin: None,
        };
        self.bound.truncate(around);
        renamed
    }

    fn operand(&mut self, operand: &Operand) -> Operand {
        let Operand { connector, data, subscripts, fill } = operand;
        Operand {
            connector: connector.clone(),
            data: self.name(NameKind::Container, data),
            subscripts: subscripts.iter().map(|e| self.expr(e)).collect(),
            fill: *fill,
        }
    }

    fn op(&mut self, op: &Op) -> Op {
        op.with_fields(|field| match field {
            Field::Label(label) => Field::Label(self.name(NameKind::Title, &label)),
            Field::Code(code) => Field::Code(self.scalar(&code, false)),
            Field::Over(over) => Field::Over(over.iter().map(|index| self.name(NameKind::Index, index)).collect()),
            plain @ (Field::Combine(_) | Field::Number(_)) => plain,
        })
    }

    /// `connectors` says whether inputs are connectors of a tasklet, which have names of their own.
    fn scalar(&mut self, code: &Scalar, connectors: bool) -> Scalar {
        code.rewrite(&mut |node| match node {
            Scalar::Input(connector) if connectors => Scalar::Input(self.name(NameKind::Connector, &connector)),
            Scalar::Index(e) => Scalar::Index(self.expr(&e)),
            Scalar::Keep { stream, element, rate } => {
                Scalar::Keep { stream: self.name(NameKind::Stream, &stream), element: self.expr(&element), rate }
            }
            Scalar::Kept { stream, rate } => Scalar::Kept { stream: self.name(NameKind::Stream, &stream), rate },
            plain @ (Scalar::Const(_) | Scalar::Input(_) | Scalar::Unary(..) | Scalar::Binary(..) | Scalar::Select(..)) => plain,
        })
    }

    fn expr(&mut self, e: &Expr) -> Expr {
        let two = |walk: &mut Self, a: &Expr, b: &Expr| (Box::new(walk.expr(a)), Box::new(walk.expr(b)));
        match e {
            Expr::Int(n) => Expr::Int(*n),
            Expr::Sym(name) => {
                let kind = if self.bound.contains(name) { NameKind::Index } else { NameKind::Symbol };
                Expr::Sym(self.name(kind, name))
            }
            Expr::Add(a, b) => {
                let (a, b) = two(self, a, b);
                Expr::Add(a, b)
            }
            Expr::Sub(a, b) => {
                let (a, b) = two(self, a, b);
                Expr::Sub(a, b)
            }
            Expr::Mul(a, b) => {
                let (a, b) = two(self, a, b);
                Expr::Mul(a, b)
            }
            Expr::FloorDiv(a, b) => {
                let (a, b) = two(self, a, b);
                Expr::FloorDiv(a, b)
            }
            Expr::Mod(a, b) => {
                let (a, b) = two(self, a, b);
                Expr::Mod(a, b)
            }
            Expr::Min(a, b) => {
                let (a, b) = two(self, a, b);
                Expr::Min(a, b)
            }
            Expr::Max(a, b) => {
                let (a, b) = two(self, a, b);
                Expr::Max(a, b)
            }
            Expr::Element(data, subscripts) => {
                let data = self.name(NameKind::Container, data);
                Expr::Element(data, subscripts.iter().map(|subscript| self.expr(subscript)).collect())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::{Direction, IndexKind};

    /// y[i] += t · x[i + n], with dropout.
    fn unit() -> Unit {
        let at = |data: &str, e: Expr| Memlet {
            data: data.into(),
            subset: vec![Range::At(e)],
            volume: Expr::Int(1),
            wcr: None,
            dynamic: false,
            fill: None,
        };
        let code = Scalar::input("a") * Scalar::Keep { stream: "m".into(), element: Expr::sym("i"), rate: 0.5 };
        let tasklet = Tasklet { name: "t".into(), code: vec![("o".into(), code)], operator: "drop".into(), origin: None };
        let (reads, writes) = (vec![("a".into(), at("x", Expr::sym("i") + Expr::sym("n")))], vec![("o".into(), at("y", Expr::sym("i")))]);
        let body = vec![Item::Tasklet(Computation { tasklet, reads, writes })];
        Unit::Scope(Scope::new("s", vec![Index::over("i", "d", Expr::sym("n"), IndexKind::Independent)], body))
    }

    #[test]
    fn every_name_is_seen_with_its_kind() {
        let mut seen = std::collections::BTreeSet::new();
        let renamed = unit().renamed(&mut |kind, name| {
            seen.insert(format!("{kind:?} {name}"));
            format!("{name}'")
        });
        let wanted = [
            "Connector a",
            "Connector o",
            "Container x",
            "Container y",
            "Dim d",
            "Index i",
            "Stream m",
            "Symbol n",
            "Title drop",
            "Title s",
            "Title t",
        ];
        assert_eq!(seen.iter().map(String::as_str).collect::<Vec<_>>(), wanted);
        // Taking the marks away gives the unit back.
        let back = renamed.and_then(|unit| unit.renamed(&mut |_, name| name.trim_end_matches('\'').to_string()));
        assert_eq!(back, Some(unit()));
    }

    #[test]
    fn connectors_of_operations_stay() {
        let operation = Operation {
            name: "c".into(),
            op: Op::Softmax { over: vec!["j".into()] },
            indices: [("j".to_string(), "d".to_string())].into_iter().collect(),
            inputs: vec![Operand::new("x", "q", &["j"])],
            outputs: vec![Operand::new("out", "p", &["j"])],
            pass: Direction::Forward,
            origin: None,
        };
        let Some(Unit::Operation(renamed)) = Unit::Operation(operation).renamed(&mut |_, name| format!("{name}'")) else { panic!() };
        assert_eq!((renamed.inputs, renamed.outputs), (vec![Operand::new("x", "q'", &["j'"])], vec![Operand::new("out", "p'", &["j'"])]));
        assert_eq!(renamed.op, Op::Softmax { over: vec!["j'".into()] });
    }
}
