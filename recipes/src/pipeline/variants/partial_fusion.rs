//! Partial fusion: each fusion of contractions is kept or undone by measured times. Equivalent kernels of several layers are decided
//! together.
//!
//! A fusion is undone by keeping some of its [`FusionKind`]s out of the kernels that hold its contractions. A chain may fall back to
//! epilogues, a row epilogue to a plain one, any of these to separate kernels. The program is rebuilt without the fusion. The kernels that
//! only one of the two programs runs, by content hash, decide. So side effects count as well, for example when forward must store a tensor
//! that backward no longer recomputes.

use super::stacking::stacked_name;
use super::table::{VariantId, VariantKey};
use layouts::Store;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use transforms::{Cluster, FusionKind};

/// A program of a recipe: the weights that are stacked, and the fusions that are undone.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FusionSet {
    pub weights: Vec<String>,
    /// Contraction → the kinds of fusion that are kept out of its kernel.
    pub without: BTreeMap<String, BTreeSet<FusionKind>>,
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

/// One possible change of a program with fused contractions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FusionChange {
    /// The fused kernel, or the weights that would be stacked.
    pub subject: String,
    /// The kinds of fusion in the kernel.
    pub kinds: BTreeSet<FusionKind>,
    /// The kinds that would be kept out, and the contractions whose kernels they are kept out of.
    pub without: BTreeSet<FusionKind>,
    pub contractions: Vec<String>,
    /// The weights that would be stacked, if the change is a stacking.
    pub weights: Option<Vec<String>>,
    /// Equivalent kernels, to which the same change is made.
    pub alike: Vec<String>,
}

impl FusionChange {
    pub fn stacking(weights: &[String]) -> Self {
        FusionChange {
            subject: stacked_name(weights),
            kinds: BTreeSet::new(),
            without: BTreeSet::new(),
            contractions: vec![],
            weights: Some(weights.to_vec()),
            alike: vec![],
        }
    }

    /// Merges changes of equivalent kernels into one, because a change that pays in one layer pays in the next. `family` maps a kernel's
    /// name to its class.
    pub fn together(changes: Vec<FusionChange>, family: &dyn Fn(&str) -> Option<String>) -> Vec<FusionChange> {
        let mut found: Vec<(Option<String>, FusionChange)> = Vec::new();
        for change in changes {
            let kind = family(&change.subject).filter(|_| change.weights.is_none());
            let same =
                |(known, other): &&mut (Option<String>, FusionChange)| kind.is_some() && *known == kind && other.without == change.without;
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

impl fmt::Display for FusionChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kinds: Vec<String> = self.without.iter().map(FusionKind::to_string).collect();
        let subject = and_alike(&self.subject, &self.alike);
        match &self.weights {
            Some(weights) => write!(f, "{} stacked", stacked_name(weights)),
            None if self.without.is_superset(&self.kinds) => write!(f, "{subject} apart"),
            None => write!(f, "{subject} without {}", kinds.join(", ")),
        }
    }
}

/// The program of a fusion set, reduced to what a comparison of costs needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Trial {
    pub fusion_set: FusionSet,
    /// Name and content hash of every kernel, in execution order.
    pub kernels: Vec<(String, String)>,
    pub compositions: Vec<Cluster>,
}

