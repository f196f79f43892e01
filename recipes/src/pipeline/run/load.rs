//! Takes memory for a plan's tensors, puts inputs and parameters into it, and reads results.

use super::execute::Execution;
use super::launch::{Slot, SlotPlace};
use super::once::{DoneOnce, Once};
use super::replaced::Values;
use crate::pipeline::PipelineError;
use crate::pipeline::oracle::tensors::{given, results};
use kernels::constant::new_parameters;
use ndarray::{ArrayD, IxDyn, SliceInfoElem};
use sdfg::interpret::Tensors;
use sdfg::{Container, Layout, Sdfg};
use std::collections::BTreeMap;
use std::time::Instant;

impl Execution {
    /// Puts inputs and parameters into place. Tensors are in the recipe's dim order.
    ///
    /// # Errors
    /// Tensors that are missing or have other shapes; no memory; a device that failed.
    pub fn load(&mut self, tensors: &Tensors) -> Result<(), PipelineError> {
        self.load_beside(tensors, &BTreeMap::new()).map(drop)
    }

    /// As [`Execution::load`], where some slots hold their tensor already: those in `filled`, with the milliseconds that packing it took.
    /// Returns the milliseconds of each tensor that is packed now.
    pub(super) fn load_beside(&mut self, tensors: &Tensors, filled: &BTreeMap<usize, f64>) -> Result<BTreeMap<usize, f64>, PipelineError> {
        self.take_memory()?;
        let constant = Once::of(&self.program).containers;
        (self.done_once, self.parameters) = (DoneOnce::default(), new_parameters());
        let mut packed = BTreeMap::new();
        let (slots, boundary, done_once) = (&mut self.slots, &self.boundary, &mut self.done_once);
        each_whole_tensor(&self.program, tensors, |container, array| {
            let Some(slot) = boundary.get(&container.name) else { return Ok(()) };
            if let Some(Slot { layout, bytes, place: SlotPlace::Held(memory), .. }) = slots.get_mut(*slot) {
                let ms = match filled.get(slot) {
                    Some(ms) => *ms,
                    None => {
                        let began = Instant::now();
                        memory.pack(container, layout, array)?;
                        let ms = began.elapsed().as_secs_f64() * 1e3;
                        packed.insert(*slot, ms);
                        ms
                    }
                };
                if constant.contains(&container.name) && *layout != Layout::row_major(container) {
                    done_once.packed_bytes += *bytes as u64;
                    done_once.packed_ms += ms;
                }
            }
            Ok(())
        })?;
        self.is_due = !self.once.is_empty();
        self.loaded = Values::of(&self.replaced, &self.slots)?;
        Ok(packed)
    }

    /// Outputs and gradients of the last step, in the recipe's dim order.
    pub fn results(&self) -> Result<Tensors, PipelineError> {
        let mut found = Tensors::new();
        for container in results(&self.program) {
            // After a step, the value of the next one lies where the parameter does.
            let held = container.replaces.as_ref().unwrap_or(&container.name);
            if let Some(tensor) = self.boundary_tensor(container, held)? {
                found.insert(container.name.clone(), tensor);
            }
        }
        Ok(found)
    }

    /// Takes memory for the arena, and for all tensors outside it, where there is none yet or what was needed once was given back.
    pub(super) fn take_memory(&mut self) -> Result<(), PipelineError> {
        for Slot { bytes, place, .. } in &mut self.slots {
            if let SlotPlace::Held(memory) = place
                && memory.len() < *bytes
            {
                *memory = self.device.memory(*bytes)?;
            }
        }
        if self.arena.len() < self.arena_bytes {
            self.arena = self.device.memory(self.arena_bytes)?;
        }
        self.has_memory = true;
        Ok(())
    }
}

/// The containers that hold inputs and parameters in memory, each with the tensors that it is put together from.
pub(super) fn stored(program: &Sdfg) -> BTreeMap<&str, Vec<&Container>> {
    let mut stored: BTreeMap<&str, Vec<&Container>> = BTreeMap::new();
    for container in given(program) {
        stored.entry(container.view.as_ref().map_or(&container.name, |view| &view.of)).or_default().push(container);
    }
    stored
}

/// Calls `each` with inputs and parameters and the container that stores them, one at a time: tensors that are parts of one are put
/// together.
fn each_whole_tensor(
    program: &Sdfg,
    tensors: &Tensors,
    mut each: impl FnMut(&Container, &ArrayD<f64>) -> Result<(), PipelineError>,
) -> Result<(), PipelineError> {
    let tensor = |name: &str| tensors.get(name).ok_or_else(|| PipelineError::Internal(format!("`{name}` was not given")));
    for (of, parts) in stored(program) {
        let Some(parent) = program.containers.get(of) else { continue };
        if parts.iter().all(|part| part.view.is_none()) {
            each(parent, tensor(of)?)?;
            continue;
        }
        let mut whole = ArrayD::zeros(IxDyn(&program.shape_of(of)?));
        for part in parts {
            whole.slice_mut(window(program, part)?.as_slice()).assign(tensor(&part.name)?);
        }
        each(parent, &whole)?;
    }
    Ok(())
}

/// Inputs and parameters by the container that stores them.
///
/// # Errors
/// Tensors that are missing.
pub fn whole_tensors(program: &Sdfg, tensors: &Tensors) -> Result<BTreeMap<String, ArrayD<f64>>, PipelineError> {
    let mut whole = BTreeMap::new();
    each_whole_tensor(program, tensors, |container, array| {
        whole.insert(container.name.clone(), array.clone());
        Ok(())
    })?;
    Ok(whole)
}

/// The slice of its parent that a view stands for.
pub(super) fn window(program: &Sdfg, container: &Container) -> Result<Vec<SliceInfoElem>, PipelineError> {
    let Some(view) = &container.view else { return Ok(vec![]) };
    let shape = program.shape_of(&container.name)?;
    let offsets = view.offsets.iter().map(|o| o.eval(&program.sizes)).collect::<Result<Vec<_>, _>>()?;
    Ok(offsets
        .iter()
        .zip(shape)
        .map(|(o, n)| SliceInfoElem::Slice { start: *o as isize, end: Some(*o as isize + n as isize), step: 1 })
        .collect())
}
