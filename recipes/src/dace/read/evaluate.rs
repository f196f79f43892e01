//! Python as values: names are operands, symbols and containers.

use super::frame::{SdfgFrame, Symbol};
use super::integer::AffineInteger;
use super::python::{PythonExpr, PythonStatement};
use super::slot::{Made, SlotRef, UnreadReason, stop};
use super::value::{BinaryOperator, ReductionOperator, Value};
use indexmap::IndexMap;
use sdfg::Unary;
use sdfg::functions::InRecipes;

/// What a connector of a tasklet holds.
#[derive(Clone)]
pub enum TaskletOperand {
    Value(Value),
    /// A part of a container: where it begins, and its steps.
    Part(SlotRef, Vec<(AffineInteger, AffineInteger)>, Vec<bool>),
}

/// Names of a tasklet: its operands, and what it has assigned.
#[derive(Clone, Default)]
pub struct Names {
    pub operands: IndexMap<String, TaskletOperand>,
    pub values: IndexMap<String, Value>,
    /// Elements that the code itself picks to write: connector, subscripts, value.
    pub picked: Vec<(String, Vec<AffineInteger>, Value)>,
}

pub type Evaluated = Result<Value, UnreadReason>;

/// An expression as a value.
///
/// # Errors
/// Functions and forms that recipes lack, with their names.
pub fn value(made: &mut Made, frame: &SdfgFrame, names: &Names, ast: &PythonExpr) -> Evaluated {
    let indices = |made: &Made| made.indices.clone();
    Ok(match ast {
        PythonExpr::Number(n) => Value::Number(*n),
        PythonExpr::Name(name) => self::name(made, frame, names, name)?,
        PythonExpr::Negative(of) => value(made, frame, names, of)?.negative(),
        PythonExpr::Not(of) => value(made, frame, names, of)?.not(),
        PythonExpr::Choice(condition, a, b) => {
            let condition = value(made, frame, names, condition)?.truth();
            match condition.number() {
                Some(0.0) => value(made, frame, names, b)?,
                Some(_) => value(made, frame, names, a)?,
                None => Value::choice(condition, value(made, frame, names, a)?, value(made, frame, names, b)?),
            }
        }
        PythonExpr::Binary(op, a, b) => {
            let (a, b) = (value(made, frame, names, a)?, value(made, frame, names, b)?);
            let plain = match *op {
                "and" => return Ok(Value::both(a, b)),
                "or" => return Ok(Value::either(a, b)),
                "+" => BinaryOperator::Add,
                "-" => BinaryOperator::Sub,
                "*" => BinaryOperator::Mul,
                "**" => BinaryOperator::Pow,
                "<" => BinaryOperator::Lt,
                "<=" => BinaryOperator::Le,
                ">" => BinaryOperator::Gt,
                ">=" => BinaryOperator::Ge,
                "==" => BinaryOperator::Eq,
                "!=" => BinaryOperator::Ne,
                "//" => return Ok(floor_div(made, a, b)),
                "%" => return Ok(remainder(made, a, b, false)),
                "/" => BinaryOperator::Div,
                other => return stop(format!("`{other}` is not read")),
            };
            Value::compared(plain, a, b, &indices(made))
        }
        PythonExpr::Call(name, arguments) => call(made, frame, names, name, arguments)?,
        PythonExpr::Subscript(name, at) => {
            let at = at.iter().map(|ast| integer(made, frame, names, ast)).collect::<Result<Vec<_>, _>>()?;
            match names.operands.get(name) {
                Some(TaskletOperand::Part(slot, begins, dropped)) => picked(made, slot, begins, dropped, &at)?,
                Some(TaskletOperand::Value(value)) if at.iter().all(|i| i.constant() == Some(0)) => value.clone(),
                Some(TaskletOperand::Value(_)) => return stop(format!("`{name}` is one element, and its code picks another one")),
                None => {
                    let slot = frame.slots.get(name).cloned().ok_or_else(|| UnreadReason::Why(format!("`{name}` is not declared")))?;
                    made.element(&slot, &at)?
                }
            }
        }
        PythonExpr::Lambda(..) => return stop("a lambda stands where a value is expected"),
    })
}

