//! Scopes taken apart into statements over common indices, and put together again: the ground under fusion.
//!
//! A statement is one computation with all indices of the maps around it. Two scopes share iterations after the indices
//! of the second have been renamed to those of the first that they correspond to.

use indexmap::{IndexMap, IndexSet};
use sdfg::{Combine, Computation, Container, Expr, Index, IndexKind, Item, Memlet, Scope, Sdfg, Storage};
use std::collections::{BTreeMap, BTreeSet};

/// One computation and the indices it runs under.
#[derive(Clone, Debug, PartialEq)]
pub struct Statement {
    pub indices: Vec<Index>,
    pub computation: Computation,
}

impl Statement {
    pub fn has(&self, index: &str) -> bool {
        self.indices.iter().any(|i| i.name == index)
    }

    /// Indices that its writes combine over.
    pub fn reduced(&self) -> IndexSet<String> {
        let Some((_, write)) = self.computation.writes.iter().find(|(_, m)| m.wcr.is_some()) else { return IndexSet::new() };
        let kept: Vec<String> = write.subset.iter().flat_map(range_symbols).collect();
        self.indices.iter().map(|i| i.name.clone()).filter(|i| !kept.contains(i)).collect()
    }

    pub fn combine(&self) -> Option<Combine> {
        self.computation.combine()
    }

    fn reads_of<'a>(&'a self, data: &'a str) -> impl Iterator<Item = &'a Memlet> {
        self.computation.reads.iter().map(|(_, m)| m).filter(move |m| m.data == data)
    }

    fn writes_of<'a>(&'a self, data: &'a str) -> impl Iterator<Item = &'a Memlet> {
        self.computation.writes.iter().map(|(_, m)| m).filter(move |m| m.data == data)
    }

    /// Whether it multiplies matrices, one of which is in `data`: a sum of products of two containers, each with an index of
    /// the result that the other lacks.
    fn multiplies(&self, data: &str) -> bool {
        let indices = |m: &Memlet| m.subset.iter().flat_map(range_symbols).collect::<IndexSet<String>>();
        let ([(_, a), (_, b)], [(_, out)]) = (self.computation.reads.as_slice(), self.computation.writes.as_slice()) else { return false };
        let kept = indices(out);
        let alone = |x: &Memlet, y: &Memlet| indices(x).difference(&indices(y)).any(|i| kept.contains(i));
        let sums = self.combine() == Some(Combine::Sum) && !self.reduced().is_empty();
        sums && (a.data == data || b.data == data) && alone(a, b) && alone(b, a)
    }

    fn memlets_mut(&mut self) -> impl Iterator<Item = &mut Memlet> {
        let Computation { reads, writes, .. } = &mut self.computation;
        reads.iter_mut().chain(writes.iter_mut()).map(|(_, m)| m)
    }

    /// Indices renamed, everywhere.
    pub fn rename(&mut self, names: &BTreeMap<String, String>) {
        if names.iter().all(|(from, to)| from == to) {
            return;
        }
        let with: BTreeMap<String, Expr> = names.iter().map(|(from, to)| (from.clone(), Expr::sym(to.as_str()))).collect();
        for index in &mut self.indices {
            if let Some(name) = names.get(&index.name) {
                index.name = name.clone();
            }
            index.start = index.start.substitute(&with);
            index.stop = index.stop.substitute(&with);
        }
        for memlet in self.memlets_mut() {
            *memlet = memlet.substitute(&with);
        }
        for (_, code) in &mut self.computation.tasklet.code {
            *code = code.substitute(&with);
        }
    }
}

pub(crate) fn range_symbols(range: &sdfg::Range) -> Vec<String> {
    match range {
        sdfg::Range::At(e) => e.symbols().into_iter().collect(),
        sdfg::Range::Span { start, stop, step } => [start, stop, step].into_iter().flat_map(|e| e.symbols()).collect(),
    }
}

