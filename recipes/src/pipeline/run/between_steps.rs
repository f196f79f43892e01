//! What a caller gives to a plan and takes from it between two steps: a batch in, a loss and the parameters out. Everything else stays
//! where it is, so a run of many steps loads its parameters once.

use super::execute::Execution;
use super::launch::{Slot, SlotPlace};
use super::load::window;
use super::replaced::Values;
use crate::pipeline::PipelineError;
use kernels::constant::new_parameters;
use kernels::pool::Pool;
use ndarray::ArrayD;
use sdfg::interpret::{Run, Tensors};
use sdfg::{Container, Role, Sdfg};

impl Execution {
    pub fn program(&self) -> &Sdfg {
        &self.program
    }

    /// Puts some inputs into place, in the recipe's order of dims. All other tensors stay as they are.
    ///
    /// # Errors
    /// Tensors of other shapes; a device that failed.
    pub fn give(&mut self, tensors: &Tensors) -> Result<(), PipelineError> {
        for (name, tensor) in tensors {
            let Some(container) = self.program.containers.get(name) else { continue };
            if container.role == Role::Parameter {
                self.parameters = new_parameters();
            }
            match &container.view {
                None => self.put(name, tensor)?,
                // A part of a tensor that holds several inputs.
                Some(view) => {
                    let (of, slice) = (view.of.clone(), window(&self.program, container)?);
                    if let Some(parent) = self.program.containers.get(&of)
                        && let Some(mut whole) = self.boundary_tensor(parent, &of)?
                    {
                        whole.slice_mut(slice.as_slice()).assign(tensor);
                        self.put(&of, &whole)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn put(&mut self, name: &str, tensor: &ArrayD<f64>) -> Result<(), PipelineError> {
        if let (Some(container), Some(slot)) = (self.program.containers.get(name), self.boundary.get(name))
            && let Some(Slot { layout, place: SlotPlace::Held(memory), .. }) = self.slots.get_mut(*slot)
        {
            memory.pack(container, layout, tensor)?;
        }
        Ok(())
    }

    /// One result of the last step; `None` if the program has none of this name.
    ///
    /// # Errors
    /// A device that failed.
    pub fn result(&self, name: &str) -> Result<Option<ArrayD<f64>>, PipelineError> {
        match self.program.containers.get(name) {
            Some(container) => self.boundary_tensor(container, container.replaces.as_ref().unwrap_or(&container.name)),
            None => Ok(None),
        }
    }

    /// Runs one step once, without timing it: what it leaves is what the next one begins with.
    ///
    /// # Errors
    /// A device that failed.
    pub fn advance(&mut self, pool: &Pool, run: &Run) -> Result<(), PipelineError> {
        if !self.device.records() {
            let step = if self.is_packed { self.packed(pool, run) } else { self.apart(pool, run, 0) };
            return step.map(|_| ());
        }
        self.run_once(pool, run)?;
        if self.recorded.is_none() {
            // A first run loads libraries, which cannot happen while recording; it must leave no trace.
            let before = Values::of(&self.replaced, &self.slots)?;
            self.apart(pool, run, 0)?;
            before.put_back(&mut self.slots)?;
            self.recorded = self.record(pool, run)?;
        }
        match &self.recorded {
            Some([_, both]) => Ok(both.run(run)?),
            None => Err(PipelineError::Internal("nothing was recorded".into())),
        }
    }

    /// What a container that the caller sees holds; `held` is where its values lie.
    pub(super) fn boundary_tensor(&self, container: &Container, held: &str) -> Result<Option<ArrayD<f64>>, PipelineError> {
        let root = container.view.as_ref().map_or(held, |view| &view.of);
        let Some(parent) = self.program.containers.get(root) else { return Ok(None) };
        let Some(Slot { layout, place, .. }) = self.boundary.get(root).and_then(|slot| self.slots.get(*slot)) else { return Ok(None) };
        let shape = self.program.shape_of(root)?;
        let whole = match place {
            SlotPlace::Held(memory) => memory.unpack(0, parent, layout, &shape)?,
            SlotPlace::Arena(offset) => self.arena.unpack(*offset, parent, layout, &shape)?,
            SlotPlace::Over(_) => return Ok(None),
        };
        Ok(Some(match container.view {
            Some(_) => whole.slice(window(&self.program, container)?.as_slice()).to_owned(),
            None => whole,
        }))
    }
}
