//! Streamed tiles, the FlashAttention form: matrix products make rows of values, each row needs a sum or the largest of its values, and
//! another product multiplies the values in turn. Attention is such a nest, and so is the beginning of its gradient.
//!
//! "Data Movement Is All You Need" moves such rows through memory between kernels, a tile of `FusionStitching` through shared memory
//! between groups. A streamed tile makes them a few columns at a time and hands them on in registers, in one or more passes over the
//! columns: where a step needs something of a whole row first, a further pass computes the values a second time. No value of a row goes to
//! memory, however long rows are. A sum of exponentials less the largest value needs no pass of its own (online softmax): the exponentials
//! are taken less the largest value so far, and the sum is scaled where that grows.

use crate::loopnest::{Element, ForLoop, LoopGroup, LoopNest, MemorySpace, NestStatement};
use sdfg::config::KernelConfig;
use sdfg::{Binary, Combine, Scalar, Unary};
use std::collections::{BTreeMap, BTreeSet};

/// The knob `form` of streamed tiles.
pub const FORM: &str = "form";
pub const STREAMING: &str = "streaming";
/// The same value in plans written before it had this name.
const STREAMING_BEFORE: &str = "sweeps";

/// Whether a value of the knob `form` asks for streamed tiles.
pub fn is_streaming(form: &str) -> bool {
    form == STREAMING || form == STREAMING_BEFORE
}

/// Whether a configuration asks for streamed tiles.
pub fn is_streamed(config: &KernelConfig) -> bool {
    config.knobs.get(FORM).is_some_and(is_streaming)
}

/// One pass over all columns.
#[derive(Clone, Debug, Default)]
pub struct ColumnPass {
    /// Products that make values of this pass, by their number among [`StreamedTile::first`].
    pub first: Vec<usize>,
    /// Statements over each value: the results of this pass, and the statements that these results need.
    pub statements: Vec<NestStatement>,
    /// Online softmax: each sum of exponentials less the largest value so far, and the line that holds that largest value.
    pub relative: Vec<(String, String)>,
    /// Statements over each value once the largest so far is known: those sums, and the statements that they need.
    pub later: Vec<NestStatement>,
    /// Products that multiply the values of this pass, by their number among [`StreamedTile::last`].
    pub last: Vec<usize>,
    /// Statements over each row at the end of the pass.
    pub rows: Vec<NestStatement>,
}

/// A nest as passes over the columns of a tile's rows.
#[derive(Clone, Debug)]
pub struct StreamedTile {
    pub row: ForLoop,
    pub column: ForLoop,
    /// Products that make a value for each row and column.
    pub first: Vec<LoopGroup>,
    /// Products that sum over columns, and the local container whose values they multiply.
    pub last: Vec<(LoopGroup, String)>,
    pub passes: Vec<ColumnPass>,
    /// Statements over the results of the last products: over rows and the columns of these results.
    pub ends: Vec<LoopGroup>,
    /// Containers with one value for each row.
    pub lines: BTreeSet<String>,
    /// Loops of one iteration, which no group has any more.
    pub single: BTreeSet<String>,
}

/// What a container that is local to a tile holds.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Held {
    /// A value for each row and column, from this pass on.
    Value(usize),
    /// A value for each row, after this pass.
    Line(usize),
    /// A sum for each row and column of a last product.
    Sum,
}

/// What a statement reads as this part of its code.
fn input<'s>(statement: &'s NestStatement, code: &Scalar) -> Option<&'s str> {
    let Scalar::Input(connector) = code else { return None };
    statement.reads.iter().find(|(c, _)| c == connector).map(|(_, element)| element.data.as_str())
}

/// The value and the line in a statement's exponential of the one less the other.
fn less_line(statement: &NestStatement) -> Option<(&str, &str)> {
    let Scalar::Unary(Unary::Exp, of) = &statement.code else { return None };
    let Scalar::Binary(Binary::Sub, value, line) = of.as_ref() else { return None };
    Some((input(statement, value)?, input(statement, line)?))
}

