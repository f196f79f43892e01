//! Factors that all terms of a sum share are applied to the sum: once for each result in the place of once for each term.
//!
//! A constant that a product is multiplied by right after becomes part of the product, which has a scale anyway. And where a
//! softmax stands before a product, what its rows are divided by is left until the product is done: `Σ_k (e[k] / s) v[k]` is
//! `(Σ_k e[k] v[k]) / s`, and the rows need not be walked once more.

use crate::loopnest::matmul_pattern::{factors, is_matmul};
use crate::loopnest::{Element, MemorySpace, NestStatement, NestTensor};
use crate::maps::flatten::{Flat, Flattened};
use sdfg::{Binary, Combine, Expr, Scalar};
use std::collections::BTreeSet;

/// Applies shared factors to sums.
pub fn share(flattened: &mut Flattened) {
    let mut at = 0;
    while at < flattened.statements.len() {
        if multiplies(flattened, at) {
            take_scale(flattened, at);
            at += leave_divisors(flattened, at);
        }
        at += 1;
    }
}

fn is_local(flattened: &Flattened, data: &str) -> bool {
    flattened.tensors.get(data).is_some_and(|t| t.space == MemorySpace::Local)
}

/// Whether a statement is a sum of products of two matrices.
fn multiplies(flattened: &Flattened, at: usize) -> bool {
    let Flat { inner, statement, .. } = &flattened.statements[at];
    let everywhere: Vec<&str> = flattened.outer.iter().map(|r| r.index.as_str()).collect();
    let is_index = |name: &str| everywhere.contains(&name) || inner.iter().any(|r| r.index == name);
    is_matmul(statement, &is_index, &|data| is_local(flattened, data), &everywhere)
}

/// The only statement that reads a container.
fn reader(flattened: &Flattened, data: &str) -> Option<usize> {
    let reads = |(_, f): &(usize, &Flat)| f.statement.reads.iter().any(|(_, e)| e.data == data);
    let mut readers = flattened.statements.iter().enumerate().filter(reads).map(|(n, _)| n);
    readers.next().filter(|_| readers.next().is_none())
}

/// The only statement that writes a container, if it does so element by element.
fn writer(flattened: &Flattened, data: &str) -> Option<usize> {
    let mut writers = flattened.statements.iter().enumerate().filter(|(_, f)| f.statement.write.data == data).map(|(n, _)| n);
    let only = writers.next().filter(|_| writers.next().is_none())?;
    flattened.statements[only].statement.combine.is_none().then_some(only)
}

/// `y = raw · c`, where nothing else reads the sum `raw`: the sum is made in `y` with `c` as its scale.
fn take_scale(flattened: &mut Flattened, at: usize) {
    let raw = flattened.statements[at].statement.write.clone();
    let Some(next) = reader(flattened, &raw.data).filter(|_| is_local(flattened, &raw.data)) else { return };
    let NestStatement { code, reads, write, combine, .. } = &flattened.statements[next].statement;
    let ([(connector, element)], None) = (reads.as_slice(), combine) else { return };
    let Some(scale) = constant_factor(code, connector) else { return };
    let alike = |data: &str| flattened.tensors.get(data).map(|t| (t.space.clone(), t.dtype, t.shape.clone()));
    let elementwise = *element == raw && write.subscripts == raw.subscripts && writer(flattened, &write.data) == Some(next);
    if !elementwise || alike(&raw.data) != alike(&write.data) {
        return;
    }
    let write = write.clone();
    let product = &mut flattened.statements[at].statement;
    product.code = product.code.clone() * scale;
    product.write = write;
    flattened.statements.remove(next);
    flattened.tensors.shift_remove(&raw.data);
}

