//! Programs of DaCe, read as recipes: `.sdfg` files of DaCe 1.x and 2.x.
//!
//! A program is run once for all elements: what a container holds is an expression of its place (`slot`), a map's parameters are indices
//! of what it writes, and a write conflict resolution is a reduction over those that the place does not name. Sizes are known. Loops
//! become tensors with the time as an index (`loops`); branches choose each element (`control`). The expressions that are more than an
//! element of another tensor are the recipe's steps (`text`).
//!
//! ```text
//! model.sdfg ──graph──▶ regions, states, memlets ──control, state──▶ expressions ──text──▶ recipe.yaml
//! ```

mod control;
mod evaluate;
mod frame;
mod graph;
mod integer;
mod library;
mod loops;
mod nested;
mod python;
mod reader;
mod slot;
mod state;
mod sums;
mod text;
mod value;

use crate::import::recipe::{Declaration, Writer};
use crate::import::{ImportErrors, ImportProblem, Imported};
use crate::load::load_str;
use frame::{SdfgFrame, Symbol};
use graph::DaceSdfg;
use indexmap::{IndexMap, IndexSet};
use integer::AffineInteger;
use reader::Reader;
use sdfg::Dtype;
use slot::{Step, is_cheap};
use std::path::Path;
use value::{TensorId, Value};

/// Reads an SDFG; `sizes` are the values of its symbols.
///
/// # Errors
/// Everything that is wrong with the file, or not supported.
pub fn read(path: &Path, sizes: &[(String, i64)]) -> Result<Imported, ImportErrors> {
    let file = path.display().to_string();
    let failed = |problems| ImportErrors { file: file.clone(), problems };
    let fault = |why: String| failed(vec![ImportProblem::File(why)]);
    let bytes = std::fs::read(path).map_err(|e| fault(e.to_string()))?;
    if bytes.starts_with(&[0x1f, 0x8b]) {
        return Err(fault("it is compressed; write it with sdfg.save(path, compress=False)".into()));
    }
    let json: serde_json::Value = serde_json::from_slice(&bytes).map_err(|e| fault(format!("it is no JSON: {e}")))?;
    let sdfg = graph::sdfg(&json, "").map_err(fault)?;
    let open = open_sizes(&sdfg, sizes);
    if !open.is_empty() {
        return Err(failed(open));
    }
    let title = Path::new(&file).file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_else(|| "sdfg".into());
    let loops = written(&sdfg, sizes, &title, false);
    let holds = |imported: &Imported| load_str(&file, &imported.recipe, &[]).map(|_| ()).map_err(|errors| errors.to_string());
    let first = match loops {
        Ok(imported) => match holds(&imported) {
            Ok(()) => return Ok(imported),
            Err(why) => vec![ImportProblem::File(format!("its recipe does not hold: {why}"))],
        },
        Err(problems) => problems,
    };
    // What is no loop over time may be short enough to be written out.
    match written(&sdfg, sizes, &title, true) {
        Ok(imported) if holds(&imported).is_ok() => Ok(imported),
        Ok(_) => Err(failed(first)),
        Err(problems) => Err(failed(if first.iter().any(|p| matches!(p, ImportProblem::File(_))) { problems } else { first })),
    }
}

/// Symbols of sizes that nobody gives, and given ones that the program lacks.
fn open_sizes(sdfg: &DaceSdfg, sizes: &[(String, i64)]) -> Vec<ImportProblem> {
    let mut problems = vec![];
    let mut known: IndexSet<String> = sdfg.symbols.iter().cloned().collect();
    for (name, array) in sdfg.arrays.iter().filter(|(_, array)| !array.transient) {
        for ast in &array.shape {
            let mut names = IndexSet::new();
            ast.names(&mut names);
            for size in names {
                known.insert(size.clone());
                let open = ImportProblem::Open { input: name.clone(), size: size.clone() };
                let same = |p: &ImportProblem| matches!(p, ImportProblem::Open { size: own, .. } if *own == size);
                if !sizes.iter().any(|(given, _)| *given == size) && !problems.iter().any(same) {
                    problems.push(open);
                }
            }
        }
    }
    for (name, value) in sizes {
        if !known.contains(name) {
            let all: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
            let has = if all.is_empty() { "none".into() } else { all.join(", ") };
            problems.push(ImportProblem::NoSuchSize { size: name.clone(), has });
        } else if *value < 1 {
            problems.push(ImportProblem::File(format!("the size `{name}` is {value}, and sizes are 1 at least")));
        }
    }
    problems
}

