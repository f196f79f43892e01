//! Which points of a forward operation read an element, seen from the element: a gradient gathers what they hand back.
//!
//! Each subscript of the operand is an equation between an element's place and the indices of the forward operation. It is solved for one
//! index, the one with the most values:
//!
//! ```text
//! x[p + r - 1]      p = h - r + 1
//! x[2*p + r - 1]    p = (h - r + 1) / 2 where (h - r + 1) % 2 = 0
//! x[7]              h = 7
//! x[floor(p / 2)]   p = 2*h + t, with t from 0 to 1
//! ```
//!
//! Elsewhere, and where `p` leaves its dim, no point reads the element.

use super::*;
use crate::affine::{Affine, never_negative};
use crate::scalar::{Binary, Scalar};
use indexmap::IndexMap;
use std::collections::BTreeMap;

/// The points of an operation that read an element of one operand.
pub(super) struct Readers {
    /// Index → dim: those of the element, then the forward indices that are left, which are summed.
    pub indices: IndexMap<String, String>,
    /// The element's place.
    pub subscripts: Vec<Expr>,
    /// Each forward index that the equations are solved for.
    pub with: BTreeMap<String, Expr>,
    /// Dims that only this gradient runs along, with their sizes.
    pub dims: Vec<(String, Expr)>,
    /// What is 0 where a point reads the element.
    pub zeros: Vec<Expr>,
    /// Indices of `with` that may leave their dim, with its size.
    pub ranges: Vec<(String, Expr)>,
}

impl Readers {
    /// # Errors
    /// A subscript that is neither affine nor a rounded quotient of what is affine.
    pub(super) fn of(forward: &Operation, program: &Sdfg, operand: &Operand) -> Result<Readers, OperatorError> {
        Readers::within(forward, program, operand, false)
    }

    /// As [`Readers::of`]; with `part` of the elements alone that lie at the constant subscripts of the operand.
    ///
    /// # Errors
    /// As [`Readers::of`].
    pub(super) fn within(forward: &Operation, program: &Sdfg, operand: &Operand, part: bool) -> Result<Readers, OperatorError> {
        let container = declared(forward, program, &operand.data)?;
        let sizes: IndexMap<&str, Expr> = forward.indices.iter().map(|(name, dim)| (name.as_str(), program.size_of(dim))).collect();
        let mut left = forward.indices.clone();
        let mut element: Vec<Option<(String, String)>> = vec![None; operand.subscripts.len()];
        // An index that runs over the whole dim is that of the element.
        for (n, (subscript, dim)) in operand.subscripts.iter().zip(&container.dims).enumerate() {
            let Some(name) = subscript.as_sym() else { continue };
            if sizes.get(name) == Some(&program.size_of(dim))
                && let Some(along) = left.shift_remove(name)
            {
                element[n] = Some((name.to_string(), along));
            }
        }
        let mut solved =
            Readers { indices: IndexMap::new(), subscripts: vec![], with: BTreeMap::new(), dims: vec![], zeros: vec![], ranges: vec![] };
        let mut more: IndexMap<String, String> = IndexMap::new();
        for (n, (subscript, dim)) in operand.subscripts.iter().zip(&container.dims).enumerate() {
            if element[n].is_some() || (part && subscript.as_int().is_some()) {
                continue;
            }
            let names: Vec<String> =
                forward.indices.keys().chain(more.keys()).chain(element.iter().flatten().map(|(name, _)| name)).cloned().collect();
            let taken = |name: &str| names.iter().any(|known| known == name);
            let at = fresh(dim, &taken);
            element[n] = Some((at.clone(), dim.clone()));
            let place = Expr::sym(at.as_str());
            let (mut whole, mut equals) = (subscript.substitute(&solved.with), place);
            if let Expr::FloorDiv(dividend, by) = whole.clone()
                && by.as_int().is_some_and(|by| by > 0)
            {
                let rest = fresh(&format!("{dim}_rest"), &|name| name == at || taken(name));
                let along = new_dim(program, &solved.dims, &rest, (*by).clone());
                equals = (*by).clone() * equals + Expr::sym(rest.as_str());
                whole = *dividend;
                more.insert(rest, along.0.clone());
                solved.dims.extend(along.1.then_some((along.0, *by)));
            }
            let refused = || {
                let why = format!("`{subscript}` is no sum of multiples of indices, sizes and numbers; copy the elements read first");
                not_differentiable(forward, &operand.connector, &why)
            };
            let form = Affine::of(&whole, &|name| left.contains_key(name)).ok_or_else(refused)?;
            let values = |index: &String| sizes.get(index.as_str()).and_then(|size| size.eval(&program.sizes).ok()).unwrap_or(0);
            let most = form.terms.iter().max_by_key(|(index, by)| (values(index), std::cmp::Reverse(by.unsigned_abs())));
            let Some((index, by)) = most else {
                solved.zeros.push(canonical(&(equals - whole)));
                continue;
            };
            let rest = form.without(index).expr();
            let multiple = if *by > 0 { equals - rest } else { rest - equals };
            let (multiple, by) = (canonical(&multiple), Expr::Int(by.saturating_abs()));
            if by != Expr::Int(1) {
                solved.zeros.push(multiple.clone().modulo(by.clone()));
            }
            let with = BTreeMap::from([(index.clone(), multiple.floor_div(by))]);
            for known in solved.with.values_mut().chain(&mut solved.zeros) {
                *known = canonical(&known.substitute(&with));
            }
            left.shift_remove(index);
            solved.with.extend(with);
        }
        let place =
            |(found, own): (&Option<(String, String)>, &Expr)| found.as_ref().map_or(own.clone(), |(name, _)| Expr::sym(name.as_str()));
        solved.subscripts = element.iter().zip(&operand.subscripts).map(place).collect();
        let element: Vec<(String, String)> = element.into_iter().flatten().collect();
        solved.indices = element.into_iter().chain(left).chain(more).collect();
        let size = |name: &str| solved.size(program, name);
        let ranges = solved.with.iter().filter_map(|(index, at)| {
            let all = sizes.get(index.as_str())?.clone();
            let inside = never_negative(at, &size) && never_negative(&(all.clone() - Expr::Int(1) - at.clone()), &size);
            (!inside).then(|| (index.clone(), all))
        });
        solved.ranges = ranges.collect();
        Ok(solved)
    }

