//! Rows kept: a worker goes over a strip of output rows from top to bottom, and each step makes only the rows of intermediate results that
//! no step before it has made. The others are moved to the beginning of their window, where the next layer finds them.
//!
//! ```text
//! window of a step of P rows   stride·(P-1) + R rows, where one output row needs R
//! the next step's window       begins stride·P rows later, so that it shares R - stride rows with this one
//! ```
//!
//! Of the shared rows those are moved that the next layer's new rows read: with windows of k rows and stride s that is k - s of each
//! intermediate result, however many layers follow.

use super::Fold;
use crate::error::KernelError;
use crate::kernel::{KernelSpec, unsupported};
use crate::loopnest::{KeptRows, Strip, slope};
use crate::maps::flatten::{Flat, Flattened};
use sdfg::config::KernelConfig;
use sdfg::{Bindings, Expr};
use std::collections::BTreeMap;

/// Whether a configuration keeps rows.
pub fn is_wanted(config: &KernelConfig) -> bool {
    config.knobs.get("form") == Some("rows")
}

/// The outer index that strips are cut along, and the rows of a strip: those of the knob `strip`, or all rows of the first index that
/// keeps some.
///
/// # Errors
/// A knob that names no outer index with rows to keep; kernels without any.
pub fn wanted(
    spec: &KernelSpec,
    config: &KernelConfig,
    flattened: &Flattened,
    folds: &[Fold],
) -> Result<Option<(String, i64)>, KernelError> {
    if !is_wanted(config) {
        return Ok(None);
    }
    let all = indices(flattened, folds);
    let Some(first) = all.first() else {
        return Err(unsupported(
            spec,
            "it keeps no rows: no window of an intermediate result overlaps the next one; choose `form: layers`",
        ));
    };
    let count = |index: &str| flattened.outer.iter().find(|r| r.index == index).map_or(1, |r| r.count);
    let Some(text) = config.knobs.get("strip") else { return Ok(Some((first.clone(), count(first)))) };
    let parsed = text.split_once(':').and_then(|(index, rows)| Some((index.to_string(), rows.parse::<i64>().ok().filter(|n| *n > 0)?)));
    match parsed.filter(|(index, _)| all.contains(index)) {
        Some((index, rows)) => Ok(Some((index.clone(), rows.min(count(&index))))),
        None => Err(KernelError::Knob {
            kernel: spec.name.clone(),
            key: "strip".into(),
            value: text.into(),
            allowed: format!("index:rows, rows above 0, with one of the indices {}", all.join(", ")),
        }),
    }
}

/// The outer indices along which windows of intermediate results overlap, from outer to inner.
pub fn indices(flattened: &Flattened, folds: &[Fold]) -> Vec<String> {
    let keeps = |index: &str| folds.iter().any(|f| f.outer == index && shared(flattened, f) > 0);
    flattened.outer.iter().map(|r| r.index.clone()).filter(|index| keeps(index)).collect()
}

/// Rows that the window of one point has in common with that of the next.
fn shared(flattened: &Flattened, fold: &Fold) -> i64 {
    flattened.tensors.get(&fold.data).and_then(|t| t.shape.get(fold.dim)).map_or(0, |rows| (rows - fold.stride).max(0))
}

/// The strips of `rows` output rows along an outer index that is walked in steps of `size`; `None` where a strip has one step.
///
/// # Errors
/// Rows that are walked by an index that walks something else, too.
pub fn strip(
    spec: &KernelSpec,
    flattened: &Flattened,
    folds: &[Fold],
    (outer, rows): (&str, i64),
    size: i64,
) -> Result<Option<Strip>, KernelError> {
    let count = flattened.outer.iter().find(|r| r.index == outer).map_or(1, |r| r.count);
    let (steps, each) = ((count + size - 1) / size, (rows + size - 1) / size);
    if steps.min(each) < 2 {
        return Ok(None);
    }
    let name = if size == 1 { outer.to_string() } else { format!("{outer}.tile") };
    let of_strip: Vec<&Fold> = folds.iter().filter(|f| f.outer == outer).collect();
    let kept = |fold: &&Fold| KeptRows {
        data: fold.data.clone(),
        dim: fold.dim,
        index: fold.index.clone(),
        count: shared(flattened, fold),
        first: first_read(flattened, fold, &of_strip),
        moves: fold.stride * size,
    };
    let rows: Vec<KeptRows> = of_strip.iter().map(kept).filter(|rows| rows.count > 0).collect();
    for each in &rows {
        let others = flattened.statements.iter().filter(|f| f.inner.iter().any(|r| r.index == each.index));
        let same = |f: &&Flat| rows.iter().any(|r| r.index == each.index && r.count == each.count && r.data == f.statement.write.data);
        if !others.into_iter().all(|f| same(&f)) {
            return Err(unsupported(
                spec,
                format!("`{}` walks rows of `{}` and something else; choose `form: layers`", each.index, each.data),
            ));
        }
    }
    Ok(Some(Strip { strips: format!("{outer}.strip"), steps: name, each: each.min(steps), rows }))
}

/// Strips with the dims that containers have once the indices of a tile stand in front.
pub fn in_tiles(strip: Strip, statements: &[Flat]) -> Strip {
    let dim = |rows: &KeptRows| {
        let written = statements.iter().map(|f| &f.statement.write).find(|e| e.data == rows.data)?;
        written.subscripts.iter().position(|e| e.as_sym() == Some(&rows.index))
    };
    let rows = strip.rows.iter().map(|rows| KeptRows { dim: dim(rows).unwrap_or(rows.dim), ..rows.clone() }).collect();
    Strip { rows, ..strip }
}

/// The first row of a window that any later step reads: layers in between begin with their own first new row.
fn first_read(flattened: &Flattened, fold: &Fold, of_strip: &[&Fold]) -> i64 {
    let most = shared(flattened, fold);
    let mut first = most;
    for Flat { inner, statement, .. } in &flattened.statements {
        let own = of_strip.iter().find(|f| f.data == statement.write.data);
        for (_, element) in statement.reads.iter().filter(|(_, e)| e.data == fold.data) {
            let begin = |index: &str| own.filter(|f| f.index == index).map_or(0, |f| shared(flattened, f));
            let low = element.subscripts.get(fold.dim).and_then(|e| {
                let walked = inner.iter().chain(&flattened.outer).map(|r| r.index.as_str()).filter(|index| e.symbols().contains(*index));
                let walked: Vec<&str> = walked.collect();
                let rises = |index: &&str| slope(e, index).and_then(|s| s.as_int()).is_some_and(|s| s >= 0);
                let at: BTreeMap<String, Expr> = walked.iter().map(|index| (index.to_string(), Expr::Int(begin(index)))).collect();
                if walked.iter().all(rises) { e.substitute(&at).eval(&Bindings::default()).ok() } else { None }
            });
            first = first.min(low.unwrap_or(0));
        }
    }
    first.clamp(0, most)
}
