//! Orders of dims that all tensors of a program may follow, and the layouts that its boundary prescribes.

use sdfg::{Layout, Role, Sdfg};
use std::collections::BTreeMap;

/// The order of dims that PyTorch's modules imply: batch and sequence first, then heads and keys, features last.
///
/// Derived from the boundary, not from names: a dim that the recipe's inputs share with activations and that no
/// parameter has is a batch or sequence dim; dims of parameters are features.
pub fn pytorch_order(program: &Sdfg) -> Vec<String> {
    let feature = |dim: &String| program.containers.values().any(|c| c.role == sdfg::Role::Parameter && c.dims.contains(dim));
    let (features, batch_like): (Vec<String>, Vec<String>) = program.dims.keys().cloned().partition(feature);
    let activations = |dim: &String| {
        let of = program
            .containers
            .values()
            .filter(|c| c.role != sdfg::Role::Parameter && c.dims.iter().filter(|d| batch_like.contains(d)).count() >= 2);
        of.filter(|c| c.dims.contains(dim)).map(|c| c.dims.iter().filter(|d| features.contains(d)).count()).collect::<Vec<_>>()
    };
    // A feature dim is a head if some activations have it with another feature (queries) and some have it alone (scores or their
    // statistics). Heads stand before the sequences.
    let head = |dim: &&String| {
        let beside = activations(dim);
        beside.contains(&1) && beside.iter().any(|n| *n > 1)
    };
    let mut order: Vec<String> = batch_like.first().into_iter().chain(features.iter().filter(head)).cloned().collect();
    let rest: Vec<String> = batch_like.iter().chain(features.iter().rev()).filter(|d| !order.contains(d)).cloned().collect();
    order.extend(rest);
    order
}

/// The same with heads first among the features: the row-major order of a projection's output.
pub fn flat_order(program: &Sdfg) -> Vec<String> {
    let feature = |dim: &String| program.containers.values().any(|c| c.role == sdfg::Role::Parameter && c.dims.contains(dim));
    let (features, batch_like): (Vec<String>, Vec<String>) = pytorch_order(program).into_iter().partition(feature);
    batch_like.into_iter().chain(features).collect()
}

/// Whether a layout's dims come in the given order.
pub fn follows(layout: &Layout, order: &[String]) -> bool {
    let places: Vec<usize> = layout.pieces.iter().map(|p| order.iter().position(|d| *d == p.dim).unwrap_or(usize::MAX)).collect();
    places.is_sorted()
}

/// The fixed layouts at the boundary: all inputs, outputs and gradients of inputs stand in the recipe's dim order. The plan keeps
/// parameters, in any layout.
pub fn boundary(program: &Sdfg) -> BTreeMap<String, Layout> {
    let weight_gradient =
        |name: &str| name.strip_prefix("d_").is_some_and(|of| program.containers.get(of).is_some_and(|c| c.role == Role::Parameter));
    let fixed = program.containers.values().filter(|c| match c.role {
        Role::Input | Role::Output => true,
        Role::Gradient => !weight_gradient(&c.name),
        Role::Parameter | Role::Transient => false,
    });
    fixed.map(|c| (c.name.clone(), Layout::row_major(c))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The gemm-fused program has no scores as a tensor, and its heads are found nonetheless.
    #[test]
    fn heads_are_found_in_every_program() -> Result<(), Box<dyn std::error::Error>> {
        let recipe = crate::load::load(&std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("mha.yaml"), &[])?;
        let programs = crate::pipeline::variants::programs::programs(&recipe, false)?;
        assert!(programs.variants.iter().any(|v| v.key.is(crate::pipeline::variants::VariantId::GemmFused)));
        for variant in &programs.variants {
            let order = |of: fn(&Sdfg) -> Vec<String>| -> Vec<String> {
                let mine = of(&variant.program).into_iter();
                mine.filter(|d| ["b", "j", "k", "h", "p"].contains(&d.as_str())).collect()
            };
            assert_eq!(order(pytorch_order), ["b", "h", "j", "k", "p"], "{}", variant.key);
            assert_eq!(order(flat_order), ["b", "j", "k", "h", "p"], "{}", variant.key);
        }
        Ok(())
    }
}
