//! Reads by places that other tensors hold.

use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::node::OnnxNode;
use crate::import::step::{Out, SubscriptExpr};
use crate::import::view::{DigitView, ElementSource};
use indexmap::IndexMap;

/// Places that may be counted from the end, counted from the front.
pub fn from_the_front(node: &mut OnnxNode, places: &DigitView, size: i64) -> Result<DigitView, UnsupportedNode> {
    if let ElementSource::Number(place) = places.source {
        let place = if place < 0.0 { place + size as f64 } else { place };
        return Ok(DigitView { source: ElementSource::Number(place), ..places.clone() });
    }
    if let ElementSource::Tensor { name, .. } = &places.source {
        node.import.recipe.limit(name, if places.element.is_signed() { -size } else { 0 }, size);
    }
    if !places.element.is_signed() {
        return Ok(places.clone());
    }
    node.pointwise(Out::Part("places"), std::slice::from_ref(places), ElementType::I64, |t| {
        format!("where({0} < 0, {0} + {size}, {0})", t[0])
    })
}

/// `x` at the rows of an axis that `places` holds, whose axes stand in the place of that axis.
pub fn rows(node: &mut OnnxNode, x: &DigitView, along: usize, places: &DigitView, out: Out) -> Result<DigitView, UnsupportedNode> {
    let x = if x.axes[along].digits.is_empty() || x.is_whole(along) { x.clone() } else { node.copied(x, "joined")? };
    let (rank, inner) = (x.axes.len(), places.axes.len());
    // Labels: the axes of `x`, then those of `places`.
    let kept: Vec<usize> = (0..along).chain(rank..rank + inner).chain(along + 1..rank).collect();
    let others: Vec<usize> = (0..rank).filter(|a| *a != along).collect();
    let operands = [(x.squeezed_out(along), others), (places.clone(), (rank..rank + inner).collect())];
    let labelled = node.labelled(&operands, &kept)?;
    let mut places = node.places(&x, &(0..rank).collect::<Vec<_>>(), &labelled);
    let mut elements = IndexMap::new();
    if let [digit] = x.axes[along].digits.as_slice() {
        places.insert(digit.id, SubscriptExpr::number(0));
        elements.insert(digit.id, labelled.texts[1].clone());
    }
    let text = node.text_with(&x, &places, &elements, None);
    let axes = kept.iter().map(|label| labelled.indices[label].clone()).collect();
    Ok(node.define(out, axes, &text, x.element))
}
