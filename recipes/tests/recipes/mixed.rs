//! Partial fusion: every program with one fusion undone computes the same, and invented times decide which fusions are undone.

use kernels::KernelSpec;
use kernels::alpha_equivalence::KernelClass;
use recipes::load::{Recipe, load};
use recipes::pipeline::choose::partial_fusion_search::trial;
use recipes::pipeline::oracle::operators::operators;
use recipes::pipeline::oracle::small_sizes::with_small_sizes;
use recipes::pipeline::oracle::tensors::{random_inputs, results};
use recipes::pipeline::variants::gemm_fusion::GemmFusion;
use recipes::pipeline::variants::partial_fusion::{FusionChange, FusionSet, Trial, TrialCost, mix};
use recipes::pipeline::variants::programs::programs;
use recipes::pipeline::variants::stacking::stackings;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Sdfg, movement::movement};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use transforms::FusionKind;

fn shipped(name: &str) -> Recipe {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name), &[]).expect("a shipped recipe loads")
}

fn computed(program: &Sdfg, tensors: &Tensors) -> Tensors {
    assert_eq!(sdfg::validate::validate(program), vec![]);
    interpret(program, tensors, &Run { seed: 3, step: 1, dropout: true }).expect("the program runs")
}

fn names(made: &Trial) -> BTreeSet<&str> {
    made.kernels.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn every_composition_can_be_undone() {
    let recipe = shipped("bert-large-encoder.yaml");
    let reference = with_small_sizes(&operators(&recipe).expect("operators").0);
    let tensors = random_inputs(&reference, 3).expect("tensors");
    let want = computed(&reference, &tensors);
    let composing = GemmFusion::generated(&recipe, &[], false).expect("programs");
    let (_, full) = trial(&composing, &FusionSet::default()).expect("the composed program");
    let mut seen = BTreeSet::new();
    for change in full.undoings() {
        let (variant, made) = trial(&composing, &change.of(&full.fusion_set)).expect("a program");
        if !seen.insert(made.kernels.clone()) {
            continue;
        }
        assert_ne!(made.kernels, full.kernels, "{change}");
        // The kinds that are kept out are in no kernel that holds one of the contractions.
        for cluster in &variant.compositions {
            let concerned = cluster.contractions.iter().any(|c| change.contractions.contains(c));
            assert!(!concerned || cluster.kinds.is_disjoint(&change.without), "{change}: {cluster:?}");
        }
        let got = computed(&with_small_sizes(&variant.program), &tensors);
        for container in results(&reference) {
            let (want, got) = (&want[&container.name], &got[&container.name]);
            let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
            // Sums of a few hundred terms in f64, in another order.
            assert!(want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e4 * f64::EPSILON * scale), "{change}: `{}`", container.name);
        }
    }
    assert!(seen.len() > full.compositions.len(), "{} programs", seen.len());
}

#[test]
fn with_nothing_composed_the_kernels_are_those_of_the_separate_program() {
    let recipe = shipped("mha.yaml");
    let composing = GemmFusion::generated(&recipe, &[], false).expect("programs");
    let (_, full) = trial(&composing, &FusionSet::default()).expect("the composed program");
    let mut none = full.fusion_set.clone();
    for change in full.undoings() {
        none = change.of(&none);
    }
    // Backward recomputes contractions only where it fuses them: without that, forward has other fusions to undo.
    let (_, rest) = trial(&composing, &none).expect("a program");
    for change in rest.undoings() {
        none = change.of(&none);
    }
    let (variant, apart) = trial(&composing, &none).expect("a program");
    assert!(variant.compositions.is_empty(), "{:?}", variant.compositions);
    let separate = &programs(&recipe, false).expect("programs").variants[0].program;
    let key = |unit: &sdfg::Unit| kernels::KernelSpec::new(separate, unit).expect("a kernel").key();
    let keys: BTreeSet<String> = separate.units().iter().map(|(_, _, unit)| key(unit)).collect();
    assert_eq!(apart.kernels.iter().map(|(_, key)| key.clone()).collect::<BTreeSet<_>>(), keys);
}

