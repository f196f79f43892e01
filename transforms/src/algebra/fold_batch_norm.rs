//! Batch normalization with known statistics folded into one factor and one addend per channel.
//!
//! ```text
//! y = Σ k·x                                s = g·rsqrt(v + ε)
//! n = (y − m)·rsqrt(v + ε)           →     t = b − m·rsqrt(v + ε)·g
//! z = g·n + b                              y = Σ k·x;  z = s·y + t
//! ```
//!
//! *Legal when* each operation of the chain is affine in what the one before it makes, reads it element by element, and reads besides it
//! only what the caller gives, with fewer dims than the result; nothing else reads what lies within the chain. Sums are rounded in
//! another order.
//! *Moves less because* the chain is one operation, with two operands in the place of four; it computes two operations an element and no
//! square root, which the kernel of the contraction does behind its sums.
//! *Not handled*: statistics that the program computes. The weights stay what they are: multiplied by `s` they would be written and read
//! again in each step, and a product of the sum costs nothing behind it.

use crate::pass::{Context, Pass, Rewritten, Stopped, refused_at};
use indexmap::{IndexMap, IndexSet};
use sdfg::library::arithmetic;
use sdfg::{Binary, Container, Expr, Op, Operand, Operation, Role, Scalar, Sdfg, Unary, Unit};
use std::collections::BTreeMap;

/// Folds every chain of affine operations by channel.
#[derive(Clone, Copy, Debug, Default)]
pub struct FoldBatchNorm;

impl Pass for FoldBatchNorm {
    fn name(&self) -> &'static str {
        "fold batch norm"
    }

    fn run(&self, program: &Sdfg, _: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let mut operations = Vec::new();
        for (_, _, unit) in program.units() {
            if let Unit::Operation(operation) = unit {
                operations.push(operation);
            }
        }
        let (mut chains, mut refused) = (Vec::new(), Vec::new());
        let mut within: IndexSet<&str> = IndexSet::new();
        for first in &operations {
            if within.contains(first.name.as_str()) {
                continue;
            }
            match Chain::from(first, &operations, program) {
                Ok(Some(chain)) => {
                    within.extend(chain.links.iter().map(|link| link.name.as_str()));
                    chains.push(chain);
                }
                Ok(None) => {}
                Err(why) => refused.push((first, why)),
            }
        }
        if chains.is_empty() {
            return Err(refused_at(self.name(), program, refused, "nothing is scaled and shifted by channel with what the caller gives"));
        }
        let mut result = program.clone();
        let made: Vec<String> = chains.iter().map(|chain| format!("`{}`", chain.last().name)).collect();
        for (state, _) in program.states() {
            result.map_operations(state, |result, operation| {
                let of = |chain: &&Chain| chain.links.iter().any(|link| link.name == operation.name);
                match chains.iter().find(of) {
                    Some(chain) if chain.last().name == operation.name => chain.folded(result),
                    Some(_) => vec![],
                    None => vec![operation],
                }
            })?;
        }
        for link in chains.iter().flat_map(|chain| &chain.links[..chain.links.len() - 1]) {
            for out in &link.outputs {
                result.containers.shift_remove(&out.data);
            }
        }
        Ok(Rewritten::program(format!("one factor and one addend by channel in {}", made.join(", ")), result))
    }
}

/// Operations that each scale and shift by channel what the one before makes.
struct Chain<'a> {
    links: Vec<&'a Operation>,
    /// What the first one reads.
    of: Operand,
    /// The whole chain is `scale · of + shift`; their connectors are those of `inputs`.
    scale: Scalar,
    shift: Scalar,
    inputs: Vec<Operand>,
    /// Indices of a channel, in the order of the result.
    channel: Vec<String>,
}

