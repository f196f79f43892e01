//! Where containers live while a program is interpreted: row-major f64 buffers, with views as strided parts of them.

use super::InterpretError;
use crate::data::Container;
use crate::graph::Sdfg;
use crate::symbol::Bindings;
use ndarray::{ArrayD, Dimension, IxDyn};
use std::collections::BTreeMap;

/// A container's place: element (i, j, …) is `buffer[base + i·strides[0] + j·strides[1] + …]`.
#[derive(Clone, Debug)]
pub struct Slot {
    pub buffer: usize,
    pub base: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

#[derive(Debug, Default)]
pub struct Memory {
    pub slots: BTreeMap<String, Slot>,
    pub buffers: Vec<Vec<f64>>,
}

impl Slot {
    /// Positions of all elements in row-major order.
    pub fn positions(&self) -> Vec<usize> {
        let mut positions = vec![self.base];
        for (size, stride) in self.shape.iter().zip(&self.strides) {
            positions = positions.iter().flat_map(|p| (0..*size).map(move |i| p + i * stride)).collect();
        }
        positions
    }

    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

impl Memory {
    /// Makes room for a container and, if it is a view, for what it is a view of. New room holds NaN, so that reading
    /// what nothing has written shows.
    pub fn declare(&mut self, program: &Sdfg, container: &Container, symbols: &Bindings) -> Result<(), InterpretError> {
        self.declare_within(program, container, symbols, program.containers.len() + 1)
    }

    fn declare_within(&mut self, program: &Sdfg, container: &Container, symbols: &Bindings, depth: usize) -> Result<(), InterpretError> {
        if self.slots.contains_key(&container.name) {
            return Ok(());
        }
        let data = &container.name;
        let symbol = |source| InterpretError::Symbol { user: data.clone(), source };
        let mut shape = Vec::with_capacity(container.dims.len());
        for size in program.shape(container) {
            let value = size.eval(symbols).map_err(symbol)?;
            shape.push(usize::try_from(value).map_err(|_| InterpretError::NegativeSize {
                data: data.clone(),
                size: size.to_string(),
                value,
            })?);
        }
        let slot = match &container.view {
            None => {
                let too_large = || InterpretError::TooLarge { data: data.clone(), shape: shape.clone() };
                let elements = shape.iter().try_fold(1usize, |n, s| n.checked_mul(*s)).ok_or_else(too_large)?;
                let mut buffer = Vec::new();
                buffer.try_reserve_exact(elements).map_err(|_| too_large())?;
                buffer.resize(elements, f64::NAN);
                self.buffers.push(buffer);
                Slot { buffer: self.buffers.len() - 1, base: 0, strides: row_major(&shape), shape }
            }
            Some(view) => {
                let wrong = |why: String| InterpretError::View { data: data.clone(), of: view.of.clone(), why };
                if depth == 0 {
                    return Err(wrong("it is a view of itself".into()));
                }
                let of = program.containers.get(&view.of).ok_or_else(|| wrong("the program does not declare that".into()))?;
                self.declare_within(program, of, symbols, depth - 1)?;
                let parent = self.slots.get(&view.of).cloned().ok_or_else(|| wrong("that has no storage".into()))?;
                if parent.shape.len() != shape.len() || view.offsets.len() != shape.len() {
                    return Err(wrong(format!("{} dimensions do not match {}", shape.len(), parent.shape.len())));
                }
                let mut base = parent.base;
                for (n, offset) in view.offsets.iter().enumerate() {
                    let offset = offset.eval(symbols).map_err(symbol)?;
                    let first = usize::try_from(offset).map_err(|_| wrong(format!("the offset {offset} is negative")))?;
                    if first.checked_add(shape[n]).is_none_or(|end| end > parent.shape[n]) {
                        return Err(wrong(format!("{first} + {} exceeds the size {} of dimension {n}", shape[n], parent.shape[n])));
                    }
                    base += first * parent.strides[n];
                }
                Slot { buffer: parent.buffer, base, shape, strides: parent.strides }
            }
        };
        self.slots.insert(data.clone(), slot);
        Ok(())
    }

