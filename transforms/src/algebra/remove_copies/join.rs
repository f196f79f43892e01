//! Joins: operations that choose what they store by where an index lies, cut into one operation a part.

use super::subscripts::{are_equal, canonical, composed, covers, difference, extent, moved};
use super::{Changes, Operations, Placed, is_own, runs, takes_shifted};
use crate::patch::Patch;
use sdfg::affine::{Affine, interval};
use sdfg::{Binary, Expr, Op, Operand, Operation, Scalar, Sdfg};
use std::collections::BTreeMap;

/// Most parts of a join: more are no list that a person wrote.
const MOST: usize = 256;

/// A join cut into parts along an index.
struct Join {
    index: String,
    /// The dim of the result that the index walks.
    position: usize,
    parts: Vec<StoredRange>,
}

/// What a join stores from one element on.
struct StoredRange {
    from: Expr,
    size: Expr,
    code: Scalar,
}

/// Where a comparison changes its value: an index and the first element of the upper side.
fn cut(op: Binary, a: &Scalar, b: &Scalar, operation: &Operation) -> Option<(String, Expr)> {
    // Sums of sizes are scalar code, too.
    fn whole(code: &Scalar) -> Option<Expr> {
        match code {
            Scalar::Index(e) => Some(e.clone()),
            Scalar::Const(value) if value.fract() == 0.0 && value.abs() < 1e15 => Some(Expr::Int(*value as i64)),
            Scalar::Binary(Binary::Add, a, b) => Some(whole(a)? + whole(b)?),
            Scalar::Binary(Binary::Sub, a, b) => Some(whole(a)? - whole(b)?),
            _ => None,
        }
    }
    let is_index = |name: &str| operation.indices.contains_key(name);
    let side = |code: &Scalar| Affine::of(&whole(code)?, &is_index);
    let form = side(a)?.plus(side(b)?, -1)?;
    let [(index, coefficient)] = form.terms.as_slice() else { return None };
    let next = |e: Expr| e + Expr::Int(1);
    let (below, above) = (Expr::Int(0) - form.offset.clone(), form.offset.clone());
    let at = match (coefficient, op) {
        (1, Binary::Lt | Binary::Ge) => below,
        (1, Binary::Le | Binary::Gt) => next(below),
        (-1, Binary::Le | Binary::Gt) => above,
        (-1, Binary::Lt | Binary::Ge) => next(above),
        _ => return None,
    };
    Some((index.clone(), canonical(&at)))
}

/// Whether an operation's code compares an index with sizes.
pub(super) fn is_join(operation: &Operation, program: &Sdfg) -> bool {
    Join::of(operation, program).is_some()
}

impl Join {
    fn of(operation: &Operation, program: &Sdfg) -> Option<Join> {
        let (Op::Elementwise { code, .. }, [out]) = (&operation.op, operation.outputs.as_slice()) else { return None };
        if !covers(operation, &out.subscripts, &out.data, program) || out.subscripts.len() != operation.indices.len() {
            return None;
        }
        let mut cuts: Vec<(String, Expr)> = Vec::new();
        code.walk(&mut |s| {
            if let Scalar::Binary(op, a, b) = s {
                cuts.extend(cut(*op, a, b, operation));
            }
        });
        let index = cuts.first()?.0.clone();
        cuts.retain(|(name, _)| *name == index);
        let whole = extent(operation, &index, program)?;
        let value = |e: &Expr| e.eval(&program.sizes).ok();
        let last = value(&whole)?;
        let mut ends: Vec<(i64, Expr)> = cuts.into_iter().filter_map(|(_, at)| Some((value(&at)?, at))).collect();
        ends.retain(|(at, _)| (1..last).contains(at));
        ends.push((0, Expr::Int(0)));
        ends.push((last, whole));
        ends.sort();
        ends.dedup_by_key(|(at, _)| *at);
        if ends.len() < 3 || ends.len() > MOST {
            return None;
        }
        let position = out.subscripts.iter().position(|e| e.as_sym() == Some(&index))?;
        let mut parts = Vec::new();
        for pair in ends.windows(2) {
            let [(first, from), (_, to)] = pair else { continue };
            let code = within(code, operation, (&index, *first), program);
            parts.push(StoredRange { from: from.clone(), size: difference(to, from), code });
        }
        Some(Join { index, position, parts })
    }
}

