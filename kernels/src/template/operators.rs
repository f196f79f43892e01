//! The operators of a kernel and the dims that each of them walks: what the attributes of a template stand for, whatever the configuration.

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::loopnest::MemorySpace;
use crate::maps::flatten::statements;
use crate::tiles::expanded;
use indexmap::IndexMap;
use sdfg::Unit;
use std::borrow::Cow;

/// What lowering adds to the name of a container that holds what becomes of an operator's result.
const DERIVED: [&str; 3] = [".partial", ".sum", ".undivided"];
/// What lowering adds to the name of an index for a part of it: tiles, and the inside of blocks.
const PARTS: [&str; 2] = [".tile", ".in"];

/// An operator and its iteration space.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct OperatorDims {
    /// The container that it writes.
    pub operator: String,
    /// Index and iterations of each dim: those of the whole kernel, then its own.
    pub dims: Vec<(String, u64)>,
    /// Whether other kernels, or the caller, see what it writes.
    pub is_global: bool,
}

/// All operators of a kernel, in the order of the program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelOperators {
    pub operators: Vec<OperatorDims>,
    /// All indices with their iterations: those of the whole kernel first.
    indices: IndexMap<String, u64>,
}

impl KernelOperators {
    /// # Errors
    /// Kernels that are no scope and no contraction; scopes that cannot be generated.
    pub fn of(spec: &KernelSpec) -> Result<Self, KernelError> {
        let spec = match &spec.unit {
            Unit::Operation(_) => Cow::Owned(expanded(spec)?),
            _ => Cow::Borrowed(spec),
        };
        let flattened = statements(&spec, false)?;
        let mut indices = IndexMap::new();
        let mut operators: Vec<OperatorDims> = Vec::new();
        for range in flattened.outer.iter().chain(flattened.statements.iter().flat_map(|f| &f.inner)) {
            indices.entry(range.index.clone()).or_insert(range.count as u64);
        }
        for flat in &flattened.statements {
            let operator = flat.statement.write.data.clone();
            if operators.iter().any(|o| o.operator == operator) {
                continue;
            }
            let dims = flattened.outer.iter().chain(&flat.inner).map(|r| (r.index.clone(), r.count as u64)).collect();
            let is_global = matches!(flattened.tensors.get(&operator).map(|t| &t.space), Some(MemorySpace::Heap { .. }));
            operators.push(OperatorDims { operator, dims, is_global });
        }
        Ok(KernelOperators { operators, indices })
    }

    pub fn get(&self, operator: &str) -> Option<&OperatorDims> {
        self.operators.iter().find(|o| o.operator == operator)
    }

    /// The place of an index among all, and its iterations.
    pub(super) fn index(&self, index: &str) -> Option<(usize, u64)> {
        self.indices.get_full(index).map(|(place, _, count)| (place, *count))
    }

    /// The index at a place among all.
    pub(super) fn named(&self, place: usize) -> Option<&str> {
        self.indices.get_index(place).map(|(index, _)| index.as_str())
    }

    /// The operator whose result, or what becomes of it, a container holds.
    pub(super) fn made_in<'a>(&self, data: &'a str) -> &'a str {
        let mut at = data;
        while self.get(at).is_none() {
            // Where a name is taken, a number follows.
            let named = at.rsplit_once('.').filter(|(_, n)| n.parse::<u32>().is_ok()).map_or(at, |(name, _)| name);
            match DERIVED.iter().find_map(|suffix| named.strip_suffix(suffix)) {
                Some(shorter) => at = shorter,
                None => return data,
            }
        }
        at
    }

    /// The index of the kernel that a loop walks, or a part of it.
    pub(super) fn walked_by<'a>(&self, index: &'a str) -> &'a str {
        let mut at = index;
        while self.indices.get(at).is_none() {
            match PARTS.iter().find_map(|suffix| at.strip_suffix(suffix)) {
                Some(shorter) => at = shorter,
                None => return index,
            }
        }
        at
    }
}
