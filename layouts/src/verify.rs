//! An independent check of a certificate against the stored measurements.
//!
//! It shares no code with the solver: only the file formats, and what was measured (records, and prices of relayouts).
//! It builds the cost functions again from program and records, works out what the certified choice costs, and walks
//! through the proof: shares of costs are added up to lower bounds, eliminations are carried out, and every value that
//! is left at a split must have its part. Nothing is searched. Sums are 128 bits wide, so they are exact whatever the
//! certificate says.

use crate::certificate::{Certificate, Proof, Shares};
use crate::problem::{Access, Program};
use crate::relayout::RelayoutCosts;
use crate::store::Store;
use std::collections::{BTreeMap, BTreeSet};

type Ps = i128;

/// Larger than any total: what may not be.
const NEVER: Ps = 1 << 100;
/// Entries of a table that the check is willing to make.
const LARGEST: usize = 1 << 26;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    #[error("the certificate is of other measurements than these records hold; solve again")]
    OtherMeasurements,
    #[error("the certificate does not fit its program: {0}")]
    Misfit(String),
    #[error("the certificate says that the choice costs {claimed} ps, but with these measurements it costs {found} ps")]
    Price { claimed: i64, found: Ps },
    #[error("the certificate says that no choice costs less than {claimed} ps, but its proof only shows {shown} ps")]
    Bound { claimed: i64, shown: Ps },
}

/// What was confirmed, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    pub total_ps: i64,
    pub bound_ps: i64,
}

/// A kernel: legs to variables, each with the costs of what a row can ask; rows of a time and one ask for each leg.
struct Kernel {
    name: String,
    legs: Vec<(usize, Vec<Vec<Ps>>)>,
    rows: Vec<(Ps, Vec<usize>)>,
}

/// Values left of every variable, rows left of every kernel.
type Left = (Vec<Vec<usize>>, Vec<Vec<usize>>);

fn misfit<T>(what: impl Into<String>) -> Result<T, VerifyError> {
    Err(VerifyError::Misfit(what.into()))
}

/// Confirms that the certified choice costs what it says, and that no choice in the store costs less than its bound.
pub fn verify(certificate: &Certificate, store: &Store) -> Result<Confirmed, VerifyError> {
    if certificate.measurements != crate::certificate::measurements(store) {
        return Err(VerifyError::OtherMeasurements);
    }
    let (kernels, domains) = rebuild(certificate, store)?;
    let found = price(certificate, store)?;
    if found != Ps::from(certificate.total_ps) {
        return Err(VerifyError::Price { claimed: certificate.total_ps, found });
    }
    let rows = kernels.iter().map(|k| (0..k.rows.len()).collect()).collect();
    let mut left: Left = (domains, rows);
    for (variable, value, by) in &certificate.dominated {
        let Some(domain) = left.0.get_mut(*variable).filter(|d| d.contains(by) && value != by) else {
            return misfit("a value is replaced by none");
        };
        let legs = kernels.iter().flat_map(|k| &k.legs).filter(|(v, _)| v == variable);
        let more: Ps = legs.map(|(_, asks)| asks.iter().map(|ask| ask[*by] - ask[*value]).max().unwrap_or(0)).sum();
        if more > 0 {
            return misfit(format!(
                "a layout of `{}` is said to replace another, but may cost more",
                certificate.variables[*variable].name
            ));
        }
        domain.retain(|v| v != value);
    }
    let shown = walk(certificate, &kernels, 0, left, &Shares::new(), found)?;
    if shown < Ps::from(certificate.bound_ps) || certificate.bound_ps > certificate.total_ps {
        return Err(VerifyError::Bound { claimed: certificate.bound_ps, shown });
    }
    Ok(Confirmed { total_ps: certificate.total_ps, bound_ps: certificate.bound_ps })
}

