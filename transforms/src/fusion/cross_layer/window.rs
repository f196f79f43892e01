//! Regions of intermediates: which elements of each container one outer point needs, by memlet propagation from consumers to producers.
//!
//! ```text
//! y[p] += k[r]·u[2p+r-1 else 0],  u[h] = relu(t[h]),  t[h] += w·x[h]        point p needs u[2p-1 : 2p+2]
//!                                                 →   u.here[i], i=0:3, stands for u[2p+i-1]; outside the picture it is 0, not relu(t)
//! ```
//!
//! Readers of a container need a hull of ranges, each `stride·p + first : stride·p + first + extent`. The dim of the container becomes two:
//! the outer index `p`, and an index of the window. What writes the container is computed at all points of the window; where a reader
//! declares a fill, points outside the container hold that fill. That is shape deduction and transfer of "Deep Fusion" with the clamping
//! of a padded layer, and the halo of "Cross-Layer Data Reuse".

use crate::fusion::iteration_space::Statement;
use crate::refusal::Reason;
use sdfg::scalar::Binary;
use sdfg::{Bindings, Computation, Container, Expr, Fill, Index, IndexKind, Memlet, Range, Scalar, Sdfg};
use std::collections::{BTreeMap, BTreeSet};

/// A sum of indices with whole coefficients and a constant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Affine {
    pub terms: BTreeMap<String, i64>,
    pub constant: i64,
}

impl Affine {
    /// `None` where the expression is no such sum over `indices`.
    pub fn of(e: &Expr, indices: &BTreeSet<String>) -> Option<Self> {
        let (mut terms, mut zero) = (BTreeMap::new(), BTreeMap::new());
        for name in e.symbols().into_iter().filter(|name| indices.contains(name)) {
            let slope = sdfg::propagate::slope(e, &name)?;
            zero.insert(name.clone(), Expr::Int(0));
            if slope != 0 {
                terms.insert(name, slope);
            }
        }
        Some(Affine { terms, constant: e.substitute(&zero).eval(&Bindings::new()).ok()? })
    }

    pub fn expr(&self) -> Expr {
        let term = |(name, slope): (&String, &i64)| Expr::Int(*slope) * Expr::sym(name.as_str());
        let sum = self.terms.iter().map(term).fold(Expr::Int(0), |a, b| a + b);
        if self.constant < 0 { sum - Expr::Int(-self.constant) } else { sum + Expr::Int(self.constant) }
    }

    fn is_plain(&self) -> bool {
        self.constant == 0 && self.terms.len() == 1 && self.terms.values().all(|slope| *slope == 1)
    }
}

/// The elements of one dim of a container that an outer point needs: `stride·outer + first + 0:extent`.
#[derive(Clone, Debug, PartialEq)]
pub struct DimWindow {
    pub data: String,
    pub dim: usize,
    /// The outer index, and by how many elements the window moves with it.
    pub outer: String,
    pub stride: i64,
    pub first: i64,
    pub extent: Expr,
    /// Elements of the whole dim.
    pub size: Expr,
    /// The index that walks the window.
    pub index: String,
}

/// Statements over common outer indices, with the windows of what they hand on.
pub(super) struct Windowed {
    pub statements: Vec<Statement>,
    pub windows: Vec<DimWindow>,
    /// Containers that sums which are masked afterwards are made in.
    pub containers: Vec<Container>,
    /// Dims that indices of windows run along.
    pub dims: Vec<(String, Expr)>,
    /// Containers that are computed outside the picture, too, for readers whose results there are not used.
    beyond: BTreeSet<String>,
}

fn point(memlet: &Memlet, data: &str) -> Result<Vec<Expr>, Reason> {
    let of = |range: &Range| if let Range::At(e) = range { Some(e.clone()) } else { None };
    memlet
        .subset
        .iter()
        .map(of)
        .collect::<Option<_>>()
        .ok_or_else(|| Reason::Window { data: data.into(), why: format!("the memlet {memlet} moves a range and no single element") })
}

fn names(statement: &Statement) -> BTreeSet<String> {
    statement.indices.iter().map(|i| i.name.clone()).collect()
}

/// Gives every container that statements hand on the window that an outer point needs of it. `outer` are the indices of what leaves.
pub(super) fn windowed(statements: Vec<Statement>, outer: &BTreeSet<String>, program: &mut Sdfg) -> Result<Windowed, Reason> {
    let mut found = Windowed { statements, windows: vec![], containers: vec![], dims: vec![], beyond: BTreeSet::new() };
    let mut done: BTreeSet<String> = BTreeSet::new();
    // The last writer first: by then all its readers have their final subscripts.
    loop {
        let handed = |s: &Statement| {
            s.computation.writes.iter().map(|(_, m)| m.data.clone()).find(|data| {
                let read = found.statements.iter().any(|o| o.computation.reads.iter().any(|(_, m)| m.data == *data));
                read && !done.contains(data)
            })
        };
        let Some((at, data)) = found.statements.iter().enumerate().rev().find_map(|(n, s)| Some((n, handed(s)?))) else { break };
        found.give(at, &data, outer, program)?;
        done.insert(data);
    }
    Ok(found)
}

