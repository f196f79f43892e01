//! Decides from stored measurements alone: selections by every method, the proof of optimality, and its robustness.

use crate::pipeline::PipelineError;
use layouts::certificate::Certificate;
use layouts::count::{Count, Effort, within};
use layouts::exact::{OnProgress, Optimum, SearchLimits, SearchProgress};
use layouts::record::CacheState;
use layouts::relayout::RelayoutCosts;
use layouts::robust::{Robustness, robustness};
use layouts::selection::{choose, exactly, optimum, top, write_out};
use layouts::solution::Solution;
use layouts::stack::{self, Joins};
use layouts::{Method, Model, Selection, SelectionProblem, Store};
use serde::Serialize;
use std::time::{Duration, Instant};

/// The selections for one program.
#[derive(Serialize)]
pub struct Decision {
    pub name: String,
    /// The state of the caches in timed runs.
    pub cache: CacheState,
    /// One for each method; the exact one first.
    pub selections: Vec<Selection>,
    /// The best selections, best first.
    pub top: Vec<Selection>,
    /// The number of selections that cost at most 1% more than the best; `None` if not requested.
    pub within: Option<Count>,
    /// `None` if not requested.
    pub robustness: Option<Robustness>,
    #[serde(skip)]
    pub certificate: Certificate,
    #[serde(skip)]
    pub optimum: Optimum,
    /// Time for finding and proving the best selection, without the other analyses.
    #[serde(skip)]
    pub solving: Duration,
}

/// Limits for problems that are solved many times.
const AGAIN: SearchLimits = SearchLimits { table: 1 << 18, work: 1 << 28 };

/// Analyses besides the selection and its proof.
#[derive(Default)]
pub struct SolveRequest<'a> {
    /// The number of best selections to list.
    pub choices: usize,
    /// The number of resamplings of times; and a callback that gets the number of those done and returns whether to continue.
    pub resamples: usize,
    pub resampled: Option<&'a dyn Fn(usize) -> bool>,
    /// The effort for counting near-optimal selections; and a callback that gets the numbers of combinations done and to do and returns
    /// whether to continue.
    pub count: Option<(Effort, Counting<'a>)>,
}

type Counting<'a> = &'a (dyn Fn(usize, usize) -> bool + Sync);

/// Selects by every method, proves the best, counts near-optimal selections and resamples times.
pub fn decide(
    name: &str,
    program: &SelectionProblem,
    store: &Store,
    asked: &SolveRequest,
    limits: SearchLimits,
    watch: OnProgress,
) -> Result<Decision, PipelineError> {
    let costs = RelayoutCosts::new(program, store);
    let model = Model::new(program, store, &costs)?;
    let begin = Instant::now();
    let best = optimum(&model, limits, watch);
    let solving = begin.elapsed();
    let exact = exactly(&model, &costs, &best);
    let certificate = Certificate::new(program, store, &model, &best.clone().into(), exact.unmeasured().count());
    let mut selections = vec![exact];
    selections.extend(Method::ALL.into_iter().filter(|m| *m != Method::Exact).map(|m| choose(&model, &costs, m, limits)));
    let others = top(&model, best.clone(), asked.choices, AGAIN).iter().map(|o| exactly(&model, &costs, o)).collect();
    let robustness = match asked.resamples {
        0 => None,
        n => Some(robustness(program, store, &model, &best, n, AGAIN, asked.resampled.unwrap_or(&|_| true))?),
    };
    let within = asked.count.map(|(effort, watch)| within(&model, best.total + best.total / 100, effort, watch));
    Ok(Decision {
        name: name.into(),
        cache: store.cache(),
        selections,
        top: others,
        within,
        robustness,
        certificate,
        optimum: best,
        solving,
    })
}

/// The selection for a stack of equal layers.
#[derive(Serialize)]
pub struct StackDecision {
    pub name: String,
    /// The state of the caches in timed runs.
    pub cache: CacheState,
    /// Containers of a layer, each with the container of the next layer that it is the same as.
    pub joins: Joins,
    pub total_ms: f64,
    /// A lower bound on the time of every selection, in milliseconds.
    pub bound_ms: f64,
    pub proven: bool,
    /// The time of the same layers if each has its own best selection, with its boundary as the recipe prescribes.
    pub alone_ms: f64,
    /// Distinct selections, by first layer.
    pub choices: Vec<StackChoice>,
    #[serde(skip)]
    pub certificate: Certificate,
}

/// A selection that some layers of a stack share.
#[derive(Serialize)]
pub struct StackChoice {
    /// Counted from 1.
    pub layers: Vec<usize>,
    pub selection: Selection,
}

/// Selects for `count` consecutive layers of a program, and proves the result.
pub fn decide_stack(
    name: &str,
    program: &SelectionProblem,
    store: &Store,
    (count, joins): (usize, &Joins),
    limits: SearchLimits,
    watch: OnProgress,
) -> Result<StackDecision, PipelineError> {
    let costs = RelayoutCosts::new(program, store);
    let model = Model::new(program, store, &costs)?;
    let joins = if joins.is_empty() { stack::joins(program)? } else { joins.clone() };
    // The sum of separate layers bounds the joint solution from above.
    let alone = optimum(&model, limits, &mut |p| watch(SearchProgress { total: p.total.saturating_mul(count as i64), bound: 0, ..p }));
    let stacked = stack::solve(&model, &joins, count, &[[alone.held, alone.variants].concat()], limits, watch)?;
    let mut choices: Vec<(&Vec<u16>, StackChoice)> = Vec::new();
    for (n, values) in stacked.layers.iter().enumerate() {
        if let Some((_, known)) = choices.iter_mut().find(|(known, _)| *known == values) {
            known.layers.push(n + 1);
            continue;
        }
        let (held, variants) = values.split_at(model.classes.len());
        let solution = Solution::of(&model.variant(variants), held.to_vec());
        let selection = write_out(&model, variants, &costs, Method::Exact, &solution);
        choices.push((values, StackChoice { layers: vec![n + 1], selection }));
    }
    let choices: Vec<StackChoice> = choices.into_iter().map(|(_, choice)| choice).collect();
    let estimated = choices.iter().map(|c| c.selection.unmeasured().count()).sum();
    let ms = layouts::cost::milliseconds;
    Ok(StackDecision {
        name: name.into(),
        cache: store.cache(),
        certificate: Certificate::new(program, store, &model, &stacked, estimated),
        total_ms: ms(stacked.total),
        bound_ms: ms(stacked.bound),
        proven: stacked.proven(),
        alone_ms: ms(alone.total.saturating_mul(count as _)),
        choices,
        joins,
    })
}