/// The element of a part that code picks.
fn picked(made: &mut Made, slot: &SlotRef, begins: &[(AffineInteger, AffineInteger)], dropped: &[bool], at: &[AffineInteger]) -> Evaluated {
    let mut open = at.iter();
    let all = at.len() == begins.len();
    let mut places = vec![];
    for ((begin, step), dropped) in begins.iter().zip(dropped) {
        let own = if all || !dropped { open.next() } else { None };
        let factor = step.constant().ok_or_else(|| UnreadReason::Why("the step of a subset depends on an index".into()))?;
        places.push(begin.clone().plus(own.unwrap_or(&AffineInteger::number(0)), factor));
    }
    if open.next().is_some() {
        return stop("its code has more subscripts than the memlet has axes");
    }
    made.element(slot, &places)
}

fn name(made: &mut Made, frame: &SdfgFrame, names: &Names, name: &str) -> Evaluated {
    if let Some(value) = names.values.get(name) {
        return Ok(value.clone());
    }
    match names.operands.get(name) {
        Some(TaskletOperand::Value(value)) => return Ok(value.clone()),
        Some(TaskletOperand::Part(slot, begins, dropped)) if begins.iter().zip(dropped).all(|(_, dropped)| *dropped) => {
            return picked(made, slot, begins, dropped, &[]);
        }
        Some(TaskletOperand::Part(..)) => return stop(format!("`{name}` is several elements, and its code computes with all at once")),
        None => {}
    }
    match frame.symbols.get(name) {
        Some(Symbol::Integer(integer)) => return Ok(Value::integer(integer.clone())),
        Some(Symbol::Value(value)) => return Ok(value.clone()),
        None => {}
    }
    match (frame.slots.get(name).cloned(), name) {
        (Some(slot), _) => {
            let rank = slot.borrow().axes.len();
            made.element(&slot, &vec![AffineInteger::number(0); rank])
        }
        (None, "pi") => Ok(Value::Number(std::f64::consts::PI)),
        (None, "e") => Ok(Value::Number(std::f64::consts::E)),
        (None, "inf" | "INFINITY") => Ok(Value::Number(f64::INFINITY)),
        (None, "nan" | "NAN") => Ok(Value::binary(BinaryOperator::Sub, Value::Number(f64::INFINITY), Value::Number(f64::INFINITY))),
        _ if frame.sdfg.symbols.iter().any(|symbol| symbol == name) => {
            stop(format!("the symbol `{name}` has no value there; if it is a size, give it, as --set {name}=8"))
        }
        _ => stop(format!("`{name}` has no value there")),
    }
}

fn floor_div(made: &Made, a: Value, b: Value) -> Value {
    if let Some(divisor) = b.number().filter(|d| d.fract() == 0.0 && *d >= 1.0 && *d < 1e15) {
        if let Value::Integer(integer) = &a {
            return Value::integer(integer.floor_div(divisor as i64, &made.indices));
        }
        if let Value::Number(n) = a {
            return Value::Number((n / divisor).floor());
        }
    }
    Value::call("floor", Value::binary(BinaryOperator::Div, a, b))
}

/// The remainder of a quotient that is rounded down, or, as in C, to 0.
fn remainder(made: &Made, a: Value, b: Value, down: bool) -> Value {
    let is_positive = match &a {
        Value::Integer(integer) => integer.bounds(&made.indices).0.is_some_and(|low| low >= 0),
        Value::Number(n) => *n >= 0.0,
        _ => false,
    };
    let quotient = match down || is_positive {
        true => floor_div(made, a.clone(), b.clone()),
        false => truncated(made, Value::binary(BinaryOperator::Div, a.clone(), b.clone())),
    };
    Value::binary(BinaryOperator::Sub, a, Value::compared(BinaryOperator::Mul, quotient, b, &made.indices))
}

