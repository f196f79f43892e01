//! What a kernel computes: a unit of a program with all that it refers to.

use crate::codegen_version::codegen_version;
use crate::constant::StepConstants;
use crate::convolutions::convolves;
use crate::error::KernelError;
use crate::unit_containers::touched;
use indexmap::IndexMap;
use sdfg::{Bindings, Container, Dtype, Expr, Role, Sdfg, Storage, Unit};
use std::collections::BTreeSet;

/// One top-level unit of a program with everything it refers to: what a kernel is generated from.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelSpec {
    pub name: String,
    /// A scope or a contraction.
    pub unit: Unit,
    /// All containers touched, locals and the containers behind views included.
    pub containers: IndexMap<String, Container>,
    /// Symbolic sizes of the program's dims.
    pub extents: IndexMap<String, Expr>,
    /// Sizes of the program's dims.
    pub dims: IndexMap<String, i64>,
    /// Values of the size symbols.
    pub sizes: Bindings,
    /// Whether the program lets f32 be multiplied as TF32.
    pub tf32: bool,
    /// Whether the program lets convolutions be computed by Winograd's minimal filtering.
    pub winograd: bool,
    /// Containers that hold the same in every step ([`crate::constant`]): what is packed of them may be kept. Of programs that convolve
    /// images.
    pub constants: BTreeSet<String>,
    /// Whether the program convolves images, so that containers may be held as [`crate::images`] says.
    pub images: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArgumentAccess {
    Read,
    Write,
}

/// One pointer that a kernel takes: the storage of a heap container that is no view.
#[derive(Clone, Debug, PartialEq)]
pub struct KernelArgument {
    pub data: String,
    pub access: ArgumentAccess,
    pub dtype: Dtype,
    pub dims: Vec<String>,
}

/// A program whose kernels are looked at one after the other: what holds for the program as a whole is found once.
#[derive(Clone)]
pub struct KernelSpecs<'a> {
    program: &'a Sdfg,
    images: bool,
    constants: BTreeSet<String>,
}

impl<'a> KernelSpecs<'a> {
    pub fn of(program: &'a Sdfg) -> Self {
        let images = convolves(program);
        let constants = if images { StepConstants::of(program).containers } else { BTreeSet::new() };
        KernelSpecs { program, images, constants }
    }

    /// What a unit of the program refers to.
    ///
    /// # Errors
    /// As [`KernelSpec::new`].
    pub fn spec(&self, unit: &Unit) -> Result<KernelSpec, KernelError> {
        KernelSpec::within(self.program, (self.images, &self.constants), unit)
    }
}

impl KernelSpec {
    /// Collects what a unit of a program refers to.
    ///
    /// # Errors
    /// Containers that are not declared, sizes without a value, sizes below 1.
    pub fn new(program: &Sdfg, unit: &Unit) -> Result<Self, KernelError> {
        KernelSpecs::of(program).spec(unit)
    }

    fn within(program: &Sdfg, (images, constants): (bool, &BTreeSet<String>), unit: &Unit) -> Result<Self, KernelError> {
        let name = unit.name().to_string();
        let (reads, writes) = touched(unit);
        let mut containers = IndexMap::new();
        for data in reads.iter().chain(&writes) {
            let mut at = data.clone();
            // A chain of views ends at the container that has the storage.
            while !containers.contains_key(&at) {
                let container =
                    program.containers.get(&at).ok_or_else(|| KernelError::UnknownContainer { kernel: name.clone(), data: at.clone() })?;
                containers.insert(at.clone(), container.clone());
                match &container.view {
                    Some(view) => at = view.of.clone(),
                    None => break,
                }
            }
        }
        let spec = KernelSpec {
            name,
            unit: unit.clone(),
            extents: program.dims.clone(),
            dims: IndexMap::new(),
            sizes: program.sizes.clone(),
            tf32: program.tf32,
            winograd: program.winograd,
            constants: constants.iter().filter(|data| containers.contains_key(*data)).cloned().collect(),
            images,
            containers,
        };
        spec.with_sizes(&program.sizes)
    }

    /// The same kernel at other sizes.
    ///
    /// # Errors
    /// Sizes without a value or below 1.
    pub fn with_sizes(&self, sizes: &Bindings) -> Result<Self, KernelError> {
        let mut dims = IndexMap::new();
        for (dim, size) in &self.extents {
            let value = size.eval(sizes).map_err(|source| KernelError::Size { kernel: self.name.clone(), source })?;
            if value < 1 {
                return Err(KernelError::BadSize { kernel: self.name.clone(), dim: dim.clone(), value });
            }
            dims.insert(dim.clone(), value);
        }
        Ok(KernelSpec { dims, sizes: sizes.clone(), ..self.clone() })
    }

