//! Checks that a peer computes the same results: every output and gradient, dropout off, at full size.
//!
//! # Tolerance
//! Worst-case bounds of a whole layer are too wide to tell much, so errors are taken as independent (Higham and Mary,
//! *A New Approach to Probabilistic Rounding Error Analysis*): `n` roundings of size `u` add up to about `√n·u`. `n` is the
//! length of all operators' chains together ([`sdfg::tolerance`]), taken twice because both sides round, and the bound is
//! four times that. Products whose factors were rounded to bf16 first, which `medium` allows, add two roundings of 2⁻⁹ for
//! each contraction.
//!
//! A recipe stored in bf16 rounds to it wherever an operator writes, and so do its peers: √2 of that many roundings of 2⁻⁸. This bound is
//! not multiplied by four: an error of at most u has a standard deviation of u/√3, and the norm of many elements hardly deviates at all.
//! A model that also holds its weights in bf16 has the same bound.
//!
//! The error is `‖theirs − ours‖ / ‖ours‖`. A gradient whose terms cancel is smaller than its terms (that of the keys' bias
//! is zero), so the norm is the largest among the gradients of the same shape.
//!
//! With ReLU, a value within the tolerance `t` of zero may have the other sign. Among values with unit variance this concerns at most a
//! share of `0.8·t`, and each turns its element of a gradient on or off: `√t` bounds the error of a gradient.

use super::contender::Precision;
use super::{CompareError, PeerModel};
use crate::load::Recipe;
use crate::pipeline::oracle::operators::operators;
use ndarray::ArrayD;
use safetensors::{Dtype as Stored, SafeTensors};
use sdfg::interpret::Tensors;
use sdfg::tolerance::unit_tolerance;
use sdfg::{Dtype, Op, Unit};
use serde::Serialize;
use std::path::Path;

/// The bound on a peer's distance from our results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AgreementBound {
    /// Roundings in f32.
    length: u64,
    contractions: u64,
    /// Operators, each of which stores a result.
    operators: u64,
    /// Whether gradients jump where a value crosses zero.
    kink: bool,
}

/// The result of a peer with the largest ratio of error to tolerance.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Agreement {
    pub worst: String,
    /// Relative, see the module's documentation.
    pub error: f64,
    pub tolerance: f64,
    /// Whether some error exceeds the f32 bound: the peer multiplied in lower precision, as it was allowed to.
    pub reduced: bool,
}

impl Agreement {
    /// Whether the error is within the tolerance; false for NaN.
    pub fn passes(&self) -> bool {
        self.error <= self.tolerance
    }
}

impl AgreementBound {
    /// # Errors
    /// Errors of differentiation and of [`unit_tolerance`].
    pub fn of(recipe: &Recipe, model: &PeerModel) -> Result<AgreementBound, CompareError> {
        let (program, _) = operators(recipe)?;
        let (mut length, mut contractions) = (0u64, 0);
        for (_, _, unit) in program.units() {
            let known = unit_tolerance(&program, &unit)?;
            length = length.saturating_add(known.values().map(|t| t.length.saturating_add(t.depth)).max().unwrap_or(0));
            contractions += u64::from(matches!(&unit, Unit::Operation(o) if matches!(o.op, Op::Contraction { .. })));
        }
        Ok(AgreementBound { length, contractions, operators: program.units().len() as u64, kink: model.has_relu() })
    }

    fn relative(&self, precision: Precision, gradient: bool) -> f64 {
        let single = (2.0 * self.length as f64).sqrt() * Dtype::F32.roundoff();
        let rounded = match precision {
            Precision::Highest => 0.0,
            Precision::Medium => (2.0 * self.contractions as f64).sqrt() * Dtype::Bf16.roundoff(),
            Precision::Bf16 | Precision::Bf16Native => (2.0 * self.operators as f64).sqrt() * Dtype::Bf16.roundoff() / 4.0,
        };
        let bound = 4.0 * (single + rounded);
        if self.kink && gradient { bound.sqrt() } else { bound }
    }

    /// Compares all of `ours` with `theirs`; a missing tensor or one of another shape has an infinite error.
    pub fn check(&self, ours: &Tensors, theirs: &Tensors, precision: Precision) -> Agreement {
        let mut worst = Agreement { worst: "nothing".into(), error: f64::INFINITY, tolerance: 0.0, reduced: false };
        let (mut largest, mut reduced) = (-1.0, false);
        for (name, want) in ours {
            let gradient = name.starts_with("d_");
            let (error, tolerance) = (relative_error(name, ours, theirs), self.relative(precision, gradient));
            reduced |= matches!(precision, Precision::Highest | Precision::Medium) && error > self.relative(Precision::Highest, gradient);
            // NaN counts as the worst.
            let ratio = if error.is_nan() || want.is_empty() { f64::INFINITY } else { error / tolerance };
            if ratio > largest {
                largest = ratio;
                worst = Agreement { worst: name.clone(), error, tolerance, reduced };
            }
        }
        worst.reduced = reduced && worst.passes();
        worst
    }
}

