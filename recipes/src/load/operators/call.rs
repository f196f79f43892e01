//! A call whose arguments have been sorted out, and who asks.

use crate::load::names::nearest;
use crate::load::parser::{Argument, Ast, Node};
use crate::load::problem::{Place, Problem};
use crate::load::resolve::{Resolver, binary, unary};
use crate::load::value::Value;
use sdfg::{Binary, Bindings, Scalar, Unary};

pub struct Call<'a, 'r, 'h> {
    pub resolver: &'r mut Resolver<'h>,
    pub place: Place,
    pub name: &'static str,
    pub operands: Vec<&'a Node>,
    pub options: &'a [Argument],
    /// Indices that the result has.
    pub kept: &'a [String],
}

impl Call<'_, '_, '_> {
    pub fn option(&self, name: &str) -> Option<&Node> {
        self.options.iter().find(|a| a.option.as_ref().is_some_and(|o| o.text == name)).map(|a| &a.value)
    }

    pub fn operand(&mut self, n: usize) -> Option<Value> {
        let node = *self.operands.get(n)?;
        self.resolver.value(node, self.kept)
    }

    pub fn unary(&mut self, op: Unary) -> Option<Value> {
        Some(unary(op, self.operand(0)?))
    }

    pub fn pair(&mut self, op: Binary) -> Option<Value> {
        let (a, b) = (self.operand(0), self.operand(1));
        Some(binary(op, a?, b?))
    }

    /// Code of `x` that keeps its name.
    pub fn named(&mut self, label: &'static str, code: Scalar) -> Option<Value> {
        // Only a leaf is written into the code: longer arguments would be repeated as often as `x` is.
        Some(match self.operand(0)? {
            Value::Scalar(leaf @ (Scalar::Const(_) | Scalar::Index(_))) => Value::Scalar(code.inline("x", &leaf)),
            of => Value::Named { label, code, of: Box::new(of) },
        })
    }

    /// An option's value where it must be a number.
    pub fn number(&mut self, name: &str) -> Option<(Place, f64)> {
        let node = self.option(name)?.clone();
        let value = self.resolver.value(&node, self.kept)?;
        let number = if let Value::Scalar(s) = &value { s.constant(&Bindings::new()).ok() } else { None };
        if number.is_none() {
            self.resolver.problems.add(node.place, Problem::NotConstant(format!("`{name}`")));
        }
        number.map(|n| (node.place, n))
    }

    /// The indices after `over:`, each a dim, each once.
    pub fn over(&mut self) -> Option<Vec<(Place, String)>> {
        let node = self.option("over")?.clone();
        let names: Vec<(Place, String)> = match &node.ast {
            Ast::Word(name) => vec![(node.place, name.clone())],
            Ast::List(names) if !names.is_empty() => names.iter().map(|n| (n.place, n.text.clone())).collect(),
            _ => return None,
        };
        let before = self.resolver.problems.failures();
        for (n, (place, name)) in names.iter().enumerate() {
            if !self.resolver.is_index(name) {
                let problem = self.resolver.header.unknown_dim(name);
                self.resolver.problems.add(*place, problem);
            } else if names.iter().take(n).any(|(_, other)| other == name) {
                self.resolver.problems.add(*place, Problem::RepeatedIndex { tensor: "over".into(), index: name.clone() });
            }
        }
        (self.resolver.problems.failures() == before).then_some(names)
    }

    /// Every index of `over` must be one of the operand's.
    pub fn within(&mut self, over: Vec<(Place, String)>, of: &Value) -> Option<Vec<String>> {
        let before = self.resolver.problems.failures();
        let indices = of.indices(&|name| self.resolver.is_index(name));
        for (place, index) in &over {
            if !indices.contains(index) {
                let hint = nearest(index, indices.iter().map(String::as_str));
                self.resolver.problems.add(*place, Problem::NotInOperand { operator: self.name.into(), index: index.clone(), hint });
            }
        }
        (self.resolver.problems.failures() == before).then(|| over.into_iter().map(|(_, index)| index).collect())
    }
}