/// What one reader needs along a dim.
struct Need {
    outer: String,
    stride: i64,
    first: i64,
    /// Elements from the first to the last: a sum of counts of indices, and a number.
    counts: Expr,
    more: i64,
}

impl Windowed {
    fn give(&mut self, at: usize, data: &str, outer: &BTreeSet<String>, program: &mut Sdfg) -> Result<(), Reason> {
        let refuse = |why: String| Reason::Window { data: data.into(), why };
        let writers = self.statements.iter().filter(|s| s.computation.writes.iter().any(|(_, m)| m.data == data)).count();
        if writers > 1 {
            return Err(Reason::SeveralWriters { data: data.into() });
        }
        let written = {
            let (_, memlet) = self.statements[at]
                .computation
                .writes
                .iter()
                .find(|(_, m)| m.data == data)
                .ok_or_else(|| refuse("nothing writes it".into()))?;
            point(memlet, data)?
        };
        // By dim: the forms of all readers.
        let mut fills: Vec<Fill> = Vec::new();
        let mut needs: Vec<Vec<(Affine, Option<Need>)>> = (0..written.len()).map(|_| vec![]).collect();
        for reader in &self.statements {
            let all = names(reader);
            for (_, memlet) in reader.computation.reads.iter().filter(|(_, m)| m.data == data) {
                fills.extend(memlet.fill.map(Fill));
                for (dim, e) in point(memlet, data)?.iter().enumerate() {
                    let form = Affine::of(e, &all).ok_or_else(|| {
                        refuse(format!("the subscript `{e}` of `{}` is no sum of indices", reader.computation.tasklet.name))
                    })?;
                    let need = need(&form, reader, outer);
                    needs[dim].push((form, need));
                }
            }
        }
        fills.dedup();
        let mut places: Vec<Option<DimWindow>> = Vec::new();
        for (dim, needs) in needs.iter().enumerate() {
            let same =
                written[dim].as_sym().is_some_and(|own| needs.iter().all(|(form, _)| form.is_plain() && form.terms.contains_key(own)));
            if same {
                places.push(None);
                continue;
            }
            let own = written[dim].as_sym().ok_or_else(|| refuse(format!("it is written at `{}`, no plain index", written[dim])))?;
            let mut hull: Option<(String, i64, i64, i64)> = None;
            let mut ends: Vec<Expr> = Vec::new();
            for (form, need) in needs {
                let need = need.as_ref().ok_or_else(|| refuse(format!("`{}` moves with no outer index, or backwards", form.expr())))?;
                let hull = hull.get_or_insert((need.outer.clone(), need.stride, need.first, need.first));
                if (&hull.0, hull.1) != (&need.outer, need.stride) {
                    let (other, stride) = (&hull.0, hull.1);
                    return Err(refuse(format!(
                        "one reader moves {} elements with `{}` and another {stride} with `{other}`",
                        need.stride, need.outer
                    )));
                }
                hull.2 = hull.2.min(need.first);
            }
            let Some((outer, stride, first, _)) = hull else { return Err(refuse("nothing reads it".into())) };
            for (_, need) in needs {
                let Some(need) = need else { continue };
                let more = need.more + need.first - first;
                ends.push(if more < 0 { need.counts.clone() - Expr::Int(-more) } else { need.counts.clone() + Expr::Int(more) });
            }
            let extent = ends.into_iter().reduce(Expr::max).unwrap_or(Expr::Int(1));
            let known = self.windows.iter().find(|w| (&w.outer, w.stride, w.first, &w.extent) == (&outer, stride, first, &extent));
            let index = match known {
                Some(window) => window.index.clone(),
                None => self.fresh(own),
            };
            places.push(Some(DimWindow { data: data.into(), dim, outer, stride, first, extent, size: Expr::Int(1), index }));
        }
        let sizes: Vec<Expr> = program.containers.get(data).map(|c| program.shape(c)).unwrap_or_default();
        let own = written.len().saturating_sub(sizes.len());
        for window in places.iter_mut().flatten().filter(|w| w.dim >= own) {
            window.size = sizes[window.dim - own].clone();
        }
        let windows: Vec<DimWindow> = places.iter().flatten().cloned().collect();
        if windows.is_empty() {
            return Ok(());
        }
        if fills.len() > 1 {
            let all: Vec<String> = fills.iter().map(Fill::to_string).collect();
            return Err(refuse(format!("its readers declare different fills, {}", all.join(" and "))));
        }
        self.read_locally(data, &places);
        self.write_locally(at, data, &written, &places, fills.first().copied(), program)?;
        self.windows.extend(windows);
        Ok(())
    }

