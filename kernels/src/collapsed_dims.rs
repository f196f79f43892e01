//! Dims that always stand together, as one: a kernel that everywhere takes `x[…,c,r,…]` at all of its `c` and `r` is, where they lie
//! together in memory too, the same with one dim `c.r`.
//!
//! Heads whose halves are turned against each other are declared so, and attention does not care.

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use sdfg::config::KernelConfig;
use sdfg::layout::Piece;
use sdfg::{Container, Expr, Index, Item, Layout, Range, Scalar, Scope, Unit};
use std::collections::{BTreeMap, BTreeSet};

/// Two neighbouring dims, and what they are together.
#[derive(Clone, Debug, PartialEq)]
struct Pair {
    outer: String,
    inner: String,
    whole: String,
}

/// A kernel of fewer dims that does the same.
#[derive(Clone, Debug)]
pub struct CollapsedDims {
    pub spec: KernelSpec,
    /// In the order in which they were folded: one may be half of the next.
    pairs: Vec<Pair>,
}

/// The knob that names the collapsed dims, `outer.inner`, separated by commas.
pub const FOLD: &str = "fold";

impl CollapsedDims {
    /// The kernel as it is; then with each pair of dims folded that can be; then, of more than one, with all that can be at a time.
    pub fn ways(spec: &KernelSpec) -> Vec<Self> {
        let plain = CollapsedDims { spec: spec.clone(), pairs: Vec::new() };
        let singly: Vec<CollapsedDims> = candidates(spec).iter().filter_map(|pair| plain.with(pair)).collect();
        let mut all = plain.clone();
        while let Some(more) = candidates(&all.spec).iter().find_map(|pair| all.with(pair)) {
            all = more;
        }
        let all = Some(all).filter(|all| all.pairs.len() > 1);
        [plain].into_iter().chain(singly).chain(all).collect()
    }

    /// The kernel as a configuration has it.
    ///
    /// # Errors
    /// Pairs that are none of the kernel's, or cannot be folded.
    pub fn under(spec: &KernelSpec, config: &KernelConfig) -> Result<Self, KernelError> {
        let mut folded = CollapsedDims { spec: spec.clone(), pairs: Vec::new() };
        for name in config.knobs.get(FOLD).iter().flat_map(|names| names.split(',')) {
            let pair = candidates(&folded.spec).into_iter().find(|pair| pair.whole == name);
            folded = pair.and_then(|pair| folded.with(&pair)).ok_or_else(|| KernelError::Knob {
                kernel: spec.name.clone(),
                key: FOLD.into(),
                value: name.into(),
                allowed: "outer.inner, of two dims that always stand together".into(),
            })?;
        }
        Ok(folded)
    }

    /// What the knob says; `None` where nothing is folded.
    pub fn knob(&self) -> Option<String> {
        let names: Vec<&str> = self.pairs.iter().map(|pair| pair.whole.as_str()).collect();
        (!names.is_empty()).then(|| names.join(","))
    }

    fn with(&self, pair: &Pair) -> Option<Self> {
        let spec = fold(&self.spec, pair)?;
        Some(CollapsedDims { spec, pairs: self.pairs.iter().chain([pair]).cloned().collect() })
    }

    /// A layout of the kernel's own dims as one of the folded ones; `None` where two of a pair do not lie together.
    pub fn layout(&self, layout: &Layout) -> Option<Layout> {
        // Padding would be within the collapsed dim.
        if layout.padding > 0 && !self.pairs.is_empty() {
            return None;
        }
        let mut folded = layout.clone();
        for Pair { outer, inner, whole } in &self.pairs {
            let Some(at) = folded.pieces.iter().position(|p| p.dim == *outer) else { continue };
            let whole = Piece { dim: whole.clone(), block: None };
            match &folded.pieces[at..] {
                [a, b, ..] if b.dim == *inner && a.block.is_none() && b.block.is_none() => drop(folded.pieces.splice(at..at + 2, [whole])),
                _ => return None,
            }
        }
        Some(folded)
    }

