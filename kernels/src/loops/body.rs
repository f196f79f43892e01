//! What a loop is made of: the kernels of its body, and where each of their containers lies.

use crate::error::KernelError;
use crate::kernel::{KernelSpec, unsupported};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{Container, Layout, Lifetime, Role, Sdfg, Slice, Unit};

pub(super) struct Body {
    pub spec: KernelSpec,
    /// The program of one iteration under the loop's sizes.
    pub program: Sdfg,
    pub kernels: Vec<KernelSpec>,
    pub repeat: sdfg::Loop,
    pub trips: i64,
}

impl Body {
    /// # Errors
    /// A unit that is no loop; sizes without a value.
    pub(super) fn new(spec: &KernelSpec) -> Result<Body, KernelError> {
        let Unit::Nested(nested) = &spec.unit else { return Err(unsupported(spec, "it is no loop")) };
        let Some(repeat) = nested.repeat.clone() else { return Err(unsupported(spec, "it is no loop")) };
        let mut program = (*nested.program).clone();
        for (symbol, value) in &nested.symbols {
            let value = value.eval(&spec.sizes).map_err(|source| KernelError::Size { kernel: spec.name.clone(), source })?;
            program.sizes.insert(symbol.clone(), value);
        }
        // What an iteration makes is read by the next one: it is no result that leaves the caches.
        for container in program.containers.values_mut().filter(|c| matches!(c.role, Role::Output | Role::Gradient)) {
            (container.role, container.lifetime) = (Role::Transient, Lifetime::Program);
        }
        let kernels = program.units().iter().map(|(_, _, unit)| KernelSpec::new(&program, unit)).collect::<Result<Vec<_>, _>>()?;
        let trips = spec.size(&repeat.dim)? as i64;
        Ok(Body { spec: spec.clone(), program, kernels, repeat, trips })
    }

    /// The slice that an inner container is; `None` for a whole container and for what only the body has.
    pub(super) fn slice(&self, inner: &str) -> Option<&Slice> {
        self.repeat.slices.get(inner)
    }

    /// The outer container of an inner one, if the loop is given it or makes it.
    pub(super) fn outer<'a>(&'a self, inner: &'a str) -> Option<&'a str> {
        match self.slice(inner) {
            Some(slice) => Some(&slice.data),
            None => self.spec.containers.contains_key(inner).then_some(inner),
        }
    }

    /// What the body reads of containers that are held for one time: the inner container and the outer one.
    pub(super) fn states(&self) -> impl Iterator<Item = (&str, &str)> {
        self.repeat.slices.iter().filter(|(_, slice)| slice.is_state()).map(|(inner, slice)| (inner.as_str(), slice.data.as_str()))
    }

    /// Bytes of the containers that are read whole at every time and do not have a dim: weights, where the dim is the batch.
    pub(super) fn bytes_without(&self, dim: &str) -> f64 {
        let whole = |data: &str| !self.repeat.slices.values().any(|slice| slice.data == data && slice.at.is_some());
        let all = self.spec.arguments().into_iter().filter(|a| whole(&a.data) && !a.dims.iter().any(|own| own == dim));
        let elements = |data: &str| self.spec.shape(data).map_or(0, |shape| shape.iter().product::<usize>() as u64);
        all.map(|a| a.dtype.bytes(elements(&a.data)) as f64).sum()
    }

    /// The layout in which a container of the outside that is read or written in slices lies unless another is chosen: the times outermost.
    pub(super) fn sliced_layout(&self, outer: &Container) -> Option<Layout> {
        let axis = self.repeat.slices.values().filter(|slice| slice.data == outer.name).find_map(|slice| Some(slice.at.as_ref()?.0))?;
        let time = outer.dims.get(axis)?.clone();
        let rest = outer.dims.iter().enumerate().filter(|(n, _)| *n != axis).map(|(_, dim)| dim.clone());
        Some(Layout::of(&[time].into_iter().chain(rest).collect::<Vec<_>>()))
    }

    /// The layout of an outer container under a configuration of the loop.
    pub(super) fn outer_layout(&self, config: &KernelConfig, outer: &str) -> Layout {
        let default = || {
            let container = self.spec.containers.get(outer)?;
            Some(self.sliced_layout(container).unwrap_or_else(|| Layout::row_major(container)))
        };
        config.layouts.get(outer).cloned().or_else(default).unwrap_or_default()
    }

    /// The layout of a container of the body under a configuration of the loop.
    pub(super) fn inner_layout(&self, config: &KernelConfig, inner: &Container) -> Result<Layout, KernelError> {
        let Some(outer) = self.outer(&inner.name) else { return Ok(Layout::row_major(inner)) };
        let layout = self.outer_layout(config, outer);
        let Some((axis, _)) = self.slice(&inner.name).and_then(|slice| slice.at.as_ref()) else { return Ok(layout) };
        let time = self.spec.containers.get(outer).and_then(|c| c.dims.get(*axis));
        match layout.pieces.split_first() {
            Some((first, rest)) if Some(&first.dim) == time && first.block.is_none() && layout.padding == 0 => {
                let whole = rest.iter().all(|piece| Some(&piece.dim) != time);
                whole.then(|| Layout { pieces: rest.to_vec(), padding: 0 })
            }
            _ => None,
        }
        .ok_or_else(|| unsupported(&self.spec, format!("`{outer}` lies in the layout {layout}, in which a time is no piece of its own")))
    }

    /// The configuration of each kernel under one of the loop.
    pub(super) fn configs(&self, config: &KernelConfig) -> Result<Vec<KernelConfig>, KernelError> {
        let parts = apart(&config.knobs, self.kernels.len());
        let mut found = Vec::new();
        for (kernel, knobs) in self.kernels.iter().zip(parts) {
            let mut layouts = std::collections::BTreeMap::new();
            for argument in kernel.arguments() {
                if let Some(container) = self.program.containers.get(&argument.data) {
                    layouts.insert(argument.data.clone(), self.inner_layout(config, container)?);
                }
            }
            found.push(KernelConfig { layouts, knobs });
        }
        Ok(found)
    }
}

/// The knobs of all kernels of a body in one: `2/tile` is the knob `tile` of the third.
pub(super) fn joined(configs: &[KernelConfig]) -> Knobs {
    let each = configs.iter().enumerate();
    Knobs(each.flat_map(|(n, config)| config.knobs.0.iter().map(move |(key, value)| (format!("{n}/{key}"), value.clone()))).collect())
}

/// The knob that names the kernels that the caller does by itself before the workers begin what comes after them.
const BEFORE: &str = "before";

/// The numbers of these kernels.
pub(super) fn before(knobs: &Knobs) -> Vec<usize> {
    knobs.get(BEFORE).into_iter().flat_map(|all| all.split(',')).filter_map(|n| n.parse().ok()).collect()
}

/// Knobs with these kernels named.
pub(super) fn with_before(knobs: Knobs, before: &[usize]) -> Knobs {
    match before {
        [] => knobs,
        _ => knobs.with(BEFORE, before.iter().map(usize::to_string).collect::<Vec<_>>().join(",")),
    }
}

/// The knobs of each kernel.
fn apart(knobs: &Knobs, kernels: usize) -> Vec<Knobs> {
    let mut found = vec![Knobs::default(); kernels];
    for (key, value) in &knobs.0 {
        let own = key.split_once('/').and_then(|(n, key)| Some((n.parse::<usize>().ok()?, key)));
        if let Some((kernel, key)) = own.and_then(|(n, key)| Some((found.get_mut(n)?, key))) {
            kernel.0.insert(key.to_string(), value.clone());
        }
    }
    found
}
