//! Operators that move elements and compute nothing: most are views, whose places are arithmetic of indices.

use super::pointwise::one;
use crate::import::attribute::axis;
use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::fold::{broadcast, lengths, reshaped, slices};
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::step::{Out, SubscriptExpr, Term, at, literal};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[
    ("Concat", concat),
    ("ConstantOfShape", |n| {
        let shape = lengths(&n.numbers(0)?.unwrap_or_default())?;
        let tensor = n.proto.attribute.iter().find(|a| a.name == "value").and_then(|a| a.t.as_ref());
        let value = tensor.map(|t| crate::import::constant::ConstantTensor::read(t, std::path::Path::new(""))).transpose();
        let (element, value) = match value.map_err(UnsupportedNode::Form)? {
            Some(value) => (value.element, value.only().unwrap_or(0.0)),
            None => (ElementType::F32, 0.0),
        };
        Ok(vec![GraphValue::View(DigitView::number(value, element, &shape))])
    }),
    ("DepthToSpace", depth_to_space),
    ("Expand", |n| {
        let x = n.view(0)?;
        let wanted = lengths(&n.numbers(1)?.unwrap_or_default())?;
        let shape = broadcast(&x.shape(), &wanted)?;
        Ok(vec![GraphValue::View(x.expanded(&shape))])
    }),
    ("Flatten", |n| {
        let x = n.view(0)?;
        let rank = x.axes.len();
        let given = n.int("axis", 1);
        let at = if given == rank as i64 { rank } else { axis(given, rank.max(1))? };
        let shape = x.shape();
        let shape = [shape[..at].iter().product(), shape[at..].iter().product()];
        reshape(n, &x, &shape)
    }),
    ("Gather", gather),
    ("Pad", pad),
    ("Reshape", |n| {
        let x = n.view(0)?;
        let wanted = n.numbers(1)?.unwrap_or_default();
        let shape = reshaped(&x.shape(), &wanted, n.int("allowzero", 0) == 1)?;
        reshape(n, &x, &shape)
    }),
    ("Slice", slice),
    ("SpaceToDepth", space_to_depth),
    ("Split", split),
    ("Squeeze", |n| {
        let x = n.view(0)?;
        let axes = n.axes(1, x.axes.len())?;
        let axes = axes.unwrap_or_else(|| (0..x.axes.len()).filter(|a| x.axes[*a].size == 1).collect());
        if let Some(bad) = axes.iter().find(|a| x.axes[**a].size != 1) {
            return UnsupportedNode::form(format!("the axis {bad} has the size {}", x.axes[*bad].size));
        }
        Ok(vec![GraphValue::View(x.squeezed(&axes))])
    }),
    ("Tile", tile),
    ("Transpose", |n| {
        let x = n.view(0)?;
        let rank = x.axes.len();
        let order: Vec<usize> = match n.ints("perm") {
            Some(perm) => perm.iter().map(|p| axis(*p, rank)).collect::<Result<_, _>>()?,
            None => (0..rank).rev().collect(),
        };
        let mut sorted = order.clone();
        sorted.sort_unstable();
        if sorted != (0..rank).collect::<Vec<_>>() {
            return UnsupportedNode::form(format!("`perm` is {order:?}, which is no order of {rank} axes"));
        }
        Ok(vec![GraphValue::View(x.transposed(&order)?)])
    }),
    ("Trilu", |n| {
        let x = n.view(0)?;
        let k = n.numbers(1)?.and_then(|k| k.first().copied()).unwrap_or(0);
        let upper = n.int("upper", 1) != 0;
        let rank = x.axes.len();
        if rank < 2 {
            return UnsupportedNode::form("its input is no matrix");
        }
        let x = n.copied_if_parted(&x, rank - 2)?;
        let kept: Vec<usize> = (0..rank).collect();
        let labelled = n.labelled(&OnnxNode::aligned(std::slice::from_ref(&x), rank)?, &kept)?;
        let name = |axis: usize| labelled.indices[&axis].first().map_or("0".to_string(), |i| i.name.clone());
        let (row, column) = (name(rank - 2), name(rank - 1));
        let sign = if upper { ">=" } else { "<=" };
        let expression = format!("where({column} - {row} {sign} {}, {}, 0)", literal(k as f64, ElementType::I64), labelled.texts[0]);
        let axes = kept.iter().map(|a| labelled.indices[a].clone()).collect();
        Ok(vec![GraphValue::View(n.define(Out::Result(0), axes, &expression, x.element))])
    }),
    ("Unsqueeze", |n| {
        let x = n.view(0)?;
        let given = match n.numbers(1)? {
            Some(axes) => axes,
            None => n.ints("axes").unwrap_or_default(),
        };
        let rank = x.axes.len() + given.len();
        let axes = given.iter().map(|a| axis(*a, rank)).collect::<Result<Vec<_>, _>>()?;
        Ok(vec![GraphValue::View(x.unsqueezed(&axes)?)])
    }),
    ("EyeLike", |n| Err(n.unknown(0))),
    ("NonZero", |n| Err(n.unknown(0))),
    ("Range", |n| Err((0..3).find(|i| n.constant(*i).is_none()).map_or(UnsupportedNode::Operator, |i| n.unknown(i)))),
    ("Upsample", |_| UnsupportedNode::form("Resize takes its place since operator set 10; onnx.version_converter writes it so")),
];

