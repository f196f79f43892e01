//! A copy of a container from one layout to another on a GPU.

use crate::device::CompileRequest;
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::maps::relayout::copy;
use crate::target::cuda::emit::{Chip, CudaSource};
use crate::target::cuda::maps;
use sdfg::config::KernelConfig;
use sdfg::{Container, Dtype, Layout};

/// The same kernel as CUDA: 16 bytes at a time where both layouts have the same innermost dim; else neighbouring threads read a line
/// of the source, and the block transposes what its rows have read on its way out.
///
/// # Errors
/// Layouts of other dims.
pub fn source(
    data: &str,
    dtype: Dtype,
    dims: &[(String, i64)],
    from: &Layout,
    to: &Layout,
) -> Result<(KernelSpec, CudaSource), KernelError> {
    let (spec, config) = kernel(data, dtype, dims, from, to)?;
    // A copy is the same on every chip: it has no partial results.
    let source = maps::source(&spec, &config, Chip::HOPPER)?;
    Ok((spec, source))
}

/// That kernel as a scope under a configuration.
///
/// # Errors
/// As [`source`].
pub fn kernel(
    data: &str,
    dtype: Dtype,
    dims: &[(String, i64)],
    from: &Layout,
    to: &Layout,
) -> Result<(KernelSpec, KernelConfig), KernelError> {
    // Whole numbers are copied as floating-point ones of as many bits: nothing is computed, and all bits arrive.
    let words = match dtype {
        Dtype::I64 => Dtype::F64,
        Dtype::I32 => Dtype::F32,
        other => other,
    };
    let (spec, config) = copy(data, words, dims, from, to)?;
    let width = (16 / dtype.bytes(1)).clamp(1, 8);
    let knobs = config.knobs.with("threads", 256).with("width", width);
    let knobs = match (from.innermost(), to.innermost()) {
        (Some(read), Some(written)) if read != written => {
            let rest = from.pieces.iter().map(|p| p.dim.as_str()).filter(|d| *d != written);
            let order: Vec<&str> = rest.chain([written]).collect();
            knobs.with("vector", read).with("order", order.join(",")).with("rows", 32).with("out", "turned")
        }
        _ => knobs.with("rows", 8),
    };
    Ok((spec, KernelConfig { knobs, ..config }))
}

/// That kernel as one that is compiled ahead.
///
/// # Errors
/// Layouts of other dims.
pub fn request(container: &Container, shape: &[usize], from: &Layout, to: &Layout) -> Result<CompileRequest, KernelError> {
    let dims: Vec<(String, i64)> = container.dims.iter().cloned().zip(shape.iter().map(|s| *s as i64)).collect();
    let (spec, config) = kernel(&container.name, container.dtype, &dims, from, to)?;
    Ok(CompileRequest::once(&spec, &config))
}