/// The type in which a recipe declares an array.
fn declared_dtype(name: &str) -> Option<Dtype> {
    Some(match name {
        "float64" => Dtype::F64,
        "float32" => Dtype::F32,
        "float16" => Dtype::F16,
        "bfloat16" => Dtype::Bf16,
        "int64" | "uint64" | "uint32" => Dtype::I64,
        "int32" | "uint16" => Dtype::I32,
        "int16" | "int8" => Dtype::I16,
        "uint8" | "bool" | "bool_" => Dtype::U8,
        _ => return None,
    })
}

/// The recipe of a program.
fn written(sdfg: &DaceSdfg, sizes: &[(String, i64)], title: &str, unrolled: bool) -> Result<Imported, Vec<ImportProblem>> {
    let whole_arguments = !sdfg.version.is_empty() && !sdfg.version.starts_with(['0', '1']);
    let mut reader = Reader { unrolled, whole_arguments, ..Reader::default() };
    let mut frame = SdfgFrame { sdfg, slots: IndexMap::new(), symbols: IndexMap::new(), path: String::new() };
    let mut problems = vec![];
    for (name, size) in sizes {
        frame.symbols.insert(name.clone(), Symbol::Integer(AffineInteger::number(*size)));
    }
    let mut given: IndexMap<String, TensorId> = IndexMap::new();
    for (name, array) in sdfg.arrays.iter().filter(|(_, array)| !array.transient) {
        let fault = |why: String| ImportProblem::Tensor { name: name.clone(), why };
        if declared_dtype(&array.dtype).is_none() {
            problems.push(fault(format!("it is of type {}, which recipes do not have", array.dtype)));
            continue;
        }
        let shape = match reader.shape(&frame, array) {
            Ok(shape) if shape.iter().all(|size| *size > 0) => shape,
            Ok(_) => {
                problems.push(fault("it has no elements".into()));
                continue;
            }
            Err(_) => {
                problems.push(fault("its shape is not known".into()));
                continue;
            }
        };
        let slot = reader.empty(name, &shape, true);
        let tensor = reader.made.tensor(name, shape, true, array.is_whole());
        let at = slot.borrow().axes.iter().map(|id| AffineInteger::index(*id)).collect();
        slot.borrow_mut().body = Some(reader.made.read(tensor, at));
        frame.slots.insert(name.clone(), slot);
        given.insert(name.clone(), tensor);
    }
    if problems.is_empty() {
        reader.region(&mut frame, &sdfg.region);
    }
    problems.extend(reader.problems.iter().map(|p| ImportProblem::Part {
        state: p.state.clone(),
        node: p.node.clone(),
        why: p.why.clone(),
    }));
    if !problems.is_empty() {
        return Err(problems);
    }
    // What the program has written is its result.
    let mut outputs: Vec<(String, TensorId)> = vec![];
    for (name, tensor) in &given {
        let slot = frame.slots[name].clone();
        let axes = slot.borrow().axes.clone();
        let Some(body) = slot.borrow().body.clone() else { continue };
        let plain = |body: &Value| match body {
            Value::Read { tensor, at, fill: None } => {
                let own = at.len() == axes.len() && at.iter().zip(&axes).all(|(i, axis)| i.as_index() == Some(*axis));
                own.then_some(*tensor)
            }
            _ => None,
        };
        if plain(&body) == Some(*tensor) {
            continue;
        }
        if !is_cheap(&body) {
            reader.made.settle(&slot);
        }
        let body = slot.borrow().body.clone().unwrap_or(Value::Undefined);
        let free = plain(&body).filter(|own| !reader.made.tensors[*own].given && !outputs.iter().any(|(_, other)| other == own));
        let output = match free {
            Some(tensor) => tensor,
            None => {
                let body = if body == Value::Undefined { Value::Number(0.0) } else { body };
                let comment = slot.borrow().comment.clone();
                match reader.made.stepped(name, &axes, body, &comment, false) {
                    Value::Read { tensor, .. } => tensor,
                    _ => continue,
                }
            }
        };
        outputs.push((name.clone(), output));
    }
    if outputs.is_empty() {
        return Err(vec![ImportProblem::File("it writes none of its arguments".into())]);
    }
    reader.made.settle_rows();
    Ok(finished(sdfg, &reader, sizes, title, &given, &outputs))
}

