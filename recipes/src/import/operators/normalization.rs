//! Normalizations.

use super::layout::reshape;
use super::pointwise::{one, powered, real, root};
use super::reduction::{along_axis, over};
use crate::import::attribute::axis;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::step::{Out, reduced};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[
    ("BatchNormalization", batch),
    ("GroupNormalization", group),
    ("InstanceNormalization", instance),
    ("LayerNormalization", layer),
    ("LpNormalization", |n| {
        let x = n.view(0)?;
        let along = axis(n.int("axis", -1), x.axes.len())?;
        let p = n.int("p", 2);
        one(along_axis(n, Out::Result(0), &x, along, |t, index| {
            let over: Vec<_> = index.into_iter().collect();
            // A row of zeros stays one.
            let norm = root(&reduced("sum", &powered(t, p), &over), p);
            format!("where({norm} == 0, 0, {t} / {norm})")
        }))
    }),
    ("LRN", response),
    ("MeanVarianceNormalization", |n| {
        let x = n.view(0)?;
        let rank = x.axes.len();
        let axes = n.ints("axes").unwrap_or_else(|| vec![0, 2, 3]);
        let axes = axes.into_iter().map(|a| axis(a, rank)).collect::<Result<Vec<_>, _>>()?;
        let (mean, variance) = moments(n, &x, &axes)?;
        let element = x.element;
        one(n.pointwise(Out::Result(0), &[x, mean, variance], element, |t| format!("({} - {}) / (sqrt({}) + 1e-9)", t[0], t[1], t[2])))
    }),
    ("RMSNormalization", root_mean_square),
];

/// The mean and the variance over some axes, which stay with size 1.
pub fn moments(node: &mut OnnxNode, x: &DigitView, axes: &[usize]) -> Result<(DigitView, DigitView), UnsupportedNode> {
    let mean = over(node, Out::Part("mean"), x, axes, true, |t, over| reduced("mean", t, over))?;
    let rank = x.axes.len();
    let kept: Vec<usize> = (0..rank).filter(|a| !axes.contains(a)).collect();
    let all: Vec<usize> = (0..rank).collect();
    let labelled = node.labelled(&[(x.clone(), all.clone()), (mean.clone(), all)], &kept)?;
    let over: Vec<_> = axes.iter().flat_map(|a| &labelled.indices[a]).collect();
    let expression = reduced("mean", &format!("pow({} - {}, 2)", labelled.texts[0], labelled.texts[1]), &over);
    let left = (0..rank).map(|a| if axes.contains(&a) { vec![] } else { labelled.indices[&a].clone() }).collect();
    let variance = node.define(Out::Part("variance"), left, &expression, x.element);
    Ok((mean, variance))
}

/// A value over channels, with axes of size 1 for what stands around them.
fn channels(view: DigitView, rank: usize) -> Result<DigitView, UnsupportedNode> {
    view.unsqueezed(&std::iter::once(0).chain(2..rank).collect::<Vec<_>>())
}

fn batch(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let rank = x.axes.len();
    if rank < 2 {
        return UnsupportedNode::form("its operand has no channels");
    }
    let eps = real(node, "epsilon", 1e-5);
    let [scale, shift, mean, variance] = [node.view(1)?, node.view(2)?, node.view(3)?, node.view(4)?];
    let element = x.element;
    if node.int("training_mode", 0) == 0 {
        let operands = [x, channels(scale, rank)?, channels(shift, rank)?, channels(mean, rank)?, channels(variance, rank)?];
        return one(node.pointwise(Out::Result(0), &operands, element, |t| {
            format!("{} * (({} - {}) * rsqrt({} + {eps})) + {}", t[1], t[0], t[3], t[4], t[2])
        }));
    }
    let momentum = real(node, "momentum", 0.9);
    let axes: Vec<usize> = std::iter::once(0).chain(2..rank).collect();
    let (own, spread) = moments(node, &x, &axes)?;
    let operands = [x, channels(scale, rank)?, channels(shift, rank)?, own.clone(), spread.clone()];
    let y = node.pointwise(Out::Result(0), &operands, element, |t| {
        format!("{} * (({} - {}) * rsqrt({} + {eps})) + {}", t[1], t[0], t[3], t[4], t[2])
    })?;
    let mut results = vec![GraphValue::View(y)];
    for (n, (old, new)) in [(mean, own), (variance, spread)].into_iter().enumerate() {
        let new = new.squeezed(&axes);
        let moved =
            node.pointwise(Out::Result(1 + n), &[old, new], element, |t| format!("{momentum} * {} + (1 - {momentum}) * {}", t[0], t[1]))?;
        results.push(GraphValue::View(moved));
    }
    Ok(results)
}

