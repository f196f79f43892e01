//! Models of other programs, read as recipes: ONNX.
//!
//! An import writes text: the recipe that a person could have written, and the tensors of its parameters. What comes after it knows
//! nothing of ONNX. The graph's sizes are known when the nodes are walked, so shapes, axes and whatever is computed from them are numbers
//! (`fold`); values that depend on inputs become steps in index notation (`operators`). A value may be a *view* of a tensor, so
//! that Transpose, Reshape, Slice and Expand are subscripts of the steps that read it.
//!
//! ```text
//! model.onnx ──proto──▶ nodes ──graph──▶ known values ──fold──▶ known values
//!                                   └──▶ views, steps ──recipe──▶ recipe.yaml, weights.safetensors
//! ```

mod attribute;
mod constant;
pub(crate) mod element;
mod error;
mod fold;
mod graph;
mod node;
mod operators;
pub mod proto;
pub(crate) mod recipe;
mod state;
pub(crate) mod step;
mod value;
mod view;

pub use error::{ImportErrors, ImportProblem, UnsupportedNode};
pub use operators::names as operator_names;

use prost::Message;
use proto::ModelProto;
use safetensors::tensor::{Dtype as SafeDtype, TensorView};
use sdfg::Dtype;
use state::Import;
use std::path::Path;

/// The operator sets that are read, to the newest released with ONNX 1.23. Before 13 some operators had another form; these are refused.
pub const OPSETS: std::ops::RangeInclusive<i64> = 7..=28;

/// An imported model.
pub struct Imported {
    /// The text of the recipe.
    pub recipe: String,
    /// Inputs and outputs: what the model calls them, and their names in the recipe.
    pub inputs: Vec<(String, String)>,
    pub outputs: Vec<(String, String)>,
    pub steps: usize,
    /// Name, type, shape and bytes of each parameter.
    pub weights: Vec<(String, Dtype, Vec<usize>, Vec<u8>)>,
}

impl Imported {
    /// The parameters as a safetensors file.
    ///
    /// # Errors
    /// Why there is no such file.
    pub fn weights_as_bytes(&self) -> Result<Vec<u8>, String> {
        let mut views = Vec::new();
        for (name, dtype, shape, bytes) in &self.weights {
            let dtype = match dtype {
                Dtype::F64 => SafeDtype::F64,
                Dtype::F32 => SafeDtype::F32,
                Dtype::Bf16 => SafeDtype::BF16,
                Dtype::F16 => SafeDtype::F16,
                Dtype::I64 => SafeDtype::I64,
                Dtype::I32 => SafeDtype::I32,
                Dtype::I16 => SafeDtype::I16,
                Dtype::U8 | Dtype::Bit => SafeDtype::U8,
            };
            let view = TensorView::new(dtype, shape.clone(), bytes).map_err(|e| format!("`{name}`: {e}"))?;
            views.push((name.clone(), view));
        }
        safetensors::serialize(views, None).map_err(|e| e.to_string())
    }
}

/// Whether a file is a model that [`import`] reads, by its name.
pub fn is_model(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("onnx")) || is_sdfg(path)
}

/// Whether a file is a program of DaCe's, by its name.
pub fn is_sdfg(path: &Path) -> bool {
    path.extension().is_some_and(|e| e.eq_ignore_ascii_case("sdfg"))
}

/// Reads an ONNX model or a program of DaCe's; `sizes` are those that the model names and leaves open.
///
/// # Errors
/// Everything that is wrong with the model, or not supported.
pub fn import(path: &Path, sizes: &[(String, i64)]) -> Result<Imported, ImportErrors> {
    if is_sdfg(path) {
        return crate::dace::read(path, sizes);
    }
    let file = path.display().to_string();
    let failed = |why: String| ImportErrors { file: file.clone(), problems: vec![ImportProblem::File(why)] };
    let bytes = std::fs::read(path).map_err(|e| failed(e.to_string()))?;
    let model = ModelProto::decode(bytes.as_slice())
        .map_err(|e| failed(format!("it is no ONNX model, or it is cut off: {e}; onnx.checker.check_model says more")))?;
    let folder = path.parent().map(Path::to_path_buf).unwrap_or_default();
    import_model(&model, &file, &folder, sizes)
}

/// As [`import`], of a model in memory; `folder` is where its external data lie.
///
/// # Errors
/// Those of [`import`].
pub fn import_model(model: &ModelProto, file: &str, folder: &Path, sizes: &[(String, i64)]) -> Result<Imported, ImportErrors> {
    let failed = |problems| ImportErrors { file: file.to_string(), problems };
    let Some(graph) = &model.graph else {
        return Err(failed(vec![ImportProblem::File("it holds no graph: it is no ONNX model, or it is cut off".into())]));
    };
    let opset = model.opset_import.iter().find(|set| matches!(set.domain.as_str(), "" | "ai.onnx")).map(|set| set.version);
    match opset {
        Some(version) if OPSETS.contains(&version) => {}
        Some(version) => {
            let (first, last) = (OPSETS.start(), OPSETS.end());
            let why = format!(
                "its operator set is {version}, and {first} to {last} are read; onnx.version_converter.convert_version(model, 21) or \
                 exporting with opset_version=21 helps"
            );
            return Err(failed(vec![ImportProblem::File(why)]));
        }
        None => return Err(failed(vec![ImportProblem::File("it names no operator set of ai.onnx, so its nodes have no meaning".into())])),
    }
    let mut import = Import::new(folder.to_path_buf(), &model.functions, opset.unwrap_or_default(), sizes);
    let outputs = import.run(graph);
    if !import.problems.is_empty() {
        return Err(failed(import.problems));
    }
    if outputs.is_empty() {
        return Err(failed(vec![ImportProblem::File("its graph has no outputs".into())]));
    }
    import.recipe.keep(&outputs);
    let title = Path::new(file).file_stem().map(|s| s.to_string_lossy().into_owned()).filter(|s| !s.trim().is_empty());
    let title = title.unwrap_or_else(|| "model".into());
    let producer = if model.producer_name.is_empty() { String::new() } else { format!(" by {}", model.producer_name) };
    let about = format!("imported from an ONNX model{producer}, operator set {}", opset.unwrap_or_default());
    let dtype = import.recipe.dtype();
    let recipe = import.recipe.text(&about, &title, dtype, &outputs);
    let inputs = import.inputs;
    let outputs = graph.output.iter().map(|o| o.name.clone()).zip(outputs).collect();
    let steps = import.recipe.steps();
    let weights = import.recipe.weights.into_iter().map(|w| (w.given.name, w.given.dtype, w.shape, w.values.stored())).collect();
    Ok(Imported { recipe, inputs, outputs, steps, weights })
}
