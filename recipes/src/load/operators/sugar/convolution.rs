//! Convolutions: sums of products of a kernel with windows of a tensor, in any number of dims.
//!
//! | kernel | result | |
//! | --- | --- | --- |
//! | `[o, c, r, s]` | `[n, o, p, q]` | `k[o,c,r,s] * x[n,c,2*p+r-1,2*q+s-1 else 0]` |
//! | `[c, r, s]` | `[n, c, p, q]` | one kernel for each channel: `k[c,r,s] * x[n,c,…]` |
//! | `[f, e, i, r, s]`, `groups: f` | `[n, f, e, p, q]` | `k[f,e,i,r,s] * x[n,size(i)*f+i,…]` |

use super::{Layer, Sugar};
use crate::load::parser::{Ast, ParsedExpr};
use sdfg::Binary;

pub const ALL: &[Sugar] = &[
    Sugar {
        name: "conv",
        operands: (2, 2),
        options: &["stride", "pad", "pad_end", "dilation", "groups"],
        usage: "(x, k, stride: 1, pad: 0, dilation: 1), x[n, c, h, w] and a kernel k[o, c, r, s], k[c, r, s], or k[f, e, i, r, s] with groups: f",
        meaning: conv,
    },
    Sugar {
        name: "conv_transpose",
        operands: (2, 2),
        options: &["stride", "pad"],
        usage: "(x, k, stride: 1, pad: 0), x[n, c, h, w] and a kernel k[c, o, r, s]",
        meaning: transposed,
    },
];

fn conv(layer: &mut Layer) -> Option<ParsedExpr> {
    if !layer.is_known() {
        return layer.unknown();
    }
    let (x, k) = (layer.operands[0].dims.clone(), layer.operands[1].dims.clone());
    if x.len() < 3 || k.len() < x.len() - 1 || k.len() > x.len() + 1 {
        return layer.misused();
    }
    let spatial = x.len() - 2;
    // Dims of the result before its places: the batch, and one of channels or two of groups and their channels.
    let grouped = k.len() == x.len() + 1;
    let leading = if grouped { 3 } else { 2 };
    if layer.left.len() != leading + spatial {
        let why = format!(
            "`conv` has {} dims here, those of its batch, its channels and {spatial} of places, but the step's result has {}",
            leading + spatial,
            layer.left.len()
        );
        return layer.fail(layer.place, why);
    }
    let left = layer.left.to_vec();
    let within = k[k.len() - spatial..].to_vec();
    let channels = groups(layer, &x, &k, spatial)?;
    if let Some(summed) = within.iter().chain(&channels.summed).find(|dim| left.contains(dim)) {
        let why = format!(
            "`{summed}` is summed in the kernel `{}` and stands on the left, too; give the kernel's dim another name",
            layer.operands[1].name
        );
        return layer.fail(layer.operands[1].place, why);
    }
    let windows = layer.windows(&x[2..], &left[leading..], &within)?;
    let subscripts = [layer.word(&left[0]), channels.subscript].into_iter().chain(windows.iter().map(|window| layer.subscript(window)));
    let subscripts = subscripts.collect();
    let fill = windows.iter().any(|window| window.leaves).then(|| layer.literal(0));
    let kernel = left[1..leading].iter().chain(&channels.summed).chain(&within).map(|dim| layer.word(dim)).collect();
    Some(layer.binary(Binary::Mul, layer.access(1, kernel, None), layer.access(0, subscripts, fill)))
}

/// Which channels of the tensor a result is made of.
struct Channels {
    /// The kernel's dim that they run along, if any.
    summed: Vec<String>,
    /// Their place in the tensor.
    subscript: ParsedExpr,
}

