//! Distances of results from the f64 oracle's: the cost of storing fewer bits.
//!
//! Two figures for each output and gradient, each relative to the tensor: the largest error ÷ the largest element, and the
//! error's Euclidean norm ÷ the tensor's. A gradient whose terms cancel is smaller than its terms (that of the keys' bias is
//! zero), so both are taken relative to the largest among the gradients of the same shape.

use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::oracle::{
    operators,
    tensors::{next_step, results},
};
use bench::table::{Align, Cell, Table};
use ndarray::{ArrayD, Zip};
use sdfg::interpret::{Run, Tensors, interpret};
use serde::Serialize;

/// Errors of one result.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Accuracy {
    pub name: String,
    /// max |got − want| ÷ max |want|.
    pub largest: f64,
    /// ‖got − want‖ ÷ ‖want‖.
    pub norm: f64,
}

/// Outputs and gradients of the recipe's operators, interpreted in f64 without rounding to stored types.
///
/// # Errors
/// Errors of the interpreter.
pub fn oracle(recipe: &Recipe, given: &Tensors, run: &Run) -> Result<Tensors, PipelineError> {
    oracle_after(recipe, given, [*run])
}

/// What the oracle finds in the last of several steps, each of which has the parameters that the one before it left.
pub fn oracle_after(recipe: &Recipe, given: &Tensors, runs: impl IntoIterator<Item = Run>) -> Result<Tensors, PipelineError> {
    let (program, _) = operators(recipe)?;
    let (mut given, mut all) = (given.clone(), Tensors::new());
    for run in runs {
        all = interpret(&program, &given, &run)?;
        given = next_step(&program, &given, &all);
    }
    let wanted: Vec<String> = results(&program).iter().map(|c| c.name.clone()).collect();
    all.retain(|name, _| wanted.contains(name));
    Ok(all)
}

fn norm(tensor: &ArrayD<f64>) -> f64 {
    tensor.iter().map(|v| v * v).sum::<f64>().sqrt()
}

fn largest(tensor: &ArrayD<f64>) -> f64 {
    tensor.iter().fold(0.0, |m, v| if m.is_nan() || v.is_nan() { f64::NAN } else { f64::max(m, v.abs()) })
}

/// A result, and if it is a gradient, all gradients of its shape.
fn alike<'a>(name: &'a str, tensor: &'a ArrayD<f64>, all: &'a Tensors) -> impl Iterator<Item = &'a ArrayD<f64>> {
    let gradient = |name: &str| name.starts_with("d_");
    all.iter().filter(move |(n, t)| *n == name || gradient(n) && gradient(name) && t.shape() == tensor.shape()).map(|(_, t)| t)
}

/// The largest element of a result and of all results like it: the magnitude of its terms, which may cancel.
pub fn magnitude(name: &str, tensor: &ArrayD<f64>, all: &Tensors) -> f64 {
    alike(name, tensor, all).flatten().filter(|v| v.is_finite()).fold(0.0, |m, v| f64::max(m, v.abs()))
}

/// Both tensors with zeros where both are NaN, and the number of such elements, if there are any.
pub fn agreed(got: &ArrayD<f64>, want: &ArrayD<f64>) -> Option<([ArrayD<f64>; 2], usize)> {
    if got.shape() != want.shape() || !want.iter().any(|v| v.is_nan()) {
        return None;
    }
    let (mut got, mut want, mut places) = (got.clone(), want.clone(), 0);
    Zip::from(&mut got).and(&mut want).for_each(|got, want| {
        if got.is_nan() && want.is_nan() {
            (*got, *want, places) = (0.0, 0.0, places + 1);
        }
    });
    Some(([got, want], places))
}

