//! Blocked layouts: a kernel with a blocked dim is the kernel in which that dim is two dims, the blocks and the elements of a block.
//!
//! ```text
//! y[i] = x[i]            x in i%4         y[i,i.in] = x[i,i.in]        i over N/4, i.in over 4
//! ```
//!
//! All containers with that dim are split alike, and all layouts become plain: nothing that lowers or prints kernels knows of
//! blocks. A product that walks both indices as one reads panels where they lie (see [`crate::emit`]).
//!
//! Dims that one index walks are split together: keys walk along `k` what queries walk along `j`, and a part of a joined tensor lies whole
//! blocks behind the one before it.
//!
//! *Legal when* the block divides the dims, every index along them runs over the whole of its own, containers that have them are
//! subscripted there by such an index and a number that the block divides, and none of these is a view or viewed. A dim has one size of
//! blocks in a kernel.

use crate::config_space::TensorChoice;
use crate::error::KernelError;
use crate::kernel::{KernelSpec, unsupported};
use sdfg::config::{KernelConfig, Knobs};
use sdfg::layout::Piece;
use sdfg::memlet::Range;
use sdfg::{Computation, Dtype, Expr, Index, Item, Layout, Map, Memlet, Scalar, Scope, Storage, Unit};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Dims with their sizes.
type Dims = Vec<(String, i64)>;

/// Sizes of blocks by dim.
type Blocks = BTreeMap<String, u32>;

/// The name of the inner part of a dim or an index: the elements of a block.
fn within(name: &str) -> String {
    format!("{name}.in")
}

/// The blocks that the layouts of a configuration cut dims into.
fn blocks(spec: &KernelSpec, config: &KernelConfig) -> Result<Blocks, KernelError> {
    let mut found = Blocks::new();
    for (data, layout) in config.layouts.iter().filter(|(_, l)| l.pieces.iter().any(|p| p.block.is_some())) {
        let dims = spec.containers.get(data).map(|c| c.dims.clone()).unwrap_or_default();
        let refused =
            || KernelError::Layout { kernel: spec.name.clone(), data: data.clone(), layout: layout.to_string(), dims: dims.clone() };
        for (dim, block) in layout.blocks().filter(|_| layout.padding == 0).ok_or_else(refused)? {
            if *found.entry(dim.to_string()).or_insert(block) != block {
                return Err(unsupported(spec, format!("its containers have blocks of different sizes along `{dim}`")));
            }
        }
    }
    Ok(found)
}

/// A kernel and a configuration whose layouts are all plain, and that compute the same on the same memory.
///
/// # Errors
/// Layouts with blocks of blocks or of different sizes along a dim; kernels in which a blocked dim cannot be split.
pub fn split<'a>(spec: &'a KernelSpec, config: &'a KernelConfig) -> Result<(Cow<'a, KernelSpec>, Cow<'a, KernelConfig>), KernelError> {
    let (mut spec, mut config) = (Cow::Borrowed(spec), Cow::Borrowed(config));
    let mut left = blocks(&spec, &config)?;
    while let Some((dim, block)) = left.pop_first() {
        let dims = together(&spec, &dim);
        if dims.iter().any(|d| left.remove(d).is_some_and(|other| other != block)) {
            return Err(unsupported(&spec, format!("its containers have blocks of different sizes along what `{dim}` is walked with")));
        }
        let halves = halved(&spec, &dims, block)?;
        config = Cow::Owned(configured(&spec, &config, &dims, block));
        spec = Cow::Owned(halves);
    }
    Ok((spec, config))
}

/// Dims whose sizes must be multiples of a block under a configuration: those that it holds in blocks, and those walked with them.
///
/// # Errors
/// Layouts with blocks of blocks or of different sizes along a dim.
pub fn granules(spec: &KernelSpec, config: &KernelConfig) -> Result<Vec<(String, i64)>, KernelError> {
    let blocks = blocks(spec, config)?;
    Ok(blocks.iter().flat_map(|(dim, block)| together(spec, dim).into_iter().map(|dim| (dim, i64::from(*block)))).collect())
}

