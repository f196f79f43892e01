//! What follows on what: regions, branches and loops, also those that older files spell as states and conditions.

use super::evaluate::{self, Names};
use super::frame::{SdfgFrame, Symbol};
use super::graph::{ControlBlockKind, ControlFlowRegion, DataflowState, InterstateEdge, NodeKind};
use super::integer::AffineInteger;
use super::python::PythonExpr;
use super::reader::Reader;
use super::slot::{ContainerContent, SlotRef, UnreadReason, stop};
use super::value::Value;
use indexmap::{IndexMap, IndexSet};
use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

/// Blocks that a region runs at most, where its conditions are known.
const VISITS: usize = 20_000;

type Done<T> = Result<T, UnreadReason>;

/// The body of a loop.
#[derive(Clone, Copy)]
pub enum LoopBody<'g> {
    Region(&'g ControlFlowRegion),
    /// From the edge with this number back to the state that decides.
    Guarded(&'g ControlFlowRegion, usize, usize),
}

/// A loop with a counter.
pub struct Counted<'g> {
    pub label: String,
    pub name: String,
    pub condition: PythonExpr,
    pub next: PythonExpr,
    pub inverted: bool,
    pub body: LoopBody<'g>,
}

impl Reader {
    /// Runs a region; what it refuses is reported.
    pub fn region<'g>(&mut self, frame: &mut SdfgFrame<'g>, region: &'g ControlFlowRegion) {
        if !region.blocks.is_empty()
            && let Err(UnreadReason::Why(why)) = self.run(frame, region, region.start, None)
        {
            let place = if frame.path.is_empty() { "its control flow".to_string() } else { format!("the control flow of {}", frame.path) };
            self.problem(&place, "", why);
        }
    }

    /// Runs blocks from one on, up to another one.
    pub fn run<'g>(&mut self, frame: &mut SdfgFrame<'g>, region: &'g ControlFlowRegion, start: usize, until: Option<usize>) -> Done<()> {
        let (mut at, mut visits) = (start, 0);
        loop {
            if Some(at) == until {
                return Ok(());
            }
            visits += 1;
            if visits > VISITS {
                return stop(format!("its states go round more than {VISITS} times"));
            }
            if let Some((counted, exit)) = guarded(region, at)
                && matches!(frame.symbols.get(&counted.name), Some(Symbol::Integer(_)))
            {
                self.counted(frame, &counted)?;
                let edge = &region.edges[exit];
                self.assign(frame, edge);
                at = edge.to;
                continue;
            }
            self.block(frame, region, at)?;
            let edges: Vec<&InterstateEdge> = region.edges.iter().filter(|e| e.from == at).collect();
            let mut open: Vec<(Value, &InterstateEdge)> = vec![];
            let mut taken = None;
            for edge in &edges {
                let condition = match &edge.condition {
                    None => Value::Number(1.0),
                    Some(ast) => self.condition(frame, ast)?,
                };
                match condition.number() {
                    Some(0.0) => {}
                    Some(_) if open.is_empty() => {
                        taken = Some(*edge);
                        break;
                    }
                    _ => open.push((condition, edge)),
                }
            }
            if let Some(edge) = taken {
                self.assign(frame, edge);
                at = edge.to;
                continue;
            }
            match open.as_slice() {
                [] => return Ok(()),
                [(condition, one), (other, two)] if *other == condition.clone().not() || *condition == other.clone().not() => {
                    match self.fork(frame, region, condition.clone(), [one, two], until)? {
                        Some(meet) => at = meet,
                        None => return Ok(()),
                    }
                }
                [(_, only)] if edges.len() == 1 => {
                    return stop(format!("it goes on to `{}` under a condition that depends on inputs", region.blocks[only.to].label));
                }
                _ => return stop("a state is followed by others under conditions that depend on inputs"),
            }
        }
    }

    fn block<'g>(&mut self, frame: &mut SdfgFrame<'g>, region: &'g ControlFlowRegion, at: usize) -> Done<()> {
        let block = &region.blocks[at];
        match &block.kind {
            ControlBlockKind::State(state) => {
                self.state(frame, state);
                Ok(())
            }
            ControlBlockKind::Region(inner) => self.run(frame, inner, inner.start, None),
            ControlBlockKind::Branches(branches) => self.branches(frame, branches),
            ControlBlockKind::Loop(of) => {
                let (Some(begin), Some(next)) = (&of.begin, &of.next) else {
                    return stop(format!("the loop `{}` has no counter; write it as `for`", block.label));
                };
                let begin = self.integer(frame, begin)?;
                frame.symbols.insert(of.variable.clone(), Symbol::Integer(begin));
                let counted = Counted {
                    label: block.label.clone(),
                    name: of.variable.clone(),
                    condition: of.condition.clone(),
                    next: next.clone(),
                    inverted: of.inverted,
                    body: LoopBody::Region(&of.body),
                };
                self.counted(frame, &counted)
            }
            ControlBlockKind::Other(what) => stop(format!("`{}` is a {what}, which recipes do not have", block.label)),
        }
    }

    pub fn condition(&mut self, frame: &SdfgFrame, ast: &PythonExpr) -> Done<Value> {
        Ok(evaluate::value(&mut self.made, frame, &Names::default(), ast)?.truth())
    }

    /// Gives symbols the values that an edge assigns; one that has no value is unknown where it is read.
    pub fn assign(&mut self, frame: &mut SdfgFrame, edge: &InterstateEdge) {
        let mut assigned = vec![];
        for (name, ast) in &edge.assignments {
            let value = match ast {
                Ok(ast) => evaluate::value(&mut self.made, frame, &Names::default(), ast).ok(),
                Err(_) => None,
            };
            assigned.push((name.clone(), value));
        }
        for (name, value) in assigned {
            match value {
                None => {
                    frame.symbols.shift_remove(&name);
                }
                Some(value) => {
                    frame.symbols.insert(name, symbol(value));
                }
            }
        }
    }

    /// Runs both ways on from a state up to where they meet, if they do.
    fn fork<'g>(
        &mut self,
        frame: &mut SdfgFrame<'g>,
        region: &'g ControlFlowRegion,
        condition: Value,
        edges: [&'g InterstateEdge; 2],
        until: Option<usize>,
    ) -> Done<Option<usize>> {
        let reached = edges.map(|e| reachable(region, e.to, until));
        let common: Vec<usize> = reached[0].intersection(&reached[1]).copied().collect();
        let meets = |c: &usize| common.iter().all(|other| reachable(region, *c, until).contains(other));
        let meet = common.iter().copied().find(meets).or(until);
        let mut results = vec![];
        for edge in edges {
            let mut own = forked(frame);
            self.assign(&mut own, edge);
            self.run(&mut own, region, edge.to, meet)?;
            results.push(own);
        }
        let two = results.pop();
        if let (Some(one), Some(two)) = (results.pop(), two) {
            self.merge(frame, &condition, one, two)?;
        }
        Ok(meet)
    }

    fn branches<'g>(&mut self, frame: &mut SdfgFrame<'g>, branches: &'g [(Option<PythonExpr>, ControlFlowRegion)]) -> Done<()> {
        let Some(((condition, body), rest)) = branches.split_first() else { return Ok(()) };
        let condition = match condition {
            None => Value::Number(1.0),
            Some(ast) => self.condition(frame, ast)?,
        };
        match condition.number() {
            Some(0.0) => self.branches(frame, rest),
            Some(_) => self.run(frame, body, body.start, None),
            None => {
                let (mut one, mut two) = (forked(frame), forked(frame));
                self.run(&mut one, body, body.start, None)?;
                self.branches(&mut two, rest)?;
                self.merge(frame, &condition, one, two)
            }
        }
    }

    /// Each element is that of the way that was taken.
    fn merge<'g>(&mut self, frame: &mut SdfgFrame<'g>, condition: &Value, one: SdfgFrame<'g>, two: SdfgFrame<'g>) -> Done<()> {
        let names: IndexSet<String> = one.slots.keys().chain(two.slots.keys()).cloned().collect();
        for name in names {
            let slot = match (one.slots.get(&name), two.slots.get(&name)) {
                (Some(a), Some(b)) if Rc::ptr_eq(a, b) => a.clone(),
                (Some(a), Some(b)) => self.either(condition, a, b)?,
                (Some(only), None) | (None, Some(only)) => only.clone(),
                (None, None) => continue,
            };
            frame.slots.insert(name, slot);
        }
        // Symbols that differ are unknown from here on.
        frame.symbols.retain(|name, symbol| {
            let same = |other: &SdfgFrame| other.symbols.get(name).is_some_and(|own| format!("{own:?}") == format!("{symbol:?}"));
            same(&one) && same(&two)
        });
        Ok(())
    }

    fn either(&mut self, condition: &Value, a: &SlotRef, b: &SlotRef) -> Done<SlotRef> {
        let (slot, other) = (a.borrow().clone(), b.borrow().clone());
        if slot.body.is_none() || other.body.is_none() {
            return Ok(if slot.body.is_none() { a.clone() } else { b.clone() });
        }
        let sizes: Vec<i64> = slot.axes.iter().map(|id| self.made.indices.sizes[*id]).collect();
        let axes = self.made.fresh(&sizes);
        let at: Vec<AffineInteger> = axes.iter().map(|id| AffineInteger::index(*id)).collect();
        let mut of = |slot: &SlotRef| -> Done<Value> {
            if slot.borrow().body == Some(Value::Undefined) { Ok(Value::Undefined) } else { self.made.element(slot, &at) }
        };
        let (one, two) = (of(a)?, of(b)?);
        let body = match (one, two) {
            (Value::Undefined, only) | (only, Value::Undefined) => only,
            (one, two) => Value::choice(condition.clone(), one, two),
        };
        Ok(Rc::new(RefCell::new(ContainerContent { axes, body: Some(body), prior: None, writes: None, ..slot })))
    }
}