/// A kernel's time is proportional to its bytes, in milliseconds for each megabyte, plus `extra` for some kernels.
struct Invented<'a> {
    composing: &'a GemmFusion<'a>,
    extra: BTreeMap<&'a str, f64>,
    times: BTreeMap<String, f64>,
}

impl Invented<'_> {
    fn made(&mut self, fusion_set: &FusionSet) -> Trial {
        let (variant, made) = trial(self.composing, fusion_set).expect("a program");
        let moved: BTreeMap<String, u64> =
            movement(&variant.program).expect("sizes are bound").into_iter().map(|m| (m.name.clone(), m.bytes())).collect();
        for (name, key) in &made.kernels {
            let composed = variant.compositions.iter().find(|c| c.name == *name);
            let extra = composed.and_then(|c| self.extra.get(c.name.as_str())).copied().unwrap_or(0.0);
            self.times.insert(key.clone(), moved[name] as f64 / 1e6 + extra);
        }
        made
    }

    fn mixed(&mut self) -> (Trial, Vec<TrialCost>) {
        let full = self.made(&FusionSet::default());
        let trials: Vec<(FusionChange, Trial)> =
            full.undoings().into_iter().map(|c| (c.clone(), self.made(&c.of(&full.fusion_set)))).collect();
        let known = self.times.clone();
        let composing = self.composing;
        let mut build = |fusion_set: &FusionSet| trial(composing, fusion_set).map(|(_, made)| made);
        mix(&full, &trials, &mut build, &|key| known.get(key).copied()).expect("a program")
    }
}

#[test]
fn only_fusions_that_take_longer_are_undone() {
    let recipe = shipped("mha.yaml");
    let composing = GemmFusion::generated(&recipe, &[], false).expect("programs");
    // Fewer bytes, less time: every fusion pays.
    let mut invented = Invented { composing: &composing, extra: BTreeMap::new(), times: BTreeMap::new() };
    let full = invented.made(&FusionSet::default());
    let (kept, weighed) = invented.mixed();
    assert_eq!(kept.kernels, full.kernels);
    assert!(!weighed.is_empty() && weighed.iter().all(|w| !w.changed && w.gain().is_some_and(|g| g < 0.0)), "{weighed:#?}");
    // The projection of queries does not pay.
    invented.extra = BTreeMap::from([("qq", 1e6)]);
    let (found, weighed) = invented.mixed();
    assert_eq!(found.compositions.iter().map(|c| c.name.as_str()).filter(|n| *n == "qq").count(), 0);
    assert_eq!(found.compositions.len(), full.compositions.len() - 1);
    assert_eq!(weighed.iter().filter(|w| w.changed).map(|w| w.change.as_str()).collect::<Vec<_>>(), ["qq apart"]);
}

/// Attention backward does not pay: its inputs are then stored, and the forward kernel is another one.
#[test]
fn undoing_attention_backward_changes_attention_forward() {
    let recipe = shipped("mha.yaml");
    let composing = GemmFusion::generated(&recipe, &[], false).expect("programs");
    let mut invented = Invented { composing: &composing, extra: BTreeMap::new(), times: BTreeMap::new() };
    let full = invented.made(&FusionSet::default());
    let backward = full.compositions.iter().find(|c| c.contractions.iter().any(|c| c.contains("again"))).expect("attention backward");
    assert!(backward.kinds.contains(&FusionKind::Chain) && names(&full).contains("gamma") && !names(&full).contains("alpha"));
    let slow = backward.name.clone();
    invented.extra = BTreeMap::from([(slow.as_str(), 1e9)]);
    let (found, weighed) = invented.mixed();
    assert!(names(&found).iter().all(|name| !name.contains("again")), "{:?}", names(&found));
    let forward: Vec<&str> =
        found.compositions.iter().filter(|c| c.contractions.contains(&"beta".into())).map(|c| c.name.as_str()).collect();
    assert_eq!(forward, ["alpha"], "scores and their softmax are one kernel, which stores what backward reads");
    let row = weighed.iter().find(|w| w.changed).expect("a change");
    assert!(row.subject == slow && row.with.iter().any(|p| p.kernel == "gamma") && row.instead.iter().any(|p| p.kernel == "alpha"));
}

