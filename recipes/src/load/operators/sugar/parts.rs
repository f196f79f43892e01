//! Tensors made of parts of others: joined, cut out, with borders, or each element several times.

use super::{Layer, Sugar};
use crate::load::parser::ParsedExpr;
use sdfg::Binary;

pub const ALL: &[Sugar] = &[
    Sugar {
        name: "concat",
        operands: (2, 64),
        options: &["along"],
        usage: "(a, b, …, along: c), c the dim of the result along which the tensors follow each other",
        meaning: concat,
    },
    Sugar {
        name: "slice",
        operands: (1, 1),
        options: &["along", "from", "step"],
        usage: "(x, along: h, from: 0, step: 1), h one dim of x, or a list of them; the result's dims say how many",
        meaning: slice,
    },
    Sugar {
        name: "pad",
        operands: (1, 1),
        options: &["along", "before", "value"],
        usage: "(x, along: [h, w], before: 1, value: 0), dims of x; the result's dims say how much stands behind",
        meaning: pad,
    },
    Sugar {
        name: "upsample",
        operands: (1, 1),
        options: &["along", "by"],
        usage: "(x, along: [h, w], by: 2), dims of x whose elements are repeated",
        meaning: upsample,
    },
];

fn concat(layer: &mut Layer) -> Option<ParsedExpr> {
    if !layer.is_known() {
        return layer.unknown();
    }
    let left = layer.left.to_vec();
    let (place, along) = match layer.dims("along").as_deref() {
        Some([(place, dim)]) => (*place, dim.clone()),
        Some(_) => return layer.misused(),
        None if layer.option("along").is_none() => return layer.misused(),
        None => return None,
    };
    let Some(at) = left.iter().position(|dim| *dim == along) else {
        return layer.fail(place, format!("tensors are joined along a dim of the result; valid: {}", left.join(", ")));
    };
    let mut whole = 0;
    let mut parts = Vec::new();
    for n in 0..layer.operands.len() {
        let (place, name, dims) = (layer.operands[n].place, layer.operands[n].name.clone(), layer.operands[n].dims.clone());
        if dims.len() != left.len() {
            let why = format!("`{name}` has {} dims, but the result has {}; tensors that are joined have as many", dims.len(), left.len());
            return layer.fail(place, why);
        }
        for (m, (dim, own)) in left.iter().zip(&dims).enumerate() {
            if m != at && layer.header.dims.get(dim) != layer.header.dims.get(own) {
                let why = format!(
                    "`{own}` of `{name}` ({}) and `{dim}` of the result ({}) are of different sizes; tensors that are joined differ along `{along}` alone",
                    layer.size(own)?,
                    layer.size(dim)?
                );
                return layer.fail(place, why);
            }
        }
        whole += layer.size(&dims[at])?;
        parts.push(dims[at].clone());
    }
    if Some(whole) != layer.size(&along) {
        let why = format!("`{along}` has {}, but the tensors that are joined along it have {whole}", layer.size(&along)?);
        return layer.fail(place, why);
    }
    // The index along the result, less the sizes of the tensors before.
    let before =
        |layer: &Layer, n: usize| parts[..n].iter().fold(layer.word(&along), |at, dim| layer.binary(Binary::Sub, at, layer.size_of(dim)));
    let mut joined: Option<ParsedExpr> = None;
    for n in (0..parts.len()).rev() {
        let subscripts = left.iter().enumerate().map(|(m, dim)| if m == at { before(layer, n) } else { layer.word(dim) }).collect();
        let part = layer.access(n, subscripts, Some(layer.literal(0)));
        joined = Some(match joined {
            None => part,
            Some(rest) => {
                let sizes = parts[..=n].iter().map(|dim| layer.size_of(dim)).reduce(|a, b| layer.binary(Binary::Add, a, b))?;
                layer.call("where", vec![layer.binary(Binary::Lt, layer.word(&along), sizes), part, rest])
            }
        });
    }
    joined
}

/// The dims of the operand that an option names, as their places among all.
fn places(layer: &mut Layer) -> Option<Vec<usize>> {
    let Some(along) = layer.dims("along") else {
        return if layer.option("along").is_none() { layer.misused() } else { None };
    };
    let dims = layer.operands[0].dims.clone();
    if dims.len() != layer.left.len() {
        let why = format!("`{}` has {} dims, but the result has {}", layer.operands[0].name, dims.len(), layer.left.len());
        return layer.fail(layer.place, why);
    }
    let mut found = Vec::new();
    for (place, dim) in along {
        match dims.iter().position(|own| *own == dim) {
            Some(at) => found.push(at),
            None => return layer.fail(place, format!("`{}` has no dim `{dim}`; valid: {}", layer.operands[0].name, dims.join(", "))),
        }
    }
    Some(found)
}

fn slice(layer: &mut Layer) -> Option<ParsedExpr> {
    if !layer.is_known() {
        return layer.unknown();
    }
    let places = places(layer)?;
    let (from, step) = (layer.along("from", places.len(), 0, 0), layer.along("step", places.len(), 1, 1));
    let (from, step) = (from?, step?);
    let mut subscripts: Vec<ParsedExpr> = layer.left.iter().map(|index| layer.word(index)).collect();
    for (n, at) in places.into_iter().enumerate() {
        let (own, part) = (layer.operands[0].dims[at].clone(), layer.left[at].clone());
        let last = from[n] + step[n] * (layer.size(&part)? - 1);
        if last >= layer.size(&own)? {
            let why = format!("the part ends at {last} along `{own}`, which has {}; give `{part}` another size", layer.size(&own)?);
            return layer.fail(layer.place, why);
        }
        subscripts[at] = layer.shifted(layer.times(step[n], &part), from[n]);
    }
    Some(layer.access(0, subscripts, None))
}

fn pad(layer: &mut Layer) -> Option<ParsedExpr> {
    if !layer.is_known() {
        return layer.unknown();
    }
    let places = places(layer)?;
    let before = layer.along("before", places.len(), 0, i64::MIN)?;
    let mut subscripts: Vec<ParsedExpr> = layer.left.iter().map(|index| layer.word(index)).collect();
    for (n, at) in places.into_iter().enumerate() {
        subscripts[at] = layer.shifted(layer.word(&layer.left[at]), -before[n]);
    }
    let value = layer.option("value").cloned().unwrap_or_else(|| layer.literal(0));
    Some(layer.access(0, subscripts, Some(value)))
}

/// Every element `by` times: at `p` stands the one at `⌊p / by⌋`.
fn upsample(layer: &mut Layer) -> Option<ParsedExpr> {
    if !layer.is_known() {
        return layer.unknown();
    }
    let places = places(layer)?;
    let by = layer.along("by", places.len(), 2, 1)?;
    let mut subscripts: Vec<ParsedExpr> = layer.left.iter().map(|index| layer.word(index)).collect();
    for (n, at) in places.into_iter().enumerate() {
        let (own, result) = (layer.operands[0].dims[at].clone(), layer.left[at].clone());
        let (size, wanted) = (layer.size(&own)?, layer.size(&result)?);
        if wanted != by[n] * size {
            return layer.fail(layer.place, format!("`{result}` has {wanted}, but {} times `{own}` ({size}) is {}", by[n], by[n] * size));
        }
        subscripts[at] = layer.call("floor", vec![layer.binary(Binary::Div, layer.word(&result), layer.literal(by[n]))]);
    }
    Some(layer.access(0, subscripts, None))
}
