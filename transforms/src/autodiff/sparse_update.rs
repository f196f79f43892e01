//! Sparse updates: where all that is done with the gradient of a table is to subtract a multiple of it, the rows are changed and nothing
//! else is.
//!
//! ```text
//! d_e = scatter(d_y at ids);  e.new = e - rate·d_e     →     e.new = scatter(-rate·d_y at ids) on top of e
//! ```
//!
//! *Legal when* the gradient is a scatter or a sum of scatters of equal subscripts, nothing else reads it or its parts, and the new value
//! is the old one plus a multiple of the gradient by numbers. *Moves less because* the table is read and written at these rows alone where
//! the new value lies in the place of the old one; else as much as before, without the gradient. *Not handled*: optimizers with state for
//! each element, norms of gradients: those need all rows. *Source*: as sparse gradients of embeddings in other frameworks.

use super::differentiate::options::Update;
use sdfg::library::calculus::{fold_inline, pullback};
use sdfg::library::scatter::parts;
use sdfg::{Expr, Op, Operand, Operation, Scalar, Sdfg};
use std::collections::{BTreeMap, BTreeSet};

/// The backward operations and the update with every table that can be updated so.
pub(super) fn folded(program: &mut Sdfg, backward: Vec<Operation>, update: &Update) -> (Vec<Operation>, Update) {
    let mut all = Folding { program, backward, update: update.clone() };
    let tables: Vec<(String, String)> = update.containers.iter().filter_map(|c| Some((c.name.clone(), c.replaces.clone()?))).collect();
    for (new, table) in tables {
        all.fold(&new, &table);
    }
    (all.backward, all.update)
}

struct Folding<'a> {
    program: &'a mut Sdfg,
    backward: Vec<Operation>,
    update: Update,
}

