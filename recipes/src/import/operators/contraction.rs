//! Sums of products over shared axes: MatMul, Gemm, Einsum.

use super::pointwise::{one, wrapped};
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::recipe::StepIndex;
use crate::import::step::{Out, summed};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;
use indexmap::IndexMap;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[("Einsum", einsum), ("Gemm", gemm), ("MatMul", matmul), ("MatMulInteger", matmul_integer)];

/// The sum of products over all labels that are not kept.
pub fn contraction(
    node: &mut OnnxNode,
    out: Out,
    operands: &[(DigitView, Vec<usize>)],
    kept: &[usize],
) -> Result<DigitView, UnsupportedNode> {
    let element = operands.first().map_or(crate::import::element::ElementType::F32, |(view, _)| view.element);
    let labelled = node.labelled(operands, kept)?;
    let over: Vec<StepIndex> = labelled.indices.iter().filter(|(label, _)| !kept.contains(*label)).flat_map(|(_, i)| i.clone()).collect();
    let factors: Vec<&str> = labelled.texts.iter().map(String::as_str).collect();
    let axes = kept.iter().map(|label| labelled.indices[label].clone()).collect();
    let expression = wrapped(summed(&factors, &over), element);
    Ok(node.define(out, axes, &expression, element))
}

/// Labels of a product of two stacks of matrices: rows, columns and the shared axis, then the axes in front.
pub fn product(node: &mut OnnxNode, out: Out, a: &DigitView, b: &DigitView) -> Result<DigitView, UnsupportedNode> {
    const ROW: usize = 100;
    const SHARED: usize = 101;
    const COLUMN: usize = 102;
    let (ra, rb) = (a.axes.len(), b.axes.len());
    if ra == 0 || rb == 0 {
        return UnsupportedNode::form("an operand is a single number");
    }
    let rank = ra.max(rb).max(2) - 2;
    let front = |own: usize| (rank - own.saturating_sub(2)..rank).collect::<Vec<usize>>();
    let (mut la, mut lb) = (front(ra), front(rb));
    la.extend(if ra == 1 { vec![SHARED] } else { vec![ROW, SHARED] });
    lb.extend(if rb == 1 { vec![SHARED] } else { vec![SHARED, COLUMN] });
    let mut kept: Vec<usize> = (0..rank).collect();
    if ra > 1 {
        kept.push(ROW);
    }
    if rb > 1 {
        kept.push(COLUMN);
    }
    if a.axes[ra - 1].size != b.axes[if rb == 1 { 0 } else { rb - 2 }].size {
        return UnsupportedNode::form(format!("shapes {:?} and {:?} have no product", a.shape(), b.shape()));
    }
    contraction(node, out, &[(a.clone(), la), (b.clone(), lb)], &kept)
}

fn matmul(node: &mut OnnxNode) -> Results {
    let (a, b) = (node.view(0)?, node.view(1)?);
    one(product(node, Out::Result(0), &a, &b))
}

fn matmul_integer(node: &mut OnnxNode) -> Results {
    let (mut a, mut b) = (node.view(0)?, node.view(1)?);
    let element = crate::import::element::ElementType::I32;
    if let Some(zero) = node.optional(2)? {
        let zero = if zero.axes.len() == 1 && zero.axes[0].size > 1 { zero.unsqueezed(&[1])? } else { zero };
        a = node.pointwise(Out::Part("a"), &[a, zero], element, |t| format!("{} - {}", t[0], t[1]))?;
    }
    if let Some(zero) = node.optional(3)? {
        b = node.pointwise(Out::Part("b"), &[b, zero], element, |t| format!("{} - {}", t[0], t[1]))?;
    }
    one(product(node, Out::Result(0), &a.typed(element), &b.typed(element)))
}

