//! How much the choice depends on noise in the measured times.
//!
//! Every time is drawn again from its own samples, with replacement (the bootstrap), everything is chosen anew, and the
//! choice that stands is priced with the new times. Few samples of a configuration understate its spread.

use crate::measure::relayout::RelayoutCosts;
use crate::measure::store::Store;
use crate::model::cost::{Cost, milliseconds, picoseconds};
use crate::model::selection_model::{Model, SelectError};
use crate::problem::SelectionProblem;
use crate::solve::exact::{Optimum, SearchLimits};
use crate::solve::selection::optimum;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Robustness {
    pub resamples: usize,
    /// Share of them in which no choice is cheaper than the one that stands.
    pub optimal: f64,
    /// The most that it cost above the best one; above a bound of it where that was not proven.
    pub worst_regret_ms: f64,
    /// The same as a share of the best one.
    pub worst_regret: f64,
    /// Resamples whose best choice was proven.
    pub proven: usize,
}

/// Draws `resamples` times, or fewer if `go_on` returns false for the number of draws done; deterministic otherwise.
pub fn robustness(
    program: &SelectionProblem,
    store: &Store,
    model: &Model,
    chosen: &Optimum,
    resamples: usize,
    limits: SearchLimits,
    go_on: &dyn Fn(usize) -> bool,
) -> Result<Robustness, SelectError> {
    let mut found = Robustness { resamples, optimal: 0.0, worst_regret_ms: 0.0, worst_regret: 0.0, proven: 0 };
    let mut optimal = 0;
    for seed in 0..resamples {
        if seed > 0 && !go_on(seed) {
            found.resamples = seed;
            break;
        }
        let again = store.resampled(seed as u64);
        let costs = RelayoutCosts::new(program, &again);
        let other = Model::new(program, &again, &costs)?;
        let best = optimum(&other, limits, &mut |_| true);
        let price = price(program, &again, model, &other, chosen).unwrap_or(Cost::MAX);
        found.proven += usize::from(best.proven());
        optimal += usize::from(price <= best.total);
        let regret = (price - best.bound).max(0);
        found.worst_regret_ms = found.worst_regret_ms.max(milliseconds(regret));
        found.worst_regret = found.worst_regret.max(regret as f64 / (best.bound.max(1)) as f64);
    }
    found.optimal = optimal as f64 / found.resamples.max(1) as f64;
    Ok(found)
}

/// The cost of the choice with other times.
fn price(program: &SelectionProblem, store: &Store, model: &Model, other: &Model, chosen: &Optimum) -> Option<Cost> {
    let (active, priced) = (model.variant(&chosen.variants), other.variant(&chosen.variants));
    let mut total = 0;
    for (factor, with) in active.factors.iter().zip(&priced.factors) {
        let choice = &factor.choices[factor.best(&chosen.held).0];
        let kernel = program.kernel(&factor.name)?;
        let record = store.get(&kernel.key, &choice.config)?;
        let relayouts = with.uses.iter().zip(&choice.layouts).map(|(u, l)| u.cost[chosen.held[u.class] as usize][*l as usize]);
        total += picoseconds(kernel.price(store.ms(record)?))? + relayouts.sum::<Cost>();
    }
    Some(total)
}
