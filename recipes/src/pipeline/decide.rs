//! The decision from stored measurements alone: every method, the proof, and how sure it is.

use super::PipelineError;
use layouts::certificate::Certificate;
use layouts::count::{Count, within};
use layouts::exact::{Limits, Optimum, Watch};
use layouts::relayout::RelayoutCosts;
use layouts::robust::{Robustness, robustness};
use layouts::selection::{choose, exactly, optimum, top};
use layouts::{Method, Model, Program, Selection, Store};
use serde::Serialize;

/// What choosing for one program found.
#[derive(Serialize)]
pub struct Decision {
    pub name: String,
    /// One for each method; the exact one first.
    pub selections: Vec<Selection>,
    /// The best choices, best first.
    pub top: Vec<Selection>,
    /// Choices that cost at most 1% more than the best; `None` if there are too many to count.
    pub within: Option<Count>,
    /// `None` if it was not asked for.
    pub robustness: Option<Robustness>,
    #[serde(skip)]
    pub certificate: Certificate,
    #[serde(skip)]
    pub optimum: Optimum,
}

/// Bounds for everything that is solved again and again.
const AGAIN: Limits = Limits { table: 1 << 18, work: 1 << 28 };

/// Chooses with every method, proves, counts and draws again.
pub fn decide(
    name: &str,
    program: &Program,
    store: &Store,
    count: usize,
    resamples: usize,
    limits: Limits,
    watch: Watch,
) -> Result<Decision, PipelineError> {
    let costs = RelayoutCosts::new(program, store);
    let model = Model::new(program, store, &costs)?;
    let best = optimum(&model, limits, watch);
    let exact = exactly(&model, &costs, &best);
    let certificate = Certificate::new(program, store, &model, &best, &exact);
    let mut selections = vec![exact];
    selections.extend(Method::ALL.into_iter().filter(|m| *m != Method::Exact).map(|m| choose(&model, &costs, m, limits)));
    let others = top(&model, best.clone(), count, AGAIN).iter().map(|o| exactly(&model, &costs, o)).collect();
    let robustness = match resamples {
        0 => None,
        n => Some(robustness(program, store, &model, &best, n, AGAIN)?),
    };
    let within = within(&model, best.total + best.total / 100);
    Ok(Decision { name: name.into(), selections, top: others, within, robustness, certificate, optimum: best })
}
