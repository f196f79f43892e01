//! Fingerprints of the values that a program's containers hold: marks that can be compared with those of another program of the same recipe.
//!
//! Programs of a recipe compute the same results; on the way there a name need not stand for the same thing in two of them:
//! where weights are stacked, what was one of three summands may be their sum. So both programs are interpreted, small, on
//! the same drawn tensors, and a container is marked by what it then holds: two sums over all elements, one of magnitudes
//! and one with drawn signs and weights. Different functions of what was drawn agree in these digits only by accident, and
//! rounding, which differs where terms are added up in another order, lies far below them. A container is marked by its
//! description too, without which kernels could not be exchanged between programs.
//!
//! Marks say what is held in the end. A kernel that ran again on that would have to leave it as it is: then it makes what
//! is marked from what is marked, wherever it comes from.

use super::small_sizes::with_small_sizes;
use super::tensors::random_inputs;
use crate::pipeline::PipelineError;
use kernels::KernelSpec;
use layouts::problem::SelectionProblem;
use sdfg::interpret::{Run, Tensors, interpret, interpret_unit};
use sdfg::{Container, Sdfg};
use std::collections::BTreeMap;

/// Digits of the sums that are kept. Rounding in f64 is some ten thousand times finer than their last one.
const DIGITS: usize = 8;

/// Says of every container of a problem what it holds in its program; nothing where some kernel finds or leaves something
/// else than what is held in the end.
///
/// # Errors
/// A program that cannot be interpreted.
pub fn mark(problem: &mut SelectionProblem, program: &Sdfg) -> Result<(), PipelineError> {
    let small = with_small_sizes(program);
    let run = Run { seed: 1, step: 0, dropout: true };
    let held = interpret(&small, &random_inputs(&small, 1)?, &run)?;
    for (_, _, unit) in small.units() {
        let mut again = held.clone();
        interpret_unit(&small, &unit, &mut again, &run)?;
        if !equal(&held, &again) {
            return Ok(());
        }
    }
    for tensor in &mut problem.tensors {
        let (Some(container), Some(values)) = (program.containers.get(&tensor.data), held.get(&tensor.data)) else { continue };
        let values: Vec<f64> = values.iter().copied().map(finite).collect();
        let weights = sdfg::random::tensor(2, "mark", values.len());
        let magnitude: f64 = values.iter().map(|v| v.abs()).sum();
        let weighted: f64 = values.iter().zip(&weights).map(|(v, w)| v * w).sum();
        let share = if magnitude > 0.0 { weighted / magnitude } else { 0.0 };
        let share = (share * 10f64.powi(DIGITS as i32)).round() as i64;
        tensor.meaning = hash(&format!("{} {magnitude:.DIGITS$e} {share}", described(&small, container)));
    }
    Ok(())
}

/// Marks of what a kernel names besides its containers: parts of them, and what it keeps inside.
pub fn names(kernel: &KernelSpec, program: &Sdfg) -> BTreeMap<String, String> {
    let own: Vec<String> = kernel.arguments().into_iter().map(|a| a.data).collect();
    let others = kernel.containers.values().filter(|c| !own.contains(&c.name));
    others.map(|c| (c.name.clone(), hash(&described(program, c)))).collect()
}

/// All that a container is but where it comes from.
fn described(program: &Sdfg, container: &Container) -> String {
    let sizes: Vec<String> = program.shape(container).iter().map(ToString::to_string).collect();
    format!("{:?} {sizes:?}", Container { origin: None, ..container.clone() })
}

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_string()
}

/// Infinities and what is no number, as numbers that are no usual values.
fn finite(value: f64) -> f64 {
    match value {
        v if v.is_nan() => 1.0 / 3.0,
        v if v.is_infinite() => v.signum() / 7.0,
        v => v,
    }
}

fn equal(a: &Tensors, b: &Tensors) -> bool {
    a.iter().zip(b).all(|((x, a), (y, b))| x == y && a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits()))
}
