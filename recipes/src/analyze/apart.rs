//! Pairs of kernels that stayed separate, each once.
//!
//! Transforms try to fuse the same two kernels repeatedly, as kernels around them change, first in fusion and then in composition. What
//! matters is whether the program runs the two as one in the end, and if not, the reason of the last attempt.

use crate::pipeline::variants::variant::Variant;
use sdfg::{Sdfg, Unit};
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};
use transforms::{Reason, Refusal};

/// Two kernels that were not fused.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RefusedPair {
    pub first: String,
    pub second: String,
    pub reason: String,
    /// The place in the recipe that the second kernel comes from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub origin: Option<String>,
    /// The text that refusals for the same kind of reason share.
    #[serde(skip)]
    pub kind: String,
    /// Whether one reads what the other writes, or both read one container.
    #[serde(skip)]
    pub neighbours: bool,
    #[serde(skip)]
    pub transform: &'static str,
}

/// The transform that fuses contractions with their neighbours; it runs after fusion.
pub const COMPOSITION: &str = "composition";

/// The kernels of a program, by their names and by the names of the operators that they hold.
pub struct Holders(BTreeMap<String, String>);

impl Holders {
    pub fn of(program: &Sdfg) -> Self {
        let units = program.units();
        let mut found = BTreeMap::new();
        for (_, _, unit) in &units {
            if let Unit::Scope(scope) = unit {
                found.extend(scope.operators().into_iter().map(|operator| (operator, unit.name().to_string())));
            }
        }
        // A kernel's own name takes precedence over an operator's.
        found.extend(units.iter().map(|(_, _, unit)| (unit.name().to_string(), unit.name().to_string())));
        Holders(found)
    }

    /// The kernel of this name, or the one that holds the operator of this name.
    pub fn of_name(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }
}

/// Pairs of kernels of a program that stayed separate: each pair once, under the final names of the kernels, with the last reason.
pub fn refusals(variant: &Variant) -> Vec<RefusedPair> {
    let mut touched: BTreeMap<String, (Vec<String>, Vec<String>)> = BTreeMap::new();
    for (_, state) in variant.program.states() {
        for (node, unit) in state.units() {
            let (reads, writes) = state.boundary(node);
            let names = |memlets: Vec<&sdfg::Memlet>| memlets.into_iter().map(|m| m.data.clone()).collect();
            touched.insert(unit.name().to_string(), (names(reads), names(writes)));
        }
    }
    let meet = |first: &str, second: &str| {
        let (Some((reads, writes)), Some((others, written))) = (touched.get(first), touched.get(second)) else { return false };
        others.iter().any(|data| reads.contains(data) || writes.contains(data)) || reads.iter().any(|data| written.contains(data))
    };
    let holders = Holders::of(&variant.program);
    let mut found: Vec<(RefusedPair, u8)> = Vec::new();
    let mut places: HashMap<(&str, &str), usize> = HashMap::new();
    for refusal in &variant.refusals {
        let [first, second] = refusal.units.as_slice() else { continue };
        let (Some(one), Some(other)) = (holders.of_name(first), holders.of_name(second)) else { continue };
        if one == other {
            continue;
        }
        let refused = RefusedPair {
            first: one.to_string(),
            second: other.to_string(),
            reason: refusal.reason.to_string(),
            origin: refusal.origin.as_ref().map(ToString::to_string),
            kind: refusal.reason.kind(),
            neighbours: meet(one, other),
            transform: refusal.transform,
        };
        let says = says(refusal);
        let place = *places.entry((one.min(other), one.max(other))).or_insert(found.len());
        match found.get_mut(place) {
            Some(known) if says >= known.1 => *known = (refused, says),
            Some(_) => {}
            None => found.push((refused, says)),
        }
    }
    found.into_iter().map(|(refused, _)| refused).collect()
}

/// The weight of a refusal as an explanation. Fusion comes first and fuses no contractions, so it weighs least. A fusion that was left
/// out on trial explains less than one that is impossible.
fn says(refusal: &Refusal) -> u8 {
    match &refusal.reason {
        _ if refusal.transform != COMPOSITION => 0,
        Reason::NotWanted { why, .. } if why.is_empty() => 1,
        _ => 2,
    }
}