    /// A name for the index of a window along what `own` walked: no statement has it.
    fn fresh(&self, own: &str) -> String {
        let taken = |name: &String| self.statements.iter().any(|s| s.has(name)) || self.windows.iter().any(|w| w.index == *name);
        let wish = format!("{own}_in");
        std::iter::once(wish.clone()).chain((2..).map(|n| format!("{wish}{n}"))).find(|name| !taken(name)).unwrap_or(wish)
    }

    /// Readers find an element at its place in the window.
    fn read_locally(&mut self, data: &str, places: &[Option<DimWindow>]) {
        for statement in &mut self.statements {
            let all = names(statement);
            for (_, memlet) in statement.computation.reads.iter_mut().filter(|(_, m)| m.data == data) {
                let mut subset = Vec::new();
                for (range, place) in memlet.subset.iter().zip(places) {
                    match (range, place) {
                        (Range::At(e), Some(window)) => {
                            let Some(mut form) = Affine::of(e, &all) else { continue };
                            form.terms.remove(&window.outer);
                            form.constant -= window.first;
                            subset.push(Range::At(Expr::sym(window.outer.as_str())));
                            subset.push(Range::At(form.expr()));
                        }
                        _ => subset.push(range.clone()),
                    }
                }
                *memlet = Memlet::new(data, subset);
            }
        }
    }

