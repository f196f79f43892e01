//! Compositions chosen one by one, from measured times, those of many kernels that are alike together: which of them pay, and what each
//! was weighed against.
//!
//! A composition is undone by keeping some of its [`Kind`]s out of the kernels that hold its contractions: a chain may
//! fall back to epilogues, a row epilogue to a plain one, all of them to nothing. The program is built again without it,
//! and what only one of the two programs runs, by content, is what the composition is weighed by: so whatever else the
//! change brings counts as well, as when forward must store what backward no longer computes again.

use super::stacking::stacked_name;
use super::table::{VariantId, VariantKey};
use layouts::Store;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use transforms::{Cluster, Kind};

/// Which program of a recipe: the weights that are stacked, and what is not composed.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FusionSet {
    pub weights: Vec<String>,
    /// Contraction → what is kept out of kernels that hold it.
    pub without: BTreeMap<String, BTreeSet<Kind>>,
}

impl FusionSet {
    pub fn accepts(&self, cluster: &Cluster) -> bool {
        cluster.contractions.iter().all(|c| self.without.get(c).is_none_or(|kinds| kinds.is_disjoint(&cluster.kinds)))
    }

    /// The key of the program that fuses these alone.
    pub fn key(&self) -> VariantKey {
        VariantKey::stacked(VariantId::PartiallyFused, &self.weights)
    }
}

/// One thing that could be otherwise in a composed program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// The composed kernel, or the weights that would be stacked.
    pub subject: String,
    /// What the kernel holds.
    pub kinds: BTreeSet<Kind>,
    /// What would be kept out, from kernels with which contractions.
    pub without: BTreeSet<Kind>,
    pub contractions: Vec<String>,
    /// The weights that would be stacked, where that is the change.
    pub weights: Option<Vec<String>>,
    /// Kernels like the subject, of which the same would be kept out.
    pub alike: Vec<String>,
}

impl Change {
    pub fn stacking(weights: &[String]) -> Self {
        Change {
            subject: stacked_name(weights),
            kinds: BTreeSet::new(),
            without: BTreeSet::new(),
            contractions: vec![],
            weights: Some(weights.to_vec()),
            alike: vec![],
        }
    }

    /// Changes of kernels of one family as one change: what pays in one layer does in the next. `family` knows kernels by name.
    pub fn together(changes: Vec<Change>, family: &dyn Fn(&str) -> Option<String>) -> Vec<Change> {
        let mut found: Vec<(Option<String>, Change)> = Vec::new();
        for change in changes {
            let kind = family(&change.subject).filter(|_| change.weights.is_none());
            let same = |(known, other): &&mut (Option<String>, Change)| kind.is_some() && *known == kind && other.without == change.without;
            match found.iter_mut().find(same) {
                Some((_, other)) => {
                    other.contractions.extend(change.contractions);
                    other.alike.push(change.subject);
                }
                None => found.push((kind, change)),
            }
        }
        found.into_iter().map(|(_, change)| change).collect()
    }

    pub fn of(&self, fusion_set: &FusionSet) -> FusionSet {
        let mut changed = fusion_set.clone();
        changed.weights = self.weights.clone().unwrap_or(changed.weights);
        for contraction in self.contractions.iter().filter(|_| !self.without.is_empty()) {
            changed.without.entry(contraction.clone()).or_default().extend(self.without.iter().copied());
        }
        changed
    }
}

impl fmt::Display for Change {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<String> = self.without.iter().map(Kind::to_string).collect();
        let subject = and_alike(&self.subject, &self.alike);
        match &self.weights {
            Some(weights) => write!(f, "{} stacked", stacked_name(weights)),
            None if self.without.is_superset(&self.kinds) => write!(f, "{subject} apart"),
            None => write!(f, "{subject} without {}", kinds.join(", ")),
        }
    }
}

/// The program of a fusion set, as far as its cost is compared.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trial {
    pub fusion_set: FusionSet,
    /// Name and content hash of every kernel, in execution order.
    pub kernels: Vec<(String, String)>,
    pub compositions: Vec<Cluster>,
}