fn gemm(node: &mut OnnxNode) -> Results {
    let (a, b) = (node.view(0)?, node.view(1)?);
    let a = if node.int("transA", 0) != 0 { a.transposed(&[1, 0])? } else { a };
    let b = if node.int("transB", 0) != 0 { b.transposed(&[1, 0])? } else { b };
    let (alpha, beta) = (super::pointwise::real(node, "alpha", 1.0), super::pointwise::real(node, "beta", 1.0));
    if a.axes.len() != 2 || b.axes.len() != 2 || a.axes[1].size != b.axes[0].size {
        return UnsupportedNode::form(format!("shapes {:?} and {:?} have no product", a.shape(), b.shape()));
    }
    let element = a.element;
    let mut operands = vec![(a, vec![0, 2]), (b, vec![2, 1])];
    if let Some(c) = node.optional(2)? {
        let rank = c.axes.len();
        operands.push((c, (2 - rank.min(2)..2).collect()));
    }
    let kept = [0, 1];
    let labelled = node.labelled(&operands, &kept)?;
    let over = labelled.indices[&2].clone();
    let mut factors: Vec<&str> = labelled.texts[..2].iter().map(String::as_str).collect();
    if alpha != "1" {
        factors.insert(0, &alpha);
    }
    let mut expression = summed(&factors, &over);
    match labelled.texts.get(2) {
        Some(c) if beta == "1" => expression = format!("{expression} + {c}"),
        Some(c) => expression = format!("{expression} + {beta} * {c}"),
        None => {}
    }
    let axes = kept.iter().map(|label| labelled.indices[label].clone()).collect();
    Ok(vec![GraphValue::View(node.define(Out::Result(0), axes, &expression, element))])
}

fn einsum(node: &mut OnnxNode) -> Results {
    let equation: String = node.string("equation", "").chars().filter(|c| !c.is_whitespace()).collect();
    let (left, right) = match equation.split_once("->") {
        Some((left, right)) => (left.to_string(), Some(right.to_string())),
        None => (equation.clone(), None),
    };
    let terms: Vec<&str> = left.split(',').collect();
    if terms.len() != node.inputs.len() {
        return UnsupportedNode::form(format!("`{equation}` has {} operands, and the node {}", terms.len(), node.inputs.len()));
    }
    let mut letters: IndexMap<char, usize> = IndexMap::new();
    let mut counts: IndexMap<char, usize> = IndexMap::new();
    // Labels of an ellipsis are counted from its end, below all letters.
    const LETTERS: usize = 64;
    let mut most = 0;
    let mut operands = vec![];
    for (n, term) in terms.iter().enumerate() {
        let view = node.view(n)?;
        let named = term.replace("...", "").chars().count();
        let extra = view.axes.len().checked_sub(named).filter(|extra| *extra == 0 || term.contains("..."));
        let Some(extra) = extra else {
            return UnsupportedNode::form(format!("`{term}` has other axes than its operand, which has {}", view.axes.len()));
        };
        most = most.max(extra);
        let mut labels = vec![];
        let mut rest = term.chars().peekable();
        while let Some(c) = rest.next() {
            if c == '.' {
                rest.next();
                rest.next();
                labels.extend((LETTERS - extra)..LETTERS);
                continue;
            }
            if !c.is_ascii_alphabetic() {
                return UnsupportedNode::form(format!("`{c}` has no meaning in `{equation}`"));
            }
            let next = LETTERS + letters.len();
            labels.push(*letters.entry(c).or_insert(next));
            *counts.entry(c).or_insert(0) += 1;
        }
        operands.push((view, labels));
    }
    let mut kept: Vec<usize> = vec![];
    match right {
        Some(right) => {
            let mut rest = right.chars();
            while let Some(c) = rest.next() {
                if c == '.' {
                    rest.next();
                    rest.next();
                    kept.extend((LETTERS - most)..LETTERS);
                } else {
                    kept.push(
                        *letters.get(&c).ok_or_else(|| UnsupportedNode::Form(format!("`{c}` stands in no operand of `{equation}`")))?,
                    );
                }
            }
        }
        None => {
            kept.extend((LETTERS - most)..LETTERS);
            let mut once: Vec<char> = counts.iter().filter(|(_, n)| **n == 1).map(|(c, _)| *c).collect();
            once.sort_unstable();
            kept.extend(once.iter().map(|c| letters[c]));
        }
    }
    one(contraction(node, Out::Result(0), &operands, &kept))
}
