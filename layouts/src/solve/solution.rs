//! A choice of layouts and configurations, and its price.

use crate::model::cost::Cost;
use crate::model::selection_model::Model;

/// A choice for one combination of variants; costs in picoseconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Solution {
    /// Position of the held layout of every class.
    pub held: Vec<u16>,
    /// Position of the choice of every kernel.
    pub choices: Vec<usize>,
    pub total: Cost,
    /// No choice costs less.
    pub bound: Cost,
}

impl Solution {
    /// The best configurations for these held layouts; nothing is proven of it.
    pub fn of(model: &Model, held: Vec<u16>) -> Self {
        let best: Vec<(usize, Cost)> = model.factors.iter().map(|f| f.best(&held)).collect();
        let total = best.iter().map(|(_, ps)| ps).sum();
        let choices = best.into_iter().map(|(n, _)| n).collect();
        Solution { held, choices, total, bound: model.sum_of_minima().min(total) }
    }
}
