//! Windows of which a part is made. Of those that leave the picture, products compute what lies inside, and the rest holds the fill; of
//! those whose first rows an earlier step has made, the others.

use crate::emit::scalar::{constant, integer};
use crate::error::KernelError;
use crate::loopnest::{Border, Element};
use crate::target::cpu::dialect::CPrinter;
use sdfg::Expr;
use std::collections::BTreeMap;

impl CPrinter<'_> {
    /// As [`Border::inside`], as numbers where these depend on no tile.
    pub fn inside(&self, border: &Border, extent: i64) -> (Expr, Expr) {
        let (before, count) = border.inside(extent);
        (self.folded(before), self.folded(count))
    }

    /// As [`crate::loopnest::LoopNest::made`], as numbers where these depend on no tile.
    pub fn made(&self, index: &str, count: i64) -> Option<(Expr, Expr)> {
        let (first, made) = self.nest.made(index, count)?;
        Some((self.folded(first), self.folded(made)))
    }

    /// Whether some iterations of a loop are not made.
    pub fn is_partly_made(&self, index: &str) -> bool {
        self.nest.border(index).is_some() || self.nest.first_made(index).is_some()
    }

    /// The value of an expression that depends on no tile.
    fn folded(&self, e: Expr) -> Expr {
        match e.symbols().is_empty() {
            true => e.eval(&BTreeMap::new()).map_or(e, Expr::Int),
            false => e,
        }
    }

    /// Fills what lies outside the picture along one dim.
    pub fn border(&mut self, border: &Border, level: usize) -> Result<(), KernelError> {
        let shape = self.tensor(&border.data)?.shape.clone();
        let (strides, ..) = self.strides(&border.data)?;
        let zeros = Element { data: border.data.clone(), subscripts: vec![Expr::Int(0); shape.len()], fill: None };
        let place = self.place(&zeros)?;
        let extent = shape[border.dim];
        let (before, inside) = self.inside(border, extent);
        if (&before, &inside) == (&Expr::Int(0), &Expr::Int(extent)) {
            return Ok(());
        }
        let fill = constant(f64::from_bits(border.fill), self.double);
        let (before, inside) = (integer(&before, self), integer(&inside, self));
        self.line(level, "{");
        self.line(level + 1, format!("real *const to = &{place};"));
        self.line(level + 1, format!("const int64_t first = {before}, last = first + {inside};"));
        let mut order: Vec<usize> = (0..shape.len()).filter(|n| shape[*n] > 1 || *n == border.dim).collect();
        order.sort_by_key(|n| std::cmp::Reverse(strides[*n]));
        for (from, until) in [("0", "first"), ("last", &extent.to_string())] {
            let mut text = String::new();
            for n in &order {
                let (from, until) =
                    if *n == border.dim { (from.to_string(), until.to_string()) } else { ("0".into(), shape[*n].to_string()) };
                text += &format!("for (int64_t e{n} = {from}; e{n} < {until}; ++e{n}) ");
            }
            let at: Vec<String> = order.iter().map(|n| format!("e{n} * {}", strides[*n])).collect();
            self.line(level + 1, format!("{text}to[{}] = {fill};", at.join(" + ")));
        }
        self.line(level, "}");
        Ok(())
    }
}