/// Takes a scope apart. Containers local to it get the indices around their declaration as leading subscripts, so that
/// all containers look as if they were whole. `None` if the scope holds operations (tile scopes) or sequential indices.
pub fn statements(scope: &Scope, program: &Sdfg) -> Option<Vec<Statement>> {
    fn sequential(scope: &Scope) -> bool {
        scope.map.indices.iter().any(|i| i.kind == IndexKind::Sequential)
            || scope.body.iter().any(|i| matches!(i, Item::Operation(_)) || matches!(i, Item::Scope(s) if sequential(s)))
    }
    if sequential(scope) {
        return None;
    }
    // The path of scopes (by position) above each computation; the declaration of a local is where its accesses meet.
    fn paths(scope: &Scope, path: &mut Vec<usize>, found: &mut Vec<Vec<usize>>) {
        for (n, item) in scope.body.iter().enumerate() {
            match item {
                Item::Scope(inner) => {
                    path.push(n);
                    paths(inner, path, found);
                    path.pop();
                }
                Item::Tasklet(_) => found.push(path.clone()),
                Item::Operation(_) => {}
            }
        }
    }
    let mut places = Vec::new();
    paths(scope, &mut Vec::new(), &mut places);
    let computations = scope.computations();
    // How many indices stand above a prefix of a path.
    let index_count = |path: &[usize]| {
        let mut here = scope;
        let mut count = scope.map.indices.len();
        for step in path {
            if let Some(Item::Scope(inner)) = here.body.get(*step) {
                count += inner.map.indices.len();
                here = inner;
            }
        }
        count
    };
    let mut meeting: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (path, (_, computation)) in places.iter().zip(&computations) {
        for (_, memlet) in computation.reads.iter().chain(&computation.writes) {
            let local = program.containers.get(&memlet.data).is_some_and(|c| c.storage != Storage::Heap);
            if local {
                meeting
                    .entry(&memlet.data)
                    .and_modify(|known| {
                        let common = known.iter().zip(path).take_while(|(a, b)| a == b).count();
                        known.truncate(common);
                    })
                    .or_insert_with(|| path.clone());
            }
        }
    }
    let mut found = Vec::new();
    for (around, computation) in computations {
        let mut statement = Statement { indices: around.iter().map(|i| (*i).clone()).collect(), computation: computation.clone() };
        for memlet in statement.memlets_mut() {
            if let Some(path) = meeting.get(memlet.data.as_str()) {
                let outer = around.iter().take(index_count(path)).map(|i| sdfg::Range::At(Expr::sym(i.name.as_str())));
                memlet.subset = outer.chain(memlet.subset.iter().cloned()).collect();
            }
        }
        found.push(statement);
    }
    Some(found)
}

/// Every index of the statements, in order of first appearance.
pub fn all_indices(statements: &[Statement]) -> IndexMap<String, Index> {
    let mut found = IndexMap::new();
    for statement in statements {
        for index in &statement.indices {
            found.entry(index.name.clone()).or_insert_with(|| index.clone());
        }
    }
    found
}

