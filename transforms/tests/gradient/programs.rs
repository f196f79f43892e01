//! Random programs.

use crate::difference::{RUN, check, random_tensor, random_tensors, recompute};
use crate::structure::upstream;
use sdfg::interpret::interpret;
use sdfg::{Role, Sdfg};
use transforms::differentiate::differentiate;
use transforms::recompute::RecomputePolicy;

fn outputs(program: &Sdfg) -> Vec<String> {
    program.containers.values().filter(|c| c.role == Role::Output).map(|c| c.name.clone()).collect()
}

#[test]
fn random_programs_agree_with_differences() {
    for seed in 0..25 {
        let program = sdfg::random::program(seed);
        for output in outputs(&program) {
            check(&program, &output, seed);
        }
    }
}

/// The clones compute what was saved by the same operations: gradients are equal to the last bit, and what is
/// recomputed is not read from the forward state.
#[test]
fn recomputation_changes_no_gradient_of_random_programs() {
    let mut recomputations = 0;
    for seed in 0..200 {
        let forward = sdfg::random::program(seed);
        for output in outputs(&forward) {
            let saved = differentiate(&forward, &upstream(&output)).unwrap();
            let (recomputed, decisions) = recompute(&saved);
            let mut given = random_tensors(&forward, seed);
            given.insert(format!("d_{output}"), random_tensor(&forward, seed, &output));
            let (one, other) = (interpret(&saved, &given, &RUN).unwrap(), interpret(&recomputed, &given, &RUN).unwrap());
            for container in saved.containers.values().filter(|c| c.role == Role::Gradient) {
                assert_eq!(one[&container.name], other[&container.name], "seed {seed}, {}", container.name);
            }
            let state = recomputed.state(recomputed.state_named("backward").unwrap()).unwrap();
            for decision in decisions.iter().filter(|d| !d.container.starts_with("mask of")) {
                let read = state.access(&decision.container, None).is_some();
                assert_eq!(read, decision.policy == RecomputePolicy::Saved, "seed {seed}: {decision}");
                recomputations += usize::from(!read);
            }
        }
    }
    assert!(recomputations > 20, "only {recomputations} tensors were recomputed: the test shows little");
}
