//! Short forms that are read, not parsed: a scope as nested statements, an operation as one equation.
//!
//! ```text
//! map h=0:h, b=0:b, j=0:j {
//!   map k=0:k reduction { alpha.max[] max= x[h, b, j, k] }
//!   map k=0:k {
//!     alpha.exp[k] = exp(x[h, b, j, k] - alpha.max[])
//!     alpha.sum[] += alpha.exp[k]
//!   }
//! }
//! ```

use super::expression::print_with;
use super::lex::{name, number};
use super::print::{list, show_index};
use crate::library::Op;
use crate::library::operator::{Field, FieldKind};
use crate::memlet::{Combine, Memlet};
use crate::node::{Computation, Operand, Operation};
use crate::scalar::Scalar;
use crate::scope::{Item, Scope};
use crate::symbol::Expr;
use std::fmt::Write;

/// Widest line onto which a scope with a single item is put.
const WIDTH: usize = 110;

/// A scope as statements with their memlets in place: `out[subscripts] (combine)= code`.
///
/// A read outside its container gives the value after `else`: `x[h-1 else 0.0]`.
pub fn print_scope(scope: &Scope) -> String {
    let mut text = String::new();
    show_scope(scope, 0, &mut text);
    text
}

fn show_scope(scope: &Scope, depth: usize, into: &mut String) {
    let pad = "  ".repeat(depth);
    let head = format!("{pad}map {} {{", list(&scope.map.indices, show_index));
    let mut inside = String::new();
    for item in &scope.body {
        match item {
            Item::Scope(inner) => show_scope(inner, depth + 1, &mut inside),
            Item::Tasklet(computation) => {
                for statement in statements(computation) {
                    _ = writeln!(inside, "{pad}  {statement}");
                }
            }
            Item::Operation(operation) => _ = writeln!(inside, "{pad}  {}", print_operation(operation)),
        }
    }
    let single = matches!(scope.body.as_slice(), [Item::Tasklet(_) | Item::Operation(_)]) && inside.lines().count() == 1;
    if single && head.len() + inside.trim().len() + 3 <= WIDTH {
        _ = writeln!(into, "{head} {} }}", inside.trim());
    } else {
        _ = write!(into, "{head}\n{inside}{pad}}}\n");
    }
}

fn access(memlet: &Memlet) -> String {
    let fill = memlet.fill.map_or(String::new(), |f| format!(" else {}", number(f)));
    format!("{}[{}{fill}]", name(&memlet.data), list(&memlet.subset, |r| r.to_string()))
}

fn sign(combine: Option<Combine>) -> String {
    match combine {
        None => "=".into(),
        Some(Combine::Sum) => "+=".into(),
        Some(Combine::Product) => "*=".into(),
        Some(other) => format!("{other}="),
    }
}

/// One line for each write; an output that goes nowhere, or code that is missing, shows as its connector.
fn statements(computation: &Computation) -> Vec<String> {
    let read = |connector: &str| {
        let found = computation.reads.iter().find(|(c, _)| c == connector);
        found.map_or_else(|| name(connector), |(_, memlet)| access(memlet))
    };
    let statement = |(connector, memlet): &(String, Memlet)| {
        let code = computation.tasklet.code.iter().find(|(c, _)| c == connector);
        let value = code.map_or_else(|| name(connector), |(_, code)| print_with(code, &read));
        format!("{} {} {value}", access(memlet), sign(memlet.wcr))
    };
    computation.writes.iter().map(statement).collect()
}

/// An operation as one equation: `qq.dot[p,h,b,j] = contraction wq[p,h,i] * x[i,b,j]`.
pub fn print_operation(operation: &Operation) -> String {
    let show = |o: &Operand| {
        let subscripts: Vec<String> = o.subscripts.iter().map(Expr::to_string).collect();
        format!("{}[{}]", name(&o.data), subscripts.join(","))
    };
    let outputs = list(&operation.outputs, show);
    let read = |connector: &str| operation.input(connector).map_or_else(|| name(connector), show);
    let inline = |code: &Scalar| print_with(code, &read);
    let scaled = |scale: &Scalar| if *scale == Scalar::Const(1.0) { String::new() } else { format!("({}) * ", inline(scale)) };
    let label = operation.label();
    let over = |over: &[String]| over.iter().map(|i| name(i)).collect::<Vec<_>>().join(",");
    let inputs = list(&operation.inputs, show);
    let value = match &operation.op {
        Op::Contraction { scale } => format!("{}{} * {}", scaled(scale), read("a"), read("b")),
        Op::Elementwise { code, .. } => inline(code),
        Op::Reduce { combine, code, scale, .. } => {
            let reduced: Vec<String> = operation.reduced().into_iter().map(String::from).collect();
            format!("{}{combine}({}, over: {})", scaled(scale), inline(code), over(&reduced))
        }
        other => {
            let field = |(shape, field): (FieldKind, Field)| match (shape, field) {
                (_, Field::Over(indices)) => format!(" over {}", over(&indices)),
                (FieldKind::Number(word), Field::Number(value)) => format!(" {word} {}", number(value)),
                (FieldKind::Code(word), Field::Code(code)) => format!(" {word} {}", inline(&code)),
                (_, Field::Combine(combine)) => format!(" {combine}"),
                _ => String::new(),
            };
            inputs + &other.fields().into_iter().map(field).collect::<String>()
        }
    };
    format!("{outputs} = {label} {value}")
}
