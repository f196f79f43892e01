//! Convolutions: sums over windows, whose places are affine in the result's and the window's.

use super::pointwise::{one, wrapped};
use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::recipe::StepIndex;
use crate::import::step::{Out, SubscriptExpr, at, summed};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[("Conv", conv), ("ConvInteger", conv_integer), ("ConvTranspose", conv_transpose)];

/// How a window moves along one axis.
#[derive(Clone, Copy, Debug)]
pub struct AxisWindow {
    /// Places of the axis, of the window, and of the result.
    pub size: usize,
    pub width: usize,
    pub count: usize,
    pub stride: i64,
    pub dilation: i64,
    pub before: i64,
    pub after: i64,
}

impl AxisWindow {
    /// The place that the window's place `r` has at the result's place `p`.
    pub fn place(&self, p: Option<&StepIndex>, r: Option<&StepIndex>) -> SubscriptExpr {
        let mut place = SubscriptExpr::number(-self.before);
        if let Some(p) = p {
            place = place.plus(&at(p), self.stride);
        }
        if let Some(r) = r {
            place = place.plus(&at(r), self.dilation);
        }
        place
    }

    /// Whether all places lie inside the axis.
    pub fn inside(&self) -> bool {
        let most = (self.count as i64 - 1) * self.stride + (self.width as i64 - 1) * self.dilation - self.before;
        self.before <= 0 && most < self.size as i64
    }
}

/// The windows of a node over the last axes of its operand.
pub fn windows(node: &mut OnnxNode, sizes: &[usize], widths: &[usize]) -> Result<Vec<AxisWindow>, UnsupportedNode> {
    let n = sizes.len();
    let list = |name: &str, default: i64| node.ints(name).unwrap_or_else(|| vec![default; n]);
    let (strides, dilations) = (list("strides", 1), list("dilations", 1));
    let pads = node.ints("pads").unwrap_or_else(|| vec![0; 2 * n]);
    if widths.len() != n || strides.len() != n || dilations.len() != n || pads.len() != 2 * n {
        return UnsupportedNode::form(format!("its strides, dilations, pads or window are not those of {n} axes"));
    }
    if strides.iter().chain(&dilations).any(|s| *s < 1) || pads.iter().any(|p| p.abs() > 1 << 30) {
        return UnsupportedNode::form("a stride or dilation is no whole number from 1 on, or a padding is too large");
    }
    let ceil = node.int("ceil_mode", 0) != 0;
    let mode = node.string("auto_pad", "NOTSET");
    let mut found = vec![];
    for i in 0..n {
        let (size, stride, dilation) = (sizes[i] as i64, strides[i], dilations[i]);
        let extent = (widths[i] as i64 - 1) * dilation + 1;
        let (before, after, count) = match mode {
            "SAME_UPPER" | "SAME_LOWER" => {
                let count = (size + stride - 1) / stride;
                let total = ((count - 1) * stride + extent - size).max(0);
                let less = total / 2;
                let before = if mode == "SAME_UPPER" { less } else { total - less };
                (before, total - before, count)
            }
            _ => {
                let (before, after) = if mode == "VALID" { (0, 0) } else { (pads[i], pads[i + n]) };
                let room = size + before + after - extent;
                if room < 0 {
                    return UnsupportedNode::form(format!("a window of {extent} places does not fit an axis of {size}"));
                }
                let mut count = room / stride + 1;
                if ceil && room % stride != 0 {
                    count += 1;
                    // A window that would begin behind the tensor and its padding in front is none.
                    if (count - 1) * stride >= size + before {
                        count -= 1;
                    }
                }
                (before, after, count)
            }
        };
        if count < 1 {
            return Err(UnsupportedNode::Empty);
        }
        let window = AxisWindow { size: sizes[i], width: widths[i], count: count as usize, stride, dilation, before, after };
        // Without the rounding up of some modes the count is that of whole windows.
        let room = before + after - extent;
        if (size + room) / stride + 1 == count && count > 1 && count != size {
            node.import.recipe.derive(count as usize, &[sizes[i]], |name| match room.signum() {
                -1 => format!("({} - {})/{stride} + 1", name(sizes[i]), -room),
                _ => format!("({} + {room})/{stride} + 1", name(sizes[i])),
            });
        }
        found.push(window);
    }
    Ok(found)
}

