//! The device that a program is measured and run on, as the command line and plans name it.

use crate::pipeline::PipelineError;
use kernels::device::{Device, Forms};
use kernels::target::{TARGETS, TargetInfo};
use kernels::template::TemplateOf;
use kernels::{ConfigSpace, KernelSpec};
use sdfg::config::KernelConfig;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// `cpu`, `cuda`, `cuda:1`, `cuda:0,1`; `shim`, with or without numbers, is for tests: it runs GPU kernels on the CPU.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Target {
    of: &'static TargetInfo,
    /// Numbers of devices, at least one; `[0]` where they have none.
    numbers: Vec<usize>,
}

impl Default for Target {
    fn default() -> Self {
        Target { of: TARGETS[0], numbers: vec![0] }
    }
}

impl PartialEq for Target {
    fn eq(&self, other: &Self) -> bool {
        (self.of.id, &self.numbers) == (other.of.id, &other.numbers)
    }
}

impl Eq for Target {}

impl Target {
    /// Whether it is the default.
    pub fn is_cpu(&self) -> bool {
        *self == Target::default()
    }

    /// The id without device numbers.
    pub fn kind(&self) -> &'static str {
        self.of.id
    }

    /// The first device.
    ///
    /// # Errors
    /// A compiler, a library, a driver or a device that is missing.
    pub fn open(&self) -> Result<Arc<dyn Device>, PipelineError> {
        Ok((self.of.open)(self.numbers.first().copied().unwrap_or(0))?)
    }

    /// The fused kernels that the target's library offers, as [`Device::epilogues`], without opening a device.
    pub fn epilogues(&self) -> Option<Forms> {
        self.of.epilogues
    }

    /// The generated source of a kernel, without opening a device; `None` if a library provides the kernel.
    ///
    /// # Errors
    /// Scopes and knobs that kernels do not have.
    pub fn code(&self, spec: &KernelSpec, config: &KernelConfig) -> Result<Option<String>, PipelineError> {
        Ok((self.of.code)(spec, config)?)
    }

    /// What configurations mean as schedule templates.
    pub fn template(&self) -> TemplateOf {
        self.of.template
    }

    /// Every way to run a kernel by generated code, without opening a device.
    ///
    /// # Errors
    /// Kernels that cannot be generated.
    pub fn generated(&self, spec: &KernelSpec) -> Result<Box<dyn ConfigSpace>, PipelineError> {
        Ok((self.of.generated)(spec)?)
    }

    /// One target for each device.
    pub fn each(&self) -> Vec<Target> {
        self.numbers.iter().map(|n| Target { of: self.of, numbers: vec![*n] }).collect()
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.numbers[..] {
            [0] => f.write_str(self.of.id),
            _ => write!(f, "{}:{}", self.of.id, self.numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")),
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            let names: Vec<&str> = TARGETS.iter().filter(|t| !t.is_for_tests).map(|t| t.id).collect();
            format!("`{text}` is no device; write {}, or numbers of GPUs: cuda:1, cuda:0,1", names.join(", "))
        };
        let (id, numbers) = match text.split_once(':') {
            None => (text, None),
            Some((id, numbers)) => (id, Some(numbers.split(',').map(|n| n.parse().map_err(|_| wrong())).collect::<Result<Vec<_>, _>>()?)),
        };
        let of = TargetInfo::find(id).filter(|of| of.is_numbered || numbers.is_none()).ok_or_else(wrong)?;
        let numbers: Vec<usize> = numbers.unwrap_or_else(|| vec![0]);
        let twice = numbers.iter().enumerate().any(|(at, n)| numbers[..at].contains(n));
        if twice { Err(wrong()) } else { Ok(Target { of, numbers }) }
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
            ("cpu", ("cpu", vec![0])),
            ("cuda", ("cuda", vec![0])),
            ("cuda:3", ("cuda", vec![3])),
            ("cuda:0,1", ("cuda", vec![0, 1])),
            ("shim", ("shim", vec![0])),
            ("shim:0,1", ("shim", vec![0, 1])),
        ] {
            let parsed: Target = text.parse().unwrap();
            assert_eq!((parsed.kind(), parsed.numbers.clone()), target);
            assert_eq!(parsed.to_string(), text);
        }
        for wrong in ["", "gpu", "cuda:", "cuda:x", "cuda:1,1", "cpu:0", "cuda:-1"] {
            assert!(wrong.parse::<Target>().is_err_and(|e| e.contains("cuda:0,1")), "{wrong}");
        }
        let each: Vec<String> = "cuda:0,2".parse::<Target>().unwrap().each().iter().map(Target::to_string).collect();
        assert_eq!(each, ["cuda", "cuda:2"]);
    }
}