impl OnnxNode<'_, '_> {
    /// The same value where the axes from one on are single digits.
    pub fn copied_if_parted(&mut self, view: &DigitView, from: usize) -> Result<DigitView, UnsupportedNode> {
        match view.axes[from..].iter().any(|axis| axis.digits.len() > 1) {
            true => self.copied(view, "joined"),
            false => Ok(view.clone()),
        }
    }
}

/// The same elements under another shape; where digits overlap, by way of a tensor of its own.
pub fn reshape(node: &mut OnnxNode, x: &DigitView, shape: &[usize]) -> Results {
    if let Some(view) = x.reshaped(shape) {
        return Ok(vec![GraphValue::View(view)]);
    }
    // All axes as one, which any shape divides.
    let flat = x.reshaped(&[x.elements()]).ok_or_else(|| UnsupportedNode::Form("its axes cannot be joined".into()))?;
    let flat = node.copied(&flat, "flat")?;
    let view = flat.reshaped(shape).ok_or_else(|| UnsupportedNode::Form("its axes cannot be joined".into()))?;
    Ok(vec![GraphValue::View(view)])
}

fn slice(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let (starts, ends) = (node.numbers(1)?.unwrap_or_default(), node.numbers(2)?.unwrap_or_default());
    let (axes, steps) = (node.numbers(3)?, node.numbers(4)?);
    let parts = slices(&x.shape(), &starts, &ends, axes.as_deref(), steps.as_deref())?;
    if parts.iter().any(|(_, _, count)| *count == 0) {
        return Ok(vec![node.empty(x.element, parts.iter().map(|(_, _, count)| *count).collect())]);
    }
    part(node, x, &parts).map(|view| vec![GraphValue::View(view)])
}

/// A part of each axis: start, step, number of places.
pub fn part(node: &mut OnnxNode, mut x: DigitView, parts: &[(i64, i64, usize)]) -> Result<DigitView, UnsupportedNode> {
    for (n, (start, step, count)) in parts.iter().enumerate() {
        x = match x.sliced(n, *start, *step, *count) {
            Some(view) => view,
            None => {
                let whole = node.copied(&x, "joined")?;
                whole.sliced(n, *start, *step, *count).ok_or_else(|| UnsupportedNode::Form("its axis cannot be divided".into()))?
            }
        };
    }
    Ok(x)
}

fn split(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let along = axis(node.int("axis", 0), x.axes.len())?;
    let size = x.axes[along].size;
    let count = node.proto.output.len();
    let sizes = match node.numbers(1)? {
        Some(sizes) => lengths(&sizes)?,
        None => {
            let parts = node.int("num_outputs", count as i64).max(1) as usize;
            let each = size.div_ceil(parts);
            (0..parts).map(|n| each.min(size.saturating_sub(n * each))).collect()
        }
    };
    if sizes.iter().sum::<usize>() != size || sizes.len() < count {
        return UnsupportedNode::form(format!("parts of {sizes:?} are no split of {size}"));
    }
    let mut results = vec![];
    let mut start = 0;
    for size in &sizes {
        if *size == 0 {
            let shape = x.axes.iter().enumerate().map(|(a, axis)| if a == along { 0 } else { axis.size }).collect();
            results.push(node.empty(x.element, shape));
            continue;
        }
        let parts: Vec<(i64, i64, usize)> =
            x.axes.iter().enumerate().map(|(a, axis)| if a == along { (start, 1, *size) } else { (0, 1, axis.size) }).collect();
        results.push(GraphValue::View(part(node, x.clone(), &parts)?));
        start += *size as i64;
    }
    Ok(results)
}