/// The normalization of the language over some axes, with a scale and a shift that are broadcast.
fn normalized(
    node: &mut OnnxNode,
    out: Out,
    x: &DigitView,
    axes: &[usize],
    scale: Option<DigitView>,
    shift: Option<DigitView>,
    eps: &str,
) -> Result<DigitView, UnsupportedNode> {
    let rank = x.axes.len();
    let kept: Vec<usize> = (0..rank).collect();
    let (has_scale, has_shift) = (scale.is_some(), shift.is_some());
    let operands: Vec<DigitView> = [x.clone()].into_iter().chain(scale).chain(shift).collect();
    let labelled = node.labelled(&OnnxNode::aligned(&operands, rank)?, &kept)?;
    let over: Vec<&str> = axes.iter().flat_map(|a| &labelled.indices[a]).map(|i| i.name.as_str()).collect();
    let mut options = String::new();
    let mut rest = labelled.texts[1..].iter();
    // A scale along other dims than the reduced ones stands outside.
    let inside = |text: &str| over.iter().any(|index| crate::import::step::mentions(text, index));
    let (mut factor, mut summand) = (None, None);
    if let Some(text) = rest.next().filter(|_| has_scale) {
        if inside(text) { options.push_str(&format!(", scale: {text}")) } else { factor = Some(text.clone()) }
    } else {
        rest = labelled.texts[1..].iter();
    }
    if let Some(text) = rest.next().filter(|_| has_shift) {
        if inside(text) && factor.is_none() { options.push_str(&format!(", shift: {text}")) } else { summand = Some(text.clone()) }
    }
    let mut expression = match over.as_slice() {
        [] => format!("0 * {}", labelled.texts[0]),
        _ => format!("layernorm({}, over: [{}]{options}, eps: {eps})", labelled.texts[0], over.join(", ")),
    };
    if let Some(factor) = factor {
        expression = format!("{factor} * {expression}");
    }
    if let Some(summand) = summand {
        expression = format!("{expression} + {summand}");
    }
    let left = kept.iter().map(|a| labelled.indices[a].clone()).collect();
    Ok(node.define(out, left, &expression, x.element))
}

fn layer(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let rank = x.axes.len();
    let first = axis(node.int("axis", -1), rank)?;
    let axes: Vec<usize> = (first..rank).collect();
    let eps = real(node, "epsilon", 1e-5);
    let (scale, shift) = (node.optional(1)?, node.optional(2)?);
    let y = normalized(node, Out::Result(0), &x, &axes, scale, shift, &eps)?;
    let mut results = vec![GraphValue::View(y)];
    if node.wanted(1) || node.wanted(2) {
        let mean = over(node, Out::Result(1), &x, &axes, true, |t, over| reduced("mean", t, over))?;
        results.push(GraphValue::View(mean));
    }
    if node.wanted(2) {
        let (_, variance) = moments(node, &x, &axes)?;
        let element = x.element;
        results.push(GraphValue::View(node.pointwise(Out::Result(2), &[variance], element, |t| format!("rsqrt({} + {eps})", t[0]))?));
    }
    Ok(results)
}

fn instance(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let rank = x.axes.len();
    let axes: Vec<usize> = (2..rank).collect();
    let eps = real(node, "epsilon", 1e-5);
    let (scale, shift) = (channels(node.view(1)?, rank)?, channels(node.view(2)?, rank)?);
    one(normalized(node, Out::Result(0), &x, &axes, Some(scale), Some(shift), &eps))
}

