//! Layers of convolutional networks that a step can call, and the plain expressions that they stand for.
//!
//! `y[n,o,p,q] = conv(x, k, stride: 2, pad: 1)` is read as `y[n,o,p,q] = k[o,c,r,s] * x[n,c,2*p+r-1,2*q+s-1 else 0]`, where `[n, c, h, w]`
//! and `[o, c, r, s]` are the dims of `x` and `k`. The call is replaced before the step gets its meaning, so nothing else knows layers.
//! Sizes come from the dims on the left and of the operands; those that do not fit are reported here.

mod convolution;
mod parts;
mod pooling;
mod windows;

use super::same_option;
use crate::load::header::Header;
use crate::load::names::nearest;
use crate::load::parser::{Argument, Ast, ParsedExpr};
use crate::load::problem::{Problem, Problems, SourceLocation};
use sdfg::{Binary, Bindings};

/// One layer.
struct Sugar {
    name: &'static str,
    /// How many operands stand before the options: at least, at most.
    operands: (usize, usize),
    options: &'static [&'static str],
    /// What a person reads when a call does not fit.
    usage: &'static str,
    /// What a call stands for; `None` after an error, which has been reported.
    meaning: fn(&mut Layer) -> Option<ParsedExpr>,
}

const FAMILIES: &[&[Sugar]] = &[convolution::ALL, pooling::ALL, parts::ALL];

fn all() -> impl Iterator<Item = &'static Sugar> {
    FAMILIES.iter().copied().flatten()
}

/// Every layer's name.
pub fn names() -> impl Iterator<Item = &'static str> {
    all().map(|sugar| sugar.name)
}

/// A tensor that a layer reads, with the indices that its dims have.
struct Operand {
    place: SourceLocation,
    name: String,
    dims: Vec<String>,
}

/// The call of a layer, whose operands are known.
struct Layer<'a> {
    header: &'a Header,
    problems: &'a mut Problems,
    place: SourceLocation,
    sugar: &'static Sugar,
    operands: Vec<Operand>,
    options: &'a [Argument],
    /// The indices of the step's result.
    left: &'a [String],
}

/// An expression with the layers in it replaced by what they stand for; `left` are the indices of the step's result. `None` after an error,
/// which has been reported.
pub fn replaced(node: &ParsedExpr, left: &[String], header: &Header, problems: &mut Problems) -> Option<ParsedExpr> {
    let boxed = |node: &ParsedExpr, problems: &mut Problems| replaced(node, left, header, problems).map(Box::new);
    let ast = match &node.ast {
        Ast::Negative(of) => Ast::Negative(boxed(of, problems)?),
        Ast::Binary(op, a, b) => {
            let (a, b) = (boxed(a, problems), boxed(b, problems));
            Ast::Binary(*op, a?, b?)
        }
        Ast::Call(name, arguments) => match all().find(|sugar| sugar.name == name) {
            Some(sugar) => return layer(sugar, node.place, arguments, left, header, problems),
            None => {
                let argument = |argument: &Argument, problems: &mut Problems| {
                    Some(Argument { option: argument.option.clone(), value: replaced(&argument.value, left, header, problems)? })
                };
                let arguments: Vec<Option<Argument>> = arguments.iter().map(|a| argument(a, problems)).collect();
                Ast::Call(name.clone(), arguments.into_iter().collect::<Option<_>>()?)
            }
        },
        other => other.clone(),
    };
    Some(ParsedExpr { place: node.place, ast })
}

/// The dim along which a step with these indices joins tensors, and the dim of each of them there; `dims` gives the dim of a tensor at a
/// position. `None` where a step joins nothing, or is wrong, which is reported when it is read.
pub fn joined(node: &ParsedExpr, left: &[&str], dims: &dyn Fn(&str, usize) -> Option<String>) -> Option<(String, Vec<String>)> {
    let Ast::Call(name, arguments) = &node.ast else { return node.parts().into_iter().find_map(|part| joined(part, left, dims)) };
    if name != "concat" {
        return node.parts().into_iter().find_map(|part| joined(part, left, dims));
    }
    let word = |node: &ParsedExpr| if let Ast::Word(word) = &node.ast { Some(word.clone()) } else { None };
    let along = arguments.iter().find(|a| a.option.as_ref().is_some_and(|o| o.text == "along")).and_then(|a| word(&a.value))?;
    let at = left.iter().position(|index| *index == along)?;
    let parts = arguments.iter().filter(|a| a.option.is_none()).map(|a| match &a.value.ast {
        Ast::Access(_, subscripts, None) => subscripts.get(at).and_then(word),
        _ => word(&a.value).and_then(|name| dims(&name, at)),
    });
    Some((along, parts.collect::<Option<_>>()?))
}