fn concat(node: &mut OnnxNode) -> Results {
    let mut operands = vec![];
    for n in 0..node.inputs.len() {
        let empty = node.constant(n).is_some_and(|c| c.elements() == 0);
        if !empty {
            operands.push(node.view(n)?);
        }
    }
    let Some(first) = operands.first().cloned() else { return Err(UnsupportedNode::Empty) };
    let rank = first.axes.len();
    let along = axis(node.int("axis", 0), rank)?;
    if let [only] = operands.as_slice() {
        return Ok(vec![GraphValue::View(only.clone())]);
    }
    joined(node, &operands, along, Out::Result(0)).map(|view| vec![GraphValue::View(view)])
}

/// Tensors one after the other along an axis.
pub fn joined(node: &mut OnnxNode, operands: &[DigitView], along: usize, out: Out) -> Result<DigitView, UnsupportedNode> {
    let rank = operands.first().map_or(0, |view| view.axes.len());
    let element = operands.first().map_or(ElementType::F32, |view| view.element);
    let mut whole = vec![];
    for view in operands {
        if view.axes.len() != rank {
            return UnsupportedNode::form("its inputs have different numbers of axes");
        }
        whole.push(if view.axes[along].digits.is_empty() || view.is_whole(along) { view.clone() } else { node.copied(view, "joined")? });
    }
    let total: usize = whole.iter().map(|view| view.axes[along].size).sum();
    // The other axes run together, the joined one has its own index.
    let labels: Vec<(DigitView, Vec<usize>)> =
        whole.iter().map(|view| (view.squeezed_out(along), (0..rank).filter(|a| *a != along).collect())).collect();
    let kept: Vec<usize> = (0..rank).filter(|a| *a != along).collect();
    let labelled = node.labelled(&labels, &kept)?;
    let index = node.index(total);
    let mut texts = vec![];
    let sizes: Vec<usize> = whole.iter().map(|view| view.axes[along].size).collect();
    node.import.recipe.derive(total, &sizes, |name| {
        sizes.iter().map(|n| if *n == 1 { "1".to_string() } else { name(*n) }).collect::<Vec<_>>().join(" + ")
    });
    let (mut place, mut end) = (at(&index), vec![]);
    for view in &whole {
        let mut places = node.places(view, &(0..rank).collect::<Vec<_>>(), &labelled);
        if let [digit] = view.axes[along].digits.as_slice() {
            places.insert(digit.id, place.clone());
        }
        let number = view.axes[along].digits.is_empty();
        let text = node.text(view, &places, if number { None } else { Some("0") });
        let size = node.import.recipe.sized(view.axes[along].size);
        end.push(size.as_ref().map_or("1".to_string(), |dim| format!("size({dim})")));
        place = match size {
            Some(dim) => place.plus(&SubscriptExpr::of(Term::Size(dim)), -1),
            None => place.plus(&SubscriptExpr::number(1), -1),
        };
        texts.push((end.join(" + "), text));
    }
    let expression = chosen(&texts, &index.name);
    let axes = (0..rank).map(|a| if a == along { vec![index.clone()] } else { labelled.indices[&a].clone() }).collect();
    Ok(node.define(out, axes, &expression, element))
}

/// The text of the first part that ends behind an index, found by halving.
fn chosen(parts: &[(String, String)], index: &str) -> String {
    match parts {
        [] => "0".into(),
        [(_, text)] => text.clone(),
        several => {
            let (before, after) = several.split_at(several.len() / 2);
            let end = before.last().map_or("0", |(end, _)| end);
            format!("where({index} < {end}, {}, {})", chosen(before, index), chosen(after, index))
        }
    }
}

