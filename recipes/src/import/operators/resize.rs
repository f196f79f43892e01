//! Resize: each axis by itself, as places that are picked or as a product with a matrix of weights that is made at import.

use super::layout::picked;
use crate::import::attribute::axis;
use crate::import::constant::ConstantTensor;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::step::Out;
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[("Resize", resize)];

/// How places of the result are those of the operand.
struct Mapping {
    coordinates: String,
    nearest: String,
    mode: String,
    cubic: f64,
    antialias: bool,
    exclude: bool,
    extrapolation: f64,
}

/// One axis that changes: its sizes, its scale, and the part that is cropped.
struct Change {
    size: usize,
    count: usize,
    scale: f64,
    crop: (f64, f64),
}

fn resize(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let rank = x.axes.len();
    let axes = match node.ints("axes") {
        Some(axes) => axes.into_iter().map(|a| axis(a, rank)).collect::<Result<Vec<_>, _>>()?,
        None => (0..rank).collect(),
    };
    let reals = |n: usize| match (node.given(n), node.constant(n)) {
        (false, _) => Ok(None),
        (true, Some(constant)) => Ok(Some(constant.reals()).filter(|v| !v.is_empty())),
        (true, None) => Err(node.unknown(n)),
    };
    let (roi, scales, sizes) = (reals(1)?, reals(2)?, reals(3)?);
    let n = axes.len();
    let own: Vec<f64> = axes.iter().map(|a| x.axes[*a].size as f64).collect();
    let (scales, counts): (Vec<f64>, Vec<usize>) = match (scales, sizes) {
        (Some(scales), _) if scales.len() == n => {
            let counts = scales.iter().zip(&own).map(|(s, size)| (s * size).floor() as usize).collect();
            (scales, counts)
        }
        (None, Some(sizes)) if sizes.len() == n => {
            let each: Vec<f64> = sizes.iter().zip(&own).map(|(to, from)| to / from).collect();
            let policy = node.string("keep_aspect_ratio_policy", "stretch");
            let scale = match policy {
                "not_larger" => Some(each.iter().copied().fold(f64::INFINITY, f64::min)),
                "not_smaller" => Some(each.iter().copied().fold(0.0, f64::max)),
                _ => None,
            };
            match scale {
                Some(scale) => (vec![scale; n], own.iter().map(|size| (scale * size + 0.5).floor() as usize).collect()),
                None => (each, sizes.iter().map(|s| *s as usize).collect()),
            }
        }
        _ => return UnsupportedNode::form("it has neither scales nor sizes for each of its axes"),
    };
    if counts.contains(&0) {
        return Err(UnsupportedNode::Empty);
    }
    let mapping = Mapping {
        coordinates: node.string("coordinate_transformation_mode", "half_pixel").into(),
        nearest: node.string("nearest_mode", "round_prefer_floor").into(),
        mode: node.string("mode", "nearest").into(),
        cubic: node.float("cubic_coeff_a", -0.75),
        antialias: node.int("antialias", 0) != 0,
        exclude: node.int("exclude_outside", 0) != 0,
        extrapolation: node.float("extrapolation_value", 0.0),
    };
    let mut x = x;
    for (at, along) in axes.iter().enumerate() {
        let crop = match &roi {
            Some(roi) if roi.len() == 2 * n => (roi[at], roi[at + n]),
            _ => (0.0, 1.0),
        };
        let change = Change { size: x.axes[*along].size, count: counts[at], scale: scales[at], crop };
        let cropped = mapping.coordinates == "tf_crop_and_resize";
        if change.size == change.count && change.scale == 1.0 && !cropped {
            continue;
        }
        x = changed(node, &x, *along, &mapping, &change)?;
    }
    let last = if x == node.view(0)? { x } else { node.copied_as(Out::Result(0), &x)? };
    Ok(vec![GraphValue::View(last)])
}

fn changed(node: &mut OnnxNode, x: &DigitView, along: usize, mapping: &Mapping, change: &Change) -> Result<DigitView, UnsupportedNode> {
    let rows = (0..change.count).map(|p| mapping.row(change, p)).collect::<Result<Vec<_>, _>>()?;
    let single = |row: &Row| match row {
        Row::Weights(weights) => match weights.iter().filter(|(_, w)| *w != 0.0).collect::<Vec<_>>()[..] {
            [(place, 1.0)] => Some(*place),
            _ => None,
        },
        Row::Outside => None,
    };
    if let Some(places) = rows.iter().map(single).collect::<Option<Vec<i64>>>() {
        return picked(node, x, along, &places, "picked");
    }
    // y[p] = Σ m[p,h] · x[h], with what lies outside added.
    let mut matrix = vec![0.0; change.count * change.size];
    let mut outside = vec![0.0; change.count];
    for (p, row) in rows.iter().enumerate() {
        match row {
            Row::Weights(weights) => weights.iter().for_each(|(h, w)| matrix[p * change.size + *h as usize] += w),
            Row::Outside => outside[p] = mapping.extrapolation,
        }
    }
    let name = node.proto.output.first().cloned().unwrap_or_default();
    let mut parameter = |suffix: &str, shape: Vec<usize>, values: Vec<f64>| {
        let value = node.import.known(&format!("{name}_{suffix}"), ConstantTensor::real(x.element, shape, values));
        node.operand(value)
    };
    let matrix = parameter("weights", vec![change.count, change.size], matrix)?;
    let beyond = if outside.iter().any(|v| *v != 0.0) { Some(parameter("outside", vec![change.count], outside)?) } else { None };
    let rank = x.axes.len();
    let own: Vec<usize> = (0..rank).map(|a| if a == along { rank } else { a }).collect();
    let kept: Vec<usize> = (0..rank).collect();
    let mut operands = vec![(matrix, vec![along, rank]), (x.clone(), own)];
    operands.extend(beyond.map(|beyond| (beyond, vec![along])));
    let labelled = node.labelled(&operands, &kept)?;
    let mut expression = crate::import::step::summed(&[&labelled.texts[0], &labelled.texts[1]], &labelled.indices[&rank]);
    if let Some(beyond) = labelled.texts.get(2) {
        expression = format!("{expression} + {beyond}");
    }
    let axes = kept.iter().map(|a| labelled.indices[a].clone()).collect();
    Ok(node.define(Out::Part("resized"), axes, &expression, x.element))
}

