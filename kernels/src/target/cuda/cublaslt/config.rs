//! The knobs of a contraction on a GPU, and the description that they come to.

use crate::contraction::{ContractionError, ContractionProblem};
use crate::contraction::{GemmNest, Mapping, mappings};
use crate::error::KernelError;
use crate::target::cuda::cublaslt::description::{Batching, Description, MatrixOrder, named};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Dtype, Layout};
use std::fmt;
use std::str::FromStr;

/// More launches than this are never worth it: they alone would take a millisecond.
const LAUNCHES: usize = 400;

/// What multiplies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Units {
    /// Whatever the library likes: tensor cores, where they take the factors.
    Any,
    /// The units that do all other arithmetic.
    Plain,
}

impl Units {
    pub const ALL: [Units; 2] = [Units::Any, Units::Plain];
}

named!(Units: Any = "any", Plain = "plain");

/// Knobs besides layouts: `mapping`, `form`, `batching`, `units`, and the number of the algorithm among those that the library
/// offers.
#[derive(Clone, Debug, PartialEq)]
pub struct CublasLtConfig {
    pub mapping: Mapping,
    pub form: MatrixOrder,
    pub batching: Batching,
    pub units: Units,
    pub algorithm: usize,
}

impl CublasLtConfig {
    pub fn knobs(&self) -> Knobs {
        let CublasLtConfig { mapping, form, batching, units, algorithm } = self;
        let told = Knobs::default().with("mapping", mapping).with("form", form).with("batching", batching);
        told.with("units", units).with("algorithm", algorithm)
    }

    /// The choice of a configuration, under the layouts that it holds. Absent knobs: the first mapping that the library has words
    /// for, columns, strided batches, any units, and the library's own choice.
    ///
    /// # Errors
    /// Knobs that contractions do not have.
    pub fn of(problem: &ContractionProblem, config: &KernelConfig) -> Result<Self, KernelError> {
        let layouts = problem.layouts_of(config);
        let axes = problem.axes(layouts.each_ref())?;
        let form = knob(problem, config, "form", MatrixOrder::Columns, &MatrixOrder::ALL)?;
        let batching = knob(problem, config, "batching", Batching::Strided, &Batching::ALL)?;
        let units = knob(problem, config, "units", Units::Any, &Units::ALL)?;
        let algorithm = match config.knobs.get("algorithm") {
            None => 0,
            Some(text) => text.parse().map_err(|_| problem.unknown("algorithm", text, ["numbers from 0"].iter()))?,
        };
        let unknown = |text: &str| problem.unknown("mapping", text, mappings(&axes).iter());
        let mapping = match config.knobs.get("mapping") {
            Some(text) => text.parse().map_err(|_| unknown(text))?,
            None => {
                let described = |m: &Mapping| {
                    let call = GemmNest::new(m, &axes)?;
                    Description::new(&call, [0; 3], problem.scale, form, batching).ok()
                };
                mappings(&axes).into_iter().find(|m| described(m).is_some()).ok_or_else(|| unknown(""))?
            }
        };
        Ok(CublasLtConfig { mapping, form, batching, units, algorithm })
    }

    /// The description of the call under layouts of `a`, `b`, `out`.
    ///
    /// # Errors
    /// Indices that do not fuse under these layouts; strides that the library has no words for; too many launches; what another
    /// choice says more simply.
    pub fn description(&self, problem: &ContractionProblem, layouts: [&Layout; 3]) -> Result<Description, KernelError> {
        let axes = problem.axes(layouts)?;
        let call = GemmNest::new(&self.mapping, &axes).ok_or_else(|| problem.unknown("mapping", &self.mapping, mappings(&axes).iter()))?;
        let batched = match self.batching {
            Batching::Strided => call.batch.last().map_or(1, |l| l.extent),
            Batching::Pointers => call.items(),
            Batching::Launches => 1,
        };
        // f32 is multiplied by plain units anyway, unless it may be TF32.
        if self.units == Units::Plain && problem.types.factor == Dtype::F32 && !problem.types.tf32 {
            return Err(problem.unknown("units", self.units, [Units::Any].iter()).into());
        }
        if self.batching == Batching::Pointers && call.batch.len() < 2 {
            return Err(KernelError::Cuda { what: format!("`{}`: a stride describes its batch", problem.name) });
        }
        let launches = call.items() / batched.max(1) * call.steps();
        if launches > LAUNCHES {
            return Err(KernelError::Cuda { what: format!("`{}` would take {launches} launches; {LAUNCHES} are tried", problem.name) });
        }
        let described = Description::new(&call, problem.origins(layouts)?, problem.scale, self.form, self.batching);
        described.map_err(|refusal| KernelError::Cuda { what: format!("`{}`: {refusal}", problem.name) })
    }
}

fn knob<T: Copy + std::str::FromStr + std::fmt::Display>(
    problem: &ContractionProblem,
    config: &KernelConfig,
    key: &str,
    absent: T,
    allowed: &[T],
) -> Result<T, ContractionError> {
    config.knobs.get(key).map_or(Ok(absent), |text| text.parse().map_err(|_| problem.unknown(key, text, allowed.iter())))
}