/// The statements that are asked for, with all that make what they or others `want` of values; and all that is wanted then.
fn needed<'s>(
    values: &[(usize, &'s NestStatement)],
    asked: &dyn Fn(usize, &NestStatement) -> bool,
    mut wanted: BTreeSet<&'s str>,
) -> (Vec<NestStatement>, BTreeSet<&'s str>) {
    let mut statements: Vec<NestStatement> = Vec::new();
    for (pass, statement) in values.iter().rev() {
        if asked(*pass, statement) || (statement.combine.is_none() && wanted.contains(statement.write.data.as_str())) {
            wanted.extend(statement.reads.iter().map(|(_, e)| e.data.as_str()));
            statements.insert(0, (*statement).clone());
        }
    }
    (statements, wanted)
}

/// Whether a group has exactly these loops.
fn has_loops(group: &LoopGroup, indices: &[&str]) -> bool {
    group.loops.len() == indices.len() && group.loops.iter().all(|l| indices.contains(&l.index.as_str()))
}

impl StreamedTile {
    /// `None` if the nest is none of these.
    pub fn of(nest: &LoopNest) -> Option<Self> {
        let all = nest.groups.iter().flat_map(|g| &g.loops);
        let single: BTreeSet<String> = all.filter(|l| l.count == 1).map(|l| l.index.clone()).collect();
        let whole = |g: &LoopGroup| LoopGroup { loops: g.loops.iter().filter(|l| l.count > 1).cloned().collect(), ..g.clone() };
        let groups: Vec<LoopGroup> = nest.groups.iter().map(whole).collect();
        // Whether an element is a value of these indices and nothing else, in this order or another.
        let is_over = |element: &Element, indices: &[&str]| {
            let found: Vec<&str> = element.subscripts.iter().filter_map(|e| e.as_sym()).collect();
            let plain = element.fill.is_none() && found.len() == element.subscripts.len();
            let found: Vec<&str> = found.into_iter().filter(|i| !single.contains(*i)).collect();
            plain && found.len() == indices.len() && indices.iter().all(|i| found.contains(i))
        };
        let local = |data: &str| nest.tensors.get(data).is_some_and(|t| t.space == MemorySpace::Local);
        let (made, row, column) = rows_and_columns(nest, &groups, &single)?;
        let over = [row.index.as_str(), column.index.as_str()];
        let (mut first, mut last, mut ends) = (vec![made], Vec::new(), Vec::new());
        let mut held: BTreeMap<&str, Held> = BTreeMap::from([(made.statements[0].write.data.as_str(), Held::Value(0))]);
        // Statements over rows and columns, and over rows, with the pass that they belong to.
        let [mut values, mut lines]: [Vec<(usize, &NestStatement)>; 2] = Default::default();
        // `largest`: each line that is the largest of some values, and these values. `less`: each exponential of a value less that line,
        // and the pass of the values. Less the largest of others so far they could be infinite.
        let mut largest: BTreeMap<&str, &str> = BTreeMap::new();
        let mut less: BTreeMap<&str, (&str, usize)> = BTreeMap::new();
        let mut relative: BTreeMap<&str, &str> = BTreeMap::new();
        let written: BTreeSet<&String> = groups.iter().flat_map(|g| &g.statements).map(|s| &s.write.data).collect();
        // An operand from memory is given, not computed here.
        let given = |e: &Element| !local(&e.data) && !written.contains(&e.data);
        for group in groups.iter().filter(|g| !std::ptr::eq(*g, made)) {
            if group.last {
                return None;
            }
            if group.is_gemm {
                let statement = group.statements.first()?;
                let reads: Vec<&Element> = statement.reads.iter().map(|(_, e)| e).collect();
                if is_over(&statement.write, &over) && local(&statement.write.data) && reads.iter().all(|e| given(e)) {
                    held.insert(&statement.write.data, Held::Value(0));
                    first.push(group);
                    continue;
                }
                let by = reads.iter().find(|e| local(&e.data) && is_over(e, &over))?;
                let Some(Held::Value(_)) = held.get(by.data.as_str()) else { return None };
                let columns: Vec<&str> = group.loops.iter().map(|l| l.index.as_str()).filter(|i| !over.contains(i)).collect();
                let fits = columns.len() == 1 && is_over(&statement.write, &[over[0], columns[0]]) && local(&statement.write.data);
                if !fits || group.loops.len() != 3 || !reads.iter().all(|e| e.data == by.data || given(e)) {
                    return None;
                }
                held.insert(&statement.write.data, Held::Sum);
                last.push((group, by.data.clone()));
                continue;
            }
            let end = last.iter().find_map(|(g, _)| g.loops.iter().find(|l| !over.contains(&l.index.as_str())));
            for statement in &group.statements {
                let write = &statement.write;
                let (line, value) = (is_over(write, &over[..1]), is_over(write, &over));
                let mut needs: Vec<(&str, usize)> = Vec::new();
                for (_, element) in &statement.reads {
                    let pass = match held.get(element.data.as_str()) {
                        Some(Held::Value(n)) if is_over(element, &over) && has_loops(group, &over) => *n,
                        Some(Held::Line(n)) if is_over(element, &over[..1]) && has_loops(group, &over) => n + 1,
                        Some(Held::Line(n)) if is_over(element, &over[..1]) => *n,
                        Some(Held::Sum) if !has_loops(group, &over) && !has_loops(group, &over[..1]) => 0,
                        None if given(element) => 0,
                        _ => return None,
                    };
                    needs.push((element.data.as_str(), pass));
                }
                let without = |data: &str| needs.iter().filter(|(d, _)| *d != data).map(|(_, n)| *n).max().unwrap_or(0);
                let mut pass = without("");
                if has_loops(group, &over) {
                    let by = less_line(statement).filter(|(value, by)| largest.get(by) == Some(value)).map(|(_, by)| (by, without(by)));
                    match (statement.combine, &statement.code) {
                        (None, _) => drop(by.map(|by| less.insert(&write.data, by))),
                        (Some(Combine::Max), code) => drop(input(statement, code).map(|of| largest.insert(&write.data, of))),
                        (Some(Combine::Sum), code) => {
                            let one = |n: &(&str, usize)| less.get(n.0).copied().filter(|_| matches!(code, Scalar::Input(_)));
                            let by = by.or_else(|| needs.iter().find_map(one));
                            let held = |data: &str| match held.get(data) {
                                Some(Held::Line(n)) => *n,
                                _ => 0,
                            };
                            if let Some((by, _)) = by.filter(|(by, all)| *all <= held(by)) {
                                relative.insert(&write.data, by);
                                pass = held(by);
                            }
                        }
                        _ => {}
                    }
                    match (statement.combine, local(&write.data)) {
                        (Some(combine), true) if line && combine.identity().len() == 1 => drop(held.insert(&write.data, Held::Line(pass))),
                        (None, true) if value => drop(held.insert(&write.data, Held::Value(pass))),
                        (None, false) => {}
                        _ => return None,
                    }
                    values.push((pass, statement));
                } else if has_loops(group, &over[..1]) && statement.combine.is_none() {
                    match local(&write.data) {
                        true if line => drop(held.insert(&write.data, Held::Line(pass))),
                        false => {}
                        true => return None,
                    }
                    lines.push((pass, statement));
                } else if end.is_some_and(|l| has_loops(group, &[over[0], &l.index])) && statement.combine.is_none() && !local(&write.data)
                {
                    continue;
                } else {
                    return None;
                }
            }
            if !has_loops(group, &over) && !has_loops(group, &over[..1]) {
                ends.push(group);
            }
        }
        let ready = |by: &String| match held.get(by.as_str()) {
            Some(Held::Value(n)) => *n,
            _ => 0,
        };
        let count = 1 + values.iter().chain(&lines).map(|(n, _)| *n).chain(last.iter().map(|(_, by)| ready(by))).max()?;
        let passes = (0..count).map(|n| {
            let lasts: Vec<usize> = (0..last.len()).filter(|k| ready(&last[*k].1) == n).collect();
            let multiplied = lasts.iter().map(|k| last[*k].1.as_str()).collect();
            let is_relative = |s: &NestStatement| relative.contains_key(s.write.data.as_str());
            let asked = |s: &NestStatement| (s.combine.is_some() || !local(&s.write.data)) && !is_relative(s);
            let (statements, mut wanted) = needed(&values, &|k, s| k == n && asked(s), multiplied);
            let (later, also) = needed(&values, &|k, s| k == n && is_relative(s), BTreeSet::new());
            wanted.extend(also);
            let makes = |g: &LoopGroup| g.statements.first().is_some_and(|s| wanted.contains(s.write.data.as_str()));
            let sums = later.iter().filter_map(|s| relative.get_key_value(s.write.data.as_str()));
            let relative = sums.map(|(sum, by)| (sum.to_string(), by.to_string())).collect();
            let rows = lines.iter().filter(|(pass, _)| *pass == n).map(|(_, s)| (*s).clone()).collect();
            ColumnPass { first: (0..first.len()).filter(|k| makes(first[*k])).collect(), statements, relative, later, last: lasts, rows }
        });
        let passes: Vec<ColumnPass> = passes.collect();
        if last.is_empty() {
            return None;
        }
        let lines = held.iter().filter(|(_, h)| matches!(h, Held::Line(_))).map(|(data, _)| data.to_string()).collect();
        let owned = |groups: Vec<&LoopGroup>| groups.into_iter().cloned().collect();
        let last = last.into_iter().map(|(g, by)| (g.clone(), by)).collect();
        Some(StreamedTile { row: row.clone(), column: column.clone(), first: owned(first), last, passes, ends: owned(ends), lines, single })
    }
}

/// The nest in which what all of a tile adds up is local to it, where nothing outside adds to it.
pub fn localized(mut nest: LoopNest) -> LoopNest {
    if nest.sequential().next().is_none() {
        nest.groups.iter_mut().for_each(|g| g.last = false);
        nest.tensors.values_mut().filter(|t| t.space == MemorySpace::Kept).for_each(|t| t.space = MemorySpace::Local);
    }
    nest
}

/// The first product between given factors whose result another product sums over, with its rows and its columns.
fn rows_and_columns<'g>(
    nest: &LoopNest,
    groups: &'g [LoopGroup],
    single: &BTreeSet<String>,
) -> Option<(&'g LoopGroup, &'g ForLoop, &'g ForLoop)> {
    if nest.sequential().next().is_some() {
        return None;
    }
    let made = groups.iter().find(|g| g.is_gemm)?;
    let write = &made.statements.first()?.write;
    let is_local = |data: &String| nest.tensors.get(data).is_some_and(|t| t.space == MemorySpace::Local);
    let local = is_local(&write.data);
    // Others between given factors make values of the same rows and columns.
    let later = groups.iter().filter(|g| g.is_gemm && !std::ptr::eq(*g, made)).flat_map(|g| &g.statements);
    let outs: Vec<&Element> = later.filter(|s| s.reads.iter().any(|(_, e)| is_local(&e.data))).map(|s| &s.write).collect();
    let subscripts: Vec<&str> = write.subscripts.iter().filter_map(|e| e.as_sym()).filter(|i| !single.contains(*i)).collect();
    let [a, b] = subscripts[..] else { return None };
    let kept = |index: &str| outs.iter().any(|e| e.subscripts.iter().any(|s| s.symbols().contains(index)));
    let find = |index: &str| made.loops.iter().find(|l| l.index == index);
    // Columns are what a later product sums over.
    let (row, column) = match (kept(a), kept(b)) {
        (true, false) => (a, b),
        (false, true) => (b, a),
        _ => return None,
    };
    local.then_some((made, find(row)?, find(column)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdfg::config::Knobs;

    #[test]
    fn plans_with_the_former_knob_are_read() {
        let with = |form: &str| KernelConfig { knobs: Knobs::default().with(FORM, form), ..KernelConfig::default() };
        assert!(is_streamed(&with(STREAMING)) && is_streamed(&with("sweeps")));
        assert!(!is_streamed(&with("columns")) && !is_streamed(&KernelConfig::default()));
    }
}