/// Names for the indices of `second` such that corresponding indices are called as in `first`.
///
/// Correspondence is taken from what the second reads of the first, then from containers that both read, then from equal
/// dims, then from equal sizes. Indices without a counterpart keep their name unless it is taken.
pub fn correspondence(first: &[Statement], second: &[Statement], program: &Sdfg) -> BTreeMap<String, String> {
    let (ours, theirs) = (all_indices(first), all_indices(second));
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut pair = |their: &str, our: &str| {
        let (Some(t), Some(o)) = (theirs.get(their), ours.get(our)) else { return };
        if !names.contains_key(their) && !names.values().any(|n| n == our) && t.count() == o.count() {
            names.insert(their.to_string(), our.to_string());
        }
    };
    let memlets = |statements: &[Statement], writes: bool| -> Vec<Memlet> {
        statements
            .iter()
            .flat_map(|s| if writes { s.computation.writes.clone() } else { s.computation.reads.clone() })
            .map(|(_, m)| m)
            .collect()
    };
    for writes in [true, false] {
        for our in memlets(first, writes) {
            for their in memlets(second, false).iter().filter(|m| m.data == our.data) {
                for (o, t) in our.subset.iter().zip(&their.subset) {
                    if let (sdfg::Range::At(Expr::Sym(o)), sdfg::Range::At(Expr::Sym(t))) = (o, t) {
                        pair(t, o);
                    }
                }
            }
        }
    }
    for same in [|a: &Index, b: &Index, _: &Sdfg| a.dim == b.dim, |a: &Index, b: &Index, p: &Sdfg| p.size_of(&a.dim) == p.size_of(&b.dim)] {
        for (t, index) in &theirs {
            for (o, other) in &ours {
                if same(index, other, program) {
                    pair(t, o);
                }
            }
        }
    }
    for their in theirs.keys() {
        if names.contains_key(their) {
            continue;
        }
        let taken = |name: &str| ours.contains_key(name) || names.values().any(|n| n == name);
        let fresh = if taken(their) {
            (2..).map(|n| format!("{their}_{n}")).find(|n| !taken(n) && !theirs.contains_key(n)).unwrap_or_default()
        } else {
            their.clone()
        };
        names.insert(their.clone(), fresh);
    }
    names
}

/// The indices that may be shared by all statements on the outside, in order of first appearance.
///
/// *Legal when* every statement has the index; no statement reads a container that another one combines over the index; and a container
/// that one statement writes and another one reads is accessed at the same value of the index by both.
pub fn shared_indices(statements: &[Statement]) -> Vec<Index> {
    let uses = Uses::of(statements);
    let reduced: Vec<IndexSet<String>> = statements.iter().map(Statement::reduced).collect();
    let legal = |name: &str| {
        let handed = statements.iter().zip(&reduced).flat_map(|(s, reduced)| s.computation.writes.iter().map(move |(_, m)| (m, reduced)));
        statements.iter().all(|s| s.has(name))
            && handed.into_iter().all(|(write, reduced)| {
                let mut reads = uses.readers(&write.data).iter().flat_map(|r| statements[*r].reads_of(&write.data));
                reads.all(|read| !reduced.contains(name) && same_value(write, read, name))
            })
    };
    all_indices(statements).into_iter().filter(|(name, _)| legal(name)).map(|(_, index)| index).collect()
}

/// Which statements read and write a container, by position. Kernels of long programs have hundreds of statements.
struct Uses<'a> {
    by_data: BTreeMap<&'a str, (Vec<usize>, Vec<usize>)>,
}

impl<'a> Uses<'a> {
    fn of(statements: &'a [Statement]) -> Self {
        let mut by_data: BTreeMap<&str, (Vec<usize>, Vec<usize>)> = BTreeMap::new();
        for (n, statement) in statements.iter().enumerate() {
            let Computation { reads, writes, .. } = &statement.computation;
            for (_, read) in reads {
                let (readers, _) = by_data.entry(&read.data).or_default();
                // A statement that reads a container twice is one reader.
                if readers.last() != Some(&n) {
                    readers.push(n);
                }
            }
            for (_, write) in writes {
                let (_, writers) = by_data.entry(&write.data).or_default();
                if writers.last() != Some(&n) {
                    writers.push(n);
                }
            }
        }
        Uses { by_data }
    }

    fn readers(&self, data: &str) -> &[usize] {
        self.by_data.get(data).map_or(&[], |(readers, _)| readers)
    }

    fn writers(&self, data: &str) -> &[usize] {
        self.by_data.get(data).map_or(&[], |(_, writers)| writers)
    }
}

