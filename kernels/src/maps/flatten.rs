//! A scope as a list of statements, each under its own inner loops.

use crate::error::KernelError;
use crate::kernel::{KernelSpec, unsupported};
use crate::loopnest::{Element, MemorySpace, NestStatement, NestTensor};
use indexmap::IndexMap;
use sdfg::{Combine, Expr, Index, IndexKind, Item, Scope, Storage, Unit};
use std::collections::BTreeMap;

/// An index that runs from 0 by 1, and the map that it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexRange {
    pub index: String,
    pub count: i64,
    pub map: String,
    pub reduction: bool,
}

/// A statement and the inner indices around it.
#[derive(Clone, Debug)]
pub struct Flat {
    pub inner: Vec<IndexRange>,
    pub statement: NestStatement,
    /// Whether it is run as matrix products.
    pub is_gemm: bool,
}

#[derive(Clone, Debug)]
pub struct Flattened {
    pub outer: Vec<IndexRange>,
    pub statements: Vec<Flat>,
    pub tensors: IndexMap<String, NestTensor>,
    pub about: Vec<String>,
}

impl Flattened {
    /// A name that no tensor of the kernel has, starting from `wish`: a recipe's own `sum` within a `mean` is called as what holds the
    /// mean's sum would be.
    pub fn fresh_name(&self, wish: String) -> String {
        let taken = |name: &String| self.tensors.contains_key(name);
        if !taken(&wish) {
            return wish;
        }
        (2..).map(|n| format!("{wish}.{n}")).find(|name| !taken(name)).unwrap_or(wish)
    }
}

/// A statement with the number of the scope that each of its inner indices belongs to.
struct Draft {
    inner: Vec<(usize, IndexRange)>,
    statement: NestStatement,
}

struct Walk<'a> {
    spec: &'a KernelSpec,
    scopes: usize,
    drafts: Vec<Draft>,
    about: Vec<String>,
}

impl Walk<'_> {
    /// Bounds to numbers; `start + step·i` takes the place of an index that does not run from 0 by 1.
    fn range(&self, index: &Index, map: &str, with: &mut BTreeMap<String, Expr>) -> Result<IndexRange, KernelError> {
        if index.kind == IndexKind::Sequential {
            return Err(unsupported(self.spec, format!("the index `{}` is sequential, which only the interpreter runs", index.name)));
        }
        let eval = |e: &Expr| e.eval(&self.spec.sizes).map_err(|source| KernelError::Size { kernel: self.spec.name.clone(), source });
        let count = eval(&index.count())?;
        if count < 1 {
            return Err(KernelError::BadSize { kernel: self.spec.name.clone(), dim: index.dim.clone(), value: count });
        }
        with.remove(&index.name);
        if index.start != Expr::Int(0) || index.step != Expr::Int(1) {
            with.insert(index.name.clone(), index.start.clone() + index.step.clone() * Expr::sym(index.name.as_str()));
        }
        Ok(IndexRange { index: index.name.clone(), count, map: map.to_string(), reduction: index.kind == IndexKind::Reduction })
    }

    fn walk(&mut self, items: &[Item], around: &[(usize, IndexRange)], with: &BTreeMap<String, Expr>) -> Result<(), KernelError> {
        for item in items {
            match item {
                Item::Operation(operation) => {
                    return Err(unsupported(self.spec, format!("`{}` inside a scope is an operation; expand it", operation.name)));
                }
                Item::Scope(scope) => {
                    self.scopes += 1;
                    let (number, mut inner, mut with) = (self.scopes, around.to_vec(), with.clone());
                    for index in &scope.map.indices {
                        inner.push((number, self.range(index, &scope.map.label, &mut with)?));
                    }
                    self.walk(&scope.body, &inner, &with)?;
                }
                Item::Tasklet(computation) => {
                    let element = |memlet: &sdfg::Memlet| -> Result<Element, KernelError> {
                        let memlet = memlet.substitute(with);
                        let point = memlet.point().ok_or_else(|| unsupported(self.spec, format!("the memlet {memlet} moves a range")))?;
                        let subscripts: Vec<Expr> = point.into_iter().cloned().collect();
                        // A row that a table does not have is no number, and nothing outside of the table is read.
                        let by_value = subscripts.iter().any(Expr::reads_elements);
                        let fill = memlet.fill.or(by_value.then_some(f64::NAN));
                        Ok(Element { data: memlet.data.clone(), subscripts, fill: fill.map(f64::to_bits) })
                    };
                    let mut reads = Vec::new();
                    for (connector, memlet) in &computation.reads {
                        reads.push((connector.clone(), element(memlet)?));
                    }
                    for (connector, memlet) in &computation.writes {
                        let name = &computation.tasklet.name;
                        let Some((_, code)) = computation.tasklet.code.iter().find(|(c, _)| c == connector) else {
                            return Err(unsupported(self.spec, format!("`{name}` has no code for its connector `{connector}`")));
                        };
                        if let Some(combine) = memlet.wcr.filter(|c| c.arity() > 1) {
                            return Err(unsupported(self.spec, format!("`{name}` reduces with {combine}, which combines tuples")));
                        }
                        let place = computation.tasklet.origin.as_ref().map(|o| format!("  ({o})")).unwrap_or_default();
                        self.about.push(format!("{name}: {memlet}{place}"));
                        let used = code.inputs();
                        let statement = NestStatement {
                            name: name.clone(),
                            code: code.substitute(with),
                            reads: reads.iter().filter(|(c, _)| used.contains(c)).cloned().collect(),
                            write: element(memlet)?,
                            combine: memlet.wcr,
                        };
                        self.drafts.push(Draft { inner: around.to_vec(), statement });
                    }
                }
            }
        }
        Ok(())
    }
}

