//! A copy of a container from one layout to another, as a map kernel.

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use sdfg::config::{KernelConfig, Knobs};
use sdfg::{
    Bindings, Computation, Container, Dtype, Expr, Index, IndexKind, Item, Layout, Memlet, Role, Scalar, Scope, Sdfg, Tasklet, Unit,
};

/// The algorithm of copies, as records of relayouts name it: times of another algorithm are not taken for its times.
pub const COPIES: &str = "by squares, from memory";

/// The kernel and its loops: innermost along the target's innermost dim, next to them those along the source's.
pub fn copy(
    data: &str,
    dtype: Dtype,
    dims: &[(String, i64)],
    from: &Layout,
    to: &Layout,
) -> Result<(KernelSpec, KernelConfig), KernelError> {
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
