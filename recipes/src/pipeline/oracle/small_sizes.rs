//! Programs made small enough to interpret.

use sdfg::{Layout, Sdfg};

/// The same program with every size bound to a small odd number; sizes that were equal stay equal.
pub fn with_small_sizes(program: &Sdfg) -> Sdfg {
    let mut small = program.clone();
    let distinct: std::collections::BTreeSet<i64> = program.sizes.values().copied().collect();
    for size in small.sizes.values_mut() {
        let rank = distinct.iter().position(|d| d == size).unwrap_or(0) as i64;
        *size = (*size).min(2 * rank + 3);
    }
    small
}

/// The same for layouts with blocked dims: these get two blocks, so that every layout fits. Dims that kernels need in multiples are
/// rounded up to them; `whole` dims keep their sizes, and no other size exceeds `most`.
pub fn with_small_sizes_for<'a>(
    program: &Sdfg,
    layouts: impl Iterator<Item = &'a Layout>,
    granules: &[(String, i64)],
    (whole, most): (&[String], i64),
) -> Sdfg {
    let mut small = with_small_sizes(program);
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