/// Whether writer and reader touch a common element only under equal values of the index: some dimension is subscripted
/// by the same expression in the index alone.
fn same_value(write: &Memlet, read: &Memlet, index: &str) -> bool {
    let mentions = |r: &sdfg::Range| range_symbols(r).iter().any(|s| s == index);
    let pinned =
        write.subset.iter().zip(&read.subset).any(|(w, r)| {
            w == r && mentions(w) && matches!(w, sdfg::Range::At(e) if sdfg::propagate::slope(e, index).is_some_and(|s| s != 0))
        });
    // Elsewhere the index must not shift the read against the write.
    pinned && write.subset.iter().zip(&read.subset).all(|(w, r)| w == r || (!mentions(w) && !mentions(r)))
}

/// A scope put together: the scope, and the containers that changed or are new.
pub struct Rebuilt {
    pub scope: Scope,
    pub containers: Vec<Container>,
    /// Bytes of local buffers for one iteration of the outer map.
    pub local_bytes: u64,
}

/// Puts statements (in execution order) together under `shared` outer indices.
///
/// Containers that are written and read inside become local; those in `kept` are written to their own memory as well. `None` where
/// one has no local form.
/// Inner loops over equal indices are merged where no reduction stands between them.
pub fn rebuild(label: &str, statements: Vec<Statement>, shared: &[Index], kept: &dyn Fn(&str) -> bool, program: &Sdfg) -> Option<Rebuilt> {
    rebuild_windows(label, statements, shared, kept, &BTreeSet::new(), program)
}