/// Flattens the scope of a spec. With `inner_reductions`, outer reduction indices of a scope without inner maps become inner
/// ones: no partial results, but fewer points to share among cores.
pub fn flatten(spec: &KernelSpec, inner_reductions: bool) -> Result<Flattened, KernelError> {
    let mut flattened = statements(spec, inner_reductions)?;
    reductions(spec, &mut flattened, &|_| true)?;
    Ok(flattened)
}

/// As [`flatten`], but reductions stay as they are written.
pub fn statements(spec: &KernelSpec, inner_reductions: bool) -> Result<Flattened, KernelError> {
    let Unit::Scope(Scope { map, body }) = &spec.unit else {
        return Err(unsupported(spec, "it is not a scope"));
    };
    let mut walk = Walk { spec, scopes: 0, drafts: vec![], about: vec![] };
    let (mut with, mut outer) = (BTreeMap::new(), Vec::new());
    for index in &map.indices {
        outer.push(walk.range(index, &map.label, &mut with)?);
    }
    walk.walk(body, &[], &with)?;
    let Walk { mut drafts, about, .. } = walk;
    if inner_reductions && drafts.iter().all(|d| d.inner.is_empty()) {
        let (moved, kept): (Vec<IndexRange>, Vec<IndexRange>) = outer.into_iter().partition(|r| r.reduction);
        outer = kept;
        for draft in &mut drafts {
            draft.inner = moved.iter().map(|r| (1, r.clone())).collect();
        }
    }
    let mut tensors = tensors(spec, &drafts)?;
    extend_locals(&mut drafts, &mut tensors);
    let statements = drafts
        .into_iter()
        .map(|d| Flat { inner: d.inner.into_iter().map(|(_, r)| r).collect(), statement: d.statement, is_gemm: false })
        .collect();
    Ok(Flattened { outer, statements, tensors, about })
}

fn tensors(spec: &KernelSpec, drafts: &[Draft]) -> Result<IndexMap<String, NestTensor>, KernelError> {
    let arguments = spec.arguments();
    let mut tensors = IndexMap::new();
    let written = drafts.iter().flat_map(|d| d.statement.reads.iter().map(|(_, e)| e).chain([&d.statement.write]));
    let by_value = |e: &Element| -> Vec<Element> {
        let inner = |s: &Expr| match s {
            Expr::Element(data, subscripts) => Some(Element { data: data.clone(), subscripts: subscripts.clone(), fill: None }),
            _ => None,
        };
        e.subscripts.iter().filter_map(inner).collect()
    };
    let elements: Vec<Element> = written.flat_map(|e| by_value(e).into_iter().chain([e.clone()])).collect();
    for element in &elements {
        let data = &element.data;
        let shape: Vec<i64> = spec.shape(data)?.into_iter().map(|s| s as i64).collect();
        let container = &spec.containers[data.as_str()];
        if shape.len() != element.subscripts.len() {
            return Err(unsupported(spec, format!("`{data}` has {} dims but {} subscripts", shape.len(), element.subscripts.len())));
        }
        let space = match container.storage {
            Storage::Heap => {
                let root = spec.root(data).to_string();
                let argument = arguments.iter().position(|a| a.data == root);
                let argument = argument.ok_or_else(|| unsupported(spec, format!("`{root}` behind `{data}` is not on the heap")))?;
                MemorySpace::Heap { argument, root }
            }
            Storage::Local | Storage::Shared | Storage::Register => MemorySpace::Local,
        };
        let stored = matches!(space, MemorySpace::Heap { .. });
        tensors.insert(data.clone(), NestTensor { space, dtype: container.dtype, shape, stored });
    }
    Ok(tensors)
}