pub fn symbol(value: Value) -> Symbol {
    match value {
        Value::Integer(integer) => Symbol::Integer(integer),
        Value::Number(n) if n.fract() == 0.0 && n.abs() < 1e15 => Symbol::Integer(AffineInteger::number(n as i64)),
        other => Symbol::Value(other),
    }
}

/// The same program, whose containers change by themselves from here on.
pub fn forked<'g>(frame: &SdfgFrame<'g>) -> SdfgFrame<'g> {
    SdfgFrame { sdfg: frame.sdfg, slots: frame.slots.clone(), symbols: frame.symbols.clone(), path: frame.path.clone() }
}

/// Blocks that one leads to, itself included, around another one.
fn reachable(region: &ControlFlowRegion, from: usize, without: Option<usize>) -> BTreeSet<usize> {
    let (mut seen, mut open) = (BTreeSet::new(), vec![from]);
    while let Some(n) = open.pop() {
        if Some(n) != without && seen.insert(n) {
            open.extend(region.edges.iter().filter(|e| e.from == n).map(|e| e.to));
        }
    }
    seen
}

/// The blocks of the loop that a state decides about.
pub fn looped(region: &ControlFlowRegion, header: usize) -> BTreeSet<usize> {
    let around = reachable(region, region.start, Some(header));
    let mut open: Vec<usize> = region.edges.iter().filter(|e| e.to == header && !around.contains(&e.from)).map(|e| e.from).collect();
    // An edge to the first block comes from outside where nothing leads back to it.
    let inside = reachable(region, header, None);
    open.retain(|n| inside.contains(n));
    let mut seen = BTreeSet::new();
    while let Some(n) = open.pop() {
        if n != header && seen.insert(n) {
            open.extend(region.edges.iter().filter(|e| e.to == n).map(|e| e.from));
        }
    }
    seen
}

