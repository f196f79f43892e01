//! Reductions over axes, and what picks places along one.

use super::pointwise::one;
use super::pointwise::{powered, root};
use crate::import::attribute::axis;
use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::recipe::StepIndex;
use crate::import::step::{Out, reduced};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[
    ("ArgMax", |n| place(n, "argmax")),
    ("ArgMin", |n| place(n, "argmin")),
    ("Hardmax", hardmax),
    ("LogSoftmax", |n| softmax(n, "log_softmax")),
    ("ReduceL1", |n| reduce(n, |x| powered(x, 1), |x, over| reduced("sum", &powered(x, 1), over))),
    ("ReduceL2", |n| reduce(n, |x| powered(x, 1), |x, over| root(&reduced("sum", &powered(x, 2), over), 2))),
    ("ReduceLogSum", |n| reduce(n, |x| format!("log({x})"), |x, over| format!("log({})", reduced("sum", x, over)))),
    ("ReduceLogSumExp", |n| {
        reduce(n, str::to_string, |x, over| if over.is_empty() { x.to_string() } else { reduced("logsumexp", x, over) })
    }),
    ("ReduceMax", |n| reduce(n, str::to_string, |x, over| reduced("max", x, over))),
    ("ReduceMean", |n| reduce(n, str::to_string, |x, over| reduced("mean", x, over))),
    ("ReduceMin", |n| reduce(n, str::to_string, |x, over| reduced("min", x, over))),
    ("ReduceProd", product),
    ("ReduceSum", |n| reduce(n, str::to_string, |x, over| reduced("sum", x, over))),
    ("ReduceSumSquare", |n| reduce(n, |x| powered(x, 2), |x, over| reduced("sum", &powered(x, 2), over))),
    ("Softmax", |n| softmax(n, "softmax")),
];

/// A step that reduces some axes of a value, which stay with size 1 if they are kept.
pub fn over(
    node: &mut OnnxNode,
    out: Out,
    x: &DigitView,
    axes: &[usize],
    keep: bool,
    f: impl FnOnce(&str, &[&StepIndex]) -> String,
) -> Result<DigitView, UnsupportedNode> {
    let rank = x.axes.len();
    let kept: Vec<usize> = (0..rank).filter(|a| !axes.contains(a)).collect();
    let labelled = node.labelled(&[(x.clone(), (0..rank).collect())], &kept)?;
    let reduced: Vec<&StepIndex> = axes.iter().flat_map(|a| &labelled.indices[a]).collect();
    let expression = f(&labelled.texts[0], &reduced);
    let left = |a: usize| match axes.contains(&a) {
        true if keep => Some(vec![]),
        true => None,
        false => Some(labelled.indices[&a].clone()),
    };
    let left = (0..rank).filter_map(left).collect();
    Ok(node.define(out, left, &expression, x.element))
}

/// The axes that a reduction names; `None` where it reduces none.
fn axes_of(node: &OnnxNode, rank: usize) -> Result<Option<Vec<usize>>, UnsupportedNode> {
    let given = node.axes(1, rank)?.filter(|axes| !axes.is_empty());
    match given {
        Some(mut axes) => {
            axes.sort_unstable();
            axes.dedup();
            Ok(Some(axes))
        }
        None if node.int("noop_with_empty_axes", 0) != 0 => Ok(None),
        None => Ok(Some((0..rank).collect())),
    }
}

/// A reduction; `each` is what it makes of single elements where it reduces nothing.
fn reduce(node: &mut OnnxNode, each: fn(&str) -> String, f: impl FnOnce(&str, &[&StepIndex]) -> String) -> Results {
    let x = node.view(0)?;
    let keep = node.int("keepdims", 1) != 0;
    match axes_of(node, x.axes.len())? {
        Some(axes) => {
            let x = if x.axes.iter().any(|a| a.size == 0) { return Err(UnsupportedNode::Empty) } else { x };
            one(over(node, Out::Result(0), &x, &axes, keep, f))
        }
        None => {
            let element = x.element;
            one(node.pointwise(Out::Result(0), &[x], element, |t| each(&t[0])))
        }
    }
}

/// Factors that a product is written out with.
pub const FACTORS: usize = 64;