    /// A layout of the folded dims as one of the kernel's own.
    pub fn unfolded(&self, layout: &Layout) -> Layout {
        let mut own = layout.clone();
        for Pair { outer, inner, whole } in self.pairs.iter().rev() {
            if let Some(at) = own.pieces.iter().position(|p| p.dim == *whole) {
                let both = [outer, inner].map(|dim| Piece { dim: dim.clone(), block: None });
                own.pieces.splice(at..=at, both);
            }
        }
        own
    }

    /// A configuration of the kernel as one of the folded kernel; `None` where two of a pair do not lie together.
    pub fn config(&self, config: &KernelConfig) -> Option<KernelConfig> {
        let layouts = config.layouts.iter().map(|(data, layout)| Some((data.clone(), self.layout(layout)?)));
        Some(KernelConfig { layouts: layouts.collect::<Option<_>>()?, knobs: config.knobs.clone() })
    }
}

/// Dims that are neighbours in each container that has one of them.
fn candidates(spec: &KernelSpec) -> Vec<Pair> {
    let dims = || spec.containers.values().map(|c| &c.dims);
    let mut found: Vec<Pair> = Vec::new();
    for (outer, inner) in dims().flat_map(|dims| dims.iter().zip(dims.iter().skip(1))) {
        let pair = Pair { outer: outer.clone(), inner: inner.clone(), whole: format!("{outer}.{inner}") };
        let together = |dims: &Vec<String>| pair.at(dims).is_some() || !(dims.contains(outer) || dims.contains(inner));
        if !found.contains(&pair) && dims().all(together) {
            found.push(pair);
        }
    }
    found
}

impl Pair {
    /// Where the two stand.
    fn at(&self, dims: &[String]) -> Option<usize> {
        dims.windows(2).position(|two| two[0] == self.outer && two[1] == self.inner)
    }
}

/// The indices that two dims are taken by: the one of the outer dim, and the one of the inner.
type Indices = BTreeMap<String, String>;

fn fold(spec: &KernelSpec, pair: &Pair) -> Option<KernelSpec> {
    let Unit::Scope(scope) = &spec.unit else { return None };
    if spec.containers.values().any(|c| c.view.is_some() && pair.at(&c.dims).is_some()) {
        return None;
    }
    let mut indices = Indices::new();
    if !subscripts(scope, spec, pair, &mut indices) || indices.is_empty() {
        return None;
    }
    // An index is in one pair alone.
    let all: BTreeSet<&String> = indices.iter().flat_map(|(outer, inner)| [outer, inner]).collect();
    if all.len() < 2 * indices.len() {
        return None;
    }
    let size = |dim: &String| spec.extents.get(dim).cloned().unwrap_or_else(|| Expr::sym(dim.as_str()));
    let whole = size(&pair.outer) * size(&pair.inner);
    let unit = Unit::Scope(folded(scope, spec, pair, &indices, &whole)?);
    let mut extents = spec.extents.clone();
    extents.insert(pair.whole.clone(), whole);
    let container = |(data, container): (&String, &Container)| {
        let mut container = container.clone();
        if let Some(at) = pair.at(&container.dims) {
            container.dims.splice(at..at + 2, [pair.whole.clone()]);
        }
        (data.clone(), container)
    };
    let containers = spec.containers.iter().map(container).collect();
    KernelSpec { unit, extents, containers, ..spec.clone() }.with_sizes(&spec.sizes).ok()
}

