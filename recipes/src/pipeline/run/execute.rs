//! A program under a configuration, compiled and with its memory: runs training steps.

use super::assemble::{Assembly, Results, assemble, compile_requested, requests};
use super::candidate::Candidate;
use super::launch::{Launch, Slot, SlotPlace, dataflow, regions};
use super::memory::PeakMemory;
use super::once::DoneOnce;
use super::packs::Packs;
use super::replaced::{Replaced, Values, exchange};
use super::restore::SavedInputs;
use super::streams::{put, schedule, used};
use crate::pipeline::PipelineError;
use crate::timings::{CommandPhase, during};
use bench::memory::MemoryMap;
use kernels::constant::new_parameters;
use kernels::device::{CompileRequest, Device, DeviceMemory, Recording};
use kernels::executable::Resources;
use kernels::pool::{Pool, Working};
use kernels::{Executable, KernelSpec, MemberTimes, OnChipMemory, RunContext};
use sdfg::config::{Configuration, KernelConfig};
use sdfg::interpret::Run;
use sdfg::{Direction, Sdfg};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

/// Debug builds fill freed memory with this byte, a NaN in every floating type, so that a read after the end of a lifetime shows.
const SPOILT: u8 = 0xff;

/// Times of one step in milliseconds.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct StepTimes {
    pub forward_ms: f64,
    pub backward_ms: f64,
    /// Milliseconds of both passes in one measurement, if the device's clock is more accurate than the caller's.
    pub step_ms: Option<f64>,
    /// Milliseconds of each launch, in order; empty if the launches ran as one recording.
    pub launches_ms: Vec<f64>,
    /// How often each launch gave work to the device, in order, or each pack of a packed step: parallel regions of the pool, each with its
    /// barrier, or functions of a GPU. Empty if the launches ran as one recording.
    #[serde(default)]
    pub dispatches: Vec<u64>,
}

pub struct Execution {
    /// The recorded step: forward, and both passes. Declared before the memory it refers to, so that it is dropped first.
    pub(super) recorded: Option<[Box<dyn Recording>; 2]>,
    pub(super) device: Arc<dyn Device>,
    /// Streams that a recorded step may use.
    streams: usize,
    pub(super) program: Sdfg,
    pub(super) launches: Vec<Launch>,
    /// Whether launches share dispatches, and how they do so for the number of workers of the last step.
    pub(super) is_packed: bool,
    packs: Option<Packs>,
    /// Launches that run once after tensors were loaded, whether they must still run, and the slots that only they need.
    pub(super) once: Vec<Launch>,
    pub(super) is_due: bool,
    pub(super) needed_once: Vec<usize>,
    pub(super) done_once: DoneOnce,
    pub(super) slots: Vec<Slot>,
    /// Empty until tensors are loaded.
    pub(super) arena: DeviceMemory,
    pub(super) arena_bytes: usize,
    pub(super) has_memory: bool,
    /// Boundary container → slot that holds it.
    pub(super) boundary: BTreeMap<String, usize>,
    pub memory: PeakMemory,
    /// Where each tensor lies in memory, and for which launches.
    pub map: MemoryMap,
    /// The parameters that a step replaces.
    pub replaced: Vec<Replaced>,
    /// What they were loaded with.
    pub(super) loaded: Values,
    /// Which values parameters have ([`RunContext::parameters`]).
    pub(super) parameters: u64,
}

impl Execution {
    /// A candidate on its number of streams, as far as the device has these.
    pub fn of(candidate: &Candidate, device: &Arc<dyn Device>) -> Result<Self, PipelineError> {
        let (memory_for, packed) = Execution::memory_for(candidate, device);
        let mut execution = Execution::on(memory_for, &candidate.program, &candidate.configuration, device)?;
        if packed {
            (execution.streams, execution.is_packed) = (1, true);
        }
        Ok(execution)
    }

    /// How many launches may run beside one another in a candidate's memory, and whether they share dispatches.
    fn memory_for(candidate: &Candidate, device: &Arc<dyn Device>) -> (usize, bool) {
        let packed = candidate.packed && !device.records();
        let streams = device.streams().map_or(1, |streams| streams.count().min(candidate.streams));
        (if packed { candidate.beside } else { streams }, packed)
    }

