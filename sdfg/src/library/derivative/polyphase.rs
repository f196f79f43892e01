//! A window of stride `s` taken apart into `s` windows of stride 1, one for each remainder of the place that is read.
//!
//! With `r = s·t + f` and places counted as `h - o = s·w + d·f`,
//!
//! ```text
//! y[p] = Σ_r k[r] · x[s·p + d·r + o]    is    y[p] = Σ_t,f k[s·t + f else 0] · x'[f, p + d·t]
//! ```
//!
//! So the gradient of `x'` is a contraction over windows of stride 1, in which no place is visited in vain but for the taps that a phase
//! lacks, and the gradient of `x` picks its elements from it. In space this is a sub-pixel convolution (Shi et al., CVPR 2016).

use super::readers::{canonical, fresh, new_dim};
use super::*;
use crate::affine::Affine;
use crate::scalar::{Binary, Scalar};
use indexmap::IndexMap;
use std::collections::BTreeMap;

/// The same operation over phases, and how the elements of an operand lie in them.
pub(super) struct Split {
    operation: Operation,
    /// Over phases, in the place of the operand.
    container: Container,
    dims: Vec<(String, Expr)>,
    /// Dims and subscripts of the operand's own elements, and where each lies in the phases.
    elements: IndexMap<String, String>,
    own: Vec<Expr>,
    there: Vec<Expr>,
    /// What is 0 for elements that some point reads.
    zeros: Vec<Expr>,
    /// Each index that is taken apart: its value, and its size, which a phase may reach beyond.
    taps: Vec<(String, Expr, Expr)>,
    /// Whether taps beyond a window's size are left to [`Split::masked`].
    is_masked: bool,
    target: String,
}

/// A dim of the operand under `stride · at + dilation · tap + offset`.
struct Strided {
    stride: i64,
    at: String,
    tap: Option<(String, i64)>,
    offset: Expr,
}

fn strided(subscript: &Expr, operation: &Operation, program: &Sdfg) -> Option<Strided> {
    let form = Affine::of(subscript, &|name| operation.indices.contains_key(name))?;
    let values = |index: &str| operation.indices.get(index).and_then(|dim| program.size_of(dim).eval(&program.sizes).ok()).unwrap_or(0);
    let mut terms = form.terms;
    terms.sort_by_key(|(index, by)| (std::cmp::Reverse(values(index)), by.unsigned_abs()));
    match terms.as_slice() {
        [(at, stride @ 2..)] => Some(Strided { stride: *stride, at: at.clone(), tap: None, offset: form.offset }),
        [(at, stride @ 2..), (tap, dilation @ 1..)] => {
            Some(Strided { stride: *stride, at: at.clone(), tap: Some((tap.clone(), *dilation)), offset: form.offset })
        }
        _ => None,
    }
}

/// Takes a contraction apart if an operand of it is a window of a larger stride. `None` where it has none, or an index of the window
/// subscripts something else than one dim of each operand. Taps that a phase lacks are 0 in another operand, or masked by the caller.
pub(super) fn split(
    forward: &Operation,
    program: &Sdfg,
    connector: &str,
    target: &str,
    is_masked: bool,
) -> Result<Option<Split>, OperatorError> {
    let mine = forward.need_input(connector)?;
    let container = declared(forward, program, &mine.data)?;
    let found: Vec<Option<Strided>> = mine.subscripts.iter().map(|subscript| strided(subscript, forward, program)).collect();
    if found.iter().all(Option::is_none) {
        return Ok(None);
    }
    let mut split = Split {
        operation: forward.clone(),
        container: transient(forward, program, format!("{target}.phases"), &[], mine)?,
        dims: vec![],
        elements: IndexMap::new(),
        own: vec![],
        there: vec![],
        zeros: vec![],
        taps: vec![],
        is_masked,
        target: target.to_string(),
    };
    let mut inside = Vec::new();
    for (n, (subscript, dim)) in mine.subscripts.iter().zip(&container.dims).enumerate() {
        let taken = |name: &str| forward.indices.contains_key(name) || split.elements.contains_key(name);
        let whole = |name: &&str| forward.indices.get(*name).is_some_and(|along| program.size_of(along) == program.size_of(dim));
        let once = |name: &str| mine.subscripts.iter().filter(|e| e.symbols().contains(name)).count() == 1;
        let Some(strided) = &found[n] else {
            // A dim without a larger stride stays what it is.
            let at = subscript.as_sym().filter(whole).filter(|name| once(name)).map_or_else(|| fresh(dim, &taken), str::to_string);
            split.own.push(Expr::sym(at.as_str()));
            split.there.push(Expr::sym(at.as_str()));
            split.elements.insert(at, dim.clone());
            split.container.dims.push(dim.clone());
            inside.push(subscript.clone());
            continue;
        };
        let at = fresh(dim, &taken);
        if !once(&strided.at) || strided.tap.as_ref().is_some_and(|(tap, _)| !once(tap)) || !split.dim(strided, &at, program, &mut inside) {
            return Ok(None);
        }
        split.own.push(Expr::sym(at.as_str()));
        split.elements.insert(at, dim.clone());
    }
    if split.container.dims.iter().enumerate().any(|(n, dim)| split.container.dims[..n].contains(dim)) {
        return Ok(None);
    }
    for input in split.operation.inputs.iter_mut().filter(|input| input.connector == connector) {
        *input = Operand { data: split.container.name.clone(), subscripts: inside.clone(), fill: input.fill, ..input.clone() };
        // Phases have a place for everything that is read along them; other dims may still be left.
        let stays = found.iter().zip(&mine.subscripts).any(|(found, e)| found.is_none() && e.as_sym().is_none());
        input.fill = input.fill.filter(|_| stays);
    }
    Ok(Some(split))
}

