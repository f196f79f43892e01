//! An independent check of a certificate against the stored measurements.
//!
//! It shares no code with the solver: only the file formats, and the measured data (records, and prices of relayouts).
//! [`swept`] confirms that the choice is among programs that were swept, or a combination of their variants. [`question`] builds the cost
//! functions from program and records once more and computes the cost of the certified choice. This module walks through the proof:
//! shares of costs are added up to lower bounds, eliminations are carried out, and every value that remains at a split must have its
//! part. Nothing is searched. Sums are 128 bits wide, so they are exact for every certificate.

mod programs;
pub mod question;

use crate::certify::certificate::{Certificate, CertifiedLayerBound, CertifiedProof, Shares, Variable};
use crate::measure::store::Store;
pub use programs::swept;
use question::{NEVER, Question, QuestionFactor, QuestionRow};
use std::collections::BTreeSet;

type Ps = i128;

/// Entries of a table that the check is willing to make.
const LARGEST: usize = 1 << 24;

#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VerifyError {
    #[error("the certificate is of other measurements than these records hold; solve again")]
    OtherMeasurements,
    #[error("the certificate is of a program that was not swept in these records; solve again")]
    OtherProgram,
    #[error("the certificate does not fit its program: {0}")]
    Misfit(String),
    #[error("the certificate says that the choice costs {claimed} ps, but with these measurements it costs {found} ps")]
    Price { claimed: i64, found: Ps },
    #[error("the certificate says that no choice costs less than {claimed} ps, but its proof only shows {shown} ps")]
    Bound { claimed: i64, shown: Ps },
}

/// The confirmed costs, in picoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    pub total_ps: i64,
    pub bound_ps: i64,
}

fn misfit<T>(what: impl Into<String>) -> Result<T, VerifyError> {
    Err(VerifyError::Misfit(what.into()))
}

/// Confirms that the certified choice costs what it says, and that no choice in the store costs less than its bound.
pub fn verify(certificate: &Certificate, store: &Store) -> Result<Confirmed, VerifyError> {
    if certificate.measurements != crate::certify::certificate::measurements(store) {
        return Err(VerifyError::OtherMeasurements);
    }
    let mut question = Question::read(certificate, store)?;
    let found = question.price()?;
    if found != Ps::from(certificate.total_ps) {
        return Err(VerifyError::Price { claimed: certificate.total_ps, found });
    }
    // Potentials of neighbouring layers cancel, but for those at both ends.
    let (first, last) = question.ends()?;
    let steps = certificate.layers.iter().map(|layer| certificate.steps.get(layer.step)).collect::<Option<Vec<&CertifiedLayerBound>>>();
    let Some(steps) = steps.filter(|s| s.windows(2).all(|pair| pair[0].leaves == pair[1].enters)) else {
        return misfit("its layers do not follow one another");
    };
    let potential = |at: usize, state: usize| certificate.potentials.get(at).and_then(|t| t.get(state)).copied().map(Ps::from);
    let ends = steps.first().zip(steps.last()).and_then(|(a, b)| Some(potential(a.enters, first)? - potential(b.leaves, last)?));
    let Some(mut shown) = ends else { return misfit("a potential is missing") };
    let mut least = Vec::new();
    for step in &certificate.steps {
        let sides = [question.potential(step.enters, true)?, question.potential(step.leaves, false)?];
        question.factors.extend(sides);
        least.push(proven(&question, step)?);
        question.factors.truncate(certificate.program.kernels.len() + certificate.program.needs.len());
    }
    shown += certificate.layers.iter().map(|layer| least[layer.step]).sum::<Ps>();
    if shown < Ps::from(certificate.bound_ps) || certificate.bound_ps > certificate.total_ps {
        return Err(VerifyError::Bound { claimed: certificate.bound_ps, shown });
    }
    Ok(Confirmed { total_ps: certificate.total_ps, bound_ps: certificate.bound_ps })
}

/// The values of each variable and the rows of each kernel that are not ruled out.
#[derive(Clone)]
struct Left<'a> {
    values: Vec<Vec<usize>>,
    rows: Vec<Vec<&'a QuestionRow>>,
}

struct Check<'a> {
    factors: &'a [QuestionFactor],
    variables: &'a [Variable],
    step: &'a CertifiedLayerBound,
}

