//! Where the C of a point finds the elements of containers.

use crate::emit::dialect::TargetDialect;
use crate::emit::printer::Printer;
use crate::emit::scalar::{constant, integer};
use crate::error::KernelError;
use crate::loopnest::{Element, LoopGroup, MemorySpace, NestTensor};
use sdfg::{Expr, Layout};

impl<D: TargetDialect> Printer<'_, D> {
    /// Whether a local container is one scalar, or one value for each lane.
    pub fn is_value(&self, tensor: &NestTensor) -> bool {
        tensor.space == MemorySpace::Local && tensor.shape.is_empty()
    }

    /// Layout and shape of the storage behind a heap container.
    fn storage(&self, root: &str) -> Result<(Layout, Vec<String>, Vec<usize>), KernelError> {
        let container = self
            .spec
            .containers
            .get(root)
            .ok_or_else(|| KernelError::UnknownContainer { kernel: self.spec.name.clone(), data: root.to_string() })?;
        let layout = self.config.layouts.get(root).cloned().unwrap_or_else(|| Layout::row_major(container));
        Ok((layout, container.dims.clone(), self.spec.shape(root)?))
    }

    /// Strides of a container's dims in elements, the dim with a literal stride of 1, and the first element.
    pub fn strides(&self, data: &str) -> Result<(Vec<i64>, Option<usize>, i64), KernelError> {
        let tensor = self.tensor(data)?;
        match &tensor.space {
            MemorySpace::Heap { root, .. } => {
                let (layout, dims, _) = self.storage(root)?;
                let (strides, first) = self.heap_strides(data, root)?;
                let unit = layout.innermost().and_then(|inner| dims.iter().position(|d| d == inner));
                Ok((strides, unit, first))
            }
            MemorySpace::Local | MemorySpace::Kept | MemorySpace::Private { .. } => {
                let vector = self.nest.vector_dim(data);
                let mut strides = vec![0; tensor.shape.len()];
                let mut next = if self.nest.per_lane(tensor) { self.nest.lanes } else { 1 };
                let unit = (next == 1).then_some(vector.or(tensor.shape.len().checked_sub(1))).flatten();
                // Rows of what tiles hold on a GPU begin in different banks.
                // With more dims the two innermost may be the columns of one product.
                let rows = tensor.shape.iter().filter(|n| **n > 1).count() == 2;
                let banks = D::BANKS.filter(|_| self.nest.gemm.is_some());
                let apart = rows && !matches!(tensor.space, MemorySpace::Private { .. });
                for (place, n) in vector.into_iter().chain((0..tensor.shape.len()).rev().filter(|n| Some(*n) != vector)).enumerate() {
                    strides[n] = next;
                    next *= tensor.shape[n];
                    if let Some(banks) = banks.filter(|_| apart && place == 0 && tensor.shape[n] > 1) {
                        next = banks.row(next);
                    }
                }
                Ok((strides, unit, 0))
            }
        }
    }

    /// Elements that a container takes where it is no argument, gaps included.
    pub fn extent(&self, data: &str) -> Result<i64, KernelError> {
        let (strides, ..) = self.strides(data)?;
        let shape = &self.tensor(data)?.shape;
        Ok(shape.iter().zip(&strides).map(|(extent, stride)| (extent - 1).max(0) * stride).sum::<i64>() + 1)
    }

    /// Strides and first element of a container under the layout of the storage behind it.
    pub fn heap_strides(&self, data: &str, root: &str) -> Result<(Vec<i64>, i64), KernelError> {
        let (layout, dims, shape) = self.storage(root)?;
        let strides = layout.strides(&dims, &shape).ok_or_else(|| KernelError::Layout {
            kernel: self.spec.name.clone(),
            data: root.to_string(),
            layout: layout.to_string(),
            dims: dims.clone(),
        })?;
        let strides: Vec<i64> = strides.into_iter().map(|s| s as i64).collect();
        let first = self.offset(data, root, &strides)?;
        Ok((strides, first))
    }

    /// First element of a view within the storage.
    fn offset(&self, data: &str, root: &str, strides: &[i64]) -> Result<i64, KernelError> {
        let (mut at, mut total) = (data, 0);
        while at != root {
            let wrong = || KernelError::View { kernel: self.spec.name.clone(), data: data.to_string(), of: root.to_string() };
            let view = self.spec.containers.get(at).and_then(|c| c.view.as_ref()).ok_or_else(wrong)?;
            if view.offsets.len() != strides.len() {
                return Err(wrong());
            }
            for (offset, stride) in view.offsets.iter().zip(strides) {
                let offset =
                    offset.eval(&self.spec.sizes).map_err(|source| KernelError::Size { kernel: self.spec.name.clone(), source })?;
                total += offset * stride;
            }
            at = &view.of;
        }
        Ok(total)
    }

    /// C text of the position of an element.
    pub fn position(&mut self, element: &Element) -> Result<String, KernelError> {
        let tensor = self.tensor(&element.data)?;
        let (strides, unit, first) = self.strides(&element.data)?;
        let name = self.identifier(&element.data);
        let heap = matches!(tensor.space, MemorySpace::Heap { .. });
        let mut terms = Vec::new();
        if let MemorySpace::Heap { root, .. } = &tensor.space
            && root != &element.data
        {
            terms.push(self.given(format!("first_{name}"), first));
        }
        for (n, subscript) in element.subscripts.iter().enumerate() {
            if *subscript == Expr::Int(0) {
                continue;
            }
            // Elsewhere strides are given, so that layouts share one text.
            let along = !heap || self.nest.vectors.iter().any(|v| subscript.symbols().contains(v));
            let text = integer(subscript, self);
            if unit == Some(n) && along {
                terms.push(text);
            } else {
                let stride = self.given(format!("s_{name}_{n}"), strides[n]);
                terms.push(format!("{text} * {stride}"));
            }
        }
        if self.nest.per_lane(tensor) {
            terms.push("lane".into());
        }
        Ok(if terms.is_empty() { "0".into() } else { terms.join(" + ") })
    }

    pub fn place(&mut self, element: &Element) -> Result<String, KernelError> {
        if let Some(row) = self.streamed.iter().find(|r| r.element == *element) {
            return Ok(row.place.clone());
        }
        D::place(self, element)
    }

    pub fn load(&mut self, element: &Element) -> Result<String, KernelError> {
        let tensor = self.tensor(&element.data)?;
        if element.fill.is_some()
            && let Some(text) = D::padded(self, element)?
        {
            return Ok(text);
        }
        let place = self.place(element)?;
        let text = D::load(self, element, place)?;
        let Some(fill) = element.fill else { return Ok(text) };
        let mut inside = Vec::new();
        for (subscript, size) in element.subscripts.iter().zip(&tensor.shape) {
            if !self.stays_inside(subscript, *size) {
                let at = integer(subscript, self);
                let size = self.given(format!("d_{}_{}", self.identifier(&element.data), inside.len()), *size);
                inside.push(format!("{at} >= 0 && {at} < {size}"));
            }
        }
        let fill = constant(f64::from_bits(fill), self.double);
        Ok(if inside.is_empty() { text } else { format!("({} ? {text} : {fill})", inside.join(" && ")) })
    }

    /// Whether a subscript is an index that never leaves a dim of this size.
    fn stays_inside(&self, subscript: &Expr, size: i64) -> bool {
        let Some(index) = subscript.as_sym() else { return false };
        let mut loops = self.nest.outer.iter().chain(self.nest.groups.iter().flat_map(|g| &g.loops)).filter(|l| l.index == index);
        loops.all(|l| l.count <= size)
    }

    pub fn store(&mut self, element: &Element, text: &str) -> Result<String, KernelError> {
        let place = self.place(element)?;
        D::store(self, element, &place, text)
    }

    /// Text of what has been reduced so far into an element.
    pub fn held_value(&mut self, element: &Element) -> Result<String, KernelError> {
        D::held_value(self, element)
    }

    /// Number of loops of a group that must be open before the subscripts have a value.
    pub fn level(&self, group: &LoopGroup, element: &Element) -> usize {
        let per_lane = self.tensor(&element.data).is_ok_and(|t| self.nest.per_lane(t));
        let uses = |index: &str| element.subscripts.iter().any(|s| s.symbols().contains(index));
        let deepest = group.loops.iter().rposition(|l| uses(&l.index)).map_or(0, |n| n + 1);
        if per_lane { group.loops.len() } else { deepest }
    }
}
