//! Rotary positions: pairs of elements that are turned by an angle of their place.

use super::layout::{joined, part, reshape};
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::step::Out;
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[("RotaryEmbedding", rotary)];

fn one_of(values: Vec<GraphValue>) -> Result<DigitView, UnsupportedNode> {
    match values.into_iter().next() {
        Some(GraphValue::View(view)) => Ok(view),
        _ => Err(UnsupportedNode::Earlier),
    }
}

/// [batch, head, place, width], or [batch, place, head · width]; sine and cosine of each place, or of all places with a list of them.
fn rotary(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let flat = x.axes.len() == 3;
    let heads = node.int("num_heads", 0).max(0) as usize;
    let x = match x.shape()[..] {
        [batch, places, hidden] if heads > 0 && hidden % heads == 0 => one_of(reshape(node, &x, &[batch, places, heads, hidden / heads])?)?,
        [_, _, _, _] => x.transposed(&[0, 2, 1, 3])?,
        ref other => return UnsupportedNode::form(format!("an operand of the shape {other:?} has no {heads} heads")),
    };
    // From here on [batch, place, head, width].
    let [batch, places, heads, width] = x.shape()[..] else { return Err(UnsupportedNode::Earlier) };
    let turned = match node.int("rotary_embedding_dim", 0) {
        0 => width,
        n => n as usize,
    };
    if turned > width || turned % 2 != 0 {
        return UnsupportedNode::form(format!("{turned} of {width} elements cannot be turned in pairs"));
    }
    let half = turned / 2;
    let mut angles = vec![];
    for n in [1, 2] {
        let table = node.view(n)?;
        let view = match node.optional(3)? {
            Some(positions) => {
                let size = table.axes[0].size as i64;
                let positions = super::gather::from_the_front(node, &positions, size)?;
                super::gather::rows(node, &table, 0, &positions, Out::Part(if n == 1 { "cos" } else { "sin" }))?
            }
            None => table,
        };
        if view.shape()[view.axes.len() - 1] != half {
            return UnsupportedNode::form(format!("its angles are not {half} for each place"));
        }
        angles.push(view.unsqueezed(&[view.axes.len() - 1])?);
    }
    let cut = |node: &mut OnnxNode, start: usize, step: usize, count: usize| -> Result<DigitView, UnsupportedNode> {
        let parts = [(0, 1, batch), (0, 1, places), (0, 1, heads), (start as i64, step as i64, count)];
        part(node, x.clone(), &parts)
    };
    let interleaved = node.int("interleaved", 0) != 0;
    let (first, second) = match interleaved {
        true => (cut(node, 0, 2, half)?, cut(node, 1, 2, half)?),
        false => (cut(node, 0, 1, half)?, cut(node, half, 1, half)?),
    };
    let element = x.element;
    let operands = [first, second, angles[0].clone(), angles[1].clone()];
    let real = node.pointwise(Out::Part("first"), &operands, element, |t| format!("{} * {} - {} * {}", t[2], t[0], t[3], t[1]))?;
    let other = node.pointwise(Out::Part("second"), &operands, element, |t| format!("{} * {} + {} * {}", t[3], t[0], t[2], t[1]))?;
    let mut whole = match interleaved {
        true => {
            let pairs = [real.unsqueezed(&[4])?, other.unsqueezed(&[4])?];
            let pairs = joined(node, &pairs, 4, Out::Part("pairs"))?;
            one_of(reshape(node, &pairs, &[batch, places, heads, turned])?)?
        }
        false => joined(node, &[real, other], 3, Out::Part("turned"))?,
    };
    if turned < width {
        let rest = cut(node, turned, 1, width - turned)?;
        whole = joined(node, &[whole, rest], 3, Out::Part("whole"))?;
    }
    match flat {
        true => reshape(node, &whole, &[batch, places, heads * width]),
        false => Ok(vec![GraphValue::View(whole.transposed(&[0, 2, 1, 3])?)]),
    }
}
