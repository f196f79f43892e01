//! A contraction on its own as a tile kernel.

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use sdfg::{Sdfg, Unit};

/// The scope that a contraction means, over windows or not.
///
/// # Errors
/// Anything but an operation that expands into one scope.
pub fn expanded(spec: &KernelSpec) -> Result<KernelSpec, KernelError> {
    let unsupported = |what: String| KernelError::Unsupported { kernel: spec.name.clone(), what };
    let Unit::Operation(operation) = &spec.unit else { return Err(unsupported("it is no operation".into())) };
    let mut program = Sdfg::new("contraction");
    program.dims = spec.extents.clone();
    program.sizes = spec.sizes.clone();
    program.containers = spec.containers.clone();
    // Tile kernels round a sum where they store it: no container stands between.
    for out in &operation.outputs {
        if let Some(container) = program.containers.get_mut(&out.data) {
            container.dtype = container.dtype.accumulator();
        }
    }
    let expansion = operation.expand(&program).map_err(|e| unsupported(e.to_string()))?;
    let [scope] = <[_; 1]>::try_from(expansion.scopes).map_err(|_| unsupported("it means more than one scope".into()))?;
    Ok(KernelSpec { unit: Unit::Scope(scope), ..spec.clone() })
}
