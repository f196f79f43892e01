//! The C of one group of loops: what it reads, computes, reduces and writes.

use crate::emit::dialect::TargetDialect;
use crate::emit::printer::{PrintedLoops, Printer};
use crate::emit::reduction::{Reduction, nan_seen};
use crate::emit::scalar::{Reciprocal, combined, constant, integer, value};
use crate::error::KernelError;
use crate::loopnest::{Element, LoopGroup, MemorySpace, NestStatement};
use indexmap::IndexSet;
use sdfg::{Binary, Combine, Scalar};
use std::collections::BTreeSet;

impl<D: TargetDialect> Printer<'_, D> {
    pub fn group(&mut self, group: &LoopGroup, depth: usize) -> Result<(), KernelError> {
        self.title(group, depth);
        self.loops.push(PrintedLoops {
            writes: group.statements.iter().map(|s| s.write.data.clone()).collect(),
            lanes: group.loops.last().iter().map(|l| l.index.clone()).collect(),
            packed: None,
        });
        let reductions = self.reductions(group)?;
        for r in &reductions {
            let tensor = self.tensor(&r.statement.write.data)?;
            if !matches!(tensor.space, MemorySpace::Private { .. }) && r.again {
                self.initialise(group, r.statement, r.combine, depth)?;
            } else if self.is_value(tensor) {
                let name = self.identifier(&r.statement.write.data);
                self.line(depth, format!("real {name};"));
            }
            if let Some(long) = r.long.as_ref().filter(|_| !matches!(tensor.space, MemorySpace::Private { .. })) {
                self.begin_total(group, r, long, depth)?;
            }
        }
        for statement in group.statements.iter().filter(|s| s.combine.is_none()) {
            let tensor = self.tensor(&statement.write.data)?;
            if self.is_value(tensor) && tensor.stored {
                self.declare_value(&statement.write.data, depth)?;
            }
        }
        self.reciprocal_rows(group, depth)?;
        self.open(group, &reductions, 0, depth)?;
        for r in &reductions {
            let Some(long) = &r.long else { continue };
            if long.at.is_none() {
                self.move_to_total(group, r, long, depth)?;
            }
            if !matches!(self.tensor(&r.statement.write.data)?.space, MemorySpace::Private { .. }) {
                self.end_total(group, r, long, depth)?;
            }
        }
        Ok(())
    }

    /// Before the loops of a group, one row of reciprocals for each divisor that only the innermost of them changes: the loops
    /// around it would divide by the same row again and again.
    fn reciprocal_rows(&mut self, group: &LoopGroup, depth: usize) -> Result<(), KernelError> {
        let [around @ .., last] = group.loops.as_slice() else { return Ok(()) };
        if self.is_block(&last.index) || around.iter().all(|l| l.count < 2) {
            return Ok(());
        }
        let uses = |element: &Element, index: &str| element.subscripts.iter().any(|s| s.symbols().contains(index));
        for element in self.reads_at(group, group.loops.len()) {
            let divides = group.statements.iter().any(|s| divides_by(s, &element));
            if !divides || around.iter().any(|l| uses(&element, &l.index)) {
                continue;
            }
            let (fit, over) = (self.fresh("fit"), self.fresh("over"));
            let bytes = if self.double { 8 } else { 4 };
            for room in [&fit, &over] {
                self.scratch.insert(room.clone(), ("real", last.count as usize * bytes));
            }
            let nest = LoopGroup { loops: vec![last.clone()], statements: vec![], is_gemm: false, last: false };
            self.open_loop(&nest, 0, &[], false, depth);
            let (text, at) = (self.load(&element)?, self.index(&last.index));
            self.line(depth + 1, format!("const real by = {text};"));
            self.line(depth + 1, format!("{fit}[{at}] = fit_of(by);"));
            self.line(depth + 1, format!("{over}[{at}] = 1 / (by * {fit}[{at}]);"));
            self.line(depth, "}");
            self.divisors.insert(element, Reciprocal { fit: format!("{fit}[{at}]"), over: format!("{over}[{at}]") });
        }
        Ok(())
    }

    /// C text of whether the sequential outer loops are in their last iteration, for a group that waits for that.
    pub fn whole(&mut self, group: &LoopGroup) -> Option<String> {
        let nest = self.nest;
        let at_last = |l: &crate::loopnest::ForLoop| format!("{} + 1 == {}", self.index(&l.index), self.count(&l.index, l.count));
        let all: Vec<String> = nest.sequential().map(at_last).collect();
        (group.last && !all.is_empty()).then(|| all.join(" && "))
    }

    /// Forgets the values of the group before, and names the maps of this one.
    pub fn title(&mut self, group: &LoopGroup, depth: usize) {
        self.known.clear();
        (self.uniform, self.innermost) = (BTreeSet::new(), None);
        self.divisors.clear();
        self.rows.clear();
        let maps: IndexSet<&str> = group.statements.iter().map(|s| s.name.as_str()).collect();
        self.line(depth, format!("/* {} */", maps.into_iter().collect::<Vec<_>>().join(", ").replace("*/", "")));
    }

    /// How each reduction of a group is held while its loops run.
    pub fn reductions<'g>(&mut self, group: &'g LoopGroup) -> Result<Vec<Reduction<'g>>, KernelError> {
        let mut reductions = Vec::new();
        for statement in &group.statements {
            let Some(combine) = statement.combine else { continue };
            let level = self.level(group, &statement.write);
            let private = matches!(self.tensor(&statement.write.data)?.space, MemorySpace::Private { .. });
            let names = |index: &str| statement.write.subscripts.iter().any(|s| s.symbols().contains(index)) || group.is_lane(index);
            let again = private || level == group.loops.len() || group.loops[..level].iter().any(|l| !names(&l.index));
            let variable = (level < group.loops.len()).then(|| self.fresh("sum"));
            let tensor = self.tensor(&statement.write.data)?;
            if again && matches!(tensor.space, MemorySpace::Heap { .. }) && tensor.dtype != tensor.dtype.accumulator() {
                let (data, dtype) = (&statement.write.data, tensor.dtype);
                return Err(self.unsupported(format!(
                    "`{data}` would be summed in {dtype}, rounded at every term; sum into a container of {} and cast that",
                    dtype.accumulator()
                )));
            }
            // On a GPU each thread adds few terms to a register before it comes to its total.
            let total = variable.as_ref().filter(|_| combine == Combine::Sum).map(|v| format!("total_{v}"));
            let mut reduction = Reduction { statement, combine, level, again, variable, total, long: None };
            reduction.long = self.long_sum(group, &reduction)?;
            reductions.push(reduction);
        }
        Ok(reductions)
    }

    pub fn declare_value(&mut self, data: &str, depth: usize) -> Result<(), KernelError> {
        let tensor = self.tensor(data)?;
        let name = self.identifier(data);
        let lanes = if self.nest.per_lane(tensor) { "[LANES]" } else { "" };
        self.line(depth, format!("real {name}{lanes};"));
        Ok(())
    }

    /// Sets the targets of reductions to the identity.
    fn initialise(&mut self, group: &LoopGroup, statement: &NestStatement, combine: Combine, depth: usize) -> Result<(), KernelError> {
        let tensor = self.tensor(&statement.write.data)?;
        if self.is_value(tensor) {
            self.declare_value(&statement.write.data, depth)?;
        }
        let uses = |index: &str| statement.write.subscripts.iter().any(|s| s.symbols().contains(index));
        let lane = self.nest.per_lane(tensor);
        let loops = group
            .loops
            .iter()
            .filter(|l| uses(&l.index) || (lane && group.is_lane(&l.index) && self.is_block(&l.index)))
            .cloned()
            .collect();
        let identity = constant(combine.identity().first().copied().unwrap_or(0.0), self.double);
        let nest = LoopGroup { loops, statements: vec![], is_gemm: false, last: false };
        for (n, _) in nest.loops.iter().enumerate() {
            self.open_loop(&nest, n, &[], false, depth + n);
        }
        let text = self.store(&statement.write, &identity)?;
        self.line(depth + nest.loops.len(), text);
        for n in (0..nest.loops.len()).rev() {
            self.line(depth + n, "}");
        }
        Ok(())
    }

    pub(crate) fn open_loop(&mut self, group: &LoopGroup, n: usize, reductions: &[&Reduction], pieces: bool, depth: usize) {
        let each = &group.loops[n];
        if n + 1 == group.loops.len() {
            let clauses: String = reductions.iter().filter_map(|r| Some(r.clause(r.variable.as_ref()?))).collect();
            self.line(depth, format!("#pragma omp simd{clauses}"));
        }
        let index = self.index(&each.index);
        let (from, to) = if pieces { ("piece", Some("end")) } else { ("0", None) };
        if self.is_block(&each.index) {
            self.line(depth, format!("for (int64_t lane = {from}; lane < {}; ++lane) {{", to.unwrap_or("lanes")));
            self.line(depth + 1, format!("const int64_t {index} = first_lane + lane;"));
        } else {
            let count = self.count(&each.index, each.count);
            // Rows that an earlier step has made stay as they are.
            let from = match self.nest.first_made(&each.index) {
                Some(first) => integer(&first, self),
                None => from.to_string(),
            };
            let map = if each.map.is_empty() { String::new() } else { format!(" /* {} */", each.map.replace("*/", "")) };
            let to = to.map_or(count, str::to_string);
            self.line(depth, format!("for (int64_t {index} = {from}; {index} < {to}; ++{index}) {{{map}"));
        }
    }

    fn open(&mut self, group: &LoopGroup, reductions: &[Reduction], level: usize, depth: usize) -> Result<(), KernelError> {
        self.loads(group, level, depth)?;
        let innermost = level + 1 == group.loops.len();
        let sums = reductions.iter().any(|r| r.total.is_some());
        let pieces = innermost && (sums || self.in_pieces(group)?);
        if innermost {
            self.uniform = self.known.values().cloned().collect();
            self.innermost = group.loops.last().map(|l| l.index.clone());
            self.mask_rows(group, pieces, false, depth);
        }
        for r in reductions.iter().filter(|r| r.level == level) {
            if let Some(total) = &r.total {
                self.line(depth, format!("double {total} = 0;"));
            } else if let Some(variable) = &r.variable {
                let identity = constant(r.combine.identity().first().copied().unwrap_or(0.0), self.double);
                self.line(depth, format!("real {variable} = {identity};"));
                if r.is_extremum() {
                    self.line(depth, format!("int32_t {} = 0;", nan_seen(variable)));
                }
            }
        }
        if level == group.loops.len() {
            for statement in &group.statements {
                self.statement(statement, reductions, depth)?;
            }
        } else {
            let inside: Vec<&Reduction> = reductions.iter().collect();
            let within = depth + usize::from(pieces);
            if pieces {
                self.open_pieces(group, sums, depth)?;
                self.mask_rows(group, true, true, within);
            }
            let parts: Vec<(&String, &String)> =
                reductions.iter().filter_map(|r| Some((r.variable.as_ref()?, r.total.as_ref()?))).collect();
            for (variable, _) in parts.iter().filter(|_| innermost) {
                self.line(within, format!("real {variable} = {};", constant(0.0, self.double)));
            }
            self.open_loop(group, level, &inside, pieces, within);
            self.open(group, reductions, level + 1, within + 1)?;
            for r in reductions {
                if let Some(long) = r.long.as_ref().filter(|long| long.at == Some(level)) {
                    self.move_to_total(group, r, long, within + 1)?;
                }
            }
            self.line(within, "}");
            for (variable, total) in parts.iter().filter(|_| innermost) {
                self.line(within, format!("{total} += {variable};"));
            }
            if pieces {
                self.close_pieces(depth);
            }
        }
        for r in reductions.iter().filter(|r| r.level == level) {
            if let Some(variable) = &r.variable {
                if r.is_extremum() {
                    let nan = constant(f64::NAN, self.double);
                    self.line(depth, format!("{variable} = {} ? {nan} : {variable};", nan_seen(variable)));
                }
                let value = r.total.as_ref().map_or_else(|| variable.clone(), |total| format!("(real){total}"));
                let text = if r.again {
                    let place = self.place(&r.statement.write)?;
                    let whole = combined(r.combine, &place, &value);
                    self.store(&r.statement.write, &format!("({whole})"))?
                } else {
                    self.store(&r.statement.write, &value)?
                };
                self.line(depth, text);
            }
        }
        Ok(())
    }

    /// Reads of elements that have their address at this level.
    pub fn loads(&mut self, group: &LoopGroup, level: usize, depth: usize) -> Result<(), KernelError> {
        for element in self.reads_at(group, level) {
            let name = self.fresh("x");
            let text = match self.ahead.get(&element) {
                Some(come) => come.clone(),
                None => self.load(&element)?,
            };
            self.line(depth, format!("const real {name} = {text};"));
            // A division takes as long as a dozen products: one outside the innermost loop serves all of it.
            if level < group.loops.len() && group.statements.iter().any(|s| divides_by(s, &element)) {
                let (fit, over) = (format!("fit_{name}"), format!("over_{name}"));
                self.line(depth, format!("const real {fit} = fit_of({name});"));
                self.line(depth, format!("const real {over} = 1 / ({name} * {fit});"));
                self.reciprocals.insert(name.clone(), Reciprocal { fit, over });
            } else if let Some(reciprocal) = self.divisors.get(&element) {
                self.reciprocals.insert(name.clone(), reciprocal.clone());
            }
            self.known.insert(element, name);
        }
        Ok(())
    }

    /// Elements that are read and have their address at this level, unless a statement of the group makes the value.
    pub fn reads_at(&self, group: &LoopGroup, level: usize) -> IndexSet<Element> {
        let made = |element: &Element| {
            group.statements.iter().any(|s| s.combine.is_none() && s.write.data == element.data && s.write.subscripts == element.subscripts)
        };
        let reads = group.statements.iter().flat_map(|s| &s.reads).map(|(_, e)| e);
        reads.filter(|e| !made(e) && self.level(group, e) == level && !self.known.contains_key(*e)).cloned().collect()
    }

    pub fn statement(&mut self, statement: &NestStatement, reductions: &[Reduction], depth: usize) -> Result<(), KernelError> {
        self.connectors.clear();
        for (connector, element) in &statement.reads {
            let name = self.known.get(element).cloned();
            let name =
                name.ok_or_else(|| self.unsupported(format!("`{}` reads `{}` before it is written", statement.name, element.data)))?;
            self.connectors.insert(connector.clone(), name);
        }
        let text = value(&statement.code, self);
        let Some(r) = reductions.iter().find(|r| std::ptr::eq(r.statement, statement)) else {
            let name = self.fresh("v");
            self.line(depth, format!("const real {name} = {text};"));
            if !self.silent && self.tensor(&statement.write.data)?.stored {
                let store = self.store(&statement.write, &name)?;
                self.line(depth, store);
            }
            self.known.insert(statement.write.clone(), name);
            return Ok(());
        };
        let name = self.fresh("v");
        self.line(depth, format!("const real {name} = {text};"));
        let line = match &r.variable {
            Some(variable) if D::LONG_SUMS && r.is_extremum() => {
                let sign = if r.combine == Combine::Max { '>' } else { '<' };
                let seen = nan_seen(variable);
                format!("{variable} = {name} {sign} {variable} ? {name} : {variable}; {seen} |= {name} != {name};")
            }
            Some(variable) => format!("{variable} = {};", self.combined(r.combine, variable, &name)),
            None if !r.again => self.store(&statement.write, &name)?,
            None => {
                let held = self.held_value(&statement.write)?;
                let whole = combined(r.combine, &held, &name);
                self.store(&statement.write, &format!("({whole})"))?
            }
        };
        self.line(depth, line);
        Ok(())
    }
}

/// Whether the code of a statement divides by what it reads from an element.
pub fn divides_by(statement: &NestStatement, element: &Element) -> bool {
    let mut found = false;
    statement.code.walk(&mut |s| {
        if let Scalar::Binary(Binary::Div, _, by) = s
            && let Scalar::Input(connector) = by.as_ref()
        {
            found |= statement.reads.iter().any(|(c, e)| c == connector && e == element);
        }
    });
    found
}