/// The same fusions of two layers are undone at once, and the programs equal those of undoing them one after the other.
#[test]
fn compositions_of_layers_are_undone_together() {
    let recipe = crate::stacking::two_layers();
    let composing = GemmFusion::generated(&recipe, &[], false).expect("programs");
    let (variant, full) = trial(&composing, &FusionSet::default()).expect("a program");
    let family = |name: &str| {
        let units = variant.program.units();
        let unit = units.iter().map(|(_, _, unit)| unit).find(|unit| unit.name() == name)?;
        Some(KernelClass::of(&KernelSpec::new(&variant.program, unit).ok()?)?.fingerprint(""))
    };
    let alone = full.undoings();
    let together = FusionChange::together(alone.clone(), &family);
    let several: Vec<&FusionChange> = together.iter().filter(|change| !change.alike.is_empty()).collect();
    assert!(!several.is_empty() && together.len() < alone.len(), "{together:?}");
    assert_eq!(together.iter().map(|change| 1 + change.alike.len()).sum::<usize>(), alone.len());
    for change in several {
        let (_, at_once) = trial(&composing, &change.of(&full.fusion_set)).expect("a program");
        let each =
            alone.iter().filter(|a| a.without == change.without && (a.subject == change.subject || change.alike.contains(&a.subject)));
        let fusion_set = each.fold(full.fusion_set.clone(), |fusion_set, a| a.of(&fusion_set));
        assert_eq!(at_once.fusion_set, fusion_set, "{change}");
        assert!(at_once.kernels != full.kernels, "{change}");
    }
}

/// Stacking is judged like a fusion, and its row names the fusion that it prevents.
#[test]
fn stacked_projections_keep_attention_backward_apart() {
    let recipe = shipped("mha.yaml");
    let weights = stackings(&operators(&recipe).expect("operators").0).remove(0);
    let change = FusionChange::stacking(&weights);
    assert_eq!(change.to_string(), "wq+wk+wv stacked");
    let composing = GemmFusion::generated(&recipe, &weights, false).expect("programs");
    let (variant, made) = trial(&composing, &change.of(&FusionSet::default())).expect("a program");
    assert_eq!(variant.key.to_string(), "partially fused, stacked wq+wk+wv");
    assert!(names(&made).iter().all(|name| !name.contains("again")));
    assert!(variant.refusals.iter().any(|r| matches!(r.reason, transforms::Reason::SeveralWriters { .. })));
}

/// A sum begins with all of its container: a fused kernel that sums into one part of a stack has no working configuration, so no trial
/// offers it.
#[test]
fn no_composition_sums_into_a_part_of_a_stack() {
    let recipe = shipped("mha.yaml");
    for weights in stackings(&operators(&recipe).expect("operators").0) {
        let composing = GemmFusion::generated(&recipe, &weights, false).expect("programs");
        let (full, made_of_all) = trial(&composing, &FusionChange::stacking(&weights).of(&FusionSet::default())).expect("a program");
        let undone = made_of_all.undoings().into_iter().map(|change| {
            let fusion_set = change.of(&made_of_all.fusion_set);
            trial(&composing, &fusion_set).expect("a program").0
        });
        for variant in undone.chain([full]) {
            for cluster in &variant.compositions {
                let units = variant.program.units();
                let Some((_, _, sdfg::Unit::Scope(scope))) = units.iter().find(|(_, _, u)| u.name() == cluster.name) else { continue };
                let sums = scope.writes().into_iter().filter(|(_, memlets)| memlets.iter().any(|m| m.wcr.is_some()));
                let part = sums.map(|(data, _)| data).find(|data| scope.writes_part(&variant.program, data));
                assert_eq!(part, None, "{} of {}", cluster.name, variant.key);
            }
        }
    }
}