fn pad(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let rank = x.axes.len();
    let given = match node.numbers(1)? {
        Some(pads) => pads,
        None => node.ints("pads").unwrap_or_default(),
    };
    let axes = node.axes(3, rank)?.unwrap_or_else(|| (0..rank).collect());
    if given.len() != 2 * axes.len() {
        return UnsupportedNode::form(format!("it has {} paddings for {} axes", given.len(), axes.len()));
    }
    let mut pads = vec![(0i64, 0i64); rank];
    for (n, axis) in axes.iter().enumerate() {
        pads[*axis] = (given[n], given[n + axes.len()]);
    }
    let value = match node.constant(2) {
        Some(constant) if constant.elements() == 1 => literal(constant.reals()[0], constant.element),
        _ => "0".into(),
    };
    // A value that the model computes is chosen outside of the tensor.
    let chosen = if node.constant(2).is_none() { node.optional(2)? } else { None };
    let chosen = chosen.map(|value| value.squeezed(&(0..value.axes.len()).collect::<Vec<_>>()));
    let mode = node.string("mode", "constant").to_string();
    let moved: Vec<usize> = (0..rank).filter(|a| pads[*a] != (0, 0)).collect();
    if moved.is_empty() {
        return Ok(vec![GraphValue::View(x)]);
    }
    if mode != "constant" {
        return mirrored(node, &x, &pads, &mode);
    }
    let element = x.element;
    let x = node.whole(&x, moved.iter().copied())?;
    let x = if x.axes.iter().any(|axis| axis.digits.len() > 1) { node.copied(&x, "joined")? } else { x };
    node.begin();
    let mut axes = vec![];
    let mut places = vec![];
    for (axis, (before, after)) in x.axes.iter().zip(&pads) {
        let size = axis.size as i64 + before + after;
        if size <= 0 {
            return Err(UnsupportedNode::Empty);
        }
        if axis.digits.is_empty() {
            axes.push(vec![]);
            places.push(SubscriptExpr::number(0));
            continue;
        }
        let index = node.index(size as usize);
        places.push(at(&index).plus(&SubscriptExpr::number(1), -before));
        axes.push(vec![index]);
    }
    let mut text = node.read(&x, &places, Some(&value));
    if let Some(chosen) = chosen {
        let value = node.read(&chosen, &[], None);
        for (n, (axis, index)) in x.axes.iter().zip(&axes).enumerate() {
            if let ([index], true) = (index.as_slice(), pads[n] != (0, 0)) {
                let (low, high) = (pads[n].0, pads[n].0 + axis.size as i64);
                let low = literal(low as f64, ElementType::I64);
                text = format!("where({0} >= {low}, where({0} < {high}, {text}, {value}), {value})", index.name);
            }
        }
    }
    one(Ok(node.define(Out::Result(0), axes, &text, element)))
}

/// Padding that repeats what is inside: the place of each element is a minimum of distances, which a list of places says.
fn mirrored(node: &mut OnnxNode, x: &DigitView, pads: &[(i64, i64)], mode: &str) -> Results {
    let mut x = x.clone();
    for (along, (before, after)) in pads.iter().enumerate().filter(|(_, pads)| **pads != (0, 0)) {
        let size = x.axes[along].size as i64;
        let rows: Result<Vec<i64>, UnsupportedNode> = (-before..size + after)
            .map(|place| {
                Ok(match mode {
                    "edge" => place.clamp(0, size - 1),
                    "wrap" => place.rem_euclid(size),
                    "reflect" if size == 1 => 0,
                    "reflect" => {
                        let around = place.rem_euclid(2 * (size - 1));
                        if around < size { around } else { 2 * (size - 1) - around }
                    }
                    other => {
                        return UnsupportedNode::form(format!("the mode `{other}` is not supported; constant, edge, reflect and wrap are"));
                    }
                })
            })
            .collect();
        let rows = rows?;
        x = picked(node, &x, along, &rows, "padded")?;
    }
    let last = node.copied_as(Out::Result(0), &x)?;
    Ok(vec![GraphValue::View(last)])
}