/// The least that anything in a part can cost, as its proof shows it; never more than `target`.
fn walk(of: &Certificate, kernels: &[Kernel], at: usize, mut left: Left, shares: &Shares, target: Ps) -> Result<Ps, VerifyError> {
    let Some(part) = of.parts.get(at) else { return misfit(format!("part {at} is missing")) };
    let mut shares = shares;
    // Those of the part above first: with fewer values left they may say more.
    for next in std::iter::once(shares).chain(&part.shares) {
        shares = next;
        let (_, values, rows) = bounds(of, kernels, &left, shares)?;
        for (domain, bounds) in left.0.iter_mut().zip(values) {
            domain.retain(|v| bounds[*v] < target);
        }
        for (left, bounds) in left.1.iter_mut().zip(rows) {
            left.retain(|r| bounds[r] < target);
        }
        if left.0.iter().chain(&left.1).any(Vec::is_empty) {
            return Ok(target);
        }
    }
    match &part.step {
        Proof::Bounded => Ok(bounds(of, kernels, &left, shares)?.0.min(target)),
        Proof::Eliminated { order } => Ok(eliminated(kernels, &left, order)?.min(target)),
        Proof::Split { variable, parts } => {
            let Some(domain) = left.0.get(*variable).cloned() else { return misfit("a split of no variable") };
            let mut least = target;
            for value in domain {
                // Parts come later in the list: a walk ends.
                let Some((_, next)) = parts.iter().find(|(v, next)| *v == value && *next > at) else {
                    return misfit("a value has no part");
                };
                let mut only = left.clone();
                only.0[*variable] = vec![value];
                least = least.min(walk(of, kernels, *next, only, shares, target)?);
            }
            Ok(least)
        }
    }
}

/// Lower bounds under shares: of everything, by variable and value, and by kernel and row.
type Bounds = (Ps, Vec<Vec<Ps>>, Vec<BTreeMap<usize, Ps>>);

fn bounds(of: &Certificate, kernels: &[Kernel], left: &Left, shares: &Shares) -> Result<Bounds, VerifyError> {
    let mut held: Vec<Vec<Ps>> = of.variables.iter().map(|v| vec![0; v.values.len()]).collect();
    let mut given: Vec<Vec<Vec<Ps>>> = Vec::new();
    for kernel in kernels {
        let mut own = Vec::new();
        for (variable, _) in &kernel.legs {
            let of_leg = shares.get(&kernel.name).and_then(|s| s.get(&of.variables[*variable].name));
            let leg: Vec<Ps> = of_leg.map_or_else(|| vec![0; held[*variable].len()], |s| s.iter().map(|n| Ps::from(*n)).collect());
            if leg.len() != held[*variable].len() {
                return misfit(format!("shares of `{}` have another length than its variable", kernel.name));
            }
            held[*variable].iter_mut().zip(&leg).for_each(|(h, s)| *h += s);
            own.push(leg);
        }
        given.push(own);
    }
    let floor: Vec<Ps> = held.iter().zip(&left.0).map(|(h, domain)| domain.iter().map(|v| h[*v]).min().unwrap_or(NEVER)).collect();
    let mut least: Ps = floor.iter().sum();
    let mut extra: Vec<Vec<Ps>> = held.iter().zip(&floor).map(|(h, f)| h.iter().map(|h| h - f).collect()).collect();
    let mut by_row = Vec::new();
    for ((kernel, given), rows) in kernels.iter().zip(&given).zip(&left.1) {
        let cheapest = |(leg, given): (&(usize, Vec<Vec<Ps>>), &Vec<Ps>)| -> Vec<Ps> {
            leg.1.iter().map(|ask| left.0[leg.0].iter().map(|v| ask[*v] - given[*v]).min().unwrap_or(NEVER)).collect()
        };
        let reach: Vec<Vec<Ps>> = kernel.legs.iter().zip(given).map(cheapest).collect();
        let total = |row: &usize| kernel.rows[*row].1.iter().zip(&reach).fold(kernel.rows[*row].0, |sum, (ask, r)| sum + r[*ask]);
        let totals: BTreeMap<usize, Ps> = rows.iter().map(|r| (*r, total(r))).collect();
        let own = totals.values().min().copied().unwrap_or(NEVER);
        least += own;
        for (n, (variable, asks)) in kernel.legs.iter().enumerate() {
            let mut by_ask: Vec<Ps> = vec![NEVER; asks.len()];
            for (row, total) in &totals {
                let ask = kernel.rows[*row].1[n];
                by_ask[ask] = by_ask[ask].min(total - reach[n][ask]);
            }
            for v in &left.0[*variable] {
                let with = by_ask.iter().zip(asks).map(|(others, ask)| others + ask[*v] - given[n][*v]).min().unwrap_or(NEVER);
                extra[*variable][*v] += with - own;
            }
        }
        by_row.push(totals.into_iter().map(|(r, t)| (r, t - own)).collect::<BTreeMap<_, _>>());
    }
    extra.iter_mut().flatten().for_each(|e| *e += least);
    by_row.iter_mut().flat_map(|rows| rows.values_mut()).for_each(|e| *e += least);
    Ok((least, extra, by_row))
}