fn relative_error(name: &str, ours: &Tensors, theirs: &Tensors) -> f64 {
    let (Some(want), Some(got)) = (ours.get(name), theirs.get(name)) else { return f64::INFINITY };
    if want.shape() != got.shape() {
        return f64::INFINITY;
    }
    let gradient = |n: &str| n.starts_with("d_");
    let alike = ours.iter().filter(|(n, t)| gradient(n) == gradient(name) && t.shape() == want.shape());
    let norm = alike.map(|(_, t)| t.iter().map(|v| v * v).sum::<f64>().sqrt()).fold(0.0, f64::max);
    let distance = want.iter().zip(got).map(|(w, g)| (w - g) * (w - g)).sum::<f64>().sqrt();
    if distance == 0.0 { 0.0 } else { distance / norm }
}

/// Checks that all elements of all tensors are finite; the error names the first tensor with others.
pub fn finite(tensors: &Tensors) -> Result<(), CompareError> {
    match tensors.iter().find(|(_, t)| t.iter().any(|v| !v.is_finite())) {
        Some((name, _)) => Err(CompareError::NotFinite { name: name.clone() }),
        None => Ok(()),
    }
}

/// Reads the tensors that a worker wrote: f32, in the recipe's names and dim order.
///
/// # Errors
/// [`CompareError::Results`].
pub fn read_results(path: &Path) -> Result<Tensors, CompareError> {
    let fault = |why: String| CompareError::Results { file: path.display().to_string(), why };
    let bytes = std::fs::read(path).map_err(|e| fault(e.to_string()))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| fault(e.to_string()))?;
    let mut found = Tensors::new();
    for (name, view) in file.tensors() {
        if view.dtype() != Stored::F32 {
            return Err(fault(format!("`{name}` is {:?}, not f32", view.dtype())));
        }
        let values = view.data().as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect();
        found.insert(name, ArrayD::from_shape_vec(view.shape(), values).map_err(|e| fault(e.to_string()))?);
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ndarray::arr1;

    const BOUND: AgreementBound = AgreementBound { length: 1000, contractions: 4, operators: 12, kink: false };

    fn tensors(named: &[(&str, [f64; 3])]) -> Tensors {
        named.iter().map(|(n, v)| (n.to_string(), arr1(v).into_dyn())).collect()
    }

    #[test]
    fn every_result_counts() {
        let ours = tensors(&[("y", [1.0, 2.0, 3.0]), ("d_x", [1.0, 1.0, 1.0])]);
        assert!(BOUND.check(&ours, &ours, Precision::Highest).passes());
        let wrong = tensors(&[("y", [1.0, 2.0, 3.0]), ("d_x", [1.0, 1.001, 1.0])]);
        let check = BOUND.check(&ours, &wrong, Precision::Highest);
        assert!(!check.passes() && check.worst == "d_x");
        assert!(BOUND.check(&ours, &wrong, Precision::Medium).passes());
        assert!(BOUND.check(&ours, &wrong, Precision::Medium).reduced);
        assert!(!BOUND.check(&ours, &tensors(&[("y", [1.0, 2.0, 3.0])]), Precision::Highest).passes(), "d_x is missing");
        let nan = tensors(&[("y", [1.0, f64::NAN, 3.0]), ("d_x", [1.0, 1.0, 1.0])]);
        assert!(!BOUND.check(&ours, &nan, Precision::Medium).passes());
        assert!(!BOUND.check(&Tensors::new(), &ours, Precision::Medium).passes(), "nothing was compared");
    }

    #[test]
    fn a_gradient_that_cancels_is_relative_to_similar_ones() {
        let ours = tensors(&[("d_bq", [1.0, 2.0, 3.0]), ("d_bk", [1e-9, 0.0, 0.0])]);
        let theirs = tensors(&[("d_bq", [1.0, 2.0, 3.0]), ("d_bk", [0.0, -1e-9, 0.0])]);
        assert!(BOUND.check(&ours, &theirs, Precision::Highest).passes());
    }

    #[test]
    fn relu_widens_gradients_only() {
        let kinked = AgreementBound { kink: true, ..BOUND };
        assert!(kinked.relative(Precision::Highest, true) > 10.0 * BOUND.relative(Precision::Highest, true));
        assert_eq!(kinked.relative(Precision::Highest, false), BOUND.relative(Precision::Highest, false));
    }
}