/// A container's dims, sizes and two of its layouts, with the dims split that either holds in blocks.
pub(crate) fn plain(dims: &[(String, i64)], layouts: [&Layout; 2]) -> Option<(Dims, [Layout; 2])> {
    let mut found = Blocks::new();
    for layout in layouts {
        for (dim, block) in layout.blocks()? {
            if *found.entry(dim.to_string()).or_insert(block) != block {
                return None;
            }
        }
    }
    let (mut dims, mut layouts) = (dims.to_vec(), layouts.map(Layout::clone));
    for (dim, block) in &found {
        let at = dims.iter().position(|(d, size)| d == dim && size % i64::from(*block) == 0)?;
        dims.splice(at..=at, [(dim.clone(), dims[at].1 / i64::from(*block)), (within(dim), i64::from(*block))]);
        layouts = layouts.map(|l| in_two(&l, dim));
    }
    Some((dims, layouts))
}

/// A layout over a dim that is two now.
fn in_two(layout: &Layout, dim: &str) -> Layout {
    let cut = layout.pieces.iter().any(|p| p.dim == dim && p.block.is_some());
    let named = |dim: &str| Piece { dim: dim.to_string(), block: None };
    let each = |piece: &Piece| match (piece.dim == dim, piece.block) {
        (false, _) => vec![piece.clone()],
        (true, Some(_)) => vec![named(&within(dim))],
        (true, None) if cut => vec![named(dim)],
        (true, None) => vec![named(dim), named(&within(dim))],
    };
    Layout { pieces: layout.pieces.iter().flat_map(each).collect(), padding: layout.padding }
}

/// The dims that some index walks along with this one, itself included.
fn together(spec: &KernelSpec, dim: &str) -> BTreeSet<String> {
    let mut dims = BTreeSet::from([dim.to_string()]);
    let Unit::Scope(scope) = &spec.unit else { return dims };
    let computations = scope.computations();
    loop {
        let before = dims.len();
        for (around, computation) in &computations {
            for memlet in computation.reads.iter().chain(&computation.writes).map(|(_, memlet)| memlet) {
                let container = spec.containers.get(&memlet.data);
                for (of, range) in container.iter().flat_map(|c| &c.dims).zip(&memlet.subset) {
                    let Range::At(at) = range else { continue };
                    let name = at.as_shifted_index(|name| around.iter().any(|i| i.name == name)).map(|(name, _)| name);
                    let index = name.and_then(|name| around.iter().rev().find(|i| i.name == name));
                    if let Some(index) = index.filter(|i| dims.contains(&i.dim) || dims.contains(of)) {
                        dims.extend([index.dim.clone(), of.clone()]);
                    }
                }
            }
        }
        if dims.len() == before {
            return dims;
        }
    }
}

fn configured(spec: &KernelSpec, config: &KernelConfig, dims: &BTreeSet<String>, block: u32) -> KernelConfig {
    let has = |data: &str, dim: &str| spec.containers.get(data).is_some_and(|c| c.dims.iter().any(|d| d == dim));
    let layout = |(data, layout): (&String, &Layout)| {
        let mine = dims.iter().filter(|dim| has(data, dim));
        (data.clone(), mine.fold(layout.clone(), |layout, dim| in_two(&layout, dim)))
    };
    let mut indices = BTreeSet::new();
    if let Unit::Scope(scope) = &spec.unit {
        along(scope, dims, &mut indices);
    }
    let list = |text: &str, each: &dyn Fn(&str) -> String| text.split(',').map(each).collect::<Vec<_>>().join(",");
    let knob = |(key, value): (&String, &String)| {
        let value = match key.as_str() {
            "order" => list(value, &|i| if indices.contains(i) { format!("{i},{}", within(i)) } else { i.to_string() }),
            "vector" => list(value, &|i| if indices.contains(i) { within(i) } else { i.to_string() }),
            "tile" => list(value, &|part| match part.split_once(':') {
                // Tiles are made of whole blocks.
                Some((i, size)) if indices.contains(i) => match size.parse::<u32>() {
                    Ok(size) => format!("{i}:{},{}:{block}", size.div_ceil(block), within(i)),
                    Err(_) => part.to_string(),
                },
                _ => part.to_string(),
            }),
            _ => value.clone(),
        };
        (key.clone(), value)
    };
    KernelConfig { layouts: config.layouts.iter().map(layout).collect(), knobs: Knobs(config.knobs.0.iter().map(knob).collect()) }
}