fn call(made: &mut Made, frame: &SdfgFrame, names: &Names, name: &str, arguments: &[PythonExpr]) -> Evaluated {
    let arguments = arguments.iter().map(|ast| value(made, frame, names, ast)).collect::<Result<Vec<_>, _>>()?;
    let several = |op: BinaryOperator| arguments.iter().cloned().reduce(|a, b| Value::compared(op, a, b, &made.indices));
    let none = || UnreadReason::Why(format!("`{name}` has no operand"));
    match name {
        "max" | "Max" | "maximum" | "fmax" => return several(BinaryOperator::Max).ok_or_else(none),
        "min" | "Min" | "minimum" | "fmin" => return several(BinaryOperator::Min).ok_or_else(none),
        _ => {}
    }
    let number = Value::Number;
    if let (Some(function), [x]) = (recipe_function(name), arguments.as_slice()) {
        return Ok(match (function, x) {
            ("floor", x) if made.is_integral(x) => x.clone(),
            ("sqrt", Value::Number(n)) if *n >= 0.0 => number(n.sqrt()),
            ("abs", Value::Number(n)) => number(n.abs()),
            _ => Value::call(function, x.clone()),
        });
    }
    match (name, arguments.as_slice()) {
        ("float" | "double" | "float64" | "float32" | "float16" | "real" | "conj", [x]) => Ok(x.clone()),
        ("bool" | "bool_", [x]) => Ok(x.clone().truth()),
        ("int" | "int8" | "int16" | "int32" | "int64" | "uint8" | "uint16" | "uint32" | "uint64" | "trunc" | "long", [x]) => {
            Ok(truncated(made, x.clone()))
        }
        ("fabs" | "absolute", [x]) => Ok(Value::call("abs", x.clone())),
        ("ceil" | "ceiling", [x]) if made.is_integral(x) => Ok(x.clone()),
        ("ceil" | "ceiling", [x]) => Ok(Value::call("floor", x.clone().negative()).negative()),
        ("expm1", [x]) => Ok(Value::binary(BinaryOperator::Sub, Value::call("exp", x.clone()), number(1.0))),
        ("exp2", [x]) => Ok(Value::binary(BinaryOperator::Pow, number(2.0), x.clone())),
        ("log2", [x]) => Ok(Value::binary(BinaryOperator::Mul, Value::call("log", x.clone()), number(std::f64::consts::LOG2_E))),
        ("log10", [x]) => Ok(Value::binary(BinaryOperator::Mul, Value::call("log", x.clone()), number(std::f64::consts::LOG10_E))),
        ("tan", [x]) => Ok(Value::binary(BinaryOperator::Div, Value::call("sin", x.clone()), Value::call("cos", x.clone()))),
        ("cosh" | "sinh", [x]) => {
            let (up, down) = (Value::call("exp", x.clone()), Value::call("exp", x.clone().negative()));
            let op = if name == "cosh" { BinaryOperator::Add } else { BinaryOperator::Sub };
            Ok(Value::binary(
                op,
                Value::binary(BinaryOperator::Mul, number(0.5), up),
                Value::binary(BinaryOperator::Mul, number(0.5), down),
            ))
        }
        ("square", [x]) => Ok(Value::binary(BinaryOperator::Mul, x.clone(), x.clone())),
        ("reciprocal", [x]) => Ok(Value::binary(BinaryOperator::Div, number(1.0), x.clone())),
        ("negative" | "__neg", [x]) => Ok(x.clone().negative()),
        ("relu", [x]) => Ok(Value::binary(BinaryOperator::Max, number(0.0), x.clone())),
        ("logical_not" | "Not", [x]) => Ok(x.clone().not()),
        ("isnan", [x]) => Ok(Value::binary(BinaryOperator::Ne, x.clone(), x.clone())),
        ("sign" | "sgn", [x]) => {
            let below = Value::binary(BinaryOperator::Lt, x.clone(), number(0.0));
            Ok(Value::binary(BinaryOperator::Sub, Value::binary(BinaryOperator::Gt, x.clone(), number(0.0)), below))
        }
        ("pow" | "power" | "ipow", [a, b]) => Ok(Value::binary(BinaryOperator::Pow, a.clone(), b.clone())),
        ("int_floor" | "floor_divide", [a, b]) => Ok(floor_div(made, a.clone(), b.clone())),
        ("int_ceil" | "int_ceiling", [a, b]) => Ok(floor_div(made, a.clone().negative(), b.clone()).negative()),
        ("Mod" | "PyMod" | "mod" | "remainder" | "py_mod", [a, b]) => Ok(remainder(made, a.clone(), b.clone(), true)),
        ("CMod" | "fmod", [a, b]) => Ok(remainder(made, a.clone(), b.clone(), false)),
        ("AND" | "And" | "logical_and", [a, b]) => Ok(Value::both(a.clone(), b.clone())),
        ("OR" | "Or" | "logical_or", [a, b]) => Ok(Value::either(a.clone(), b.clone())),
        ("IfExpr" | "where" | "ITE", [c, a, b]) => Ok(Value::choice(c.clone().truth(), a.clone(), b.clone())),
        (name, arguments) => stop(format!(
            "the function `{name}` of {} operands is not read; write it with exp, log, sqrt, sin, cos, atan, tanh, erf, pow, floor, abs, max and min",
            arguments.len()
        )),
    }
}

