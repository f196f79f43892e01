//! The largest magnitude that a program's kernels can hold.

use sdfg::{Container, Dtype};

/// The largest magnitude of any value that kernels compute: that of f32, unless a container stores f64, in which case kernels compute in
/// f64.
pub fn largest_finite<'a>(containers: impl IntoIterator<Item = &'a Container>) -> f64 {
    let wide = containers.into_iter().any(|c| c.dtype == Dtype::F64);
    if wide { f64::INFINITY } else { f32::MAX.into() }
}
