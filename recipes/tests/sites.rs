//! Programs of a recipe taken apart into sites, and put together again as a choice wants them.

use kernels::Toolchain;
use kernels::device::cpu::Cores;
use layouts::Program;
use layouts::alternatives::Variants;
use recipes::load::{Recipe, load};
use recipes::pipeline::combined::{Lender, combined};
use recipes::pipeline::mixed::made;
use recipes::pipeline::mixture::Mixture;
use recipes::pipeline::programs::{Composing, Variant, operators, programs, shrunken};
use recipes::pipeline::sweep::posed;
use recipes::pipeline::tensors::{drawn, results};
use sdfg::Sdfg;
use sdfg::interpret::{Run, Tensors, interpret};
use std::collections::BTreeSet;
use std::path::Path;

fn shipped(name: &str) -> Recipe {
    load(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name), &[]).expect("a shipped recipe loads")
}

/// Every program that a sweep meets: fused, stacked, composed, and with one composition undone.
fn all(recipe: &Recipe) -> Vec<(String, Variant)> {
    let found = programs(recipe, false).expect("programs");
    let mut all: Vec<(String, Variant)> = found.variants.into_iter().map(|v| (v.name.clone(), v)).collect();
    let composing = Composing::new(recipe, &[], false).expect("programs");
    let (_, full) = made(&composing, &Mixture::default()).expect("the composed program");
    for change in full.undoings() {
        let (variant, _) = made(&composing, &change.of(&full.mixture)).expect("a program");
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

fn among(all: &[(String, Variant)]) -> Program {
    let device = Cores { toolchain: Toolchain::system().expect("a compiler") };
    let posed = |(name, variant): &(String, Variant)| (name.clone(), posed(&variant.program, &device).expect("a problem").problem);
    Program::among(&all.iter().map(posed).collect::<Vec<_>>())
}

/// Every choice of variants in which each finds what it needs.
fn admitted(among: &Program) -> Vec<Variants> {
    let fits = |v: &Variants| {
        let other = |(group, names): &(String, BTreeSet<String>)| v.get(group).map(|own| names.contains(own));
        among.needs.iter().all(|need| other(&need.when) != Some(true) || other(&need.then) != Some(false))
    };
    among.alternatives.iter().fold(vec![Variants::new()], |found, (group, names)| {
        let with = |v: &Variants, name: &String| v.clone().into_iter().chain([(group.clone(), name.clone())]).collect();
        found.iter().flat_map(|v| names.iter().map(|name| with(v, name)).collect::<Vec<_>>()).filter(fits).collect()
    })
}

/// Names and keys of kernels; what a choice costs is the sum of what is stored under these keys.
fn keys(program: &Program) -> BTreeSet<(String, String)> {
    program.kernels.iter().map(|k| (k.name.clone(), k.key.clone())).collect()
}

/// Puts together every choice that is admitted, or one of so many that about `most` are, and runs it; says how many there are,
/// and how many of them are none of the programs that there were.
fn all_compute_the_same(recipe: &Recipe, most: usize) -> (usize, usize) {
    let device = Cores { toolchain: Toolchain::system().expect("a compiler") };
    let all = all(recipe);
    let among = among(&all);
    let lenders: Vec<Lender> = all.iter().map(|(name, variant)| Lender { name, variant }).collect();
    let reference = shrunken(&operators(recipe).expect("operators").0);
    let tensors = drawn(&reference, 3).expect("tensors");
    let want = computed(&reference, &tensors);
    let admitted = admitted(&among);
    let (mut run, mut new) = (0, 0);
    for variants in admitted.iter().step_by(admitted.len().div_ceil(most)) {
        let found = combined(&among, variants, &lenders).unwrap_or_else(|e| panic!("{variants:?}: {e}"));
        assert_eq!(keys(&posed(&found.program, &device).expect("a problem").problem), keys(&among.under(variants)));
        let got = computed(&shrunken(&found.program), &tensors);
        for container in results(&reference) {
            let (want, got) = (&want[&container.name], &got[&container.name]);
            let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
            // Sums of a few hundred terms in f64, in another order.
            let same = want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e4 * f64::EPSILON * scale);
            assert!(same, "{variants:?}: `{}`", container.name);
        }
        run += 1;
        new += usize::from(!among.programs.values().any(|own| own == variants));
    }
    println!(
        "{} programs, {} sites, {} choices, {run} put together, {new} of them new",
        all.len(),
        among.alternatives.len(),
        admitted.len()
    );
    (admitted.len(), new)
}

#[test]
fn every_choice_that_is_admitted_is_a_program_that_computes_the_same() {
    let (choices, new) = all_compute_the_same(&shipped("mha.yaml"), usize::MAX);
    assert!(new > 2, "{new} of {choices}");
}

#[test]
fn choices_among_the_kernels_of_larger_recipes_compute_the_same() {
    for name in ["bert-large-encoder.yaml", "mlp.yaml"] {
        let (choices, new) = all_compute_the_same(&shipped(name), 12);
        assert!(new > 2, "{name}: {new} of {choices}");
    }
}