/// As [`rebuild`], with containers of which readers find parts of a window: they may begin at other elements than the writer.
pub fn rebuild_windows(
    label: &str,
    statements: Vec<Statement>,
    shared: &[Index],
    kept: &dyn Fn(&str) -> bool,
    windowed: &BTreeSet<String>,
    program: &Sdfg,
) -> Option<Rebuilt> {
    let is_shared = |name: &str| shared.iter().any(|i| i.name == name);
    let uses = Uses::of(&statements);
    let groups = group(&statements, &uses, &is_shared);
    let mut group_of = vec![0; statements.len()];
    for (g, (_, members)) in groups.iter().enumerate() {
        for member in members {
            group_of[*member] = g;
        }
    }
    // Which containers are handed on inside, and between which groups.
    let mut handed: IndexMap<String, (usize, Vec<usize>)> = IndexMap::new();
    for (w, writer) in statements.iter().enumerate() {
        for (_, write) in &writer.computation.writes {
            let readers = uses.readers(&write.data);
            if !readers.is_empty() {
                handed.insert(write.data.clone(), (w, readers.to_vec()));
            }
        }
    }
    let mut containers = Vec::new();
    let mut locals: BTreeMap<String, (String, Vec<usize>)> = BTreeMap::new();
    let mut copies: BTreeMap<usize, Vec<Statement>> = BTreeMap::new();
    let mut local_bytes = 0u64;
    for (data, (writer, readers)) in &handed {
        if !windowed.contains(data) && !in_one_part(&statements, &uses, data, program) {
            return None;
        }
        let declared = program.containers.get(data)?;
        let (_, write) = statements[*writer].computation.writes.iter().find(|(_, m)| m.data == *data)?;
        let combined = statements[*writer].combine().is_some();
        let one_loop = !combined && readers.iter().all(|r| group_of[*r] == group_of[*writer]);
        // Dimensions that stay: those subscripted by inner indices, unless all happens in one inner loop.
        let stays: Vec<usize> = (0..write.subset.len())
            .filter(|d| !one_loop && range_symbols(&write.subset[*d]).iter().any(|s| statements[*writer].has(s) && !is_shared(s)))
            .collect();
        let mut dims: Vec<String> = Vec::new();
        for stays in &stays {
            let index =
                range_symbols(&write.subset[*stays]).first().and_then(|s| statements[*writer].indices.iter().find(|i| i.name == *s))?;
            dims.push(own_dim(index, &dims, program)?);
        }
        let keep = declared.storage == Storage::Heap && kept(data);
        // A local buffer has the accumulator's type, unless it is a factor of a matrix product: processors multiply factors of a
        // narrow type in that type.
        let multiplied = readers.iter().any(|r| statements[*r].multiplies(data));
        let dtype = if multiplied { declared.dtype } else { declared.dtype.accumulator() };
        let name = if keep { program.fresh_name(&format!("{data}.here")) } else { data.clone() };
        let made =
            Container { grad: false, view: None, origin: declared.origin.clone(), ..Container::local(name.clone(), dims.clone(), dtype) };
        let elements =
            dims.iter().try_fold(1u64, |n, d| program.size_of(d).eval(&program.sizes).ok().map(|s| n.saturating_mul(s.max(0) as u64)))?;
        if !dims.is_empty() {
            local_bytes = local_bytes.saturating_add(dtype.bytes(elements));
        }
        if keep && combined {
            copies.entry(*writer).or_default().push(copy_out(&statements[*writer], write, &name, &stays));
        }
        containers.push(made);
        locals.insert(data.clone(), (name, stays));
    }
    let localized = |memlet: &Memlet| -> Memlet {
        match locals.get(&memlet.data) {
            Some((name, stays)) => {
                let subset = stays.iter().map(|d| memlet.subset[*d].clone()).collect();
                Memlet { wcr: memlet.wcr, fill: memlet.fill, ..Memlet::new(name.clone(), subset) }
            }
            None => memlet.clone(),
        }
    };
    let mut body = Vec::new();
    for (inner, members) in &groups {
        let mut tasklets = Vec::new();
        let mut after = Vec::new();
        for member in members {
            let statement = &statements[*member];
            let mut computation = statement.computation.clone();
            for (_, memlet) in &mut computation.reads {
                *memlet = localized(memlet);
            }
            let mut writes = Vec::new();
            for (connector, memlet) in &computation.writes {
                if locals.contains_key(&memlet.data) {
                    writes.push((connector.clone(), localized(memlet)));
                    if memlet.wcr.is_none() && program.containers.get(&memlet.data)?.storage == Storage::Heap && kept(&memlet.data) {
                        writes.push((connector.clone(), memlet.clone()));
                    }
                } else {
                    writes.push((connector.clone(), memlet.clone()));
                }
            }
            computation.writes = writes;
            tasklets.push(Item::Tasklet(computation));
            after.extend(copies.remove(member).unwrap_or_default());
        }
        if inner.is_empty() {
            body.extend(tasklets);
        } else {
            let indices =
                members.first().map(|m| statements[*m].indices.iter().filter(|i| !is_shared(&i.name)).cloned().collect::<Vec<_>>())?;
            let reduction = |name: &str| members.iter().all(|m| statements[*m].reduced().contains(name));
            let indices = indices
                .into_iter()
                .map(|i| Index { kind: if reduction(&i.name) { IndexKind::Reduction } else { IndexKind::Independent }, ..i })
                .collect();
            body.push(Item::Scope(Scope::new(format!("{label}.{}", body.len()), indices, tasklets)));
        }
        for copy in after {
            let inner: Vec<Index> = copy.indices.iter().filter(|i| !is_shared(&i.name)).cloned().collect();
            let item = Item::Tasklet(copy.computation);
            body.push(if inner.is_empty() { item } else { Item::Scope(Scope::new(format!("{label}.{}", body.len()), inner, vec![item])) });
        }
    }
    let everywhere = |name: &str| statements.iter().all(|s| s.reduced().contains(name));
    let outer = shared
        .iter()
        .map(|i| Index { kind: if everywhere(&i.name) { IndexKind::Reduction } else { IndexKind::Independent }, ..i.clone() })
        .collect();
    Some(Rebuilt { scope: Scope::new(label, outer, body), containers, local_bytes })
}