fn layer(
    sugar: &'static Sugar,
    place: SourceLocation,
    arguments: &[Argument],
    left: &[String],
    header: &Header,
    problems: &mut Problems,
) -> Option<ParsedExpr> {
    let before = problems.failures();
    for option in arguments.iter().filter_map(|a| a.option.as_ref()) {
        if !sugar.options.contains(&option.text.as_str()) {
            let hint = nearest(&option.text, sugar.options.iter().copied());
            problems.add(option.place, Problem::UnknownOption { operator: sugar.name.into(), option: option.text.clone(), hint });
        }
    }
    let tensors: Vec<&ParsedExpr> = arguments.iter().filter(|a| a.option.is_none()).map(|a| &a.value).collect();
    let (least, most) = sugar.operands;
    let twice = arguments.iter().enumerate().any(|(n, a)| arguments.iter().take(n).any(|b| same_option(a, b)));
    if tensors.len() < least || tensors.len() > most || twice {
        problems.add(place, Problem::Arguments { operator: sugar.name.into(), expected: sugar.usage.into() });
    }
    if problems.failures() > before {
        return None;
    }
    let operands = tensors.into_iter().map(|node| operand(sugar, node, header, problems)).collect::<Vec<_>>();
    let operands = operands.into_iter().collect::<Option<Vec<_>>>()?;
    let mut layer = Layer { header, problems, place, sugar, operands, options: arguments, left };
    (layer.sugar.meaning)(&mut layer)
}

/// A tensor by name, alone or with an index for each of its dims.
fn operand(sugar: &Sugar, node: &ParsedExpr, header: &Header, problems: &mut Problems) -> Option<Operand> {
    let (name, given) = match &node.ast {
        Ast::Word(name) => (name, None),
        Ast::Access(name, subscripts, None) => (name, Some(subscripts)),
        _ => {
            let why = format!("`{}` reads windows of tensors; give what it reads a step of its own and name that here", sugar.name);
            problems.add(node.place, Problem::Layer(why));
            return None;
        }
    };
    // A name that is unknown is for its resolver to report: it knows why.
    let dims = match (given, header.tensors.get(name)) {
        (None, Some(tensor)) if !tensor.sound => {
            problems.follow();
            return None;
        }
        (None, Some(tensor)) => tensor.dims.clone(),
        (None, None) => vec![],
        (Some(subscripts), _) => {
            let index = |node: &ParsedExpr| if let Ast::Word(index) = &node.ast { Some(index.clone()) } else { None };
            let Some(dims) = subscripts.iter().map(index).collect::<Option<Vec<_>>>() else {
                let why = format!(
                    "`{}` makes subscripts of its own; write a plain index for each dim of `{name}`, or its name alone",
                    sugar.name
                );
                problems.add(node.place, Problem::Layer(why));
                return None;
            };
            dims
        }
    };
    Some(Operand { place: node.place, name: name.clone(), dims })
}

