//! Attention: scores, masks, and the mean of values that they weigh.

use super::layout::{joined, reshape};
use super::pointwise::real;
use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::recipe::StepIndex;
use crate::import::step::{Out, at, literal, reduced, summed};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[("Attention", attention)];

/// Labels of the axes: batch, head of keys, query head of that, query, key, width of keys, width of values.
const BATCH: usize = 0;
const HEAD: usize = 1;
const GROUP: usize = 2;
const QUERY: usize = 3;
const KEY: usize = 4;
const WIDTH: usize = 5;
const VALUE: usize = 6;

/// An operand with axes for heads: [batch, place, head · width] → [batch, head, place, width].
fn headed(node: &mut OnnxNode, x: DigitView, heads: i64) -> Result<DigitView, UnsupportedNode> {
    match x.shape()[..] {
        [_, _, _, _] => Ok(x),
        [batch, places, hidden] if heads > 0 && hidden % heads as usize == 0 => {
            let heads = heads as usize;
            let GraphValue::View(view) = reshape(node, &x, &[batch, places, heads, hidden / heads])?.remove(0) else {
                return Err(UnsupportedNode::Earlier);
            };
            Ok(view.transposed(&[0, 2, 1, 3])?)
        }
        ref other => UnsupportedNode::form(format!("an operand of the shape {other:?} has no {heads} heads")),
    }
}

fn reshaped(node: &mut OnnxNode, x: &DigitView, shape: &[usize]) -> Result<DigitView, UnsupportedNode> {
    match reshape(node, x, shape)?.remove(0) {
        GraphValue::View(view) => Ok(view),
        _ => Err(UnsupportedNode::Earlier),
    }
}

fn attention(node: &mut OnnxNode) -> Results {
    let flat = node.view(0)?.axes.len() == 3;
    let (q, k, v) = (node.view(0)?, node.view(1)?, node.view(2)?);
    let q = headed(node, q, node.int("q_num_heads", 0))?;
    let (mut k, mut v) = (headed(node, k, node.int("kv_num_heads", 0))?, headed(node, v, node.int("kv_num_heads", 0))?);
    let mut past = 0;
    if let (Some(keys), Some(values)) = (node.optional(4)?, node.optional(5)?) {
        past = keys.axes[2].size as i64;
        k = joined(node, &[keys, k], 2, if node.wanted(1) { Out::Result(1) } else { Out::Part("keys") })?;
        v = joined(node, &[values, v], 2, if node.wanted(2) { Out::Result(2) } else { Out::Part("values") })?;
    }
    let [batch, heads, queries, width] = q.shape()[..] else { return UnsupportedNode::form("its queries have no four axes") };
    let (own, keys) = (k.axes[1].size, k.axes[2].size);
    if heads % own != 0 {
        return UnsupportedNode::form(format!("{heads} heads of queries do not share {own} of keys"));
    }
    let q = reshaped(node, &q, &[batch, own, heads / own, queries, width])?;
    let element = q.element;
    let scale = match crate::import::attribute::float(node.proto, "scale") {
        Some(_) => real(node, "scale", 1.0),
        None => format!("(1 / sqrt({width}))"),
    };
    let all = [BATCH, HEAD, GROUP, QUERY, KEY];
    let whole = [batch, heads, queries, keys];
    // Scores.
    let labelled = node.labelled(&[(q, vec![BATCH, HEAD, GROUP, QUERY, WIDTH]), (k.clone(), vec![BATCH, HEAD, KEY, WIDTH])], &all)?;
    let expression = summed(&[&scale, &labelled.texts[0], &labelled.texts[1]], &labelled.indices[&WIDTH]);
    let axes = all.iter().map(|label| labelled.indices[label].clone()).collect();
    let raw = node.define(Out::Part("scores"), axes, &expression, element);
    let mut scores = raw.clone();
    let cap = node.float("softcap", 0.0);
    if cap > 0.0 {
        let cap = literal(cap, ElementType::F64);
        scores = node.pointwise(Out::Part("capped"), std::slice::from_ref(&raw), element, |t| format!("{cap} * tanh({} / {cap})", t[0]))?;
    }
    let capped = scores.clone();
    let (masked, may_be_empty) = mask(node, &scores, past, (heads, own), (queries, keys))?;
    // Rows in which no key may be seen give 0.
    let labelled = node.labelled(&[(masked.clone(), all.to_vec())], &all)?;
    let over: Vec<&StepIndex> = labelled.indices[&KEY].iter().collect();
    let text = &labelled.texts[0];
    let expression = match over.as_slice() {
        [] if may_be_empty => format!("{text} != -inf"),
        [] => format!("1 + 0 * {text}"),
        [index] if may_be_empty => {
            format!("where({} == -inf, 0, softmax({text}, over: {}))", reduced("max", text, &over), index.name)
        }
        [index, ..] => format!("softmax({text}, over: {})", index.name),
    };
    let axes = all.iter().map(|label| labelled.indices[label].clone()).collect();
    let weights = node.define(Out::Part("weights"), axes, &expression, element);
    let kept = [BATCH, HEAD, GROUP, QUERY, VALUE];
    let operands = [(weights.clone(), all.to_vec()), (v.clone(), vec![BATCH, HEAD, KEY, VALUE])];
    let y = super::contraction::contraction(node, Out::Part("mixed"), &operands, &kept)?;
    let wide = y.axes[4].size;
    let y = reshaped(node, &y, &[batch, heads, queries, wide])?;
    let y = if flat { reshaped(node, &y.transposed(&[0, 2, 1, 3])?, &[batch, queries, heads * wide])? } else { y };
    let mut results = vec![GraphValue::View(y), GraphValue::View(k), GraphValue::View(v)];
    if node.wanted(3) {
        let asked = match node.int("qk_matmul_output_mode", 0) {
            0 => raw,
            1 => capped,
            2 => masked,
            _ => weights,
        };
        results.push(GraphValue::View(reshaped(node, &asked, &whole)?));
    }
    Ok(results)
}