/// The function of recipes that Python calls so, or NumPy, whose inverse functions have longer names.
fn recipe_function(name: &str) -> Option<&'static str> {
    let name = match name {
        "arcsin" => "asin",
        "arccos" => "acos",
        "arctan" => "atan",
        name => name,
    };
    let mut functions = Unary::ALL.iter().map(|function| function.row()).filter(|row| row.in_recipes != InRecipes::Absent);
    functions.find(|row| row.name == name).map(|row| row.name)
}

/// A value without its fraction, as C casts it.
pub fn truncated(made: &Made, x: Value) -> Value {
    match x {
        Value::Number(n) => Value::Number(n.trunc()),
        x if made.is_integral(&x) => x,
        x => {
            let below = Value::binary(BinaryOperator::Lt, x.clone(), Value::Number(0.0));
            let up = Value::call("floor", x.clone().negative()).negative();
            Value::choice(below, up, Value::call("floor", x))
        }
    }
}

/// An expression as a whole number over indices.
///
/// # Errors
/// What is not affine.
pub fn integer(made: &mut Made, frame: &SdfgFrame, names: &Names, ast: &PythonExpr) -> Result<AffineInteger, UnreadReason> {
    let (numerator, denominator) = rational(made, frame, names, ast)?;
    if numerator.constant % denominator == 0 && numerator.terms.iter().all(|(_, by)| by % denominator == 0) {
        return Ok(numerator.floor_div(denominator, &made.indices));
    }
    stop("a subscript holds a quotient that is no whole number")
}

/// An expression as a whole number over indices, divided by a positive number.
fn rational(made: &mut Made, frame: &SdfgFrame, names: &Names, ast: &PythonExpr) -> Result<(AffineInteger, i64), UnreadReason> {
    match ast {
        PythonExpr::Call(name, arguments)
            if matches!(name.as_str(), "floor" | "ceiling" | "int_ceil" | "int_floor") && !arguments.is_empty() =>
        {
            let (of, mut divisor) = rational(made, frame, names, &arguments[0])?;
            if let Some(ast) = arguments.get(1) {
                let by = integer(made, frame, names, ast)?.constant().filter(|by| *by > 0);
                divisor *= by.ok_or_else(|| UnreadReason::Why("a subscript is divided by what is no positive number".into()))?;
            }
            let up = name.ends_with("ceil") || name == "ceiling";
            let quotient = if up { of.times(-1).floor_div(divisor, &made.indices).times(-1) } else { of.floor_div(divisor, &made.indices) };
            return Ok((quotient, 1));
        }
        PythonExpr::Binary("/", a, b) => {
            let ((a, below), by) = (rational(made, frame, names, a)?, integer(made, frame, names, b)?);
            return match by.constant() {
                Some(by) if by > 0 => Ok((a, below * by)),
                _ => stop("a subscript is divided by what is no positive number"),
            };
        }
        PythonExpr::Binary(op @ ("+" | "-" | "*"), a, b) => {
            let ((a, below), (b, under)) = (rational(made, frame, names, a)?, rational(made, frame, names, b)?);
            return match (*op, a.constant(), b.constant()) {
                ("+", ..) => Ok((a.times(under).plus(&b, below), below * under)),
                ("-", ..) => Ok((a.times(under).plus(&b, -below), below * under)),
                (_, Some(by), _) => Ok((b.times(by), below * under)),
                (_, _, Some(by)) => Ok((a.times(by), below * under)),
                _ => stop("a subscript holds a product of two indices"),
            };
        }
        PythonExpr::Negative(of) => {
            let (of, below) = rational(made, frame, names, of)?;
            return Ok((of.times(-1), below));
        }
        _ => {}
    }
    let found = value(made, frame, names, ast)?;
    match found {
        Value::Number(n) if n.fract() == 0.0 && n.abs() < 1e15 => Ok((AffineInteger::number(n as i64), 1)),
        Value::Integer(integer) => Ok((integer, 1)),
        Value::Where(..) | Value::Read { .. } | Value::Binary(..) | Value::Call(..) | Value::Carried(..) if has_element(&found) => {
            Ok((made.row(found, "at"), 1))
        }
        Value::Binary(BinaryOperator::Max | BinaryOperator::Min, ..) => stop("a subscript holds the larger or smaller of two indices"),
        _ => stop("a subscript is no sum of multiples of indices"),
    }
}

