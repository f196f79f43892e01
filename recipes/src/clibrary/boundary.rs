//! What the caller gives a step and gets from it: memories, one pointer each, and the tensors that lie in them.

use crate::pipeline::oracle::tensors::{given, results};
use crate::pipeline::run::assemble::Assembly;
use crate::pipeline::run::launch::SlotPlace;
use sdfg::layout::BlockedStride;
use sdfg::{Container, Dtype, Layout, Role, Sdfg};
use std::collections::BTreeMap;

/// Memory that the caller gives: that of an input, a parameter or a result.
pub struct CallerMemory {
    pub name: String,
    pub bytes: usize,
    pub alignment: usize,
    pub is_written: bool,
}

/// A tensor in one of the memories.
pub struct BoundaryTensor {
    pub name: String,
    pub role: &'static str,
    pub dtype: Dtype,
    pub dims: Vec<String>,
    pub shape: Vec<usize>,
    pub layout: Layout,
    pub steps: Vec<BlockedStride>,
    pub memory: usize,
    /// Bytes from the memory's beginning.
    pub offset: usize,
    /// The parameter that it is the next value of.
    pub replaces: Option<String>,
    /// The value that a state begins with.
    pub initial: Option<f64>,
}

pub struct Boundary {
    pub memories: Vec<CallerMemory>,
    pub tensors: Vec<BoundaryTensor>,
    /// Slot → memory, of the slots that the caller gives.
    pub of_slot: BTreeMap<usize, usize>,
}

impl Boundary {
    /// # Errors
    /// A sentence for tensors that a C caller could not name the elements of.
    pub fn of(program: &Sdfg, assembly: &Assembly) -> Result<Boundary, String> {
        let mut found = Boundary { memories: vec![], tensors: vec![], of_slot: BTreeMap::new() };
        let mut of_container: BTreeMap<String, usize> = BTreeMap::new();
        let outside = |c: &&Container| c.role != Role::Transient && c.view.is_none() && c.replaces.is_none();
        for container in program.containers.values().filter(outside) {
            let Some(slot) = assembly.boundary.get(&container.name) else { continue };
            if container.dtype == Dtype::Bit {
                return Err(format!("`{}` holds bits, which have no type in C; declare it as u8 in the recipe", container.name));
            }
            of_container.insert(container.name.clone(), found.memories.len());
            found.of_slot.insert(*slot, found.memories.len());
            let replaced = program.containers.values().any(|c| c.replaces.as_ref() == Some(&container.name));
            found.memories.push(CallerMemory {
                name: container.name.clone(),
                bytes: assembly.slots[*slot].bytes,
                alignment: (container.dtype.bytes(1) as usize).max(4),
                is_written: replaced || !matches!(container.role, Role::Input | Role::Parameter),
            });
        }
        for (slot, of) in assembly.slots.iter().enumerate() {
            if let SlotPlace::Over(held) = of.place
                && let Some(memory) = found.of_slot.get(&held).copied()
            {
                found.of_slot.insert(slot, memory);
            }
        }
        for container in given(program).into_iter().chain(results(program)) {
            found.tensors.push(found.tensor(program, assembly, &of_container, container)?);
        }
        Ok(found)
    }

    fn tensor(
        &self,
        program: &Sdfg,
        assembly: &Assembly,
        of_container: &BTreeMap<String, usize>,
        container: &Container,
    ) -> Result<BoundaryTensor, String> {
        let shape = |data: &str| program.shape_of(data).map_err(|e| e.to_string());
        let wrong = || format!("`{}` lies in no memory of its own", container.name);
        // After a step, the value of the next one lies where the parameter does.
        let held = container.replaces.as_ref().unwrap_or(&container.name);
        let root = container.view.as_ref().map_or(held, |v| &v.of);
        let parent = program.containers.get(root).filter(|c| c.view.is_none()).ok_or_else(wrong)?;
        let (memory, slot) = (of_container.get(root).ok_or_else(wrong)?, assembly.boundary.get(root).ok_or_else(wrong)?);
        let layout = assembly.slots[*slot].layout.clone();
        let steps = layout.steps(&parent.dims, &shape(root)?).ok_or_else(wrong)?;
        let mut elements = 0;
        if let Some(view) = &container.view {
            for (offset, step) in view.offsets.iter().zip(&steps) {
                let offset = offset.eval(&program.sizes).map_err(|e| e.to_string())? as usize;
                if !offset.is_multiple_of(step.block) {
                    return Err(format!("`{}` begins within a block of `{root}`, whose layout is {layout}", container.name));
                }
                elements += step.offset(offset);
            }
        }
        Ok(BoundaryTensor {
            name: container.name.clone(),
            role: match container.role {
                Role::Input => "input",
                Role::Parameter => "parameter",
                Role::Gradient => "gradient",
                _ => "output",
            },
            dtype: container.dtype,
            dims: container.dims.clone(),
            shape: shape(&container.name)?,
            layout,
            steps,
            memory: *memory,
            offset: container.dtype.bytes(elements as u64) as usize,
            replaces: container.replaces.clone(),
            initial: container.initial.map(|initial| initial.0),
        })
    }
}
