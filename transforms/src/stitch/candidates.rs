//! Candidates of a program: patterns of its units of which its passes can make one kernel.

use super::explore::{GrowthLimits, explore};
use super::kernel::Kernels;
use super::ladder::{Ladder, Sorting, ladder};
use super::pattern::structure;
use super::units::StateGraph;
use sdfg::Sdfg;
use std::collections::{HashMap, HashSet};

/// How a candidate was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CandidateSource {
    /// A rung of the ladder.
    Rung(usize),
    /// Units of a rung that together are one kernel, where all of them are not.
    Part(usize),
    /// Grown from a seed.
    Explored,
}

/// The patterns of a state that can be kernels.
pub struct FusionCandidates {
    pub ladder: Ladder,
    /// Positions of units, sorted; each set once.
    pub patterns: Vec<(CandidateSource, Vec<u32>)>,
    /// Sets of units that were asked about, and the distinct structures among them: one answer for each.
    pub asked: usize,
    pub unique: usize,
    /// Answers that were no.
    pub refused: usize,
}

/// Units of a state that is explored as a whole; longer ones are explored segment by segment.
const WHOLE: usize = 160;

/// The candidates of a state of a program.
pub fn candidates(program: &Sdfg, of: &StateGraph, bounds: GrowthLimits) -> FusionCandidates {
    let empty = FusionCandidates {
        ladder: Ladder { order: vec![], patterns: vec![], segments: vec![] },
        patterns: vec![],
        asked: 0,
        unique: 0,
        refused: 0,
    };
    let Some(state) = program.state(of.state) else { return empty };
    let kernels = Kernels::new(program, (of.state, state), &of.nodes);
    let mut found = FusionCandidates { ladder: ladder(&of.graph, Sorting::Earliest), ..empty };
    let mut verdicts: HashMap<String, bool> = HashMap::new();
    let (mut asked, mut refused) = (0, 0);
    let mut takes = |members: &[u32]| {
        asked += 1;
        let verdict = *verdicts.entry(structure(&of.graph, members)).or_insert_with(|| kernels.admits(members).is_ok());
        refused += usize::from(!verdict);
        verdict
    };
    let mut seen: HashSet<Vec<u32>> = HashSet::new();
    let mut keep = |source: CandidateSource, mut members: Vec<u32>| {
        members.sort_unstable();
        if members.len() > 1 && seen.insert(members.clone()) {
            found.patterns.push((source, members));
        }
    };
    let late = ladder(&of.graph, Sorting::Latest);
    for (rung, members) in found.ladder.patterns.iter().chain(&late.patterns) {
        let mut sorted = members.clone();
        sorted.sort_unstable();
        if takes(&sorted) {
            keep(CandidateSource::Rung(*rung), sorted);
            continue;
        }
        // From each unit on, as many of the following ones as go together.
        let mut left = sorted;
        while left.len() > 1 {
            let (mut part, mut rest) = (vec![left[0]], Vec::new());
            for unit in &left[1..] {
                part.push(*unit);
                if part.len() <= bounds.members.max(2) && takes(&part) {
                    keep(CandidateSource::Part(*rung), part.clone());
                } else {
                    part.pop();
                    rest.push(*unit);
                }
            }
            left = rest;
        }
    }
    let all: Vec<u32> = (0..of.graph.len() as u32).collect();
    let segments = if all.len() <= WHOLE { vec![all] } else { around_products(of, &found.ladder) };
    for segment in segments {
        explore(&of.graph, &segment, bounds, &mut takes).into_iter().for_each(|members| keep(CandidateSource::Explored, members));
    }
    (found.asked, found.unique, found.refused) = (asked, verdicts.len(), refused);
    found
}

/// Each segment with the products that it reads from and that read from it.
fn around_products(of: &StateGraph, ladder: &Ladder) -> Vec<Vec<u32>> {
    let with_products = |segment: &Vec<u32>| {
        let near = segment.iter().flat_map(|u| of.graph.before(*u).iter().chain(of.graph.after(*u)));
        let products = near.copied().filter(|u| of.graph.operator(*u).class.is_product());
        let mut whole: Vec<u32> = segment.iter().copied().chain(products).collect();
        whole.sort_unstable();
        whole.dedup();
        whole
    };
    ladder.segments.iter().map(with_products).collect()
}