    /// Copies a tensor in.
    pub fn load(&mut self, container: &Container, tensor: &ArrayD<f64>) -> Result<(), InterpretError> {
        let data = &container.name;
        let Some(slot) = self.slots.get(data) else { return Ok(()) };
        if slot.shape != tensor.shape() {
            return Err(InterpretError::Shape { data: data.clone(), expected: slot.shape.clone(), given: tensor.shape().to_vec() });
        }
        if let Some((place, value)) = tensor.indexed_iter().find(|(_, v)| !container.dtype.stores(**v)) {
            let place = place.slice().to_vec();
            return Err(InterpretError::NotStored { data: data.clone(), dtype: container.dtype, place, value: *value });
        }
        let buffer = &mut self.buffers[slot.buffer];
        for (position, value) in slot.positions().into_iter().zip(tensor.iter()) {
            buffer[position] = *value;
        }
        Ok(())
    }

    /// Copies a tensor out.
    pub fn read(&self, data: &str) -> Option<ArrayD<f64>> {
        let slot = self.slots.get(data)?;
        let buffer = self.buffers.get(slot.buffer)?;
        let values = if slot.base == 0 && slot.strides == row_major(&slot.shape) && buffer.len() == slot.elements() {
            buffer.clone()
        } else {
            slot.positions().into_iter().map(|p| buffer[p]).collect()
        };
        ArrayD::from_shape_vec(IxDyn(&slot.shape), values).ok()
    }

    /// The slot of a slice: one place along a dimension, or the whole container. `None` outside.
    fn slice(&self, data: &str, at: Option<(usize, i64)>) -> Option<Slot> {
        let mut slot = self.slots.get(data)?.clone();
        if let Some((axis, at)) = at {
            let at = usize::try_from(at).ok().filter(|at| slot.shape.get(axis).is_some_and(|size| at < size))?;
            slot.base += at * slot.strides[axis];
            slot.shape.remove(axis);
            slot.strides.remove(axis);
        }
        Some(slot)
    }

    /// Copies a slice out; one that lies outside of the container is filled.
    pub fn read_slice(&self, data: &str, at: Option<(usize, i64)>, fill: Option<f64>) -> Option<ArrayD<f64>> {
        let Some(slot) = self.slice(data, at) else {
            let (mut shape, (axis, _)) = (self.slots.get(data)?.shape.clone(), at?);
            (axis < shape.len()).then(|| shape.remove(axis))?;
            return Some(ArrayD::from_elem(IxDyn(&shape), fill?));
        };
        let buffer = self.buffers.get(slot.buffer)?;
        ArrayD::from_shape_vec(IxDyn(&slot.shape), slot.positions().into_iter().map(|p| buffer[p]).collect()).ok()
    }

    /// Copies a tensor into a slice.
    pub fn load_slice(&mut self, data: &str, at: Option<(usize, i64)>, tensor: &ArrayD<f64>) {
        let Some(slot) = self.slice(data, at) else { return };
        let buffer = &mut self.buffers[slot.buffer];
        for (position, value) in slot.positions().into_iter().zip(tensor.iter()) {
            buffer[position] = *value;
        }
    }

    /// Gives every element of a part of a container one value; the part is (first, one past the last) in each dimension.
    pub fn fill_part(&mut self, data: &str, part: &[(usize, usize)], value: f64) {
        let Some(slot) = self.slots.get(data) else { return };
        let mut positions = vec![slot.base];
        for ((first, last), stride) in part.iter().zip(&slot.strides) {
            positions = positions.into_iter().flat_map(|at| (*first..*last).map(move |n| at + n * stride)).collect();
        }
        let buffer = &mut self.buffers[slot.buffer];
        for position in positions {
            buffer[position] = value;
        }
    }

    /// Gives every element of a container one value.
    pub fn fill(&mut self, data: &str, value: f64) {
        if let Some(slot) = self.slots.get(data) {
            let buffer = &mut self.buffers[slot.buffer];
            for position in slot.positions() {
                buffer[position] = value;
            }
        }
    }
}

fn row_major(shape: &[usize]) -> Vec<usize> {
    let mut strides = vec![1; shape.len()];
    for n in (1..shape.len()).rev() {
        strides[n - 1] = strides[n] * shape[n];
    }
    strides
}