/// Scores where keys that a query may not see are −∞, and whether some query may see none.
fn mask(
    node: &mut OnnxNode,
    scores: &DigitView,
    past: i64,
    (heads, own): (usize, usize),
    (queries, keys): (usize, usize),
) -> Result<(DigitView, bool), UnsupportedNode> {
    let all = [BATCH, HEAD, GROUP, QUERY, KEY];
    let lengths = node.optional(6)?;
    let given = node.optional(3)?;
    let causal = node.int("is_causal", 0) != 0;
    let (left, right) = (node.int("left_window_size", -1), node.int("right_window_size", -1));
    if lengths.is_none() && given.is_none() && !causal && left < 0 && right < 0 {
        return Ok((scores.clone(), false));
    }
    let mut operands = vec![(scores.clone(), all.to_vec())];
    let mut of_truths = false;
    if let Some(mask) = &given {
        of_truths = mask.element == ElementType::Bool;
        let mut mask = mask.unsqueezed(&(0..4usize.saturating_sub(mask.axes.len())).collect::<Vec<_>>())?;
        if mask.axes.len() != 4 {
            return UnsupportedNode::form("its mask has more than four axes");
        }
        if mask.axes[3].size < keys {
            mask = lengthened(node, &mask, keys, if of_truths { "0" } else { "-inf" })?;
        }
        let [a, h, i, j] = mask.shape()[..] else { return Err(UnsupportedNode::Earlier) };
        let shape = if h == 1 { [a, 1, 1, i, j] } else { [a, own, heads / own, i, j] };
        let mask = reshaped(node, &mask, &shape)?;
        operands.push((mask, all.to_vec()));
    }
    let has_lengths = lengths.is_some();
    operands.extend(lengths.map(|lengths| (lengths, vec![BATCH])));
    // Queries and keys are counted, so each has one index.
    for (view, labels) in &mut operands {
        let cut = labels.iter().zip(&view.axes).any(|(label, axis)| [QUERY, KEY].contains(label) && axis.digits.len() > 1);
        if cut {
            *view = node.copied(view, "whole")?;
        }
    }
    let labelled = node.labelled(&operands, &all)?;
    let place = |label: usize| labelled.indices[&label].first().map_or("0".to_string(), |i| i.name.clone());
    let (i, j) = (place(QUERY), place(KEY));
    let length = has_lengths.then(|| labelled.texts.last().cloned().unwrap_or_default());
    let query = match &length {
        Some(length) => format!("{i} + {length} - {queries}"),
        None => format!("{i} + {past}"),
    };
    let mut conditions = vec![];
    conditions.extend(length.iter().map(|length| format!("({j} < {length})")));
    if causal {
        conditions.push(format!("({j} <= {query})"));
    }
    if left >= 0 {
        conditions.push(format!("({query} - {j} <= {left})"));
    }
    if right >= 0 {
        conditions.push(format!("({j} <= {query} + {right})"));
    }
    let mut value = labelled.texts[0].clone();
    match (&given, of_truths) {
        (Some(_), true) => conditions.push(labelled.texts[1].clone()),
        (Some(_), false) => value = format!("{value} + {}", labelled.texts[1]),
        _ => {}
    }
    let expression = match conditions.is_empty() {
        true => value,
        false => format!("where({}, {value}, -inf)", conditions.join(" * ")),
    };
    let axes = all.iter().map(|label| labelled.indices[label].clone()).collect();
    let masked = node.define(Out::Part("masked"), axes, &expression, scores.element);
    // Causal queries see the first key, at least where they are counted from the front.
    let plain = causal && given.is_none() && !has_lengths && left < 0 && right < 0;
    Ok((masked, !plain))
}

/// A mask with as many keys as there are; those that it lacks have one value.
fn lengthened(node: &mut OnnxNode, mask: &DigitView, keys: usize, value: &str) -> Result<DigitView, UnsupportedNode> {
    let own = node.whole(mask, [3])?;
    let own = if own.axes.iter().any(|axis| axis.digits.len() > 1) { node.copied(&own, "whole")? } else { own };
    node.begin();
    let axes: Vec<Vec<StepIndex>> = own
        .axes
        .iter()
        .enumerate()
        .map(|(n, axis)| {
            if n == 3 {
                vec![node.index(keys)]
            } else if axis.size == 1 {
                vec![]
            } else {
                vec![node.index(axis.size)]
            }
        })
        .collect();
    let places: Vec<_> = axes.iter().map(|axis| axis.first().map_or(crate::import::step::SubscriptExpr::number(0), at)).collect();
    let text = node.read(&own, &places, Some(value));
    Ok(node.define(Out::Part("mask"), axes, &text, mask.element))
}
