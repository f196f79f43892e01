//! A listing of operations, one a line, for tests to read.

use recipes::load::{Recipe, load_str};
use sdfg::{Binary, Op, Operand, Operation, Scalar, Unit};
use std::fmt::Write;

/// `steps` under dims and tensors that most tests share.
pub fn with_steps(steps: &[&str]) -> String {
    let mut text = String::from(
        "model: test\n\
         dims: {b: 2, j: 3, k: j, i: 5, u: 7, p: 4}\n\
         constants: {half: 0.5}\n\
         inputs:\n\
         \x20 x: [i, b, j]\n\
         \x20 s: [b, j, k]\n\
         parameters:\n\
         \x20 w: [u, i]\n\
         \x20 c: [u]\n\
         \x20 g: [i]\n\
         steps:\n",
    );
    for step in steps {
        writeln!(text, "  - {step}").unwrap();
    }
    text
}

/// The operations of a program, one a line: `output[…] = label: code <- inputs`.
pub fn listing(recipe: &Recipe) -> Vec<String> {
    let units = recipe.program.units();
    let mut lines = Vec::new();
    for (_, _, unit) in &units {
        if let Unit::Operation(operation) = unit {
            lines.push(line(operation));
        }
    }
    lines
}

pub fn operations(steps: &[&str]) -> Vec<String> {
    match load_str("test.yaml", &with_steps(steps), &[]) {
        Ok(recipe) => listing(&recipe),
        Err(errors) => panic!("{errors}"),
    }
}

pub fn errors(text: &str) -> Vec<String> {
    match load_str("t.yaml", text, &[]) {
        Ok(recipe) => panic!("no error in:\n{text}\n{:#?}", listing(&recipe)),
        Err(errors) => errors.errors.iter().map(ToString::to_string).collect(),
    }
}

fn line(operation: &Operation) -> String {
    let operands = |operands: &[Operand]| {
        let shown: Vec<String> = operands.iter().map(|o| format!("{}={}", o.connector, subscripted(o))).collect();
        shown.join(" ")
    };
    let code = match &operation.op {
        Op::Contraction { scale } => show(scale),
        Op::Elementwise { code, .. } => show(code),
        Op::Reduce { combine, code, scale, .. } => format!("{} {combine} {}", show(scale), show(code)),
        Op::Softmax { over } => over.join(","),
        Op::Normalize { over, eps } => format!("{} {eps:e}", over.join(",")),
        other => format!("{other:?}"),
    };
    let first = &operation.outputs[0];
    assert_eq!(operation.name, first.data, "an operation is called what its first output is called");
    let others = operands(&operation.outputs[1..]);
    let more = if others.is_empty() { String::new() } else { format!(" and {others}") };
    format!("{} = {}: {code} <- {}{more}", subscripted(first), operation.label(), operands(&operation.inputs))
}

fn subscripted(operand: &Operand) -> String {
    let subscripts: Vec<String> = operand.subscripts.iter().map(ToString::to_string).collect();
    format!("{}[{}]", operand.data, subscripts.join(","))
}

fn show(scalar: &Scalar) -> String {
    match scalar {
        Scalar::Const(value) => value.to_string(),
        Scalar::Input(name) => name.clone(),
        Scalar::Index(expr) => format!("#{expr}"),
        Scalar::Unary(op, a) => format!("{}({})", format!("{op:?}").to_lowercase(), show(a)),
        Scalar::Binary(op, a, b) => {
            let sign = match op {
                Binary::Add => "+",
                Binary::Sub => "-",
                Binary::Mul => "*",
                Binary::Div => "/",
                Binary::Le => "<=",
                other => return format!("{other:?}({}, {})", show(a), show(b)),
            };
            format!("({} {sign} {})", show(a), show(b))
        }
        Scalar::Select(c, a, b) => format!("({} ? {} : {})", show(c), show(a), show(b)),
        Scalar::Keep { stream, element, rate } => format!("keep({stream}, {element}, {rate})"),
        Scalar::Kept { stream, rate } => format!("kept({stream}, {rate})"),
    }
}