impl Layer<'_> {
    fn option(&self, name: &str) -> Option<&ParsedExpr> {
        self.options.iter().find(|a| a.option.as_ref().is_some_and(|o| o.text == name)).map(|a| &a.value)
    }

    fn fail<T>(&mut self, place: SourceLocation, why: String) -> Option<T> {
        self.problems.add(place, Problem::Layer(why));
        None
    }

    /// The call does not have the form of its usage.
    fn misused<T>(&mut self) -> Option<T> {
        self.problems.add(self.place, Problem::Arguments { operator: self.sugar.name.into(), expected: self.sugar.usage.into() });
        None
    }

    /// Whether the name of an operand is that of a tensor. What is not is read as a plain expression, whose resolver says why.
    fn is_known(&self) -> bool {
        self.operands.iter().all(|operand| self.header.tensors.contains_key(&operand.name))
    }

    /// A sum of the operands that are unknown, which is read only to report them.
    fn unknown(&self) -> Option<ParsedExpr> {
        let unknown = self.operands.iter().filter(|operand| !self.header.tensors.contains_key(&operand.name));
        let words = unknown.map(|operand| ParsedExpr { place: operand.place, ast: Ast::Word(operand.name.clone()) });
        words.reduce(|a, b| self.binary(Binary::Add, a, b))
    }

    fn size(&self, dim: &str) -> Option<i64> {
        self.header.dims.get(dim)?.eval(&self.header.sizes).ok()
    }

    /// The value of an option that is a whole number.
    fn whole(&mut self, name: &str, default: i64) -> Option<i64> {
        let Some(node) = self.option(name).cloned() else { return Some(default) };
        self.number(name, &node)
    }

    fn number(&mut self, name: &str, node: &ParsedExpr) -> Option<i64> {
        let value = match &node.ast {
            Ast::Number(value) => Some(*value),
            Ast::Negative(of) => match of.ast {
                Ast::Number(value) => Some(-value),
                _ => None,
            },
            Ast::Word(constant) => self.header.constants.get(constant).and_then(|c| c.value.constant(&Bindings::new()).ok()),
            _ => None,
        };
        match value.filter(|v| v.fract() == 0.0 && v.abs() < 1e9) {
            Some(value) => Some(value as i64),
            None => self.fail(node.place, format!("`{name}` of `{}` is a whole number, or a list of one for each dim", self.sugar.name)),
        }
    }

    /// The values of an option along `count` dims: a list, or one number for all.
    fn along(&mut self, name: &str, count: usize, default: i64, least: i64) -> Option<Vec<i64>> {
        let Some(node) = self.option(name).cloned() else { return Some(vec![default; count]) };
        let values = match &node.ast {
            Ast::List(items) if items.len() == count => {
                items.iter().map(|item| self.number(name, item)).collect::<Vec<_>>().into_iter().collect::<Option<Vec<_>>>()?
            }
            Ast::List(items) => {
                let why = format!("`{name}` has {} values, but `{}` moves along {count} dims here", items.len(), self.sugar.name);
                return self.fail(node.place, why);
            }
            _ => vec![self.number(name, &node)?; count],
        };
        match values.iter().find(|value| **value < least) {
            Some(value) => self.fail(node.place, format!("`{name}` is {value}; it is at least {least}")),
            None => Some(values),
        }
    }

    /// The names of dims after an option.
    fn dims(&mut self, name: &str) -> Option<Vec<(SourceLocation, String)>> {
        let node = self.option(name)?.clone();
        let items = if let Ast::List(items) = &node.ast { items.as_slice() } else { std::slice::from_ref(&node) };
        let mut found = Vec::new();
        for item in items {
            match &item.ast {
                Ast::Word(dim) if self.header.is_index(dim) => found.push((item.place, dim.clone())),
                Ast::Word(dim) => {
                    let problem = self.header.unknown_dim(dim);
                    self.problems.add(item.place, problem);
                    return None;
                }
                _ => return self.fail(item.place, format!("after `{name}:` stand names of dims")),
            }
        }
        Some(found)
    }

    // Parts of expressions, all at the place of the call.

    fn node(&self, ast: Ast) -> ParsedExpr {
        ParsedExpr { place: self.place, ast }
    }

    fn literal(&self, value: i64) -> ParsedExpr {
        self.node(Ast::Number(value as f64))
    }

    fn word(&self, name: &str) -> ParsedExpr {
        self.node(Ast::Word(name.into()))
    }

    fn size_of(&self, dim: &str) -> ParsedExpr {
        self.call("size", vec![self.word(dim)])
    }

    fn binary(&self, op: Binary, a: ParsedExpr, b: ParsedExpr) -> ParsedExpr {
        self.node(Ast::Binary(op, Box::new(a), Box::new(b)))
    }

    /// `a + value`.
    fn shifted(&self, a: ParsedExpr, value: i64) -> ParsedExpr {
        match value {
            0 => a,
            1.. => self.binary(Binary::Add, a, self.literal(value)),
            _ => self.binary(Binary::Sub, a, self.literal(-value)),
        }
    }

    /// `factor · name`.
    fn times(&self, factor: i64, name: &str) -> ParsedExpr {
        if factor == 1 { self.word(name) } else { self.binary(Binary::Mul, self.literal(factor), self.word(name)) }
    }

    fn call(&self, name: &str, operands: Vec<ParsedExpr>) -> ParsedExpr {
        self.node(Ast::Call(name.into(), operands.into_iter().map(|value| Argument { option: None, value }).collect()))
    }

    /// A reduction over dims.
    fn reduced(&self, name: &str, of: ParsedExpr, over: &[String]) -> ParsedExpr {
        let place = self.place;
        let over = self.node(Ast::List(over.iter().map(|dim| self.word(dim)).collect()));
        let option = Some(crate::load::yaml::Name { place, text: "over".into() });
        self.node(Ast::Call(name.into(), vec![Argument { option: None, value: of }, Argument { option, value: over }]))
    }

    /// An operand under subscripts, with the value of what lies outside.
    fn access(&self, operand: usize, subscripts: Vec<ParsedExpr>, fill: Option<ParsedExpr>) -> ParsedExpr {
        let operand = &self.operands[operand];
        ParsedExpr { place: operand.place, ast: Ast::Access(operand.name.clone(), subscripts, fill.map(Box::new)) }
    }
}
