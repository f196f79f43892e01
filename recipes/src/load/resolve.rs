//! From names to meaning: looks every name up, applies the index rules, and makes every sum explicit.
//!
//! An index that the surroundings do not keep (it is not on the left, and no `over` around it names it) is summed within
//! the product term that holds all of its occurrences, which must be at least two.

use super::applied::Reading;
use super::context::StepContext;
use super::header::Header;
use super::names::nearest;
use super::operators;
use super::parser::{Ast, ParsedExpr};
use super::problem::{Problem, Problems, SourceLocation};
use super::subscript::{self, Brackets};
use super::value::{ProductFactor, StepValue, scalar_indices, times};
use super::yaml::Name;
use sdfg::{Binary, Bindings, Expr, Fill, Scalar};

/// Why a tensor is not known where it is read.
pub enum Absence {
    Unknown,
    /// A later step assigns it, or there is a cycle.
    Because(Problem),
    /// The step that assigns it has an error of its own.
    Reported,
}

pub struct Resolver<'a> {
    pub header: &'a Header,
    pub problems: &'a mut Problems,
    pub absent: &'a dyn Fn(&str) -> Absence,
}

impl Resolver<'_> {
    /// One product term: decides what it sums.
    fn product(&mut self, node: &ParsedExpr, kept: &[String]) -> Option<StepValue> {
        let mut written = Vec::new();
        flatten(node, false, &mut written);
        let inside: Vec<Vec<String>> = written.iter().map(|(factor, _)| self.occurring(factor)).collect();
        let mut kept = kept.to_vec();
        let mut reduced: Vec<String> = Vec::new();
        let mut lonely = false;
        for index in inside.iter().flatten() {
            if kept.contains(index) || !self.header.is_index(index) {
                continue;
            }
            let holders: Vec<&ParsedExpr> =
                written.iter().zip(&inside).filter(|(_, indices)| indices.contains(index)).map(|((factor, _), _)| *factor).collect();
            match holders.as_slice() {
                // Inside of a factor that is a sum or a call, the rule applies again.
                [only] => match &only.ast {
                    Ast::Word(word) if word == index => {
                        self.problems.add(only.place, Problem::NumberNotBound(index.clone()));
                        lonely = true;
                    }
                    Ast::Access(..) | Ast::Word(_) => {
                        self.problems.add(only.place, Problem::OnlyOnce(index.clone()));
                        lonely = true;
                    }
                    _ => {}
                },
                all if all.iter().all(|factor| matches!(&factor.ast, Ast::Word(word) if word == index)) => {
                    self.problems.add(node.place, Problem::NumberNotBound(index.clone()));
                    lonely = true;
                }
                _ if self.sums_a_part(node, index, &holders) => {
                    self.problems.add(node.place, Problem::SumOfAPart(index.clone()));
                    lonely = true;
                    kept.push(index.clone());
                }
                _ => {
                    reduced.push(index.clone());
                    kept.push(index.clone());
                }
            }
        }
        let mut scale = Scalar::Const(1.0);
        let mut factors = Vec::new();
        let mut sound = !lonely;
        for (factor, below) in written {
            let value = match &factor.ast {
                Ast::Access(name, subscripts, fill) => self.access(factor.place, name, subscripts, fill.as_deref()),
                Ast::Word(name) => self.word(factor.place, name, &kept, lonely),
                _ => self.value(factor, &kept),
            };
            match value {
                Some(StepValue::Scalar(s)) if scalar_indices(&s, &|name| self.header.is_index(name)).is_empty() => {
                    scale = match (&scale, &s, below) {
                        (Scalar::Const(a), Scalar::Const(b), true) => Scalar::Const(a / b),
                        (_, _, true) => scale / s,
                        (_, _, false) => times(scale, s),
                    };
                }
                Some(value) => factors.push(ProductFactor { value, below }),
                None => sound = false,
            }
        }
        sound.then(|| StepValue::product(scale, factors, reduced))
    }

    /// A name without brackets: a constant, an index as a number, or a whole tensor.
    fn word(&mut self, place: SourceLocation, name: &str, kept: &[String], quiet: bool) -> Option<StepValue> {
        if name == "inf" {
            return Some(StepValue::Scalar(Scalar::Const(f64::INFINITY)));
        }
        let constant = self.header.constants.get(name).map(|c| c.value.clone());
        let tensor = self.header.tensors.get(name);
        if self.header.is_index(name) && (constant.is_some() || tensor.is_some()) {
            self.problems.add(place, Problem::Ambiguous { name: name.into() });
            return None;
        }
        if let Some(value) = constant {
            return Some(StepValue::Scalar(value));
        }
        if let Some(tensor) = tensor {
            return Some(StepValue::Access(Reading::plain(name, tensor.dims.clone())));
        }
        if !self.header.is_index(name) {
            self.unknown_tensor(place, name);
            return None;
        }
        if !kept.iter().any(|k| k == name) {
            if !quiet {
                self.problems.add(place, Problem::NumberNotBound(name.into()));
            }
            return None;
        }
        Some(StepValue::Scalar(Scalar::Index(Expr::sym(name))))
    }

    fn unknown_tensor(&mut self, place: SourceLocation, name: &str) {
        let problem = match (self.absent)(name) {
            Absence::Because(problem) => problem,
            Absence::Reported => return self.problems.follow(),
            Absence::Unknown => {
                let known = self.header.tensors.keys().chain(self.header.constants.keys()).map(String::as_str);
                Problem::UnknownTensor { name: name.into(), hint: nearest(name, known) }
            }
        };
        self.problems.add(place, problem);
    }

    /// Whether an index may be meant to be summed in parts of a product: each taken alone would be, a factor that is no product, as
    /// `w[o,i] * x[i] + b[o]` is, or what stands in brackets, as in `x[k] * w[k] / (w[k] * w[k])`. Where one other factor has the index,
    /// as in `w[o,f] * (g[f] * u[f])`, it would be left alone there, and only the sum of all is a sum.
    fn sums_a_part(&self, node: &ParsedExpr, index: &String, holders: &[&ParsedExpr]) -> bool {
        let holds = |node: &&ParsedExpr| self.occurring(node).contains(index);
        let mut parts: Vec<&ParsedExpr> = holders.iter().copied().filter(|factor| self.sums(factor, index)).collect();
        for part in bracketed(node) {
            let mut factors = Vec::new();
            flatten(part, false, &mut factors);
            let own: Vec<&ParsedExpr> = factors.into_iter().map(|(factor, _)| factor).filter(holds).collect();
            if own.len() >= 2 && own.len() < holders.len() {
                parts.extend(own);
            }
        }
        let others = holders.iter().filter(|factor| !parts.iter().any(|part| std::ptr::eq(*part, **factor))).count();
        !parts.is_empty() && others != 1
    }

    /// Whether an expression has a product that is summed over this index.
    fn sums(&self, node: &ParsedExpr, index: &String) -> bool {
        match &node.ast {
            Ast::Number(_) | Ast::List(_) | Ast::Slice(..) | Ast::Word(_) | Ast::Access(..) => false,
            Ast::Negative(of) => self.sums(of, index),
            Ast::Binary(Binary::Mul | Binary::Div, ..) => {
                let mut factors = Vec::new();
                flatten(node, false, &mut factors);
                let holders = factors.iter().filter(|(factor, _)| self.occurring(factor).contains(index)).count();
                holders >= 2 || factors.iter().any(|(factor, _)| self.sums(factor, index))
            }
            Ast::Binary(_, a, b) => self.sums(a, index) || self.sums(b, index),
            Ast::Call(name, arguments) => {
                !operators::bound(name, arguments).contains(index)
                    && operators::operands(name, arguments).any(|operand| self.sums(operand, index))
            }
        }
    }

    /// A tensor with subscripts: rank, sizes, repetition.
    fn access(&mut self, place: SourceLocation, name: &str, subscripts: &[ParsedExpr], fill: Option<&ParsedExpr>) -> Option<StepValue> {
        let before = self.problems.failures();
        if subscripts.iter().any(|node| matches!(node.ast, Ast::Access(..))) {
            return self.gather(place, name, subscripts, fill);
        }
        let fill = fill.map(|node| self.fill(node));
        let plain = subscript::dims(Brackets::Read(name), subscripts).ok();
        if let (Some(indices), None) = (&plain, fill) {
            self.known(indices);
        }
        let expressions: Vec<_> = subscripts.iter().map(|node| subscript::expression(self.header, name, node)).collect();
        if plain.is_none() || fill.is_some() {
            for (place, problem) in expressions.iter().filter_map(|e| e.as_ref().err()) {
                self.problems.add(*place, problem.clone());
            }
        }
        if self.problems.failures() > before {
            return None;
        }
        let expressions: Vec<Expr> = expressions.into_iter().filter_map(Result::ok).collect();
        let Some(tensor) = self.header.tensors.get(name) else {
            self.unknown_tensor(place, name);
            return None;
        };
        if !tensor.sound {
            self.problems.follow();
            return None;
        }
        if tensor.dims.len() != subscripts.len() {
            let (axes, rank) = (tensor.dims.join(", "), tensor.dims.len());
            self.problems.add(place, Problem::Rank { tensor: name.into(), axes, rank, given: subscripts.len() });
            return None;
        }
        if let (Some(indices), None) = (&plain, fill)
            && let Some(meant) = self.reordered(indices, &tensor.dims)
        {
            let given: Vec<&str> = indices.iter().map(|i| i.text.as_str()).collect();
            let (axes, given, meant) = (tensor.dims.join(", "), given.join(", "), meant.join(","));
            self.problems.add(place, Problem::Swapped { tensor: name.into(), axes, given, meant });
            return None;
        }
        let mut inside = true;
        for (n, ((node, subscript), dim)) in subscripts.iter().zip(&expressions).zip(&tensor.dims).enumerate() {
            match (&node.ast, fill) {
                (Ast::Word(index), None) if self.header.is_index(index) => {
                    if self.header.dims.get(dim) != self.header.dims.get(index) {
                        let problem = Problem::UnequalSizes { tensor: name.into(), axis: n + 1, dim: dim.clone(), index: index.clone() };
                        self.problems.add(node.place, problem);
                    }
                }
                _ => inside &= self.lies_inside(name, (n, dim), node, subscript, fill.is_some()),
            }
        }
        // An index of another size than the axis has reads a part of it, and one that stands twice a diagonal. A fill says so, also where
        // everything lies inside.
        let partial = expressions.iter().zip(&tensor.dims).enumerate().any(|(n, (subscript, dim))| {
            let size = subscript.as_sym().and_then(|index| self.header.dims.get(index));
            size.is_some() && (size != self.header.dims.get(dim) || expressions[..n].contains(subscript))
        });
        let fill = match fill.flatten() {
            Some(fill) => Some(fill).filter(|_| partial || !inside),
            None => partial.then_some(Fill(0.0)),
        };
        let is_index = |name: &str| self.header.is_index(name);
        (self.problems.failures() == before).then(|| StepValue::Access(Reading::windowed(name, expressions, fill, &is_index)))
    }

    /// A tensor some of whose subscripts are elements of other tensors.
    fn gather(&mut self, place: SourceLocation, name: &str, subscripts: &[ParsedExpr], fill: Option<&ParsedExpr>) -> Option<StepValue> {
        let before = self.problems.failures();
        if let Some(fill) = fill {
            self.problems.add(fill.place, Problem::GatherFill { tensor: name.into() });
        }
        let tensor = match self.header.tensors.get(name) {
            Some(tensor) if tensor.sound => tensor.clone(),
            Some(_) => {
                self.problems.follow();
                return None;
            }
            None => {
                self.unknown_tensor(place, name);
                return None;
            }
        };
        if tensor.dims.len() != subscripts.len() {
            let (axes, rank) = (tensor.dims.join(", "), tensor.dims.len());
            self.problems.add(place, Problem::Rank { tensor: name.into(), axes, rank, given: subscripts.len() });
            return None;
        }
        let mut expressions = Vec::new();
        for (n, (node, dim)) in subscripts.iter().zip(&tensor.dims).enumerate() {
            match &node.ast {
                Ast::Access(index, inner, fill) => match self.access(node.place, index, inner, fill.as_deref()) {
                    Some(StepValue::Access(reading)) if reading.window.is_none() => {
                        let own = self.header.tensors.get(index).map(|t| (t.role, t.dtype));
                        if let Some((role, dtype)) = own.filter(|(role, dtype)| *role != sdfg::Role::Transient && dtype.is_floating()) {
                            let role = if role == sdfg::Role::Input { "inputs" } else { "parameters" };
                            self.problems.add(node.place, Problem::GatherByReals { tensor: index.clone(), dtype, role });
                        }
                        expressions.push(Expr::Element(reading.data.clone(), reading.subscripts()));
                    }
                    Some(_) => self.problems.add(node.place, Problem::GatherByWindow { tensor: index.clone() }),
                    None => {}
                },
                _ => match subscript::expression(self.header, name, node) {
                    Ok(subscript) => {
                        match &node.ast {
                            Ast::Word(index) if self.header.is_index(index) => {
                                if self.header.dims.get(dim) != self.header.dims.get(index) {
                                    let (tensor, dim, index) = (name.to_string(), dim.clone(), index.clone());
                                    self.problems.add(node.place, Problem::UnequalSizes { tensor, axis: n + 1, dim, index });
                                }
                            }
                            _ => _ = self.lies_inside(name, (n, dim), node, &subscript, false),
                        }
                        expressions.push(subscript);
                    }
                    Err((place, problem)) => self.problems.add(place, problem),
                },
            }
        }
        let is_index = |name: &str| self.header.is_index(name);
        (self.problems.failures() == before).then(|| StepValue::Access(Reading::windowed(name, expressions, None, &is_index)))
    }

    /// The value after `else`: a number that the recipe alone determines.
    fn fill(&mut self, node: &ParsedExpr) -> Option<Fill> {
        let number = match self.value(node, &[])? {
            StepValue::Scalar(scalar) => scalar.constant(&Bindings::new()).ok(),
            _ => None,
        };
        if number.is_none() {
            self.problems.add(node.place, Problem::NotConstant("what stands after `else`".into()));
        }
        number.map(Fill)
    }

    /// Whether a subscript stays within its axis; where it does not and nothing is given for what lies outside, that is reported.
    fn lies_inside(&mut self, tensor: &str, (axis, dim): (usize, &str), node: &ParsedExpr, subscript: &Expr, filled: bool) -> bool {
        let size = self.header.dims.get(dim).and_then(|size| size.eval(&self.header.sizes).ok());
        let (Some((least, most)), Some(size)) = (subscript::reach(self.header, subscript), size) else {
            if !filled {
                let why = "the places that it reaches do not fit in 64 bits".to_string();
                self.problems.add(node.place, Problem::Subscript { tensor: tensor.into(), subscript: node.to_string(), why });
            }
            return false;
        };
        let inside = least >= 0 && most < size;
        if !inside && !filled {
            let (tensor, subscript, dim) = (tensor.to_string(), node.to_string(), dim.to_string());
            self.problems.add(node.place, Problem::Outside { tensor, subscript, axis: axis as u32 + 1, dim, least, most, last: size - 1 });
        }
        inside
    }

    /// The same indices in an order that fits the dims, where the given one does not.
    fn reordered(&self, indices: &[Name], dims: &[String]) -> Option<Vec<String>> {
        let size = |name: &str| self.header.dims.get(name);
        let fits = |index: &str, dim: &str| size(index).is_some() && size(index) == size(dim);
        let mut left: Vec<&str> = indices.iter().map(|i| i.text.as_str()).collect();
        if left.iter().zip(dims).all(|(index, dim)| fits(index, dim)) {
            return None;
        }
        let mut meant = vec![];
        for dim in dims {
            let at = left.iter().position(|index| index == dim).or_else(|| left.iter().position(|index| fits(index, dim)))?;
            meant.push(left.remove(at).to_string());
        }
        Some(meant)
    }

    /// Reports indices that are no dims.
    fn known(&mut self, indices: &[Name]) {
        for index in indices.iter().filter(|index| !self.header.is_index(&index.text)) {
            let problem = self.header.unknown_dim(&index.text);
            self.problems.add(index.place, problem);
        }
    }

    /// Reports indices of an assigned tensor that are no dims, and those that stand twice.
    pub fn distinct(&mut self, tensor: &str, indices: &[Name]) {
        self.known(indices);
        for (n, index) in indices.iter().enumerate().filter(|(_, index)| self.header.is_index(&index.text)) {
            if indices.iter().take(n).any(|other| other.text == index.text) {
                let problem = self.diagonal(tensor, indices, n);
                self.problems.add(index.place, problem);
            }
        }
    }

    /// What to write in the place of an assigned tensor whose index `n` stands there before: another dim of that size, and a mask.
    fn diagonal(&self, tensor: &str, indices: &[Name], n: usize) -> Problem {
        let (index, size) = (&indices[n].text, self.header.dims.get(&indices[n].text));
        let is_free = |name: &&String| indices.iter().all(|i| i.text != **name);
        let known = self.header.dims.iter().find(|(name, of)| Some(*of) == size && is_free(name)).map(|(name, _)| name.clone());
        let declared = known.is_some();
        let fresh = || (2..).map(|n| format!("{index}{n}")).find(|name| !self.header.is_index(name)).unwrap_or_default();
        let other = known.unwrap_or_else(fresh);
        let assigned = indices.iter().enumerate().map(|(m, i)| if m == n { other.as_str() } else { i.text.as_str() });
        let (tensor, index, assigned) = (tensor.to_string(), index.clone(), assigned.collect::<Vec<_>>().join(","));
        Problem::AssignedDiagonal { tensor, index, other, assigned, declared }
    }
}

