//! The CUDA of one group of loops: the team shares the innermost one, its threads walk the others together.

use crate::emit::group::divides_by;
use crate::emit::printer::{MaskRow, StreamRow};
use crate::emit::reduction::Reduction;
use crate::emit::scalar::{constant, integer};
use crate::error::KernelError;
use crate::loopnest::{Element, ForLoop, LoopGroup, LoopNest, MemorySpace};
use crate::target::cuda::emit::CudaPrinter;
use crate::target::cuda::emit::register::cuda_type;
use crate::target::cuda::emit::schedule::Placement;
use indexmap::{IndexMap, IndexSet};
use sdfg::Combine;

/// Values kept between groups by all containers together.
const KEPT: i64 = 96;

/// The functor of a combine in the prelude.
pub fn functor(combine: Combine) -> &'static str {
    match combine {
        Combine::Product => "Product()",
        Combine::Max => "Max()",
        Combine::Min => "Min()",
        Combine::Sum | Combine::OnlineSoftmax | Combine::Moments => "Sum()",
    }
}

/// One access to memory that the threads of a team see.
struct Touch {
    memory: String,
    element: Element,
    /// The loop whose iterations decide which thread it is; `None` for all.
    owner: Option<(String, i64)>,
    written: bool,
}

impl CudaPrinter<'_> {
    /// All groups of a nest, and the barriers between them.
    pub fn cuda_groups(&mut self, depth: usize) -> Result<(), KernelError> {
        let nest = self.nest;
        self.keep_between_groups(nest)?;
        self.prefetch_rows(nest)?;
        let (mut open, mut declared): (Vec<Touch>, IndexSet<String>) = (Vec::new(), IndexSet::new());
        for group in &nest.groups {
            let touches = self.touches(group)?;
            let ordered = |a: &Touch, b: &Touch| {
                a.memory != b.memory
                    || !(a.written || b.written)
                    || (a.owner.is_some() && a.owner == b.owner && a.element.subscripts == b.element.subscripts)
            };
            if touches.iter().any(|t| open.iter().any(|o| !ordered(o, t))) {
                self.line(depth, "team_sync();");
                open.clear();
            }
            open.extend(touches);
            self.cuda_group(group, &mut declared, depth)?;
            // Elements that are the same for a whole point, and that no group writes, are loaded once for all groups.
            let written = |root: &String| nest.groups.iter().flat_map(|g| &g.statements).any(|s| self.spec.root(&s.write.data) == root);
            let given =
                |e: &Element| matches!(self.tensor(&e.data).map(|t| &t.space), Ok(MemorySpace::Heap { root, .. }) if !written(root));
            // A divisor is turned over where it is read.
            let divides = |e: &Element| nest.groups.iter().flat_map(|g| &g.statements).any(|s| divides_by(s, e));
            let alike = self.known.iter().filter(|(e, _)| self.level(group, e) == 0 && given(e) && !divides(e));
            let alike: Vec<(Element, String)> = alike.map(|(element, name)| (element.clone(), name.clone())).collect();
            self.dialect.lasting.extend(alike);
            self.ahead.clear();
        }
        self.dialect.lasting.clear();
        // The next point uses the same intermediates.
        let reused = |p: &Placement| matches!(p, Placement::Shared | Placement::Scratch);
        let locals = nest.tensors.iter().filter(|(_, t)| t.space == MemorySpace::Local && t.stored);
        if locals.filter_map(|(d, _)| self.held_in(d)).any(|p| reused(&p)) {
            self.line(depth, "team_sync();");
        }
        Ok(())
    }

    /// What the threads of a team do to memory in a group.
    fn touches(&self, group: &LoopGroup) -> Result<Vec<Touch>, KernelError> {
        let mut touches = Vec::new();
        for statement in &group.statements {
            let each = statement.reads.iter().map(|(_, e)| (e, false)).chain([(&statement.write, true)]);
            for (element, written) in each {
                let tensor = self.tensor(&element.data)?;
                if !self.in_memory(&element.data)? || !tensor.stored {
                    continue;
                }
                let memory = match &tensor.space {
                    MemorySpace::Heap { root, .. } => root.clone(),
                    _ => element.data.clone(),
                };
                let last = group.loops.last().filter(|_| self.level(group, element) == group.loops.len());
                touches.push(Touch { memory, element: element.clone(), owner: last.map(|l| (l.index.clone(), l.count)), written });
            }
        }
        Ok(touches)
    }

    /// Chooses the elements that several groups read at the same strips.
    fn keep_between_groups(&mut self, nest: &LoopNest) -> Result<(), KernelError> {
        let Some(schedule) = self.dialect.schedule.clone().filter(|s| s.keeps) else { return Ok(()) };
        let mut readers: IndexMap<(Element, String, i64), (usize, i64)> = IndexMap::new();
        for group in nest.groups.iter().filter(|g| g.loops.len() == 1) {
            let last = &group.loops[0];
            for element in self.reads_at(group, 1) {
                let MemorySpace::Heap { root, .. } = &self.tensor(&element.data)?.space else { continue };
                let same =
                    |data: &str| matches!(nest.tensors.get(data).map(|t| &t.space), Some(MemorySpace::Heap { root: r, .. }) if r == root);
                if nest.groups.iter().flat_map(|g| &g.statements).any(|s| same(&s.write.data)) {
                    continue;
                }
                let values = schedule.slots(nest, last) * schedule.width;
                readers.entry((element, last.index.clone(), last.count)).or_insert((0, values)).0 += 1;
            }
        }
        let (mut kept, mut total) = (IndexMap::new(), 0);
        let once = |element: &Element| readers.keys().filter(|(e, _, _)| e == element).count() == 1;
        for ((element, _, _), (readers, values)) in &readers {
            if *readers > 1 && once(element) && total + values <= KEPT {
                total += values;
                kept.insert(element.clone(), format!("kept{}", kept.len() + 1));
            }
        }
        if let Some(schedule) = &mut self.dialect.schedule {
            schedule.kept = kept;
        }
        Ok(())
    }

    fn cuda_group(&mut self, group: &LoopGroup, declared: &mut IndexSet<String>, depth: usize) -> Result<(), KernelError> {
        self.title(group, depth);
        self.known.clone_from(&self.dialect.lasting);
        self.dialect.uniform = true;
        let reductions = self.reductions(group)?;
        for r in &reductions {
            let data = &r.statement.write.data;
            let tensor = self.tensor(data)?;
            if matches!(tensor.space, MemorySpace::Private { .. }) {
                continue;
            }
            let identity = constant(r.combine.identity().first().copied().unwrap_or(0.0), self.double);
            if self.registers(data)?.is_some() {
                self.declare_registers(data, Some(&identity).filter(|_| r.again).map(String::as_str), depth)?;
                declared.insert(data.clone());
            } else if r.again {
                let (name, elements) = (self.identifier(data), self.extent(data)?);
                self.pointers.insert(data.clone());
                self.line(depth, format!("for (index_t e = member; e < {elements}; e += TEAM) {name}[e] = {identity};"));
                self.line(depth, "team_sync();");
            }
        }
        for statement in group.statements.iter().filter(|s| s.combine.is_none()) {
            let data = &statement.write.data;
            let local = self.tensor(data)?.stored && self.registers(data)?.is_some();
            if local && declared.insert(data.clone()) {
                self.declare_registers(data, None, depth)?;
            }
        }
        self.walk(group, &reductions, declared, 0, depth)
    }

    pub fn walk(
        &mut self,
        group: &LoopGroup,
        reductions: &[Reduction],
        declared: &mut IndexSet<String>,
        level: usize,
        depth: usize,
    ) -> Result<(), KernelError> {
        self.loads(group, level, depth)?;
        for r in reductions.iter().filter(|r| r.level == level) {
            if let Some(total) = &r.total {
                self.line(depth, format!("double {total} = 0;"));
            } else if let Some(variable) = &r.variable {
                let identity = constant(r.combine.identity().first().copied().unwrap_or(0.0), self.double);
                self.line(depth, format!("real {variable} = {identity};"));
            }
        }
        match group.loops.get(level) {
            None => {
                for statement in &group.statements {
                    self.statement(statement, reductions, depth)?;
                }
            }
            Some(last) if level + 1 == group.loops.len() => {
                self.strips(group, last, reductions, declared, depth)?;
                if !self.ahead.is_empty() && level == 0 {
                    self.line(depth, "ahead(min_of(point + by, to - 1));");
                }
            }
            Some(each) => {
                let (index, count) = (self.index(&each.index), self.count(&each.index, each.count));
                let map = if each.map.is_empty() { String::new() } else { format!(" /* {} */", each.map.replace("*/", "")) };
                self.line(depth, format!("for (index_t {index} = 0; {index} < {count}; ++{index}) {{{map}"));
                self.walk(group, reductions, declared, level + 1, depth + 1)?;
                self.line(depth, "}");
            }
        }
        let ready: Vec<&Reduction> = reductions.iter().filter(|r| r.level == level && r.variable.is_some()).collect();
        // Reductions with the same combine are done in one exchange.
        for alike in ready.chunk_by(|a, b| functor(a.combine) == functor(b.combine)) {
            let of = |r: &&Reduction| Some(r.total.as_ref().map_or(r.variable.clone()?, |total| format!("(real){total}")));
            let variables: Vec<String> = alike.iter().filter_map(of).collect();
            let all = self.fresh("all");
            self.line(depth, format!("real {all}[{}] = {{{}}};", variables.len(), variables.join(", ")));
            let reduced = self.team_reduced(&all, alike[0].combine, variables.len());
            self.line(depth, reduced);
            for (n, r) in alike.iter().enumerate() {
                let mut text = format!("{all}[{n}]");
                if r.again {
                    let held = self.held_value(&r.statement.write)?;
                    text = format!("({})", self.combined(r.combine, &held, &text));
                }
                let store = self.store(&r.statement.write, &text)?;
                self.line(depth, store);
            }
        }
        Ok(())
    }

    /// The call that combines a number of values of each thread of a team.
    fn team_reduced(&mut self, values: &str, combine: Combine, count: usize) -> String {
        if self.dialect.schedule.as_ref().is_some_and(|s| s.team() > crate::target::cuda::emit::schedule::WARP) {
            self.dialect.meetings = self.dialect.meetings.max(count);
            return format!("team_reduce({values}, {}, slots, turn);", functor(combine));
        }
        format!("warp_reduce({values}, {});", functor(combine))
    }

    /// Opens the loop over a thread's strips: `slot`, the first index of the strip, and how many of its lanes there are.
    pub fn open_strips(&mut self, along: &ForLoop, unrolled: bool, depth: usize) {
        let Some((slots, unroll, lanes)) =
            self.dialect.schedule.as_ref().map(|s| (s.slots(self.nest, along), s.unroll, s.team() * s.width))
        else {
            return;
        };
        let count = self.count(&along.index, along.count);
        let first = if self.is_block(&along.index) { "block * LANES + " } else { "" };
        self.line(depth, if unrolled { "#pragma unroll".to_string() } else { format!("#pragma unroll {unroll}") });
        let map = if along.map.is_empty() { String::new() } else { format!(" /* {} */", along.map.replace("*/", "")) };
        self.line(depth, format!("for (int slot = 0; slot < {slots}; ++slot) {{{map}"));
        self.line(depth + 1, format!("const index_t first_lane = {first}((index_t)slot * TEAM + member) * W;"));
        // Where all strips are whole, no lane checks a bound.
        let ragged = self.nest.tiles.iter().any(|t| t.index == along.index && t.is_ragged());
        let whole = !ragged && along.count % lanes == 0;
        let live = if whole { "W".to_string() } else { format!("live_of({count} - first_lane)") };
        self.line(depth + 1, format!("const int live = {live};"));
    }

    /// Opens the loop over the lanes of a strip that there are.
    pub fn open_lanes(&mut self, along: &ForLoop, depth: usize) {
        let index = self.index(&along.index);
        self.line(depth, "#pragma unroll");
        self.line(depth, "for (int w = 0; w < W; ++w) if (w < live) {");
        self.line(depth + 1, format!("const index_t {index} = first_lane + w;"));
    }

    fn strips(
        &mut self,
        group: &LoopGroup,
        last: &ForLoop,
        reductions: &[Reduction],
        declared: &mut IndexSet<String>,
        depth: usize,
    ) -> Result<(), KernelError> {
        let reads = self.reads_at(group, group.loops.len());
        let kept = self.dialect.schedule.as_ref().map_or_else(IndexMap::new, |s| s.kept.clone());
        let slots = self.dialect.schedule.as_ref().map_or(1, |s| s.slots(self.nest, last));
        for element in reads.iter().filter(|_| group.loops.len() == 1) {
            if let Some(name) = kept.get(element)
                && !declared.contains(name)
            {
                self.line(depth, format!("real {name}[{slots}][W];"));
            }
        }
        let each = group.statements.iter().flat_map(|s| s.reads.iter().map(|(_, e)| e).chain([&s.write]));
        let owned = |p: Option<Placement>| matches!(p, Some(Placement::Owned { .. }));
        let unrolled = each.clone().any(|e| owned(self.held_in(&e.data)) || kept.contains_key(e) || self.ahead.contains_key(e));
        self.open_strips(last, unrolled, depth);
        self.dialect.uniform = false;
        self.strip(group, last, reads, reductions, declared, depth + 1)?;
        self.line(depth, "}");
        self.dialect.uniform = true;
        Ok(())
    }

    /// Prints one strip: loads, masks, statements, stores.
    pub fn strip(
        &mut self,
        group: &LoopGroup,
        last: &ForLoop,
        reads: IndexSet<Element>,
        reductions: &[Reduction],
        declared: &mut IndexSet<String>,
        inside: usize,
    ) -> Result<(), KernelError> {
        let kept = self.dialect.schedule.as_ref().map_or_else(IndexMap::new, |s| s.kept.clone());
        for element in reads {
            let keeps = if group.loops.len() == 1 { kept.get(&element).cloned() } else { None };
            if let Some(name) = &keeps {
                self.known.insert(element.clone(), format!("{name}[slot][w]"));
                if !declared.insert(name.clone()) {
                    continue;
                }
            } else if !self.in_memory(&element.data)? {
                let text = self.load(&element)?;
                self.known.insert(element, text);
                continue;
            }
            let name = keeps.as_ref().map_or_else(|| self.fresh("x"), |k| format!("{k}[slot]"));
            if keeps.is_none() {
                self.line(inside, format!("real {name}[W];"));
                self.known.insert(element.clone(), format!("{name}[w]"));
            }
            if let Some(pack) = self.ahead.get(&element) {
                let widened = format!("widen_pack({name}, {pack});");
                self.line(inside, widened);
            } else if element.fill.is_none() && self.contiguous(&element, last)? {
                let first = Element { subscripts: element.subscripts.iter().map(|e| self.at_first(e, last)).collect(), ..element.clone() };
                self.pointers.insert(element.data.clone());
                let at = self.position(&first)?;
                let (pointer, even) = (self.identifier(&element.data), self.is_even(&element, last)?);
                self.line(inside, format!("load_row<{even}>({name}, {pointer}, {at}, live);"));
            } else {
                self.open_lanes(last, inside);
                let text = self.load(&element)?;
                self.line(inside + 1, format!("{name}[w] = {text};"));
                self.line(inside, "}");
            }
        }
        for (mask, element, step) in self.linear_masks(group, last) {
            let (name, first, even) = (self.fresh("mask"), self.at_first(&element, last), self.is_even_mask(group, &element, last));
            let (first, step) = (integer(&first, self), integer(&step, self));
            self.line(inside, format!("uint32_t {name}[W];"));
            let together = if step == "1" { None } else { self.drawn_together(group, &element, last) };
            let in_turn = step != "1" && self.drawn_in_turn(group, &element, last);
            let drawn = match together {
                _ if in_turn => {
                    let held = self.fresh("held");
                    self.dialect.in_turn.push(held.clone());
                    format!("keep_turn({name}, keep{mask}, {first}, {step}, {held}, {held}_at);")
                }
                // Element numbers fit an index: an unsigned one needs no sign extension.
                _ if step == "1" && !self.dialect.schedule.as_ref().is_some_and(|s| s.wide) => {
                    format!("keep_line<{even}>({name}, keep{mask}, (uint32_t)({first}));")
                }
                _ if step == "1" => format!("keep_line<{even}>({name}, keep{mask}, {first});"),
                Some(together) => {
                    format!("keep_rows({name}, keep{mask}, {first}, {step}, {together} && {step} % 8 == 0, drawn{});", self.dialect.draws)
                }
                None => format!("keep_row({name}, keep{mask}, {first}, {step});"),
            };
            self.line(inside, drawn);
            self.rows.push(MaskRow { mask, element, lane: format!("{name}[w]"), upper: step == "1" || in_turn });
        }
        let silent = self.silent;
        for statement in group.statements.iter().filter(|s| s.combine.is_none() && !silent) {
            let tensor = self.tensor(&statement.write.data)?;
            let heap = matches!(tensor.space, MemorySpace::Heap { .. }) && cuda_type(tensor.dtype).is_some();
            let step = if heap { self.turned(group, &statement.write, last) } else { None };
            let near = tensor.stored && self.held_in(&statement.write.data) == Some(Placement::Shared);
            if !(heap || near) || step.is_none() && !self.contiguous(&statement.write, last)? {
                continue;
            }
            let first = Element {
                subscripts: statement.write.subscripts.iter().map(|e| self.at_first(e, last)).collect(),
                ..statement.write.clone()
            };
            self.pointers.insert(statement.write.data.clone());
            let (room, to) = (self.fresh("out"), self.position(&first)?);
            self.line(inside, format!("real {room}[W];"));
            self.streamed.push(StreamRow {
                element: statement.write.clone(),
                place: format!("{room}[w]"),
                room,
                to,
                out: step.unwrap_or_default(),
                even: self.is_even(&statement.write, last)?,
                kind: "real",
            });
        }
        // What a strip adds is few terms; totals are in double precision.
        let sums: Vec<(&String, &String)> = reductions.iter().filter_map(|r| Some((r.variable.as_ref()?, r.total.as_ref()?))).collect();
        for (variable, _) in &sums {
            self.line(inside, format!("real {variable} = 0;"));
        }
        self.open_lanes(last, inside);
        for statement in &group.statements {
            self.statement(statement, reductions, inside + 1)?;
        }
        self.line(inside, "}");
        for (variable, total) in sums {
            self.line(inside, format!("{total} += {variable};"));
        }
        let turns = self.dialect.schedule.as_ref().is_some_and(|s| s.turns);
        for StreamRow { element, room, to, out: step, even, .. } in std::mem::take(&mut self.streamed) {
            let name = self.identifier(&element.data);
            // A container on chip belongs to one row, which alone reads it.
            let heap = matches!(self.tensor(&element.data)?.space, MemorySpace::Heap { .. });
            let live = if turns && heap { "active ? live : 0" } else { "live" };
            if step.is_empty() {
                self.line(inside, format!("store_row<{even}>({name}, {to}, {room}, {live});"));
            } else {
                let left = format!("{} - first_lane", self.count(&last.index, last.count));
                self.line(inside, format!("turn_rows({name}, {to}, {step}, {room}, live, {left}, active, tile, heads, lives);"));
            }
        }
        Ok(())
    }
}
