//! Losses of classes: NegativeLogLikelihoodLoss and SoftmaxCrossEntropyLoss.

use crate::import::attribute::int;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::recipe::StepIndex;
use crate::import::step::{Out, literal, reduced};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

pub const ALL: &[(&str, OperatorWriter)] = &[
    ("NegativeLogLikelihoodLoss", |n| {
        let scores = n.view(0)?;
        Ok(vec![GraphValue::View(loss(n, &scores)?)])
    }),
    ("SoftmaxCrossEntropyLoss", |n| {
        let scores = n.view(0)?;
        if scores.axes.len() < 2 {
            return UnsupportedNode::form("its scores have no classes");
        }
        let out = if n.wanted(1) { Out::Result(1) } else { Out::Part("log") };
        let logs = super::reduction::along_axis(n, out, &scores, 1, |t, index| match index {
            Some(index) => format!("log_softmax({t}, over: {})", index.name),
            None => format!("0 * {t}"),
        })?;
        Ok(vec![GraphValue::View(loss(n, &logs)?), GraphValue::View(logs)])
    }),
];

/// −w[l] · x[n,l,…] for each label l, or its mean or sum.
fn loss(node: &mut OnnxNode, x: &DigitView) -> Result<DigitView, UnsupportedNode> {
    let labels = node.view(1)?;
    let weights = node.optional(2)?;
    let rank = x.axes.len();
    if rank < 2 || labels.axes.len() + 1 != rank {
        return UnsupportedNode::form(format!("scores of {rank} axes do not fit labels of {}", labels.axes.len()));
    }
    let ignored = int(node.proto, "ignore_index");
    let reduction = node.string("reduction", "mean").to_string();
    let element = x.element;
    // Labels: batch 0, class 1, places from 2 on.
    let places: Vec<usize> = std::iter::once(0).chain(2..rank).collect();
    let all: Vec<usize> = (0..rank).collect();
    let x = if x.axes[1].digits.len() > 1 { node.copied(x, "joined")? } else { x.clone() };
    let mut operands = vec![(labels.clone(), places.clone()), (x.clone(), all)];
    operands.extend(weights.clone().map(|w| (w, vec![1])));
    let class = |node: &mut OnnxNode, part: &'static str, f: &dyn Fn(&str, &str, &str) -> String| -> Result<DigitView, UnsupportedNode> {
        let labelled = node.labelled(&operands, &places)?;
        let index = labelled.indices[&1].first().cloned();
        let name = index.as_ref().map_or("0".to_string(), |i| i.name.clone());
        let weight = labelled.texts.get(2).cloned().unwrap_or("1".into());
        let operand = f(&format!("{} == {name}", labelled.texts[0]), &labelled.texts[1], &weight);
        let over: Vec<&StepIndex> = index.iter().collect();
        let mut expression = reduced("sum", &operand, &over);
        if let Some(ignored) = ignored {
            let ignored = literal(ignored as f64, crate::import::element::ElementType::I64);
            expression = format!("where({} == {ignored}, 0, {expression})", labelled.texts[0]);
        }
        let axes = places.iter().map(|label| labelled.indices[label].clone()).collect();
        let out = if part == "each" && reduction == "none" { Out::Result(0) } else { Out::Part(part) };
        Ok(node.define(out, axes, &expression, element))
    };
    let each = class(node, "each", &|is, x, w| format!("where({is}, -({w} * {x}), 0)"))?;
    if reduction == "none" {
        return Ok(each);
    }
    let axes: Vec<usize> = (0..each.axes.len()).collect();
    if reduction == "sum" {
        return super::reduction::over(node, Out::Result(0), &each, &axes, false, |t, over| reduced("sum", t, over));
    }
    let counted = weights.is_some() || ignored.is_some();
    if !counted {
        return super::reduction::over(node, Out::Result(0), &each, &axes, false, |t, over| reduced("mean", t, over));
    }
    let own = class(node, "weight", &|is, _, w| format!("where({is}, {w}, 0)"))?;
    let total = super::reduction::over(node, Out::Part("total"), &each, &axes, false, |t, over| reduced("sum", t, over))?;
    let weight = super::reduction::over(node, Out::Part("weights"), &own, &axes, false, |t, over| reduced("sum", t, over))?;
    node.pointwise(Out::Result(0), &[total, weight], element, |t| format!("{} / {}", t[0], t[1]))
}