/// The operand where each spatial axis that a window leaves is a whole dim.
pub fn reached(node: &mut OnnxNode, x: &DigitView, windows: &[AxisWindow]) -> Result<DigitView, UnsupportedNode> {
    let first = x.axes.len() - windows.len();
    let needed = |(n, window): (usize, &AxisWindow)| {
        let axis = &x.axes[first + n];
        let plain = axis.digits.len() <= 1 && window.inside();
        if plain { None } else { Some(first + n) }
    };
    let axes: Vec<usize> = windows.iter().enumerate().filter_map(needed).collect();
    node.whole(x, axes)
}

fn conv(node: &mut OnnxNode) -> Results {
    let (x, k) = (node.view(0)?, node.view(1)?);
    let bias = node.optional(2)?;
    one(convolution(node, Out::Result(0), x, k, bias))
}

fn conv_integer(node: &mut OnnxNode) -> Results {
    let (mut x, mut k) = (node.view(0)?.typed(ElementType::I32), node.view(1)?.typed(ElementType::I32));
    if let Some(zero) = node.optional(2)? {
        x = node.pointwise(Out::Part("x"), &[x, zero], ElementType::I32, |t| format!("{} - {}", t[0], t[1]))?;
    }
    if let Some(zero) = node.optional(3)? {
        let zero =
            if zero.axes.len() == 1 && zero.axes[0].size > 1 { zero.unsqueezed(&(1..k.axes.len()).collect::<Vec<_>>())? } else { zero };
        k = node.pointwise(Out::Part("k"), &[k, zero], ElementType::I32, |t| format!("{} - {}", t[0], t[1]))?;
    }
    one(convolution(node, Out::Result(0), x, k, None))
}

/// Channels as groups and what is in each.
fn parted(view: &DigitView, axis: usize, groups: usize) -> Result<DigitView, UnsupportedNode> {
    view.parted(axis, groups).ok_or_else(|| UnsupportedNode::Form("its channels cannot be parted into groups".into()))
}

/// [n, g·i, h…], [g·e, i, r…] and [g·e] → [n, g·e, p…]
pub fn convolution(
    node: &mut OnnxNode,
    out: Out,
    x: DigitView,
    k: DigitView,
    bias: Option<DigitView>,
) -> Result<DigitView, UnsupportedNode> {
    let rank = x.axes.len();
    if rank < 3 || k.axes.len() != rank {
        return UnsupportedNode::form(format!("its operands have {rank} and {} axes", k.axes.len()));
    }
    let spatial = rank - 2;
    let groups = node.int("group", 1).max(1) as usize;
    let (xs, ks) = (x.shape(), k.shape());
    if ks[0] % groups != 0 || ks[1] * groups != xs[1] {
        return UnsupportedNode::form(format!("a kernel of {ks:?} does not fit {xs:?} in {groups} groups"));
    }
    if node.ints("kernel_shape").is_some_and(|shape| shape.iter().map(|s| *s as usize).ne(ks[2..].iter().copied())) {
        return UnsupportedNode::form("its `kernel_shape` is not that of its kernel");
    }
    let windows = windows(node, &xs[2..], &ks[2..])?;
    let x = reached(node, &x, &windows)?;
    let element = x.element;
    let (x, k) = (parted(&x, 1, groups)?, parted(&k, 0, groups)?);
    // Labels: batch, group, channel of the result, channel of the operand, then those of the window and of the result's places.
    const LABELS: [usize; 4] = [0, 1, 2, 3];
    let [n, g, e, i] = LABELS;
    let window: Vec<usize> = (10..10 + spatial).collect();
    let front = x.axes[..3].to_vec();
    let mut operands = vec![(DigitView { axes: front, ..x.clone() }, vec![n, g, i]), (k.clone(), [&[g, e, i][..], &window].concat())];
    if let Some(bias) = bias {
        operands.push((parted(&bias, 0, groups)?, vec![g, e]));
    }
    // Without groups their label has no index.
    let kept: Vec<usize> = [n, g, e].into_iter().filter(|label| *label != g || groups > 1).collect();
    let labelled = node.labelled(&operands, &kept)?;
    let mut places = node.places(&x, &[n, g, i], &labelled);
    let mut left = vec![labelled.indices[&n].clone(), [labelled.indices[&g].clone(), labelled.indices[&e].clone()].concat()];
    let mut over = labelled.indices[&i].clone();
    for (label, (axis, own)) in window.iter().zip(x.axes[3..].iter().zip(&windows)) {
        let p = if own.count == 1 { None } else { Some(node.index(own.count)) };
        let r = labelled.indices[label].first().cloned();
        if labelled.indices[label].len() > 1 {
            return UnsupportedNode::form("its kernel is a reshaped tensor whose window is parted");
        }
        if let [digit] = axis.digits.as_slice() {
            places.insert(digit.id, own.place(p.as_ref(), r.as_ref()));
        }
        over.extend(r);
        left.push(p.into_iter().collect());
    }
    let fill = if windows.iter().all(AxisWindow::inside) { None } else { Some("0") };
    let read = node.text(&x, &places, fill);
    let mut expression = summed(&[&labelled.texts[1], &read], &over);
    if let Some(bias) = labelled.texts.get(2) {
        expression = format!("{expression} + {bias}");
    }
    let expression = wrapped(expression, element);
    Ok(node.define(out, left, &expression, element))
}