/// The least that the kernels can cost together, as the proof of a step shows it; never more than its target.
fn proven(question: &Question, step: &CertifiedLayerBound) -> Result<Ps, VerifyError> {
    let check = Check { factors: &question.factors, variables: question.variables(), step };
    let rows = check.factors.iter().map(|f| f.rows.iter().collect()).collect();
    let mut left = Left { values: question.values.clone(), rows };
    for (variable, value, by) in &step.dominated {
        let Some(values) = left.values.get_mut(*variable).filter(|v| v.contains(by) && v.contains(value) && value != by) else {
            return misfit("a value is replaced by none");
        };
        let legs = check.factors.iter().flat_map(|f| &f.legs).filter(|leg| leg.variable == *variable);
        let more: Ps = legs.map(|leg| leg.asks.iter().map(|ask| ask[*by] - ask[*value]).max().unwrap_or(0)).sum();
        if more > 0 {
            return misfit(format!("a value of `{}` is said to replace another, but may cost more", check.variables[*variable].name));
        }
        values.retain(|v| v != value);
    }
    check.walk(0, left, &Shares::new())
}

impl<'a> Check<'a> {
    fn walk(&self, at: usize, mut left: Left<'a>, shares: &Shares) -> Result<Ps, VerifyError> {
        let (target, Some(part)) = (Ps::from(self.step.target_ps), self.step.parts.get(at)) else {
            return misfit(format!("part {at} is missing"));
        };
        let (mut shares, mut least) = (shares, 0);
        // The shares of the part above come first: with fewer values left they may rule out more. The last round is for the remaining
        // values.
        let looks = std::iter::once(shares).chain(&part.shares).chain(part.shares.last());
        for next in looks {
            shares = next;
            least = self.bound(&mut left, shares, target)?;
            if left.values.iter().any(Vec::is_empty) || left.rows.iter().any(Vec::is_empty) {
                return Ok(target);
            }
        }
        match &part.step {
            CertifiedProof::Bounded => Ok(least.min(target)),
            CertifiedProof::Eliminated { order } => Ok(self.eliminated(&left, order)?.min(target)),
            CertifiedProof::Split { variable, parts } => {
                let Some(values) = left.values.get(*variable).cloned() else { return misfit("a split of no variable") };
                let mut least = target;
                for value in values {
                    // Parts come later in the list: a walk ends.
                    let Some((_, next)) = parts.iter().find(|(v, next)| *v == value && *next > at) else {
                        return misfit("a value has no part");
                    };
                    let mut only = left.clone();
                    only.values[*variable] = vec![value];
                    least = least.min(self.walk(*next, only, shares)?);
                }
                Ok(least)
            }
        }
    }

