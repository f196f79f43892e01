//! A contraction under given sizes: its indices, groups and element type, read once from the operation.

use crate::contraction::error::ContractionError;
use crate::contraction::mapping::{ContractionAxis, IndexGroup};
use crate::contraction::types::Types;
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use indexmap::IndexMap;
use sdfg::config::KernelConfig;
use sdfg::{Bindings, Container, Dtype, Expr, Layout, Op, Operation, Unit};
use std::fmt::Display;

/// One of the three tensors. A view is read as a part of the container that it is a view of.
#[derive(Clone, Debug, PartialEq)]
pub struct ContractionTensor {
    /// The container that has the storage.
    pub data: String,
    /// Its dims and their sizes: what a layout orders.
    pub dims: Vec<String>,
    pub storage: Vec<usize>,
    /// First element and extents of the part that is used.
    pub offsets: Vec<usize>,
    pub shape: Vec<usize>,
    /// The index along each dim.
    pub indices: Vec<String>,
}

/// `out = scale · Σ a · b` with numbers for sizes.
#[derive(Clone, Debug, PartialEq)]
pub struct ContractionProblem {
    pub name: String,
    pub types: Types,
    pub scale: f64,
    /// `a`, `b`, `out`.
    pub tensors: [ContractionTensor; 3],
    /// In the order of the operation: (index, group, extent).
    pub indices: Vec<(String, IndexGroup, usize)>,
}

impl ContractionProblem {
    /// Reads an operation. `dims` and `sizes` are those of the program.
    pub fn new(
        operation: &Operation,
        containers: &IndexMap<String, Container>,
        dims: &IndexMap<String, Expr>,
        sizes: &Bindings,
    ) -> Result<Self, ContractionError> {
        let name = operation.name.clone();
        let Op::Contraction { scale } = &operation.op else {
            return Err(ContractionError::NotAContraction { operation: name, label: operation.label().to_string() });
        };
        let size = |dim: &str| -> Result<usize, ContractionError> {
            let expr = dims.get(dim).cloned().unwrap_or_else(|| Expr::sym(dim));
            let value = expr.eval(sizes).map_err(|source| ContractionError::Size { operation: name.clone(), source })?;
            usize::try_from(value).map_err(|_| ContractionError::BadSize { operation: name.clone(), dim: dim.to_string(), value })
        };
        let operand = |connector: &str| {
            let found = operation.input(connector).or_else(|| operation.output(connector));
            found.ok_or_else(|| ContractionError::MissingOperand { operation: name.clone(), connector: connector.to_string() })
        };
        let mut dtypes = Vec::new();
        let mut tensor = |connector: &str| -> Result<ContractionTensor, ContractionError> {
            let operand = operand(connector)?;
            let data = operand.data.clone();
            let unknown = || ContractionError::UnknownContainer { operation: name.clone(), data: data.clone() };
            let container = containers.get(&data).ok_or_else(unknown)?;
            dtypes.push(container.dtype);
            // A plain index, or one shifted by a constant: a slice of the container.
            let mut indices = Vec::new();
            let mut offsets = Vec::new();
            let mut shape = Vec::new();
            for (e, dim) in operand.subscripts.iter().zip(&container.dims) {
                let subscript = || ContractionError::Subscript { operation: name.clone(), data: data.clone(), subscript: e.to_string() };
                let inside = operand.fill.is_none().then_some(e).ok_or_else(subscript)?;
                let (index, offset) = inside.as_shifted_index(|s| operation.indices.contains_key(s)).ok_or_else(subscript)?;
                let offset = offset.eval(sizes).map_err(|source| ContractionError::Size { operation: name.clone(), source })?;
                offsets.push(usize::try_from(offset).map_err(|_| subscript())?);
                let along =
                    operation.indices.get(index).filter(|along| *along != dim && size(along).is_ok_and(|s| size(dim).is_ok_and(|d| s < d)));
                shape.push(size(along.unwrap_or(dim))?);
                indices.push(index.to_string());
            }
            if operand.subscripts.len() != container.dims.len() {
                let (dims, subscripts) = (container.dims.len(), operand.subscripts.len());
                return Err(ContractionError::Arity { operation: name.clone(), data, dims, subscripts });
            }
            let mut root = container;
            // A chain of views longer than there are containers would run in a circle.
            for depth in 0.. {
                let Some(view) = &root.view else { break };
                let wrong = || ContractionError::View { operation: name.clone(), data: data.clone(), of: view.of.clone() };
                root = containers.get(&view.of).filter(|_| depth < containers.len()).ok_or_else(wrong)?;
                if view.offsets.len() != shape.len() || root.dims.len() != shape.len() {
                    return Err(wrong());
                }
                for (total, offset) in offsets.iter_mut().zip(&view.offsets) {
                    let offset = offset.eval(sizes).map_err(|source| ContractionError::Size { operation: name.clone(), source })?;
                    *total = usize::try_from(offset).ok().and_then(|o| total.checked_add(o)).ok_or_else(wrong)?;
                }
            }
            let storage: Vec<usize> = root.dims.iter().map(|d| size(d)).collect::<Result<_, _>>()?;
            if (0..shape.len()).any(|d| offsets[d].checked_add(shape[d]).is_none_or(|end| end > storage[d])) {
                return Err(ContractionError::View { operation: name.clone(), data, of: root.name.clone() });
            }
            Ok(ContractionTensor { data: root.name.clone(), dims: root.dims.clone(), storage, offsets, shape, indices })
        };
        let tensors = [tensor("a")?, tensor("b")?, tensor("out")?];
        let types = <[Dtype; 3]>::try_from(dtypes.as_slice()).ok().and_then(Types::of).ok_or_else(|| ContractionError::Dtype {
            operation: name.clone(),
            found: dtypes.iter().map(Dtype::to_string).collect::<Vec<_>>().join(", "),
        })?;
        let mut indices = Vec::new();
        for index in operation.indices.keys() {
            indices.extend(group(&name, index, &tensors)?);
        }
        let scale = scale.constant(sizes).map_err(|what| ContractionError::Scale { operation: name.clone(), what })?;
        Ok(ContractionProblem { name, types, scale, tensors, indices })
    }