impl Trial {
    /// Every way to undo one composition: altogether, and one kind at a time.
    pub fn undoings(&self) -> Vec<Change> {
        let mut found = Vec::new();
        for cluster in &self.compositions {
            let change = |without: BTreeSet<Kind>| Change {
                subject: cluster.name.clone(),
                kinds: cluster.kinds.clone(),
                without,
                contractions: cluster.contractions.clone(),
                weights: None,
                alike: vec![],
            };
            found.push(change(cluster.kinds.clone()));
            if cluster.kinds.len() > 1 {
                found.extend(cluster.kinds.iter().map(|kind| change(BTreeSet::from([*kind]))));
            }
        }
        found
    }
}

/// A kernel that only one of two programs runs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    pub kernel: String,
    /// The best time that was measured, in milliseconds; `None` if the kernel has none.
    pub ms: Option<f64>,
}

/// What a composition was weighed against.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialCost {
    /// The composed kernel, or the weights that would be stacked.
    pub subject: String,
    pub kinds: BTreeSet<Kind>,
    /// The change, as a phrase: `norm1 apart`.
    pub change: String,
    /// Kernels that only the program with the composition runs, and those in their place.
    pub with: Vec<Part>,
    pub instead: Vec<Part>,
    /// Whether the change is made in the mixed program.
    pub changed: bool,
    /// Kernels like the subject that the change is made to as well: times are of all of them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alike: Vec<String>,
    /// What the change cannot bring, and why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A kernel, and how many are looked at with it.
fn and_alike(subject: &str, alike: &[String]) -> String {
    if alike.is_empty() { subject.to_string() } else { format!("{subject} and {} alike", alike.len()) }
}

impl TrialCost {
    /// What was weighed, in words: `norm1_0 and 11 alike`.
    pub fn subjects(&self) -> String {
        and_alike(&self.subject, &self.alike)
    }

    /// Milliseconds with the composition and without; `None` where a kernel has no time.
    pub fn ms(&self) -> Option<(f64, f64)> {
        let sum = |parts: &[Part]| parts.iter().map(|p| p.ms).sum::<Option<f64>>();
        sum(&self.with).zip(sum(&self.instead))
    }

    /// Milliseconds that the change saves: all there are where only what it brings can be run.
    pub fn gain(&self) -> Option<f64> {
        let known = |parts: &[Part]| parts.iter().all(|p| p.ms.is_some());
        if !known(&self.with) && known(&self.instead) && !self.instead.is_empty() {
            return Some(f64::INFINITY);
        }
        self.ms().map(|(with, instead)| with - instead)
    }
}

/// Best measured times by content hash.
pub type Times<'a> = &'a dyn Fn(&str) -> Option<f64>;

/// The best time of a kernel that a store knows, in milliseconds.
pub fn best(store: &Store, key: &str) -> Option<f64> {
    store.of(key).filter_map(|m| store.ms(m)).min_by(f64::total_cmp)
}

/// What only one of two programs runs, with times.
pub fn weigh(change: &Change, from: &Trial, to: &Trial, times: Times) -> TrialCost {
    let only = |of: &Trial, other: &Trial| {
        let mut left: Vec<&String> = other.kernels.iter().map(|(_, key)| key).collect();
        let mut parts = Vec::new();
        for (kernel, key) in &of.kernels {
            match left.iter().position(|k| *k == key) {
                Some(at) => {
                    left.swap_remove(at);
                }
                None => parts.push(Part { kernel: kernel.clone(), ms: times(key) }),
            }
        }
        parts
    };
    TrialCost {
        subject: change.subject.clone(),
        kinds: change.kinds.clone(),
        change: change.to_string(),
        with: only(from, to),
        instead: only(to, from),
        changed: false,
        alike: change.alike.clone(),
        note: String::new(),
    }
}

