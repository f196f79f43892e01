//! One state: its nodes in the order of its edges, maps with what they hold.

use super::evaluate::{self, Names, TaskletOperand};
use super::frame::{SdfgFrame, Symbol};
use super::graph::{DataflowEdge, DataflowState, NodeKind, SubsetRange};
use super::integer::{AffineInteger, Id};
use super::reader::{Reader, Subset, points};
use super::slot::{SlotRef, UnreadReason, Write, stop};
use super::value::Value;
use std::collections::{BTreeMap, BTreeSet};

/// A state under way.
pub struct StateWalk<'g> {
    pub state: &'g DataflowState,
    /// What containers held where an access node stands.
    versions: BTreeMap<usize, SlotRef>,
    /// What tasklets hand to tasklets.
    handed: BTreeMap<(usize, String), Value>,
    /// Names of the file's labels of the state, for messages.
    pub place: String,
}

/// A write that leaves a map, by the connector of its exit.
pub struct Leaving {
    exit: usize,
    connector: String,
    write: Write,
}

type Done<T> = Result<T, UnreadReason>;

impl Reader {
    /// Runs a state.
    pub fn state<'g>(&mut self, frame: &mut SdfgFrame<'g>, state: &'g DataflowState) {
        let place = if frame.path.is_empty() { state.label.clone() } else { format!("{} in {}", state.label, frame.path) };
        let mut walk = StateWalk { state, versions: BTreeMap::new(), handed: BTreeMap::new(), place };
        self.level(frame, &mut walk, None);
    }

    /// Runs the nodes of a scope; what leaves it.
    fn level<'g>(&mut self, frame: &mut SdfgFrame<'g>, walk: &mut StateWalk<'g>, scope: Option<usize>) -> Vec<Leaving> {
        let state = walk.state;
        let own = |n: usize| state.nodes[n].scope == scope && !matches!(state.nodes[n].kind, NodeKind::Exit(_));
        // The node of this level that a node belongs to.
        let above = |mut n: usize| -> Option<usize> {
            for _ in 0..state.nodes.len() {
                if own(n) {
                    return Some(n);
                }
                n = match state.nodes[n].kind {
                    NodeKind::Exit(entry) if state.nodes[entry].scope == scope => entry,
                    _ => state.nodes[n].scope?,
                };
            }
            None
        };
        let mut after: BTreeMap<usize, BTreeSet<usize>> = BTreeMap::new();
        let mut waiting: BTreeMap<usize, usize> = (0..state.nodes.len()).filter(|n| own(*n)).map(|n| (n, 0)).collect();
        for edge in &state.edges {
            if let (Some(from), Some(to)) = (above(edge.from.0), above(edge.to.0))
                && from != to
                && after.entry(from).or_default().insert(to)
            {
                *waiting.entry(to).or_default() += 1;
            }
        }
        // What is read before anything is written stands first.
        let first = |n: usize| (usize::from(!matches!(state.nodes[n].kind, NodeKind::Access(_))), n);
        let mut ready: BTreeSet<(usize, usize)> = waiting.iter().filter(|(_, count)| **count == 0).map(|(n, _)| first(*n)).collect();
        let (mut leaving, mut seen) = (vec![], 0);
        while let Some((_, n)) = ready.pop_first() {
            seen += 1;
            match self.node(frame, walk, n) {
                Ok(more) => leaving.extend(more),
                Err(why) => {
                    if let UnreadReason::Why(why) = why {
                        self.problem(&walk.place, &state.nodes[n].label, why);
                    }
                    self.refuse(frame, walk, n);
                }
            }
            for next in after.get(&n).into_iter().flatten() {
                let count = waiting.entry(*next).or_default();
                *count -= 1;
                if *count == 0 {
                    ready.insert(first(*next));
                }
            }
        }
        if seen < waiting.len() {
            self.problem(&walk.place, "", "its edges go round in a circle");
        }
        leaving
    }

    /// Marks what a refused node would have written.
    fn refuse(&mut self, frame: &mut SdfgFrame, walk: &mut StateWalk, n: usize) {
        let state = walk.state;
        let refused = |reader: &mut Self, data: &str| {
            let slot = reader.empty(data, &[], false);
            slot.borrow_mut().body = None;
            slot
        };
        if let NodeKind::Access(data) = &state.nodes[n].kind {
            let slot = refused(self, data);
            frame.slots.insert(data.clone(), slot.clone());
            walk.versions.insert(n, slot);
        }
        let mut open: Vec<usize> = vec![n];
        let mut seen = BTreeSet::new();
        while let Some(n) = open.pop() {
            for edge in state.edges.iter().filter(|e| e.from.0 == n) {
                let to = edge.to.0;
                if !seen.insert(to) {
                    continue;
                }
                match &state.nodes[to].kind {
                    NodeKind::Access(data) => {
                        let slot = refused(self, data);
                        frame.slots.insert(data.clone(), slot);
                    }
                    _ => open.push(to),
                }
            }
        }
    }

    fn node<'g>(&mut self, frame: &mut SdfgFrame<'g>, walk: &mut StateWalk<'g>, n: usize) -> Done<Vec<Leaving>> {
        let state = walk.state;
        let node = &state.nodes[n];
        match &node.kind {
            NodeKind::Access(data) => self.access(frame, walk, n, data),
            NodeKind::Tasklet { code, outputs } => {
                let code = code.as_ref().map_err(|why| UnreadReason::Why(why.clone()))?;
                let mut names = Names::default();
                for edge in walk.incoming(n) {
                    if let Some(connector) = &edge.to.1 {
                        let operand = self.operand(frame, walk, edge)?;
                        names.operands.insert(connector.clone(), operand);
                    }
                }
                evaluate::run(&mut self.made, frame, &mut names, code)?;
                let mut leaving = vec![];
                for output in outputs {
                    for edge in walk.outgoing(n).filter(|e| e.from.1.as_deref() == Some(output)) {
                        leaving.extend(self.result(frame, walk, edge, output, &names)?);
                    }
                }
                Ok(leaving)
            }
            NodeKind::Entry { params, ranges } => self.map(frame, walk, n, params, ranges),
            NodeKind::Exit(_) => Ok(vec![]),
            NodeKind::Nested { .. } => self.nested(frame, walk, n),
            NodeKind::Library { class, attributes } => self.library(frame, walk, n, class, attributes),
            NodeKind::Other(what) => stop(format!("it is {what}, which recipes do not have")),
        }
    }

    /// What a container holds where an access node stands, once all that flows into it is copied.
    fn access<'g>(&mut self, frame: &mut SdfgFrame<'g>, walk: &mut StateWalk<'g>, n: usize, data: &'g str) -> Done<Vec<Leaving>> {
        let array = frame.sdfg.arrays.get(data).ok_or_else(|| UnreadReason::Why(format!("`{data}` is not declared")))?;
        if !matches!(array.kind.as_str(), "Array" | "Scalar" | "ArrayView" | "View") {
            return stop(format!("`{data}` is a {}, and arrays, scalars and views are read", array.kind));
        }
        let state = walk.state;
        let viewed = walk.incoming(n).find(|e| e.to.1.as_deref() == Some("views"));
        if let Some(edge) = viewed.filter(|_| array.is_view()) {
            let slot = self.view(frame, walk, edge, data)?;
            frame.slots.insert(data.to_string(), slot);
        }
        if !frame.slots.contains_key(data) {
            // A view that is written first is what its container holds there.
            let shape = self.shape(frame, array)?;
            let slot = self.empty(data, &shape, false);
            frame.slots.insert(data.to_string(), slot);
        }
        let mut copies = vec![];
        for edge in walk.incoming(n).filter(|e| e.to.1.as_deref() != Some("views")) {
            let from_access = matches!(state.nodes[edge.from.0].kind, NodeKind::Access(_) | NodeKind::Entry { .. });
            let is_empty = edge.memlet.data.is_none() && edge.memlet.subset.is_none();
            if from_access && !is_empty {
                copies.push(edge);
            }
        }
        for edge in copies {
            let Some((source, slot)) = self.source(walk, edge) else { continue };
            let write = self.copy(frame, walk, edge, (&source, &slot), data)?;
            self.apply(frame, data, &write)?;
        }
        walk.versions.insert(n, frame.slots[data].clone());
        // Copies out of the map's scope.
        let mut leaving = vec![];
        for edge in walk.outgoing(n) {
            if let NodeKind::Exit(_) = state.nodes[edge.to.0].kind
                && let Some(sink) = walk.sink(edge)
            {
                let slot = frame.slots[data].clone();
                let write = self.copy(frame, walk, edge, (data, &slot), &sink)?;
                leaving.push(Leaving { exit: edge.to.0, connector: edge.to.1.clone().unwrap_or_default(), write });
            }
        }
        Ok(leaving)
    }

    pub fn apply(&mut self, frame: &mut SdfgFrame, data: &str, write: &Write) -> Done<()> {
        let array = frame.sdfg.arrays.get(data).ok_or_else(|| UnreadReason::Why(format!("`{data}` is not declared")))?;
        if !frame.slots.contains_key(data) {
            let shape = self.shape(frame, array)?;
            let slot = self.empty(data, &shape, false);
            frame.slots.insert(data.to_string(), slot);
        }
        let mut write = write.clone();
        if array.is_whole() {
            write.body = match array.dtype.as_str() {
                "bool" => write.body.truth(),
                _ if self.made.is_integral(&write.body) => write.body,
                _ => {
                    let prior = write.body.any(&|v| *v == Value::Prior);
                    if prior { write.body } else { evaluate::truncated(&self.made, write.body) }
                }
            };
        }
        let old = frame.slots[data].clone();
        let new = self.made.written(&old, &write)?;
        frame.slots.insert(data.to_string(), new);
        Ok(())
    }

    /// The container whose elements an edge brings, and what it holds.
    pub fn source(&self, walk: &StateWalk, edge: &DataflowEdge) -> Option<(String, SlotRef)> {
        let mut edge = edge;
        for _ in 0..walk.state.nodes.len() {
            let from = edge.from.0;
            match &walk.state.nodes[from].kind {
                NodeKind::Access(data) => return Some((data.clone(), walk.versions.get(&from)?.clone())),
                NodeKind::Entry { .. } => {
                    let through = edge.from.1.as_deref()?.replacen("OUT_", "IN_", 1);
                    edge = walk.incoming(from).find(|e| e.to.1.as_deref() == Some(&through))?;
                }
                _ => return None,
            }
        }
        None
    }

    /// What the connector of a tasklet holds.
    fn operand(&mut self, frame: &SdfgFrame, walk: &StateWalk, edge: &DataflowEdge) -> Done<TaskletOperand> {
        if let (NodeKind::Tasklet { .. }, Some(connector)) = (&walk.state.nodes[edge.from.0].kind, &edge.from.1) {
            let found = walk.handed.get(&(edge.from.0, connector.clone())).cloned();
            return found.map(TaskletOperand::Value).ok_or(UnreadReason::Earlier);
        }
        let (source, slot) = self.source(walk, edge).ok_or(UnreadReason::Earlier)?;
        let subset = self.side(frame, edge, &source, None, &slot, true)?;
        if subset.is_point() {
            let zero = vec![AffineInteger::number(0); subset.begins.len()];
            // Code that picks elements of a part of one element reads that one.
            return Ok(TaskletOperand::Value(self.made.element(&slot, &subset.at(&zero))?));
        }
        let dropped = subset.counts.iter().map(|count| *count == 1).collect();
        let steps = subset.steps.iter().map(|step| AffineInteger::number(*step));
        Ok(TaskletOperand::Part(slot, subset.begins.iter().cloned().zip(steps).collect(), dropped))
    }

    /// The subset of a container at one end of an edge; all of it where the file says nothing.
    pub fn side(
        &mut self,
        frame: &SdfgFrame,
        edge: &DataflowEdge,
        container: &str,
        other: Option<&str>,
        slot: &SlotRef,
        is_source: bool,
    ) -> Done<Subset> {
        match edge.memlet.side(container, other, is_source) {
            Some(ranges) => self.subset(frame, ranges),
            None => {
                let counts: Vec<i64> = slot.borrow().axes.iter().map(|id| self.made.indices.sizes[*id]).collect();
                Ok(Subset { begins: vec![AffineInteger::number(0); counts.len()], steps: vec![1; counts.len()], counts })
            }
        }
    }

    /// Writes what a tasklet assigned to one of its connectors.
    fn result<'g>(
        &mut self,
        frame: &mut SdfgFrame<'g>,
        walk: &mut StateWalk<'g>,
        edge: &'g DataflowEdge,
        output: &str,
        names: &Names,
    ) -> Done<Vec<Leaving>> {
        let comment = walk.comment(edge.from.0);
        if let NodeKind::Tasklet { .. } = walk.state.nodes[edge.to.0].kind {
            let value = names.values.get(output).cloned().ok_or_else(|| UnreadReason::Why(format!("its code assigns no `{output}`")))?;
            walk.handed.insert((edge.from.0, output.to_string()), value);
            return Ok(vec![]);
        }
        let Some(sink) = walk.sink(edge) else { return Ok(vec![]) };
        let combine = edge.memlet.wcr.as_deref().map(evaluate::combine).transpose()?;
        let ranges = edge.memlet.side(&sink, None, false).cloned().unwrap_or_default();
        let subset = self.subset(frame, &ranges)?;
        let mut writes = vec![];
        if let Some(value) = names.values.get(output) {
            if !subset.is_point() {
                return stop(format!("its code assigns one value to `{output}`, whose memlet moves several elements"));
            }
            writes.push((subset.begins.clone(), value.clone()));
        }
        for (_, at, value) in names.picked.iter().filter(|(name, ..)| name == output) {
            let all = at.len() == subset.begins.len();
            let mut open = at.iter();
            let place = subset.begins.iter().zip(&subset.counts).zip(&subset.steps).map(|((begin, count), step)| {
                let own = if all || *count != 1 { open.next() } else { None };
                begin.clone().plus(own.unwrap_or(&AffineInteger::number(0)), *step)
            });
            writes.push((place.collect(), value.clone()));
        }
        if writes.is_empty() {
            return stop(format!("its code assigns no `{output}`"));
        }
        let mut leaving = vec![];
        for (at, body) in writes {
            let write = Write { points: vec![], at, body, combine, guard: Value::Number(1.0), comment: comment.clone() };
            leaving.extend(self.send(frame, walk, edge, &sink, write)?);
        }
        Ok(leaving)
    }

    /// Applies a write at the access node behind an edge, or hands it to the exit of the map around.
    pub fn send<'g>(
        &mut self,
        frame: &mut SdfgFrame<'g>,
        walk: &StateWalk<'g>,
        edge: &DataflowEdge,
        sink: &str,
        write: Write,
    ) -> Done<Vec<Leaving>> {
        match &walk.state.nodes[edge.to.0].kind {
            NodeKind::Access(data) if data == sink => {
                self.apply(frame, sink, &write)?;
                Ok(vec![])
            }
            NodeKind::Exit(_) => Ok(vec![Leaving { exit: edge.to.0, connector: edge.to.1.clone().unwrap_or_default(), write }]),
            _ => Ok(vec![]),
        }
    }

    /// A map: its parameters are indices of what it holds.
    fn map<'g>(
        &mut self,
        frame: &mut SdfgFrame<'g>,
        walk: &mut StateWalk<'g>,
        n: usize,
        params: &[String],
        ranges: &[SubsetRange],
    ) -> Done<Vec<Leaving>> {
        if let Some(edge) = walk.incoming(n).find(|e| e.to.1.as_ref().is_some_and(|c| !c.starts_with("IN_"))) {
            return stop(format!("its range depends on `{}`, which is computed", edge.to.1.clone().unwrap_or_default()));
        }
        let before = frame.symbols.clone();
        let entered = self.enter(frame, params, ranges);
        let (ids, guard) = match entered {
            Ok(entered) => entered,
            Err(why) => {
                frame.symbols = before;
                return Err(why);
            }
        };
        let inner = self.level(frame, walk, Some(n));
        frame.symbols = before;
        let mut leaving = vec![];
        for Leaving { exit, connector, mut write } in inner {
            write.points.extend(&ids);
            write.guard = Value::both(write.guard, guard.clone());
            let out = connector.replacen("IN_", "OUT_", 1);
            for edge in walk.outgoing(exit).filter(|e| e.from.1.as_deref() == Some(&out)) {
                let Some(sink) = walk.sink(edge) else { continue };
                leaving.extend(self.send(frame, walk, edge, &sink, write.clone())?);
            }
        }
        Ok(leaving)
    }

    /// Gives the parameters of a map their values; its indices, and which of their points are in its range.
    fn enter(&mut self, frame: &mut SdfgFrame, params: &[String], ranges: &[SubsetRange]) -> Done<(Vec<Id>, Value)> {
        let (mut ids, mut guard) = (vec![], Value::Number(1.0));
        for (param, range) in params.iter().zip(ranges) {
            let begins = self.extremes(frame, &range.start, "Max")?;
            let [begin] = begins.as_slice() else { return stop(format!("`{param}` begins at the larger of two numbers")) };
            let step = self.integer(frame, &range.step)?.constant().filter(|s| *s > 0);
            let step = step.ok_or_else(|| UnreadReason::Why(format!("the step of `{param}` is no positive number")))?;
            let ends = self.ends(frame, &range.end)?;
            let extents: Vec<AffineInteger> = ends.iter().map(|end| end.clone().minus(begin)).collect();
            let most = extents.iter().filter_map(|extent| extent.bounds(&self.made.indices).1).min();
            let most = most.ok_or_else(|| UnreadReason::Why(format!("the end of `{param}` depends on what a tensor holds")))?;
            let count = (most.div_euclid(step) + 1).max(0);
            let id = self.made.indices.add(count.max(1));
            let at = begin.clone().plus(&AffineInteger::index(id), step);
            for end in &ends {
                guard = Value::both(guard, Value::at_least_zero(end.clone().minus(&at), &self.made.indices));
            }
            if count == 0 {
                guard = Value::Number(0.0);
            }
            ids.push(id);
            frame.symbols.insert(param.clone(), Symbol::Integer(at));
        }
        Ok((ids, guard))
    }

    /// A copy from one container to another, element by element in their order.
    pub fn copy(
        &mut self,
        frame: &SdfgFrame,
        walk: &StateWalk,
        edge: &DataflowEdge,
        (source, slot): (&str, &SlotRef),
        sink: &str,
    ) -> Done<Write> {
        let state = walk.state;
        let combine = edge.memlet.wcr.as_deref().map(evaluate::combine).transpose()?;
        let comment = format!("{source} to {sink} in {}", state.label);
        let from = self.side(frame, edge, source, Some(sink), slot, true)?;
        let sink_array = frame.sdfg.arrays.get(sink).ok_or_else(|| UnreadReason::Why(format!("`{sink}` is not declared")))?;
        let shape = self.shape(frame, sink_array)?;
        let to = match edge.memlet.side(sink, Some(source), false) {
            Some(ranges) => self.subset(frame, ranges)?,
            None => {
                // As much as comes, from the beginning.
                let known: Vec<i64> = from.counts.iter().copied().filter(|c| *c != 1).collect();
                let own: Vec<i64> = shape.iter().copied().filter(|c| *c != 1).collect();
                let counts = if known.len() == own.len() {
                    let mut open = known.iter();
                    shape.iter().map(|size| if *size == 1 { 1 } else { open.next().copied().unwrap_or(1) }).collect()
                } else {
                    shape.clone()
                };
                Subset { begins: vec![AffineInteger::number(0); shape.len()], steps: vec![1; shape.len()], counts }
            }
        };
        let is_view = sink_array.is_view() || frame.sdfg.arrays.get(source).is_some_and(super::graph::Array::is_view);
        let from = match edge.memlet.side(source, Some(sink), true) {
            Some(_) => from,
            // The subset of the one end is meant at the other end as well, in size.
            None if !is_view
                && from.counts.iter().product::<i64>() != to.counts.iter().product::<i64>()
                && from.counts.len() == to.counts.len() =>
            {
                Subset { counts: to.counts.clone(), ..from }
            }
            None => from,
        };
        let (ids, at) = points(&mut self.made, &to);
        let body = {
            let places = self.matched(&from, &to, &ids)?;
            self.made.element(slot, &places)?
        };
        Ok(Write { points: ids, at, body, combine, guard: Value::Number(1.0), comment })
    }

    /// The place in one subset for each point of another of as many elements.
    fn matched(&self, from: &Subset, to: &Subset, ids: &[Id]) -> Done<Vec<AffineInteger>> {
        let long = |counts: &[i64]| counts.iter().copied().filter(|c| *c != 1).collect::<Vec<_>>();
        let points: Vec<AffineInteger> = ids.iter().map(|id| AffineInteger::index(*id)).collect();
        let inner: Vec<AffineInteger> = if long(&from.counts) == long(&to.counts) {
            let mut open = points.iter().zip(&to.counts).filter(|(_, c)| **c != 1).map(|(p, _)| p.clone());
            from.counts
                .iter()
                .map(|count| if *count == 1 { AffineInteger::number(0) } else { open.next().unwrap_or_else(|| AffineInteger::number(0)) })
                .collect()
        } else if from.counts.iter().product::<i64>() == to.counts.iter().product::<i64>() {
            let strides = super::reader::packed(&to.counts);
            let number = points.iter().zip(strides).fold(AffineInteger::number(0), |sum, (p, stride)| sum.plus(p, stride));
            let strides = super::reader::packed(&from.counts);
            self.places(&vec![AffineInteger::number(0); strides.len()], &strides, &number)
        } else {
            return stop(format!(
                "it copies {} elements to a place of {}",
                from.counts.iter().product::<i64>(),
                to.counts.iter().product::<i64>()
            ));
        };
        Ok(from.at(&inner))
    }

    /// A view's elements, which are those of its container at the same addresses.
    fn view(&mut self, frame: &SdfgFrame, walk: &StateWalk, edge: &DataflowEdge, view: &str) -> Done<SlotRef> {
        let (source, slot) = self.source(walk, edge).ok_or(UnreadReason::Earlier)?;
        let subset = self.side(frame, edge, &source, Some(view), &slot, true)?;
        self.pointer(frame, frame, (&source, &slot), &subset, view)
    }

    /// An array that begins where a subset of another one does, as views and the arrays of nested SDFGs do.
    pub fn pointer(
        &mut self,
        outer: &SdfgFrame,
        inner: &SdfgFrame,
        (source, slot): (&str, &SlotRef),
        subset: &Subset,
        name: &str,
    ) -> Done<SlotRef> {
        let declared = |frame: &SdfgFrame, name: &str| {
            frame.sdfg.arrays.get(name).cloned().ok_or_else(|| UnreadReason::Why(format!("`{name}` is not declared")))
        };
        let (of, own) = (declared(outer, source)?, declared(inner, name)?);
        let (of_shape, shape) = (self.shape(outer, &of)?, self.shape(inner, &own)?);
        let of_strides = self.strides(outer, &of, &of_shape);
        let strides = self.strides(inner, &own, &shape);
        if slot.borrow().body.is_none() {
            return Err(UnreadReason::Earlier);
        }
        let slot = slot.clone();
        self.alias(name, &shape, |reader, at| {
            let offset = at.iter().zip(&strides).fold(AffineInteger::number(0), |sum, (place, stride)| sum.plus(place, *stride));
            let places = reader.places(&subset.begins, &of_strides, &offset);
            reader.made.element(&slot, &places)
        })
    }
}

impl<'g> StateWalk<'g> {
    pub fn incoming(&self, n: usize) -> impl Iterator<Item = &'g DataflowEdge> + use<'g> {
        self.state.edges.iter().filter(move |e| e.to.0 == n)
    }

    pub fn outgoing(&self, n: usize) -> impl Iterator<Item = &'g DataflowEdge> + use<'g> {
        self.state.edges.iter().filter(move |e| e.from.0 == n)
    }

    /// The container that an edge leads to, through exits of maps.
    pub fn sink(&self, edge: &DataflowEdge) -> Option<String> {
        let mut edge = edge;
        for _ in 0..self.state.nodes.len() {
            match &self.state.nodes[edge.to.0].kind {
                NodeKind::Access(data) => return Some(data.clone()),
                NodeKind::Exit(_) => {
                    let through = edge.to.1.as_deref()?.replacen("IN_", "OUT_", 1);
                    edge = self.outgoing(edge.to.0).find(|e| e.from.1.as_deref() == Some(&through))?;
                }
                _ => return None,
            }
        }
        None
    }

    pub fn comment(&self, n: usize) -> String {
        format!("{} in {}", self.state.nodes[n].label, self.state.label)
    }
}