/// Collects which indices stand together; false where the two dims are taken by anything but plain indices.
fn subscripts(scope: &Scope, spec: &KernelSpec, pair: &Pair, found: &mut Indices) -> bool {
    scope.body.iter().all(|item| match item {
        Item::Scope(scope) => subscripts(scope, spec, pair, found),
        Item::Operation(_) => false,
        Item::Tasklet(computation) => computation.reads.iter().chain(&computation.writes).all(|(_, memlet)| {
            let Some(at) = spec.containers.get(&memlet.data).and_then(|c| pair.at(&c.dims)) else { return true };
            match memlet.subset.get(at..at + 2) {
                Some([Range::At(Expr::Sym(outer)), Range::At(Expr::Sym(inner))]) => {
                    found.insert(outer.clone(), inner.clone()).is_none_or(|known| known == *inner)
                }
                _ => false,
            }
        }),
    })
}

/// The scope with one index in the place of two; `None` where one of them is anything else but a subscript, or runs over a part.
fn folded(scope: &Scope, spec: &KernelSpec, pair: &Pair, indices: &Indices, size: &Expr) -> Option<Scope> {
    let together = |outer: &str, inner: &str| format!("{outer}.{inner}");
    let apart = |expr: &Expr| expr.symbols().iter().all(|s| indices.iter().all(|(outer, inner)| s != outer && s != inner));
    let mut scope = scope.clone();
    let mut own: Vec<Index> = Vec::new();
    for index in &scope.map.indices {
        let is_whole = |index: &Index, dim: &String| {
            let extent = spec.extents.get(dim).cloned().unwrap_or_else(|| Expr::sym(dim.as_str()));
            let value = |e: &Expr| e.eval(&spec.sizes).ok();
            index.start == Expr::Int(0)
                && index.step == Expr::Int(1)
                && value(&index.stop).is_some()
                && value(&index.stop) == value(&extent)
        };
        if let Some(inner) = indices.get(&index.name) {
            let inner = scope.map.indices.iter().find(|i| i.name == *inner)?;
            if inner.kind != index.kind || !is_whole(index, &pair.outer) || !is_whole(inner, &pair.inner) {
                return None;
            }
            own.push(Index::over(together(&index.name, &inner.name), pair.whole.clone(), size.clone(), index.kind));
        } else if indices.values().any(|inner| *inner == index.name) {
            // It goes with an outer one of the same map.
            let outer = indices.iter().find(|(_, inner)| **inner == index.name)?.0;
            scope.map.indices.iter().find(|i| i.name == *outer)?;
        } else if [&index.start, &index.stop, &index.step].into_iter().all(apart) {
            own.push(index.clone());
        } else {
            return None;
        }
    }
    scope.map.indices = own;
    for item in &mut scope.body {
        match item {
            Item::Scope(inner) => *inner = folded(inner, spec, pair, indices, size)?,
            Item::Operation(_) => return None,
            Item::Tasklet(computation) => {
                for (_, memlet) in computation.reads.iter_mut().chain(&mut computation.writes) {
                    if let Some(at) = spec.containers.get(&memlet.data).and_then(|c| pair.at(&c.dims))
                        && let Some([Range::At(Expr::Sym(outer)), Range::At(Expr::Sym(inner))]) = memlet.subset.get(at..at + 2)
                    {
                        let both = Range::At(Expr::sym(together(outer, inner).as_str()));
                        memlet.subset.splice(at..at + 2, [both]);
                    }
                    let plain = memlet.subset.iter().all(|range| match range {
                        Range::At(at) => apart(at),
                        Range::Span { start, stop, step } => [start, stop, step].into_iter().all(apart),
                    });
                    if !plain {
                        return None;
                    }
                }
                let mut numbers = true;
                for (_, code) in &computation.tasklet.code {
                    code.walk(&mut |part| match part {
                        Scalar::Index(expr) | Scalar::Keep { element: expr, .. } => numbers &= apart(expr),
                        _ => {}
                    });
                }
                if !numbers {
                    return None;
                }
            }
        }
    }
    Some(scope)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sdfg::node::{Computation, Tasklet};
    use sdfg::text::print_scope;
    use sdfg::{Dtype, IndexKind, Map, Memlet, Role, Sdfg};

    /// `out = code` over c, r, g, of a tensor `x` read at `at`.
    fn kernel(out: &[&str], code: Scalar, at: &[&str]) -> KernelSpec {
        let mut program = Sdfg::new("test");
        for (dim, size) in [("c", 2), ("r", 3), ("g", 5)] {
            program.dims.insert(dim.into(), Expr::Int(size));
        }
        program.add_container(Container::new("x", &["c", "r", "g"], Dtype::F32, Role::Input));
        program.add_container(Container::new("y", out, Dtype::F32, Role::Output));
        let memlet = |data: &str, at: &[&str]| Memlet::at(data, at.iter().map(|i| Expr::sym(*i)).collect::<Vec<_>>());
        let index = |name: &str, size: i64| Index::over(name, name, Expr::Int(size), IndexKind::Independent);
        let tasklet = Tasklet { name: "y".into(), code: vec![("out".into(), code)], operator: "y".into(), origin: None };
        let computation =
            Computation { tasklet, reads: vec![("x".into(), memlet("x", at))], writes: vec![("out".into(), memlet("y", out))] };
        let map = Map { label: "y".into(), indices: vec![index("c", 2), index("g", 5), index("r", 3)] };
        let scope = Scope { map, body: vec![Item::Tasklet(computation)] };
        KernelSpec::new(&program, &Unit::Scope(scope)).expect("a kernel")
    }

    fn texts(spec: &KernelSpec) -> Vec<String> {
        let scope = |folded: &CollapsedDims| if let Unit::Scope(scope) = &folded.spec.unit { print_scope(scope) } else { String::new() };
        CollapsedDims::ways(spec).iter().map(scope).collect()
    }

    #[test]
    fn dims_that_stand_together_are_one() {
        let spec = kernel(&["c", "r"], Scalar::input("x"), &["c", "r", "g"]);
        assert_eq!(texts(&spec), ["map c=0:2, g=0:5, r=0:3 { y[c, r] = x[c, r, g] }\n", "map c.r=0:6, g=0:5 { y[c.r] = x[c.r, g] }\n"],);
        let knobs: Vec<Option<String>> = CollapsedDims::ways(&spec).iter().map(CollapsedDims::knob).collect();
        assert_eq!(knobs, [None, Some("c.r".into())]);
        let folded = CollapsedDims::ways(&spec).remove(1);
        assert_eq!(folded.spec.shape("x").expect("a shape"), [6, 5]);
        // Layouts are the same where the two lie together, and none of the folded kernel's where they do not.
        let own = Layout::of(&["g", "c", "r"]);
        assert_eq!(folded.layout(&own), Some(Layout::of(&["g", "c.r"])));
        assert_eq!(folded.unfolded(&Layout::of(&["g", "c.r"])), own);
        assert_eq!(folded.layout(&Layout::of(&["r", "c", "g"])), None);
        assert_eq!(folded.layout(&Layout::of(&["c", "g", "r"])), None);
    }

    #[test]
    fn what_is_taken_apart_stays_apart() {
        let number = Scalar::input("x") * Scalar::Index(Expr::sym("c"));
        // An index as a number; one that goes without the other; the two the other way round.
        for spec in [
            kernel(&["c", "r", "g"], number, &["c", "r", "g"]),
            kernel(&["c", "g"], Scalar::input("x"), &["c", "r", "g"]),
            kernel(&["r", "c"], Scalar::input("x"), &["c", "r", "g"]),
        ] {
            let ways = CollapsedDims::ways(&spec);
            assert!(ways.iter().all(|way| way.knob().is_none_or(|knob| !knob.contains("c.r"))), "{:?}", texts(&spec));
        }
        let config = KernelConfig { layouts: BTreeMap::new(), knobs: sdfg::config::Knobs::default().with(FOLD, "r.c") };
        let spec = kernel(&["c", "r"], Scalar::input("x"), &["c", "r", "g"]);
        assert!(matches!(CollapsedDims::under(&spec, &config), Err(KernelError::Knob { key, .. }) if key == FOLD));
    }
}
