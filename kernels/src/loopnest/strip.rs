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
