//! Products with a side so small that packing their factors takes as long as multiplying them.

use crate::loopnest::matmul_pattern::{Factors, factors};
use crate::loopnest::{Element, MemorySpace};
use crate::maps::flatten::{Flat, Flattened};
use sdfg::{Combine, Dtype};

/// Most rows that are multiplied by a matrix which is better read where it lies.
const FEW_ROWS: i64 = 4;
/// Most rows, columns or steps of the depth of a product that is better multiplied where its factors lie.
const THIN: i64 = 8;

/// Whether all products multiply some matrix by few rows, as at the end of a network for one image: packing the matrix in every step takes
/// longer than the products.
pub fn has_few_rows(flattened: &Flattened) -> bool {
    let iterations = |flat: &Flat| flat.inner.iter().chain(&flattened.outer).map(|r| r.count).product::<i64>();
    let elements = |e: &Element| flattened.tensors.get(&e.data).map_or(0, |t| t.shape.iter().product::<i64>());
    let largest = |flat: &Flat| flat.statement.reads.iter().map(|(_, e)| elements(e)).max().unwrap_or(0);
    let is_sum = |flat: &&Flat| flat.statement.combine == Some(Combine::Sum) && factors(&flat.statement.code).is_some();
    let mut products = flattened.statements.iter().filter(is_sum).peekable();
    products.peek().is_some() && products.all(|flat| iterations(flat) <= FEW_ROWS * largest(flat))
}

/// Whether some product of f32 or f64 has few rows, few columns or little depth: packing its factors takes as long as multiplying them. A
/// sum of products for each point alone, as normalizations and softmax have backward, has neither rows nor columns: it is no such product.
pub fn is_thin(flattened: &Flattened) -> bool {
    let is_local = |e: &Element| flattened.tensors.get(&e.data).is_some_and(|t| t.space == MemorySpace::Local);
    let is_real = |e: &Element| flattened.tensors.get(&e.data).is_some_and(|t| matches!(t.dtype, Dtype::F32 | Dtype::F64));
    let real = flattened.statements.iter().filter(|flat| flat.statement.combine == Some(Combine::Sum));
    real.filter_map(|flat| Some((flat, factors(&flat.statement.code)?))).any(|(flat, Factors { a, b, .. })| {
        let read = |connector: &str| flat.statement.reads.iter().find(|(c, _)| c == connector).map(|(_, e)| e);
        let (Some(a), Some(b), out) = (read(&a), read(&b), &flat.statement.write) else { return false };
        let named = |e: &Element, index: &str| e.subscripts.iter().any(|s| s.symbols().contains(index));
        // What is local to a point has one of itself for each outer index.
        let outer = flattened.outer.iter().map(|r| (r, [a, b, out].map(|e| is_local(e) || named(e, &r.index))));
        let inner = flat.inner.iter().map(|r| (r, [a, b, out].map(|e| named(e, &r.index))));
        let (mut rows, mut columns, mut depth) = (1, 1, 1);
        for (range, has) in outer.chain(inner) {
            match has {
                [true, false, true] => rows *= range.count,
                [false, true, true] => columns *= range.count,
                [true, true, false] => depth *= range.count,
                _ => {}
            }
        }
        is_real(a) && is_real(b) && rows.max(columns) > 1 && rows.min(columns).min(depth) <= THIN
    })
}
