//! Elements by places that tensors hold, orders of elements, and sums along an axis.

use super::gather::from_the_front;
use super::pointwise::{one, wrapped};
use super::reduction::FACTORS;
use crate::import::attribute::{axis, int};
use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::recipe::StepIndex;
use crate::import::step::{Labelled, Out, reduced};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;
use indexmap::IndexMap;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[
    ("CumProd", multiplied),
    ("CumSum", cumulated),
    ("GatherElements", gather_elements),
    ("GatherND", gather_nd),
    ("OneHot", one_hot),
    ("ReverseSequence", reverse_sequence),
    ("Scatter", scatter_elements),
    ("ScatterElements", scatter_elements),
    ("ScatterND", scatter_nd),
    ("TopK", top),
];

/// How the place of an element compares with the place of a result that it is part of.
fn earlier(node: &OnnxNode) -> &'static str {
    match (node.int("exclusive", 0) != 0, node.int("reverse", 0) != 0) {
        (false, false) => "<=",
        (true, false) => "<",
        (false, true) => ">=",
        (true, true) => ">",
    }
}

/// y[i] = Π x[k] over the k up to i, written out: a recipe has no product over an index.
fn multiplied(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let along = node.numbers(1)?.and_then(|a| a.first().copied()).unwrap_or(0);
    let along = axis(along, x.axes.len())?;
    let size = x.axes[along].size;
    if size > FACTORS {
        return UnsupportedNode::form(format!("products of {size} factors are written out, and {FACTORS} are the most"));
    }
    let x = if x.axes[along].digits.len() > 1 { node.copied(&x, "joined")? } else { x };
    let all: Vec<usize> = (0..x.axes.len()).collect();
    let kept: Vec<usize> = all.iter().copied().filter(|a| *a != along).collect();
    let parts = (0..size as i64).map(|n| x.sliced(along, n, 1, 1).map(|part| (part.squeezed(&[along]), kept.clone())));
    let parts: Vec<(DigitView, Vec<usize>)> =
        parts.collect::<Option<_>>().ok_or_else(|| UnsupportedNode::Form("its axis cannot be parted".into()))?;
    let labelled = node.labelled(&parts, &kept)?;
    let (index, sign) = (node.index(size), earlier(node));
    let factor = |(k, text): (usize, &String)| format!("where({k} {sign} {}, {text}, 1)", index.name);
    let product = labelled.texts.iter().enumerate().map(factor).collect::<Vec<_>>().join(" * ");
    let axes = all.iter().map(|a| if *a == along { vec![index.clone()] } else { labelled.indices[a].clone() }).collect();
    Ok(vec![GraphValue::View(node.define(Out::Result(0), axes, &wrapped(product, x.element), x.element))])
}

/// y[i] = Σ x[k] over the k up to i.
fn cumulated(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let along = node.numbers(1)?.and_then(|a| a.first().copied()).unwrap_or(0);
    let along = axis(along, x.axes.len())?;
    let exclusive = node.int("exclusive", 0) != 0;
    let x = if x.axes[along].digits.len() > 1 { node.copied(&x, "joined")? } else { x };
    let rank = x.axes.len();
    let all: Vec<usize> = (0..rank).collect();
    // The summed axis has a label of its own.
    let own: Vec<usize> = all.iter().map(|a| if *a == along { rank } else { *a }).collect();
    let kept: Vec<usize> = all.iter().copied().filter(|a| *a != along).collect();
    let labelled = node.labelled(&[(x.clone(), own)], &kept)?;
    let summed = labelled.indices[&rank].first().cloned();
    let Some(summed) = summed else {
        let element = x.element;
        return one(node.pointwise(Out::Result(0), &[x], element, |t| if exclusive { format!("0 * {}", t[0]) } else { t[0].clone() }));
    };
    let index = node.index(summed.size);
    let sign = earlier(node);
    let operand = format!("where({} {sign} {}, {}, 0)", summed.name, index.name, labelled.texts[0]);
    let expression = reduced("sum", &operand, &[&summed]);
    let axes = all.iter().map(|a| if *a == along { vec![index.clone()] } else { labelled.indices[a].clone() }).collect();
    Ok(vec![GraphValue::View(node.define(Out::Result(0), axes, &expression, x.element))])
}

