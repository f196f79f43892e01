//! Reverse-mode differentiation: appends a state `backward` that computes the gradients `d_<name>`.
//!
//! ```text
//! forward:   s = a·x;  y = s + c
//! backward:  d_c = Σ d_y;  d_a = Σ x·d_y;  d_x = Σ a·d_y
//! ```
//!
//! Operators are differentiated as such, before expansion and fusion, in reverse order, and only along paths from a
//! wanted tensor to a seed. Where several consumers contribute, their contributions are `d_<name>.<consumer>` and one
//! element-wise addition, labelled `residual`, writes `d_<name>`. A contribution that equals another gradient (a bias, a
//! residual addition) is not copied: that container is read in its place. Only a wanted gradient always has a container
//! of its own, filled with zeros if nothing depends on the tensor.
//!
//! A cast to a narrower type is no step of its own: the gradient by `w.bf16` is the gradient by `w`, stored as `w` is. So
//! a contraction of bf16 weights writes the gradient of their f32 master copy, which never passes through bf16.
//!
//! An [`Update`] makes of gradients what parameters are in the next step. It is appended to the backward state; the gradients that it
//! reads need not be stored then.
//!
//! The backward state reads forward containers as if all were saved; [`crate::autodiff::recompute`] decides which are.
//!
//! Loops over time are taken apart into equations ([`sdfg::recurrence`]), differentiated as such, and made again of both passes'
//! equations. The gradient of what a loop carries from one time to the next has a contribution from the next time, so its container is
//! named before its contributions are known. Every forward tensor that backward reads is saved for all times; where that is a function's
//! argument or its value, the value is ([`super::derivative_from_output`]).
//!
//! *Not handled*: views, several forward states, statistics (mean, rstd) that something else depends on. Each is refused.

mod activity;
pub(crate) mod error;
pub(crate) mod options;
mod tape;

pub use error::DifferentiateError;
pub use options::{Options, Update};

use super::sparse_update;
use crate::autodiff::derivative_from_output::from_outputs;
use crate::pass::{self, Context, Loops, Promise, Rewritten, Stopped};
use activity::{carried, parted, relevant, seeds, wanted};
use sdfg::recurrence;
use sdfg::{Operation, Sdfg, Transition, Unit};
use std::collections::BTreeSet;
use tape::Tape;

/// Differentiates a program of operators.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Differentiate {
    pub options: Options,
}

impl pass::Pass for Differentiate {
    fn name(&self) -> &'static str {
        "differentiate"
    }

    fn loops(&self) -> Loops {
        Loops::Outside
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let seeds: Vec<String> = self.options.upstream.iter().chain(&self.options.loss).map(|seed| format!("`{seed}`")).collect();
        let summary = format!("differentiate {}", seeds.join(", "));
        Ok(Rewritten::program(summary, differentiate(program, &self.options)?))
    }

    fn is_optional(&self) -> bool {
        false
    }

    fn promise(&self) -> Promise {
        Promise::Gradients(self.options.clone())
    }
}

/// The program with a state `backward` appended. The forward state is unchanged.
pub fn differentiate(program: &Sdfg, options: &Options) -> Result<Sdfg, DifferentiateError> {
    let states: Vec<_> = program.states().map(|(id, _)| id).collect();
    let [forward] = states[..] else {
        return Err(DifferentiateError::States { program: program.name.clone(), count: states.len() });
    };
    // Loops are differentiated as equations, one group a loop.
    let mut flat = program.clone();
    let mut groups: Vec<Vec<Operation>> = Vec::new();
    for (_, _, unit) in program.units() {
        match unit {
            Unit::Operation(operation) => groups.push(vec![operation]),
            Unit::Nested(nested) => {
                let expanded = || DifferentiateError::Expanded { unit: nested.name.clone() };
                let (containers, operations) = recurrence::equations(program, &nested).ok_or_else(expanded)?;
                containers.into_iter().for_each(|container| flat.add_container(container));
                groups.push(operations);
            }
            other => return Err(DifferentiateError::Expanded { unit: other.name().to_string() }),
        }
    }
    let operations = groups.concat();
    let seeds = seeds(&flat, options, &operations)?;
    let wanted = wanted(&flat, options, &seeds)?;
    let relevant = relevant(&flat, &operations, &seeds, &wanted)?;
    let parted = parted(&flat, &operations, &relevant, &wanted);
    let mut tape = Tape::new(&flat, &seeds, options.loss.clone(), wanted, relevant)?;
    tape.parted = parted;
    tape.find_casts(&operations);
    tape.count_readers(&operations);
    for group in groups.iter().rev() {
        let carried = carried(group);
        tape.open(&carried)?;
        for operation in group.iter().rev() {
            tape.pull_back(operation)?;
        }
        tape.close(&carried)?;
    }
    for name in tape.wanted.clone() {
        tape.gradient_of(&name)?;
    }
    let Tape { program: mut differentiated, operations: pulled_back, .. } = tape;
    let looped = groups.iter().any(|group| group.len() > 1 || !carried(group).is_empty());
    let pulled_back = from_outputs(&differentiated, &operations, pulled_back, looped);
    let (pulled_back, update) = sparse_update::folded(&mut differentiated, pulled_back, &options.update);
    if !looped {
        let backward = differentiated.add_state("backward");
        differentiated.add_transition(forward, backward, Transition::default());
        for operation in &pulled_back {
            differentiated.insert_operation(backward, operation)?;
        }
        update.append(&mut differentiated, backward)?;
        return Ok(differentiated);
    }
    // The loops of the forward pass are made again, because backward reads some of what only their bodies had.
    let mut whole = differentiated.without_states();
    let read: BTreeSet<String> = pulled_back.iter().chain(&update.operations).flat_map(|o| &o.inputs).map(|i| i.data.clone()).collect();
    let forward = whole.add_state("forward");
    let backward = whole.add_state("backward");
    whole.add_transition(forward, backward, Transition::default());
    recurrence::insert(&mut whole, forward, operations, &|data| read.contains(data))?;
    let updated: BTreeSet<&str> = update.operations.iter().flat_map(|o| &o.inputs).map(|i| i.data.as_str()).collect();
    recurrence::insert(&mut whole, backward, pulled_back, &|data| updated.contains(data))?;
    update.append(&mut whole, backward)?;
    Ok(whole)
}
