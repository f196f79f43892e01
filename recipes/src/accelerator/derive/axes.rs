//! Subscripts as numbers: how far an operand's channels, rows and columns depend on the indices of an operation.

use super::super::layers::Reach;
use sdfg::{Bindings, Expr, Operation, Sdfg};
use std::collections::BTreeMap;

/// `constant + Σ coefficient · index`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct AffineSubscript {
    pub constant: i64,
    pub slopes: BTreeMap<String, i64>,
}

/// The indices of an operation with their sizes.
pub struct Indices {
    sizes: BTreeMap<String, i64>,
    bindings: Bindings,
}

impl Indices {
    pub fn of(program: &Sdfg, operation: &Operation) -> Option<Indices> {
        let size = |(index, dim): (&String, &String)| Some((index.clone(), program.size_of(dim).eval(&program.sizes).ok()?));
        Some(Indices { sizes: operation.indices.iter().map(size).collect::<Option<_>>()?, bindings: program.sizes.clone() })
    }

    pub fn size(&self, index: &str) -> i64 {
        self.sizes.get(index).copied().unwrap_or(1)
    }

    /// The subscript as an affine form; `None` if it is none. Indices of size 1 do not count.
    pub fn affine(&self, subscript: &Expr) -> Option<AffineSubscript> {
        let value = |at: Option<(&str, i64)>| {
            let lookup = |name: &str| match at {
                Some((index, value)) if index == name => Some(value),
                _ if self.sizes.contains_key(name) => Some(0),
                _ => self.bindings.get(name).copied(),
            };
            subscript.eval_with(&lookup).ok()
        };
        let constant = value(None)?;
        let mut found = AffineSubscript { constant, slopes: BTreeMap::new() };
        for index in subscript.symbols() {
            let size = self.sizes.get(&index).copied().unwrap_or(1);
            if size > 1 {
                let slope = value(Some((&index, 1)))? - constant;
                if value(Some((&index, size - 1)))? - constant != slope * (size - 1) {
                    return None;
                }
                found.slopes.insert(index, slope);
            }
        }
        Some(found)
    }

    /// The reach of rows or columns: one index of the output at most, and any number of reduced ones.
    pub fn reach(&self, subscript: &AffineSubscript, output: Option<&str>) -> Option<Reach> {
        let (mut kernel, mut stride) = (1, 1);
        for (index, slope) in &subscript.slopes {
            if *slope < 1 {
                return None;
            }
            if output == Some(index.as_str()) {
                stride = *slope;
            } else {
                kernel += slope * (self.size(index) - 1);
            }
        }
        let pad = usize::try_from(-subscript.constant).ok()?;
        Some(Reach::new(usize::try_from(kernel).ok()?, usize::try_from(stride).ok()?, pad))
    }
}