    /// The sum of minima after every kernel gave shares of its cost to its variables. Drops values and rows with which
    /// nothing is cheaper than the target.
    fn bound(&self, left: &mut Left, shares: &Shares, target: Ps) -> Result<Ps, VerifyError> {
        let mut held: Vec<Vec<Ps>> = self.variables.iter().map(|v| vec![0; v.values.len()]).collect();
        // By kernel and leg: what an ask costs for each value beyond the share; then the least of it, and the rows' totals.
        let (mut reduced, mut reach, mut totals) = (Vec::new(), Vec::new(), Vec::new());
        for (factor, rows) in self.factors.iter().zip(&left.rows) {
            let (mut legs, mut least): (Vec<Vec<Vec<Ps>>>, Vec<Vec<Ps>>) = (Vec::new(), Vec::new());
            for leg in &factor.legs {
                let given = shares.get(&factor.name).and_then(|s| s.get(&self.variables[leg.variable].name));
                let given =
                    given.map_or_else(|| vec![0; self.variables[leg.variable].values.len()], |s| s.iter().map(|s| Ps::from(*s)).collect());
                if given.len() != self.variables[leg.variable].values.len() {
                    return misfit(format!("shares of `{}` have another length than its variable", factor.name));
                }
                held[leg.variable].iter_mut().zip(&given).for_each(|(held, share)| *held += share);
                let asks: Vec<Vec<Ps>> = leg.asks.iter().map(|a| a.iter().zip(&given).map(|(a, s)| a - s).collect()).collect();
                least.push(asks.iter().map(|a| left.values[leg.variable].iter().map(|v| a[*v]).min().unwrap_or(NEVER)).collect());
                legs.push(asks);
            }
            let total = |row: &&QuestionRow| row.ps + row.asks.iter().zip(&least).map(|(ask, reach)| reach[*ask]).sum::<Ps>();
            totals.push(rows.iter().map(total).collect::<Vec<Ps>>());
            reduced.push(legs);
            reach.push(least);
        }
        let floor: Vec<Ps> = held.iter().zip(&left.values).map(|(h, v)| v.iter().map(|v| h[*v]).min().unwrap_or(NEVER)).collect();
        let minima: Vec<Ps> = totals.iter().map(|t| t.iter().min().copied().unwrap_or(NEVER)).collect();
        let bound = floor.iter().chain(&minima).sum::<Ps>();
        for (variable, values) in left.values.iter_mut().enumerate() {
            values.retain(|value| {
                let mut with = bound - floor[variable] + held[variable][*value];
                for (f, factor) in self.factors.iter().enumerate() {
                    for n in (0..factor.legs.len()).filter(|n| factor.legs[*n].variable == variable) {
                        let moved =
                            |(row, total): (&&QuestionRow, &Ps)| total - reach[f][n][row.asks[n]] + reduced[f][n][row.asks[n]][*value];
                        with += left.rows[f].iter().zip(&totals[f]).map(moved).min().unwrap_or(NEVER) - minima[f];
                    }
                }
                with < target
            });
        }
        for ((rows, totals), least) in left.rows.iter_mut().zip(&totals).zip(&minima) {
            let mut totals = totals.iter();
            rows.retain(|_| totals.next().is_some_and(|total| bound - least + total < target));
        }
        Ok(bound)
    }

    /// The exact minimum over the remaining values, variable by variable: the tables that mention a variable are added up and minimised.
    fn eliminated(&self, left: &Left, order: &[usize]) -> Result<Ps, VerifyError> {
        let size = |v: &usize| left.values.get(*v).map_or(0, Vec::len);
        // Variables, and a cost for every combination of their remaining values, the first fastest. `held` are positions.
        let table = |scope: Vec<usize>, cost: &mut dyn FnMut(&mut [usize]) -> Ps| {
            let entries = scope.iter().try_fold(1usize, |n, v| n.checked_mul(size(v))).filter(|n| *n <= LARGEST);
            let Some(entries) = entries else { return misfit("a table of its elimination is too large") };
            let mut held = vec![0usize; self.variables.len()];
            let costs = (0..entries).map(|mut n| {
                scope.iter().for_each(|v| (held[*v], n) = (n % size(v), n / size(v)));
                cost(&mut held)
            });
            Ok((costs.collect::<Vec<Ps>>(), scope.clone()))
        };
        let place = |scope: &[usize], held: &[usize]| scope.iter().rev().fold(0, |at, v| at * size(v) + held[*v]);
        let mut tables: Vec<(Vec<Ps>, Vec<usize>)> = Vec::new();
        for (factor, rows) in self.factors.iter().zip(&left.rows) {
            let scope = factor.legs.iter().map(|leg| leg.variable).collect();
            tables.push(table(scope, &mut |held| {
                // By time: once that alone is more, so is all that follows.
                rows.iter().fold(NEVER, |least, row| match row.ps < least {
                    true => least.min(factor.cost(row, |v| left.values[v][held[v]])),
                    false => least,
                })
            })?);
        }
        for variable in order.iter().copied().chain((0..self.variables.len()).filter(|v| !order.contains(v))) {
            let (mine, others): (Vec<_>, Vec<_>) = tables.into_iter().partition(|(_, scope)| scope.contains(&variable));
            tables = others;
            let scope: BTreeSet<usize> = mine.iter().flat_map(|(_, s)| s.iter().copied()).filter(|v| *v != variable).collect();
            tables.push(table(scope.into_iter().collect(), &mut |held| {
                let sum = |digit: usize| {
                    held[variable] = digit;
                    mine.iter().map(|(costs, scope)| costs[place(scope, held)]).sum::<Ps>()
                };
                (0..size(&variable)).map(sum).min().unwrap_or(NEVER)
            })?);
        }
        Ok(tables.iter().flat_map(|(costs, _)| costs).sum())
    }
}
