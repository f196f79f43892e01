//! Which statements are matrix products.

use crate::loopnest::{Element, MemorySpace, NestStatement, NestTensor, slope};
use sdfg::{Binary, Combine, Scalar};
use std::collections::BTreeSet;

/// A product of two values read, times a factor that depends on sizes only.
#[derive(Clone, Debug, PartialEq)]
pub struct Factors {
    /// Connectors.
    pub a: String,
    pub b: String,
    pub scale: Scalar,
}

/// The code as a product of two different connectors and a constant.
pub fn factors(code: &Scalar) -> Option<Factors> {
    fn collect<'a>(code: &'a Scalar, into: &mut Vec<&'a Scalar>) {
        match code {
            Scalar::Binary(Binary::Mul, a, b) => {
                collect(a, into);
                collect(b, into);
            }
            other => into.push(other),
        }
    }
    let mut all = Vec::new();
    collect(code, &mut all);
    let mut names = Vec::new();
    let mut scale: Option<Scalar> = None;
    for factor in all {
        match factor {
            Scalar::Input(connector) => names.push(connector.clone()),
            other if other.inputs().is_empty() && !other.drops() => {
                scale = Some(scale.map_or(other.clone(), |s| s * other.clone()));
            }
            _ => return None,
        }
    }
    match names.as_slice() {
        [a, b] if a != b => Some(Factors { a: a.clone(), b: b.clone(), scale: scale.unwrap_or(Scalar::Const(1.0)) }),
        _ => None,
    }
}

/// Whether a statement is a sum of products over an index that both factors have, and over none that one of
/// them lacks. Subscripts may be windows: affine, with a fill for what lies outside.
pub fn is_direct(statement: &NestStatement, is_index: &dyn Fn(&str) -> bool, is_local: &dyn Fn(&str) -> bool, everywhere: &[&str]) -> bool {
    let read = |connector: &str| statement.reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e);
    let found = factors(&statement.code).and_then(|f| Some((read(&f.a)?, read(&f.b)?, f.scale)));
    let Some((a, b, scale)) = found.filter(|_| statement.combine == Some(Combine::Sum)) else { return false };
    let mut varies = false;
    scale.walk(&mut |s| {
        if let Scalar::Index(e) = s {
            varies |= e.symbols().iter().any(|i| is_index(i));
        }
    });
    let indices = |element: &Element| -> BTreeSet<String> {
        let mut found: BTreeSet<String> = element.subscripts.iter().flat_map(|e| e.symbols()).filter(|s| is_index(s)).collect();
        if is_local(&element.data) {
            found.extend(everywhere.iter().map(|i| i.to_string()));
        }
        found
    };
    let outside = |e: &Element| is_local(&e.data) && e.fill.is_some();
    let affine = |e: &Element| is_affine(e, is_index);
    let plain = statement.write.subscripts.iter().all(|e| e.as_sym().is_some());
    if varies || outside(a) || outside(b) || !affine(a) || !affine(b) || !plain {
        return false;
    }
    let (a, b, mut out) = (indices(a), indices(b), indices(&statement.write));
    out.retain(|i| a.contains(i) || b.contains(i) || !everywhere.contains(&i.as_str()));
    let summed = a.intersection(&b).any(|i| !out.contains(i));
    let summed_alone = a.symmetric_difference(&b).any(|i| !out.contains(i));
    summed && !summed_alone && !out.is_empty() && out.iter().all(|i| a.contains(i) || b.contains(i))
}

/// Whether neighbours along every index are at equal distances.
fn is_affine(element: &Element, is_index: &dyn Fn(&str) -> bool) -> bool {
    element.subscripts.iter().all(|s| s.symbols().iter().all(|i| !is_index(i) || slope(s, i).is_some()))
}

/// Whether a statement walks windows: what it reads is subscripted by several indices at a time, or has a fill.
pub fn is_windowed(statement: &NestStatement, is_index: &dyn Fn(&str) -> bool) -> bool {
    let several = |e: &sdfg::Expr| e.symbols().iter().filter(|i| is_index(i)).count() > 1;
    statement.reads.iter().any(|(_, e)| e.fill.is_some() || e.subscripts.iter().any(several))
}

/// Whether products are made of a statement, read where they lie if `direct` asks for that or the statement walks windows.
pub fn is_product(
    statement: &NestStatement,
    is_index: &dyn Fn(&str) -> bool,
    tensors: &indexmap::IndexMap<String, NestTensor>,
    everywhere: &[&str],
    direct: bool,
) -> bool {
    let is_local = |data: &str| tensors.get(data).is_some_and(|t| t.space == MemorySpace::Local);
    let types: BTreeSet<String> = statement
        .reads
        .iter()
        .map(|(_, e)| e)
        .chain([&statement.write])
        .filter_map(|e| Some(tensors.get(&e.data)?.dtype.to_string()))
        .collect();
    let alike = types.len() == 1 && types.iter().all(|t| t == "f32" || t == "f64");
    let wanted = direct || is_windowed(statement, is_index);
    (wanted && alike && is_direct(statement, is_index, &is_local, everywhere)) || is_matmul(statement, is_index, &is_local, everywhere)
}

/// Whether a statement is a matrix product: a sum of products whose result has an index from each factor that the other lacks, and whose
/// factors share an index that the result lacks. `everywhere` are the outer indices: local containers have one copy for each of their
/// values, so every element of one depends on them although its subscripts do not name them.
pub fn is_matmul(statement: &NestStatement, is_index: &dyn Fn(&str) -> bool, is_local: &dyn Fn(&str) -> bool, everywhere: &[&str]) -> bool {
    if statement.combine != Some(Combine::Sum) {
        return false;
    }
    let Some(Factors { a, b, scale }) = factors(&statement.code) else { return false };
    let mut varies = false;
    scale.walk(&mut |s| {
        if let Scalar::Index(e) = s {
            varies |= e.symbols().iter().any(|i| is_index(i));
        }
    });
    let indices = |element: &Element| -> BTreeSet<String> {
        let mut found: BTreeSet<String> = element.subscripts.iter().flat_map(|e| e.symbols()).filter(|s| is_index(s)).collect();
        if is_local(&element.data) {
            found.extend(everywhere.iter().map(|i| i.to_string()));
        }
        found
    };
    let read = |connector: &str| statement.reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e);
    let (Some(a), Some(b)) = (read(&a), read(&b)) else { return false };
    let affine = |e: &Element| is_affine(e, is_index);
    if varies || a.fill.is_some() || b.fill.is_some() || !affine(a) || !affine(b) {
        return false;
    }
    let (a, b, out) = (indices(a), indices(b), indices(&statement.write));
    let depth: Vec<&String> = a.intersection(&b).filter(|i| !out.contains(*i)).collect();
    let alone = |x: &BTreeSet<String>, y: &BTreeSet<String>| x.difference(y).any(|i| out.contains(i));
    let summed_alone = a.symmetric_difference(&b).any(|i| !out.contains(i));
    !depth.is_empty() && alone(&a, &b) && alone(&b, &a) && !summed_alone
}