/// The code where an index lies between two cuts, the first of which is its value: comparisons have theirs.
fn within(code: &Scalar, operation: &Operation, (index, first): (&str, i64), program: &Sdfg) -> Scalar {
    let truth = |op: Binary, a: &Scalar, b: &Scalar| {
        cut(op, a, b, operation).filter(|(name, _)| name == index)?;
        // No comparison changes between two cuts: its value at the first element is that at all.
        let place = |code: &Scalar| value_at(code, index, first, program);
        let (a, b) = (place(a)?, place(b)?);
        Some(match op {
            Binary::Lt => a < b,
            Binary::Le => a <= b,
            Binary::Gt => a > b,
            Binary::Ge => a >= b,
            _ => return None,
        })
    };
    code.rewrite(&mut |s| match &s {
        Scalar::Binary(op, a, b) => match (op, &**a, &**b) {
            (Binary::And, Scalar::Const(c), other) | (Binary::And, other, Scalar::Const(c)) if is_truth(other) => {
                if *c == 0.0 {
                    Scalar::Const(0.0)
                } else {
                    other.clone()
                }
            }
            (Binary::Or, Scalar::Const(c), other) | (Binary::Or, other, Scalar::Const(c)) if is_truth(other) => {
                if *c == 0.0 {
                    other.clone()
                } else {
                    Scalar::Const(1.0)
                }
            }
            _ => truth(*op, a, b).map_or_else(|| s.clone(), |is| Scalar::Const(f64::from(u8::from(is)))),
        },
        Scalar::Select(c, a, b) => match **c {
            Scalar::Const(0.0) => (**b).clone(),
            Scalar::Const(_) => (**a).clone(),
            _ => s.clone(),
        },
        _ => s.clone(),
    })
}

/// Whether code is 0 or 1.
fn is_truth(code: &Scalar) -> bool {
    use Binary::{And, Eq, Ge, Gt, Le, Lt, Ne, Or};
    match code {
        Scalar::Const(value) => *value == 0.0 || *value == 1.0,
        Scalar::Binary(op, ..) => matches!(op, Lt | Le | Gt | Ge | Eq | Ne | And | Or),
        _ => false,
    }
}

/// The value of a sum of an index and sizes at an element.
fn value_at(code: &Scalar, index: &str, at: i64, program: &Sdfg) -> Option<f64> {
    Some(match code {
        Scalar::Const(value) => *value,
        Scalar::Index(e) => e.eval_with(&|name| if name == index { Some(at) } else { program.sizes.get(name).copied() }).ok()? as f64,
        Scalar::Binary(Binary::Add, a, b) => value_at(a, index, at, program)? + value_at(b, index, at, program)?,
        Scalar::Binary(Binary::Sub, a, b) => value_at(a, index, at, program)? - value_at(b, index, at, program)?,
        _ => return None,
    })
}

