//! Forms in which a convolution by windows of 3×3 is calculated: the sum of products, and Winograd's.

use crate::loopnest::slope;
use crate::maps::flatten::Flat;
use sdfg::Expr;

/// Results of a tile of Winograd's form along each dim, which the knob `winograd` names; 0 is a sum of products.
pub const FORMS: [i64; 3] = [0, 4, 2];

/// Whether a product is a convolution by windows of 3×3 with stride 1.
pub fn is_square(flat: &Flat) -> bool {
    let taps = |e: &Expr| {
        let mut all = e.symbols();
        all.retain(|name| slope(e, name) == Some(Expr::Int(1)));
        all.len() == 2 && flat.inner.iter().any(|r| r.count == 3 && all.contains(&r.index))
    };
    flat.statement.reads.iter().any(|(_, e)| e.subscripts.iter().filter(|s| taps(s)).count() == 2)
}