impl StepContext for Resolver<'_> {
    fn header(&self) -> &Header {
        self.header
    }

    fn problems(&mut self) -> &mut Problems {
        self.problems
    }

    fn value(&mut self, node: &ParsedExpr, kept: &[String]) -> Option<StepValue> {
        match &node.ast {
            Ast::Binary(Binary::Mul | Binary::Div, ..) | Ast::Negative(_) | Ast::Access(..) | Ast::Word(_) => self.product(node, kept),
            Ast::Number(value) => Some(StepValue::Scalar(Scalar::Const(*value))),
            Ast::Binary(op, a, b) => {
                let (a, b) = (self.value(a, kept), self.value(b, kept));
                Some(StepValue::binary(*op, a?, b?))
            }
            Ast::Call(name, arguments) => operators::call(self, node.place, name, arguments, kept),
            Ast::List(_) | Ast::Slice(..) => {
                self.problems.add(node.place, Problem::Syntax("a list in brackets can only follow `over:`".into()));
                None
            }
        }
    }

    fn occurring(&self, node: &ParsedExpr) -> Vec<String> {
        let mut found: Vec<String> = Vec::new();
        let mut add = |indices: Vec<String>| {
            for index in indices {
                if !found.contains(&index) {
                    found.push(index);
                }
            }
        };
        match &node.ast {
            Ast::Number(_) | Ast::List(_) => {}
            Ast::Word(name) => match self.header.tensors.get(name) {
                Some(tensor) => add(tensor.dims.clone()),
                None if self.header.is_index(name) && !self.header.constants.contains_key(name) => add(vec![name.clone()]),
                None => {}
            },
            Ast::Access(_, subscripts, _) => subscripts.iter().for_each(|subscript| add(subscript::indices(subscript, self.header))),
            Ast::Negative(_) | Ast::Binary(..) | Ast::Slice(..) => node.parts().into_iter().for_each(|part| add(self.occurring(part))),
            Ast::Call(name, arguments) => {
                let bound = operators::bound(name, arguments);
                for argument in operators::operands(name, arguments) {
                    add(self.occurring(argument).into_iter().filter(|index| !bound.contains(index)).collect());
                }
            }
        }
        found
    }
}