    /// Strides of the dims of tensor `t` under a layout of its storage, in elements.
    fn strides(&self, t: usize, layout: &Layout) -> Result<Vec<usize>, ContractionError> {
        let tensor = &self.tensors[t];
        layout.strides(&tensor.dims, &tensor.storage).ok_or_else(|| ContractionError::Layout {
            operation: self.name.clone(),
            data: tensor.data.clone(),
            layout: layout.to_string(),
            dims: tensor.dims.clone(),
        })
    }

    /// The first element of each tensor within its storage, under layouts of `a`, `b` and `out`.
    pub fn origins(&self, layouts: [&Layout; 3]) -> Result<[usize; 3], ContractionError> {
        let mut origins = [0; 3];
        for (t, tensor) in self.tensors.iter().enumerate() {
            origins[t] = self.strides(t, layouts[t])?.iter().zip(&tensor.offsets).map(|(s, o)| s * o).sum();
        }
        Ok(origins)
    }

    /// The axes under layouts of `a`, `b` and `out`.
    pub fn axes(&self, layouts: [&Layout; 3]) -> Result<Vec<ContractionAxis>, ContractionError> {
        let mut strides: [Vec<usize>; 3] = Default::default();
        for (t, strides) in strides.iter_mut().enumerate() {
            *strides = self.strides(t, layouts[t])?;
        }
        // An index that stands twice in an operand walks its diagonal: the strides add up.
        let stride = |t: usize, index: &str| -> usize {
            self.tensors[t].indices.iter().zip(&strides[t]).filter(|(i, _)| *i == index).map(|(_, s)| s).sum()
        };
        let axis = |(index, group, extent): &(String, IndexGroup, usize)| ContractionAxis {
            index: index.clone(),
            group: *group,
            extent: *extent,
            strides: [stride(0, index), stride(1, index), stride(2, index)],
        };
        Ok(self.indices.iter().map(axis).collect())
    }

    /// How many products are added up into one element of the output.
    pub fn reduction(&self) -> usize {
        self.indices.iter().filter(|(_, g, _)| *g == IndexGroup::Depth).map(|(_, _, e)| e).product()
    }
}

impl ContractionProblem {
    /// Reads the contraction of a kernel.
    ///
    /// # Errors
    /// Anything but a contraction; one that is no matrix product.
    pub fn of(spec: &KernelSpec) -> Result<Self, KernelError> {
        match &spec.unit {
            Unit::Operation(operation) => Ok(ContractionProblem::within(spec, operation)?),
            _ => Err(ContractionError::NotAContraction { operation: spec.name.clone(), label: "fused kernel".into() }.into()),
        }
    }