fn has_element(value: &Value) -> bool {
    value.any(&|v| matches!(v, Value::Read { .. } | Value::Carried(..)))
}

/// Runs the statements of a tasklet.
///
/// # Errors
/// What recipes lack.
pub fn run(made: &mut Made, frame: &SdfgFrame, names: &mut Names, code: &[PythonStatement]) -> Result<(), UnreadReason> {
    for statement in code {
        match statement {
            PythonStatement::Assign(name, at, ast) => {
                let found = value(made, frame, names, ast)?;
                if at.is_empty() {
                    names.values.insert(name.clone(), found);
                    continue;
                }
                let at = at.iter().map(|ast| integer(made, frame, names, ast)).collect::<Result<Vec<_>, _>>()?;
                names.picked.push((name.clone(), at, found));
            }
            PythonStatement::If(condition, then, otherwise) => {
                let condition = value(made, frame, names, condition)?.truth();
                if let Some(known) = condition.number() {
                    run(made, frame, names, if known != 0.0 { then } else { otherwise })?;
                    continue;
                }
                let (mut one, mut two) = (names.clone(), names.clone());
                run(made, frame, &mut one, then)?;
                run(made, frame, &mut two, otherwise)?;
                if one.picked.len() + two.picked.len() > 2 * names.picked.len() {
                    return stop("its code writes an element under a condition; write `a[i] = b if c else a[i]`");
                }
                let all: Vec<String> = one.values.keys().chain(two.values.keys()).cloned().collect();
                for name in all {
                    let given = |names: &Names| names.values.get(&name).cloned();
                    let joined = match (given(&one), given(&two)) {
                        (Some(a), Some(b)) => Value::choice(condition.clone(), a, b),
                        // The element stays what it was.
                        (Some(a), None) => Value::choice(condition.clone(), a, Value::Prior),
                        (None, Some(b)) => Value::choice(condition.clone(), Value::Prior, b),
                        (None, None) => continue,
                    };
                    names.values.insert(name, joined);
                }
            }
        }
    }
    Ok(())
}

/// How the `wcr` of a memlet combines.
///
/// # Errors
/// Another function.
pub fn combine(wcr: &str) -> Result<ReductionOperator, UnreadReason> {
    let fault = || UnreadReason::Why(format!("its wcr `{wcr}` is none of sum, product, max and min"));
    let Ok(PythonExpr::Lambda(names, body)) = super::python::expression(wcr.trim()) else { return Err(fault()) };
    let [x, y] = names.as_slice() else { return Err(fault()) };
    let pair = |a: &PythonExpr, b: &PythonExpr| {
        let named = |ast: &PythonExpr, name: &str| matches!(ast, PythonExpr::Name(own) if own == name);
        (named(a, x) && named(b, y)) || (named(a, y) && named(b, x))
    };
    match *body {
        PythonExpr::Binary("+", a, b) if pair(&a, &b) => Ok(ReductionOperator::Sum),
        PythonExpr::Binary("*", a, b) if pair(&a, &b) => Ok(ReductionOperator::Product),
        PythonExpr::Binary("or", a, b) if pair(&a, &b) => Ok(ReductionOperator::Max),
        PythonExpr::Binary("and", a, b) if pair(&a, &b) => Ok(ReductionOperator::Min),
        PythonExpr::Call(name, of) if of.len() == 2 && pair(&of[0], &of[1]) => match name.as_str() {
            "max" | "Max" | "maximum" => Ok(ReductionOperator::Max),
            "min" | "Min" | "minimum" => Ok(ReductionOperator::Min),
            _ => Err(fault()),
        },
        _ => Err(fault()),
    }
}
