//! Who may take part: variants of other frameworks, and what starts each.

use sdfg::Dtype;
use serde::Serialize;
use std::path::PathBuf;

/// A way in which a framework runs the layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Variant {
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
}

impl Variant {
    pub const ALL: [Variant; 6] = [Variant::Eager, Variant::Sdpa, Variant::Compile, Variant::CompileSdpa, Variant::Jax, Variant::JaxRbg];

    pub fn name(self) -> &'static str {
        match self {
            Variant::Eager => "eager",
            Variant::Sdpa => "sdpa",
            Variant::Compile => "compile",
            Variant::CompileSdpa => "compile-sdpa",
            Variant::Jax => "jax",
            Variant::JaxRbg => "jax-rbg",
        }
    }

    pub fn is_torch(self) -> bool {
        !matches!(self, Variant::Jax | Variant::JaxRbg)
    }
}

/// How a peer multiplies. PyTorch's `float32_matmul_precision` for f32: `medium` allows products of bf16, and other libraries
/// even where it uses none. For a recipe stored in bf16, PyTorch's autocast and JAX's casts to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    Highest,
    Medium,
    Bf16,
}

impl Precision {
    pub fn name(self) -> &'static str {
        match self {
            Precision::Highest => "highest",
            Precision::Medium => "medium",
            Precision::Bf16 => "bf16",
        }
    }
}

/// One contender: a process of its own.
#[derive(Clone, Debug, PartialEq)]
pub struct Contender {
    pub variant: Variant,
    pub precision: Precision,
    /// The Python that has the framework.
    pub python: PathBuf,
}

impl Contender {
    /// `eager, medium`.
    pub fn name(&self) -> String {
        format!("{}, {}", self.variant.name(), self.precision.name())
    }

    /// The script in the folder of workers, and its arguments.
    pub fn script(&self, threads: usize) -> Vec<String> {
        let (threads, variant) = (threads.to_string(), self.variant.name().to_string());
        if self.variant.is_torch() {
            vec!["torch_worker.py".into(), threads, variant, self.precision.name().into()]
        } else {
            vec!["jax_worker.py".into(), threads, variant, self.precision.name().into()]
        }
    }
}

/// The contenders of `variants` for which a Python is named: PyTorch's in both precisions of f32; all in bf16 where the
/// recipe is stored so.
pub fn contenders(variants: &[Variant], dtype: Dtype, torch: Option<&PathBuf>, jax: Option<&PathBuf>) -> Vec<Contender> {
    let mut found = Vec::new();
    for variant in variants {
        let python = if variant.is_torch() { torch } else { jax };
        let precisions = match dtype {
            Dtype::Bf16 => [Precision::Bf16].as_slice(),
            _ if variant.is_torch() => &[Precision::Highest, Precision::Medium],
            _ => &[Precision::Highest],
        };
        let Some(python) = python else { continue };
        found.extend(precisions.iter().map(|p| Contender { variant: *variant, precision: *p, python: python.clone() }));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_frameworks_with_a_python_take_part() {
        let python = PathBuf::from("python3");
        let names = |torch, jax| contenders(&Variant::ALL, Dtype::F32, torch, jax).iter().map(Contender::name).collect::<Vec<_>>();
        assert_eq!(names(None, Some(&python)), ["jax, highest", "jax-rbg, highest"]);
        assert_eq!(names(Some(&python), None).len(), 8);
        assert!(names(None, None).is_empty());
        let narrow = contenders(&Variant::ALL, Dtype::Bf16, Some(&python), Some(&python));
        assert!(narrow.len() == 6 && narrow.iter().all(|c| c.precision == Precision::Bf16));
    }
}
