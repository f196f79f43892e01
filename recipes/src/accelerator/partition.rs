//! The cheapest partition of a network's steps into groups: a shortest path over the cuts between steps of one order.
//!
//! A group is an interval of the order. Every interval has the price of its cheapest schedule, if one fits. An interval is not priced
//! where even its floor, all its tensors once, gives no better way to its end, or to the end of the network, than one that is known.

use super::layers::LayerGraph;
use super::schedules::{GroupSchedule, Price, chunks, maps, strips};
use super::shapes::Span;
use super::steps::FusedSteps;
use rayon::prelude::*;
use serde::Serialize;
use std::collections::HashMap;

/// A group with its schedule.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ScheduledGroup {
    #[serde(skip)]
    pub steps: Span,
    pub price: Price,
    pub schedule: GroupSchedule,
}

/// The partition of one order of steps, with all that proves it.
#[derive(Clone, Debug, PartialEq)]
pub struct StepPartition {
    pub steps: FusedSteps,
    pub groups: Vec<ScheduledGroup>,
    /// By cut, from before the first step to behind the last: the least elements that any partition of the steps before it moves;
    /// `u64::MAX` where no partition through the cut stays below the bound.
    pub least: Vec<u64>,
    /// Elements that some partition stays below.
    pub bound: u64,
    /// Prices of intervals: the elements that the cheapest schedule moves, or `None` if none fits.
    pub priced: Vec<(Span, Option<u64>)>,
}

/// The cheapest schedule of a group; `None` if none fits.
pub fn best_of(steps: &FusedSteps, group: Span, capacity: u64) -> Option<(Price, GroupSchedule)> {
    let maps = maps::best(steps, group, capacity).map(|(price, s)| (price, GroupSchedule::Maps(s)));
    let floor = steps.floor(group);
    if maps.as_ref().is_some_and(|(price, _)| price.moved <= floor) {
        return maps;
    }
    let others = [
        strips::best(steps, group, capacity, maps.as_ref().map_or(u64::MAX, |(price, _)| price.moved))
            .map(|(price, s)| (price, GroupSchedule::Strips(s))),
        chunks::best(steps, group, capacity).map(|(price, s)| (price, GroupSchedule::Chunks(s))),
    ];
    maps.into_iter().chain(others.into_iter().flatten()).min_by_key(|(price, _)| *price)
}

/// A step that fits under no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{step}` fits into {bytes} bytes under no schedule; describe a device with a larger on_chip_bytes")]
pub struct Unplanned {
    pub step: String,
    pub bytes: u64,
}

/// The cheapest partition over the orders that are tried: of the program's own and two depth-first ones, those two whose first way through
/// is cheapest.
///
/// # Errors
/// The first step that fits under no schedule.
pub fn partition(graph: &LayerGraph, capacity: u64) -> Result<StepPartition, Unplanned> {
    let mut orders: Vec<FusedSteps> = Vec::new();
    for order in [graph.clone(), graph.depth_first(false), graph.depth_first(true)] {
        let steps = FusedSteps::of(&order);
        if !orders.contains(&steps) {
            orders.push(steps);
        }
    }
    let mut firsts = Vec::new();
    for steps in orders {
        // A first way through, in which each group grows as long as that pays, bounds what is looked at.
        let (least, _) = Search::new(&steps, capacity).run(u64::MAX, true)?;
        firsts.push((least.last().copied().unwrap_or(0), steps));
    }
    firsts.sort_by_key(|(total, _)| *total);
    let bound = firsts.first().map_or(u64::MAX, |(total, _)| total.saturating_add(1));
    firsts.truncate(2);
    let found: Vec<Option<StepPartition>> = firsts.into_par_iter().map(|(_, steps)| of_order(steps, capacity, bound)).collect();
    let best = found.into_iter().flatten().min_by_key(|p| p.least.last().copied());
    best.ok_or_else(|| Unplanned { step: graph.name.clone(), bytes: capacity * graph.element_bytes })
}

/// The cheapest partition of the steps in their order; `None` if none moves less than `bound` elements.
fn of_order(steps: FusedSteps, capacity: u64, bound: u64) -> Option<StepPartition> {
    let mut search = Search::new(&steps, capacity);
    let (least, mut ways) = search.run(bound, false).ok()?;
    let priced = search.prices.iter().map(|(group, found)| (*group, found.as_ref().map(|(price, _)| price.moved)));
    let mut priced: Vec<(Span, Option<u64>)> = priced.collect();
    priced.sort_unstable_by_key(|(group, _)| (group.begin, group.end));
    let mut groups = Vec::new();
    let mut at = steps.steps.len();
    while at > 0 {
        let group = ways[at].take()?;
        at = group.steps.begin;
        groups.push(group);
    }
    groups.reverse();
    Some(StepPartition { steps, groups, least, bound, priced })
}

/// The least elements to each cut, and the last group of the way there.
type Ways = (Vec<u64>, Vec<Option<ScheduledGroup>>);

struct Search<'a> {
    steps: &'a FusedSteps,
    capacity: u64,
    /// By cut: the floor of all steps behind it.
    floors: Vec<u64>,
    prices: HashMap<Span, Option<(Price, GroupSchedule)>>,
}

impl<'a> Search<'a> {
    fn new(steps: &'a FusedSteps, capacity: u64) -> Search<'a> {
        let count = steps.steps.len();
        let floors = (0..=count).map(|cut| if cut == count { 0 } else { steps.floor(Span::new(cut, count)) }).collect();
        Search { steps, capacity, floors, prices: HashMap::new() }
    }

    /// The shortest path over the cuts, without intervals that no way of less than `bound` elements uses. If `narrow`, an interval is
    /// looked at only if it is the group before with one step more, or a step alone.
    fn run(&mut self, bound: u64, narrow: bool) -> Result<Ways, Unplanned> {
        let count = self.steps.steps.len();
        let mut least: Vec<u64> = vec![u64::MAX; count + 1];
        let mut ways: Vec<Option<ScheduledGroup>> = vec![None; count + 1];
        least[0] = 0;
        for end in 1..=count {
            let mut best: Option<(u64, ScheduledGroup)> = None;
            // The group before is likely to grow by the step; a good way makes the floors of others too high.
            let likely = ways[end - 1].as_ref().map(|g| g.steps.begin);
            let others = (0..end).rev().filter(|b| Some(*b) != likely && (!narrow || *b + 1 == end));
            for begin in likely.into_iter().chain(others) {
                let group = Span::new(begin, end);
                let limit = best.as_ref().map_or(u64::MAX, |(total, _)| *total).min(bound.saturating_sub(self.floors[end]));
                if least[begin] == u64::MAX || least[begin] + self.steps.floor(group) >= limit {
                    continue;
                }
                let found = self.prices.entry(group).or_insert_with(|| best_of(self.steps, group, self.capacity));
                if let Some((price, schedule)) = found
                    && least[begin] + price.moved < limit
                {
                    best = Some((least[begin] + price.moved, ScheduledGroup { steps: group, price: *price, schedule: schedule.clone() }));
                }
            }
            match best {
                Some((total, group)) => (least[end], ways[end]) = (total, Some(group)),
                // Every step must fit by itself; behind a bound some cuts have no way.
                None if narrow => {
                    let step = self.steps.steps[end - 1].name.clone();
                    return Err(Unplanned { step, bytes: self.capacity * self.steps.element_bytes });
                }
                None => {}
            }
        }
        Ok((least, ways))
    }
}
