//! Targets: for each a folder with everything that only it has, and a line in the registry.
//!
//! A target's folder has its [`Device`], the dialect of its generated code, its spaces of configurations, its libraries, and a constant
//! `TARGET`. What the templates have in common ([`crate::maps`], [`crate::tiles`], [`crate::loopnest`]) names no target.

pub mod cpu;
pub mod cuda;
pub mod shim;

use crate::config_space::ConfigSpace;
use crate::device::{Device, Forms};
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::template::TemplateOf;
use sdfg::config::KernelConfig;
use std::sync::Arc;

/// All targets, the default one first.
pub static TARGETS: &[&TargetInfo] = &[&cpu::TARGET, &cuda::TARGET, &shim::TARGET];

/// What can be asked about a target without one of its devices.
pub struct TargetInfo {
    /// As the command line and plans name it.
    pub id: &'static str,
    /// For people.
    pub title: &'static str,
    /// Whether its devices have numbers: `cuda:1`.
    pub is_numbered: bool,
    /// Whether it is for tests alone, and no advice names it.
    pub is_for_tests: bool,
    /// Opens a device by its number. Fails where a compiler, a library, a driver or the device is missing.
    pub open: fn(usize) -> Result<Arc<dyn Device>, KernelError>,
    /// As [`Device::epilogues`].
    pub epilogues: Option<Forms>,
    /// The text that is generated for a kernel under a configuration; `None` where a library has the kernel.
    pub code: fn(&KernelSpec, &KernelConfig) -> Result<Option<String>, KernelError>,
    /// The schedule template of a kernel under a configuration.
    pub template: TemplateOf,
    /// Every way to run a kernel by generated code.
    pub generated: fn(&KernelSpec) -> Result<Box<dyn ConfigSpace>, KernelError>,
}

impl TargetInfo {
    /// The target of this name.
    pub fn find(id: &str) -> Option<&'static TargetInfo> {
        TARGETS.iter().copied().find(|target| target.id == id)
    }
}

impl std::fmt::Debug for TargetInfo {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique() {
        for target in TARGETS {
            assert!(TargetInfo::find(target.id).is_some_and(|found| std::ptr::eq(found, *target)), "{target:?}");
        }
    }
}