/// A local container exists once in each iteration of the scopes around all its uses. Indices of those scopes, other than
/// the outer ones, become dims of it, so that its statements may be pulled apart.
fn extend_locals(drafts: &mut [Draft], tensors: &mut IndexMap<String, NestTensor>) {
    for (data, tensor) in tensors.iter_mut().filter(|(_, t)| t.space == MemorySpace::Local) {
        let touches = |s: &NestStatement| s.write.data == *data || s.reads.iter().any(|(_, e)| e.data == *data);
        let mut shared: Option<Vec<(usize, IndexRange)>> = None;
        for draft in drafts.iter().filter(|d| touches(&d.statement)) {
            shared = Some(match shared {
                None => draft.inner.clone(),
                Some(known) => known.into_iter().zip(&draft.inner).take_while(|(a, b)| a == *b).map(|(a, _)| a).collect(),
            });
        }
        let named = |e: &Element, index: &str| e.data == *data && e.subscripts.contains(&Expr::sym(index));
        for (_, range) in shared.unwrap_or_default() {
            let everywhere = drafts.iter().filter(|d| touches(&d.statement)).all(|d| {
                let elements = d.statement.reads.iter().map(|(_, e)| e).chain([&d.statement.write]);
                elements.filter(|e| e.data == *data).all(|e| named(e, &range.index))
            });
            if everywhere {
                continue;
            }
            tensor.shape.push(range.count);
            for draft in drafts.iter_mut() {
                let statement = &mut draft.statement;
                for element in statement.reads.iter_mut().map(|(_, e)| e).chain([&mut statement.write]).filter(|e| e.data == *data) {
                    element.subscripts.push(Expr::sym(range.index.as_str()));
                }
            }
        }
    }
}

/// Gives every reduction into a heap container a place of its own: per worker, if it lacks an outer index; otherwise a local
/// one for each outer point, copied out when it is complete. Only those into containers that are `wanted`.
pub fn reductions(spec: &KernelSpec, flattened: &mut Flattened, wanted: &dyn Fn(&str) -> bool) -> Result<(), KernelError> {
    let targets: Vec<(String, Combine)> = {
        let mut found: IndexMap<String, Combine> = IndexMap::new();
        for Flat { statement, .. } in &flattened.statements {
            if let (Some(combine), Some(MemorySpace::Heap { .. })) =
                (statement.combine, flattened.tensors.get(&statement.write.data).map(|t| &t.space))
            {
                found.insert(statement.write.data.clone(), combine);
            }
        }
        found.into_iter().filter(|(data, _)| wanted(data)).collect()
    };
    for (data, combine) in targets {
        let writers: Vec<&Flat> = flattened.statements.iter().filter(|f| f.statement.write.data == data).collect();
        let [writer] = writers.as_slice() else {
            return Err(unsupported(spec, format!("`{data}` is reduced by more than one tasklet")));
        };
        let subscripts = writer.statement.write.subscripts.clone();
        let names: Option<Vec<&str>> = subscripts.iter().map(Expr::as_sym).collect();
        let Some(names) = names else {
            return Err(unsupported(spec, format!("the reduction into `{data}` is not subscripted by plain indices")));
        };
        let lacks = flattened.outer.iter().any(|r| r.count > 1 && !names.contains(&r.index.as_str()));
        let Some(tensor) = flattened.tensors.get(&data).cloned() else { continue };
        if lacks {
            let private = flattened.fresh_name(format!("{data}.partial"));
            flattened.tensors.insert(private.clone(), NestTensor { space: MemorySpace::Private { combine }, stored: true, ..tensor });
            for Flat { statement, .. } in &mut flattened.statements {
                if statement.write.data == data {
                    statement.write.data = private.clone();
                }
                if statement.reads.iter().any(|(_, e)| e.data == data) {
                    return Err(unsupported(spec, format!("`{data}` is read in the kernel that reduces it over outer indices")));
                }
            }
            continue;
        }
        let writer_ranges = writer.inner.clone();
        let kept: Vec<usize> = (0..names.len()).filter(|n| writer_ranges.iter().any(|r| r.index == names[*n])).collect();
        let local = flattened.fresh_name(format!("{data}.sum"));
        let shape = kept.iter().map(|n| tensor.shape[*n]).collect();
        flattened.tensors.insert(local.clone(), NestTensor { space: MemorySpace::Local, dtype: tensor.dtype, shape, stored: true });
        let project = |e: &Element| Element {
            data: local.clone(),
            subscripts: kept.iter().map(|n| e.subscripts[*n].clone()).collect(),
            fill: e.fill,
        };
        let mut copied = Vec::new();
        for mut flat in std::mem::take(&mut flattened.statements) {
            for (_, read) in flat.statement.reads.iter_mut().filter(|(_, e)| e.data == data) {
                let same_point = (0..subscripts.len()).filter(|n| !kept.contains(n)).all(|n| read.subscripts[n] == subscripts[n]);
                if !same_point {
                    return Err(unsupported(spec, format!("`{data}` is read at another outer point than it is reduced at")));
                }
                *read = project(read);
            }
            let is_writer = flat.statement.write.data == data;
            if !is_writer {
                copied.push(flat);
                continue;
            }
            let heap = flat.statement.write.clone();
            flat.statement.write = project(&heap);
            let copy = NestStatement {
                name: format!("{data} done"),
                code: sdfg::Scalar::input("value"),
                reads: vec![("value".into(), flat.statement.write.clone())],
                write: heap,
                combine: None,
            };
            let inner = flat.inner.iter().filter(|r| subscripts.contains(&Expr::sym(r.index.as_str()))).cloned().collect();
            copied.push(flat);
            copied.push(Flat { inner, statement: copy, is_gemm: false });
        }
        flattened.statements = copied;
    }
    Ok(())
}