/// The dim of a local container along which an index runs. Two indices may run along one dim if a tensor is read at several index
/// orders. A container names each dim once, so the second index gets another dim of that size; `None` if the program has none left.
fn own_dim(index: &Index, taken: &[String], program: &Sdfg) -> Option<String> {
    if !taken.contains(&index.dim) {
        return Some(index.dim.clone());
    }
    let size = program.size_of(&index.dim);
    program.dims.keys().find(|dim| !taken.contains(dim) && program.size_of(dim) == size).cloned()
}

/// Whether all accesses to a container begin at the same element and no read goes on beyond what is written here. A statement that writes
/// one part of a stacked container and a statement that reads another part, or all parts, share no data.
fn in_one_part(statements: &[Statement], uses: &Uses, data: &str, program: &Sdfg) -> bool {
    // The first and the last element along each dim.
    let ends = |statement: &Statement, memlet: &Memlet| -> Option<Vec<(i64, i64)>> {
        let zeros = statement.indices.iter().map(|i| (i.name.clone(), Expr::Int(0))).collect();
        let lasts = statement.indices.iter().map(|i| (i.name.clone(), i.stop.clone() - Expr::Int(1))).collect();
        let of = |range: &sdfg::Range| match range {
            sdfg::Range::At(e) => Some((e.substitute(&zeros).eval(&program.sizes).ok()?, e.substitute(&lasts).eval(&program.sizes).ok()?)),
            sdfg::Range::Span { start, stop, .. } => {
                let last = stop.substitute(&lasts).eval(&program.sizes).ok()? - 1;
                Some((start.substitute(&zeros).eval(&program.sizes).ok()?, last))
            }
        };
        memlet.subset.iter().map(of).collect()
    };
    let reads = uses.readers(data).iter().flat_map(|n| statements[*n].reads_of(data).map(|m| ends(&statements[*n], m)));
    let writes = uses.writers(data).iter().flat_map(|n| statements[*n].writes_of(data).map(|m| ends(&statements[*n], m)));
    let (reads, writes): (Vec<_>, Vec<_>) = (reads.collect(), writes.collect());
    // Places that depend on more than indices and sizes are the same only if none is known.
    if reads.iter().chain(&writes).all(Option::is_none) {
        return true;
    }
    let Some(writes) = writes.into_iter().collect::<Option<Vec<_>>>() else { return false };
    let Some(first) = writes.first() else { return true };
    let begins = |one: &[(i64, i64)]| one.iter().zip(first).all(|(a, b)| a.0 == b.0);
    let written = |d: usize| writes.iter().map(|w| w[d].1).max().unwrap_or(0);
    let covered = |read: &[(i64, i64)]| read.iter().enumerate().all(|(d, (_, last))| *last <= written(d));
    writes.iter().all(|w| begins(w)) && reads.into_iter().all(|read| read.is_some_and(|read| begins(&read) && covered(&read)))
}

/// Statements sharing an inner loop: (sorted names of inner indices, members in order). A statement goes into the earliest
/// loop over its indices that comes after everything it needs; a reduction is complete only after its loop.
fn group(statements: &[Statement], uses: &Uses, is_shared: &dyn Fn(&str) -> bool) -> Vec<(Vec<String>, Vec<usize>)> {
    let inner = |statement: &Statement| -> Vec<String> {
        let mut inner: Vec<String> = statement.indices.iter().map(|i| i.name.clone()).filter(|i| !is_shared(i)).collect();
        inner.sort();
        inner
    };
    let inner: Vec<Vec<String>> = statements.iter().map(inner).collect();
    let mut groups: Vec<(Vec<String>, Vec<usize>)> = Vec::new();
    let mut group_of: Vec<usize> = vec![0; statements.len()];
    for n in outermost_first(statements, uses, &inner) {
        let statement = &statements[n];
        let mut earliest = 0;
        // A statement may read a container several times, each time at other subscripts: it waits for the furthest element.
        for (_, read) in &statement.computation.reads {
            for w in uses.writers(&read.data).iter().copied().filter(|w| *w < n) {
                let apart = statements[w].combine().is_some() || groups[group_of[w]].0 != inner[n];
                let pointwise = !apart && statements[w].writes_of(&read.data).all(|write| write.subset == read.subset);
                earliest = earliest.max(group_of[w] + usize::from(!pointwise));
            }
        }
        let at = match (earliest..groups.len()).find(|g| groups[*g].0 == inner[n]) {
            Some(g) => g,
            None => {
                groups.push((inner[n].clone(), Vec::new()));
                groups.len() - 1
            }
        };
        groups[at].1.push(n);
        group_of[n] = at;
    }
    groups
}