impl<'a> Chain<'a> {
    /// The longest chain that begins with an operation; `None` if folding it saves no arithmetic.
    ///
    /// # Errors
    /// Why an operation that looks like one of a chain is none.
    fn from(first: &'a Operation, operations: &'a [Operation], program: &Sdfg) -> Result<Option<Chain<'a>>, String> {
        let Some(of) = main_operand(first) else { return Ok(None) };
        let given = |data: &str| program.containers.get(data).is_some_and(|c| matches!(c.role, Role::Input | Role::Parameter));
        let readers = |data: &str| operations.iter().filter(|o| o.inputs.iter().any(|i| i.data == data)).collect::<Vec<_>>();
        let mut chain =
            Chain { links: vec![], of: of.clone(), scale: Scalar::Const(1.0), shift: Scalar::Const(0.0), inputs: vec![], channel: vec![] };
        let (mut at, mut cost, mut computed) = (Some(first), 0, None);
        while let Some(operation) = at {
            let Some(main) = main_operand(operation) else { break };
            let (Op::Elementwise { code, .. }, [out]) = (&operation.op, operation.outputs.as_slice()) else { break };
            let Some((scale, shift)) = affine(code, &main.connector) else { break };
            let others: Vec<&Operand> = operation.inputs.iter().filter(|i| i.connector != main.connector).collect();
            if others.is_empty() && (scale.clone(), shift.clone()) == (Scalar::Const(1.0), Scalar::Const(0.0)) {
                break;
            }
            let smaller = |o: &&Operand| o.index_names().is_some_and(|names| names.len() < main.subscripts.len());
            if !others.iter().all(smaller) || code.drops() {
                break;
            }
            if let Some(other) = others.iter().find(|o| !given(&o.data)) {
                computed = Some(format!("`{}`, which it is scaled or shifted by, is computed by the program", other.data));
                break;
            }
            let connectors: BTreeMap<String, String> = others.iter().map(|o| (o.connector.clone(), chain.connector(o))).collect();
            let (scale, shift) = (scale.rename_inputs(&connectors), shift.rename_inputs(&connectors));
            chain.shift = scale.clone() * chain.shift + shift;
            chain.scale = scale * chain.scale;
            cost += arithmetic(code);
            chain.links.push(operation);
            let transient = program.containers.get(&out.data).is_some_and(|c| c.role == Role::Transient);
            at = match readers(&out.data).as_slice() {
                [only] if transient && only.pass == operation.pass => Some(*only).filter(|next| {
                    main_operand(next).is_some_and(|main| main.data == out.data && main.subscripts.len() == out.subscripts.len())
                }),
                _ => None,
            };
        }
        if chain.links.is_empty() {
            return computed.map_or(Ok(None), Err);
        }
        let indices: IndexSet<String> = chain.inputs.iter().flat_map(|o| &o.subscripts).flat_map(Expr::symbols).collect();
        let order = chain.last().outputs.iter().flat_map(|out| &out.subscripts).filter_map(Expr::as_sym);
        chain.channel = order.filter(|index| indices.contains(*index)).map(String::from).collect();
        let saves = cost > if chain.shift == Scalar::Const(0.0) { 1 } else { 2 };
        Ok(Some(chain).filter(|chain| saves && !indices.is_empty() && chain.channel.len() == indices.len()))
    }

    fn last(&self) -> &'a Operation {
        self.links[self.links.len() - 1]
    }

    /// The connector of an operand among those of the whole chain.
    fn connector(&mut self, operand: &Operand) -> String {
        let known = self.inputs.iter().find(|known| known.data == operand.data && known.subscripts == operand.subscripts);
        if let Some(known) = known {
            return known.connector.clone();
        }
        let connector = format!("c{}", self.inputs.len());
        self.inputs.push(operand.like(&connector, &operand.data));
        connector
    }

    /// The factor, the addend unless it is 0, and the operation that applies them.
    fn folded(&self, program: &mut Sdfg) -> Vec<Operation> {
        let last = self.last();
        let indices: IndexMap<String, String> =
            self.channel.iter().filter_map(|index| Some((index.clone(), last.indices.get(index)?.clone()))).collect();
        let subscripts: Vec<Expr> = self.channel.iter().map(Expr::sym).collect();
        let mut operations = Vec::new();
        let mut inputs = vec![self.of.like("x", &self.of.data)];
        let mut code = Scalar::input("x");
        for (name, value) in [("scale", &self.scale), ("shift", &self.shift)] {
            let nothing = if name == "scale" { 1.0 } else { 0.0 };
            if *value == Scalar::Const(nothing) {
                continue;
            }
            let data = program.fresh_name(&format!("{}.{name}", last.outputs[0].data));
            let Some(like) = program.containers.get(&last.outputs[0].data).cloned() else { continue };
            let dims = indices.values().cloned().collect();
            let mut made = Container { dims, dtype: like.dtype.accumulator(), grad: false, ..like.like(data.clone()) };
            made.role = Role::Transient;
            program.add_container(made);
            let operand =
                |connector: &str| Operand { connector: connector.into(), data: data.clone(), subscripts: subscripts.clone(), fill: None };
            let used = value.inputs();
            operations.push(Operation {
                name: data.clone(),
                op: Op::Elementwise { label: format!("batch norm {name}"), code: value.clone() },
                indices: indices.clone(),
                inputs: self.inputs.iter().filter(|o| used.contains(&o.connector)).cloned().collect(),
                outputs: vec![operand("out")],
                pass: last.pass,
                origin: last.origin.clone(),
            });
            inputs.push(operand(name));
            code = if name == "scale" { code * Scalar::input(name) } else { code + Scalar::input(name) };
        }
        operations.push(Operation { op: Op::Elementwise { label: "batch norm".into(), code }, inputs, ..last.clone() });
        operations
    }
}