/// The text of a value of which some axes are at elements of other tensors.
pub fn at_elements(node: &OnnxNode, x: &DigitView, labels: &[usize], labelled: &Labelled, elements: &[(usize, String)]) -> String {
    let mut places = node.places(x, labels, labelled);
    let mut found = IndexMap::new();
    for (axis, text) in elements {
        if let [digit] = x.axes[*axis].digits.as_slice() {
            places.shift_remove(&digit.id);
            found.insert(digit.id, text.clone());
        }
    }
    node.text_with(x, &places, &found, None)
}

pub fn whole_axes(node: &mut OnnxNode, x: &DigitView, axes: impl Iterator<Item = usize> + Clone) -> Result<DigitView, UnsupportedNode> {
    let whole = axes.clone().all(|a| x.axes[a].digits.is_empty() || x.is_whole(a));
    if whole { Ok(x.clone()) } else { node.copied(x, "joined") }
}

/// y[i,j] = x[places[i,j],j]
fn gather_elements(node: &mut OnnxNode) -> Results {
    let (x, places) = (node.view(0)?, node.view(1)?);
    let rank = x.axes.len();
    let along = axis(node.int("axis", 0), rank)?;
    let places = from_the_front(node, &places, x.axes[along].size as i64)?;
    one(elements(node, Out::Result(0), &x, &places, along))
}

fn elements(node: &mut OnnxNode, out: Out, x: &DigitView, places: &DigitView, along: usize) -> Result<DigitView, UnsupportedNode> {
    let rank = x.axes.len();
    if places.axes.len() != rank {
        return UnsupportedNode::form("its places have other axes than its operand");
    }
    let x = whole_axes(node, x, std::iter::once(along))?;
    // Places may be fewer than elements along the other axes.
    let parts: Vec<(i64, i64, usize)> =
        (0..rank).map(|a| if a == along { (0, 1, x.axes[a].size) } else { (0, 1, places.axes[a].size) }).collect();
    let x = super::layout::part(node, x, &parts)?;
    let x = whole_axes(node, &x, std::iter::once(along))?;
    let kept: Vec<usize> = (0..rank).collect();
    let own: Vec<usize> = kept.iter().map(|a| if *a == along { rank } else { *a }).collect();
    let others = x.squeezed_out(along);
    let other_labels: Vec<usize> = kept.iter().copied().filter(|a| *a != along).collect();
    let labelled = node.labelled(&[(places.clone(), kept.clone()), (others, other_labels)], &kept)?;
    let text = at_elements(node, &x, &own, &labelled, &[(along, labelled.texts[0].clone())]);
    let axes = kept.iter().map(|a| labelled.indices[a].clone()).collect();
    Ok(node.define(out, axes, &text, x.element))
}

/// y[b…,i…,r…] = x[b…,places[b…,i…,0],…,places[b…,i…,k−1],r…]
fn gather_nd(node: &mut OnnxNode) -> Results {
    let (x, places) = (node.view(0)?, node.view(1)?);
    let batch = node.int("batch_dims", 0).max(0) as usize;
    let (rank, inner) = (x.axes.len(), places.axes.len());
    if inner == 0 || batch + places.axes[inner - 1].size > rank || batch >= inner {
        return UnsupportedNode::form("its places have more numbers than its operand has axes");
    }
    let numbers = places.axes[inner - 1].size;
    let named: Vec<usize> = (batch..batch + numbers).collect();
    let x = whole_axes(node, &x, named.iter().copied())?;
    let mut parts = vec![];
    for (n, a) in named.iter().enumerate() {
        let own: Vec<(i64, i64, usize)> =
            places.axes.iter().enumerate().map(|(p, axis)| if p + 1 == inner { (n as i64, 1, 1) } else { (0, 1, axis.size) }).collect();
        let part = super::layout::part(node, places.clone(), &own)?.squeezed(&[inner - 1]);
        // Numbers that a tensor holds are read from a tensor of their own, so that each names a place by itself.
        parts.push(from_the_front(node, &part, x.axes[*a].size as i64)?);
    }
    // Labels: those of the places, then the rest of the operand's.
    let front: Vec<usize> = (0..inner - 1).collect();
    let rest: Vec<usize> = (batch + numbers..rank).map(|a| 50 + a).collect();
    let labels: Vec<usize> = (0..rank)
        .map(|a| {
            if a < batch {
                a
            } else if a < batch + numbers {
                90 + a
            } else {
                50 + a
            }
        })
        .collect();
    let mut operands: Vec<(DigitView, Vec<usize>)> = parts.into_iter().map(|part| (part, front.clone())).collect();
    let mut others = x.clone();
    let mut other_labels = labels.clone();
    for a in named.iter().rev() {
        others = others.squeezed_out(*a);
        other_labels.remove(*a);
    }
    operands.push((others, other_labels));
    let kept: Vec<usize> = front.iter().copied().chain(rest).collect();
    let labelled = node.labelled(&operands, &kept)?;
    let elements: Vec<(usize, String)> = named.iter().zip(&labelled.texts).map(|(a, text)| (*a, text.clone())).collect();
    let text = at_elements(node, &x, &labels, &labelled, &elements);
    let axes = kept.iter().map(|label| labelled.indices[label].clone()).collect();
    Ok(vec![GraphValue::View(node.define(Out::Result(0), axes, &text, x.element))])
}