/// Cuts a join into its parts. Containers that parts copy whole disappear where their makers can write the slice.
pub(super) fn plan(program: &Sdfg, all: &Operations, at: &Placed) -> Result<Patch, String> {
    let operation = &at.operation;
    let join = Join::of(operation, program).ok_or_else(|| "its parts are told apart by no index".to_string())?;
    let out = operation.outputs.first().ok_or("it has no result")?;
    let is_size = |size: &Expr| program.dims.values().any(|known| are_equal(known, size)) || size.as_int().is_some_and(|size| size > 0);
    if let Some(part) = join.parts.iter().find(|part| !is_size(&part.size)) {
        return Err(format!(
            "the part of `{}` from {} on has {} elements, which is no dim's size; make `{}` the sum of its parts' sizes in dims",
            out.data, part.from, part.size, operation.indices[&join.index]
        ));
    }
    let mut left = Vec::new();
    // Parts that cannot be written in place are copied; each round leaves out one that turned out to be so.
    let mut copied: Vec<(usize, String)> = Vec::new();
    loop {
        let (mut changes, mut drop, mut pieces, mut summary) = (Changes::default(), Vec::new(), Vec::new(), Vec::new());
        for (n, part) in join.parts.iter().enumerate() {
            let barred = copied.iter().find(|(m, _)| *m == n).map(|(_, why)| why.clone());
            let written = match barred {
                Some(why) => Err(why),
                None => in_place(program, all, at, &join, n, &mut changes),
            };
            match written {
                Ok(data) => {
                    summary.push(format!("`{data}`"));
                    drop.push(data);
                }
                Err(why) => {
                    left.push(why);
                    pieces.push(piece(program, operation, &join, n, part)?);
                }
            }
        }
        if summary.is_empty() && !pieces.iter().any(|piece| is_made(program, all, piece)) {
            left.dedup();
            return Err(left.join("; "));
        }
        let remade = changes.at(at);
        *remade = pieces;
        let kept = join.parts.len() - summary.len();
        let rest = if kept == 0 { String::new() } else { format!("{}{kept} copied", if summary.is_empty() { "" } else { ", " }) };
        let text = format!("write parts of `{}` in place: {}{rest}", out.data, summary.join(", "));
        let dims = new_dims(program, operation, &join);
        let patch = Patch { dims, ..changes.patch(all, text, drop) };
        if runs(program, &patch) {
            return Ok(patch);
        }
        // What reads one part makes another: such a part keeps a container of its own.
        let is_read = |part: &StoredRange| {
            let read = operation.inputs.iter().filter(|o| part.code.inputs().contains(&o.connector));
            read.into_iter().any(|o| all.readers(&o.data).count() > 1)
        };
        let next = (0..join.parts.len()).find(|n| is_read(&join.parts[*n]) && copied.iter().all(|(m, _)| m != n));
        let Some(next) = next else { return Err("a part is computed from another part".into()) };
        copied.push((next, "a part is computed from another part".into()));
        left.clear();
    }
}

/// Whether an operation of the program makes what a piece copies, so that fusion can put the piece there.
fn is_made(program: &Sdfg, all: &Operations, piece: &Operation) -> bool {
    let own = |data: &str| is_own(program, data).is_ok() && all.readers(data).count() == 1;
    matches!(&piece.op, Op::Elementwise { code: Scalar::Input(_), .. })
        && piece.inputs.iter().any(|input| own(&input.data) && all.writers(&input.data).count() == 1)
}