/// Variables, and a cost for every combination of the values left of them; the first varies fastest.
type Table = (Vec<usize>, Vec<Ps>);

/// The exact minimum of what is left.
fn eliminated(kernels: &[Kernel], left: &Left, order: &[usize]) -> Result<Ps, VerifyError> {
    let size = |v: &usize| left.0.get(*v).map_or(0, Vec::len);
    let entries = |scope: &[usize]| match scope.iter().try_fold(1usize, |n, v| n.checked_mul(size(v))).filter(|n| *n <= LARGEST) {
        Some(entries) => Ok(entries),
        None => misfit("a table of its elimination is too large"),
    };
    let place = |scope: &[usize], digit: &dyn Fn(usize) -> usize| {
        scope.iter().fold((0, 1), |(at, weight), v| (at + weight * digit(*v), weight * size(v))).0
    };
    let mut tables: Vec<Table> = Vec::new();
    for (kernel, rows) in kernels.iter().zip(&left.1) {
        // What a row asks is replaced by the value that is held, leg by leg.
        let mut partial: BTreeMap<Vec<usize>, Ps> = BTreeMap::new();
        for (ps, asks) in rows.iter().map(|r| &kernel.rows[*r]) {
            let least = partial.entry(asks.clone()).or_insert(NEVER);
            *least = (*least).min(*ps);
        }
        for (n, (variable, asks)) in kernel.legs.iter().enumerate() {
            let mut next: BTreeMap<Vec<usize>, Ps> = BTreeMap::new();
            for (key, cost) in partial {
                for (digit, value) in left.0[*variable].iter().enumerate() {
                    let mut held = key.clone();
                    held[n] = digit;
                    let least = next.entry(held).or_insert(NEVER);
                    *least = (*least).min(cost + asks[key[n]][*value]);
                }
            }
            partial = next;
        }
        let scope: Vec<usize> = kernel.legs.iter().map(|(v, _)| *v).collect();
        let mut costs = vec![NEVER; entries(&scope)?];
        for (key, cost) in partial {
            costs[place(&scope, &|v| scope.iter().position(|s| *s == v).map_or(0, |p| key[p]))] = cost;
        }
        tables.push((scope, costs));
    }
    let rest = (0..left.0.len()).filter(|v| !order.contains(v));
    for variable in order.iter().copied().chain(rest) {
        let (mine, others): (Vec<Table>, Vec<Table>) = tables.into_iter().partition(|(scope, _)| scope.contains(&variable));
        tables = others;
        let scope: BTreeSet<usize> = mine.iter().flat_map(|(s, _)| s.iter().copied()).filter(|v| *v != variable).collect();
        let scope: Vec<usize> = scope.into_iter().collect();
        let mut joint = Vec::with_capacity(entries(&scope)?);
        let mut digits = vec![0usize; left.0.len()];
        for mut n in 0..entries(&scope)? {
            for v in &scope {
                (digits[*v], n) = (n % size(v), n / size(v));
            }
            let at = |v: usize| if v == variable { 0 } else { digits[v] };
            let bases: Vec<(usize, usize)> =
                mine.iter().map(|(s, _)| (place(s, &at), s.iter().take_while(|v| **v != variable).map(size).product())).collect();
            let cost = |digit: usize| mine.iter().zip(&bases).map(|((_, costs), (base, step))| costs[base + step * digit]).sum::<Ps>();
            joint.push((0..size(&variable)).map(cost).min().unwrap_or(NEVER));
        }
        tables.push((scope, joint));
    }
    Ok(tables.iter().flat_map(|(_, costs)| costs).sum())
}

/// A time in milliseconds as picoseconds; the reader of records has refused what is no time.
fn ps(ms: f64) -> Ps {
    (ms * 1e9).round() as Ps
}

