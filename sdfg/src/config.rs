//! Configurations: what a program leaves open. Program + configuration = plan.

use crate::layout::Layout;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Settings of one kernel that no other kernel sees: loop order, vectorised dim, threaded dim, library, tiles.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Knobs(pub BTreeMap<String, String>);

impl Knobs {
    pub fn get(&self, key: &str) -> Option<&str> {
        self.0.get(key).map(String::as_str)
    }

    pub fn with(mut self, key: &str, value: impl fmt::Display) -> Self {
        self.0.insert(key.to_string(), value.to_string());
        self
    }
}

impl fmt::Display for Knobs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (key, value)) in self.0.iter().enumerate() {
            write!(f, "{}{key}={value}", if n > 0 { " " } else { "" })?;
        }
        Ok(())
    }
}

/// One way to run one kernel: a layout for every container it touches, and its knobs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KernelConfig {
    pub layouts: BTreeMap<String, Layout>,
    pub knobs: Knobs,
}

impl fmt::Display for KernelConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (data, layout) in &self.layouts {
            write!(f, "{data}[{layout}] ")?;
        }
        write!(f, "{}", self.knobs)
    }
}

/// A change of layout inserted between kernels.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Relayout {
    pub data: String,
    pub from: Layout,
    pub to: Layout,
}

/// A complete choice for a program.
///
/// Every kernel names the layout in which it reads or writes each of its containers; where that differs from the
/// layout in which the container was written (or is held), the plan contains a relayout.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Configuration {
    /// Layout in which each heap container is first held: as written by its producer, or as given at the boundary.
    pub layouts: BTreeMap<String, Layout>,
    /// By kernel name.
    pub kernels: BTreeMap<String, KernelConfig>,
    /// Always empty; plans have it since the time when programs held alternatives.
    #[serde(default)]
    pub variants: BTreeMap<String, String>,
}

impl Configuration {
    /// Every layout of every container: those that kernels name, and those in which containers are held.
    pub fn all_layouts(&self) -> impl Iterator<Item = &Layout> {
        self.kernels.values().flat_map(|k| k.layouts.values()).chain(self.layouts.values())
    }
}
