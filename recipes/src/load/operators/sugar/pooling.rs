//! Pooling: the largest value or the mean of windows, or of all places.

use super::windows::LayerWindow;
use super::{Layer, Sugar};
use crate::load::parser::{Ast, ParsedExpr};
use sdfg::Binary;

pub const ALL: &[Sugar] = &[
    Sugar {
        name: "maxpool",
        operands: (1, 1),
        options: &["over", "stride", "pad", "pad_end", "dilation"],
        usage: "(x, over: [r, s], stride: 1, pad: 0, dilation: 1): windows with dims of their own over the last dims of x[n, c, h, w]",
        meaning: max,
    },
    Sugar {
        name: "avgpool",
        operands: (1, 1),
        options: &["over", "stride", "pad", "pad_end", "dilation", "count_pad"],
        usage: "(x, over: [r, s], stride: 1, pad: 0, count_pad: 0): windows with dims of their own over the last dims of x[n, c, h, w]",
        meaning: average,
    },
    Sugar {
        name: "globalpool",
        operands: (1, 1),
        options: &[],
        usage: "(x), x[n, c, h, w] for a result with the first of its dims",
        meaning: global,
    },
];

/// The windows of a call, which stand over the last dims of the operand and of the result.
fn windows(layer: &mut Layer) -> Option<(Vec<ParsedExpr>, Vec<LayerWindow>)> {
    let Some(within) = layer.dims("over") else {
        return if layer.option("over").is_none() { layer.misused() } else { None };
    };
    let (x, left) = (layer.operands[0].dims.clone(), layer.left.to_vec());
    if x.len() != left.len() || within.len() > x.len() {
        let why = format!(
            "`{}` has the {} dims of `{}` here, the last {} of them places, but the step's result has {}",
            layer.sugar.name,
            x.len(),
            layer.operands[0].name,
            within.len(),
            left.len()
        );
        return layer.fail(layer.place, why);
    }
    if let Some((place, dim)) = within.iter().find(|(_, dim)| left.contains(dim)) {
        return layer.fail(*place, format!("`{dim}` is the dim of a window and stands on the left, too; give the window one of its own"));
    }
    let leading = x.len() - within.len();
    let within: Vec<String> = within.into_iter().map(|(_, dim)| dim).collect();
    let windows = layer.windows(&x[leading..], &left[leading..], &within)?;
    let kept = left[..leading].iter().map(|index| layer.word(index));
    let subscripts = kept.chain(windows.iter().map(|window| layer.subscript(window))).collect();
    Some((subscripts, windows))
}

fn dims(windows: &[LayerWindow]) -> Vec<String> {
    windows.iter().map(|window| window.within.clone()).collect()
}

fn max(layer: &mut Layer) -> Option<ParsedExpr> {
    if !layer.is_known() {
        return layer.unknown();
    }
    let (subscripts, windows) = windows(layer)?;
    let least = layer.node(Ast::Negative(Box::new(layer.word("inf"))));
    let fill = windows.iter().any(|window| window.leaves).then_some(least);
    Some(layer.reduced("max", layer.access(0, subscripts, fill), &dims(&windows)))
}

fn average(layer: &mut Layer) -> Option<ParsedExpr> {
    if !layer.is_known() {
        return layer.unknown();
    }
    let counts_pad = layer.whole("count_pad", 0)?;
    let (subscripts, windows) = windows(layer)?;
    if windows.iter().all(|window| !window.leaves) {
        return Some(layer.reduced("mean", layer.access(0, subscripts, None), &dims(&windows)));
    }
    let read = layer.access(0, subscripts, Some(layer.literal(0)));
    let sum = layer.reduced("sum", read, &dims(&windows));
    let counts = windows.iter().map(|window| count(layer, window, counts_pad != 0));
    let all = counts.reduce(|a, b| layer.binary(Binary::Mul, a, b))?;
    Some(layer.binary(Binary::Div, sum, all))
}

/// How many places of a window lie in the tensor, or in it and its padding: those `j` with `from ≤ stride·place + dilation·j < to`.
fn count(layer: &Layer, window: &LayerWindow, with_padding: bool) -> ParsedExpr {
    let first = layer.shifted(layer.times(window.stride, &window.place), -window.pad);
    let end = if with_padding { layer.shifted(layer.size_of(&window.over), window.pad_end) } else { layer.size_of(&window.over) };
    let width = layer.size_of(&window.within);
    let missing = match with_padding {
        true => layer.literal(0),
        // Rounded up: the first one that is not before the tensor.
        false => at_step(layer, layer.binary(Binary::Sub, layer.literal(window.dilation - 1), first.clone()), window.dilation),
    };
    let behind = at_step(layer, layer.binary(Binary::Sub, layer.shifted(end, window.dilation - 1), first), window.dilation);
    let last = layer.call("min", vec![width, behind]);
    match with_padding {
        true => last,
        false => layer.binary(Binary::Sub, last, layer.call("max", vec![missing, layer.literal(0)])),
    }
}

/// `⌊value / by⌋`.
fn at_step(layer: &Layer, value: ParsedExpr, by: i64) -> ParsedExpr {
    match by {
        1 => value,
        _ => layer.call("floor", vec![layer.binary(Binary::Div, value, layer.literal(by))]),
    }
}

fn global(layer: &mut Layer) -> Option<ParsedExpr> {
    if !layer.is_known() {
        return layer.unknown();
    }
    let (x, left) = (layer.operands[0].dims.clone(), layer.left.to_vec());
    if left.len() >= x.len() {
        let why = format!(
            "`globalpool` takes the mean over the last dims of `{}` [{}]; the result has the first ones alone",
            layer.operands[0].name,
            x.join(", ")
        );
        return layer.fail(layer.place, why);
    }
    let over = &x[left.len()..];
    if let Some(dim) = over.iter().find(|dim| left.contains(dim)) {
        return layer.fail(layer.place, format!("`{dim}` is pooled and stands on the left, too; give the result's dim another name"));
    }
    let subscripts = left.iter().chain(over).map(|index| layer.word(index)).collect();
    Some(layer.reduced("mean", layer.access(0, subscripts, None), over))
}
