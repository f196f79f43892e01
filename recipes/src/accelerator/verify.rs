//! Checks a certificate without the planner: every interval of steps is priced, or cannot lie on a way that is shorter.
//!
//! The floor of an interval is worked out here row by row: which rows of each tensor its results need. What the simulator counted for the
//! chosen groups stands for their prices. Prices of other groups are taken as they are, above their floors: the proof is that no partition
//! of this order into priced groups moves less.

use super::certificate::{FORMAT, ScheduleCertificate};
use super::steps::FusedSteps;
use std::collections::BTreeMap;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleVerifyError {
    #[error("the certificate has format {0}; this version of Memlet reads format {FORMAT}; plan again")]
    Format(u32),
    #[error("the certificate is of other steps than the network's: {0}")]
    Steps(String),
    #[error("the groups do not follow one another from the first step to the last")]
    Groups,
    #[error("group {group} is priced at {priced} elements, and {counted} were counted")]
    Counted { group: usize, priced: u64, counted: u64 },
    #[error("steps {begin} to {end} are priced at {price} elements; what they read and write alone is {floor}")]
    Floor { begin: usize, end: usize, price: u64, floor: u64 },
    #[error("steps {begin} to {end} are not priced, and a way through them might move {total} elements where {least} are said to be least")]
    Unpriced { begin: usize, end: usize, total: u64, least: u64 },
    #[error("at cut {cut} the least is said to be {said}, and the prices give {found}")]
    Least { cut: usize, said: u64, found: u64 },
}

/// Which rows of a tensor are needed, and the first and the last column.
struct Needed {
    rows: Vec<bool>,
    columns: (usize, usize),
}

impl Needed {
    fn nothing(rows: usize) -> Needed {
        Needed { rows: vec![false; rows], columns: (usize::MAX, 0) }
    }

    fn columns(&mut self, (first, last): (usize, usize)) {
        self.columns = (self.columns.0.min(first), self.columns.1.max(last));
    }
}

/// Elements that the results of steps `begin` to `end` (not included) need moved at least: what is read from outside of the rows that are
/// needed, from the first column to the last, the results, and the weights.
fn floor(steps: &FusedSteps, begin: usize, end: usize) -> u64 {
    let mut needed: BTreeMap<usize, Needed> = BTreeMap::new();
    let mut total = 0;
    for at in (begin..end).rev() {
        let step = &steps.steps[at];
        let made = &steps.tensors[step.output];
        let outside = made.result || made.readers.iter().any(|r| *r < begin || *r >= end);
        let mut own = needed.remove(&step.output).unwrap_or_else(|| Needed::nothing(made.shape.rows));
        if outside {
            own = Needed { rows: vec![true; made.shape.rows], columns: (0, made.shape.columns - 1) };
        }
        total += step.filter + step.rest + if outside { made.shape.elements() } else { 0 };
        if own.rows.iter().all(|n| !n) {
            continue;
        }
        for input in &step.inputs {
            let shape = steps.tensors[*input].shape;
            let of = needed.entry(*input).or_insert_with(|| Needed::nothing(shape.rows));
            let reach = step.window.rows;
            for (row, _) in own.rows.iter().enumerate().filter(|(_, n)| **n) {
                for tap in 0..reach.kernel {
                    let read = (row * reach.stride + tap).checked_sub(reach.pad);
                    if let Some(mark) = read.and_then(|r| of.rows.get_mut(r)) {
                        *mark = true;
                    }
                }
            }
            let reach = step.window.columns;
            let last = (own.columns.1 * reach.stride + reach.kernel - 1).saturating_sub(reach.pad).min(shape.columns - 1);
            of.columns(((own.columns.0 * reach.stride).saturating_sub(reach.pad), last));
        }
        for side in &step.sides {
            let of = needed.entry(*side).or_insert_with(|| Needed::nothing(made.shape.rows));
            of.rows.iter_mut().zip(&own.rows).for_each(|(mark, n)| *mark |= n);
            of.columns(own.columns);
        }
    }
    // What is left was made outside.
    let elements = |(tensor, of): (&usize, &Needed)| {
        let columns = (of.columns.1 + 1).saturating_sub(of.columns.0);
        of.rows.iter().filter(|n| **n).count() as u64 * (columns * steps.tensors[*tensor].shape.channels) as u64
    };
    total + needed.iter().map(elements).sum::<u64>()
}