/// What a product of one connector and constants multiplies the connector by.
fn constant_factor(code: &Scalar, connector: &str) -> Option<Scalar> {
    let Scalar::Binary(Binary::Mul, a, b) = code else { return None };
    let is_it = |s: &Scalar| matches!(s, Scalar::Input(c) if c == connector);
    let constant = |s: &Scalar| {
        let mut fixed = s.inputs().is_empty();
        s.walk(&mut |s| fixed &= !matches!(s, Scalar::Keep { .. } | Scalar::Kept { .. } | Scalar::Index(_)) || is_size(s));
        fixed
    };
    match (is_it(a), is_it(b)) {
        (true, false) if constant(b) => Some(b.as_ref().clone()),
        (false, true) if constant(a) => Some(a.as_ref().clone()),
        _ => None,
    }
}

/// Whether an integer depends on sizes alone, which are upper case.
fn is_size(code: &Scalar) -> bool {
    matches!(code, Scalar::Index(e) if e.symbols().iter().all(|s| s.chars().all(|c| !c.is_lowercase())))
}

/// Divides the result of a product instead of a factor that is made here for it alone, by whatever its summed indices do not
/// change. Returns how many statements were put after the product.
fn leave_divisors(flattened: &mut Flattened, at: usize) -> usize {
    let statement = &flattened.statements[at].statement;
    let out = statement.write.clone();
    let summed: BTreeSet<String> = flattened.statements[at]
        .inner
        .iter()
        .filter(|r| !out.subscripts.iter().any(|e| e.symbols().contains(&r.index)))
        .map(|r| r.index.clone())
        .collect();
    let Some(both) = factors(&statement.code) else { return 0 };
    let read = |connector: &str| statement.reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e.clone());
    for (connector, other) in [(&both.a, &both.b), (&both.b, &both.a)] {
        let (Some(factor), Some(other)) = (read(connector), read(other)) else { continue };
        if factor.data == other.data {
            continue;
        }
        if let Some((made, by)) = divisor(flattened, at, &factor, &summed) {
            return divide(flattened, at, made, by);
        }
    }
    0
}

/// The statement that divides a factor or something that it alone is made of, and what by.
fn divisor(flattened: &Flattened, user: usize, factor: &Element, summed: &BTreeSet<String>) -> Option<(usize, Element)> {
    if !is_local(flattened, &factor.data) || reader(flattened, &factor.data) != Some(user) {
        return None;
    }
    let made = writer(flattened, &factor.data).filter(|m| *m < user)?;
    let NestStatement { code, reads, write, .. } = &flattened.statements[made].statement;
    if write.subscripts != factor.subscripts {
        return None;
    }
    let element = |connector: &str| reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e);
    let fixed = |e: &Element| !e.subscripts.iter().flat_map(Expr::symbols).any(|s| summed.contains(&s)) && e.fill.is_none();
    if let Some(connector) = divides(code)
        && let Some(by) = element(&connector).filter(|e| fixed(e))
    {
        return Some((made, by.clone()));
    }
    multiplied(code).iter().find_map(|c| divisor(flattened, made, element(c).filter(|e| e.subscripts == write.subscripts)?, summed))
}

/// The connector that a product of terms is divided by.
fn divides(code: &Scalar) -> Option<String> {
    match code {
        Scalar::Binary(Binary::Div, a, by) => match by.as_ref() {
            Scalar::Input(connector) if !a.inputs().contains(connector) => Some(connector.clone()),
            _ => divides(a),
        },
        Scalar::Binary(Binary::Mul, a, b) => divides(a).or_else(|| divides(b)),
        _ => None,
    }
}

fn without(code: &Scalar, divisor: &str) -> Scalar {
    match code {
        Scalar::Binary(Binary::Div, a, by) if matches!(by.as_ref(), Scalar::Input(c) if c == divisor) => a.as_ref().clone(),
        Scalar::Binary(op, a, b) => Scalar::binary(*op, without(a, divisor), without(b, divisor)),
        other => other.clone(),
    }
}

/// The connectors that are factors of a product.
fn multiplied(code: &Scalar) -> Vec<String> {
    match code {
        Scalar::Input(connector) => vec![connector.clone()],
        Scalar::Binary(Binary::Mul, a, b) => multiplied(a).into_iter().chain(multiplied(b)).collect(),
        Scalar::Binary(Binary::Div, a, _) => multiplied(a),
        _ => vec![],
    }
}

