//! Splits the programs of a recipe into sites, and merges them as a choice selects.

use crate::command::{json, memlet, recipe, with_times};
use kernels::target::cpu::Cores;
use kernels::{KernelSpec, Toolchain};
use layouts::SelectionProblem;
use layouts::problem::Variants;
use recipes::load::{Recipe, load};
use recipes::pipeline::choose::partial_fusion_search::trial;
use recipes::pipeline::measure::sweep::build_problem;
use recipes::pipeline::oracle::operators::operators;
use recipes::pipeline::oracle::small_sizes::with_small_sizes;
use recipes::pipeline::oracle::tensors::{random_inputs, results};
use recipes::pipeline::variants::gemm_fusion::GemmFusion;
use recipes::pipeline::variants::merge_variants::{KernelSource, merge_variants};
use recipes::pipeline::variants::partial_fusion::FusionSet;
use recipes::pipeline::variants::programs::programs;
use recipes::pipeline::variants::variant::Variant;
use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Sdfg, Unit, random};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;

fn shipped(name: &str) -> Recipe {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name), &[]).expect("a shipped recipe loads")
}

/// Every program of a sweep: fused, stacked, gemm-fused, and with one fusion undone.
fn all(recipe: &Recipe) -> Vec<(String, Variant)> {
    let found = programs(recipe, false).expect("programs");
    let mut all: Vec<(String, Variant)> = found.variants.into_iter().map(|v| (v.key.to_string(), v)).collect();
    let composing = GemmFusion::generated(recipe, &[], false).expect("programs");
    let (_, full) = trial(&composing, &FusionSet::default()).expect("the composed program");
    for change in full.undoings() {
        let (variant, _) = trial(&composing, &change.of(&full.fusion_set)).expect("a program");
        if all.iter().all(|(_, v)| v.program != variant.program) {
            all.push((change.to_string(), variant));
        }
    }
    all
}

fn computed(program: &Sdfg, tensors: &Tensors) -> Tensors {
    assert_eq!(sdfg::validate::validate(program), vec![]);
    interpret(program, tensors, &Run { seed: 3, step: 1, dropout: true }).expect("the program runs")
}

fn among(all: &[(String, Variant)]) -> SelectionProblem {
    let device = Cores { toolchain: Toolchain::system().expect("a compiler") };
    let posed = |(name, variant): &(String, Variant)| (name.clone(), build_problem(&variant.program, &device).expect("a problem").problem);
    SelectionProblem::among(&all.iter().map(posed).collect::<Vec<_>>())
}

/// Consistent choices of variants: all, in order, or some, drawn from seeds.
struct Choices<'a> {
    among: &'a SelectionProblem,
    groups: Vec<(&'a String, &'a Vec<String>)>,
}

impl<'a> Choices<'a> {
    fn of(among: &'a SelectionProblem) -> Self {
        Choices { among, groups: among.alternatives.iter().collect() }
    }

    fn fit(&self, own: &Variants) -> bool {
        let has = |(group, names): &(String, BTreeSet<String>)| own.get(group).map(|v| names.contains(v));
        self.among.needs.iter().all(|need| has(&need.when) != Some(true) || has(&need.then) != Some(false))
    }

    /// Extends a partial choice in all ways, until `told` returns false.
    fn extend(&self, own: &Variants, seed: Option<u64>, told: &mut dyn FnMut(&Variants) -> bool) -> bool {
        let Some((group, names)) = self.groups.get(own.len()) else { return told(own) };
        let turn = seed.map_or(0, |seed| random::tensor(seed, group, 1)[0].to_bits() as usize >> 30);
        (0..names.len()).all(|n| {
            let name = names[(n + turn) % names.len()].clone();
            let next = own.clone().into_iter().chain([(group.to_string(), name)]).collect();
            !self.fit(&next) || self.extend(&next, seed, told)
        })
    }

    fn all(&self, most: usize) -> Vec<Variants> {
        let mut found = Vec::new();
        self.extend(&Variants::new(), None, &mut |own| {
            found.push(own.clone());
            found.len() < most
        });
        found
    }

    fn some(&self, count: u64) -> Vec<Variants> {
        let mut found = Vec::new();
        for seed in 0..count {
            self.extend(&Variants::new(), Some(seed), &mut |own| {
                found.push(own.clone());
                false
            });
        }
        found
    }
}

/// Names and keys of kernels: the cost of a choice is the sum of the times under these keys.
fn keys(program: &Sdfg) -> BTreeSet<(String, String)> {
    let key = |unit: &Unit| KernelSpec::new(program, unit).expect("a kernel").key();
    program.units().iter().map(|(_, _, unit)| (unit.name().to_string(), key(unit))).collect()
}

