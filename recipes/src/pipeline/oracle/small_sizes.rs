//! Programs made small enough to interpret.

use sdfg::affine::interval;
use sdfg::{Bindings, Expr, Layout, Memlet, Range, Scalar, Sdfg, Unit};
use std::collections::BTreeMap;

/// The same program with every size bound to a small odd number; sizes that were equal stay equal.
pub fn with_small_sizes(program: &Sdfg) -> Sdfg {
    let mut small = program.clone();
    let distinct: std::collections::BTreeSet<i64> = program.sizes.values().copied().collect();
    for size in small.sizes.values_mut() {
        let rank = distinct.iter().position(|d| d == size).unwrap_or(0) as i64;
        *size = (*size).min(2 * rank + 3);
    }
    grow(&mut small.sizes, program);
    small
}

/// Small sizes at which several programs of the same tensors are whole. One may read inside of a tensor what another reads with a fill, as
/// where elements that nobody reads are left out: then its own sizes are too small for the other.
pub fn small_sizes_of_all(programs: &[&Sdfg]) -> Bindings {
    common_sizes(programs, programs.iter().map(|program| with_small_sizes(program).sizes))
}

/// A program at such sizes.
pub fn with_sizes(program: &Sdfg, sizes: &Bindings) -> Sdfg {
    let mut small = program.clone();
    for (symbol, size) in &mut small.sizes {
        *size = sizes.get(symbol).copied().unwrap_or(*size);
    }
    small
}

/// The largest of the sizes of each symbol, grown until they suffice for all programs.
pub fn common_sizes(programs: &[&Sdfg], sizes: impl Iterator<Item = Bindings>) -> Bindings {
    let mut all = Bindings::new();
    for (symbol, size) in sizes.flatten() {
        let known = all.entry(symbol).or_insert(size);
        *known = size.max(*known);
    }
    loop {
        let before = all.clone();
        programs.iter().for_each(|program| grow(&mut all, program));
        if all == before {
            return all;
        }
    }
}

/// A subscript that is no plain index and has no fill: the size of the dim that it subscripts, and the first and the last value of each
/// index around it.
struct Subscript {
    at: Expr,
    size: Expr,
    indices: BTreeMap<String, (Expr, Expr)>,
}

/// Those of a program and of the bodies of its loops, which have the same sizes.
fn windows(program: &Sdfg) -> Vec<Subscript> {
    let mut found = Vec::new();
    for (_, _, unit) in program.units() {
        if let Unit::Nested(nested) = unit {
            found.extend(windows(&nested.program));
        }
    }
    let end = |size: &Expr| size.clone() - Expr::Int(1);
    let mut look = |memlet: &Memlet, indices: &BTreeMap<String, (Expr, Expr)>| {
        let Some(container) = program.containers.get(&memlet.data).filter(|_| memlet.fill.is_none()) else { return };
        for (range, size) in memlet.subset.iter().zip(program.shape(container)) {
            match range {
                // A plain index runs along the dim, as a rule.
                Range::At(at) if at.as_sym().and_then(|name| indices.get(name)).is_none_or(|(_, last)| *last != end(&size)) => {
                    found.push(Subscript { at: at.clone(), size, indices: indices.clone() })
                }
                _ => {}
            }
        }
    };
    let last = |stop: Expr| stop - Expr::Int(1);
    for (_, _, unit) in program.units() {
        match unit {
            Unit::Operation(operation) => {
                let indices: BTreeMap<String, (Expr, Expr)> =
                    operation.indices.iter().map(|(name, dim)| (name.clone(), (Expr::Int(0), last(program.size_of(dim))))).collect();
                operation.inputs.iter().chain(&operation.outputs).for_each(|operand| look(&operand.memlet(), &indices));
            }
            Unit::Scope(scope) => {
                for (around, computation) in scope.computations() {
                    let indices = around.iter().map(|i| (i.name.clone(), (i.start.clone(), last(i.stop.clone())))).collect();
                    computation.reads.iter().chain(&computation.writes).for_each(|(_, memlet)| look(memlet, &indices));
                }
            }
            _ => {}
        }
    }
    found
}