/// The factors of a product, through brackets and signs; `true` for those that divide.
fn flatten<'a>(node: &'a ParsedExpr, below: bool, into: &mut Vec<(&'a ParsedExpr, bool)>) {
    static MINUS: ParsedExpr = ParsedExpr { place: SourceLocation::START, ast: Ast::Number(-1.0) };
    match &node.ast {
        Ast::Binary(Binary::Mul, a, b) => {
            flatten(a, below, into);
            flatten(b, below, into);
        }
        Ast::Binary(Binary::Div, a, b) => {
            flatten(a, below, into);
            flatten(b, !below, into);
        }
        Ast::Negative(a) => {
            into.push((&MINUS, below));
            flatten(a, below, into);
        }
        _ => into.push((node, below)),
    }
}

/// The products within a product that stand in brackets: without any, only the left of two factors is one.
fn bracketed(node: &ParsedExpr) -> Vec<&ParsedExpr> {
    match &node.ast {
        Ast::Binary(Binary::Mul | Binary::Div, a, b) => {
            let own = matches!(&b.ast, Ast::Binary(Binary::Mul | Binary::Div, ..)).then_some(&**b);
            own.into_iter().chain(bracketed(a)).chain(bracketed(b)).collect()
        }
        Ast::Negative(of) => bracketed(of),
        _ => vec![],
    }
}
