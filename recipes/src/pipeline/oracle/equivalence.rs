//! Whether two programs compute the same, as the interpreter finds it at small sizes.

use super::tensors::random_inputs;
use sdfg::interpret::{Run, interpret};
use sdfg::{Container, Role, Sdfg};
use transforms::verify::same_tensor;

/// How two programs that should compute the same differ.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Difference {
    #[error("{0}")]
    Value(String),
    #[error("it can no longer be interpreted: {0}")]
    Fails(String),
    #[error("it could not be interpreted before: {0}")]
    Failed(String),
}

/// Interprets both programs and compares their outputs and gradients; returns the first difference.
pub fn difference(before: &Sdfg, after: &Sdfg) -> Option<Difference> {
    let run = |program: &Sdfg| {
        let tensors = random_inputs(before, 1).map_err(|e| e.to_string())?;
        interpret(program, &tensors, &Run { seed: 1, step: 0, dropout: true }).map_err(|e| e.to_string())
    };
    let want = match run(before) {
        Ok(want) => want,
        Err(why) => return Some(Difference::Failed(why)),
    };
    let got = match run(after) {
        Ok(got) => got,
        Err(why) => return Some(Difference::Fails(why)),
    };
    let seen = |c: &&Container| matches!(c.role, Role::Output | Role::Gradient);
    let unequal = |c: &Container| same_tensor(&c.name, &want, &got).err();
    before.containers.values().filter(seen).find_map(unequal).map(Difference::Value)
}