impl Folding<'_> {
    fn writer(&self, data: &str) -> Option<&Operation> {
        self.backward.iter().chain(&self.update.operations).find(|o| o.outputs.iter().any(|out| out.data == data))
    }

    /// Operands of all operations that read a container.
    fn readers(&self, data: &str) -> usize {
        self.backward.iter().chain(&self.update.operations).flat_map(|o| &o.inputs).filter(|input| input.data == data).count()
    }

    /// The code that makes a container of others, with their names as its inputs, and the containers that are gone then.
    fn code(&self, data: &str, gone: &mut BTreeSet<String>) -> Option<Scalar> {
        let operation = self.update.operations.iter().find(|o| o.outputs.iter().any(|out| out.data == data))?;
        let Op::Elementwise { code, .. } = &operation.op else { return None };
        let out = operation.output("out")?;
        let same = |input: &Operand| input.fill.is_none() && (input.subscripts.is_empty() || input.subscripts == out.subscripts);
        if !operation.inputs.iter().all(same) {
            return None;
        }
        let names: BTreeMap<String, String> = operation.inputs.iter().map(|i| (i.connector.clone(), i.data.clone())).collect();
        let mut code = code.rename_inputs(&names);
        for input in &operation.inputs {
            let made_here = self.update.containers.iter().any(|c| c.name == input.data && c.replaces.is_none());
            if made_here && !input.subscripts.is_empty() && self.readers(&input.data) == 1 {
                let inner = self.code(&input.data, gone)?;
                code = code.inline(&input.data, &inner);
                gone.insert(input.data.clone());
            }
        }
        Some(code)
    }

    /// The scatters that a gradient is the sum of, and the containers that are gone then.
    fn scatters(&self, gradient: &str, gone: &mut BTreeSet<String>) -> Option<Vec<Operation>> {
        let writer = self.writer(gradient)?;
        if self.readers(gradient) != 1 {
            return None;
        }
        gone.insert(gradient.to_string());
        match &writer.op {
            Op::Scatter { .. } if writer.input("base").is_none() => Some(vec![writer.clone()]),
            Op::Elementwise { code, .. } if writer.inputs.len() > 1 && *code == sum(&writer.inputs) => {
                let each = writer.inputs.iter().map(|input| self.scatters(&input.data, gone)).collect::<Option<Vec<_>>>()?;
                Some(each.into_iter().flatten().collect())
            }
            _ => None,
        }
    }

    fn fold(&mut self, new: &str, table: &str) {
        let Some(made) = self.made(new, table) else { return };
        let (operation, gone) = made;
        let is_gone = |o: &Operation| o.outputs.iter().any(|out| gone.contains(&out.data) || out.data == new);
        self.backward.retain(|o| !is_gone(o));
        let at = self.update.operations.iter().position(|o| o.outputs.iter().any(|out| out.data == new));
        if let Some(own) = at.and_then(|at| self.update.operations.get_mut(at)) {
            *own = operation;
        }
        self.update.operations.retain(|o| !o.outputs.iter().any(|out| gone.contains(&out.data)));
        self.update.containers.retain(|c| !gone.contains(&c.name));
        for data in gone {
            self.program.containers.shift_remove(&data);
        }
    }

    fn made(&self, new: &str, table: &str) -> Option<(Operation, BTreeSet<String>)> {
        let gradient = format!("d_{table}");
        let mut gone = BTreeSet::new();
        let code = self.code(new, &mut gone)?;
        let scatters = self.scatters(&gradient, &mut gone)?;
        let is_number = |data: &String| {
            let of_update = self.update.containers.iter().find(|c| c.name == *data);
            of_update.or_else(|| self.program.containers.get(data)).is_some_and(|c| c.dims.is_empty())
        };
        let share = pullback(&code, &gradient, Scalar::input("x"));
        let linear = share.inputs().iter().all(|input| input == "x" || (is_number(input) && input != table && *input != gradient));
        if !linear || fold_inline(&code, &gradient, &Scalar::Const(0.0)) != Scalar::input(table) {
            return None;
        }
        let (first, own) = (scatters.first()?, self.writer(new)?);
        let Op::Scatter { over, code: inner, .. } = &first.op else { return None };
        let (out, old) = (first.output("out")?, self.program.containers.get(table)?);
        let alike = |o: &Operation| {
            matches!(&o.op, Op::Scatter { over: rows, code, .. } if rows == over && code == inner)
                && o.output("out").is_some_and(|other| other.subscripts == out.subscripts)
                && o.indices.iter().all(|(index, dim)| first.indices.get(index).is_none_or(|known| known == dim))
        };
        if !scatters.iter().all(alike) || *inner != Scalar::input("x") || old.dims.len() != out.subscripts.len() {
            return None;
        }
        let mut inputs = vec![out.like("base", table)];
        let mut indices = first.indices.clone();
        for (n, (index, part)) in scatters.iter().flat_map(|s| parts(s).into_iter().map(move |part| (s, part))).enumerate() {
            let suffix = if n == 0 { String::new() } else { n.to_string() };
            inputs.push(part.at.like(&format!("at{suffix}"), &part.at.data));
            inputs.push(part.x.like(&format!("x{suffix}"), &part.x.data));
            indices.extend(index.indices.clone());
        }
        for number in share.inputs().iter().filter(|input| *input != "x") {
            inputs.push(Operand { connector: number.clone(), data: number.clone(), subscripts: Vec::<Expr>::new(), fill: None });
        }
        let operation = Operation {
            name: new.to_string(),
            op: Op::Scatter { label: "sparse update".into(), over: over.clone(), code: share },
            indices,
            inputs,
            outputs: vec![out.like("out", new)],
            pass: own.pass,
            origin: own.origin.clone(),
        };
        Some((operation, gone))
    }
}

/// The sum of operands, in their order.
fn sum(inputs: &[Operand]) -> Scalar {
    inputs.iter().fold(Scalar::Const(0.0), |all, input| all + Scalar::input(input.connector.as_str()))
}