/// Confirms that no partition of the steps into priced groups moves less than the one chosen; `counted` is what a simulator counted for
/// each chosen group. Returns the elements that the partition moves.
///
/// # Errors
/// The first thing that does not hold.
pub fn verify(steps: &FusedSteps, certificate: &ScheduleCertificate, counted: &[u64]) -> Result<u64, ScheduleVerifyError> {
    if certificate.format != FORMAT {
        return Err(ScheduleVerifyError::Format(certificate.format));
    }
    let count = steps.steps.len();
    if certificate.least.len() != count + 1 || certificate.steps.len() != count || count == 0 {
        return Err(ScheduleVerifyError::Steps(format!("{} instead of {count}", certificate.steps.len())));
    }
    if let Some((said, step)) = certificate.steps.iter().zip(&steps.steps).find(|(said, step)| **said != step.name) {
        return Err(ScheduleVerifyError::Steps(format!("`{said}` instead of `{}`", step.name)));
    }
    let mut prices: BTreeMap<(usize, usize), Option<u64>> = BTreeMap::new();
    for (begin, end, price) in &certificate.priced {
        prices.insert((*begin, *end), *price);
    }
    let mut at = 0;
    let mut total = 0;
    for (number, (begin, end)) in certificate.groups.iter().enumerate() {
        if *begin != at || end <= begin {
            return Err(ScheduleVerifyError::Groups);
        }
        let priced = prices.get(&(*begin, *end)).copied().flatten().unwrap_or(0);
        let counted = counted.get(number).copied().unwrap_or(0);
        if priced != counted {
            return Err(ScheduleVerifyError::Counted { group: number + 1, priced, counted });
        }
        (at, total) = (*end, total + priced);
    }
    if at != count || certificate.groups.len() != counted.len() {
        return Err(ScheduleVerifyError::Groups);
    }
    let rest: Vec<u64> = (0..=count).map(|cut| if cut == count { 0 } else { floor(steps, cut, count) }).collect();
    let mut least: Vec<Option<u64>> = vec![None; count + 1];
    least[0] = Some(0);
    for end in 1..=count {
        // The planner's floors may be lower than those here: a way that cannot end below the bound is neither needed nor wrong.
        let said = certificate.least[end].filter(|said| said.saturating_add(rest[end]) < certificate.bound);
        // A way through this cut matters only if it can end below the bound, and here below what is said to be least.
        let limit = said.unwrap_or(u64::MAX).min(certificate.bound.saturating_sub(rest[end]));
        let mut found: Option<u64> = None;
        for (begin, before) in least.iter().enumerate().take(end) {
            let &Some(before) = before else { continue };
            let own = || floor(steps, begin, end);
            match prices.get(&(begin, end)) {
                Some(Some(price)) => {
                    if *price < own() {
                        return Err(ScheduleVerifyError::Floor { begin, end, price: *price, floor: own() });
                    }
                    found = Some(found.map_or(before + price, |f| f.min(before + price)));
                }
                Some(None) => {}
                None if before + own() < limit => {
                    return Err(ScheduleVerifyError::Unpriced { begin, end, total: before + own(), least: limit });
                }
                None => {}
            }
        }
        let found = found.filter(|f| f + rest[end] < certificate.bound);
        if found != said {
            return Err(ScheduleVerifyError::Least { cut: end, said: said.unwrap_or(u64::MAX), found: found.unwrap_or(u64::MAX) });
        }
        least[end] = found;
    }
    match least[count] {
        Some(least) if least == total => Ok(total),
        least => Err(ScheduleVerifyError::Least { cut: count, said: total, found: least.unwrap_or(u64::MAX) }),
    }
}
