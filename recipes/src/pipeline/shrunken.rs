//! Programs made small enough to interpret, and how two of them differ.

use sdfg::interpret::{Run, Tensors, interpret};
use sdfg::{Container, Layout, Role, Sdfg};

/// The same program with every size bound to a small odd number; sizes that were equal stay equal.
pub fn shrunken(program: &Sdfg) -> Sdfg {
    let mut small = program.clone();
    let distinct: std::collections::BTreeSet<i64> = program.sizes.values().copied().collect();
    for size in small.sizes.values_mut() {
        let rank = distinct.iter().position(|d| d == size).unwrap_or(0) as i64;
        *size = (*size).min(2 * rank + 3);
    }
    small
}

/// The same where some dims are held in blocks: these have two blocks, so that every layout fits. Dims that kernels need in multiples
/// are rounded up to them; `whole` ones keep their sizes, and no other has more than `most`.
pub fn shrunken_for<'a>(
    program: &Sdfg,
    layouts: impl Iterator<Item = &'a Layout>,
    granules: &[(String, i64)],
    (whole, most): (&[String], i64),
) -> Sdfg {
    let mut small = shrunken(program);
    small.sizes.values_mut().for_each(|size| *size = (*size).min(most));
    let mut set = |dim: &str, size: &dyn Fn(i64) -> i64| {
        let symbols = program.dims.get(dim).map(|size| size.symbols()).unwrap_or_default();
        let sizes: Vec<i64> = symbols.iter().filter_map(|s| program.sizes.get(s.as_str()).copied()).collect();
        for (symbol, whole) in program.sizes.iter().filter(|(_, whole)| sizes.contains(whole)) {
            let now = small.sizes.get(symbol).copied().unwrap_or(1);
            small.sizes.insert(symbol.clone(), size(now).min(*whole));
        }
    };
    for (dim, granule) in granules {
        set(dim, &|now| (now + granule - 1) / granule * granule);
    }
    for (dim, block) in layouts.filter(|l| !l.is_plain()).flat_map(|l| l.blocks().unwrap_or_default()) {
        set(dim, &|_| 2 * i64::from(block));
    }
    for dim in whole {
        set(dim, &|_| i64::MAX);
    }
    small
}

/// How two programs that should compute the same differ.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Difference {
    #[error("{0}")]
    Value(String),
    #[error("it can no longer be interpreted: {0}")]
    Fails(String),
    #[error("it could not be interpreted before: {0}")]
    Failed(String),
}

/// Interprets both and compares what a person sees; what differs first.
pub(super) fn difference(before: &Sdfg, after: &Sdfg) -> Option<Difference> {
    let run = |program: &Sdfg| {
        let tensors = super::tensors::drawn(before, 1).map_err(|e| e.to_string())?;
        interpret(program, &tensors, &Run { seed: 1, step: 0, dropout: true }).map_err(|e| e.to_string())
    };
    let want = match run(before) {
        Ok(want) => want,
        Err(why) => return Some(Difference::Failed(why)),
    };
    let got = match run(after) {
        Ok(got) => got,
        Err(why) => return Some(Difference::Fails(why)),
    };
    let seen = |c: &&Container| matches!(c.role, Role::Output | Role::Gradient);
    let unequal = |c: &Container| compare(&c.name, &want, &got).err();
    before.containers.values().filter(seen).find_map(unequal).map(Difference::Value)
}

fn compare(name: &str, want: &Tensors, got: &Tensors) -> Result<(), String> {
    let (Some(want), Some(got)) = (want.get(name), got.get(name)) else { return Err(format!("`{name}` is no longer computed")) };
    let scale = want.iter().fold(1.0f64, |m, v| m.max(v.abs()));
    // Patches reorder f64 sums of at most a few thousand small terms.
    let bound = 1e4 * f64::EPSILON * scale;
    for (w, g) in want.iter().zip(got) {
        if (w - g).abs() > bound || w.is_nan() != g.is_nan() {
            return Err(format!("`{name}` was {w} and became {g}"));
        }
    }
    Ok(())
}