/// The dim that a part's index runs along: a declared one of that size.
fn dim_of(program: &Sdfg, operation: &Operation, join: &Join, n: usize) -> (String, bool) {
    let part = &join.parts[n];
    let reads = operation.inputs.iter().filter(|o| part.code.inputs().contains(&o.connector));
    let dims = reads.filter_map(|o| program.containers.get(&o.data)).flat_map(|c| c.dims.iter());
    let found = dims.chain(program.dims.keys()).find(|dim| are_equal(&program.size_of(dim), &part.size));
    match found {
        Some(dim) => (dim.clone(), false),
        None => (format!("{}_part{n}", operation.name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")), true),
    }
}

fn new_dims(program: &Sdfg, operation: &Operation, join: &Join) -> Vec<(String, Expr)> {
    let new = |n: usize| {
        let (dim, is_new) = dim_of(program, operation, join, n);
        is_new.then(|| (dim, join.parts[n].size.clone()))
    };
    (0..join.parts.len()).filter_map(new).collect()
}

/// The operation of one part.
fn piece(program: &Sdfg, operation: &Operation, join: &Join, n: usize, part: &StoredRange) -> Result<Operation, String> {
    let is_index = |name: &str| operation.indices.contains_key(name);
    let with = BTreeMap::from([(join.index.clone(), Expr::sym(join.index.as_str()) + part.from.clone())]);
    let mut made = operation.clone();
    made.name = if n == 0 { operation.name.clone() } else { format!("{}.{n}", operation.name) };
    let (dim, _) = dim_of(program, operation, join, n);
    if let Some(along) = made.indices.get_mut(&join.index) {
        *along = dim;
    }
    let code = part.code.substitute(&with);
    let used = code.inputs();
    made.inputs.retain(|o| used.contains(&o.connector));
    for input in &mut made.inputs {
        let fail = || format!("`{}` is subscripted by no sum of indices", input.data);
        let subscripts: Option<Vec<Expr>> = input.subscripts.iter().map(|e| composed(e, &with, &is_index)).collect();
        input.subscripts = subscripts.ok_or_else(fail)?;
        let inside = |(e, size): (&Expr, Expr)| is_inside(e, &size, operation, join, part, program);
        let container = program.containers.get(&input.data).ok_or_else(fail)?;
        if input.subscripts.iter().zip(program.shape(container)).all(inside) {
            input.fill = None;
        }
    }
    for output in &mut made.outputs {
        if let Some(e) = output.subscripts.get_mut(join.position) {
            *e = moved(e, &part.from, &is_index).ok_or("its result is subscripted by no index")?;
        }
    }
    if let Op::Elementwise { code: whole, .. } = &mut made.op {
        *whole = code;
    }
    Ok(made)
}

/// Whether a subscript of a part stays inside a dim at the program's sizes, and is a plain index of the dim's size or needs no fill at all.
fn is_inside(e: &Expr, size: &Expr, operation: &Operation, join: &Join, part: &StoredRange, program: &Sdfg) -> bool {
    let own = |name: &str| if name == join.index { Some(part.size.clone()) } else { extent(operation, name, program) };
    if let Some(extent) = e.as_sym().and_then(own) {
        return are_equal(&extent, size);
    }
    let numbers = |e: &Expr| e.eval(&program.sizes).ok();
    let range = |name: &str| match own(name) {
        Some(extent) => Some((0, numbers(&extent)? - 1)),
        None => program.sizes.get(name).map(|value| (*value, *value)),
    };
    // Programs are checked at other sizes, too: only what holds for all of them counts.
    e.symbols().is_empty() && interval(e, &range).zip(numbers(size)).is_some_and(|((least, most), size)| least >= 0 && most < size)
}

/// Lets the makers of what part `n` copies write the slice, and its other readers read there. Says which container disappears.
fn in_place(program: &Sdfg, all: &Operations, at: &Placed, join: &Join, n: usize, changes: &mut Changes) -> Result<String, String> {
    let (operation, part) = (&at.operation, &join.parts[n]);
    let out = operation.outputs.first().ok_or("it has no result")?;
    let Scalar::Input(connector) = &part.code else {
        return Err(format!("a part of `{}` is computed and no copy", out.data));
    };
    let operand = operation.input(connector).ok_or("an operand is missing")?;
    let data = operand.data.clone();
    let positions = whole_of(program, operation, join, part, operand)
        .ok_or_else(|| format!("`{data}` is not copied whole for all sizes of `{}`", join.index))?;
    let container = is_own(program, &data)?;
    let joined = program.containers.get(&out.data).ok_or("its result is not declared")?;
    if container.dtype != joined.dtype {
        return Err(format!("`{data}` is stored in {} and `{}` in {}", container.dtype, out.data, joined.dtype));
    }
    let times = join.parts.iter().filter(|p| reads(operation, &p.code, &data)).count();
    if times != 1 || operation.inputs.iter().filter(|o| o.data == data).count() != 1 {
        return Err(format!("`{data}` stands in several parts of `{}`", out.data));
    }
    if all
        .readers(&data)
        .chain(all.writers(&data))
        .any(|o| o.operation.outputs.iter().chain(&o.operation.inputs).any(|x| x.data == out.data && !std::ptr::eq(o, at)))
    {
        return Err(format!("what makes or reads `{data}` reads `{}`, too", out.data));
    }
    // By dim of the joined container: the dim of the part, and how far it is moved.
    let slice = |operand: &Operand, of: &Operation| -> Option<Operand> {
        let is_index = |name: &str| of.indices.contains_key(name);
        let subscripts: Option<Vec<Expr>> = positions
            .iter()
            .enumerate()
            .map(|(d, from)| {
                let e = operand.subscripts.get(*from)?;
                let by = if d == join.position { part.from.clone() } else { Expr::Int(0) };
                moved(e, &by, &is_index)
            })
            .collect();
        Some(Operand { data: out.data.clone(), subscripts: subscripts?, ..operand.clone() })
    };
    for writer in all.writers(&data) {
        can_write_slice(&writer.operation)?;
    }
    let along = positions[join.position];
    for reader in all.readers(&data).filter(|o| !std::ptr::eq(*o, at)) {
        let of = &reader.operation;
        if !takes_shifted(of) {
            return Err(format!("`{}` reads all of `{data}`, and a {} reads no slices", of.name, of.label()));
        }
        for input in of.inputs.iter().filter(|i| i.data == data && i.fill.is_some()) {
            let own = input.subscripts.get(along).and_then(Expr::as_sym).and_then(|i| extent(of, i, program));
            if !own.is_some_and(|own| are_equal(&own, &part.size)) {
                return Err(format!("`{}` reads a fill beside `{data}`, where the next part would lie", of.name));
            }
        }
    }
    // Nothing fails from here on but subscripts that are no sums.
    let failed = || format!("`{data}` is subscripted by no sum of indices");
    let mut rewritten = Vec::new();
    for placed in all.writers(&data).chain(all.readers(&data)).filter(|o| !std::ptr::eq(*o, at)) {
        let mut made = changes.at(placed).clone();
        for operation in &mut made {
            let of = operation.clone();
            for operand in operation.outputs.iter_mut().chain(&mut operation.inputs).filter(|o| o.data == data) {
                *operand = slice(operand, &of).ok_or_else(failed)?;
            }
        }
        rewritten.push((placed, made));
    }
    for (placed, made) in rewritten {
        *changes.at(placed) = made;
    }
    Ok(data)
}

/// Whether code reads a container through an operand.
fn reads(operation: &Operation, code: &Scalar, data: &str) -> bool {
    code.inputs().iter().any(|c| operation.input(c).is_some_and(|o| o.data == data))
}

/// By dim of the result: the dim of a container whose elements a part copies, each one once; `None` where it does not for all sizes.
fn whole_of(program: &Sdfg, operation: &Operation, join: &Join, part: &StoredRange, operand: &Operand) -> Option<Vec<usize>> {
    let out = operation.outputs.first()?;
    let container = program.containers.get(&operand.data)?;
    let is_index = |name: &str| operation.indices.contains_key(name);
    let with = BTreeMap::from([(join.index.clone(), Expr::sym(join.index.as_str()) + part.from.clone())]);
    let subscripts: Vec<Expr> = operand.subscripts.iter().map(|e| composed(e, &with, &is_index)).collect::<Option<_>>()?;
    if subscripts.len() != out.subscripts.len() {
        return None;
    }
    let sizes = program.shape(container);
    out.subscripts
        .iter()
        .enumerate()
        .map(|(d, e)| {
            let from = subscripts.iter().position(|s| s == e)?;
            let own = if d == join.position { part.size.clone() } else { extent(operation, e.as_sym()?, program)? };
            are_equal(&own, &sizes[from]).then_some(from)
        })
        .collect()
}

/// Whether an operator can write a slice of a container.
fn can_write_slice(operation: &Operation) -> Result<(), String> {
    let is_index = |name: &str| operation.indices.contains_key(name);
    let windowed = operation.inputs.iter().any(|o| o.fill.is_some() || o.subscripts.iter().any(|e| e.as_shifted_index(is_index).is_none()));
    match &operation.op {
        Op::Elementwise { .. } => Ok(()),
        Op::Contraction { .. } if !windowed => Ok(()),
        Op::Contraction { .. } => Err(format!("`{}` sums over windows, and such a sum begins with all of its container", operation.name)),
        _ => Err(format!("`{}` ({}) writes whole containers", operation.name, operation.label())),
    }
}