/// The places of an axis in another order: a view where they are equally far apart, else by a parameter of places.
pub fn picked(node: &mut OnnxNode, x: &DigitView, along: usize, rows: &[i64], suffix: &'static str) -> Result<DigitView, UnsupportedNode> {
    let step = if rows.len() > 1 { rows[1] - rows[0] } else { 1 };
    if step != 0
        && rows.windows(2).all(|pair| pair[1] - pair[0] == step)
        && let Some(view) = x.sliced(along, rows[0], step, rows.len())
    {
        return Ok(view);
    }
    // Runs of places are parts that stand one after the other.
    let mut runs: Vec<(i64, i64, usize)> = vec![];
    for row in rows {
        match runs.last_mut() {
            Some((start, step, count)) if *count == 1 && (row - *start).abs() == 1 => (*step, *count) = (row - *start, 2),
            Some((start, step, count)) if *count > 1 && *start + *step * *count as i64 == *row => *count += 1,
            _ => runs.push((*row, 1, 1)),
        }
    }
    if runs.len() <= 8 {
        let whole = if x.axes[along].digits.len() > 1 { node.copied(x, "joined")? } else { x.clone() };
        let mut parts = vec![];
        for (start, step, count) in runs {
            let own = whole.axes.iter().enumerate().map(|(a, axis)| if a == along { (start, step, count) } else { (0, 1, axis.size) });
            parts.push(part(node, whole.clone(), &own.collect::<Vec<_>>())?);
        }
        return joined(node, &parts, along, Out::Part(suffix));
    }
    let places = crate::import::constant::ConstantTensor::list(rows.to_vec());
    let GraphValue::Known(known) = node.import.known(&format!("{}_places", node.proto.output[0]), places) else {
        return Err(UnsupportedNode::Earlier);
    };
    let places = node.import.parameter(&known)?;
    super::gather::rows(node, x, along, &places, Out::Part(suffix))
}

fn tile(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let times = lengths(&node.numbers(1)?.unwrap_or_default())?;
    if times.len() != x.axes.len() {
        return UnsupportedNode::form("its repeats are not one for each axis");
    }
    if times.contains(&0) {
        return Err(UnsupportedNode::Empty);
    }
    // Each axis is repeated as an axis of its own in front of it, and joined with it.
    let rank = x.axes.len();
    let spread = x.unsqueezed(&(0..rank).map(|n| 2 * n).collect::<Vec<_>>())?;
    let wide: Vec<usize> = times.iter().zip(x.shape()).flat_map(|(times, size)| [*times, size]).collect();
    let shape: Vec<usize> = times.iter().zip(x.shape()).map(|(times, size)| times * size).collect();
    reshape(node, &spread.expanded(&wide), &shape)
}

/// [n, c, h, w] → [n, c / b², h · b, w · b]
fn depth_to_space(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let b = node.int("blocksize", 1).max(1) as usize;
    let [n, c, h, w] = x.shape()[..] else { return UnsupportedNode::form("its input has no four axes") };
    let columns_first = node.string("mode", "DCR") == "CRD";
    let (split, order) = match columns_first {
        true => ([n, c / (b * b), b, b, h, w], [0, 1, 4, 2, 5, 3]),
        false => ([n, b, b, c / (b * b), h, w], [0, 3, 4, 1, 5, 2]),
    };
    let GraphValue::View(parts) = reshape(node, &x, &split)?.remove(0) else { return Err(UnsupportedNode::Earlier) };
    reshape(node, &parts.transposed(&order)?, &[n, c / (b * b), h * b, w * b])
}

fn space_to_depth(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let b = node.int("blocksize", 1).max(1) as usize;
    let [n, c, h, w] = x.shape()[..] else { return UnsupportedNode::form("its input has no four axes") };
    let columns_first = node.string("mode", "DCR") == "CRD";
    let GraphValue::View(parts) = reshape(node, &x, &[n, c, h / b, b, w / b, b])?.remove(0) else { return Err(UnsupportedNode::Earlier) };
    let order = if columns_first { [0, 1, 3, 5, 2, 4] } else { [0, 3, 5, 1, 2, 4] };
    reshape(node, &parts.transposed(&order)?, &[n, c * b * b, h / b, w / b])
}

fn gather(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let along = axis(node.int("axis", 0), x.axes.len())?;
    let size = x.axes[along].size as i64;
    if let Some(places) = node.constant(1) {
        let shape = places.shape.clone();
        let rows: Vec<i64> = places.wholes().into_iter().map(|p| if p < 0 { p + size } else { p }).collect();
        if let Some(bad) = rows.iter().find(|p| !(0..size).contains(*p)) {
            return UnsupportedNode::form(format!("it reads place {bad} of an axis of {size}"));
        }
        if shape.len() <= 1 {
            let view = picked(node, &x, along, &rows, "picked")?;
            let view = if shape.is_empty() { view.squeezed(&[along]) } else { view };
            return Ok(vec![GraphValue::View(view)]);
        }
    }
    let places = node.view(1)?;
    let places = super::gather::from_the_front(node, &places, size)?;
    one(super::gather::rows(node, &x, along, &places, Out::Result(0)))
}