/// The loop of states that a block decides about, and the edge that leaves it.
fn guarded(region: &ControlFlowRegion, header: usize) -> Option<(Counted<'_>, usize)> {
    let ControlBlockKind::State(DataflowState { nodes, .. }) = &region.blocks[header].kind else { return None };
    if !nodes.is_empty() {
        return None;
    }
    let inside = looped(region, header);
    let out: Vec<usize> = (0..region.edges.len()).filter(|n| region.edges[*n].from == header).collect();
    let [a, b] = out.as_slice() else { return None };
    let (body, exit) = match (inside.contains(&region.edges[*a].to), inside.contains(&region.edges[*b].to)) {
        (true, false) => (*a, *b),
        (false, true) => (*b, *a),
        _ => return None,
    };
    let condition = match (&region.edges[body].condition, &region.edges[exit].condition) {
        (Some(condition), _) => condition.clone(),
        (None, Some(condition)) => PythonExpr::Not(Box::new(condition.clone())),
        (None, None) => return None,
    };
    let mut back = region.edges.iter().filter(|e| e.to == header && inside.contains(&e.from));
    let first = back.next()?;
    let mut mentioned = IndexSet::new();
    condition.names(&mut mentioned);
    let (name, next) =
        first.assignments.iter().find_map(|(name, ast)| Some((name, ast.as_ref().ok()?)).filter(|(name, _)| mentioned.contains(*name)))?;
    let same = |e: &InterstateEdge| e.assignments.iter().any(|(own, ast)| own == name && ast.as_ref() == Ok(next));
    if !back.all(same) {
        return None;
    }
    let label = region.blocks[header].label.clone();
    let body = LoopBody::Guarded(region, body, header);
    Some((Counted { label, name: name.clone(), condition, next: next.clone(), inverted: false, body }, exit))
}