/// The text.
fn finished(
    sdfg: &DaceSdfg,
    reader: &Reader,
    sizes: &[(String, i64)],
    title: &str,
    given: &IndexMap<String, TensorId>,
    outputs: &[(String, TensorId)],
) -> Imported {
    let made = &reader.made;
    let wanted: Vec<TensorId> = outputs.iter().map(|(_, tensor)| *tensor).collect();
    let order = text::ordered(made, &wanted);
    let mut read = IndexSet::new();
    order.iter().for_each(|n| text::tensors(&made.steps[*n].value, &mut read));
    let mut writer = Writer::default();
    for (name, size) in sizes {
        if let Ok(size) = usize::try_from(*size) {
            writer.name_size(size, name);
        }
    }
    let mut names = vec![String::new(); made.tensors.len()];
    let (mut inputs, mut results) = (vec![], vec![]);
    for (name, tensor) in given.iter().filter(|(_, tensor)| read.contains(*tensor)) {
        names[*tensor] = writer.unique(name);
        inputs.push((name.clone(), names[*tensor].clone()));
        let mut used = IndexMap::new();
        let dims = made.tensors[*tensor].sizes.iter().map(|size| writer.index(&mut used, *size as usize).name).collect();
        let kind = &sdfg.arrays[name].dtype;
        let range = kind.starts_with("bool").then(|| "[0, 1]".to_string());
        writer.inputs.push(Declaration { name: names[*tensor].clone(), dims, dtype: declared_dtype(kind).unwrap_or(Dtype::F64), range });
    }
    for (name, tensor) in outputs {
        let both = inputs.iter().any(|(own, _)| own == name);
        names[*tensor] = writer.unique(&if both { format!("{name}_new") } else { name.clone() });
        results.push((name.clone(), names[*tensor].clone()));
    }
    for n in &order {
        let tensor = made.steps[*n].tensor;
        if names[tensor].is_empty() {
            names[tensor] = writer.unique(&made.tensors[tensor].wanted);
        }
    }
    limit_rows(made, &order, &names, &mut writer);
    let mut text = text::StepText::new(made, &names, &mut writer);
    for n in &order {
        let step: &Step = &made.steps[*n];
        text.step(step);
    }
    let version = if sdfg.version.is_empty() { String::new() } else { format!(" {}", sdfg.version) };
    let about = format!("imported from the SDFG {} of DaCe{version}", sdfg.name);
    // What DaCe computes in the widest of its types.
    let wide = |name: &str| sdfg.arrays.values().any(|array| array.dtype == name);
    let dtype = ["float64", "float32", "float16"].into_iter().find(|name| wide(name)).and_then(declared_dtype).unwrap_or(Dtype::F64);
    let named: Vec<String> = results.iter().map(|(_, name)| name.clone()).collect();
    let recipe = writer.text(&about, title, dtype, &named);
    Imported { recipe, inputs, outputs: results, steps: writer.steps(), weights: vec![] }
}

/// Inputs that name rows hold numbers of rows.
fn limit_rows(made: &slot::Made, order: &[usize], names: &[String], writer: &mut Writer) {
    use integer::Atom;
    fn each(value: &Value, f: &mut dyn FnMut(TensorId, usize, &AffineInteger)) {
        if let Value::Read { tensor, at, .. } = value {
            at.iter().enumerate().for_each(|(axis, i)| f(*tensor, axis, i));
        }
        value.parts().into_iter().for_each(|part| each(part, f));
    }
    for n in order {
        each(&made.steps[*n].value, &mut |tensor, axis, i| {
            if let [(Atom::Element(of), 1)] = i.terms.as_slice()
                && let Value::Read { tensor: naming, .. } = &**of
            {
                writer.limit(&names[*naming], 0, made.tensors[tensor].sizes[axis]);
            }
        });
    }
}