fn one_hot(node: &mut OnnxNode) -> Results {
    let places = node.view(0)?;
    let Some(depth) = node.constant(1).and_then(|d| d.only()) else { return Err(node.unknown(1)) };
    let values = node.view(2)?;
    let rank = places.axes.len();
    let along = axis(node.int("axis", -1), rank + 1)?;
    if depth < 1.0 {
        return Err(UnsupportedNode::Empty);
    }
    let element = values.element;
    let one_of = |n: i64| {
        values.sliced(0, n, 1, 1).map(|view| view.squeezed(&[0])).ok_or_else(|| UnsupportedNode::Form("its values are parted".into()))
    };
    let (off, on) = (one_of(0)?, one_of(1)?);
    let kept: Vec<usize> = (0..rank).collect();
    let labelled = node.labelled(&[(places, kept.clone()), (off, vec![]), (on, vec![])], &kept)?;
    let class = node.index(depth as usize);
    let [place, off, on] = &labelled.texts[..] else { return Err(UnsupportedNode::Earlier) };
    let expression = format!("where({place} - {depth} * floor({place} / {depth}) == {}, {on}, {off})", class.name);
    // Places that are too large or too small name nothing.
    let expression = format!("where({place} >= -{depth}, where({place} < {depth}, {expression}, {off}), {off})");
    let mut axes: Vec<Vec<StepIndex>> = kept.iter().map(|a| labelled.indices[a].clone()).collect();
    axes.insert(along, vec![class]);
    Ok(vec![GraphValue::View(node.define(Out::Result(0), axes, &expression, element))])
}

/// y[t,b] = x[n[b]−1−t,b] where t < n[b], and else x[t,b].
fn reverse_sequence(node: &mut OnnxNode) -> Results {
    let (x, lengths) = (node.view(0)?, node.view(1)?);
    let rank = x.axes.len();
    let (batch, time) = (axis(node.int("batch_axis", 1), rank)?, axis(node.int("time_axis", 0), rank)?);
    let labelled = node.labelled(&[(lengths, vec![batch])], &[batch])?;
    let count = node.index(x.axes[time].size);
    let text = &labelled.texts[0];
    let expression = format!("where({0} < {text}, {text} - 1 - {0}, {0})", count.name);
    // The places of each sequence, along time and batch.
    let mut axes = vec![vec![]; rank];
    axes[time] = vec![count];
    axes[batch] = labelled.indices[&batch].clone();
    let places = node.define(Out::Part("places"), axes, &expression, ElementType::I64);
    let shape = x.shape();
    let places = places.expanded(&shape);
    one(elements(node, Out::Result(0), &x, &places, time))
}

/// How an update meets what was there.
fn joined(reduction: &str, old: &str, hits: &str, update: &str, over: &[&StepIndex]) -> Result<String, UnsupportedNode> {
    let hit = |otherwise: &str| format!("where({hits}, {update}, {otherwise})");
    Ok(match reduction {
        "add" => format!("{old} + {}", reduced("sum", &hit("0"), over)),
        "max" => format!("max({old}, {})", reduced("max", &hit("-inf"), over)),
        "min" => format!("min({old}, {})", reduced("min", &hit("inf"), over)),
        "none" => {
            let any = reduced("max", &format!("where({hits}, 1, 0)"), over);
            format!("where({any} > 0, {}, {old})", reduced("sum", &hit("0"), over))
        }
        other => return UnsupportedNode::form(format!("the reduction `{other}` is not supported; none, add, max and min are")),
    })
}

