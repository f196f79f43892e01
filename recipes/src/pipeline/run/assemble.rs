//! Turns a program and a configuration into launches in order, with a place in memory for all their arguments.

use super::launch::{Launch, Slot, SlotPlace, dataflow};
use super::memory::{self, PeakMemory};
use super::once::Once;
use super::replaced::{Replaced, Replacement};
use super::streams::{last_beside, over, schedule as spread};
use crate::pipeline::PipelineError;
use bench::memory::MemoryMap;
use kernels::CancelToken;
use kernels::device::{CompileRequest, Device};
use kernels::{ArgumentAccess, InPlace, KernelSpec, KernelSpecs};
use rayon::prelude::*;
use sdfg::config::{Configuration, KernelConfig};
use sdfg::lifetime::{ArenaPlan, Buffer, Schedule, ScheduleStep};
use sdfg::{Direction, Layout, Role, Sdfg};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// The launches of a step, and where their memory is to lie: none is taken yet.
pub(crate) struct Assembly {
    pub launches: Vec<Launch>,
    /// Launches that run once, before the first step: what they make lies in memory of its own.
    pub once: Vec<Launch>,
    /// Slots that only these read.
    pub needed_once: Vec<usize>,
    pub slots: Vec<Slot>,
    /// Bytes of the arena.
    pub arena_bytes: usize,
    /// Boundary container → slot that holds it.
    pub boundary: BTreeMap<String, usize>,
    pub memory: PeakMemory,
    pub map: MemoryMap,
    /// The parameters that the step replaces.
    pub replaced: Vec<Replaced>,
}

/// Who holds the results of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Results {
    /// They lie in the arena, and parameters may exchange their memory with their next values.
    InArena,
    /// Each has memory of its own, which the caller gives, and the next value of a parameter ends where the parameter lies.
    Apart,
}

/// A launch before it is compiled.
struct Draft {
    name: String,
    pass: Direction,
    work: Work,
    /// Slots of memory in the order of the arguments, with their access.
    arguments: Vec<(usize, ArgumentAccess)>,
    /// (read, written) slots: the written one may take the place of the read one.
    in_place: Vec<(usize, usize)>,
    /// Whether it runs once, before the first step.
    once: bool,
}

enum Work {
    Kernel {
        spec: Box<KernelSpec>,
        config: KernelConfig,
    },
    /// A copy of its first argument in the layout of its second.
    Relayout,
}

struct Assembler<'a> {
    program: &'a Sdfg,
    configuration: &'a Configuration,
    device: &'a Arc<dyn Device>,
    slots: Vec<Slot>,
    /// Container → the slot that holds it.
    held: BTreeMap<String, usize>,
    drafts: Vec<Draft>,
    once: Once,
    results: Results,
}

/// Assembles a program under a configuration, to run on `streams` streams.
///
/// # Errors
/// Kernels that the configuration does not name or that cannot be compiled.
pub(crate) fn assemble(
    program: &Sdfg,
    configuration: &Configuration,
    device: &Arc<dyn Device>,
    streams: usize,
    results: Results,
) -> Result<Assembly, PipelineError> {
    let (assembler, boundary) = Assembler::of(program, configuration, device, results)?;
    assembler.finish(boundary, streams)
}

/// The kernels that [`assemble`] would compile and that no plan has yet.
///
/// # Errors
/// As [`assemble`].
pub(crate) fn requests(
    program: &Sdfg,
    configuration: &Configuration,
    device: &Arc<dyn Device>,
    streams: usize,
) -> Result<Vec<CompileRequest>, PipelineError> {
    let (mut assembler, boundary) = Assembler::of(program, configuration, device, Results::InArena)?;
    let planned = assembler.planned(&boundary, streams)?;
    Ok(assembler.requests(planned.once.iter().chain(&assembler.drafts), &planned.plan, &planned.schedule))
}

/// Compiles kernels of plans on all cores. What fails is reported where its launch is made.
pub(crate) fn compile_requested(requests: &[CompileRequest], device: &Arc<dyn Device>) {
    device.precompile(requests, CancelToken::default());
    if device.is_host() {
        requests.par_iter().for_each(|request| drop(device.compile_for_plan(&request.timed, &request.config)));
    }
}

