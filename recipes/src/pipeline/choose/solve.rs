//! The decision from stored measurements alone: every method, the proof, and how sure it is.

use crate::pipeline::PipelineError;
use layouts::certificate::Certificate;
use layouts::count::{Count, Effort, within};
use layouts::exact::{Limits, Optimum, Progress, Watch};
use layouts::record::Cache;
use layouts::relayout::RelayoutCosts;
use layouts::robust::{Robustness, robustness};
use layouts::selection::{choose, exactly, optimum, top, write_out};
use layouts::solution::Solution;
use layouts::stack::{self, Joins};
use layouts::{Method, Model, Selection, SelectionProblem, Store};
use serde::Serialize;
use std::time::{Duration, Instant};

/// What choosing for one program found.
#[derive(Serialize)]
pub struct Decision {
    pub name: String,
    /// What the timed runs found in the caches.
    pub cache: Cache,
    /// One for each method; the exact one first.
    pub selections: Vec<Selection>,
    /// The best choices, best first.
    pub top: Vec<Selection>,
    /// Choices that cost at most 1% more than the best; `None` if that was not asked for.
    pub within: Option<Count>,
    /// `None` if it was not asked for.
    pub robustness: Option<Robustness>,
    #[serde(skip)]
    pub certificate: Certificate,
    #[serde(skip)]
    pub optimum: Optimum,
    /// What finding and proving the best choice took, without what is told of others.
    #[serde(skip)]
    pub solving: Duration,
}

/// Bounds for everything that is solved again and again.
const AGAIN: Limits = Limits { table: 1 << 18, work: 1 << 28 };

/// What is asked beside the choice and its proof.
#[derive(Default)]
pub struct Asked<'a> {
    /// So many of the best choices.
    pub choices: usize,
    /// How often times are drawn again; and who learns how often they have been, and says whether to go on.
    pub resamples: usize,
    pub resampled: Option<&'a dyn Fn(usize) -> bool>,
    /// To count what is nearly as good, with so much effort; and who learns how many combinations are done, and of
    /// how many, and says whether to go on.
    pub count: Option<(Effort, Counting<'a>)>,
}

type Counting<'a> = &'a (dyn Fn(usize, usize) -> bool + Sync);

/// Chooses with every method, proves, counts and draws again.
pub fn decide(
    name: &str,
    program: &SelectionProblem,
    store: &Store,
    asked: &Asked,
    limits: Limits,
    watch: Watch,
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

/// What choosing for a stack of layers that are alike found.
#[derive(Serialize)]
pub struct StackDecision {
    pub name: String,
    /// What the timed runs found in the caches.
    pub cache: Cache,
    /// Containers of a layer, each with the one of the next layer that it is.
    pub joins: Joins,
    pub total_ms: f64,
    /// No choice costs less.
    pub bound_ms: f64,
    pub proven: bool,
    /// The same layers, each with its own best choice and its boundary as the recipe asks.
    pub alone_ms: f64,
    /// Distinct choices, by first layer.
    pub choices: Vec<StackChoice>,
    #[serde(skip)]
    pub certificate: Certificate,
}

/// What some layers of a stack have in common.
#[derive(Serialize)]
pub struct StackChoice {
    /// Counted from 1.
    pub layers: Vec<usize>,
    pub selection: Selection,
}

/// Chooses for `count` layers of a program, one after the other, and proves it.
pub fn decide_stack(
    name: &str,
    program: &SelectionProblem,
    store: &Store,
    (count, joins): (usize, &Joins),
    limits: Limits,
    watch: Watch,
) -> Result<StackDecision, PipelineError> {
    let costs = RelayoutCosts::new(program, store);
    let model = Model::new(program, store, &costs)?;
    let joins = if joins.is_empty() { stack::joins(program)? } else { joins.clone() };
    // So much they cost at most, together as well.
    let alone = optimum(&model, limits, &mut |p| watch(Progress { total: p.total.saturating_mul(count as i64), bound: 0, ..p }));
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
