//! What a program is measured and run on, as the command line and plans name it.

use crate::pipeline::PipelineError;
use kernels::contraction::cublaslt::Fused;
use kernels::device::cpu::Cores;
use kernels::device::cuda::CudaDevice;
use kernels::device::shim::ShimDevice;
use kernels::device::{Device, Forms};
use kernels::emit::cuda::Chip;
use kernels::{KernelSpec, Toolchain, template};
use sdfg::Unit;
use sdfg::config::KernelConfig;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// `cpu`, `cuda`, `cuda:1`, `cuda:0,1`; `shim` is for tests, with or without numbers: what a GPU would be given, on the CPU.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Target {
    #[default]
    Cpu,
    /// Numbers of GPUs, at least one.
    Cuda(Vec<usize>),
    Shim(Vec<usize>),
}

impl Target {
    /// Whether it is the default.
    pub fn is_cpu(&self) -> bool {
        *self == Target::Cpu
    }

    /// The word without numbers.
    pub fn kind(&self) -> &'static str {
        match self {
            Target::Cpu => "cpu",
            Target::Cuda(_) => "cuda",
            Target::Shim(_) => "shim",
        }
    }

    /// The first device.
    ///
    /// # Errors
    /// A compiler, a library, a driver or a GPU that is missing.
    pub fn open(&self) -> Result<Arc<dyn Device>, PipelineError> {
        Ok(match self {
            Target::Cpu => Arc::new(Cores { toolchain: Toolchain::system()? }),
            Target::Cuda(numbers) => Arc::new(CudaDevice::new(numbers.first().copied().unwrap_or(0), Toolchain::cache())?),
            Target::Shim(_) => Arc::new(ShimDevice::new(Toolchain::cache().join("shim"))),
        })
    }

    /// Which kernels composed around contractions a library has a form of there. As [`Device::epilogues`], of a device that need not
    /// be here.
    pub fn epilogues(&self) -> Option<Forms> {
        match self {
            Target::Cpu => None,
            Target::Cuda(_) | Target::Shim(_) => Some(Fused::has),
        }
    }

    /// What is generated for a kernel there, for a device that need not be here: a GPU counts as an H200 then. `None` for what a
    /// library does.
    ///
    /// # Errors
    /// Scopes and knobs that kernels do not have.
    pub fn code(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Option<String>, PipelineError> {
        let library = matches!(&spec.unit, Unit::Operation(_)) || Fused::has(spec);
        Ok(match self {
            Target::Cpu => template::source(spec, config).map(|source| source.text),
            Target::Cuda(_) | Target::Shim(_) if library => None,
            Target::Cuda(_) | Target::Shim(_) => Some(template::cuda_source(spec, config, Chip::HOPPER)?.text),
        })
    }

    /// One target for each device.
    pub fn each(&self) -> Vec<Target> {
        match self {
            Target::Cpu => vec![Target::Cpu],
            Target::Cuda(numbers) => numbers.iter().map(|n| Target::Cuda(vec![*n])).collect(),
            Target::Shim(numbers) => numbers.iter().map(|n| Target::Shim(vec![*n])).collect(),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Cuda(numbers) | Target::Shim(numbers) if *numbers != [0] => {
                let numbers: Vec<String> = numbers.iter().map(usize::to_string).collect();
                write!(f, "{}:{}", self.kind(), numbers.join(","))
            }
            other => f.write_str(other.kind()),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no device; write cpu, cuda, or numbers of GPUs: cuda:1, cuda:0,1");
        let (kind, numbers) = match text.split_once(':') {
            None => (text, vec![0]),
            Some((kind, numbers)) => (kind, numbers.split(',').map(|n| n.parse().map_err(|_| wrong())).collect::<Result<_, _>>()?),
        };
        let twice = numbers.iter().enumerate().any(|(at, n)| numbers[..at].contains(n));
        match kind {
            "cpu" if text == "cpu" => Ok(Target::Cpu),
            "cuda" if !twice => Ok(Target::Cuda(numbers)),
            "shim" if !twice => Ok(Target::Shim(numbers)),
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_have_names() {
        for (text, target) in [
            ("cpu", Target::Cpu),
            ("cuda", Target::Cuda(vec![0])),
            ("cuda:3", Target::Cuda(vec![3])),
            ("cuda:0,1", Target::Cuda(vec![0, 1])),
            ("shim", Target::Shim(vec![0])),
            ("shim:0,1", Target::Shim(vec![0, 1])),
        ] {
            assert_eq!(text.parse(), Ok(target.clone()));
            assert_eq!(target.to_string(), text);
        }
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:1,1", "cpu:0", "cuda:-1"] {
            assert!(wrong.parse::<Target>().is_err_and(|e| e.contains("cuda:0,1")), "{wrong}");
        }
        assert_eq!(Target::Cuda(vec![0, 2]).each(), [Target::Cuda(vec![0]), Target::Cuda(vec![2])]);
    }
}
