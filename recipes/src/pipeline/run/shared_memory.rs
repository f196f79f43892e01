//! Memory for plans of one recipe that run in turns: one arena, as large as the largest of them needs, and inputs and parameters once in
//! each layout. A race of many plans so needs little more memory than the largest of them, and all find the same memory warm.
//!
//! A step writes whatever it reads of the arena, so nothing there must last from one turn of a plan to its next. What must last stays with
//! its plan: parameters that the step replaces, and what is made once for all steps.

use super::execute::Execution;
use super::launch::{Slot, SlotPlace};
use super::load::stored;
use crate::pipeline::PipelineError;
use kernels::device::{Device, DeviceMemory};
use sdfg::interpret::Tensors;
use sdfg::{Container, Dtype, Layout};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// What one piece of memory for inputs and parameters holds.
#[derive(PartialEq)]
struct GivenTensor {
    data: String,
    dtype: Dtype,
    layout: Layout,
    bytes: usize,
    /// The tensors that it is put together from, and their places in it.
    parts: Vec<(String, Vec<i64>)>,
}

/// The memory of plans that run in turns.
pub(super) struct SharedMemory {
    arena: DeviceMemory,
    /// Memory is empty here while a plan has its turn. The milliseconds are those of packing the tensor.
    given: Vec<(GivenTensor, DeviceMemory, f64)>,
    device: Arc<dyn Device>,
}

/// A plan that has the shared memory in its turns alone.
pub(super) struct SharingPlan {
    execution: Execution,
    /// Slots whose tensor lies in shared memory, and where.
    shared: Vec<(usize, usize)>,
}

impl SharedMemory {
    /// An arena for plans that have no memory yet.
    ///
    /// # Errors
    /// No memory; a device that failed.
    pub fn of(executions: &[Execution], device: &Arc<dyn Device>) -> Result<Self, PipelineError> {
        let bytes = executions.iter().map(|execution| execution.arena_bytes).max().unwrap_or_default();
        Ok(SharedMemory { arena: device.memory(bytes)?, given: vec![], device: device.clone() })
    }

    /// Loads tensors for a plan: those that no plan before has in the same layout. All plans are given the same tensors.
    ///
    /// # Errors
    /// As [`Execution::load`].
    pub fn load(&mut self, execution: Execution, tensors: &Tensors) -> Result<SharingPlan, PipelineError> {
        let mut plan = SharingPlan { shared: vec![], execution };
        let mut filled = BTreeMap::new();
        for (slot, tensor) in given_tensors(&plan.execution)? {
            let at = match self.given.iter().position(|(known, ..)| *known == tensor) {
                Some(at) => {
                    filled.insert(slot, self.given[at].2);
                    at
                }
                None => {
                    self.given.push((tensor, self.device.memory(0)?, 0.0));
                    self.given.len() - 1
                }
            };
            plan.shared.push((slot, at));
        }
        let packed = plan.turn(self, |execution| execution.load_beside(tensors, &filled))?;
        for (slot, at) in &plan.shared {
            if let Some(ms) = packed.get(slot) {
                self.given[*at].2 = *ms;
            }
        }
        Ok(plan)
    }
}

impl SharingPlan {
    /// Does something with the plan in its turn.
    pub fn turn<T>(&mut self, memory: &mut SharedMemory, work: impl FnOnce(&mut Execution) -> T) -> T {
        self.exchange(memory);
        let done = work(&mut self.execution);
        self.exchange(memory);
        done
    }

    /// The plan, without the shared memory.
    pub fn execution(&self) -> &Execution {
        &self.execution
    }

    /// Takes the shared memory, or gives it back. Addresses stay the same, so recorded steps stay valid.
    fn exchange(&mut self, memory: &mut SharedMemory) {
        std::mem::swap(&mut self.execution.arena, &mut memory.arena);
        for (slot, at) in &self.shared {
            if let Some(SlotPlace::Held(own)) = self.execution.slots.get_mut(*slot).map(|slot| &mut slot.place) {
                std::mem::swap(own, &mut memory.given[*at].1);
            }
        }
    }
}