/// An order of the statements that keeps every dependence, in which those with the fewest inner indices come as soon as they can, and
/// otherwise those of the loop before, and then the first. A loop opens with what it needs of the outer iterations made: were it to open
/// before that, what reads both would need a second loop, and a row for everything that goes from one to the other.
fn outermost_first(statements: &[Statement], uses: &Uses, inner: &[Vec<String>]) -> Vec<usize> {
    let mut after: Vec<Vec<usize>> = vec![Vec::new(); statements.len()];
    let mut missing = vec![0usize; statements.len()];
    for (n, statement) in statements.iter().enumerate() {
        let Computation { reads, writes, .. } = &statement.computation;
        let made = reads.iter().flat_map(|(_, read)| uses.writers(&read.data));
        let kept = writes.iter().flat_map(|(_, write)| uses.readers(&write.data).iter().chain(uses.writers(&write.data)));
        let before: BTreeSet<usize> = made.chain(kept).copied().filter(|other| *other < n).collect();
        missing[n] = before.len();
        before.into_iter().for_each(|other| after[other].push(n));
    }
    // Statements that wait for nothing, by how many inner indices they have, and by these.
    let mut ready: BTreeMap<usize, BTreeMap<&[String], BTreeSet<usize>>> = BTreeMap::new();
    for n in (0..statements.len()).filter(|n| missing[*n] == 0) {
        ready.entry(inner[n].len()).or_default().entry(&inner[n]).or_default().insert(n);
    }
    let mut order = Vec::with_capacity(statements.len());
    while let Some(mut fewest) = ready.first_entry() {
        let loops = fewest.get_mut();
        let last = order.last().map(|n: &usize| inner[*n].as_slice()).filter(|last| loops.contains_key(last));
        let first = || loops.iter().min_by_key(|(_, members)| members.first().copied()).map(|(names, _)| *names);
        let Some(names) = last.or_else(first) else { break };
        let Some(n) = loops.get_mut(names).and_then(BTreeSet::pop_first) else { break };
        if loops.get(names).is_some_and(BTreeSet::is_empty) {
            loops.remove(names);
        }
        if loops.is_empty() {
            fewest.remove();
        }
        order.push(n);
        for next in &after[n] {
            missing[*next] -= 1;
            if missing[*next] == 0 {
                ready.entry(inner[*next].len()).or_default().entry(&inner[*next]).or_default().insert(*next);
            }
        }
    }
    order
}

/// The statement that writes a finished local reduction to its own memory.
fn copy_out(statement: &Statement, write: &Memlet, local: &str, stays: &[usize]) -> Statement {
    let reduced = statement.reduced();
    let mut computation = statement.computation.clone();
    computation.tasklet.code = vec![("out".into(), sdfg::Scalar::input("value"))];
    computation.tasklet.name = format!("{}.store", computation.tasklet.name);
    computation.reads = vec![("value".into(), Memlet::new(local, stays.iter().map(|d| write.subset[*d].clone()).collect()))];
    computation.writes = vec![("out".into(), Memlet { wcr: None, ..write.clone() })];
    let indices = statement
        .indices
        .iter()
        .filter(|i| !reduced.contains(&i.name))
        .map(|i| Index { kind: IndexKind::Independent, ..i.clone() })
        .collect();
    Statement { indices, computation }
}