/// Channels are parted into groups, each of which is normalized; scale and shift are one for each channel, and before operator set 21
/// one for each group.
fn group(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let shape = x.shape();
    let groups = node.int("num_groups", 1).max(1) as usize;
    if shape.len() < 2 || shape[1] % groups != 0 {
        return UnsupportedNode::form(format!("{shape:?} has no {groups} groups of channels"));
    }
    let eps = real(node, "epsilon", 1e-5);
    let own = shape[1] / groups;
    let parted: Vec<usize> = [&[shape[0], groups, own], &shape[2..]].concat();
    let GraphValue::View(parts) = reshape(node, &x, &parted)?.remove(0) else { return Err(UnsupportedNode::Earlier) };
    let rank = parted.len();
    let axes: Vec<usize> = (2..rank).collect();
    let affine = |node: &mut OnnxNode, n: usize| -> Result<DigitView, UnsupportedNode> {
        let view = node.view(n)?;
        let shape = if view.elements() == groups && own != 1 { vec![groups, 1] } else { vec![groups, own] };
        let view = view.reshaped(&shape).ok_or_else(|| UnsupportedNode::Form("its scale or shift has other channels".into()))?;
        view.unsqueezed(&std::iter::once(0).chain(3..rank).collect::<Vec<_>>())
    };
    let (scale, shift) = (affine(node, 1)?, affine(node, 2)?);
    let y = normalized(node, Out::Part("groups"), &parts, &axes, None, None, &eps)?;
    let element = x.element;
    let y = node.pointwise(Out::Part("scaled"), &[y, scale, shift], element, |t| format!("{} * {} + {}", t[1], t[0], t[2]))?;
    reshape(node, &y, &shape)
}

fn root_mean_square(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let rank = x.axes.len();
    let first = axis(node.int("axis", -1), rank)?;
    let eps = real(node, "epsilon", 1e-5);
    let scale = node.optional(1)?;
    let operands: Vec<DigitView> = [x.clone()].into_iter().chain(scale).collect();
    let kept: Vec<usize> = (0..rank).collect();
    let labelled = node.labelled(&OnnxNode::aligned(&operands, rank)?, &kept)?;
    let over: Vec<_> = (first..rank).flat_map(|a| &labelled.indices[&a]).collect();
    let square = reduced("mean", &powered(&labelled.texts[0], 2), &over);
    let scale = labelled.texts.get(1).map(|scale| format!(" * {scale}")).unwrap_or_default();
    let expression = format!("{} * rsqrt({square} + {eps}){scale}", labelled.texts[0]);
    let left = kept.iter().map(|a| labelled.indices[a].clone()).collect();
    Ok(vec![GraphValue::View(node.define(Out::Result(0), left, &expression, x.element))])
}

/// Each element is divided by a power of the squares of its neighbours along the channels.
fn response(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let size = node.int("size", 1).max(1) as usize;
    let (alpha, beta, bias) = (node.float("alpha", 1e-4), real(node, "beta", 0.75), real(node, "bias", 1.0));
    if x.axes.len() < 2 {
        return UnsupportedNode::form("its operand has no channels");
    }
    let x = node.whole(&x, [1])?;
    let rank = x.axes.len();
    let kept: Vec<usize> = (0..rank).collect();
    let labelled = node.labelled(&[(x.clone(), kept.clone())], &kept)?;
    let channel = labelled.indices[&1][0].clone();
    let near = node.index(size);
    let mut places = node.places(&x, &kept, &labelled);
    if let [digit] = x.axes[1].digits.as_slice() {
        let place = crate::import::step::at(&channel).plus(&crate::import::step::at(&near), 1);
        places.insert(digit.id, place.plus(&crate::import::step::SubscriptExpr::number(1), -(((size - 1) / 2) as i64)));
    }
    let neighbour = node.text(&x, &places, Some("0"));
    let factor = crate::import::step::literal(alpha / size as f64, crate::import::element::ElementType::F64);
    let squares = reduced("sum", &powered(&neighbour, 2), &[&near]);
    let expression = format!("{} * pow({bias} + {factor} * {squares}, -{beta})", labelled.texts[0]);
    let left = kept.iter().map(|a| labelled.indices[a].clone()).collect();
    Ok(vec![GraphValue::View(node.define(Out::Result(0), left, &expression, x.element))])
}