/// What a kernel pays for a container that is held in one layout while it wants another.
fn relayouts(prices: &RelayoutCosts, data: &str, access: Access, held: &str, wanted: &str) -> Result<Ps, VerifyError> {
    let (Ok(held), Ok(wanted)) = (held.parse(), wanted.parse()) else { return misfit(format!("`{held}` or `{wanted}` is no layout")) };
    let (before, after) = (ps(prices.cost(data, &held, &wanted).ms), ps(prices.cost(data, &wanted, &held).ms));
    Ok(match access {
        Access::Read => before,
        Access::Write => after,
        Access::Update => before + after,
    })
}

/// Container → the first container that it is tied to, directly or not.
fn classes(program: &Program) -> BTreeMap<&str, &str> {
    let mut first: Vec<usize> = (0..program.tensors.len()).collect();
    let at = |data: &str| program.tensors.iter().position(|t| t.data == data);
    let tied: Vec<(usize, usize)> = program.ties.iter().filter_map(|(a, b)| Some((at(a)?, at(b)?))).collect();
    while let Some((a, b)) = tied.iter().find(|(a, b)| first[*a] != first[*b]) {
        let (keep, drop) = (first[*a].min(first[*b]), first[*a].max(first[*b]));
        first.iter_mut().filter(|f| **f == drop).for_each(|f| *f = keep);
    }
    program.tensors.iter().zip(&first).map(|(t, f)| (t.data.as_str(), program.tensors[*f].data.as_str())).collect()
}

/// Kernels and domains, from the program and what was measured.
fn rebuild(of: &Certificate, store: &Store) -> Result<(Vec<Kernel>, Vec<Vec<usize>>), VerifyError> {
    let (program, prices) = (&of.program, RelayoutCosts::new(&of.program, store));
    let class = classes(program);
    let variable = |name: &str| {
        of.variables.iter().position(|v| v.name == name).ok_or_else(|| VerifyError::Misfit(format!("`{name}` is no variable")))
    };
    let value = |at: usize, value: &str| {
        let found = of.variables[at].values.iter().position(|v| v == value);
        found.ok_or_else(|| VerifyError::Misfit(format!("`{value}` is no value of `{}`", of.variables[at].name)))
    };
    let mut domains: Vec<BTreeSet<usize>> = vec![BTreeSet::new(); of.variables.len()];
    let mut natural: BTreeMap<usize, usize> = BTreeMap::new();
    let mut fixed: BTreeMap<usize, usize> = BTreeMap::new();
    for tensor in program.tensors.iter().filter(|t| class[t.data.as_str()] == t.data) {
        let at = variable(&tensor.data)?;
        natural.insert(at, value(at, &tensor.natural.to_string())?);
        domains[at].insert(natural[&at]);
    }
    for (data, layout) in &program.boundary {
        let Some(class) = class.get(data.as_str()) else { return misfit(format!("`{data}` is no container")) };
        let at = variable(class)?;
        fixed.insert(at, value(at, &layout.to_string())?);
    }
    for (group, variants) in &program.alternatives {
        let at = variable(group)?;
        for variant in variants {
            domains[at].insert(value(at, variant)?);
        }
    }
    let mut kernels = Vec::new();
    for kernel in &program.kernels {
        let timed: Vec<_> = store.of(&kernel.key).filter_map(|m| Some((ps(store.ms(m)?), &m.config))).collect();
        let mut legs: Vec<(usize, Vec<Vec<Ps>>)> = Vec::new();
        let mut touches: Vec<(&str, &str, Access, usize)> = Vec::new();
        for (data, access) in &kernel.tensors {
            let Some(tensor) = program.tensors.iter().find(|t| t.data == *data) else { return misfit(format!("`{data}` is no container")) };
            touches.push((data, tensor.plain(), *access, variable(class[data.as_str()])?));
        }
        let touched: BTreeSet<usize> = touches.iter().map(|t| t.3).collect();
        legs.extend(touched.iter().map(|v| (*v, Vec::new())));
        let mut known: Vec<BTreeMap<Vec<usize>, usize>> = vec![BTreeMap::new(); legs.len()];
        let mut rows = Vec::new();
        for (time, config) in &timed {
            let mut asks = Vec::new();
            for (n, (at, costs)) in legs.iter_mut().enumerate() {
                let mine: Vec<_> = touches.iter().filter(|t| t.3 == *at).collect();
                let wanted = |t: &&(&str, &str, Access, usize)| match config.layouts.get(t.1) {
                    Some(layout) => value(*at, &layout.to_string()),
                    None => Ok(natural[at]),
                };
                let wanted = mine.iter().copied().map(|t| wanted(&t)).collect::<Result<Vec<usize>, _>>()?;
                domains[*at].extend(&wanted);
                let next = known[n].len();
                let ask = *known[n].entry(wanted.clone()).or_insert(next);
                if ask == next {
                    let values = &of.variables[*at].values;
                    let cost = |held: &String| {
                        mine.iter().zip(&wanted).map(|(t, w)| relayouts(&prices, t.0, t.2, held, &values[*w])).sum::<Result<Ps, _>>()
                    };
                    costs.push(values.iter().map(cost).collect::<Result<Vec<Ps>, _>>()?);
                }
                asks.push(ask);
            }
            rows.push((*time, asks));
        }
        // Where it does not run it costs nothing, whatever is held; where it was never timed it cannot run.
        for (group, variants) in &kernel.only {
            let at = variable(group)?;
            let runs = variants.iter().map(|v| value(at, v)).collect::<Result<BTreeSet<usize>, _>>()?;
            let values = of.variables[at].values.len();
            if program.alternatives.get(group).is_some_and(|all| all.iter().all(|v| variants.contains(v))) {
                continue;
            }
            let allowed = |on: bool| (0..values).map(|v| if runs.contains(&v) == on { 0 } else { NEVER }).collect::<Vec<Ps>>();
            rows.iter_mut().for_each(|(_, asks)| asks.push(0));
            legs.push((at, vec![allowed(true), allowed(false), vec![0; values]]));
        }
        let containers = touched.len();
        if legs.len() > containers {
            legs[..containers].iter_mut().for_each(|(at, costs)| costs.push(vec![0; of.variables[*at].values.len()]));
        }
        for idle in containers..legs.len() {
            let indifferent = legs[..containers].iter().map(|(_, costs)| costs.len() - 1);
            rows.push((0, indifferent.chain((containers..legs.len()).map(|n| if n == idle { 1 } else { 2 })).collect()));
        }
        kernels.push(Kernel { name: kernel.name.clone(), legs, rows });
    }
    for (at, value) in fixed {
        domains[at] = BTreeSet::from([value]);
    }
    Ok((kernels, domains.into_iter().map(|d| d.into_iter().collect()).collect()))
}

