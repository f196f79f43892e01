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

#[test]
fn kernels_of_several_programs_compute_the_same_together() {
    for name in ["mha.yaml", "bert-large-encoder.yaml", "mlp.yaml"] {
        let recipe = shipped(name);
        let all = all(&recipe);
        let among = among(&all);
        println!("{name}: {} programs", all.len());
        for (group, variants) in &among.alternatives {
            let kernels = |v: &String| among.kernels.iter().filter(|k| k.only.get(group).is_some_and(|o| o.contains(v))).count();
            let shown: Vec<String> = variants.iter().map(|v| format!("{v} ({})", kernels(v))).collect();
            println!("  {group}: {}", shown.join(", "));
        }
        let reference = shrunken(&operators(&recipe).expect("operators").0);
        let tensors = drawn(&reference, 3).expect("tensors");
        let want = computed(&reference, &tensors);
        let lenders: Vec<Lender> = all.iter().map(|(name, variant)| Lender { name, variant }).collect();
        // Every variant of every site once, in some program, with whatever else it needs.
        let mut seen = BTreeSet::new();
        for (group, variant) in among.alternatives.iter().flat_map(|(group, all)| all.iter().map(move |v| (group, v))) {
            let like = among.programs.values().nth(seen.len() % among.programs.len()).expect("a program").clone();
            let Some(variants) = repaired(&among, like.into_iter().chain([(group.clone(), variant.clone())]).collect()) else { continue };
            if among.programs.values().any(|own| *own == variants) || seen.len() == MOST {
                continue;
            }
            let found = combined(&among, &variants, &lenders).expect("a program");
            if !seen.insert(found.program.units().iter().map(|(_, _, u)| format!("{u:?}")).collect::<Vec<_>>()) {
                continue;
            }
            let got = computed(&shrunken(&found.program), &tensors);
            for container in results(&reference) {
                let (want, got) = (&want[&container.name], &got[&container.name]);
                let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
                // Sums of a few hundred terms in f64, in another order.
                assert!(
                    want.iter().zip(got).all(|(w, g)| (w - g).abs() <= 1e4 * f64::EPSILON * scale),
                    "{variants:?}: `{}`",
                    container.name
                );
            }
        }
        println!("  {} programs put together", seen.len());
        assert!(seen.len() > 2, "{name}");
    }
}

/// Programs of one recipe that are put together.
const MOST: usize = 12;

/// Other variants in the place of those that are needed and not there.
fn repaired(among: &Program, mut variants: Variants) -> Option<Variants> {
    for _ in 0..200 {
        let has = |(group, names): &(String, BTreeSet<String>)| names.contains(&variants[group]);
        let Some(need) = among.needs.iter().find(|need| has(&need.when) && !has(&need.then)) else { return Some(variants) };
        variants.insert(need.then.0.clone(), need.then.1.first()?.clone());
    }
    None
}