impl Split {
    /// Takes one dim apart. `false` where the window's index does not subscript one dim of the other operand alone.
    fn dim(&mut self, strided: &Strided, at: &str, program: &Sdfg, inside: &mut Vec<Expr>) -> bool {
        let place = canonical(&(Expr::sym(at) - strided.offset.clone()));
        let size = |dims: &[(String, Expr)], index: &str, operation: &Operation| {
            let dim = operation.indices.get(index).cloned().unwrap_or_default();
            dims.iter().find(|(name, _)| *name == dim).map_or_else(|| program.size_of(&dim), |(_, size)| size.clone())
        };
        let Some((tap, dilation)) = &strided.tap else {
            // Every `stride`-th element is read, once for each value of the index.
            let Some(dim) = self.operation.indices.get(&strided.at).cloned() else { return false };
            inside.push(Expr::sym(strided.at.as_str()));
            self.container.dims.push(dim);
            self.zeros.push(place.clone().modulo(Expr::Int(strided.stride)));
            self.there.push(place.floor_div(Expr::Int(strided.stride)));
            return true;
        };
        let common = gcd(strided.stride, *dilation);
        let (stride, dilation) = (strided.stride / common, dilation / common);
        let (taps, places) = (size(&self.dims, tap, &self.operation), size(&self.dims, &strided.at, &self.operation));
        if common > 1 {
            self.zeros.push(place.clone().modulo(Expr::Int(common)));
        }
        let place = place.floor_div(Expr::Int(common));
        let reached = |taps: Expr| canonical(&(places.clone() + Expr::Int(dilation) * (taps - Expr::Int(1))));
        if stride == 1 {
            let (along, new) = new_dim(program, &self.dims, &format!("{at}_at"), reached(taps.clone()));
            self.dims.extend(new.then(|| (along.clone(), reached(taps))));
            inside.push(canonical(&(Expr::sym(strided.at.as_str()) + Expr::Int(dilation) * Expr::sym(tap.as_str()))));
            self.container.dims.push(along);
            self.there.push(place);
            return true;
        }
        let phases = Expr::Int(stride).min(taps.clone());
        let own_taps = (taps.clone() + Expr::Int(stride - 1)).floor_div(Expr::Int(stride));
        let mut declare = |name: String, size: Expr| {
            let (name, new) = new_dim(program, &self.dims, &name, size.clone());
            self.dims.extend(new.then(|| (name.clone(), size)));
            name
        };
        let (phase, step) = (declare(format!("{tap}_phase"), phases), declare(format!("{tap}_tap"), own_taps.clone()));
        let along = declare(format!("{at}_at"), reached(own_taps));
        let indices = &self.operation.indices;
        let (f, t) = (fresh(&phase, &|name| indices.contains_key(name)), fresh(&step, &|name| indices.contains_key(name)));
        // The other operand, or the result, must lack a tap that a phase does not have.
        let whole = canonical(&(Expr::Int(stride) * Expr::sym(t.as_str()) + Expr::sym(f.as_str())));
        let with = BTreeMap::from([(tap.clone(), whole)]);
        let guards = |operand: &Operand| {
            let container = program.containers.get(&operand.data);
            let is_whole = |n: usize| container.and_then(|c| c.dims.get(n)).is_some_and(|dim| program.size_of(dim) == taps);
            operand.subscripts.iter().enumerate().any(|(n, e)| e.as_sym() == Some(tap) && is_whole(n))
        };
        let mut guarded = false;
        for operand in &mut self.operation.inputs {
            if !operand.subscripts.iter().any(|e| e.symbols().contains(tap)) || operand.subscripts.iter().any(|e| is_window(e, &strided.at))
            {
                continue;
            }
            guarded |= guards(operand) && operand.fill.is_none_or(|fill| fill == Fill(0.0));
            operand.fill = operand.fill.or(Some(Fill(0.0)));
            operand.subscripts = operand.subscripts.iter().map(|e| canonical(&e.substitute(&with))).collect();
        }
        let written = self.operation.outputs.iter().flat_map(|o| &o.subscripts).any(|e| e.symbols().contains(tap));
        if !(guarded || self.is_masked) || written {
            return false;
        }
        self.taps.extend(with.into_iter().map(|(tap, whole)| (tap, whole, taps.clone())));
        let indices = self.operation.indices.iter().flat_map(|(index, dim)| match index == tap {
            true => vec![(f.clone(), phase.clone()), (t.clone(), step.clone())],
            false => vec![(index.clone(), dim.clone())],
        });
        self.operation.indices = indices.collect();
        inside.push(Expr::sym(f.as_str()));
        inside.push(canonical(&(Expr::sym(strided.at.as_str()) + Expr::Int(dilation) * Expr::sym(t.as_str()))));
        self.container.dims.extend([phase, along]);
        let Some(inverse) = (1..=stride).find(|inverse| (inverse * dilation) % stride == 1 % stride) else { return false };
        let own_phase = canonical(&(Expr::Int(inverse) * place.clone())).modulo(Expr::Int(stride));
        self.there.push(own_phase.clone());
        self.there.push(match dilation {
            1 => place.floor_div(Expr::Int(stride)),
            _ => (place - Expr::Int(dilation) * own_phase).floor_div(Expr::Int(stride)),
        });
        true
    }