/// Names of the indices along some dims.
fn along(scope: &Scope, dims: &BTreeSet<String>, into: &mut BTreeSet<String>) {
    into.extend(scope.map.indices.iter().filter(|i| dims.contains(&i.dim)).map(|i| i.name.clone()));
    for item in &scope.body {
        if let Item::Scope(inner) = item {
            along(inner, dims, into);
        }
    }
}

/// Where dims are split in a kernel.
struct Split<'a> {
    spec: &'a KernelSpec,
    /// With the number of their blocks.
    dims: BTreeMap<&'a str, i64>,
    block: i64,
}

/// The kernel with some dims split in two.
fn halved(spec: &KernelSpec, dims: &BTreeSet<String>, block: u32) -> Result<KernelSpec, KernelError> {
    let block = i64::from(block);
    let blocks = dims.iter().map(|dim| Ok((dim.as_str(), spec.size(dim)? as i64))).collect::<Result<BTreeMap<_, _>, KernelError>>()?;
    let (true, Unit::Scope(scope)) = (blocks.values().all(|size| size % block == 0), &spec.unit) else {
        return Err(unsupported(spec, format!("blocks of {block} do not divide {dims:?}, walked together in one scope")));
    };
    let blocks: BTreeMap<&str, i64> = blocks.into_iter().map(|(dim, size)| (dim, size / block)).collect();
    let has = |data: &str| spec.containers.get(data).is_some_and(|c| c.dims.iter().any(|d| dims.contains(d)));
    if let Some(view) = spec.containers.values().find(|c| c.view.as_ref().is_some_and(|v| has(&c.name) || has(&v.of))) {
        return Err(unsupported(spec, format!("`{}` is a view, and {dims:?} is held in blocks", view.name)));
    }
    let split = Split { spec, dims: blocks, block };
    let mut halves = KernelSpec { unit: Unit::Scope(split.scope(scope, &BTreeSet::new())?), ..spec.clone() };
    for dim in dims {
        let two = [(dim.clone(), split.dims[dim.as_str()]), (within(dim), block)];
        halves.extents.extend(two.iter().map(|(d, n)| (d.clone(), Expr::Int(*n))));
        halves.dims.extend(two);
    }
    for container in halves.containers.values_mut() {
        let two = |d: &String| if dims.contains(d) { vec![d.clone(), within(d)] } else { vec![d.clone()] };
        container.dims = container.dims.iter().flat_map(two).collect();
    }
    Ok(halves)
}