/// What the certified choice costs: times of its configurations, and relayouts to and from how its containers are held.
fn price(of: &Certificate, store: &Store) -> Result<Ps, VerifyError> {
    let prices = RelayoutCosts::new(&of.program, store);
    for (group, variants) in &of.program.alternatives {
        if of.variants.get(group).is_none_or(|v| !variants.contains(v)) {
            return misfit(format!("it chooses no variant of `{group}`"));
        }
    }
    if let Some((a, b)) = of.program.ties.iter().find(|(a, b)| of.layouts.get(a) != of.layouts.get(b)) {
        return misfit(format!("`{a}` and `{b}` are tied but held in different layouts"));
    }
    if let Some((data, layout)) = of.program.boundary.iter().find(|(data, layout)| of.layouts.get(*data) != Some(*layout)) {
        return misfit(format!("`{data}` is not held in [{layout}], as the boundary asks"));
    }
    let mut total = 0;
    for kernel in of.program.kernels.iter().filter(|k| k.only.iter().all(|(g, v)| v.contains(&of.variants[g]))) {
        let timed = of.kernels.get(&kernel.name).and_then(|config| Some((config, store.ms(store.get(&kernel.key, config)?)?)));
        let Some((config, ms)) = timed else { return misfit(format!("its configuration of `{}` was not measured", kernel.name)) };
        total += ps(ms);
        for (data, access) in &kernel.tensors {
            let tensor = of.program.tensors.iter().find(|t| t.data == *data);
            let (Some(held), Some(tensor)) = (of.layouts.get(data), tensor) else { return misfit(format!("`{data}` is not held")) };
            let first = classes(&of.program)[data.as_str()];
            let natural = of.program.tensors.iter().find(|t| t.data == first).map_or(&tensor.natural, |t| &t.natural);
            let wanted = config.layouts.get(tensor.plain()).unwrap_or(natural);
            total += relayouts(&prices, data, *access, &held.to_string(), &wanted.to_string())?;
        }
    }
    Ok(total)
}
