//! Strips of rows that a worker goes over from top to bottom, keeping of each intermediate result the rows that its next step reads again.
//!
//! ```text
//! rows of a window     0 … kept … made
//! first step           made: all of them
//! later steps          moved: the last `kept` rows of the step before become the first ones; made: those after them
//! ```
//!
//! Nothing but the first step of a strip computes rows that another one has computed ("Fused-layer CNN accelerators", Alwani et al., MICRO
//! 2016, section IV, reuses rows in this way).

use super::LoopNest;
use sdfg::Expr;

/// A loop over tiles that is divided into strips, each walked in order by one worker.
#[derive(Clone, Debug, PartialEq)]
pub struct Strip {
    /// The loop over strips, if there are several, and the loop over the steps of all of them.
    pub strips: String,
    pub steps: String,
    /// Steps of a strip; the last strip may have fewer.
    pub each: i64,
    pub rows: Vec<KeptRows>,
}

/// A dim of a local container whose rows stay from one step to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRows {
    pub data: String,
    pub dim: usize,
    /// The index that walks the rows where they are made.
    pub index: String,
    /// Rows that a later step does not make; the first of them that anything then reads; and how far the window moves.
    pub count: i64,
    pub first: i64,
    pub moves: i64,
}

impl Strip {
    /// The step's number within its strip: 0 for the first one.
    pub fn step(&self) -> Expr {
        Expr::sym(self.steps.as_str()).modulo(Expr::Int(self.each))
    }

    /// The first row that a step makes along an index: 0 for the first step of a strip. `None` where no rows are kept.
    pub fn first_made(&self, index: &str) -> Option<Expr> {
        let rows = self.rows.iter().find(|rows| rows.index == index)?;
        Some(self.step().min(Expr::Int(1)) * Expr::Int(rows.count))
    }
}

impl LoopNest {
    /// The first row that a step makes along an index, if earlier steps have made some.
    pub fn first_made(&self, index: &str) -> Option<Expr> {
        self.strip.as_ref()?.first_made(index)
    }

    /// The first iteration of a loop that is made, and how many are, of a window that leaves the picture or whose first rows an earlier
    /// step has kept. `None` where all of them are.
    pub fn made(&self, index: &str, count: i64) -> Option<(Expr, Expr)> {
        let inside = self.border(index).map(|border| border.inside(count));
        let Some(first) = self.first_made(index) else { return inside };
        let Some((before, inside)) = inside else { return Some((first.clone(), Expr::Int(count) - first)) };
        let from = before.clone().max(first);
        Some((from.clone(), (before + inside - from).max(Expr::Int(0))))
    }

    /// Whether rows of a local container stay from one step to the next: some layers are read again only where they are made.
    pub fn keeps_rows(&self, data: &str) -> bool {
        self.strip.as_ref().is_some_and(|strip| strip.rows.iter().any(|rows| rows.data == data && rows.first < rows.count))
    }

    /// Whether a loop does nothing but divide another one: no subscript has its index.
    pub fn divides_steps(&self, index: &str) -> bool {
        self.strip.as_ref().is_some_and(|strip| strip.strips == index)
    }
}
