//! Fingerprints of the values in a program's containers, comparable with those of another program of the same recipe.
//!
//! Programs of a recipe compute the same results, but a name need not stand for the same intermediate value in two of these: where
//! weights are stacked, one of three summands may hold their sum. So both programs are interpreted at small sizes on the same drawn
//! tensors. The fingerprint of a container consists of two sums over its elements, one of magnitudes and one with drawn signs and
//! weights. Different functions of the drawn tensors agree in these digits only by accident, and rounding by another order of summation
//! lies far below them. The fingerprint includes the container's description, without which kernels could not be exchanged between
//! programs.
//!
//! Fingerprints describe the values at the end of the program. So a kernel that is rerun on them must leave them unchanged: then it
//! computes fingerprinted values from fingerprinted values in any program.

use super::small_sizes::with_small_sizes;
use super::tensors::inputs_to_compare;
use crate::pipeline::PipelineError;
use crate::pipeline::parallel::in_order;
use kernels::KernelSpec;
use layouts::problem::SelectionProblem;
use ndarray::ArrayD;
use rayon::prelude::*;
use sdfg::interpret::{Run, Tensors, interpret, interpret_unit_on};
use sdfg::{Container, Sdfg, Unit};
use std::collections::BTreeMap;

/// Significant digits of the sums. The last digit is about ten thousand times coarser than rounding in f64.
const DIGITS: usize = 8;

/// Sets the fingerprint of every container of a problem. Leaves all empty if some kernel would read or write values other than the final
/// ones.
///
/// # Errors
/// A program that cannot be interpreted.
pub fn mark(problem: &mut SelectionProblem, program: &Sdfg) -> Result<(), PipelineError> {
    let small = with_small_sizes(program);
    let run = Run { seed: 1, step: 0, dropout: true };
    let held = interpret(&small, &inputs_to_compare(&small, 1)?, &run)?;
    let changes = |unit: &Unit| Ok::<_, PipelineError>(!equal(&held, &interpret_unit_on(&small, unit, &held, &run)?));
    let changed = in_order(small.units().par_iter().map(|(_, _, unit)| changes(unit)))?;
    if changed.contains(&true) {
        return Ok(());
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

/// Fingerprints of the containers that a kernel names besides its arguments: parts of these, and containers on chip.
pub fn names(kernel: &KernelSpec, program: &Sdfg) -> BTreeMap<String, String> {
    let own: Vec<String> = kernel.arguments().into_iter().map(|a| a.data).collect();
    let others = kernel.containers.values().filter(|c| !own.contains(&c.name));
    others.map(|c| (c.name.clone(), hash(&described(program, c)))).collect()
}

/// A container's description without its origin.
fn described(program: &Sdfg, container: &Container) -> String {
    let sizes: Vec<String> = program.shape(container).iter().map(ToString::to_string).collect();
    format!("{:?} {sizes:?}", Container { origin: None, ..container.clone() })
}

fn hash(text: &str) -> String {
    blake3::hash(text.as_bytes()).to_hex()[..16].to_string()
}

/// Replaces infinities and NaN by numbers that are unlikely as values.
fn finite(value: f64) -> f64 {
    match value {
        v if v.is_nan() => 1.0 / 3.0,
        v if v.is_infinite() => v.signum() / 7.0,
        v => v,
    }
}

/// Whether tensors have the values that they have among all; those that are not there have none to keep.
fn equal(all: &Tensors, some: &Tensors) -> bool {
    let same = |a: &ArrayD<f64>, b: &ArrayD<f64>| a.iter().zip(b).all(|(a, b)| a.to_bits() == b.to_bits());
    some.iter().all(|(name, b)| all.get(name).is_some_and(|a| same(a, b)))
}