    /// The writer computes every point of the window.
    fn write_locally(
        &mut self,
        at: usize,
        data: &str,
        written: &[Expr],
        places: &[Option<DimWindow>],
        fill: Option<Fill>,
        program: &mut Sdfg,
    ) -> Result<(), Reason> {
        let refuse = |why: String| Reason::Window { data: data.into(), why };
        let sizes: Vec<Expr> = match program.containers.get(data) {
            Some(container) => program.shape(container),
            None => return Err(refuse("it is not declared".into())),
        };
        let own = written.len().saturating_sub(sizes.len());
        let mut taken: Vec<String> = self.statements[at].indices.iter().map(|i| i.dim.clone()).collect();
        let (mut with, mut inside) = (BTreeMap::new(), Vec::new());
        let mut indices: Vec<Index> = Vec::new();
        for (dim, window) in places.iter().enumerate().filter_map(|(n, p)| Some((n, p.as_ref()?))) {
            let Some(old) = written[dim].as_sym() else { continue };
            let place = Affine {
                terms: BTreeMap::from([(window.outer.clone(), window.stride), (window.index.clone(), 1)]),
                constant: window.first,
            };
            let Some(outer) = self.statements.iter().flat_map(|s| &s.indices).find(|i| i.name == window.outer).cloned() else {
                return Err(refuse(format!("no statement has the index `{}`", window.outer)));
            };
            let known = self.statements.iter().flat_map(|s| &s.indices).find(|i| i.name == window.index);
            let along = match known {
                Some(index) => index.dim.clone(),
                None => self.dim(&window.extent, &taken, program),
            };
            taken.push(along.clone());
            indices.push(Index { kind: IndexKind::Independent, ..outer });
            indices.push(Index::over(&window.index, &along, window.extent.clone(), IndexKind::Independent));
            with.insert(old.to_string(), place.expr());
            if dim >= own {
                let (here, size) = (Scalar::Index(place.expr()), Scalar::Index(sizes[dim - own].clone()));
                inside.push(Scalar::binary(Binary::Ge, here.clone(), Scalar::Const(0.0)));
                inside.push(Scalar::binary(Binary::Lt, here, size));
            }
        }
        let handed: BTreeSet<String> = self.statements.iter().flat_map(|s| &s.computation.writes).map(|(_, m)| m.data.clone()).collect();
        let statement = &mut self.statements[at];
        if statement.indices.iter().any(|i| indices.iter().any(|n| n.name == i.name) && !with.contains_key(&i.name)) {
            return Err(refuse("what writes it walks an outer index for something else".into()));
        }
        let mut all = Vec::new();
        for index in &statement.indices {
            match with.contains_key(&index.name) {
                true => {
                    let position = written.iter().position(|e| e.as_sym() == Some(&index.name));
                    let window = position.and_then(|n| places[n].as_ref());
                    all.extend(indices.iter().filter(|i| window.is_some_and(|w| i.name == w.outer || i.name == w.index)).cloned());
                }
                false => all.push(index.clone()),
            }
        }
        statement.indices = all;
        let Computation { tasklet, reads, writes } = &mut statement.computation;
        let mut beyond = Vec::new();
        for (_, memlet) in reads.iter_mut() {
            let moved = memlet.substitute(&with);
            // Outside the picture any value will do: what is made of it is not used.
            let outside = (fill.is_some() || self.beyond.contains(data)) && moved != *memlet && moved.fill.is_none();
            let inside = handed.contains(&moved.data);
            if outside && inside {
                beyond.push(moved.data.clone());
            }
            *memlet = Memlet { fill: if outside && !inside { Some(0.0) } else { moved.fill }, ..moved };
        }
        for (_, code) in &mut tasklet.code {
            *code = code.substitute(&with);
        }
        let mut connector = None;
        for (name, memlet) in writes.iter_mut() {
            if memlet.data != data {
                return Err(refuse(format!("what writes it also writes `{}`, of which every element is written once", memlet.data)));
            }
            connector = Some((name.clone(), memlet.wcr));
            let subset = written.iter().zip(places).flat_map(|(e, place)| match place {
                Some(window) => vec![Range::At(Expr::sym(window.outer.as_str())), Range::At(Expr::sym(window.index.as_str()))],
                None => vec![Range::At(e.clone())],
            });
            *memlet = Memlet::new(data, subset.collect()).with_wcr(memlet.wcr);
        }
        self.beyond.extend(beyond);
        let (Some((connector, combine)), Some(fill)) = (connector, fill) else { return Ok(()) };
        let Some(inside) = inside.into_iter().reduce(|a, b| Scalar::binary(Binary::And, a, b)) else { return Ok(()) };
        let masked = |code: Scalar| Scalar::select(inside.clone(), code, Scalar::Const(fill.0));
        if combine.is_none() {
            for (_, code) in tasklet.code.iter_mut().filter(|(c, _)| *c == connector) {
                *code = masked(code.clone());
            }
            return Ok(());
        }
        // A sum is masked once it is whole.
        let sum = program.fresh_name(&format!("{data}.sum"));
        let Some(declared) = program.containers.get(data) else { return Err(refuse("it is not declared".into())) };
        let made = declared.like(sum.clone());
        let mut finish = self.statements[at].clone();
        let reduced = finish.reduced();
        finish.indices.retain(|i| !reduced.contains(&i.name));
        for (_, memlet) in &mut self.statements[at].computation.writes {
            memlet.data = sum.clone();
        }
        let Computation { tasklet, reads, writes } = &mut finish.computation;
        tasklet.name = format!("{}.inside", tasklet.name);
        tasklet.code = vec![("out".into(), masked(Scalar::input("sum")))];
        *writes = writes.iter().map(|(_, m)| ("out".to_string(), Memlet { wcr: None, ..m.clone() })).collect();
        *reads = writes.iter().map(|(_, m)| ("sum".to_string(), Memlet { data: sum.clone(), ..m.clone() })).collect();
        program.add_container(made.clone());
        self.containers.push(made);
        self.statements.insert(at + 1, finish);
        Ok(())
    }

    /// A dim of this size that the container has not yet.
    fn dim(&mut self, size: &Expr, taken: &[String], program: &mut Sdfg) -> String {
        let free = |dim: &&String| !taken.contains(dim) && program.size_of(dim) == *size;
        if let Some(dim) = program.dims.keys().find(free) {
            return dim.clone();
        }
        let name = (1..).map(|n| format!("window{n}")).find(|name| !program.dims.contains_key(name) && !program.sizes.contains_key(name));
        let name = name.unwrap_or_default();
        program.dims.insert(name.clone(), size.clone());
        self.dims.push((name.clone(), size.clone()));
        name
    }
}

/// What a reader needs along a dim: one outer index forwards, and a window of the reader's other indices.
fn need(form: &Affine, reader: &Statement, outer: &BTreeSet<String>) -> Option<Need> {
    let mut moves = form.terms.iter().filter(|(name, _)| outer.contains(*name));
    let (name, stride) = moves.next().filter(|(_, stride)| **stride > 0)?;
    if moves.next().is_some() {
        return None;
    }
    let (mut counts, mut more) = (Expr::Int(0), 1);
    for (inner, slope) in form.terms.iter().filter(|(inner, _)| *inner != name) {
        let index = reader.indices.iter().find(|i| i.name == *inner).filter(|i| i.start == Expr::Int(0) && i.step == Expr::Int(1))?;
        if *slope < 1 {
            return None;
        }
        counts = counts + Expr::Int(*slope) * index.count();
        more -= slope;
    }
    Some(Need { outer: name.clone(), stride: *stride, first: form.constant, counts, more })
}
