//! Whole numbers that stand for real ones, and shifts of bits.

use super::pointwise::{one, rounded, wrapped};
use crate::import::attribute::axis;
use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::step::{Out, literal};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[("BitShift", shift), ("DequantizeLinear", dequantize), ("QuantizeLinear", quantize)];

/// A bit to the left is a factor of 2. A shift by less than 0 or by all bits leaves the sign alone.
fn shift(node: &mut OnnxNode) -> Results {
    let operands = [node.view(0)?, node.view(1)?];
    let element = operands[0].element;
    let left = node.string("direction", "LEFT") == "LEFT";
    let bits = 8 * element.bytes();
    one(node.pointwise(Out::Result(0), &operands, element, |t| {
        let (x, by) = (&t[0], &t[1]);
        let product = format!("{x} * pow(2, {by})");
        let moved = match (left, element) {
            (false, _) => format!("floor({x} / pow(2, {by}))"),
            (true, ElementType::I32) => format!("{product} - 4294967296 * floor(({product} + 2147483648) / 4294967296)"),
            (true, _) => wrapped(product, element),
        };
        let otherwise = if left { "0".to_string() } else { format!("where({x} < 0, -1, 0)") };
        format!("where(({by} >= 0) * ({by} < {bits}), {moved}, {otherwise})")
    }))
}

/// Scale and zero of each element: one for all, one for each place of an axis, or one for each block of places.
fn scales(node: &mut OnnxNode, x: &DigitView) -> Result<(DigitView, Option<DigitView>), UnsupportedNode> {
    let rank = x.axes.len();
    let block = node.int("block_size", 0);
    let (scale, zero) = (node.view(1)?, node.optional(2)?);
    let fitted = |view: DigitView| -> Result<DigitView, UnsupportedNode> {
        if view.elements() == 1 {
            return Ok(view.squeezed(&(0..view.axes.len()).collect::<Vec<_>>()));
        }
        let along = axis(node.int("axis", 1), rank)?;
        if block == 0 {
            if view.axes.len() != 1 {
                return UnsupportedNode::form("its scale has several axes and no blocks");
            }
            let around: Vec<usize> = (0..rank).filter(|a| *a != along).collect();
            return view.unsqueezed(&around);
        }
        let size = x.axes[along].size;
        let (count, block) = (view.axes.get(along).map_or(0, |a| a.size), block as usize);
        if view.axes.len() != rank || count * block != size {
            return UnsupportedNode::form(format!("{count} blocks of {block} are no {size} places"));
        }
        let mut shape = view.shape();
        shape.insert(along + 1, block);
        let spread = view.unsqueezed(&[along + 1])?.expanded(&shape);
        let joined: Vec<usize> = (0..rank).map(|a| if a == along { size } else { spread.axes[a + usize::from(a > along)].size }).collect();
        spread.reshaped(&joined).ok_or_else(|| UnsupportedNode::Form("its blocks cannot be joined".into()))
    };
    let scale = fitted(scale)?;
    let zero = zero.map(fitted).transpose()?;
    Ok((scale, zero))
}

fn dequantize(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let (scale, zero) = scales(node, &x)?;
    let element = scale.element;
    let operands: Vec<DigitView> = [x, scale].into_iter().chain(zero).collect();
    one(node.pointwise(Out::Result(0), &operands, element, |t| match t.get(2) {
        Some(zero) => format!("({} - {zero}) * {}", t[0], t[1]),
        None => format!("{} * {}", t[0], t[1]),
    }))
}

fn quantize(node: &mut OnnxNode) -> Results {
    let x = node.view(0)?;
    let (scale, zero) = scales(node, &x)?;
    let asked = node.int("output_dtype", 0);
    let element = match (&zero, asked) {
        (Some(zero), _) => zero.element,
        (None, 0) => ElementType::U8,
        (None, number) => ElementType::of(number).or_else(|name| UnsupportedNode::form(format!("recipes have no type {name}")))?,
    };
    let (low, high) = match element {
        ElementType::U8 => (0.0, 255.0),
        ElementType::I8 => (-128.0, 127.0),
        ElementType::U16 => (0.0, 65535.0),
        ElementType::I16 => (-32768.0, 32767.0),
        ElementType::I32 => (-2147483648.0, 2147483647.0),
        other => return UnsupportedNode::form(format!("results of the type {} are not supported", other.name())),
    };
    let operands: Vec<DigitView> = [x, scale].into_iter().chain(zero).collect();
    let [low, high] = [low, high].map(|bound| literal(bound, ElementType::I64));
    let quotient = node.pointwise(Out::Part("quotient"), &operands[..2], ElementType::F64, |t| format!("{} / {}", t[0], t[1]))?;
    let operands: Vec<DigitView> = [quotient].into_iter().chain(operands.into_iter().skip(2)).collect();
    one(node.pointwise(Out::Result(0), &operands, element, |t| {
        let whole = rounded(&t[0]);
        let moved = t.get(1).map_or(whole.clone(), |zero| format!("{whole} + {zero}"));
        format!("min(max({moved}, {low}), {high})")
    }))
}