impl Trial {
    /// Every way to undo one fusion: entirely, and one kind at a time.
    pub fn undoings(&self) -> Vec<FusionChange> {
        let mut found = Vec::new();
        for cluster in &self.compositions {
            let change = |without: BTreeSet<FusionKind>| FusionChange {
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
pub struct KernelTime {
    pub kernel: String,
    /// The best time that was measured, in milliseconds; `None` if the kernel has none.
    pub ms: Option<f64>,
}

/// A change with the times that it was judged by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrialCost {
    /// The fused kernel, or the weights that would be stacked.
    pub subject: String,
    pub kinds: BTreeSet<FusionKind>,
    /// The change, as a phrase: `norm1 apart`.
    pub change: String,
    /// Kernels that only the program with the fusion runs, and the kernels that replace them.
    pub with: Vec<KernelTime>,
    pub instead: Vec<KernelTime>,
    /// Whether the change is made in the partially fused program.
    pub changed: bool,
    /// Equivalent kernels that change as well: times are sums over the subject and these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alike: Vec<String>,
    /// A fusion that the change prevents, and why.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// A kernel and the number of its equivalents.
fn and_alike(subject: &str, alike: &[String]) -> String {
    if alike.is_empty() { subject.to_string() } else { format!("{subject} and {} alike", alike.len()) }
}

impl TrialCost {
    /// The subject of the change in words: `norm1_0 and 11 alike`.
    pub fn subjects(&self) -> String {
        and_alike(&self.subject, &self.alike)
    }

    /// Milliseconds with the fusion and without; `None` where a kernel has no time.
    pub fn ms(&self) -> Option<(f64, f64)> {
        let sum = |parts: &[KernelTime]| parts.iter().map(|p| p.ms).sum::<Option<f64>>();
        sum(&self.with).zip(sum(&self.instead))
    }

    /// Milliseconds that the change saves; infinite if only the kernels after the change have times.
    pub fn gain(&self) -> Option<f64> {
        let known = |parts: &[KernelTime]| parts.iter().all(|p| p.ms.is_some());
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

/// The kernels that only one of two programs runs, with times.
pub fn weigh(change: &FusionChange, from: &Trial, to: &Trial, times: Times) -> TrialCost {
    let only = |of: &Trial, other: &Trial| {
        let mut left: Vec<&String> = other.kernels.iter().map(|(_, key)| key).collect();
        let mut parts = Vec::new();
        for (kernel, key) in &of.kernels {
            match left.iter().position(|k| *k == key) {
                Some(at) => {
                    left.swap_remove(at);
                }
                None => parts.push(KernelTime { kernel: kernel.clone(), ms: times(key) }),
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

/// Applies the changes that pay, in descending order of their separate savings. A change is made if it lowers the sum of best times on top
/// of the earlier ones. If a program with several changes has a kernel without a time, the saving of the change alone decides: the
/// program is measured before it competes.
///
/// Returns the program and one entry for each change.
pub fn mix<E>(
    from: &Trial,
    trials: &[(FusionChange, Trial)],
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

    fn kinds(all: &[FusionKind]) -> BTreeSet<FusionKind> {
        all.iter().copied().collect()
    }

    /// A program of two contractions: `a` may hold its bias, `b` its normalization, and both may form one chain. The content hash of a
    /// kernel lists what it holds.
    fn made(fusion_set: &FusionSet) -> Trial {
        let without = |contraction: &str, kind: FusionKind| fusion_set.without.get(contraction).is_some_and(|k| k.contains(&kind));
        let mut compositions = Vec::new();
        let mut kernels = Vec::new();
        let mut kernel = |holds: &str, contractions: &[&str], held: &[FusionKind]| {
            let name = holds.rsplit('+').next().unwrap_or_default().to_string();
            kernels.push((name.clone(), format!("{}{holds}", fusion_set.weights.join(""))));
            if !held.is_empty() {
                let contractions = contractions.iter().map(|c| c.to_string()).collect();
                let site = transforms::Site { state: sdfg::StateId(0), units: vec![] };
                compositions.push(Cluster { site, name, members: vec![], contractions, kinds: kinds(held) });
            }
        };
        let chained =
            [FusionKind::Chain, FusionKind::Epilogue, FusionKind::Rows].iter().all(|kind| !without("a", *kind) && !without("b", *kind));
        match chained {
            true => kernel("a+bias+b+norm", &["a", "b"], &[FusionKind::Epilogue, FusionKind::Rows, FusionKind::Chain]),
            false => {
                if without("a", FusionKind::Epilogue) {
                    kernel("a", &["a"], &[]);
                    kernel("bias", &[], &[]);
                } else {
                    kernel("a+bias", &["a"], &[FusionKind::Epilogue]);
                }
                if without("b", FusionKind::Rows) || without("b", FusionKind::Epilogue) {
                    kernel("b", &["b"], &[]);
                    kernel("norm", &[], &[]);
                } else {
                    kernel("b+norm", &["b"], &[FusionKind::Epilogue, FusionKind::Rows]);
                }
            }
        }
        Trial { fusion_set: fusion_set.clone(), kernels, compositions }
    }

    fn mixed(from: &Trial, times: &[(&str, f64)]) -> (Trial, Vec<TrialCost>) {
        let trials: Vec<(FusionChange, Trial)> = from.undoings().into_iter().map(|c| (c.clone(), made(&c.of(&from.fusion_set)))).collect();
        let times: BTreeMap<&str, f64> = times.iter().copied().collect();
        mix(from, &trials, &mut |m| Ok::<_, Infallible>(made(m)), &|key| times.get(key).copied()).unwrap_or_else(|e| match e {})
    }

    fn names(made: &Trial) -> Vec<&str> {
        made.kernels.iter().map(|(_, key)| key.as_str()).collect()
    }

    const TIMES: [(&str, f64); 7] =
        [("a+bias+b+norm", 10.0), ("a+bias", 3.0), ("b+norm", 4.0), ("a", 2.5), ("bias", 1.0), ("b", 3.5), ("norm", 1.0)];

    #[test]
    fn a_chain_that_does_not_pay_falls_back_to_epilogues() {
        let from = made(&FusionSet::default());
        let (found, weighed) = mixed(&from, &TIMES);
        assert_eq!(names(&found), ["a+bias", "b+norm"]);
        let chain = weighed.iter().find(|w| w.change == "norm without chain").expect("a row");
        assert_eq!((chain.ms(), chain.changed), (Some((10.0, 7.0)), true));
        // Separating everything saves as well, but less than undoing the chain, and nothing on top of it.
        let apart = weighed.iter().find(|w| w.change == "norm apart").expect("a row");
        assert_eq!((apart.ms(), apart.changed), (Some((10.0, 8.0)), false));
        // Another search over the result changes nothing.
        let (again, weighed) = mixed(&found, &TIMES);
        assert_eq!(again, found);
        assert!(weighed.iter().all(|w| w.gain().is_some_and(|g| g <= 0.0)), "{weighed:#?}");
    }

    /// Equivalent kernels are changed together; other kernels and other kinds are not.
    #[test]
    fn equivalent_kernels_change_together() {
        let change = |subject: &str, kind: FusionKind| FusionChange {
            subject: subject.into(),
            kinds: kinds(&[FusionKind::Epilogue, FusionKind::Rows]),
            without: kinds(&[kind]),
            contractions: vec![format!("{subject}.dot")],
            weights: None,
            alike: vec![],
        };
        let all = ["norm_0", "y_0", "norm_1", "y_1", "lone"]
            .into_iter()
            .flat_map(|s| [change(s, FusionKind::Epilogue), change(s, FusionKind::Rows)]);
        let stacking = FusionChange::stacking(&["wq".into(), "wk".into()]);
        let family = |name: &str| name.split_once('_').map(|(kind, _)| kind.to_string());
        let found = FusionChange::together(all.chain([stacking]).collect(), &family);
        let texts: Vec<String> = found.iter().map(FusionChange::to_string).collect();
        let norms = ["norm_0 and 1 alike without epilogue", "norm_0 and 1 alike without rows"];
        let others = ["y_0 and 1 alike without epilogue", "y_0 and 1 alike without rows"];
        let alone = ["lone without epilogue", "lone without rows", "wq+wk stacked"];
        assert_eq!(texts, [&norms[..], &others, &alone].concat());
        assert_eq!(found[0].contractions, ["norm_0.dot", "norm_1.dot"]);
        let row = weigh(&found[0], &Trial::default(), &Trial::default(), &|_| None);
        assert_eq!(row.subjects(), "norm_0 and 1 alike");
    }

    #[test]
    fn fusions_that_pay_are_kept() {
        let mut times = TIMES;
        times[0].1 = 6.0;
        let from = made(&FusionSet::default());
        let (found, weighed) = mixed(&from, &times);
        assert_eq!(found, from);
        assert_eq!(weighed.len(), 4, "three kinds, and all of them");
        assert!(weighed.iter().all(|w| !w.changed && w.ms().is_some()));
    }

    /// If no configuration of a fused kernel was right, its parts are run as separate kernels.
    #[test]
    fn fusions_that_cannot_run_are_undone() {
        let times: Vec<(&str, f64)> = TIMES.into_iter().filter(|(key, _)| !["a+bias+b+norm", "a+bias"].contains(key)).collect();
        let (found, weighed) = mixed(&made(&FusionSet::default()), &times);
        assert_eq!(names(&found), ["a", "bias", "b", "norm"]);
        assert!(weighed.iter().any(|w| w.changed && w.ms().is_none()), "{weighed:#?}");
    }

    #[test]
    fn changes_without_times_are_not_made() {
        let from = made(&FusionSet::default());
        let (found, weighed) = mixed(&from, &TIMES[..3]);
        assert_eq!(names(&found), ["a+bias", "b+norm"]);
        let rows = weighed.iter().find(|w| w.change == "norm apart").expect("a row");
        assert_eq!(rows.ms(), None);
        let (found, _) = mixed(&from, &TIMES[..2]);
        assert_eq!(found, from);
    }

    /// Equal kernels may run several times in one program: each run counts.
    #[test]
    fn kernels_are_counted_as_often_as_they_run() {
        let program = |keys: &[&str]| Trial { kernels: keys.iter().map(|k| (k.to_string(), k.to_string())).collect(), ..Trial::default() };
        let change = FusionChange::stacking(&["wq".into(), "wk".into()]);
        let found = weigh(&change, &program(&["p", "p", "x"]), &program(&["x", "p", "s"]), &|_| Some(1.5));
        assert_eq!((found.with.len(), found.instead.len(), found.gain()), (1, 1, Some(0.0)));
        assert_eq!(found.change, "wq+wk stacked");
    }
}