/// A recipe has no product over an axis: the factors are written out.
fn product(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let keep = node.int("keepdims", 1) != 0;
    let Some(axes) = axes_of(node, x.axes.len())? else { return Ok(vec![GraphValue::View(x)]) };
    let count: usize = axes.iter().map(|a| x.axes[*a].size).product();
    if count > FACTORS {
        return UnsupportedNode::form(format!("a product of {count} factors is written out, and {FACTORS} are the most"));
    }
    let mut parts = vec![x.clone()];
    for a in &axes {
        let size = x.axes[*a].size;
        parts = parts
            .iter()
            .flat_map(|part| (0..size as i64).map(move |n| part.sliced(*a, n, 1, 1)))
            .collect::<Option<_>>()
            .ok_or(UnsupportedNode::Form("its axes cannot be parted".into()))?;
    }
    let element = x.element;
    let parts: Vec<DigitView> = parts.iter().map(|part| if keep { part.clone() } else { part.squeezed(&axes) }).collect();
    one(node.pointwise(Out::Result(0), &parts, element, |t| t.join(" * ")))
}

fn softmax(node: &mut OnnxNode, operator: &str) -> Results {
    let x = node.view(0)?;
    let along = axis(node.int("axis", -1), x.axes.len())?;
    one(along_axis(node, Out::Result(0), &x, along, |t, index| match index {
        Some(index) => format!("{operator}({t}, over: {})", index.name),
        None if operator == "softmax" => format!("1 + 0 * {t}"),
        None => format!("0 * {t}"),
    }))
}

/// A step whose value depends on all places along one axis, and has that axis.
pub fn along_axis(
    node: &mut OnnxNode,
    out: Out,
    x: &DigitView,
    along: usize,
    f: impl FnOnce(&str, Option<&StepIndex>) -> String,
) -> Result<DigitView, UnsupportedNode> {
    let x = if x.axes[along].digits.len() > 1 { node.copied(x, "joined")? } else { x.clone() };
    let rank = x.axes.len();
    let kept: Vec<usize> = (0..rank).collect();
    let labelled = node.labelled(&[(x.clone(), kept.clone())], &kept)?;
    let expression = f(&labelled.texts[0], labelled.indices[&along].first());
    let axes = kept.iter().map(|a| labelled.indices[a].clone()).collect();
    Ok(node.define(out, axes, &expression, x.element))
}

fn hardmax(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let along = axis(node.int("axis", -1), x.axes.len())?;
    let places = chosen(node, Out::Part("place"), &x, along, true, "argmax", false)?;
    let x = if x.axes[along].digits.len() > 1 { node.copied(&x, "joined")? } else { x };
    let element = x.element;
    let rank = x.axes.len();
    let kept: Vec<usize> = (0..rank).collect();
    let labelled = node.labelled(&[(x.clone(), kept.clone()), (places, kept.clone())], &kept)?;
    let index = labelled.indices[&along].first().map_or("0".into(), |i| i.name.clone());
    let axes = kept.iter().map(|a| labelled.indices[a].clone()).collect();
    let expression = format!("{index} == {}", labelled.texts[1]);
    Ok(vec![GraphValue::View(node.define(Out::Result(0), axes, &expression, element))])
}

fn place(node: &mut OnnxNode, operator: &str) -> Results {
    let x = node.view(0)?;
    let along = axis(node.int("axis", 0), x.axes.len())?;
    let keep = node.int("keepdims", 1) != 0;
    let last = node.int("select_last_index", 0) != 0;
    one(chosen(node, Out::Result(0), &x, along, keep, operator, last))
}

/// The place of the largest or smallest element along an axis, the first or the last of equal ones.
fn chosen(
    node: &mut OnnxNode,
    out: Out,
    x: &DigitView,
    along: usize,
    keep: bool,
    operator: &str,
    last: bool,
) -> Result<DigitView, UnsupportedNode> {
    let x = if x.axes[along].digits.len() > 1 { node.copied(x, "joined")? } else { x.clone() };
    let size = x.axes[along].size;
    let x = match last {
        true => {
            x.sliced(along, size as i64 - 1, -1, size).ok_or_else(|| UnsupportedNode::Form("its axis cannot be turned round".into()))?
        }
        false => x,
    };
    let found = over(node, out, &x, &[along], keep, |t, over| match over {
        [] => format!("0 * {t}"),
        over if last => format!("{} - {}", size - 1, reduced(operator, t, over)),
        over => reduced(operator, t, over),
    })?;
    Ok(found.typed(ElementType::I64))
}
