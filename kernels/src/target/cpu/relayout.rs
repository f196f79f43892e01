//! A copy of a container from one layout to another: made like any other map kernel where neighbours stay neighbours, else by squares
//! that are transposed in registers.

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::maps::relayout::copy;
use crate::target::cpu::Toolchain;
use crate::target::cpu::emit::CSource;
use crate::target::cpu::executable::{MapKernel, of_text};
use crate::target::cpu::maps::compile;
use sdfg::{Dtype, Layout};

/// Lines that are walked beside one another, at least: a whole number of squares, and where these lie along a line of the target, as many
/// as that holds.
const STRIP: i64 = 16;
/// Bytes of a line of the caches.
const LINE: i64 = 64;

/// A kernel of two arguments: the container in the layout `from`, and the same one in the layout `to`.
///
/// # Errors
/// Layouts of other dims; a compiler that is missing or refuses.
pub fn relayout(
    data: &str,
    dtype: Dtype,
    dims: &[(String, i64)],
    from: &Layout,
    to: &Layout,
    toolchain: &Toolchain,
) -> Result<MapKernel, KernelError> {
    let split = crate::split_blocked_dims::plain(dims, [from, to]);
    let (dims, from, to) = split.as_ref().map_or((dims, from, to), |(dims, [from, to])| (dims.as_slice(), from, to));
    let (spec, config) = copy(data, dtype, dims, from, to)?;
    match (from.innermost(), to.innermost()) {
        (Some(read), Some(written)) if read != written && from.is_plain() && to.is_plain() => {
            of_text(&spec, squares(&spec, dtype, dims, [from, to])?, toolchain)
        }
        _ => compile(&spec, &config, toolchain),
    }
}

/// The C of a copy from one innermost dim to another.
fn squares(spec: &KernelSpec, dtype: Dtype, dims: &[(String, i64)], [from, to]: [&Layout; 2]) -> Result<CSource, KernelError> {
    let (names, shape): (Vec<String>, Vec<usize>) = dims.iter().map(|(dim, size)| (dim.clone(), *size as usize)).unzip();
    let strides = |layout: &Layout| {
        layout.strides(&names, &shape).ok_or_else(|| KernelError::Layout {
            kernel: spec.name.clone(),
            data: spec.name.clone(),
            layout: layout.to_string(),
            dims: names.clone(),
        })
    };
    let (source, target) = (strides(from)?, strides(to)?);
    let place = |layout: &Layout| names.iter().position(|dim| Some(dim.as_str()) == layout.innermost()).unwrap_or(0);
    let (columns, rows) = (place(from), place(to));
    // The lines that lie further apart are those that are walked along: few at a time, each as far as it goes.
    let along = target[columns] >= source[rows];
    let mut integers = vec![dims[columns].1, dims[rows].1, source[rows] as i64, target[columns] as i64, i64::from(along)];
    // As the target has them, so that workers write apart.
    let outer = to.pieces.iter().filter_map(|p| names.iter().position(|dim| *dim == p.dim)).filter(|n| ![columns, rows].contains(n));
    let outer: Vec<usize> = outer.collect();
    integers.push(outer.len() as i64);
    integers.extend(outer.iter().flat_map(|n| [dims[*n].1, source[*n] as i64, target[*n] as i64]));
    let size = dtype.bytes(1);
    let strip = STRIP.max(LINE / size as i64);
    let strips = (dims[if along { columns } else { rows }].1 + strip - 1) / strip;
    let text = format!("#define WORD uint{}_t\n#define SIZE {size}\n#define STRIP {strip}\n{}", 8 * size, include_str!("relayout.c"));
    Ok(CSource { points: strips * outer.iter().map(|n| dims[*n].1).product::<i64>(), text, integers, ..CSource::default() })
}