impl Split<'_> {
    fn scope(&self, scope: &Scope, around: &BTreeSet<String>) -> Result<Scope, KernelError> {
        let mut split = around.clone();
        let mut indices = Vec::new();
        for index in &scope.map.indices {
            // An index of the same name hides the one around.
            split.remove(&index.name);
            let Some(blocks) = self.dims.get(index.dim.as_str()).copied() else {
                indices.push(index.clone());
                continue;
            };
            let count = index.count().eval(&self.spec.sizes).ok();
            if index.start != Expr::Int(0) || index.step != Expr::Int(1) || count != Some(self.block * blocks) {
                return Err(unsupported(
                    self.spec,
                    format!("`{}` runs over a part of `{}`, which is held in blocks", index.name, index.dim),
                ));
            }
            indices.push(Index::over(&index.name, &index.dim, Expr::Int(blocks), index.kind));
            indices.push(Index::over(within(&index.name), within(&index.dim), Expr::Int(self.block), index.kind));
            split.insert(index.name.clone());
        }
        let mut body = Vec::new();
        for item in &scope.body {
            body.push(match item {
                Item::Scope(inner) => Item::Scope(self.scope(inner, &split)?),
                Item::Tasklet(computation) => Item::Tasklet(self.computation(computation, &split)?),
                Item::Operation(o) => return Err(unsupported(self.spec, format!("`{}` inside a scope is an operation", o.name))),
            });
        }
        Ok(Scope { map: Map { indices, ..scope.map.clone() }, body })
    }

    fn computation(&self, computation: &Computation, split: &BTreeSet<String>) -> Result<Computation, KernelError> {
        let one = |i: &String| (i.clone(), Expr::sym(i.as_str()) * Expr::Int(self.block) + Expr::sym(within(i).as_str()));
        let with: BTreeMap<String, Expr> = split.iter().map(one).collect();
        let each = |memlets: &[(String, Memlet)]| -> Result<Vec<(String, Memlet)>, KernelError> {
            memlets.iter().map(|(connector, memlet)| Ok((connector.clone(), self.memlet(memlet, split)?))).collect()
        };
        let mut found = Computation { reads: each(&computation.reads)?, writes: each(&computation.writes)?, ..computation.clone() };
        for (_, code) in &mut found.tasklet.code {
            *code = Scalar::substitute(code, &with);
        }
        Ok(found)
    }

    fn memlet(&self, memlet: &Memlet, split: &BTreeSet<String>) -> Result<Memlet, KernelError> {
        let container = self.spec.containers.get(&memlet.data);
        let unknown = || KernelError::UnknownContainer { kernel: self.spec.name.clone(), data: memlet.data.clone() };
        let dims = &container.ok_or_else(unknown)?.dims;
        let mut subset = Vec::new();
        for (dim, range) in dims.iter().zip(&memlet.subset) {
            let Range::At(at) = range else { return Err(unsupported(self.spec, format!("the memlet {memlet} moves a range"))) };
            match (self.dims.contains_key(dim.as_str()), at.as_shifted_index(|i| split.contains(i))) {
                (true, Some((index, offset))) => {
                    let number = offset.eval(&self.spec.sizes).ok().filter(|offset| offset % self.block == 0);
                    let Some(number) = number else {
                        let block = self.block;
                        return Err(unsupported(self.spec, format!("blocks of {block} do not divide the offset of {memlet}")));
                    };
                    let block = Expr::sym(index) + Expr::Int(number / self.block);
                    subset.extend([block, Expr::sym(within(index).as_str())].map(Range::At));
                }
                (false, _) if at.symbols().iter().all(|s| !split.contains(s)) => subset.push(range.clone()),
                _ => return Err(unsupported(self.spec, format!("`{dim}` of {memlet} is not walked as {:?} is split", self.dims.keys()))),
            }
        }
        Ok(Memlet { subset, ..memlet.clone() })
    }
}

/// What a tensor in panels counts more than in a plain order before anything is measured: it pays only where several kernels
/// agree on it, so each looks at its plain orders first.
pub(crate) const LATER: f64 = 1.1;

/// Whether a dim can be held in blocks in this kernel.
pub(crate) fn splits(spec: &KernelSpec, dim: &str, block: u32) -> bool {
    halved(spec, &together(spec, dim), block).is_ok()
}

/// The layouts in panels in which a kernel can hold an argument: blocks of `width` columns, as many as products take at once,
/// along its last dim, of matrices along the first as well. Only of f32: what is narrower is packed in pairs anyway.
pub fn panels(spec: &KernelSpec, data: &str, width: usize) -> Vec<Layout> {
    let Some(container) = spec.containers.get(data).filter(|c| c.dtype == Dtype::F32 && c.storage == Storage::Heap) else { return vec![] };
    let candidates = match container.dims.as_slice() {
        [first, last] => vec![last, first],
        [.., last] if container.dims.len() > 2 => vec![last],
        _ => vec![],
    };
    let fits = |dim: &&String| {
        spec.size(dim).is_ok_and(|n| n % width == 0 && n >= 2 * width) && halved(spec, &together(spec, dim), width as u32).is_ok()
    };
    candidates.into_iter().filter(fits).filter_map(|dim| Layout::panels(&container.dims, dim, width as u32)).collect()
}

/// The choices of a tensor with its layouts in panels.
pub(crate) fn with_panels(spec: &KernelSpec, choice: TensorChoice, width: usize) -> TensorChoice {
    let mut layouts = choice.layouts;
    layouts.extend(panels(spec, &choice.data, width));
    TensorChoice { layouts, ..choice }
}