    /// The kernels of a candidate that are still to be compiled.
    ///
    /// # Errors
    /// As [`Execution::of`].
    pub fn requests(candidate: &Candidate, device: &Arc<dyn Device>) -> Result<Vec<CompileRequest>, PipelineError> {
        let (memory_for, _) = Execution::memory_for(candidate, device);
        requests(&candidate.program, &candidate.configuration, device, memory_for)
    }

    /// Compiles kernels of several candidates on all cores: those of all at once, as cores would wait for one another where candidates have
    /// kernels in common. What fails is reported where a candidate runs.
    pub fn compile_ahead(requests: &[CompileRequest], device: &Arc<dyn Device>) {
        compile_requested(requests, device);
    }

    /// Launches of the step, and into how many groups packing brings them on a number of workers, if the step is packed.
    pub fn packing(&self, workers: usize) -> Option<(usize, usize)> {
        self.is_packed.then(|| (self.launches.len(), Packs::of(&self.launches, &self.slots, workers).groups().len()))
    }

    /// The launches that take part in each group between two barriers, on a number of workers; empty unless the step is packed.
    pub fn groups(&self, workers: usize) -> Vec<Vec<String>> {
        if !self.is_packed {
            return vec![];
        }
        let names = |group: Vec<usize>| group.into_iter().map(|n| self.launches[n].name.clone()).collect();
        Packs::of(&self.launches, &self.slots, workers).groups().into_iter().map(names).collect()
    }

    /// A program under a configuration, on one stream.
    pub fn new(program: &Sdfg, configuration: &Configuration, device: &Arc<dyn Device>) -> Result<Self, PipelineError> {
        Execution::on(1, program, configuration, device)
    }

    /// Compiles every kernel and plans memory in the order of kernels that needs the least of it. Kernels that can do so write results in
    /// place of inputs that are no longer read. Memory is taken when tensors are loaded.
    fn on(streams: usize, program: &Sdfg, configuration: &Configuration, device: &Arc<dyn Device>) -> Result<Self, PipelineError> {
        let Assembly { launches, once, needed_once, slots, arena_bytes, boundary, memory, map, replaced } =
            during(CommandPhase::Compile, || assemble(program, configuration, device, streams, Results::InArena))?;
        let (device, program, done_once) = (device.clone(), program.clone(), DoneOnce::default());
        let (is_due, arena) = (!once.is_empty(), device.memory(0)?);
        Ok(Execution {
            recorded: None,
            device,
            streams,
            program,
            launches,
            is_packed: false,
            packs: None,
            once,
            is_due,
            needed_once,
            done_once,
            slots,
            arena,
            arena_bytes,
            has_memory: false,
            boundary,
            memory,
            map,
            replaced,
            loaded: Values::default(),
            parameters: new_parameters(),
        })
    }

    /// Runs what runs once, unless that has been done since tensors were loaded, and gives memory back that nothing else needs.
    pub(super) fn run_once(&mut self, pool: &Pool, run: &Run) -> Result<(), PipelineError> {
        if !self.has_memory {
            self.take_memory()?;
        }
        if !std::mem::take(&mut self.is_due) {
            return Ok(());
        }
        for n in &self.needed_once {
            let slot = &mut self.slots[*n];
            if let SlotPlace::Held(memory) = &mut slot.place
                && memory.len() < slot.bytes
            {
                *memory = self.device.memory(slot.bytes)?;
            }
        }
        let context =
            RunContext { seed: run.seed, step: run.step, dropout: run.dropout, pool, deadline: None, parameters: self.parameters };
        let (pointers, held) = (self.pointers(), pool.hold());
        let mut ms = 0.0;
        for launch in &self.once {
            ms += self.device.time(&mut || launch.run(&pointers, &context))?;
        }
        drop(held);
        let relayouts = self.once.iter().filter(|launch| launch.is_relayout).count();
        let made = self.once.iter().flat_map(|l| &l.arguments).filter(|(slot, written)| *written && !self.needed_once.contains(slot));
        let result_bytes = made.map(|(slot, _)| self.slots[*slot].bytes as u64).sum();
        self.done_once = DoneOnce { kernels: self.once.len() - relayouts, relayouts, ms, result_bytes, ..self.done_once };
        for n in &self.needed_once {
            self.slots[*n].place = SlotPlace::Held(self.device.memory(0)?);
        }
        Ok(())
    }

