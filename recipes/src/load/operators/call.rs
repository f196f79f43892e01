//! A call whose arguments have been sorted out, and who asks.

use crate::load::context::StepContext;
use crate::load::names::nearest;
use crate::load::parser::{Argument, Ast, ParsedExpr};
use crate::load::problem::{Problem, SourceLocation};
use crate::load::subscript::{self, Brackets};
use crate::load::value::StepValue;
use sdfg::{Binary, Bindings, Scalar, Unary};

pub struct Call<'a, 'r> {
    pub context: &'r mut dyn StepContext,
    pub place: SourceLocation,
    pub name: &'static str,
    pub operands: Vec<&'a ParsedExpr>,
    pub options: &'a [Argument],
    /// Indices that the result has.
    pub kept: &'a [String],
}

impl Call<'_, '_> {
    pub fn option(&self, name: &str) -> Option<&ParsedExpr> {
        self.options.iter().find(|a| a.option.as_ref().is_some_and(|o| o.text == name)).map(|a| &a.value)
    }

    pub fn operand(&mut self, n: usize) -> Option<StepValue> {
        let node = *self.operands.get(n)?;
        self.context.value(node, self.kept)
    }

    pub fn unary(&mut self, op: Unary) -> Option<StepValue> {
        Some(StepValue::unary(op, self.operand(0)?))
    }

    pub fn pair(&mut self, op: Binary) -> Option<StepValue> {
        let (a, b) = (self.operand(0), self.operand(1));
        Some(StepValue::binary(op, a?, b?))
    }

    /// Code of `x` that keeps its name.
    pub fn named(&mut self, label: &'static str, code: Scalar) -> Option<StepValue> {
        // Only a leaf is written into the code: longer arguments would be repeated as often as `x` is.
        Some(match self.operand(0)? {
            StepValue::Scalar(leaf @ (Scalar::Const(_) | Scalar::Index(_))) => StepValue::Scalar(code.inline("x", &leaf)),
            of => StepValue::Named { label, code, of: Box::new(of) },
        })
    }

    /// An option's value where it must be a number.
    pub fn number(&mut self, name: &str) -> Option<(SourceLocation, f64)> {
        let node = self.option(name)?.clone();
        let value = self.context.value(&node, self.kept)?;
        let number = if let StepValue::Scalar(s) = &value { s.constant(&Bindings::new()).ok() } else { None };
        if number.is_none() {
            self.context.problems().add(node.place, Problem::NotConstant(format!("`{name}`")));
        }
        number.map(|n| (node.place, n))
    }

    /// The indices after `over:`, each a dim, each once.
    pub fn over(&mut self) -> Option<Vec<(SourceLocation, String)>> {
        let node = self.option("over")?.clone();
        let items = match &node.ast {
            Ast::Word(_) => std::slice::from_ref(&node),
            Ast::List(items) if !items.is_empty() => items.as_slice(),
            _ => return None,
        };
        let dims = subscript::dims(Brackets::List, items);
        let dims = dims.map_err(|(place, problem)| self.context.problems().add(place, problem)).ok()?;
        let names: Vec<(SourceLocation, String)> = dims.into_iter().map(|dim| (dim.place, dim.text)).collect();
        let before = self.context.problems().failures();
        for (n, (place, name)) in names.iter().enumerate() {
            if !self.context.header().is_index(name) {
                let problem = self.context.header().unknown_dim(name);
                self.context.problems().add(*place, problem);
            } else if names.iter().take(n).any(|(_, other)| other == name) {
                self.context.problems().add(*place, Problem::RepeatedIndex { tensor: "over".into(), index: name.clone() });
            }
        }
        (self.context.problems().failures() == before).then_some(names)
    }

    /// Every index of `over` must be one of the operand's.
    pub fn within(&mut self, over: Vec<(SourceLocation, String)>, of: &StepValue) -> Option<Vec<String>> {
        let before = self.context.problems().failures();
        let indices = of.indices(&|name| self.context.header().is_index(name));
        for (place, index) in &over {
            if !indices.contains(index) {
                let hint = nearest(index, indices.iter().map(String::as_str));
                self.context.problems().add(*place, Problem::NotInOperand { operator: self.name.into(), index: index.clone(), hint });
            }
        }
        (self.context.problems().failures() == before).then(|| over.into_iter().map(|(_, index)| index).collect())
    }

    /// What a normalization adds below its root: the option `eps`, or 1e-5.
    pub fn epsilon(&mut self) -> Option<f64> {
        if self.option("eps").is_none() {
            return Some(1e-5);
        }
        let (place, eps) = self.number("eps")?;
        // Not finite, or below 0: there are rows without a square root then.
        let usable = (0.0..f64::INFINITY).contains(&eps);
        if !usable {
            self.context.problems().add(place, Problem::Eps(eps));
        }
        usable.then_some(eps)
    }

    /// An option that is a tensor, if it is given.
    pub fn weight(&mut self, name: &str) -> Option<Option<StepValue>> {
        match self.option(name).cloned() {
            Some(node) => self.context.value(&node, self.kept).map(Some),
            None => Some(None),
        }
    }

    /// Weights must have no index that their operand lacks.
    pub fn along(&mut self, weights: &[&Option<StepValue>], of: &StepValue) -> Option<()> {
        let indices = of.indices(&|name| self.context.header().is_index(name));
        for weight in weights.iter().copied().flatten() {
            for index in weight.indices(&|name| self.context.header().is_index(name)) {
                if !indices.contains(&index) {
                    let hint = nearest(&index, indices.iter().map(String::as_str));
                    self.context.problems().add(self.place, Problem::NotInOperand { operator: self.name.into(), index, hint });
                    return None;
                }
            }
        }
        Some(())
    }
}