/// The slots of a plan that hold inputs and parameters which no step changes, and which steps need.
fn given_tensors(execution: &Execution) -> Result<Vec<(usize, GivenTensor)>, PipelineError> {
    let program = &execution.program;
    let is_written = |slot: &usize| execution.launches.iter().flat_map(|l| &l.arguments).any(|(at, written)| *written && at == slot);
    let own: BTreeSet<usize> = execution.replaced.iter().flat_map(|r| r.slots).chain(execution.needed_once.iter().copied()).collect();
    let mut found = Vec::new();
    for (data, parts) in stored(program) {
        let (Some(container), Some(slot)) = (program.containers.get(data), execution.boundary.get(data)) else { continue };
        let Some(Slot { layout, bytes, place: SlotPlace::Held(_), .. }) = execution.slots.get(*slot) else { continue };
        if !own.contains(slot) && !is_written(slot) {
            let part = |part: &Container| -> Result<(String, Vec<i64>), PipelineError> {
                let offsets = part.view.iter().flat_map(|view| &view.offsets).map(|offset| offset.eval(&program.sizes));
                Ok((part.name.clone(), offsets.collect::<Result<_, _>>()?))
            };
            let parts = parts.into_iter().map(part).collect::<Result<Vec<_>, _>>()?;
            let tensor = GivenTensor { data: data.to_string(), dtype: container.dtype, layout: layout.clone(), bytes: *bytes, parts };
            found.push((*slot, tensor));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::load_str;
    use crate::pipeline::oracle::small_sizes::with_small_sizes;
    use crate::pipeline::oracle::tensors::inputs_to_compare;
    use crate::pipeline::variants::programs::programs;
    use kernels::pool::Pool;
    use kernels::target::cpu::Cores;
    use kernels::{KernelSpec, Toolchain};
    use sdfg::Sdfg;
    use sdfg::config::Configuration;
    use sdfg::interpret::Tensors;

    type Failure = Box<dyn std::error::Error>;

    const HEAD: &str = "model: m\ndims: {n: 6, c: 5, o: 4}\ninputs: {x: [n, c]}\nparameters: {k: [o, c], v: [o]}\nsteps:\n  - \"t[n,o] = k[o,c] * \
                        x[n,c] + v[o] * rsqrt(v[o] * v[o] + 1)\"\n  - \"y[n,o] = softmax(t[n,o], over: o)\"\n";
    /// Gradients of given parameters, parameters that each step replaces, and what is computed of parameters once for all steps.
    const RECIPES: [&str; 3] =
        ["train: {upstream: y}\n", "  - \"l[] = y[n,o] * y[n,o]\"\noutputs: [l]\ntrain: {loss: l}\nupdate:\n  - \"sgd(rate: 0.5)\"\n", ""];

    /// A plan of a program, with layouts and kernels drawn from a number.
    fn drawn(program: &Sdfg, device: &Arc<dyn Device>, seed: u64) -> Result<Execution, Failure> {
        let mut configuration = Configuration::default();
        for (n, (_, _, unit)) in program.units().iter().enumerate() {
            let spec = KernelSpec::new(program, unit)?;
            let space = device.space(&spec)?;
            configuration.kernels.insert(spec.name.clone(), space.config((seed * 1_000_003 + n as u64 * 7919) % space.count()));
        }
        Ok(Execution::new(program, &configuration, device)?)
    }

    /// The results of three steps, one after the other.
    fn step(execution: &mut Execution, pool: &Pool, number: u64) -> Result<Tensors, Failure> {
        execution.step(pool, 1, number, true)?;
        Ok(execution.results()?)
    }

    #[test]
    fn plans_compute_in_turns_what_they_compute_alone() -> Result<(), Failure> {
        let (device, pool): (Arc<dyn Device>, Pool) = (Arc::new(Cores { toolchain: Toolchain::system()? }), Pool::new(1)?);
        for end in RECIPES {
            let recipe = load_str("m.yaml", &format!("{HEAD}{end}"), &[]).map_err(|errors| format!("{errors}"))?;
            let made = programs(&recipe, false)?;
            let all: Vec<Sdfg> =
                [&made.unfused].into_iter().chain(made.variants.iter().map(|v| &v.program)).map(with_small_sizes).collect();
            let given = inputs_to_compare(&all[0], 1)?;
            let plans = || -> Result<Vec<Execution>, Failure> { (0..6).map(|n| drawn(&all[n as usize % all.len()], &device, n)).collect() };
            let mut alone = Vec::new();
            for mut execution in plans()? {
                execution.load(&given)?;
                alone.push((0..3).map(|number| step(&mut execution, &pool, number)).collect::<Result<Vec<_>, _>>()?);
            }
            let executions = plans()?;
            let needed = executions.iter().map(|execution| execution.arena_bytes).max();
            let mut shared = SharedMemory::of(&executions, &device)?;
            let mut plans = executions.into_iter().map(|e| shared.load(e, &given)).collect::<Result<Vec<_>, _>>()?;
            for number in 0..3 {
                for (plan, alone) in plans.iter_mut().zip(&alone) {
                    let found = plan.turn(&mut shared, |execution| step(execution, &pool, number))?;
                    assert_eq!(found, alone[number as usize], "{end}: step {number}");
                }
            }
            // One arena, and an input once in each layout in which some plan has it.
            assert_eq!(Some(shared.arena.len()), needed);
            let (of, times) = (|data: &str| shared.given.iter().filter(|(tensor, ..)| tensor.data == data).count(), plans.len());
            assert!((1..times).contains(&of("x")) && plans.iter().all(|plan| plan.execution().arena.is_empty()), "{end}");
        }
        Ok(())
    }
}