    /// Code of the operation over phases: 0 at taps that a phase lacks.
    pub(super) fn masked(&self, code: &Scalar) -> Scalar {
        let with = self.taps.iter().map(|(tap, whole, _)| (tap.clone(), whole.clone())).collect();
        let exists =
            |(_, whole, size): &(String, Expr, Expr)| Scalar::binary(Binary::Lt, Scalar::Index(whole.clone()), Scalar::Index(size.clone()));
        let exist = self.taps.iter().map(exists).reduce(|a, b| Scalar::binary(Binary::And, a, b));
        let code = code.substitute(&with);
        exist.map_or(code.clone(), |exist| Scalar::select(exist, code, Scalar::Const(0.0)))
    }

    /// Whether a window is taken apart, not only every so many elements picked.
    pub(super) fn has_taps(&self) -> bool {
        !self.taps.is_empty()
    }

    /// The gradient of the phases, and that of the operand picked from it.
    pub(super) fn gradient(
        self,
        of_phases: impl FnOnce(&Operation, &Container, &[(String, Expr)], &str) -> Result<Derivative, OperatorError>,
    ) -> Result<Derivative, OperatorError> {
        let mut derivative = of_phases(&self.operation, &self.container, &self.dims, &self.container.name)?;
        let none = |e: &Expr| Scalar::binary(Binary::Eq, Scalar::Index(e.clone()), Scalar::Const(0.0));
        let read = self.zeros.iter().map(none).reduce(|a, b| Scalar::binary(Binary::And, a, b));
        let code = match read {
            Some(read) => Scalar::select(read, Scalar::input("x"), Scalar::Const(0.0)),
            None => Scalar::input("x"),
        };
        derivative.operations.push(Operation {
            name: self.target.clone(),
            op: Op::Elementwise { label: "interleave".into(), code },
            indices: self.elements,
            inputs: vec![Operand {
                connector: "x".into(),
                data: self.container.name.clone(),
                subscripts: self.there,
                fill: Some(Fill(0.0)),
            }],
            outputs: vec![operand("out", &self.target, &self.own)],
            pass: Direction::Backward,
            origin: self.operation.origin.clone(),
        });
        derivative.containers.push(self.container);
        derivative.dims.splice(0..0, self.dims);
        Ok(derivative)
    }
}

/// Whether a subscript reads along an index in larger steps, or together with others.
fn is_window(subscript: &Expr, index: &str) -> bool {
    subscript.symbols().contains(index) && subscript.as_sym().is_none()
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
