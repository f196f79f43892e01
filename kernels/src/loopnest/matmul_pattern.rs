//! Which statements are matrix products.

use crate::loopnest::{Element, NestStatement};
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

/// Whether a statement is a matrix product: a sum of products whose result has an index from each factor that the other lacks, and whose
/// factors share an index that the result lacks. `everywhere` are the outer indices: local containers have one copy for each of their values,
/// so every element of one depends on them although its subscripts do not name them.
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
    if varies || a.fill.is_some() || b.fill.is_some() {
        return false;
    }
    let (a, b, out) = (indices(a), indices(b), indices(&statement.write));
    let depth: Vec<&String> = a.intersection(&b).filter(|i| !out.contains(*i)).collect();
    let alone = |x: &BTreeSet<String>, y: &BTreeSet<String>| x.difference(y).any(|i| out.contains(i));
    let summed_alone = a.symmetric_difference(&b).any(|i| !out.contains(i));
    !depth.is_empty() && alone(&a, &b) && alone(&b, &a) && !summed_alone
}