fn groups(layer: &mut Layer, x: &[String], k: &[String], spatial: usize) -> Option<Channels> {
    let size = |layer: &Layer, dim: &str| layer.header.dims.get(dim).cloned();
    let groups = layer.option("groups").cloned();
    let (own, given) = (layer.operands[1].name.clone(), layer.operands[0].name.clone());
    let (place, all) = (layer.operands[1].place, layer.size(&x[1])?);
    match (k.len() - spatial, groups) {
        (1, None) => {
            if size(layer, &layer.left[1]) != size(layer, &x[1]) {
                let why = format!("`{given}` has {all} channels (`{}`), each with a kernel of its own, but the result has those of `{}`", x[1], layer.left[1]);
                return layer.fail(place, why);
            }
            Some(Channels { summed: vec![], subscript: layer.word(&layer.left[1]) })
        }
        (2, None) => {
            if size(layer, &k[1]) != size(layer, &x[1]) {
                let why = format!(
                    "the kernel `{own}` sums {} channels (`{}`), but `{given}` has {all} (`{}`); with groups it is [groups, channels of the \
                     result, channels of `{given}` in a group, …]",
                    layer.size(&k[1])?,
                    k[1],
                    x[1]
                );
                return layer.fail(place, why);
            }
            Some(Channels { summed: vec![k[1].clone()], subscript: layer.word(&k[1]) })
        }
        (3, Some(ParsedExpr { ast: Ast::Word(dim), .. })) if dim == k[0] => {
            let (count, each) = (layer.size(&k[0])?, layer.size(&k[2])?);
            if count * each != all {
                let why = format!("{count} groups (`{}`) of {each} channels (`{}`) are {}, but `{given}` has {all} (`{}`)", k[0], k[2], count * each, x[1]);
                return layer.fail(place, why);
            }
            let group = layer.binary(Binary::Mul, layer.size_of(&k[2]), layer.word(&layer.left[1]));
            let subscript = layer.binary(Binary::Add, group, layer.word(&k[2]));
            Some(Channels { summed: vec![k[2].clone()], subscript })
        }
        (3, _) => layer.fail(
            place,
            format!("the kernel `{own}` has a dim of groups, `{}`; say `groups: {}`, and give the result that dim and one of channels", k[0], k[0]),
        ),
        (_, Some(node)) => layer.fail(
            node.place,
            format!("with groups the kernel `{own}` has a dim for each of groups, channels of the result in a group, and channels of `{given}` in a group"),
        ),
        _ => layer.misused(),
    }
}

/// The kernel lies with its first element at `stride·h − pad` for each `h`: the result at `p` reads it at `p + pad − stride·h`.
fn transposed(layer: &mut Layer) -> Option<ParsedExpr> {
    if !layer.is_known() {
        return layer.unknown();
    }
    let (x, k) = (layer.operands[0].dims.clone(), layer.operands[1].dims.clone());
    let left = layer.left.to_vec();
    if x.len() < 3 || k.len() != x.len() || left.len() != x.len() {
        return layer.misused();
    }
    let count = x.len() - 2;
    let (stride, pad) = (layer.along("stride", count, 1, 1), layer.along("pad", count, 0, 0));
    let (stride, pad) = (stride?, pad?);
    if let Some(summed) = x[1..].iter().find(|dim| left.contains(dim)) {
        let why =
            format!("`{summed}` is summed in `{}` and stands on the left, too; give the result's dim another name", layer.operands[0].name);
        return layer.fail(layer.operands[0].place, why);
    }
    if layer.header.dims.get(&k[0]) != layer.header.dims.get(&x[1]) {
        let why = format!(
            "the kernel `{}` sums {} channels (`{}`), but `{}` has {} (`{}`)",
            layer.operands[1].name,
            layer.size(&k[0])?,
            k[0],
            layer.operands[0].name,
            layer.size(&x[1])?,
            x[1]
        );
        return layer.fail(layer.operands[1].place, why);
    }
    let mut within = vec![layer.word(&x[1]), layer.word(&left[1])];
    for at in 0..count {
        let (over, place) = (&x[at + 2], &left[at + 2]);
        let (size, places, width) = (layer.size(over)?, layer.size(place)?, layer.size(&k[at + 2])?);
        let reach = stride[at] * (size - 1) + width;
        // Up to `stride − 1` places behind the last kernel, and as much as the padding before it may be left out at the end.
        if places < reach - pad[at] - width.min(pad[at] + width) || places > reach - pad[at] + stride[at] - 1 {
            let why = format!(
                "`{place}` has {places} places, but kernels of {width} at every {} of {size} (`{over}`) reach over {reach}",
                stride[at]
            );
            return layer.fail(layer.place, why);
        }
        let before = layer.times(stride[at], over);
        within.push(layer.binary(Binary::Sub, layer.shifted(layer.word(place), pad[at]), before));
    }
    let mut read = vec![layer.word(&left[0])];
    read.extend(x[1..].iter().map(|dim| layer.word(dim)));
    let fill = layer.literal(0);
    Some(layer.binary(Binary::Mul, layer.access(1, within, Some(fill)), layer.access(0, read, None)))
}
