//! Whether two programs compute the same, as the interpreter finds it at small sizes.

use super::tensors::inputs_to_compare;
use sdfg::interpret::{Run, Tensors, interpret};
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

/// What a program computes on inputs drawn from a seed: other programs that should compute the same are compared with it.
pub struct Expectation<'a> {
    program: &'a Sdfg,
    /// The inputs and the results, or why there are none.
    known: Result<(Tensors, Tensors), String>,
}

const RUN: Run = Run { seed: 1, step: 0, dropout: true };

impl<'a> Expectation<'a> {
    /// Interprets a program.
    pub fn of(program: &'a Sdfg) -> Self {
        let results = |inputs: Tensors| {
            let results = interpret(program, &inputs, &RUN).map_err(|e| e.to_string())?;
            Ok((inputs, results))
        };
        Expectation { program, known: inputs_to_compare(program, 1).map_err(|e| e.to_string()).and_then(results) }
    }

    /// Interprets another program and compares its outputs and gradients; returns the first difference.
    pub fn difference(&self, after: &Sdfg) -> Option<Difference> {
        let (inputs, want) = match &self.known {
            Ok(known) => known,
            Err(why) => return Some(Difference::Failed(why.clone())),
        };
        let got = match interpret(after, inputs, &RUN) {
            Ok(got) => got,
            Err(why) => return Some(Difference::Fails(why.to_string())),
        };
        let seen = |c: &&Container| matches!(c.role, Role::Output | Role::Gradient);
        let unequal = |c: &Container| same_tensor(&c.name, want, &got).err();
        self.program.containers.values().filter(seen).find_map(unequal).map(Difference::Value)
    }
}

/// Interprets both programs and compares their outputs and gradients; returns the first difference.
pub fn difference(before: &Sdfg, after: &Sdfg) -> Option<Difference> {
    Expectation::of(before).difference(after)
}
