//! The selection problem: for every kernel of a program one of its measured configurations, and for every container the layout in which it
//! is held.
//!
//! A [`SelectionProblem`] is plain data. Records keep it, so that a choice can be made again from a file alone.

use sdfg::{Direction, Layout};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// How a kernel touches a container.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Access {
    Read,
    Write,
    /// Writes a part and must find the rest where it leaves it: held in another layout, it pays a relayout before and
    /// one after.
    Update,
}

/// A container as selection sees it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    pub data: String,
    pub natural: Layout,
    pub bytes: u64,
    /// Key of its relayouts in the store; empty if none were measured.
    pub relayout_key: String,
    /// Whether no kernel can change its layout: it is held as it is written.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub fixed: bool,
    /// Whether its values are the same in every step: a relayout of it is made once, before the first step, and costs a step nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
    /// Its name in its own variant, where another variant has something else of that name; empty if it is `data`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub original: String,
    /// A fingerprint of its values: equal in two programs if the values are; empty if unknown.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub meaning: String,
}

impl Tensor {
    /// The name under which configurations know it.
    pub fn plain(&self) -> &str {
        if self.original.is_empty() { &self.data } else { &self.original }
    }
}

/// A kernel as selection sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    pub name: String,
    pub key: String,
    pub pass: Direction,
    pub tensors: Vec<(String, Access)>,
    /// Group of alternatives → the variants in which it runs. It runs if all groups named here agree.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub only: BTreeMap<String, BTreeSet<String>>,
    /// Whether it runs once, before the first step, because it reads nothing but what is the same in every step: it costs a step nothing.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub once: bool,
    /// As with [`Tensor::original`].
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub original: String,
    /// Other names that it uses, of parts of its containers and of containers inside it, each with a fingerprint of the values.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub names: BTreeMap<String, String>,
}

impl Kernel {
    /// A kernel that always runs.
    pub fn new(name: &str, key: &str, pass: Direction, tensors: Vec<(String, Access)>) -> Self {
        let (only, names) = (BTreeMap::new(), BTreeMap::new());
        Kernel { name: name.into(), key: key.into(), pass, tensors, only, once: false, original: String::new(), names }
    }

    pub fn plain(&self) -> &str {
        if self.original.is_empty() { &self.name } else { &self.original }
    }

    /// What a step pays for a configuration that takes so many milliseconds.
    pub fn price(&self, ms: f64) -> f64 {
        if self.once { 0.0 } else { ms }
    }
}

/// Where one of these variants runs, so does one of those of another group: they make what it reads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Need {
    pub when: (String, BTreeSet<String>),
    pub then: (String, BTreeSet<String>),
}

/// Variants by group.
pub type Variants = BTreeMap<String, String>;

/// The program as selection sees it: kernels in execution order, what binds their layouts. Kept in the records, so that
/// a choice can be made again from the file alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SelectionProblem {
    pub kernels: Vec<Kernel>,
    pub tensors: Vec<Tensor>,
    /// Containers that are given or wanted in a certain layout.
    pub boundary: BTreeMap<String, Layout>,
    /// Containers that must be held in the same layout (weight and gradient, x and y). Their dims have equal names.
    pub ties: Vec<(String, String)>,
    /// Groups of alternatives: of each, one variant runs. The first is taken where all cost the same.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub alternatives: BTreeMap<String, Vec<String>>,
    /// Variants of one group that need a variant of another one.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub needs: Vec<Need>,
    /// The caller as kernels, where its inputs and outputs depend on the variant: it writes inputs and reads outputs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub callers: Vec<Kernel>,
    /// The programs that it was made of, if it was: name → the variant that each has of every group.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub programs: BTreeMap<String, Variants>,
}

impl SelectionProblem {
    pub fn tensor(&self, data: &str) -> Option<&Tensor> {
        self.tensors.iter().find(|t| t.data == data)
    }

    pub fn kernel(&self, name: &str) -> Option<&Kernel> {
        self.kernels.iter().find(|k| k.name == name)
    }
}
