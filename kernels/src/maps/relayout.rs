//! A copy of a container from one layout to another: made like any other map kernel where neighbours stay neighbours, else by squares
//! that are transposed in registers.

use super::cuda::cuda_source;
use super::executable::{MapKernel, compile, of_text};
use crate::compile::Toolchain;
use crate::emit::c;
use crate::emit::cuda::{Chip, CudaSource};
use crate::error::KernelError;
use crate::kernel::KernelSpec;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{
    Bindings, Computation, Container, Dtype, Expr, Index, IndexKind, Item, Layout, Memlet, Role, Scalar, Scope, Sdfg, Tasklet, Unit,
};

/// Which way of copying records of relayouts are of: others have other times.
pub const COPIES: &str = "by squares, from memory";
/// Lines that are walked beside one another, as a whole number of squares.
const STRIP: i64 = 16;

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
fn squares(spec: &KernelSpec, dtype: Dtype, dims: &[(String, i64)], [from, to]: [&Layout; 2]) -> Result<c::CSource, KernelError> {
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
    let strips = (dims[if along { columns } else { rows }].1 + STRIP - 1) / STRIP;
    let size = dtype.bytes(1);
    let text = format!("#define WORD uint{}_t\n#define SIZE {size}\n#define STRIP {STRIP}\n{}", 8 * size, include_str!("relayout.c"));
    Ok(c::CSource { points: strips * outer.iter().map(|n| dims[*n].1).product::<i64>(), text, integers, ..c::CSource::default() })
}

/// The same kernel as CUDA: 16 bytes at a time where both layouts have the same innermost dim; else neighbouring threads read a line
/// of the source, and the block transposes what its rows have read on its way out.
///
/// # Errors
/// Layouts of other dims.
pub fn cuda_relayout(
    data: &str,
    dtype: Dtype,
    dims: &[(String, i64)],
    from: &Layout,
    to: &Layout,
) -> Result<(KernelSpec, CudaSource), KernelError> {
    let (spec, config) = cuda_copy(data, dtype, dims, from, to)?;
    // A copy is the same on every chip: it has no partial results.
    let source = cuda_source(&spec, &config, Chip::HOPPER)?;
    Ok((spec, source))
}

/// That kernel as a scope under a configuration.
///
/// # Errors
/// As [`cuda_relayout`].
pub fn cuda_copy(
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

/// The kernel and its loops: innermost along the target's innermost dim, next to them those along the source's.
fn copy(data: &str, dtype: Dtype, dims: &[(String, i64)], from: &Layout, to: &Layout) -> Result<(KernelSpec, KernelConfig), KernelError> {
    let mut program = Sdfg::new("relayout");
    for (dim, size) in dims {
        program.dims.insert(dim.clone(), Expr::Int(*size));
    }
    let names: Vec<&str> = dims.iter().map(|(d, _)| d.as_str()).collect();
    let (source, target) = (format!("{data}.from"), format!("{data}.to"));
    for (name, role) in [(&source, Role::Input), (&target, Role::Output)] {
        program.add_container(Container::new(name, &names, dtype, role));
    }
    let point = |name: &str| Memlet::at(name, names.iter().map(|d| Expr::sym(*d)));
    let tasklet = Tasklet {
        name: format!("relayout {data}"),
        code: vec![("out".into(), Scalar::input("x"))],
        operator: "relayout".into(),
        origin: None,
    };
    let body = Computation { tasklet, reads: vec![("x".into(), point(&source))], writes: vec![("out".into(), point(&target))] };
    let indices = dims.iter().map(|(d, size)| Index::over(d, d, Expr::Int(*size), IndexKind::Independent)).collect();
    let unit = Unit::Scope(Scope::new(format!("{data}.relayout"), indices, vec![Item::Tasklet(body)]));
    program.sizes = Bindings::new();
    let spec = KernelSpec::new(&program, &unit)?;
    let mut order: Vec<&str> = to.pieces.iter().map(|p| p.dim.as_str()).collect();
    let same = from.innermost() == to.innermost();
    order.sort_by_key(|d| !same && from.innermost() == Some(*d));
    let mut knobs = Knobs::default().with("order", order.join(","));
    if let Some(inner) = to.innermost() {
        knobs = knobs.with("vector", inner);
    }
    Ok((spec, KernelConfig { layouts: [(source, from.clone()), (target, to.clone())].into(), knobs }))
}
