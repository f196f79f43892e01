//! What the library does with a product before it stores it: a bias, an activation, its gradient, a bias gradient. Biases and
//! auxiliary tensors have the type of the result, as the library's table of types asks.

use crate::config_space::TensorChoice;
use crate::contraction::ContractionProblem;
use crate::contraction::{ContractionAxis, Mapping};
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::target::cuda::cublaslt::description::{Description, MajorOrder};
use crate::target::cuda::cublaslt::epilogue_desc::{Bias, EpilogueDesc, EpilogueFunction};
use sdfg::config::KernelConfig;
use sdfg::{Layout, Storage};

/// A container beside the operands, subscripted by plain indices.
#[derive(Clone, Debug, PartialEq)]
pub struct Beside {
    pub data: String,
    dims: Vec<String>,
    shape: Vec<usize>,
    indices: Vec<String>,
}

/// What a kernel does besides a contraction.
#[derive(Clone, Debug, PartialEq)]
pub struct Epilogue {
    pub function: Option<EpilogueFunction>,
    pub bias: Option<(Bias, Beside)>,
    /// GELU's argument, or where ReLU's is positive.
    pub aux: Option<Beside>,
}

impl Beside {
    pub(crate) fn new(spec: &KernelSpec, data: &str, indices: &[String]) -> Option<Self> {
        let container = spec.containers.get(data).filter(|c| c.view.is_none() && c.storage == Storage::Heap)?;
        let distinct = (1..indices.len()).all(|n| !indices[..n].contains(&indices[n]));
        (distinct && indices.len() == container.dims.len()).then_some(())?;
        Some(Beside { data: data.into(), dims: container.dims.clone(), shape: spec.shape(data).ok()?, indices: indices.to_vec() })
    }

    pub(crate) fn dims(&self) -> &[String] {
        &self.dims
    }

    pub(crate) fn indices(&self) -> impl Iterator<Item = &str> {
        self.indices.iter().map(String::as_str)
    }

    /// Elements between neighbours along an index; 0 if it has none.
    fn stride(&self, strides: &[usize], index: &str) -> usize {
        self.indices.iter().position(|i| i == index).map_or(0, |at| strides[at])
    }
}

impl Epilogue {
    /// Layouts of what lies beside the operands.
    pub fn tensors(&self) -> Vec<TensorChoice> {
        let beside = self.bias.iter().map(|(_, b)| b).chain(&self.aux);
        beside.map(|b| TensorChoice { data: b.data.clone(), layouts: Layout::permutations(&b.dims) }).collect()
    }

    /// The epilogue of a description under a configuration's layouts.
    ///
    /// # Errors
    /// More than one product; a vector that does not follow the rows of the result, or one beside a result in rows; an auxiliary matrix
    /// that does not lie as the result does, in columns that begin at multiples of eight elements (of 128 bits).
    pub fn ending(
        &self,
        d: &Description,
        mapping: &Mapping,
        axes: &[ContractionAxis],
        problem: &ContractionProblem,
        config: &KernelConfig,
    ) -> Result<EpilogueDesc, KernelError> {
        let refused = |what: &str| KernelError::Cuda { what: format!("`{}` has an epilogue, and {what}", problem.name) };
        if d.launches.len() != 1 || d.batch != 1 {
            return Err(refused("more than one product"));
        }
        let strides = |beside: &Beside| {
            let layout = config.layouts.get(&beside.data).cloned().unwrap_or_else(|| Layout::of(&beside.dims));
            layout.strides(&beside.dims, &beside.shape).ok_or_else(|| refused("a layout of other dims"))
        };
        let (rows, columns) = if d.exchanged { (&mapping.columns, &mapping.rows) } else { (&mapping.rows, &mapping.columns) };
        let walked = || axes.iter().filter(|a| a.extent != 1);
        let bias = match &self.bias {
            None => None,
            Some((bias, beside)) => {
                let bias = match bias {
                    Bias::OfA if d.exchanged => Bias::OfB,
                    Bias::OfB if d.exchanged => Bias::OfA,
                    other => *other,
                };
                // The library has none of them for results in rows, though its manual does not say so.
                if matches!(bias, Bias::Added | Bias::OfResult) && d.d.order == MajorOrder::Row {
                    return Err(refused("the library wants the columns of a result with a vector one after another"));
                }
                // Along what the vector lies; neighbours of the result are one element or one leading dimension apart there.
                let (along, near) = if bias == Bias::OfB { (columns, MajorOrder::Row) } else { (rows, MajorOrder::Column) };
                let unit = if d.d.order == near { 1 } else { d.d.leading };
                let strides = strides(beside)?;
                let follows = |a: &ContractionAxis| {
                    let wanted = if along.contains(&a.index) { a.strides[2] } else { 0 };
                    beside.stride(&strides, &a.index) * unit == wanted
                };
                if !walked().all(follows) {
                    return Err(refused("its vector does not follow the result"));
                }
                Some(bias)
            }
        };
        let aux = match &self.aux {
            None => None,
            Some(beside) => {
                let strides = strides(beside)?;
                let alike = walked().filter(|a| a.strides[2] != 0).all(|a| beside.stride(&strides, &a.index) == a.strides[2]);
                if !alike || d.d.order != MajorOrder::Column {
                    return Err(refused("its auxiliary matrix does not lie as the result does, in columns"));
                }
                let column = self.function.map_or(1, EpilogueFunction::column);
                if !d.d.leading.is_multiple_of(column as usize) {
                    return Err(refused(&format!("columns of its auxiliary matrix do not begin at multiples of {column} elements")));
                }
                Some(d.d.leading)
            }
        };
        Ok(EpilogueDesc { function: self.function, bias, aux })
    }
}