/// Each element looks for the updates that name it, so a scatter takes as many steps as elements times updates.
const LOOKED_AT: usize = 1 << 24;

fn scatter_elements(node: &mut OnnxNode) -> Results {
    let (x, places, updates) = (node.view(0)?, node.view(1)?, node.view(2)?);
    let rank = x.axes.len();
    let along = axis(node.int("axis", 0), rank)?;
    if places.axes.len() != rank || updates.shape() != places.shape() {
        return UnsupportedNode::form("its places, updates and operand have different axes");
    }
    if x.elements().saturating_mul(places.axes[along].size) > LOOKED_AT {
        return UnsupportedNode::form("each element looks for the updates that name it, and these are too many");
    }
    let partial = (0..rank).any(|a| a != along && places.axes[a].size != x.axes[a].size);
    let reduction = node.string("reduction", "none").to_string();
    let places = from_the_front(node, &places, x.axes[along].size as i64)?;
    let (places, updates) = match partial {
        true => (padded(node, &places, &x, along, "-1")?, padded(node, &updates, &x, along, "0")?),
        false => (places, updates),
    };
    let kept: Vec<usize> = (0..rank).collect();
    let own: Vec<usize> = kept.iter().map(|a| if *a == along { rank } else { *a }).collect();
    let labelled = node.labelled(&[(x.clone(), kept.clone()), (places, own.clone()), (updates, own)], &kept)?;
    let at = labelled.indices[&along].first().map_or("0".to_string(), |i| i.name.clone());
    let over: Vec<&StepIndex> = labelled.indices[&rank].iter().collect();
    let [old, place, update] = &labelled.texts[..] else { return Err(UnsupportedNode::Earlier) };
    let expression = joined(&reduction, old, &format!("{place} == {at}"), update, &over)?;
    let axes = kept.iter().map(|a| labelled.indices[a].clone()).collect();
    Ok(vec![GraphValue::View(node.define(Out::Result(0), axes, &expression, x.element))])
}

/// A tensor with as many places as another along all axes but one; the new ones hold a number.
fn padded(node: &mut OnnxNode, view: &DigitView, like: &DigitView, along: usize, value: &str) -> Result<DigitView, UnsupportedNode> {
    let whole = node.whole(view, 0..view.axes.len())?;
    node.begin();
    let axes: Vec<Vec<StepIndex>> =
        (0..whole.axes.len()).map(|a| vec![node.index(if a == along { whole.axes[a].size } else { like.axes[a].size })]).collect();
    let places: Vec<_> = axes.iter().map(|axis| crate::import::step::at(&axis[0])).collect();
    let text = node.read(&whole, &places, Some(value));
    Ok(node.define(Out::Part("padded"), axes, &text, view.element))
}

fn scatter_nd(node: &mut OnnxNode) -> Results {
    let (x, places, updates) = (node.view(0)?, node.view(1)?, node.view(2)?);
    let (rank, inner) = (x.axes.len(), places.axes.len());
    let Some(numbers) = places.axes.last().map(|a| a.size).filter(|n| *n <= rank) else {
        return UnsupportedNode::form("its places have more numbers than its operand has axes");
    };
    let rows: usize = places.axes[..inner - 1].iter().map(|a| a.size).product();
    if x.elements().saturating_mul(rows) > LOOKED_AT {
        return UnsupportedNode::form("each element looks for the updates that name it, and these are too many");
    }
    let reduction = node.string("reduction", "none").to_string();
    let mut parts = vec![];
    for n in 0..numbers {
        let own: Vec<(i64, i64, usize)> =
            places.axes.iter().enumerate().map(|(p, axis)| if p + 1 == inner { (n as i64, 1, 1) } else { (0, 1, axis.size) }).collect();
        let part = super::layout::part(node, places.clone(), &own)?.squeezed(&[inner - 1]);
        parts.push(from_the_front(node, &part, x.axes[n].size as i64)?);
    }
    let front: Vec<usize> = (60..60 + inner - 1).collect();
    let kept: Vec<usize> = (0..rank).collect();
    let mut operands = vec![(x.clone(), kept.clone())];
    operands.push((updates, front.iter().copied().chain(numbers..rank).collect()));
    operands.extend(parts.into_iter().map(|part| (part, front.clone())));
    let x = whole_axes(node, &x, 0..numbers)?;
    operands[0].0 = x.clone();
    let labelled = node.labelled(&operands, &kept)?;
    let over: Vec<&StepIndex> = front.iter().flat_map(|label| &labelled.indices[label]).collect();
    let hits: Vec<String> = (0..numbers)
        .map(|n| {
            let at = labelled.indices[&n].first().map_or("0".to_string(), |i| i.name.clone());
            format!("({} == {at})", labelled.texts[2 + n])
        })
        .collect();
    let hits = if hits.is_empty() { "1".to_string() } else { hits.join(" * ") };
    let expression = joined(&reduction, &labelled.texts[0], &hits, &labelled.texts[1], &over)?;
    let axes = kept.iter().map(|a| labelled.indices[a].clone()).collect();
    Ok(vec![GraphValue::View(node.define(Out::Result(0), axes, &expression, x.element))])
}

