//! Random programs.

use crate::difference::check;
use sdfg::Role;

#[test]
fn random_programs_agree_with_differences() {
    for seed in 0..25 {
        let program = sdfg::random::program(seed);
        let outputs = program.containers.values().filter(|c| c.role == Role::Output).map(|c| c.name.clone());
        for output in outputs.collect::<Vec<_>>() {
            check(&program, &output, seed);
        }
    }
}