/// What one place of the result is made of.
enum Row {
    /// Places of the operand, with weights.
    Weights(Vec<(i64, f64)>),
    /// The extrapolation value.
    Outside,
}

impl Mapping {
    /// The real place of the operand at a place of the result.
    fn place(&self, change: &Change, p: usize) -> Result<f64, UnsupportedNode> {
        let (size, count, p) = (change.size as f64, change.count as f64, p as f64);
        // The size that the scale gives, before it is rounded.
        let real = change.scale * size;
        Ok(match self.coordinates.as_str() {
            "half_pixel" => (p + 0.5) / change.scale - 0.5,
            "half_pixel_symmetric" => size / 2.0 * (1.0 - count / real) + (p + 0.5) / change.scale - 0.5,
            "pytorch_half_pixel" if change.count == 1 => 0.0,
            "pytorch_half_pixel" => (p + 0.5) / change.scale - 0.5,
            "align_corners" if real == 1.0 => 0.0,
            "align_corners" => p * (size - 1.0) / (real - 1.0),
            "asymmetric" => p / change.scale,
            "tf_crop_and_resize" if change.count == 1 => 0.5 * (change.crop.0 + change.crop.1) * (size - 1.0),
            "tf_crop_and_resize" => {
                let (start, end) = change.crop;
                start * (size - 1.0) + p * (end - start) * (size - 1.0) / (count - 1.0)
            }
            other => return UnsupportedNode::form(format!("places by `{other}` are not supported")),
        })
    }

    fn row(&self, change: &Change, p: usize) -> Result<Row, UnsupportedNode> {
        let place = self.place(change, p)?;
        let last = change.size as i64 - 1;
        if self.coordinates == "tf_crop_and_resize" && (place < 0.0 || place > last as f64) {
            return Ok(Row::Outside);
        }
        let whole = place.floor();
        // Of two equal neighbours the left one counts, so a whole place is the right one of its neighbours.
        let ratio = if place == whole { 1.0 } else { place - whole };
        let (first, weights) = self.weights(change, ratio)?;
        let base = if place == whole { whole as i64 - 1 } else { whole as i64 };
        let mut weights: Vec<(i64, f64)> = weights.into_iter().enumerate().map(|(n, w)| (base + first + n as i64, w)).collect();
        if self.exclude {
            weights.iter_mut().filter(|(h, _)| !(0..=last).contains(h)).for_each(|(_, w)| *w = 0.0);
            let sum: f64 = weights.iter().map(|(_, w)| w).sum();
            weights.iter_mut().for_each(|(_, w)| *w /= sum);
        }
        Ok(Row::Weights(weights.into_iter().map(|(h, w)| (h.clamp(0, last), w)).collect()))
    }

    /// Weights of neighbours, and where the first of them lies from the place rounded down.
    fn weights(&self, change: &Change, ratio: f64) -> Result<(i64, Vec<f64>), UnsupportedNode> {
        let cubic = |t: f64| {
            let (t, a) = (t.abs(), self.cubic);
            match t {
                t if t <= 1.0 => (a + 2.0) * t.powi(3) - (a + 3.0) * t * t + 1.0,
                t if t < 2.0 => a * t.powi(3) - 5.0 * a * t * t + 8.0 * a * t - 4.0 * a,
                _ => 0.0,
            }
        };
        let spread = |reach: f64, f: &dyn Fn(f64) -> f64| {
            let scale = change.scale.min(1.0);
            let start = (-reach / scale).floor() as i64 + 1;
            let count = 2 * reach as i64 - 2 * start;
            let weights: Vec<f64> = (start..start + count).map(|n| f((n as f64 - ratio) * scale)).collect();
            let sum: f64 = weights.iter().sum();
            (start, weights.into_iter().map(|w| w / sum).collect())
        };
        Ok(match (self.mode.as_str(), self.antialias) {
            ("nearest", _) => {
                let right = match self.nearest.as_str() {
                    _ if ratio == 1.0 => true,
                    "round_prefer_floor" => ratio > 0.5,
                    "round_prefer_ceil" => ratio >= 0.5,
                    "floor" => false,
                    "ceil" => true,
                    other => return UnsupportedNode::form(format!("rounding by `{other}` is not supported")),
                };
                (0, vec![f64::from(!right), f64::from(right)])
            }
            ("linear", false) => (0, vec![1.0 - ratio, ratio]),
            ("linear", true) => spread(1.0, &|t| (1.0 - t.abs()).max(0.0)),
            ("cubic", false) => (-1, [1.0 + ratio, ratio, 1.0 - ratio, 2.0 - ratio].map(cubic).to_vec()),
            ("cubic", true) => spread(2.0, &cubic),
            (other, _) => return UnsupportedNode::form(format!("the mode `{other}` is not supported; nearest, linear and cubic are")),
        })
    }
}
