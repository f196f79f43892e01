//! Makes kernels of the patterns of a plan, one after the other.
//!
//! ```text
//! a plan {s, t}: t = map a [..] … s = map b [..] (reads t)   →   ts = map [..] of a, b
//! ```
//!
//! *Legal when* composition or fusion makes one kernel of all units of a pattern; both check that. What a pattern computes again is cloned
//! for it first ([`super::again`]).
//! *Moves less because* the plan says so: its patterns were chosen by the bytes and launches that they save.
//! *Not handled*: patterns of which other patterns have taken a unit; they stay as they are.
//! Source: "FusionStitching" (Long, Yang, Lin), sections 4 and 5.1.

use super::again::{again as compute_again, clone_name};
use super::candidates::candidates;
use super::explore::GrowthLimits;
use super::kernel::kernel;
use super::units::graphs;
use crate::pass::{Context, Facts, Loops, Pass, Rewritten, Stitched, Stopped};
use crate::refusal::{Reason, Refusal, Site};
use crate::unit_graph::kind_of;
use sdfg::{NodeId, Sdfg, StateId};
use std::collections::{BTreeSet, HashMap};

/// Makes one kernel of each pattern that is still whole in the program, or in the body of a loop.
#[derive(Clone, Debug, Default)]
pub struct Stitch {
    /// The names of the units of each pattern. No unit is in two patterns, unless one computes it again.
    pub patterns: Vec<Vec<String>>,
    /// By pattern, as far as there are any: the units that it computes for itself, if others need them too.
    pub again: Vec<Vec<String>>,
}

/// The name of the pass in logs.
pub const NAME: &str = "stitch";

impl Pass for Stitch {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let units = named(program);
        let mut places: HashMap<&str, Vec<usize>> = HashMap::new();
        units.iter().enumerate().for_each(|(n, (_, _, name))| places.entry(name).or_default().push(n));
        let mut refusals = Vec::new();
        for (number, named) in self.patterns.iter().enumerate() {
            let again = self.again.get(number).map_or(&[][..], Vec::as_slice);
            // A clone stands for its unit.
            let own =
                |name: &String| Some(clone_name(name, number)).filter(|clone| again.contains(name) && places.contains_key(clone.as_str()));
            let pattern = &named.iter().map(|name| own(name).unwrap_or_else(|| name.clone())).collect::<Vec<String>>();
            let places: BTreeSet<usize> = pattern.iter().filter_map(|name| places.get(name.as_str())).flatten().copied().collect();
            let found: Vec<_> = places.into_iter().map(|n| units[n]).collect();
            // A pattern that was made is one unit.
            let Some((state, _, _)) = found.first().filter(|_| found.len() == pattern.len() && found.len() > 1) else { continue };
            if found.iter().any(|(other, _, _)| other != state) {
                continue;
            }
            let site = Site { state: *state, units: found.iter().map(|(_, node, _)| *node).collect() };
            // The last one first: it may read another one that is computed again.
            let mut twice = found.iter().rev().filter(|(_, _, unit)| again.iter().any(|name| name == unit));
            let cloned = twice.find_map(|(_, node, _)| match compute_again(program, *state, *node, &site.units, number) {
                Ok(None) => None,
                Ok(Some(patch)) if context.barred.has(&patch.summary) => Some(Err(Reason::FoundWrong)),
                Ok(Some(patch)) => Some(Ok(patch)),
                Err(reason) => Some(Err(reason)),
            });
            match cloned {
                Some(Ok(patch)) => return Ok(Rewritten::patch(patch)),
                Some(Err(reason)) => {
                    refusals.push(refusal(&site, pattern, reason));
                    continue;
                }
                None => {}
            }
            match kernel(program, &site) {
                Ok((patch, _)) if context.barred.has(&patch.summary) => refusals.push(refusal(&site, pattern, Reason::FoundWrong)),
                Ok((patch, cluster)) => {
                    let made = patch.edits.iter().flat_map(|edit| &edit.insert).map(|unit| unit.name().to_string());
                    let stitched = made.map(|kernel| Stitched { kernel, units: named.clone() }).collect();
                    return Ok(Rewritten::patch(patch).with(Facts {
                        kernels: cluster.into_iter().collect(),
                        stitched,
                        ..Facts::default()
                    }));
                }
                Err(reason) => refusals.push(refusal(&site, pattern, reason)),
            }
        }
        Err(Stopped::refused(refusals))
    }

    fn repeats(&self) -> bool {
        true
    }

    fn loops(&self) -> Loops {
        Loops::Inside
    }
}

impl Stitch {
    /// The longest patterns of a program first that share no unit: a plan without scores.
    pub fn longest(program: &Sdfg) -> Self {
        let mut patterns: Vec<Vec<String>> = Vec::new();
        for graph in graphs(program).unwrap_or_default() {
            let mut found = candidates(program, &graph, GrowthLimits::default()).patterns;
            found.sort_by_key(|(_, members)| std::cmp::Reverse(members.len()));
            for (_, members) in found {
                let names: Vec<String> = members.iter().map(|m| graph.names[*m as usize].clone()).collect();
                if !patterns.iter().flatten().any(|taken| names.contains(taken)) {
                    patterns.push(names);
                }
            }
        }
        Stitch { patterns, again: vec![] }
    }
}

/// The names of a program's units, in execution order. No unit is built for that.
fn named(program: &Sdfg) -> Vec<(StateId, NodeId, &str)> {
    let mut found = Vec::new();
    for (id, state) in program.states() {
        let nodes = state.topological(None).unwrap_or_default();
        found.extend(nodes.into_iter().filter_map(|node| Some((id, node, kind_of(state, node)?.0))));
    }
    found
}

fn refusal(site: &Site, pattern: &[String], reason: Reason) -> Refusal {
    Refusal { transform: NAME, site: site.clone(), units: pattern.to_vec(), reason, origin: None }
}