/// Merges and runs choices; returns the number of choices, and the number that equal none of the programs.
fn all_compute_the_same(recipe: &Recipe, chosen: impl Fn(&Choices) -> Vec<Variants>) -> (usize, usize) {
    let all = all(recipe);
    let among = among(&all);
    let lenders: Vec<KernelSource> = all.iter().map(|(name, variant)| KernelSource { name, variant }).collect();
    let reference = with_small_sizes(&operators(recipe).expect("operators").0);
    let tensors = random_inputs(&reference, 3).expect("tensors");
    let want = computed(&reference, &tensors);
    for (group, variants) in &among.alternatives {
        println!("  {group}: {}", variants.join(", "));
    }
    let (mut run, mut new) = (0, 0);
    for variants in chosen(&Choices::of(&among)) {
        let found = merge_variants(&among, &variants, &lenders).unwrap_or_else(|e| panic!("{variants:?}: {e}"));
        let swept = among.under(&variants).kernels.into_iter().map(|k| (k.name, k.key)).collect();
        assert_eq!(keys(&found.program), swept, "{variants:?}");
        let got = computed(&with_small_sizes(&found.program), &tensors);
        for container in results(&reference) {
            let (want, got) = (&want[&container.name], &got[&container.name]);
            let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
            // Sums of a few hundred terms in f64, in another order.
            let same = want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e4 * f64::EPSILON * scale);
            assert!(same, "{variants:?}: `{}`", container.name);
        }
        run += 1;
        new += usize::from(!among.programs.values().any(|own| *own == variants));
    }
    println!("{} programs, {} sites, {run} put together, {new} of them new", all.len(), among.alternatives.len());
    (run, new)
}

/// A recipe with more choices than this is not meant to be tried exhaustively.
const MANY: usize = 2000;

#[test]
fn every_choice_that_is_admitted_is_a_program_that_computes_the_same() {
    let (run, new) = all_compute_the_same(&shipped("mha.yaml"), |choices| choices.all(MANY));
    assert!(new > 2 && run < MANY, "{new} of {run}");
}

#[test]
fn choices_among_the_kernels_of_larger_recipes_compute_the_same() {
    for name in ["bert-large-encoder.yaml", "mlp.yaml"] {
        let (run, new) = all_compute_the_same(&shipped(name), |choices| choices.some(12));
        assert!(new > 2, "{name}: {new} of {run}");
    }
}

/// Measured times would decide whose kernels win together; these are invented so that no program's own kernels do.
#[test]
fn kernels_of_several_programs_win_together_and_run_as_one_plan() {
    let sizes: Vec<(String, i64)> = [("b", 1), ("h", 2), ("j", 3), ("p", 2), ("i", 4)].map(|(dim, size)| (dim.to_string(), size)).into();
    let set: Vec<String> = sizes.iter().map(|(dim, size)| format!("{dim}={size}")).collect();
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str| folder.path().join(name);
    let (mha, out) = (recipe("mha.yaml"), |name: &str| file(name).display().to_string());
    let optimize = |out: &str| {
        let mut arguments = vec!["optimize", mha.as_str(), "--budget", "0s", "--timing", "0s", "--out", out, "--json"];
        arguments.extend(set.iter().flat_map(|size| ["--set", size]));
        json(&memlet(&arguments))
    };
    optimize(&out("measured"));
    let records = std::fs::read_to_string(file("measured/records.jsonl")).expect("records");

    let all = all(&load(Path::new(&mha), &sizes).expect("a recipe"));
    let among = among(&all);
    // Some choices equal trials with one fusion undone, which compete under their own names.
    let new = Choices::of(&among).all(MANY).into_iter().filter(|choice| !among.programs.values().any(|own| own == choice));
    let mut told = Vec::new();
    for choice in new.step_by(23).take(6) {
        let cheap: BTreeSet<String> = among.under(&choice).kernels.into_iter().map(|k| k.key).collect();
        let made_up = |record: &Value| {
            let free = record["key"].as_str().is_some_and(|key| cheap.contains(key) || key.starts_with("relayout:"));
            if free { 1e-6 } else { 1e3 }
        };
        let name = format!("made-up-{}", told.len());
        std::fs::create_dir(file(&name)).expect("a folder");
        std::fs::write(file(&format!("{name}/records.jsonl")), with_times(&records, made_up)).expect("records");
        let found = optimize(&out(&name));
        let best = found["choices"][0].clone();
        if best["program"] != "merged" {
            told.push(best);
            continue;
        }
        assert!(best["predicted_ms"].as_f64().is_some_and(|ms| ms < 1.0), "{best}");
        assert!(found["timed"].as_array().is_some_and(|timed| timed.iter().any(|t| t["plan"] == "merged · exact")), "{found}");
        let plan = out(&format!("{name}/plans/merged-exact.json"));
        let run = json(&memlet(&["run", &plan, "--timing", "0s", "--check", "--json"]));
        let checked = run["checked"].as_array().expect("comparisons");
        assert!(!checked.is_empty() && checked.iter().all(|c| c["ratio"].as_f64().is_some_and(|r| r <= 1.0)), "{checked:?}");
        assert_eq!(json(&memlet(&["verify-selection", &out(&format!("{name}/certificate.json")), "--json"]))["proven"], true);
        return;
    }
    panic!("no kernels of several programs were put together: {told:?}");
}
