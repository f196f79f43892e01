//! Signals: the discrete Fourier transform as a product with a matrix that is made at import, and windows, which are known.

use super::contraction::contraction;
use super::layout::part;
use super::pointwise::one;
use crate::import::attribute::{axis, int};
use crate::import::constant::ConstantTensor;
use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::step::Out;
use crate::import::value::GraphValue;
use std::f64::consts::TAU;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[
    ("BlackmanWindow", |n| window(n, |t| 0.42 - 0.5 * t.cos() + 0.08 * (2.0 * t).cos())),
    ("DFT", dft),
    // The tests have 25/46, where PyTorch has 0.54.
    ("HammingWindow", |n| window(n, |t| 25.0 / 46.0 - 21.0 / 46.0 * t.cos())),
    ("HannWindow", |n| window(n, |t| 0.5 - 0.5 * t.cos())),
];

/// The largest matrix of a transform, in elements: 2048 places of complex numbers. Longer ones want a fast transform, which is no product.
const MOST: usize = 1 << 24;

/// A function of the angle at each place, once around in the window.
fn window(node: &mut OnnxNode, f: impl Fn(f64) -> f64) -> Results {
    let size = node.numbers(0)?.and_then(|n| n.first().copied()).unwrap_or(0).max(0) as usize;
    let element = node.element("output_datatype", ElementType::F32)?;
    let around = if node.int("periodic", 1) != 0 { size } else { size.saturating_sub(1) };
    // A symmetric window of one place has its end where it begins.
    let values = (0..size).map(|n| if around == 0 { 1.0 } else { f(TAU * n as f64 / around as f64) }).collect();
    let name = node.proto.output.first().cloned().unwrap_or_default();
    Ok(vec![node.import.known(&name, ConstantTensor::of(element, vec![size], values))])
}

/// y[k,c] = Σ m[k,n,c,d] · x[n,d], where c and d are real and imaginary parts.
fn dft(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let rank = x.axes.len();
    let parts = x.axes.last().map_or(0, |last| last.size);
    if rank < 2 || !(1..=2).contains(&parts) {
        return UnsupportedNode::form("its operand has no last axis of real and imaginary parts");
    }
    // Up to operator set 19 the axis was an attribute.
    let along = match (node.numbers(2)?.and_then(|a| a.first().copied()), int(node.proto, "axis")) {
        (Some(given), _) | (None, Some(given)) => given,
        (None, None) if node.import.opset < 20 => 1,
        (None, None) => -2,
    };
    let along = axis(along, rank)?;
    if along == rank - 1 {
        return UnsupportedNode::form("it transforms the axis of real and imaginary parts");
    }
    let (inverse, onesided) = (node.int("inverse", 0) != 0, node.int("onesided", 0) != 0);
    let own = x.axes[along].size;
    let length = match node.numbers(1)?.and_then(|n| n.first().copied()) {
        Some(length) => length.max(0) as usize,
        None if inverse && onesided => 2 * own.saturating_sub(1),
        None => own,
    };
    if length == 0 {
        return Err(UnsupportedNode::Empty);
    }
    let half = length / 2 + 1;
    // A longer signal is cut; a shorter one goes on with zeros, which need no products.
    let used = own.min(if inverse && onesided { half } else { length });
    let places = if onesided && !inverse { half } else { length };
    let results = if onesided && inverse { 1 } else { 2 };
    let elements = places.saturating_mul(used).saturating_mul(results * parts);
    if elements > MOST {
        return UnsupportedNode::form(format!("its matrix would have {elements} elements, and {MOST} are the most"));
    }
    let mut matrix = Vec::with_capacity(elements);
    for k in 0..places {
        for n in 0..used {
            // The angle of a product that is small, so that it is exact.
            let angle = TAU * ((k * n) % length) as f64 / length as f64;
            let (sin, cos) = angle.sin_cos();
            let sin = if inverse { -sin } else { sin };
            // What a spectrum of one side leaves out is the conjugate of what it has, but for its ends.
            let twice = if inverse && onesided && n != 0 && 2 * n != length { 2.0 } else { 1.0 };
            let factor = if inverse { twice / length as f64 } else { 1.0 };
            for c in 0..results {
                let row = if c == 0 { [cos, sin] } else { [-sin, cos] };
                matrix.extend(row[..parts].iter().map(|v| v * factor));
            }
        }
    }
    let name = format!("{}_waves", node.proto.output.first().cloned().unwrap_or_default());
    let known = node.import.known(&name, ConstantTensor::real(x.element, vec![places, used, results, parts], matrix));
    let matrix = node.operand(known)?;
    let whole: Vec<(i64, i64, usize)> =
        x.shape().iter().enumerate().map(|(a, size)| (0, 1, if a == along { used } else { *size })).collect();
    let x = part(node, x, &whole)?;
    let (summed, into) = (rank, rank + 1);
    let own: Vec<usize> = (0..rank)
        .map(|a| match a {
            a if a == along => summed,
            a if a + 1 == rank => into,
            a => a,
        })
        .collect();
    let kept: Vec<usize> = (0..rank).collect();
    one(contraction(node, Out::Result(0), &[(x, own), (matrix, vec![along, summed, rank - 1, into])], &kept))
}