/// Compares every result of `want` with that of `got`. A missing result, one of another shape or a NaN has an infinite error, unless the
/// reference is NaN there.
pub fn accuracy(got: &Tensors, want: &Tensors) -> Vec<Accuracy> {
    let one = |(name, tensor): (&String, &ArrayD<f64>)| {
        let numbers = |t: &ArrayD<f64>, size: &dyn Fn(&ArrayD<f64>) -> f64| agreed(t, t).map_or_else(|| size(t), |([t, _], _)| size(&t));
        let scale = |size: &dyn Fn(&ArrayD<f64>) -> f64| alike(name, tensor, want).map(|t| numbers(t, size)).fold(0.0, f64::max);
        let error = got.get(name).filter(|g| g.shape() == tensor.shape());
        let error = error.map(|g| agreed(g, tensor).map_or_else(|| g - tensor, |([g, t], _)| g - t));
        let relative = |size: &dyn Fn(&ArrayD<f64>) -> f64| match error.as_ref().map(size) {
            Some(0.0) => 0.0,
            Some(error) if error.is_finite() => error / scale(size),
            _ => f64::INFINITY,
        };
        Accuracy { name: name.clone(), largest: relative(&largest), norm: relative(&norm) }
    };
    want.iter().map(one).collect()
}

/// A table of the two figures of every result, for several programs.
pub fn table(of: &[(&str, Vec<Accuracy>)]) -> Table {
    let heads: Vec<String> = of.iter().flat_map(|(who, _)| [format!("{who}: largest"), format!("{who}: norm")]).collect();
    let mut columns = vec![("result", "", Align::Left)];
    columns.extend(heads.iter().map(|h| (h.as_str(), "", Align::Right)));
    let mut table = Table::new(&columns);
    for (n, first) in of.first().map(|(_, all)| all.as_slice()).unwrap_or_default().iter().enumerate() {
        let mut row = vec![Cell::text(first.name.clone())];
        for found in of.iter().map(|(_, all)| all.get(n)) {
            let figures = found.map(|a| [a.largest, a.norm]).unwrap_or([f64::NAN; 2]);
            row.extend(figures.map(|f| Cell::text(format!("{f:.1e}"))));
        }
        table.row(row);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::arr1;

    fn tensors(named: &[(&str, [f64; 3])]) -> Tensors {
        named.iter().map(|(n, v)| (n.to_string(), arr1(v).into_dyn())).collect()
    }

    #[test]
    fn errors_are_relative_to_the_largest_alike() {
        let want = tensors(&[("y", [3.0, 0.0, -4.0]), ("d_a", [0.0, 0.0, 2.0]), ("d_b", [0.0; 3])]);
        let got = tensors(&[("y", [3.0, 0.5, -4.0]), ("d_a", [0.0, 0.0, 2.0]), ("d_b", [0.0, 1e-3, 0.0])]);
        let found = accuracy(&got, &want);
        let of = |name: &str| found.iter().find(|a| a.name == name).unwrap();
        assert_eq!((of("y").largest, of("y").norm), (0.125, 0.1));
        assert_eq!((of("d_a").largest, of("d_a").norm), (0.0, 0.0));
        assert_eq!((of("d_b").largest, of("d_b").norm), (5e-4, 5e-4));
    }

    #[test]
    fn missing_results_and_nan_are_infinitely_wrong() {
        let want = tensors(&[("y", [1.0; 3]), ("d_x", [1.0; 3])]);
        for found in accuracy(&tensors(&[("y", [1.0, f64::NAN, 1.0])]), &want) {
            assert!(found.largest.is_infinite() && found.norm.is_infinite(), "{found:?}");
        }
        // The logarithm of a negative number is NaN on both sides.
        let found = accuracy(&tensors(&[("y", [f64::NAN, 2.5, 0.0])]), &tensors(&[("y", [f64::NAN, 2.0, 0.0])]));
        assert_eq!((found[0].largest, found[0].norm), (0.25, 0.25));
        let found = accuracy(&tensors(&[("y", [1.0, 2.5, 0.0])]), &tensors(&[("y", [f64::NAN, 2.0, 0.0])]));
        assert!(found[0].largest.is_infinite());
    }
}