/// The operand of an element-wise operation that has all indices of the result, if there is one and it is read element by element.
fn main_operand(operation: &Operation) -> Option<Operand> {
    let (Op::Elementwise { .. }, [out]) = (&operation.op, operation.outputs.as_slice()) else { return None };
    let names = out.index_names()?;
    let mut whole = operation.inputs.iter().filter(|i| i.index_names().is_some_and(|own| own.len() == names.len()));
    let main = whole.next()?;
    let same = main.index_names()?.iter().all(|name| names.contains(name)) && names.len() == operation.indices.len();
    (same && whole.next().is_none()).then(|| main.clone())
}

/// `(a, b)` where code is `a · connector + b`, and neither reads the connector.
fn affine(code: &Scalar, connector: &str) -> Option<(Scalar, Scalar)> {
    if !code.inputs().contains(connector) {
        return Some((Scalar::Const(0.0), code.clone()));
    }
    let free = |code: &Scalar| !code.inputs().contains(connector);
    let part = |code: &Scalar| affine(code, connector);
    Some(match code {
        Scalar::Input(_) => (Scalar::Const(1.0), Scalar::Const(0.0)),
        Scalar::Unary(Unary::Neg, of) => {
            let (a, b) = part(of)?;
            (Scalar::Const(-1.0) * a, Scalar::Const(0.0) - b)
        }
        Scalar::Binary(Binary::Add, x, y) => {
            let ((a, b), (c, d)) = (part(x)?, part(y)?);
            (a + c, b + d)
        }
        Scalar::Binary(Binary::Sub, x, y) => {
            let ((a, b), (c, d)) = (part(x)?, part(y)?);
            (a - c, b - d)
        }
        Scalar::Binary(Binary::Mul, x, y) if free(y) => {
            let (a, b) = part(x)?;
            (a * (**y).clone(), b * (**y).clone())
        }
        Scalar::Binary(Binary::Mul, x, y) if free(x) => {
            let (a, b) = part(y)?;
            ((**x).clone() * a, (**x).clone() * b)
        }
        Scalar::Binary(Binary::Div, x, y) if free(y) => {
            let (a, b) = part(x)?;
            let over = |value: Scalar| if value == Scalar::Const(0.0) { value } else { value / (**y).clone() };
            (over(a), over(b))
        }
        _ => return None,
    })
}