/// Takes the division by an element out of statement `made`, and puts it after the product at `at`, which sums in a local of its
/// own.
fn divide(flattened: &mut Flattened, at: usize, made: usize, by: Element) -> usize {
    let out = flattened.statements[at].statement.write.clone();
    let inner: Vec<_> = flattened.statements[at].inner.clone();
    let within = |e: &&Expr| inner.iter().any(|r| e.as_sym() == Some(&r.index));
    let plain = out.subscripts.iter().all(|e| e.as_sym().is_some());
    let elements = |f: &Flat| f.inner.iter().map(|r| r.count).product::<i64>();
    // What outer iterations add up is divided in each of them.
    let named = |index: &str| out.subscripts.iter().any(|e| e.as_sym().is_some_and(|s| s == index));
    let whole = is_local(flattened, &out.data) || flattened.outer.iter().all(|r| r.count == 1 || named(&r.index));
    let (Some(tensor), true) = (flattened.tensors.get(&out.data).cloned(), plain && whole) else { return 0 };
    let subscripts: Vec<Expr> = out.subscripts.iter().filter(within).cloned().collect();
    let shape: Vec<i64> = out.subscripts.iter().zip(&tensor.shape).filter(|(e, _)| within(e)).map(|(_, n)| *n).collect();
    if elements(&flattened.statements[made]) < 2 * shape.iter().product::<i64>() {
        return 0;
    }
    let sum = Element { data: flattened.fresh_name(format!("{}.undivided", out.data)), subscripts, fill: None };
    let statement = &mut flattened.statements[made].statement;
    let Some((connector, _)) = statement.reads.iter().find(|(_, e)| *e == by).cloned() else { return 0 };
    statement.code = without(&statement.code, &connector);
    statement.reads.retain(|(c, _)| *c != connector);
    let kept = inner.iter().filter(|r| out.subscripts.iter().any(|e| e.as_sym() == Some(&r.index))).cloned().collect();
    let divided = NestStatement {
        name: flattened.statements[at].statement.name.clone(),
        code: Scalar::binary(Binary::Div, Scalar::input("sum"), Scalar::input("by")),
        reads: vec![("sum".into(), sum.clone()), ("by".into(), by)],
        write: out,
        combine: None,
    };
    let dtype = tensor.dtype.accumulator();
    flattened.tensors.insert(sum.data.clone(), NestTensor { space: MemorySpace::Local, dtype, shape, stored: true });
    debug_assert_eq!(flattened.statements[at].statement.combine, Some(Combine::Sum));
    flattened.statements[at].statement.write = sum;
    flattened.statements.insert(at + 1, Flat { inner: kept, statement: divided, is_gemm: false });
    usize::from(!drop_copy(flattened, made, at))
}

/// A statement that only copies a local for the product at `at` is left out. Returns whether it was one.
fn drop_copy(flattened: &mut Flattened, made: usize, at: usize) -> bool {
    let NestStatement { code, reads, write, .. } = flattened.statements[made].statement.clone();
    let (Scalar::Input(_), [(_, from)]) = (&code, reads.as_slice()) else { return false };
    let alike = |data: &str| flattened.tensors.get(data).map(|t| (t.space.clone(), t.dtype, t.shape.clone()));
    if !is_local(flattened, &from.data) || from.subscripts != write.subscripts || alike(&from.data) != alike(&write.data) {
        return false;
    }
    for (_, element) in flattened.statements[at].statement.reads.iter_mut().filter(|(_, e)| e.data == write.data) {
        element.data = from.data.clone();
    }
    let unread = flattened.statements.iter().all(|f| f.statement.reads.iter().all(|(_, e)| e.data != write.data));
    if unread {
        flattened.statements.remove(made);
        flattened.tensors.shift_remove(&write.data);
    }
    unread
}