/// [n, g·i, h…] and [g·i, e, r…] → [n, g·e, p…]: what a convolution's gradient hands back.
fn conv_transpose(node: &mut OnnxNode) -> Results {
    let (x, k) = (node.view(0)?, node.view(1)?);
    let bias = node.optional(2)?;
    let rank = x.axes.len();
    if rank < 3 || k.axes.len() != rank {
        return UnsupportedNode::form(format!("its operands have {rank} and {} axes", k.axes.len()));
    }
    let spatial = rank - 2;
    let groups = node.int("group", 1).max(1) as usize;
    let (xs, ks) = (x.shape(), k.shape());
    if xs[1] % groups != 0 || ks[0] != xs[1] {
        return UnsupportedNode::form(format!("a kernel of {ks:?} does not fit {xs:?} in {groups} groups"));
    }
    let list = |name: &str, default: i64, n: usize| node.ints(name).unwrap_or_else(|| vec![default; n]);
    let (strides, dilations) = (list("strides", 1, spatial), list("dilations", 1, spatial));
    let (extra, pads) = (list("output_padding", 0, spatial), list("pads", 0, 2 * spatial));
    let wanted = node.ints("output_shape").map(|shape| shape[shape.len().saturating_sub(spatial)..].to_vec());
    let mode = node.string("auto_pad", "NOTSET");
    if [&strides, &dilations, &extra].iter().any(|l| l.len() != spatial)
        || pads.len() != 2 * spatial
        || wanted.as_ref().is_some_and(|w| w.len() != spatial)
    {
        return UnsupportedNode::form(format!("its strides, dilations or pads are not those of {spatial} axes"));
    }
    let mut windows = vec![];
    for n in 0..spatial {
        let (size, stride, dilation) = (xs[2 + n] as i64, strides[n], dilations[n]);
        let full = stride * (size - 1) + extra[n] + (ks[2 + n] as i64 - 1) * dilation + 1;
        let (before, count) = match (&wanted, mode) {
            (None, "NOTSET" | "VALID") => (pads[n], full - pads[n] - pads[n + spatial]),
            (wanted, mode) => {
                let count = wanted.as_ref().map_or(size * stride, |w| w[n]);
                let total = full - count;
                // A padding that is odd has its extra place at the end for SAME_UPPER alone.
                let before = if mode == "SAME_UPPER" { total.div_euclid(2) } else { total - total.div_euclid(2) };
                (before, count)
            }
        };
        if count < 1 || stride < 1 || dilation < 1 {
            return Err(UnsupportedNode::Empty);
        }
        windows.push(AxisWindow { size: xs[2 + n], width: ks[2 + n], count: count as usize, stride, dilation, before, after: 0 });
    }
    let element = x.element;
    let x = node.whole(&x, 2..rank)?;
    let k = if dilations.iter().all(|d| *d == 1) && strides.iter().any(|s| *s != 1) { node.whole(&k, 2..rank)? } else { k };
    let (x, k) = (parted(&x, 1, groups)?, parted(&k, 0, groups)?);
    let [n, g, e, i] = [0, 1, 2, 3];
    let inside: Vec<usize> = (10..10 + spatial).collect();
    let window: Vec<usize> = (30..30 + spatial).collect();
    // With one place between kernels the image is read in windows; else kernels are read behind the image's places, or both meet.
    let in_windows = strides.iter().all(|s| *s == 1);
    let one_dilation = !in_windows && dilations.iter().all(|d| *d == 1);
    let front = |view: &DigitView| DigitView { axes: view.axes[..3].to_vec(), ..view.clone() };
    let mut operands = vec![match in_windows {
        true => (front(&x), vec![n, g, i]),
        false => (x.clone(), [&[n, g, i][..], &inside].concat()),
    }];
    operands.push(match one_dilation {
        true => (front(&k), vec![g, i, e]),
        false => (k.clone(), [&[g, i, e][..], &window].concat()),
    });
    if let Some(bias) = bias {
        operands.push((parted(&bias, 0, groups)?, vec![g, e]));
    }
    // Without groups their label has no index.
    let kept: Vec<usize> = [n, g, e].into_iter().filter(|label| *label != g || groups > 1).collect();
    let labelled = node.labelled(&operands, &kept)?;
    let mut left = vec![labelled.indices[&n].clone(), [labelled.indices[&g].clone(), labelled.indices[&e].clone()].concat()];
    let mut over = labelled.indices[&i].clone();
    let mut places = match in_windows {
        true => node.places(&x, &[n, g, i], &labelled),
        false => node.places(&k, &[g, i, e], &labelled),
    };
    let mut conditions = vec![];
    for (d, own) in windows.iter().enumerate() {
        let p = node.index(own.count);
        let index = |label: &usize| labelled.indices.get(label).and_then(|indices| indices.first()).cloned();
        let (h, r) = (index(&inside[d]), index(&window[d]));
        over.extend(h.clone());
        over.extend(r.clone());
        let place = at(&p).plus(&SubscriptExpr::number(1), own.before);
        let behind = |index: &Option<StepIndex>, by: i64| index.as_ref().map_or(place.clone(), |i| place.clone().plus(&at(i), -by));
        if in_windows {
            if let [digit] = x.axes[3 + d].digits.as_slice() {
                places.insert(digit.id, behind(&r, own.dilation));
            }
        } else if one_dilation {
            if let [digit] = k.axes[3 + d].digits.as_slice() {
                places.insert(digit.id, behind(&h, own.stride));
            }
        } else {
            let term = |index: &Option<StepIndex>, by: i64| index.as_ref().map_or(String::new(), |i| format!("{by} * {} + ", i.name));
            conditions.push(format!("({}{}0 == {} + {})", term(&h, own.stride), term(&r, own.dilation), p.name, own.before));
        }
        left.push(vec![p]);
    }
    let kernel = if one_dilation { node.text(&k, &places, Some("0")) } else { labelled.texts[1].clone() };
    let image = if in_windows { node.text(&x, &places, Some("0")) } else { labelled.texts[0].clone() };
    let factors: Vec<&str> = [kernel.as_str(), image.as_str()].into_iter().chain(conditions.iter().map(String::as_str)).collect();
    let mut expression = summed(&factors, &over);
    if let Some(bias) = labelled.texts.get(2) {
        expression = format!("{expression} + {bias}");
    }
    Ok(vec![GraphValue::View(node.define(Out::Result(0), left, &expression, element))])
}