    fn size(&self, program: &Sdfg, index: &str) -> Option<Expr> {
        let dim = self.indices.get(index)?;
        Some(self.dims.iter().find(|(name, _)| name == dim).map_or_else(|| program.size_of(dim), |(_, size)| size.clone()))
    }

    /// Whether every point of the operation reads an element of its own, and all are read.
    pub(super) fn is_plain(&self) -> bool {
        self.with.is_empty() && self.zeros.is_empty()
    }

    /// Whether something is summed.
    pub(super) fn sums(&self) -> bool {
        self.indices.len() > self.subscripts.iter().filter(|subscript| subscript.as_sym().is_some()).count()
    }

    /// An operand of the forward operation, or the gradient of its result, seen from the element. What it reads where an index leaves its
    /// dim is 0, unless it has a value for that.
    pub(super) fn seen(&self, operand: &Operand) -> Operand {
        if self.with.is_empty() {
            return operand.clone();
        }
        let leaves = |name: &str| self.ranges.iter().any(|(index, _)| index == name);
        let outside = operand.subscripts.iter().flat_map(Expr::symbols).any(|name| leaves(&name));
        let subscripts = operand.subscripts.iter().map(|e| canonical(&e.substitute(&self.with))).collect();
        let fill = operand.fill.or_else(|| outside.then_some(Fill(0.0)));
        Operand { subscripts, fill, ..operand.clone() }
    }

    /// Whether an operand, as [`Readers::seen`] gives it, is 0 wherever no point reads the element.
    pub(super) fn vanishes(&self, operands: &[&Operand], program: &Sdfg) -> bool {
        let guards = |operand: &Operand, index: &str, all: &Expr| {
            let container = program.containers.get(&operand.data);
            let is_its_size = |at: usize| container.and_then(|c| c.dims.get(at)).is_some_and(|dim| program.size_of(dim) == *all);
            let zero = operand.fill.is_none_or(|fill| fill == Fill(0.0));
            zero && operand.subscripts.iter().enumerate().any(|(n, e)| e.as_sym() == Some(index) && is_its_size(n))
        };
        self.zeros.is_empty() && self.ranges.iter().all(|(index, all)| operands.iter().any(|operand| guards(operand, index, all)))
    }

