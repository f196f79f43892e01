//! The C of one group of loops: what it reads, computes, reduces and writes.

use super::printer::Printer;
use super::scalar::{combined, constant, reduction, value};
use crate::error::KernelError;
use crate::loopnest::{Group, Space, Statement, Tag};
use indexmap::IndexSet;
use sdfg::Combine;

impl Printer<'_> {
    pub fn group(&mut self, group: &Group, depth: usize) -> Result<(), KernelError> {
        self.known.clear();
        self.rows.clear();
        let maps: IndexSet<&str> = group.statements.iter().map(|s| s.name.as_str()).collect();
        self.line(depth, format!("/* {} */", maps.into_iter().collect::<Vec<_>>().join(", ").replace("*/", "")));
        let mut reductions = Vec::new();
        for statement in &group.statements {
            let Some(combine) = statement.combine else { continue };
            let level = self.level(group, &statement.write);
            let private = matches!(self.tensor(&statement.write.data)?.space, Space::Private { .. });
            let names = |index: &str| statement.write.subscripts.iter().any(|s| s.symbols().contains(index)) || group.is_lane(index);
            let again = private || level == group.loops.len() || group.loops[..level].iter().any(|l| !names(&l.index));
            let variable = (level < group.loops.len()).then(|| self.fresh("sum"));
            let tensor = self.tensor(&statement.write.data)?;
            if !private && again && matches!(tensor.space, Space::Heap { .. }) && tensor.dtype != tensor.dtype.accumulator() {
                let (data, dtype) = (&statement.write.data, tensor.dtype);
                return Err(self.unsupported(format!(
                    "`{data}` would be summed in {dtype}, rounded at every term; sum into a container of {} and cast that",
                    dtype.accumulator()
                )));
            }
            if !private && again {
                self.initialise(group, statement, combine, depth)?;
            }
            let tensor = self.tensor(&statement.write.data)?;
            if self.is_value(tensor) && !again {
                let name = self.identifier(&statement.write.data);
                self.line(depth, format!("real {name};"));
            }
            reductions.push(Reduction { statement, combine, level, again, variable });
        }
        for statement in group.statements.iter().filter(|s| s.combine.is_none()) {
            let tensor = self.tensor(&statement.write.data)?;
            if self.is_value(tensor) && tensor.stored {
                self.declare_value(&statement.write.data, depth)?;
            }
        }
        self.open(group, &reductions, 0, depth)
    }

    fn declare_value(&mut self, data: &str, depth: usize) -> Result<(), KernelError> {
        let tensor = self.tensor(data)?;
        let name = self.identifier(data);
        let lanes = if self.nest.per_lane(tensor) { "[LANES]" } else { "" };
        self.line(depth, format!("real {name}{lanes};"));
        Ok(())
    }

    /// Sets what is about to be reduced to the identity.
    fn initialise(&mut self, group: &Group, statement: &Statement, combine: Combine, depth: usize) -> Result<(), KernelError> {
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
        let nest = Group { loops, statements: vec![] };
        for (n, _) in nest.loops.iter().enumerate() {
            self.open_loop(&nest, n, &[], depth + n);
        }
        let text = self.store(&statement.write, &identity)?;
        self.line(depth + nest.loops.len(), text);
        for n in (0..nest.loops.len()).rev() {
            self.line(depth + n, "}");
        }
        Ok(())
    }

    fn open_loop(&mut self, group: &Group, n: usize, reductions: &[&Reduction], depth: usize) {
        let each = &group.loops[n];
        if n + 1 == group.loops.len() {
            let clauses: String =
                reductions.iter().filter_map(|r| Some(format!(" reduction({}:{})", reduction(r.combine), r.variable.as_ref()?))).collect();
            self.line(depth, format!("#pragma omp simd{clauses}"));
        }
        let index = self.index(&each.index);
        if self.is_block(&each.index) {
            self.line(depth, "for (int64_t lane = 0; lane < lanes; ++lane) {");
            self.line(depth + 1, format!("const int64_t {index} = first_lane + lane;"));
        } else {
            let count = self.count(&each.index, each.count);
            let map = if each.map.is_empty() { String::new() } else { format!(" /* {} */", each.map.replace("*/", "")) };
            self.line(depth, format!("for (int64_t {index} = 0; {index} < {count}; ++{index}) {{{map}"));
        }
    }

    fn open(&mut self, group: &Group, reductions: &[Reduction], level: usize, depth: usize) -> Result<(), KernelError> {
        self.loads(group, level, depth)?;
        if level + 1 == group.loops.len() {
            self.mask_rows(group, depth);
            self.open_streams(group, depth)?;
        }
        for r in reductions.iter().filter(|r| r.level == level) {
            if let Some(variable) = &r.variable {
                let identity = constant(r.combine.identity().first().copied().unwrap_or(0.0), self.double);
                self.line(depth, format!("real {variable} = {identity};"));
            }
        }
        if level == group.loops.len() {
            for statement in &group.statements {
                self.statement(statement, reductions, depth)?;
            }
        } else {
            let inside: Vec<&Reduction> = reductions.iter().collect();
            self.open_loop(group, level, &inside, depth);
            self.open(group, reductions, level + 1, depth + 1)?;
            self.line(depth, "}");
            if level + 1 == group.loops.len() {
                self.close_streams(depth);
            }
        }
        for r in reductions.iter().filter(|r| r.level == level) {
            if let Some(variable) = &r.variable {
                let text = if r.again {
                    let place = self.place(&r.statement.write)?;
                    let whole = combined(r.combine, &place, variable);
                    self.store(&r.statement.write, &format!("({whole})"))?
                } else {
                    self.store(&r.statement.write, variable)?
                };
                self.line(depth, text);
            }
        }
        Ok(())
    }

    /// Reads of elements that have their address at this level, unless a statement of the group makes the value.
    fn loads(&mut self, group: &Group, level: usize, depth: usize) -> Result<(), KernelError> {
        for statement in &group.statements {
            for (_, element) in &statement.reads {
                let made = group
                    .statements
                    .iter()
                    .any(|s| s.combine.is_none() && s.write.data == element.data && s.write.subscripts == element.subscripts);
                if made || self.level(group, element) != level || self.known.contains_key(element) {
                    continue;
                }
                let name = self.fresh("x");
                let text = self.load(element)?;
                self.line(depth, format!("const real {name} = {text};"));
                self.known.insert(element.clone(), name);
            }
        }
        Ok(())
    }

    fn statement(&mut self, statement: &Statement, reductions: &[Reduction], depth: usize) -> Result<(), KernelError> {
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
            if self.tensor(&statement.write.data)?.stored {
                let store = self.store(&statement.write, &name)?;
                self.line(depth, store);
            }
            self.known.insert(statement.write.clone(), name);
            return Ok(());
        };
        let name = self.fresh("v");
        self.line(depth, format!("const real {name} = {text};"));
        let line = match &r.variable {
            Some(variable) => format!("{variable} = {};", combined(r.combine, variable, &name)),
            None => {
                let place = self.place(&statement.write)?;
                let whole = combined(r.combine, &place, &name);
                self.store(&statement.write, &format!("({whole})"))?
            }
        };
        self.line(depth, line);
        Ok(())
    }
}

impl Group {
    fn is_lane(&self, index: &str) -> bool {
        self.loops.last().is_some_and(|l| l.index == index && l.tag == Tag::Vector)
    }
}

struct Reduction<'a> {
    statement: &'a Statement,
    combine: Combine,
    /// Loops around the target.
    level: usize,
    /// Whether the target is reached more than once.
    again: bool,
    /// Scalar that holds the reduction over the loops inside the target's.
    variable: Option<String>,
}