    /// What was done once since tensors were loaded; kernels count after the first step.
    pub fn done_once(&self) -> DoneOnce {
        self.done_once
    }

    /// Gives parameters that steps have replaced the values that they were loaded with. Returns whether there are any.
    pub fn restart(&mut self) -> Result<bool, PipelineError> {
        self.loaded.put_back(&mut self.slots)?;
        Ok(!self.replaced.is_empty())
    }

    /// Names and passes of the launches, in order.
    pub fn launches(&self) -> impl Iterator<Item = (&str, Direction)> {
        self.launches.iter().map(|l| (l.name.as_str(), l.pass))
    }

    /// The kernel of a launch compiled in another configuration, with the launch's layouts and planned memory; `None` if that
    /// configuration cannot write in place as the plan requires.
    pub(in crate::pipeline) fn instead(
        &self,
        launch: usize,
        spec: &KernelSpec,
        config: &KernelConfig,
    ) -> Result<Option<Arc<dyn Executable>>, PipelineError> {
        let in_place = self.launches.get(launch).map_or(&[][..], |l| &l.in_place);
        let legal = self.device.in_place(spec, config);
        if !in_place.iter().all(|pair| legal.contains(pair)) {
            return Ok(None);
        }
        Ok(Some(self.device.compile(spec, &kernels::in_place::with(config, in_place))?))
    }

    /// Replaces a launch's kernel in later steps.
    pub(in crate::pipeline) fn exchange(&mut self, launch: usize, executable: Arc<dyn Executable>) {
        if let Some(launch) = self.launches.get_mut(launch) {
            launch.executable = executable;
        }
    }

    /// Bytes of working memory that the kernels share besides tensors, on this number of workers.
    pub fn working_bytes(&self, workers: usize) -> u64 {
        self.once.iter().chain(&self.launches).map(|l| l.executable.working()).fold(Working::default(), Working::max).bytes(workers) as u64
    }

    /// GPU resources of each launch's functions, in order.
    pub fn resources(&self) -> impl Iterator<Item = &[Resources]> {
        self.launches.iter().map(|l| l.executable.resources())
    }

    /// What each launch holds on chip, in order; of a loop its body says it.
    pub fn on_chip(&self) -> Vec<OnChipMemory> {
        self.launches.iter().map(|l| l.executable.on_chip()).collect()
    }

    /// Generated code by kernel, for kernels that have code.
    pub fn sources(&self) -> Vec<(String, String)> {
        let code = |l: &Launch| l.executable.source().map(|s| (l.name.clone(), s.to_string()));
        let all = || self.once.iter().chain(&self.launches);
        // Kernels of one element type share their GEMM library.
        let libraries: BTreeSet<&str> = all().filter_map(|l| l.executable.library()).collect();
        let name = |n: usize| if n == 0 { "products".to_string() } else { format!("products_{n}") };
        all().filter_map(code).chain(libraries.into_iter().enumerate().map(|(n, s)| (name(n), s.to_string()))).collect()
    }

    /// Runs one step, forward and backward: as a recording if the device records, else launch by launch with a time for each.
    pub fn step(&mut self, pool: &Pool, seed: u64, step: u64, dropout: bool) -> Result<StepTimes, PipelineError> {
        if !self.device.records() {
            let run = Run { seed, step, dropout };
            return if self.is_packed { self.packed(pool, &run) } else { self.apart(pool, &run, 0) };
        }
        let run = Run { seed, step, dropout };
        self.run_once(pool, &run)?;
        // Timing repeats the step, and each run replaces parameters: the last one begins where the first one does.
        let before = Values::of(&self.replaced, &self.slots)?;
        if self.recorded.is_none() {
            // A first run loads libraries, which cannot happen while recording.
            self.apart(pool, &run, 0)?;
            self.recorded = self.record(pool, &run)?;
        }
        let Some(parts) = &self.recorded else { return Err(PipelineError::Internal("nothing was recorded".into())) };
        let steps = self.device.steps().max(1);
        let time = |part: usize| -> Result<f64, PipelineError> {
            let all = self.device.time(&mut || (0..steps).try_for_each(|_| parts[part].run(&run)))?;
            Ok(all / steps as f64)
        };
        // Backward frees tensors that forward kept, so it cannot run alone twice. Whole steps run last, so that their results stay.
        let (forward, both) = (time(0)?, time(1)?);
        if !self.replaced.is_empty() {
            before.put_back(&mut self.slots)?;
            parts[1].run(&run)?;
        }
        let backward = self.launches.iter().any(|l| l.pass == Direction::Backward);
        Ok(StepTimes {
            step_ms: Some(both),
            forward_ms: forward,
            backward_ms: if backward { (both - forward).max(0.0) } else { 0.0 },
            ..StepTimes::default()
        })
    }