/// How often containers are named by blocks: by access nodes, conditions and assignments.
pub fn named(region: &ControlFlowRegion, only: Option<&BTreeSet<usize>>, found: &mut IndexMap<String, usize>) {
    let within = |n: usize| only.is_none_or(|only| only.contains(&n));
    let mut words = |ast: &PythonExpr| {
        let mut names = IndexSet::new();
        ast.names(&mut names);
        names.into_iter().for_each(|name| *found.entry(name).or_insert(0) += 1);
    };
    for edge in region.edges.iter().filter(|e| within(e.from)) {
        edge.condition.iter().for_each(&mut words);
        edge.assignments.iter().filter_map(|(_, ast)| ast.as_ref().ok()).for_each(&mut words);
    }
    for (_, block) in region.blocks.iter().enumerate().filter(|(n, _)| within(*n)) {
        match &block.kind {
            ControlBlockKind::Loop(of) => {
                [Some(&of.condition), of.begin.as_ref(), of.next.as_ref()].into_iter().flatten().for_each(&mut words)
            }
            ControlBlockKind::Branches(branches) => branches.iter().filter_map(|(condition, _)| condition.as_ref()).for_each(&mut words),
            _ => {}
        }
    }
    for (_, block) in region.blocks.iter().enumerate().filter(|(n, _)| within(*n)) {
        match &block.kind {
            ControlBlockKind::State(state) => {
                for node in &state.nodes {
                    if let NodeKind::Access(data) = &node.kind {
                        *found.entry(data.clone()).or_insert(0) += 1;
                    }
                }
            }
            ControlBlockKind::Loop(of) => named(&of.body, None, found),
            ControlBlockKind::Branches(branches) => branches.iter().for_each(|(_, body)| named(body, None, found)),
            ControlBlockKind::Region(body) => named(body, None, found),
            ControlBlockKind::Other(_) => {}
        }
    }
}

/// Containers that are written, and symbols that are assigned, by blocks.
pub fn changed(
    region: &ControlFlowRegion,
    only: Option<&BTreeSet<usize>>,
    written: &mut IndexSet<String>,
    assigned: &mut IndexSet<String>,
) {
    let within = |n: usize| only.is_none_or(|only| only.contains(&n));
    for (_, block) in region.blocks.iter().enumerate().filter(|(n, _)| within(*n)) {
        match &block.kind {
            ControlBlockKind::State(state) => {
                for edge in &state.edges {
                    if let NodeKind::Access(data) = &state.nodes[edge.to.0].kind {
                        written.insert(data.clone());
                    }
                }
            }
            ControlBlockKind::Loop(of) => {
                assigned.insert(of.variable.clone());
                changed(&of.body, None, written, assigned);
            }
            ControlBlockKind::Branches(branches) => branches.iter().for_each(|(_, body)| changed(body, None, written, assigned)),
            ControlBlockKind::Region(body) => changed(body, None, written, assigned),
            ControlBlockKind::Other(_) => {}
        }
    }
    for edge in region.edges.iter().filter(|e| within(e.from)) {
        assigned.extend(edge.assignments.iter().map(|(name, _)| name.clone()));
    }
}