/// Each element's rank is how many stand before it; the element of rank r is result r.
fn top(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let rank = x.axes.len();
    let along = axis(node.int("axis", -1), rank)?;
    let Some(count) = node.numbers(1)?.and_then(|k| k.first().copied()).and_then(|k| usize::try_from(k).ok()) else {
        return Err(node.unknown(1));
    };
    let size = x.axes[along].size;
    if count == 0 || count > size {
        return Err(UnsupportedNode::Empty);
    }
    if x.elements().saturating_mul(size) > LOOKED_AT {
        return UnsupportedNode::form("each element is compared with all others of its axis, and these are too many");
    }
    let sign = if int(node.proto, "largest").unwrap_or(1) != 0 { ">" } else { "<" };
    let x = if x.axes[along].digits.len() > 1 { node.copied(&x, "joined")? } else { x };
    let kept: Vec<usize> = (0..rank).collect();
    let other: Vec<usize> = kept.iter().map(|a| if *a == along { rank } else { *a }).collect();
    if x.axes[along].digits.is_empty() || size == 1 {
        let element = x.element;
        let values = node.pointwise(Out::Result(0), std::slice::from_ref(&x), element, |t| t[0].clone())?;
        let places = node.pointwise(Out::Result(1), &[x], ElementType::I64, |t| format!("0 * {}", t[0]))?;
        return Ok(vec![GraphValue::View(values), GraphValue::View(places)]);
    }
    let labelled = node.labelled(&[(x.clone(), kept.clone()), (x.clone(), other)], &kept)?;
    let (own, before) = (labelled.indices[&along][0].clone(), labelled.indices[&rank][0].clone());
    let [value, rival] = &labelled.texts[..] else { return Err(UnsupportedNode::Earlier) };
    let operand = format!("where({rival} {sign} {value}, 1, where({rival} == {value}, {} < {}, 0))", before.name, own.name);
    let expression = reduced("sum", &operand, &[&before]);
    let axes = kept.iter().map(|a| labelled.indices[a].clone()).collect();
    let ranks = node.define(Out::Part("rank"), axes, &expression, ElementType::I64);
    let mut results = vec![];
    for n in 0..2 {
        let own_labels: Vec<usize> = kept.iter().map(|a| if *a == along { rank } else { *a }).collect();
        let others: Vec<usize> = kept.iter().copied().filter(|a| *a != along).collect();
        let labelled = node.labelled(&[(x.clone(), own_labels.clone()), (ranks.clone(), own_labels)], &others)?;
        let from = labelled.indices[&rank][0].clone();
        let to = node.index(count);
        let value = if n == 0 { labelled.texts[0].clone() } else { from.name.clone() };
        let operand = format!("where({} == {}, {value}, 0)", labelled.texts[1], to.name);
        let expression = reduced("sum", &operand, &[&from]);
        let axes = kept.iter().map(|a| if *a == along { vec![to.clone()] } else { labelled.indices[a].clone() }).collect();
        let element = if n == 0 { x.element } else { ElementType::I64 };
        results.push(GraphValue::View(node.define(Out::Result(n), axes, &expression, element)));
    }
    Ok(results)
}