    /// `code` where a point reads the element, and 0 elsewhere.
    pub(super) fn selected(&self, code: Scalar, program: &Sdfg) -> Scalar {
        let size = |name: &str| self.size(program, name);
        let zero = || Scalar::Const(0.0);
        let mut conditions = Vec::new();
        for e in &self.zeros {
            conditions.push(Scalar::binary(Binary::Eq, Scalar::Index(e.clone()), zero()));
        }
        for (index, all) in &self.ranges {
            let Some(at) = self.with.get(index) else { continue };
            if !never_negative(at, &size) {
                conditions.push(Scalar::binary(Binary::Ge, Scalar::Index(at.clone()), zero()));
            }
            if !never_negative(&(all.clone() - Expr::Int(1) - at.clone()), &size) {
                conditions.push(Scalar::binary(Binary::Lt, Scalar::Index(at.clone()), Scalar::Index(all.clone())));
            }
        }
        let all = conditions.into_iter().reduce(|a, b| Scalar::binary(Binary::And, a, b));
        all.map_or(code.clone(), |all| Scalar::select(all, code, zero()))
    }

    /// Code of the forward operation seen from the element; comparisons of indices that hold everywhere, or nowhere, are decided.
    pub(super) fn code(&self, code: &Scalar, program: &Sdfg) -> Scalar {
        if self.with.is_empty() {
            return code.clone();
        }
        let size = |name: &str| self.size(program, name);
        let never = |e: Expr| never_negative(&e, &size);
        let number = |scalar: &Scalar| match scalar {
            Scalar::Index(e) => Some(e.clone()),
            Scalar::Const(value) if value.fract() == 0.0 && value.abs() < 2f64.powi(53) => Some(Expr::Int(*value as i64)),
            _ => None,
        };
        let less = |a: &Expr, b: &Expr| match (never(b.clone() - Expr::Int(1) - a.clone()), never(a.clone() - b.clone())) {
            (true, _) => Some(true),
            (_, true) => Some(false),
            _ => None,
        };
        let decided = |op: Binary, a: &Scalar, b: &Scalar| {
            let (a, b) = (number(a)?, number(b)?);
            match op {
                Binary::Lt => less(&a, &b),
                Binary::Ge => less(&a, &b).map(|known| !known),
                Binary::Gt => less(&b, &a),
                Binary::Le => less(&b, &a).map(|known| !known),
                _ => None,
            }
        };
        code.substitute(&self.with).rewrite(&mut |part| match &part {
            Scalar::Select(condition, yes, no) => match condition.as_ref() {
                Scalar::Binary(op, a, b) => match decided(*op, a, b) {
                    Some(true) => (**yes).clone(),
                    Some(false) => (**no).clone(),
                    None => part,
                },
                _ => part,
            },
            _ => part,
        })
    }

    /// An operation of the backward pass over these points.
    pub(super) fn operation(&self, forward: &Operation, op: Op, inputs: Vec<Operand>, target: &str) -> Operation {
        Operation {
            name: target.to_string(),
            op,
            indices: self.indices.clone(),
            inputs,
            outputs: vec![operand("out", target, &self.subscripts)],
            pass: Direction::Backward,
            origin: forward.origin.clone(),
        }
    }
}

/// `name`, or with a number that is not taken.
pub(super) fn fresh(name: &str, taken: &dyn Fn(&str) -> bool) -> String {
    if !taken(name) {
        return name.to_string();
    }
    (2..).map(|n| format!("{name}_{n}")).find(|name| !taken(name)).unwrap_or_default()
}

/// A dim of this name and size, and whether it must be declared: another operation may have declared it.
pub(super) fn new_dim(program: &Sdfg, declared: &[(String, Expr)], name: &str, size: Expr) -> (String, bool) {
    let known = |name: &str| {
        let here = declared.iter().find(|(known, _)| known == name).map(|(_, size)| size);
        here.or_else(|| program.dims.get(name))
    };
    let usable = |name: &str| known(name).is_none_or(|known| *known == size);
    let name = fresh(name, &|name| !usable(name));
    let declare = known(&name).is_none();
    (name, declare)
}

/// An expression in the form that equal affine ones share.
pub(super) fn canonical(e: &Expr) -> Expr {
    match e {
        Expr::FloorDiv(a, b) => canonical(a).floor_div(canonical(b)),
        Expr::Mod(a, b) => canonical(a).modulo(canonical(b)),
        _ => Affine::of(e, &|_| true).map_or_else(|| e.clone(), |affine| affine.expr()),
    }
}