/// Sizes grow until no dim is empty, as that of an image that is halved several times, all windows lie inside, and some value lies in the
/// range of every tensor. At the program's own sizes all of that holds.
fn grow(sizes: &mut Bindings, program: &Sdfg) {
    let windows = windows(program);
    let enlarge = |sizes: &mut Bindings, symbols: &[String], least: &dyn Fn(i64) -> i64| {
        let equal: Vec<i64> = symbols.iter().filter_map(|symbol| program.sizes.get(symbol).copied()).collect();
        let mut changed = false;
        for (symbol, whole) in program.sizes.iter().filter(|(_, whole)| equal.contains(whole)) {
            let now = sizes.get(symbol).copied().unwrap_or(1);
            let larger = least(now).min(*whole);
            if larger > now {
                sizes.insert(symbol.clone(), larger);
                changed = true;
            }
        }
        changed
    };
    loop {
        let mut changed = false;
        for size in program.dims.values() {
            if size.eval(sizes).is_ok_and(|size| size < 1) {
                let symbols: Vec<String> = size.symbols().into_iter().collect();
                changed |= enlarge(sizes, &symbols, &|now| now.saturating_mul(2).saturating_add(1));
            }
        }
        for container in program.containers.values() {
            let Some(range) = &container.range else { continue };
            if range.under(sizes).is_ok_and(|interval| interval.is_empty(!container.dtype.is_floating())) {
                let mut symbols = Vec::new();
                for bound in [&range.low, &range.high] {
                    bound.walk(&mut |part| {
                        if let Scalar::Index(size) = part {
                            symbols.extend(size.symbols());
                        }
                    });
                }
                changed |= enlarge(sizes, &symbols, &|now| now.saturating_mul(2).saturating_add(1));
            }
        }
        for Subscript { at, size, indices } in &windows {
            let value = |e: &Expr| e.eval(sizes).ok();
            let range = |name: &str| match indices.get(name) {
                Some((first, last)) => Some((value(first)?, value(last)?)),
                None => sizes.get(name).map(|size| (*size, *size)),
            };
            let (Some((least, most)), Some(now)) = (interval(at, &range), value(size)) else { continue };
            if least >= 0 && most < now {
                continue;
            }
            let wanted = if least >= 0 { size.as_sym().map(|symbol| (vec![symbol.to_string()], most.saturating_add(1))) } else { None };
            // Where no single size is too small, those that the subscript is made of are what they are in the program.
            let (symbols, least) = wanted.unwrap_or_else(|| {
                let ends = indices.iter().filter(|(name, _)| at.symbols().contains(*name)).flat_map(|(_, (_, last))| last.symbols());
                (size.symbols().into_iter().chain(at.symbols()).chain(ends).collect(), i64::MAX)
            });
            changed |= enlarge(sizes, &symbols, &|_| least);
        }
        if !changed {
            return;
        }
    }
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
    grow(&mut small.sizes, program);
    small
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::load_str;

    #[test]
    fn ranges_keep_values_and_subscripts_in_loops_keep_their_places() {
        let text = "model: m\ndims: {b: 9, t: 40, g: 8, u: 9}\ndtype: f64\ninputs:\n  z: [t, b, g, u]\n  \
                    n: {dims: [b], dtype: i32, range: \"[30, size(t)]\"}\nsteps:\n  \
                    - \"h[t,b,u] = where(t < n[b], h[t-1,b,u else 0] * z[t,b,7,u], 0)\"\n";
        let program = load_str("m.yaml", text, &[]).unwrap_or_else(|errors| panic!("{errors}")).program;
        let small = with_small_sizes(&program);
        assert_eq!((small.sizes["T"] >= 30, small.sizes["G"], small.sizes["U"]), (true, 8, 5), "{:?}", small.sizes);
    }

    #[test]
    fn halved_images_and_windows_without_a_fill_stay_whole() {
        let text = "model: m\ndims: {c: 3, h: 64, r: 3, a: (h-2)/2+1, b: (a-2)/2+1, d: (b-2)/2+1, p: 29, t: 2}\ndtype: f64\n\
                    inputs: {x: [c, h]}\nsteps:\n  \
                    - \"y[c,p] = max(x[c,2*p+r], over: r)\"\n  \
                    - \"u[c,a] = max(x[c,2*a+t], over: t)\"\n  \
                    - \"v[c,b] = max(u[c,2*b+t], over: t)\"\n  \
                    - \"w[c,d] = max(v[c,2*d+t], over: t)\"\n";
        let program = load_str("m.yaml", text, &[]).unwrap_or_else(|errors| panic!("{errors}")).program;
        let small = with_small_sizes(&program);
        assert_eq!(sdfg::validate::validate(&small), []);
        assert!(small.dims.values().all(|size| size.eval(&small.sizes).is_ok_and(|size| size > 0)), "{:?}", small.sizes);
        assert!(small.sizes["H"] < 64, "{:?}", small.sizes);
    }
}
