//! The contenders of a comparison: variants of other frameworks, and the process of each.

use super::PeerModel;
use sdfg::Dtype;
use serde::Serialize;
use std::path::PathBuf;

/// A way in which a framework runs the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum PeerVariant {
    /// PyTorch, every operation a call of its own.
    Eager,
    /// PyTorch with `scaled_dot_product_attention`.
    Sdpa,
    /// `torch.compile` of eager.
    Compile,
    /// `torch.compile` of sdpa.
    CompileSdpa,
    /// `jax.jit`.
    Jax,
    /// `jax.jit` with its cheapest random numbers.
    JaxRbg,
    /// ONNX Runtime on standard operators, forward alone.
    Onnx,
    /// ONNX Runtime with its own operator for attention, forward alone.
    OnnxAttention,
    /// OpenVINO on standard operators, forward alone; networks only.
    Openvino,
}

/// A framework, which a Python environment must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framework {
    Torch,
    Jax,
    Onnx,
    Openvino,
}

/// The Python of each framework that takes part.
#[derive(Clone, Debug, Default)]
pub struct Pythons {
    pub torch: Option<PathBuf>,
    pub jax: Option<PathBuf>,
    pub onnx: Option<PathBuf>,
    pub openvino: Option<PathBuf>,
}

impl Pythons {
    pub fn of(&self, framework: Framework) -> Option<&PathBuf> {
        match framework {
            Framework::Torch => self.torch.as_ref(),
            Framework::Jax => self.jax.as_ref(),
            Framework::Onnx => self.onnx.as_ref(),
            Framework::Openvino => self.openvino.as_ref(),
        }
    }
}

impl PeerVariant {
    pub const ALL: [PeerVariant; 9] = [
        PeerVariant::Eager,
        PeerVariant::Sdpa,
        PeerVariant::Compile,
        PeerVariant::CompileSdpa,
        PeerVariant::Jax,
        PeerVariant::JaxRbg,
        PeerVariant::Onnx,
        PeerVariant::OnnxAttention,
        PeerVariant::Openvino,
    ];

    pub fn name(self) -> &'static str {
        match self {
            PeerVariant::Eager => "eager",
            PeerVariant::Sdpa => "sdpa",
            PeerVariant::Compile => "compile",
            PeerVariant::CompileSdpa => "compile-sdpa",
            PeerVariant::Jax => "jax",
            PeerVariant::JaxRbg => "jax-rbg",
            PeerVariant::Onnx => "onnx",
            PeerVariant::OnnxAttention => "onnx-attention",
            PeerVariant::Openvino => "openvino",
        }
    }

    pub fn framework(self) -> Framework {
        match self {
            PeerVariant::Eager | PeerVariant::Sdpa | PeerVariant::Compile | PeerVariant::CompileSdpa => Framework::Torch,
            PeerVariant::Jax | PeerVariant::JaxRbg => Framework::Jax,
            PeerVariant::Onnx | PeerVariant::OnnxAttention => Framework::Onnx,
            PeerVariant::Openvino => Framework::Openvino,
        }
    }

    /// Whether it has neither a backward pass nor dropout: it is then compared with our forward pass without dropout.
    pub fn forward_only(self) -> bool {
        matches!(self.framework(), Framework::Onnx | Framework::Openvino)
    }

    /// Whether it has the model: networks are run by those that read ONNX's files, and layers of transformers by all but OpenVINO.
    pub fn knows(self, model: &PeerModel) -> bool {
        match self {
            PeerVariant::Onnx => true,
            PeerVariant::Openvino => model.is_network(),
            _ => !model.is_network(),
        }
    }

    /// Whether its tensors can be counted: it calls operators one by one, or says how large the result of each was.
    pub fn is_watched(self) -> bool {
        matches!(self, PeerVariant::Eager | PeerVariant::Sdpa | PeerVariant::Onnx)
    }
}

/// The precision of a peer's products. For f32 it is PyTorch's `float32_matmul_precision`: `medium` allows products in bf16, and other
/// libraries even where bf16 is not used. For a recipe stored in bf16 it is PyTorch's autocast and JAX's casts, with weights in f32;
/// native is a model that also holds its weights and their gradients in bf16.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    Highest,
    Medium,
    Bf16,
    Bf16Native,
}

impl Precision {
    pub fn name(self) -> &'static str {
        match self {
            Precision::Highest => "highest",
            Precision::Medium => "medium",
            Precision::Bf16 => "bf16",
            Precision::Bf16Native => "bf16-native",
        }
    }
}

/// One contender: a process of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct PeerContender {
    pub variant: PeerVariant,
    pub precision: Precision,
    /// The Python that has the framework.
    pub python: PathBuf,
}

impl PeerContender {
    /// `eager, medium`.
    pub fn name(&self) -> String {
        format!("{}, {}", self.variant.name(), self.precision.name())
    }

    /// The script in the folder of workers, and its arguments.
    pub fn script(&self, threads: usize) -> Vec<String> {
        let script = match self.variant.framework() {
            Framework::Torch => "torch_worker.py",
            Framework::Jax => "jax_worker.py",
            Framework::Onnx => "onnx_worker.py",
            Framework::Openvino => "openvino_worker.py",
        };
        vec![script.into(), threads.to_string(), self.variant.name().into(), self.precision.name().into()]
    }
}

/// The contenders among `variants` whose framework has a Python. A recipe in f32 has both precisions of PyTorch; one in bf16 both kinds
/// of bf16, for frameworks that support it.
pub fn contenders(variants: &[PeerVariant], dtype: Dtype, pythons: &Pythons) -> Vec<PeerContender> {
    let mut found = Vec::new();
    for variant in variants {
        let precisions = match (dtype, variant.framework()) {
            (Dtype::Bf16, Framework::Onnx | Framework::Openvino) => [].as_slice(),
            (Dtype::Bf16, _) => &[Precision::Bf16, Precision::Bf16Native],
            (_, Framework::Torch) => &[Precision::Highest, Precision::Medium],
            _ => &[Precision::Highest],
        };
        let Some(python) = pythons.of(variant.framework()) else { continue };
        found.extend(precisions.iter().map(|p| PeerContender { variant: *variant, precision: *p, python: python.clone() }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frameworks_with_a_python_take_part() {
        let python = || Some(PathBuf::from("python3"));
        let names =
            |dtype, pythons: Pythons| contenders(&PeerVariant::ALL, dtype, &pythons).iter().map(PeerContender::name).collect::<Vec<_>>();
        let torch = || Pythons { torch: python(), ..Pythons::default() };
        let jax = || Pythons { jax: python(), ..Pythons::default() };
        let onnx = || Pythons { onnx: python(), ..Pythons::default() };
        assert_eq!(names(Dtype::F32, jax()), ["jax, highest", "jax-rbg, highest"]);
        assert_eq!(names(Dtype::F32, onnx()), ["onnx, highest", "onnx-attention, highest"]);
        assert_eq!(names(Dtype::F32, torch()).len(), 8);
        assert!(names(Dtype::F32, Pythons::default()).is_empty());
        assert_eq!(names(Dtype::Bf16, jax()), ["jax, bf16", "jax, bf16-native", "jax-rbg, bf16", "jax-rbg, bf16-native"]);
        assert_eq!(names(Dtype::Bf16, torch()).len(), 8);
        assert!(names(Dtype::Bf16, onnx()).is_empty(), "its kernels have no bf16");
    }
}