    /// Runs one step group by group; launches have no times of their own then. A group in which both passes have a part counts as forward.
    pub(super) fn packed(&mut self, pool: &Pool, run: &Run) -> Result<StepTimes, PipelineError> {
        self.run_once(pool, run)?;
        let packs = match self.packs.take().filter(|packs| packs.workers() == pool.workers()) {
            Some(packs) => packs,
            None => Packs::of(&self.launches, &self.slots, pool.workers()),
        };
        let context =
            RunContext { seed: run.seed, step: run.step, dropout: run.dropout, pool, deadline: None, parameters: self.parameters };
        let mut times = StepTimes::default();
        let (pointers, held) = (self.pointers(), pool.hold());
        let groups = packs.groups();
        let (mut before, mut since) = (pool.dispatches(), Instant::now());
        packs.run(&self.launches, &pointers, &context, &mut |group| {
            let elapsed = since.elapsed().as_secs_f64() * 1e3;
            times.dispatches.push(pool.dispatches() - before);
            (before, since) = (pool.dispatches(), Instant::now());
            match groups[group].iter().all(|n| self.launches[*n].pass == Direction::Backward) {
                true => times.backward_ms += elapsed,
                false => times.forward_ms += elapsed,
            }
        })?;
        drop(held);
        self.packs = Some(packs);
        self.rows()?;
        exchange(&self.replaced, &mut self.slots);
        Ok(times)
    }

    /// Milliseconds of each launch when it is run repeatedly, as in a sweep: medians of `times` runs, in order. Each run gets the inputs
    /// of the first, so that tensors hold the results of one step afterwards.
    pub fn alone(&mut self, pool: &Pool, run: &Run, times: usize) -> Result<Vec<f64>, PipelineError> {
        Ok(self.apart(pool, run, times)?.launches_ms)
    }

    /// Runs one step, launch by launch, and times each launch: once, or as the median of `again` runs after the first.
    pub fn apart(&mut self, pool: &Pool, run: &Run, again: usize) -> Result<StepTimes, PipelineError> {
        self.run_once(pool, run)?;
        let context =
            RunContext { seed: run.seed, step: run.step, dropout: run.dropout, pool, deadline: None, parameters: self.parameters };
        let mut times = StepTimes::default();
        let (pointers, _held) = (self.pointers(), pool.hold());
        if cfg!(debug_assertions) {
            self.arena.spoil(0, self.arena.len(), SPOILT);
        }
        for launch in &self.launches {
            let once = || self.device.time(&mut || launch.run(&pointers, &context));
            let found = match again {
                0 => SavedInputs::default(),
                _ => SavedInputs::before(regions(&self.slots, &[launch]).concat(), &self.slots, &self.arena)?,
            };
            let before = pool.dispatches();
            let first = once()?;
            let functions = launch.executable.resources().len() as u64;
            times.dispatches.push((pool.dispatches() - before).max(functions).max(1));
            let mut more = Vec::new();
            for _ in 0..again {
                found.put_back(&mut self.slots, &mut self.arena)?;
                more.push(once()?);
            }
            let elapsed = layouts::record::median(&more).unwrap_or(first);
            match launch.pass {
                Direction::Forward => times.forward_ms += elapsed,
                Direction::Backward => times.backward_ms += elapsed,
            }
            times.launches_ms.push(elapsed);
            if cfg!(debug_assertions) {
                launch.ends.iter().for_each(|(at, bytes)| self.arena.spoil(*at, *bytes, SPOILT));
            }
        }
        self.rows()?;
        exchange(&self.replaced, &mut self.slots);
        Ok(times)
    }