/// The changes that pay, one after the other, those first that save most alone: each is made if the sum of best times
/// falls by it, on top of those before. Where a program of several changes has a kernel without a time, what each saves
/// alone decides: the program is measured before it competes.
///
/// Returns the program, and one entry for each trial.
pub fn mix<E>(
    from: &Trial,
    trials: &[(Change, Trial)],
    build: &mut dyn FnMut(&FusionSet) -> Result<Trial, E>,
    times: Times,
) -> Result<(Trial, Vec<TrialCost>), E> {
    let mut weighed: Vec<TrialCost> = trials.iter().map(|(change, made)| weigh(change, from, made, times)).collect();
    let mut order: Vec<(f64, usize)> =
        weighed.iter().enumerate().filter_map(|(n, w)| Some((w.gain().filter(|gain| *gain > 0.0)?, n))).collect();
    order.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    let mut current = from.clone();
    for (_, n) in order {
        let (change, alone) = &trials[n];
        let fusion_set = change.of(&current.fusion_set);
        if fusion_set == current.fusion_set {
            weighed[n].changed = true;
            continue;
        }
        let next = if fusion_set == alone.fusion_set { alone.clone() } else { build(&fusion_set)? };
        if weigh(change, &current, &next, times).gain().is_none_or(|gain| gain > 0.0) {
            current = next;
            weighed[n].changed = true;
        }
    }
    Ok((current, weighed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    fn kinds(all: &[Kind]) -> BTreeSet<Kind> {
        all.iter().copied().collect()
    }

    /// A program of two contractions: `a` may have its bias inside, `b` its normalization, and both may be one chain.
    /// Content hashes are what a kernel holds.
    fn made(fusion_set: &FusionSet) -> Trial {
        let without = |contraction: &str, kind: Kind| fusion_set.without.get(contraction).is_some_and(|k| k.contains(&kind));
        let mut compositions = Vec::new();
        let mut kernels = Vec::new();
        let mut kernel = |holds: &str, contractions: &[&str], held: &[Kind]| {
            let name = holds.rsplit('+').next().unwrap_or_default().to_string();
            kernels.push((name.clone(), format!("{}{holds}", fusion_set.weights.join(""))));
            if !held.is_empty() {
                let contractions = contractions.iter().map(|c| c.to_string()).collect();
                let site = transforms::Site { state: sdfg::StateId(0), units: vec![] };
                compositions.push(Cluster { site, name, members: vec![], contractions, kinds: kinds(held) });
            }
        };
        let chained = [Kind::Chain, Kind::Epilogue, Kind::Rows].iter().all(|kind| !without("a", *kind) && !without("b", *kind));
        match chained {
            true => kernel("a+bias+b+norm", &["a", "b"], &[Kind::Epilogue, Kind::Rows, Kind::Chain]),
            false => {
                if without("a", Kind::Epilogue) {
                    kernel("a", &["a"], &[]);
                    kernel("bias", &[], &[]);
                } else {
                    kernel("a+bias", &["a"], &[Kind::Epilogue]);
                }
                if without("b", Kind::Rows) || without("b", Kind::Epilogue) {
                    kernel("b", &["b"], &[]);
                    kernel("norm", &[], &[]);
                } else {
                    kernel("b+norm", &["b"], &[Kind::Epilogue, Kind::Rows]);
                }
            }
        }
        Trial { fusion_set: fusion_set.clone(), kernels, compositions }
    }

    fn mixed(from: &Trial, times: &[(&str, f64)]) -> (Trial, Vec<TrialCost>) {
        let trials: Vec<(Change, Trial)> = from.undoings().into_iter().map(|c| (c.clone(), made(&c.of(&from.fusion_set)))).collect();
        let times: BTreeMap<&str, f64> = times.iter().copied().collect();
        mix(from, &trials, &mut |m| Ok::<_, Infallible>(made(m)), &|key| times.get(key).copied()).unwrap_or_else(|e| match e {})
    }

    fn names(made: &Trial) -> Vec<&str> {
        made.kernels.iter().map(|(_, key)| key.as_str()).collect()
    }

    const TIMES: [(&str, f64); 7] =
        [("a+bias+b+norm", 10.0), ("a+bias", 3.0), ("b+norm", 4.0), ("a", 2.5), ("bias", 1.0), ("b", 3.5), ("norm", 1.0)];

    #[test]
    fn a_chain_that_does_not_pay_falls_back_to_what_does() {
        let from = made(&FusionSet::default());
        let (found, weighed) = mixed(&from, &TIMES);
        assert_eq!(names(&found), ["a+bias", "b+norm"]);
        let chain = weighed.iter().find(|w| w.change == "norm without chain").expect("a row");
        assert_eq!((chain.ms(), chain.changed), (Some((10.0, 7.0)), true));
        // All apart saves as well, but less than the chain alone, and nothing on top of it.
        let apart = weighed.iter().find(|w| w.change == "norm apart").expect("a row");
        assert_eq!((apart.ms(), apart.changed), (Some((10.0, 8.0)), false));
        // What is left is looked at again.
        let (again, weighed) = mixed(&found, &TIMES);
        assert_eq!(again, found);
        assert!(weighed.iter().all(|w| w.gain().is_some_and(|g| g <= 0.0)), "{weighed:#?}");
    }

    /// Kernels of one family are looked at together; others, and other kinds, are not.
    #[test]
    fn what_is_alike_changes_together() {
        let change = |subject: &str, kind: Kind| Change {
            subject: subject.into(),
            kinds: kinds(&[Kind::Epilogue, Kind::Rows]),
            without: kinds(&[kind]),
            contractions: vec![format!("{subject}.dot")],
            weights: None,
            alike: vec![],
        };
        let all = ["norm_0", "y_0", "norm_1", "y_1", "lone"].into_iter().flat_map(|s| [change(s, Kind::Epilogue), change(s, Kind::Rows)]);
        let stacking = Change::stacking(&["wq".into(), "wk".into()]);
        let family = |name: &str| name.split_once('_').map(|(kind, _)| kind.to_string());
        let found = Change::together(all.chain([stacking]).collect(), &family);
        let texts: Vec<String> = found.iter().map(Change::to_string).collect();
        let norms = ["norm_0 and 1 alike without epilogue", "norm_0 and 1 alike without rows"];
        let others = ["y_0 and 1 alike without epilogue", "y_0 and 1 alike without rows"];
        let alone = ["lone without epilogue", "lone without rows", "wq+wk stacked"];
        assert_eq!(texts, [&norms[..], &others, &alone].concat());
        assert_eq!(found[0].contractions, ["norm_0.dot", "norm_1.dot"]);
        let row = weigh(&found[0], &Trial::default(), &Trial::default(), &|_| None);
        assert_eq!(row.subjects(), "norm_0 and 1 alike");
    }

    #[test]
    fn what_pays_is_kept() {
        let mut times = TIMES;
        times[0].1 = 6.0;
        let from = made(&FusionSet::default());
        let (found, weighed) = mixed(&from, &times);
        assert_eq!(found, from);
        assert_eq!(weighed.len(), 4, "three kinds, and all of them");
        assert!(weighed.iter().all(|w| !w.changed && w.ms().is_some()));
    }

    /// No configuration of a composed kernel was right: what it is composed of is.
    #[test]
    fn what_cannot_be_run_is_undone() {
        let times: Vec<(&str, f64)> = TIMES.into_iter().filter(|(key, _)| !["a+bias+b+norm", "a+bias"].contains(key)).collect();
        let (found, weighed) = mixed(&made(&FusionSet::default()), &times);
        assert_eq!(names(&found), ["a", "bias", "b", "norm"]);
        assert!(weighed.iter().any(|w| w.changed && w.ms().is_none()), "{weighed:#?}");
    }

    #[test]
    fn what_was_not_measured_is_not_chosen() {
        let from = made(&FusionSet::default());
        let (found, weighed) = mixed(&from, &TIMES[..3]);
        assert_eq!(names(&found), ["a+bias", "b+norm"]);
        let rows = weighed.iter().find(|w| w.change == "norm apart").expect("a row");
        assert_eq!(rows.ms(), None);
        let (found, _) = mixed(&from, &TIMES[..2]);
        assert_eq!(found, from);
    }

    /// Equal kernels may run several times in one program: each counts.
    #[test]
    fn kernels_are_counted_as_often_as_they_run() {
        let program = |keys: &[&str]| Trial { kernels: keys.iter().map(|k| (k.to_string(), k.to_string())).collect(), ..Trial::default() };
        let change = Change::stacking(&["wq".into(), "wk".into()]);
        let found = weigh(&change, &program(&["p", "p", "x"]), &program(&["x", "p", "s"]), &|_| Some(1.5));
        assert_eq!((found.with.len(), found.instead.len(), found.gain()), (1, 1, Some(0.0)));
        assert_eq!(found.change, "wq+wk stacked");
    }
}