    /// A contraction of a kernel's containers.
    ///
    /// # Errors
    /// One that is no matrix product.
    pub fn within(spec: &KernelSpec, operation: &Operation) -> Result<Self, ContractionError> {
        let mut problem = ContractionProblem::new(operation, &spec.containers, &spec.extents, &spec.sizes)?;
        problem.types.tf32 = spec.tf32 && problem.types.factor == Dtype::F32;
        Ok(problem)
    }

    /// Multiplications and additions.
    pub fn flop(&self) -> f64 {
        2.0 * self.indices.iter().map(|(_, _, extent)| *extent as f64).product::<f64>()
    }

    /// The layouts of `a`, `b`, `out` that a configuration holds; absent ones are the containers' own order.
    pub fn layouts_of(&self, config: &KernelConfig) -> [Layout; 3] {
        self.tensors.each_ref().map(|t| config.layouts.get(&t.data).cloned().unwrap_or_else(|| Layout::of(&t.dims)))
    }

    /// Which argument of the kernel is `a`, `b`, `out`.
    pub(crate) fn positions(&self, spec: &KernelSpec) -> Result<[usize; 3], KernelError> {
        let arguments = spec.arguments();
        let mut position = [0; 3];
        for (position, tensor) in position.iter_mut().zip(&self.tensors) {
            let unknown = || KernelError::UnknownContainer { kernel: spec.name.clone(), data: tensor.data.clone() };
            *position = arguments.iter().position(|a| a.data == tensor.data).ok_or_else(unknown)?;
        }
        Ok(position)
    }

    pub(crate) fn unknown<D: Display>(&self, key: &str, value: impl Display, allowed: impl Iterator<Item = D>) -> ContractionError {
        ContractionError::Knob {
            operation: self.name.clone(),
            key: key.to_string(),
            value: value.to_string(),
            allowed: allowed.map(|a| a.to_string()).collect::<Vec<_>>().join(", "),
        }
    }
}

/// Whether a contraction walks windows: some operand is subscripted by more than an index and a constant, or reads a value declared for
/// what lies outside its container. Such a contraction is a convolution, not one matrix product.
pub fn is_windowed(operation: &Operation) -> bool {
    let is_index = |name: &str| operation.indices.contains_key(name);
    let operands = operation.inputs.iter().chain(&operation.outputs);
    matches!(operation.op, Op::Contraction { .. })
        && operands.into_iter().any(|o| o.fill.is_some() || o.subscripts.iter().any(|e| e.as_shifted_index(is_index).is_none()))
}

/// The group of an index and its extent; `None` if no tensor has it.
fn group(operation: &str, index: &str, tensors: &[ContractionTensor; 3]) -> Result<Option<(String, IndexGroup, usize)>, ContractionError> {
    let name = || (operation.to_string(), index.to_string());
    let mut extents = tensors.iter().flat_map(|t| t.indices.iter().zip(&t.shape)).filter(|(i, _)| *i == index).map(|(_, e)| *e);
    let Some(extent) = extents.next() else { return Ok(None) };
    if let Some(other) = extents.find(|e| *e != extent) {
        let (operation, index) = name();
        return Err(ContractionError::Extent { operation, index, extent, other });
    }
    let [a, b, out] = tensors.each_ref().map(|t| t.indices.iter().filter(|i| *i == index).count());
    if out > 1 {
        let (operation, index) = name();
        return Err(ContractionError::Diagonal { operation, data: tensors[2].data.clone(), index });
    }
    let group = match (a > 0, b > 0, out > 0) {
        (true, true, true) => IndexGroup::Batch,
        (true, false, true) => IndexGroup::Rows,
        (false, true, true) => IndexGroup::Columns,
        (true, true, false) => IndexGroup::Depth,
        // A sum over one element is no sum.
        (true, false, false) if extent == 1 => IndexGroup::Rows,
        (false, true, false) if extent == 1 => IndexGroup::Columns,
        (_, _, false) => {
            let (operation, index) = name();
            return Err(ContractionError::Unpaired { operation, index });
        }
        (false, false, true) if extent == 1 => IndexGroup::Batch,
        (false, false, true) => {
            let (operation, index) = name();
            return Err(ContractionError::Unsourced { operation, index });
        }
    };
    Ok(Some((index.to_string(), group, extent)))
}