    /// What the kernels of each launch's loop took in a step, in the order of the launches and of the body; empty for what is no loop.
    /// Times are medians over this number of steps, in which each kernel runs by itself.
    pub fn members(&mut self, pool: &Pool, run: &Run, times: usize) -> Result<Vec<Vec<MemberTimes>>, PipelineError> {
        self.run_once(pool, run)?;
        let context =
            RunContext { seed: run.seed, step: run.step, dropout: run.dropout, pool, deadline: None, parameters: self.parameters };
        let (pointers, held) = (self.pointers(), pool.hold());
        let mut samples: Vec<Vec<Vec<f64>>> = vec![vec![]; self.launches.len()];
        let mut found: Vec<Vec<MemberTimes>> = vec![vec![]; self.launches.len()];
        for _ in 0..times {
            for (n, launch) in self.launches.iter().enumerate() {
                let members = launch.run_members(&pointers, &context)?.unwrap_or_default();
                samples[n].resize(members.len(), vec![]);
                members.iter().zip(&mut samples[n]).for_each(|(member, samples)| samples.push(member.ms));
                found[n] = members;
            }
        }
        drop(held);
        for (members, samples) in found.iter_mut().zip(&samples) {
            members.iter_mut().zip(samples).for_each(|(m, samples)| m.ms = layouts::record::median(samples).unwrap_or(m.ms));
        }
        self.rows()?;
        exchange(&self.replaced, &mut self.slots);
        Ok(found)
    }

    /// Whether all numbers of the last step have named rows that there are.
    fn rows(&self) -> Result<(), PipelineError> {
        let missing = self.once.iter().chain(&self.launches).find_map(|launch| launch.executable.missing_row());
        missing.map_or(Ok(()), |error| Err(error.into()))
    }

    /// Records the forward pass, and both passes. A recording serves every seed and step.
    pub(super) fn record(&mut self, pool: &Pool, run: &Run) -> Result<Option<[Box<dyn Recording>; 2]>, PipelineError> {
        let context =
            RunContext { seed: run.seed, step: run.step, dropout: run.dropout, pool, deadline: None, parameters: self.parameters };
        let pointers = self.pointers();
        let part = |passes: &[Direction]| {
            let launches: Vec<&Launch> = self.launches.iter().filter(|l| passes.contains(&l.pass)).collect();
            let run = |n: usize| launches[n].run(&pointers, &context);
            match self.device.streams().filter(|_| self.streams > 1) {
                Some(streams) => {
                    let placed = schedule(&regions(&self.slots, &launches), self.streams);
                    self.device.record(&mut || put(&placed, streams, run))
                }
                None => self.device.record(&mut || (0..launches.len()).try_for_each(run)),
            }
        };
        let parts = [part(&[Direction::Forward])?, part(&[Direction::Forward, Direction::Backward])?];
        Ok(match parts {
            [Some(forward), Some(both)] => Some([forward, both]),
            _ => None,
        })
    }

    /// The number of the device's streams that a step's dataflow can use.
    pub fn breadth(&self) -> usize {
        let most = self.device.streams().map_or(1, |streams| streams.count());
        used(&schedule(&dataflow(self.launches.iter().map(|l| l.arguments.as_slice())), most))
    }

    /// Addresses of all slots.
    fn pointers(&mut self) -> Vec<*mut u8> {
        let base = self.arena.address();
        let mut own: Vec<*mut u8> = self
            .slots
            .iter_mut()
            .map(|slot| match &mut slot.place {
                SlotPlace::Held(memory) => memory.address(),
                // The plan places every slot inside the arena. The address may belong to another device, so it is no dereferenceable
                // pointer here.
                SlotPlace::Arena(offset) => base.wrapping_add(*offset),
                SlotPlace::Over(_) => std::ptr::null_mut(),
            })
            .collect();
        for (n, slot) in self.slots.iter().enumerate() {
            if let SlotPlace::Over(held) = slot.place {
                own[n] = own[held];
            }
        }
        own
    }
}