    /// The container that has the storage of `data`: itself, unless it is a view.
    pub fn root<'a>(&'a self, data: &'a str) -> &'a str {
        let mut at = data;
        // A chain longer than there are containers would run in a circle.
        for _ in 0..self.containers.len() {
            match self.containers.get(at).and_then(|c| c.view.as_ref()) {
                Some(view) => at = &view.of,
                None => break,
            }
        }
        at
    }

    /// Sizes of a container's dimensions.
    pub fn shape(&self, data: &str) -> Result<Vec<usize>, KernelError> {
        let container =
            self.containers.get(data).ok_or_else(|| KernelError::UnknownContainer { kernel: self.name.clone(), data: data.to_string() })?;
        container.dims.iter().map(|dim| self.size(dim)).collect()
    }

    /// Size of a dim; one that the program does not declare is a symbol of its own.
    pub fn size(&self, dim: &str) -> Result<usize, KernelError> {
        let value = match self.dims.get(dim).or_else(|| self.sizes.get(dim)) {
            Some(value) => *value,
            None => {
                return Err(KernelError::Size { kernel: self.name.clone(), source: sdfg::SymbolError::Unbound(dim.to_string()) });
            }
        };
        usize::try_from(value).ok().filter(|v| *v > 0).ok_or_else(|| KernelError::BadSize {
            kernel: self.name.clone(),
            dim: dim.to_string(),
            value,
        })
    }

    /// The pointers that the kernel takes: heap containers read, in order of first appearance, then those written.
    pub fn arguments(&self) -> Vec<KernelArgument> {
        let (reads, writes) = touched(&self.unit);
        let mut found: IndexMap<String, KernelArgument> = IndexMap::new();
        let roots = |all: &[String]| -> Vec<String> { all.iter().map(|d| self.root(d).to_string()).collect() };
        let (reads, writes) = (roots(&reads), roots(&writes));
        let read_only = reads.iter().filter(|d| !writes.contains(d)).map(|d| (d, ArgumentAccess::Read));
        for (data, access) in read_only.chain(writes.iter().map(|d| (d, ArgumentAccess::Write))) {
            let Some(container) = self.containers.get(data).filter(|c| c.storage == Storage::Heap) else { continue };
            found.entry(data.clone()).or_insert_with(|| KernelArgument {
                data: data.clone(),
                access,
                dtype: container.dtype,
                dims: container.dims.clone(),
            });
        }
        found.into_values().collect()
    }

    /// Whether a container is handed back at the end of the step, so that no kernel reads it soon.
    pub fn hands_back(&self, data: &str) -> bool {
        self.containers.get(data).is_some_and(|c| matches!(c.role, Role::Output | Role::Gradient))
    }

    /// Whether it writes only a part of a container: others write the rest.
    pub fn writes_part(&self, data: &str) -> bool {
        let mut around = Sdfg::new(&self.name);
        (around.sizes, around.dims, around.containers) = (self.sizes.clone(), self.extents.clone(), self.containers.clone());
        self.unit.writes_part(&around, data)
    }

    /// Content hash of everything that the kernel's result and its time depend on, sizes included.
    pub fn key(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(codegen_version().as_bytes());
        let unit = match &self.unit {
            Unit::Scope(scope) => serde_json::to_string(scope),
            Unit::Operation(operation) => serde_json::to_string(operation),
            Unit::Nested(_) => Ok(format!("{:?}", self.unit)),
        };
        hasher.update(unit.unwrap_or_else(|_| format!("{:?}", self.unit)).as_bytes());
        if self.tf32 {
            hasher.update(b"\ntf32");
        }
        if self.winograd {
            hasher.update(b"\nwinograd");
        }
        for container in self.containers.values() {
            hasher.update(
                format!("\n{} {:?} {} {:?} {:?}", container.name, container.dims, container.dtype, container.storage, container.view)
                    .as_bytes(),
            );
            hasher.update(&[u8::from(self.hands_back(&container.name)), u8::from(self.constants.contains(&container.name))]);
            // Whether results are right was found on values of this range.
            if let Some(range) = &container.range {
                hasher.update(format!("{range:?}").as_bytes());
            }
        }
        // Only dims that the kernel walks: another program may have more of them around the same kernel.
        let walked = |dim: &String| match &self.unit {
            Unit::Operation(operation) => operation.indices.values().any(|d| d == dim),
            _ => false,
        };
        let used = |dim: &String| walked(dim) || self.containers.values().any(|c| c.dims.contains(dim));
        for (dim, size) in self.dims.iter().filter(|(dim, _)| used(dim)) {
            hasher.update(format!("\n{dim}={size}").as_bytes());
        }
        for (symbol, value) in &self.sizes {
            hasher.update(format!("\n{symbol}={value}").as_bytes());
        }
        hasher.finalize().to_hex().to_string()
    }
}

pub(crate) fn unsupported(spec: &KernelSpec, what: impl Into<String>) -> KernelError {
    KernelError::Unsupported { kernel: spec.name.clone(), what: what.into() }
}