/// The order of a step's launches, and a plan of its memory.
struct Planned {
    once: Vec<Draft>,
    needed_once: Vec<usize>,
    order: Vec<usize>,
    schedule: Schedule,
    replaced: Vec<Replaced>,
    plan: ArenaPlan,
}

impl<'a> Assembler<'a> {
    /// All launches as drafts, and the slots of the boundary.
    fn of(
        program: &'a Sdfg,
        configuration: &'a Configuration,
        device: &'a Arc<dyn Device>,
        results: Results,
    ) -> Result<(Self, BTreeMap<String, usize>), PipelineError> {
        let once = Once::of(program);
        let mut assembler =
            Assembler { program, configuration, device, slots: vec![], held: BTreeMap::new(), drafts: vec![], once, results };
        assembler.draft()?;
        // Boundary containers exist even if no kernel touches them.
        let mut boundary = BTreeMap::new();
        for container in program.containers.values().filter(|c| c.role != Role::Transient && c.view.is_none()) {
            boundary.insert(container.name.clone(), assembler.held(&container.name));
        }
        Ok((assembler, boundary))
    }
}

impl Assembler<'_> {
    fn layout(&self, data: &str) -> Layout {
        let own = || self.program.containers.get(data).map(Layout::row_major);
        self.configuration.layouts.get(data).cloned().or_else(own).unwrap_or_default()
    }

    /// The slot that holds a container.
    fn held(&mut self, data: &str) -> usize {
        match self.held.get(data) {
            Some(slot) => *slot,
            None => {
                let slot = self.copy(data, self.layout(data));
                self.held.insert(data.to_string(), slot);
                slot
            }
        }
    }

    /// A new slot for a container in some layout.
    fn copy(&mut self, data: &str, layout: Layout) -> usize {
        self.slots.push(Slot { data: data.to_string(), layout, bytes: 0, place: SlotPlace::Arena(0) });
        self.slots.len() - 1
    }

    /// Drafts all launches in the program's order: each kernel between the relayouts that it needs.
    ///
    /// The selection counts a relayouted copy for each kernel that reads it. Here one copy serves all its readers in the same pass.
    /// Keeping it until the next pass would take memory at the peak of the step.
    fn draft(&mut self) -> Result<(), PipelineError> {
        // Container → slots with copies of it in other layouts.
        let mut copies: BTreeMap<String, Vec<usize>> = BTreeMap::new();
        let mut before = Direction::Forward;
        let specs = KernelSpecs::of(self.program);
        for (state, _, unit) in self.program.units() {
            let backward = self.program.state(state).is_some_and(|s| s.name == "backward");
            let pass = if backward { Direction::Backward } else { Direction::Forward };
            if pass != before {
                copies.clear();
                before = pass;
            }
            let spec = specs.spec(&unit)?;
            let config = self
                .configuration
                .kernels
                .get(&spec.name)
                .ok_or_else(|| PipelineError::Internal(format!("the plan has no configuration for `{}`", spec.name)))?
                .clone();
            let (mut arguments, mut after) = (Vec::new(), Vec::new());
            for argument in spec.arguments() {
                let held = self.held(&argument.data);
                let want = config.layouts.get(&argument.data).cloned().unwrap_or_else(|| self.layout(&argument.data));
                let known = copies.entry(argument.data.clone()).or_default();
                if argument.access == ArgumentAccess::Write {
                    known.clear();
                }
                let slot = match known.iter().find(|copy| self.slots[**copy].layout == want) {
                    _ if want == self.slots[held].layout => held,
                    Some(copy) => *copy,
                    None => {
                        let slot = self.copy(&argument.data, want);
                        // A kernel that writes a part leaves the other parts as they are, so the copy must hold them.
                        if argument.access == ArgumentAccess::Read || unit.writes_part(self.program, &argument.data) {
                            self.relayout(pass, held, slot);
                        }
                        if argument.access == ArgumentAccess::Write {
                            after.push((slot, held));
                        }
                        copies.entry(argument.data.clone()).or_default().push(slot);
                        slot
                    }
                };
                arguments.push((slot, argument.access));
            }
            let place = |data: &str| spec.arguments().iter().position(|a| a.data == data).map(|n| arguments[n].0);
            let pairs = self.device.in_place(&spec, &config).into_iter().filter(|p| !unit.writes_part(self.program, &p.written));
            let in_place: Vec<(usize, usize)> = pairs.filter_map(|p| Some((place(&p.read)?, place(&p.written)?))).collect();
            let (name, once) = (spec.name.clone(), self.once.kernels.contains(&spec.name));
            let in_place = if once { vec![] } else { in_place };
            self.drafts.push(Draft { name, pass, work: Work::Kernel { spec: Box::new(spec), config }, arguments, in_place, once });
            for (from, to) in after {
                self.relayout(pass, from, to);
            }
        }
        Ok(())
    }

    fn relayout(&mut self, pass: Direction, from: usize, to: usize) {
        let name = format!("relayout {} {} → {}", self.slots[from].data, self.slots[from].layout, self.slots[to].layout);
        let arguments = vec![(from, ArgumentAccess::Read), (to, ArgumentAccess::Write)];
        let once = self.once.containers.contains(&self.slots[from].data);
        self.drafts.push(Draft { name, pass, work: Work::Relayout, arguments, in_place: vec![], once });
    }

    /// Bytes of a slot.
    fn bytes(&self, slot: usize) -> Result<u64, PipelineError> {
        let Slot { data, layout, .. } = &self.slots[slot];
        let container = self.program.containers.get(data).ok_or_else(|| PipelineError::Internal(format!("`{data}` is not declared")))?;
        let elements = layout
            .extent(&container.dims, &self.program.shape_of(data)?)
            .ok_or_else(|| PipelineError::Internal(format!("the layout {layout} does not fit `{data}`")))?;
        Ok(container.dtype.bytes(elements as u64))
    }

    /// Whether a slot holds an input or parameter in the layout in which the caller's tensor is put there.
    fn is_given(&self, slot: usize) -> bool {
        let data = &self.slots[slot].data;
        let role = self.program.containers.get(data).map(|c| c.role);
        self.held.get(data) == Some(&slot) && matches!(role, Some(Role::Input | Role::Parameter))
    }

    /// Whether a slot has memory of its own, which lasts through all steps: it is given, or made once.
    fn is_lasting(&self, slot: usize) -> bool {
        self.is_given(slot) || self.once.containers.contains(&self.slots[slot].data)
    }

    /// Whether a slot holds a parameter's value in the next step, in its held layout: it is kept between steps, so it is not in the arena.
    fn is_next(&self, slot: usize) -> bool {
        let data = &self.slots[slot].data;
        self.held.get(data) == Some(&slot) && self.program.containers.get(data).is_some_and(|c| c.replaces.is_some())
    }

    /// The held slots of the parameters that the step replaces, and of their new values, as far as kernels touch both.
    fn next(&self) -> impl Iterator<Item = (usize, usize)> + '_ {
        let pairs = self.program.containers.values().filter_map(|c| Some((c.replaces.as_ref()?, &c.name)));
        pairs.filter_map(|(parameter, next)| Some((*self.held.get(parameter)?, *self.held.get(next)?)))
    }

    /// Whether a slot has no place in the arena.
    fn is_apart(&self, slot: usize) -> bool {
        self.is_lasting(slot) || self.is_next(slot) || self.is_result_apart(slot)
    }

    /// Whether a slot holds a result, in its held layout, in memory of the caller's.
    fn is_result_apart(&self, slot: usize) -> bool {
        let data = &self.slots[slot].data;
        let role = self.program.containers.get(data).map(|c| c.role);
        self.results == Results::Apart && self.held.get(data) == Some(&slot) && matches!(role, Some(Role::Output | Role::Gradient))
    }

    /// The parameters that the step replaces when its launches run in this order.
    fn replaced(&mut self, order: &[usize]) -> Vec<Replaced> {
        let next = self.program.containers.values().filter_map(|c| Some((c.name.clone(), c.replaces.clone()?)));
        let mut found = Vec::new();
        for (next, parameter) in next.collect::<Vec<_>>() {
            let slots = [self.held(&parameter), self.held(&next)];
            let how = match self.slots[slots[0]].layout == self.slots[slots[1]].layout {
                true if self.can_lie_over(slots, order) => Replacement::InPlace,
                // A recording knows the addresses that it was made with.
                true if !self.device.records() && self.results == Results::InArena => Replacement::Exchanged,
                _ => Replacement::Copied,
            };
            found.push(Replaced { parameter, slots, how });
        }
        found
    }

    /// Whether the launch that writes the second slot may do so where the first one lies: it reads that at the same places, and no launch
    /// after it reads that.
    fn can_lie_over(&self, [now, next]: [usize; 2], order: &[usize]) -> bool {
        let touches = |draft: &Draft, slot: usize| draft.arguments.iter().any(|(s, _)| *s == slot);
        let drafts: Vec<&Draft> = order.iter().filter_map(|n| self.drafts.get(*n)).collect();
        let Some(writer) = drafts.iter().position(|draft| touches(draft, next)) else { return false };
        let reads_after = drafts[writer + 1..].iter().any(|draft| touches(draft, now));
        let in_place = drafts[writer].in_place.contains(&(now, next)) || !touches(drafts[writer], now);
        !reads_after && in_place
    }

    /// Slots that lie where a result of the caller's memory does, with that result: a launch writes the result in place of the slot, as its
    /// last reader, and none touches the result before.
    fn in_results(&self, order: &[usize], boundary: &BTreeMap<String, usize>) -> BTreeMap<usize, usize> {
        let drafts: Vec<&Draft> = order.iter().filter_map(|n| self.drafts.get(*n)).collect();
        let touches = |n: usize, slot: usize| drafts[n].arguments.iter().any(|(s, _)| *s == slot);
        let is_inner = |slot: usize| !self.is_apart(slot) && boundary.get(&self.slots[slot].data) != Some(&slot);
        let mut found: BTreeMap<usize, usize> = BTreeMap::new();
        // From the last launch on: what lies in a result may have been written in place of another slot itself.
        for (n, draft) in drafts.iter().enumerate().rev() {
            for (from, to) in draft.in_place.iter().filter(|(from, _)| is_inner(*from)) {
                let result = found.get(to).copied().or_else(|| (self.is_result_apart(*to) && !self.is_next(*to)).then_some(*to));
                let Some(result) = result.filter(|_| !found.contains_key(from)) else { continue };
                let first = (0..n).all(|before| !touches(before, *to));
                let last = (n + 1..drafts.len()).all(|after| !touches(after, *from));
                let taken = draft.in_place.iter().any(|(other, over)| over == to && found.get(other) == Some(&result));
                let fits = self.bytes(*from).ok().zip(self.bytes(*to).ok()).is_some_and(|(from, to)| from == to);
                if first && last && fits && !taken {
                    found.insert(*from, result);
                }
            }
        }
        found
    }

    /// The steps of the program with the buffers that they read and write. Buffer numbers are slot numbers; inputs have memory of their
    /// own, so no step refers to them.
    fn schedule(&self, boundary: &BTreeMap<String, usize>) -> Result<Schedule, PipelineError> {
        let mut schedule = Schedule::default();
        for (n, slot) in self.slots.iter().enumerate() {
            let is_held = self.held.get(&slot.data) == Some(&n);
            let name = if is_held { slot.data.clone() } else { format!("{} {} #{n}", slot.data, slot.layout) };
            let apart = self.is_apart(n);
            let kept = boundary.get(&slot.data) == Some(&n) && !apart;
            schedule.buffers.push(Buffer { name, bytes: if apart { 0 } else { self.bytes(n)? }, kept });
        }
        // What is kept between steps takes nothing of the arena, but orders the kernels: none reads a new value before it is written, and
        // none that reads an old one is moved behind the kernel that writes the new one.
        let old: BTreeMap<usize, usize> = self.next().map(|(parameter, next)| (next, parameter)).collect();
        let is_ordered = |slot: usize| !self.is_lasting(slot) || old.values().any(|parameter| *parameter == slot);
        for draft in &self.drafts {
            let touched = draft.arguments.iter().filter(|(slot, _)| is_ordered(*slot));
            let of = |access| touched.clone().filter(move |(_, a)| *a == access).map(|(slot, _)| *slot);
            let writes: Vec<usize> = of(ArgumentAccess::Write).collect();
            let replaced = writes.iter().filter_map(|slot| old.get(slot).copied()).collect::<Vec<_>>();
            schedule.steps.push(ScheduleStep {
                name: draft.name.clone(),
                stage: usize::from(draft.pass == Direction::Backward),
                reads: of(ArgumentAccess::Read).collect(),
                writes: writes.into_iter().chain(replaced).collect(),
                in_place: draft.in_place.iter().copied().filter(|(from, to)| !self.is_apart(*from) && !self.is_apart(*to)).collect(),
            });
        }
        Ok(schedule)
    }

    /// Plans the memory of a step whose launches, in this order, run on several streams: launches that may run concurrently share no
    /// memory, and no result takes the place of an input.
    fn beside(&self, schedule: &Schedule, order: &[usize], streams: usize) -> ArenaPlan {
        let written = |d: &Draft| d.arguments.iter().map(|(slot, access)| (*slot, *access == ArgumentAccess::Write)).collect();
        let arguments: Vec<Vec<(usize, bool)>> = order.iter().map(|n| written(&self.drafts[*n])).collect();
        let over = over(&spread(&dataflow(arguments.iter().map(Vec::as_slice)), streams));
        let mut intervals = schedule.intervals();
        for interval in &mut intervals {
            let Some(slot) = schedule.buffers.iter().position(|b| b.name == interval.data) else { continue };
            let uses: Vec<usize> = (0..arguments.len()).filter(|n| arguments[*n].iter().any(|a| a.0 == slot)).collect();
            interval.last = interval.last.max(last_beside(&over, &uses));
        }
        sdfg::lifetime::plan(&intervals, &[])
    }

    /// Orders the launches and plans their memory. Slots that lie over others are placed; launches that run once are taken out.
    fn planned(&mut self, boundary: &BTreeMap<String, usize>, streams: usize) -> Result<Planned, PipelineError> {
        let (once, drafts): (Vec<Draft>, Vec<Draft>) = std::mem::take(&mut self.drafts).into_iter().partition(|d| d.once);
        self.drafts = drafts;
        let read = |drafts: &[Draft]| -> BTreeSet<usize> { drafts.iter().flat_map(|d| &d.arguments).map(|(slot, _)| *slot).collect() };
        let needed_once: Vec<usize> = read(&once).difference(&read(&self.drafts)).copied().collect();
        let schedule = self.schedule(boundary)?;
        let mut order = schedule.order();
        let mut schedule = schedule.reordered(&order);
        let replaced = self.replaced(&order);
        // Launches that may run concurrently share no memory.
        for (slot, result) in if streams == 1 { self.in_results(&order, boundary) } else { BTreeMap::new() } {
            self.slots[slot].place = SlotPlace::Over(result);
            schedule.buffers[slot].bytes = 0;
        }
        let plan = match streams {
            1 => sdfg::lifetime::plan(&schedule.intervals(), &schedule.handovers()),
            _ => self.beside(&schedule, &order, streams),
        };
        for Replaced { slots: [now, next], .. } in replaced.iter().filter(|r| r.how == Replacement::InPlace) {
            self.slots[*next].place = SlotPlace::Over(*now);
        }
        // What is copied is copied last.
        for Replaced { slots: [now, next], .. } in replaced.iter().filter(|r| r.how == Replacement::Copied) {
            order.push(self.drafts.len());
            self.relayout(Direction::Backward, *next, *now);
        }
        Ok(Planned { once, needed_once, order, schedule, replaced, plan })
    }

    /// Orders and compiles the launches and gives every slot its memory.
    fn finish(mut self, boundary: BTreeMap<String, usize>, streams: usize) -> Result<Assembly, PipelineError> {
        let Planned { once, needed_once, order, schedule, replaced, plan } = self.planned(&boundary, streams)?;
        let mut given = Vec::new();
        for n in 0..self.slots.len() {
            self.slots[n].bytes = self.bytes(n)? as usize;
            if matches!(self.slots[n].place, SlotPlace::Over(_)) {
                continue;
            }
            self.slots[n].place = if self.is_apart(n) {
                let bytes = self.bytes(n)?;
                if !needed_once.contains(&n) {
                    given.push((self.slots[n].data.clone(), bytes));
                }
                SlotPlace::Held(self.device.memory(0)?)
            } else {
                SlotPlace::Arena(plan.offsets.get(&schedule.buffers[n].name).copied().unwrap_or_default() as usize)
            };
        }
        compile_requested(&self.requests(once.iter().chain(&self.drafts), &plan, &schedule), self.device);
        let once = once.into_iter().map(|draft| self.launch(draft, &plan, &schedule)).collect::<Result<_, _>>()?;
        let mut drafts: Vec<Option<Draft>> = std::mem::take(&mut self.drafts).into_iter().map(Some).collect();
        let mut launches = Vec::new();
        for draft in order.iter().filter_map(|n| drafts.get_mut(*n)?.take()) {
            launches.push(self.launch(draft, &plan, &schedule)?);
        }
        let mut map = memory::map(given, &schedule, &plan);
        map.lives.retain(|life| life.bytes > 0);
        let is_handed_over = |name: &String| plan.handovers.iter().any(|h| h.from == *name);
        for life in map.lives.iter().filter(|l| !l.kept && !is_handed_over(&l.name)) {
            if let Some(launch) = launches.get_mut(life.last) {
                launch.ends.push((life.offset as usize, life.bytes as usize));
            }
        }
        let given_bytes = map.given_bytes();
        let memory = PeakMemory {
            given_bytes,
            planned_bytes: given_bytes + plan.peak_bytes,
            working_bytes: 0,
            actual_bytes: given_bytes + plan.peak_bytes,
            lower_bound_bytes: given_bytes + plan.lower_bound,
        };
        let arena_bytes = plan.peak_bytes as usize;
        Ok(Assembly { launches, once, needed_once, slots: self.slots, arena_bytes, boundary, memory, map, replaced })
    }

    /// The pairs of a launch's arguments that the plan has placed in place.
    fn placed(&self, draft: &Draft, plan: &ArenaPlan, schedule: &Schedule) -> Vec<InPlace> {
        let data = |slot: usize| self.slots[slot].data.clone();
        let name = |slot: usize| &schedule.buffers[slot].name;
        let held = |slot: usize| if let SlotPlace::Over(held) = self.slots[slot].place { held } else { slot };
        let over = |from: usize, to: usize| held(from) == held(to);
        let placed =
            |(from, to): &&(usize, usize)| over(*from, *to) || plan.handovers.iter().any(|h| h.from == *name(*from) && h.to == *name(*to));
        let pairs = draft.in_place.iter().filter(placed);
        pairs.map(|(read, written)| InPlace { read: data(*read), written: data(*written) }).collect()
    }

    /// What launches have to be compiled: all of them in parallel, since compiling one by one would dominate assembly.
    fn requests<'d>(&'d self, drafts: impl Iterator<Item = &'d Draft>, plan: &ArenaPlan, schedule: &Schedule) -> Vec<CompileRequest> {
        let coming = drafts.filter_map(|draft| match &draft.work {
            Work::Kernel { spec, config } => {
                let config = kernels::in_place::with(config, &self.placed(draft, plan, schedule));
                (!self.device.has_for_plan(spec, &config)).then(|| CompileRequest::once(spec, &config))
            }
            Work::Relayout => {
                let (from, to) = (&self.slots[draft.arguments[0].0], &self.slots[draft.arguments[1].0]);
                let (container, shape) = (self.program.containers.get(&from.data)?, self.program.shape_of(&from.data).ok()?);
                self.device.relayout_request(container, &shape, &from.layout, &to.layout)
            }
        });
        coming.collect()
    }

    /// A launch ready to run.
    fn launch(&self, draft: Draft, plan: &ArenaPlan, schedule: &Schedule) -> Result<Launch, PipelineError> {
        let arguments: Vec<(usize, bool)> =
            draft.arguments.iter().map(|(slot, access)| (*slot, *access == ArgumentAccess::Write)).collect();
        let in_place = self.placed(&draft, plan, schedule);
        let is_relayout = matches!(draft.work, Work::Relayout);
        let executable = match draft.work {
            Work::Kernel { spec, config } => self.device.compile_for_plan(&spec, &kernels::in_place::with(&config, &in_place))?,
            Work::Relayout => {
                let (from, to) = (&self.slots[arguments[0].0], &self.slots[arguments[1].0]);
                let container = self
                    .program
                    .containers
                    .get(&from.data)
                    .ok_or_else(|| PipelineError::Internal(format!("`{}` is not declared", from.data)))?;
                self.device.relayout(container, &self.program.shape_of(&from.data)?, &from.layout, &to.layout)?
            }
        };
        Ok(Launch { name: draft.name, pass: draft.pass, is_relayout, executable, arguments, in_place, ends: vec![] })
    }
}
