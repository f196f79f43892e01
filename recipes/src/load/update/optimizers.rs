//! Optimizers: one line of `update` that is written out as one or several lines for each parameter.
//!
//! A rule is written with the names `p` (the parameter), `g` (its gradient), the optimizer's options and its state; `m_new` is what the
//! rule assigns to `m`. The formulas are those of the papers: momentum without damping (Sutskever et al. 2013), RMSProp (Hinton 2012)
//! with `eps` under the root as in TensorFlow 1, Adam (Kingma and Ba 2015, end of section 2) with `eps` outside of it.

use super::super::header::{DeclaredTensor, Header};
use super::super::names::nearest;
use super::super::parser::{self, Argument, Ast, ParsedExpr};
use super::super::problem::{Problem, Problems, SourceLocation};
use super::super::steps::Assigned;
use super::super::yaml::Name;
use super::super::{lexer, phrase::Phrase};
use super::new;
use sdfg::{Binary, Bounds, Role, Scalar};
use std::collections::BTreeMap;

/// An optimizer and its formulas.
struct Optimizer {
    name: &'static str,
    /// Options with their default values; those without one must be given.
    options: &'static [(&'static str, Option<f64>)],
    /// State of each parameter: its letter, and whether its values are never negative. It is 0 before the first step.
    state: &'static [(&'static str, bool)],
    /// Whether it counts steps.
    counts: bool,
    /// A number that is computed once for all parameters, as `a`.
    shared: Option<&'static str>,
    /// What is assigned for each parameter, in this order.
    rules: &'static [(&'static str, &'static str)],
}

const ALL: &[Optimizer] = &[
    Optimizer { name: "sgd", options: &[("rate", None)], state: &[], counts: false, shared: None, rules: &[("p", "p - rate * g")] },
    Optimizer {
        name: "momentum",
        options: &[("rate", None), ("decay", Some(0.9))],
        state: &[("m", false)],
        counts: false,
        shared: None,
        rules: &[("m", "decay * m + g"), ("p", "p - rate * m_new")],
    },
    Optimizer {
        name: "rmsprop",
        options: &[("rate", None), ("decay", Some(0.9)), ("eps", Some(1e-10))],
        state: &[("v", true)],
        counts: false,
        shared: None,
        rules: &[("v", "decay * v + (1 - decay) * g * g"), ("p", "p - rate * g / sqrt(v_new + eps)")],
    },
    Optimizer {
        name: "adam",
        options: &[("rate", Some(1e-3)), ("beta1", Some(0.9)), ("beta2", Some(0.999)), ("eps", Some(1e-8))],
        state: &[("m", false), ("v", true)],
        counts: true,
        shared: Some("rate * sqrt(1 - pow(beta2, t_new)) / (1 - pow(beta1, t_new))"),
        rules: &[
            ("m", "beta1 * m + (1 - beta1) * g"),
            ("v", "beta2 * v + (1 - beta2) * g * g"),
            ("p", "p - a * m_new / (sqrt(v_new) + eps)"),
        ],
    },
];

/// Every optimizer accepts the largest norm that all gradients together may have.
const CLIP: &str = "clip";
/// What keeps a norm of 0 from dividing.
const CLIP_EPS: f64 = 1e-12;

/// The number of steps done so far, of all optimizers that need it.
const COUNTER: &str = "adam_t";

/// Names of all optimizers.
pub fn names() -> impl Iterator<Item = &'static str> {
    ALL.iter().map(|optimizer| optimizer.name)
}

/// The optimizers of a recipe, which share a counter of steps.
pub struct Optimizers {
    /// Parameters that other lines update.
    taken: Vec<String>,
    calls: usize,
    counts: bool,
}

impl Optimizers {
    /// `taken` are the tensors that plain lines assign.
    pub fn new(taken: Vec<String>) -> Self {
        Optimizers { taken, calls: 0, counts: false }
    }

    /// The lines of a call. Without operands it is of every parameter with a gradient that no other line updates.
    pub fn lines(&mut self, header: &mut Header, name: &Name, arguments: &[Argument], problems: &mut Problems) -> Vec<Assigned> {
        let Some(optimizer) = ALL.iter().find(|o| o.name == name.text) else {
            let hint = nearest(&name.text, names());
            problems.add(name.place, Problem::UnknownOptimizer { name: name.text.clone(), hint });
            return vec![];
        };
        let before = problems.failures();
        let parameters = self.parameters(header, name, arguments, problems);
        let options = options(optimizer, name, arguments, problems);
        if problems.failures() > before {
            return vec![];
        }
        self.calls += 1;
        self.taken.extend(parameters.iter().cloned());
        let mut lines = Vec::new();
        let mut with: BTreeMap<String, Ast> = options.clone();
        let place = name.place;
        if optimizer.counts {
            if !self.counts {
                self.counts = true;
                declare(header, COUNTER, place, vec![], true, problems);
                lines.push(assigned(COUNTER, place, vec![], expression("t + 1", &BTreeMap::from([word("t", COUNTER)]), place)));
            }
            with.insert("t_new".into(), Ast::Word(new(COUNTER)));
        }
        if let Some(shared) = optimizer.shared {
            let target = self.numbered(&format!("{}.rate", optimizer.name));
            lines.push(assigned(&target, place, vec![], expression(shared, &with, place)));
            with.insert("a".into(), Ast::Word(target));
        }
        let scale = options.get(CLIP).map(|most| self.clipped(header, &parameters, most, place, &mut lines));
        for parameter in &parameters {
            let dims = header.tensors.get(parameter).map(|t| t.dims.clone()).unwrap_or_default();
            let mut with = with.clone();
            with.extend([word("p", parameter)]);
            let gradient = Ast::Word(format!("d_{parameter}"));
            let gradient = match &scale {
                Some(scale) => product(node(place, gradient), node(place, Ast::Word(scale.clone()))),
                None => gradient,
            };
            with.insert("g".into(), gradient);
            for (letter, positive) in optimizer.state {
                let state = format!("{parameter}_{letter}");
                declare(header, &state, place, dims.clone(), *positive, problems);
                with.extend([word(letter, &state), word(&format!("{letter}_new"), &new(&state))]);
            }
            for (letter, rule) in optimizer.rules {
                let target = match with.get(*letter) {
                    Some(Ast::Word(name)) => name.clone(),
                    _ => continue,
                };
                lines.push(assigned(&target, place, dims.clone(), expression(rule, &with, place)));
            }
        }
        lines
    }

    /// A name of Memlet's own for the call: with a number from the second one on.
    fn numbered(&self, name: &str) -> String {
        if self.calls == 1 { name.to_string() } else { format!("{name}{}", self.calls) }
    }

    /// The operands of a call, or all that it may be of.
    fn parameters(&self, header: &Header, name: &Name, arguments: &[Argument], problems: &mut Problems) -> Vec<String> {
        let trained = |name: &str| header.tensors.contains_key(&format!("d_{name}"));
        let of = |role: Role| header.tensors.iter().filter(move |(_, t)| t.role == role && t.initial.is_none()).map(|(name, _)| name);
        let operands: Vec<&ParsedExpr> = arguments.iter().filter(|a| a.option.is_none()).map(|a| &a.value).collect();
        let named: Vec<&ParsedExpr> =
            operands.iter().flat_map(|o| if let Ast::List(nodes) = &o.ast { nodes.iter().collect() } else { vec![*o] }).collect();
        if operands.is_empty() {
            let all: Vec<String> = of(Role::Parameter).filter(|p| trained(p) && !self.taken.contains(p)).cloned().collect();
            if all.is_empty() {
                problems.add(name.place, Problem::NothingToUpdate { optimizer: name.text.clone() });
            }
            return all;
        }
        let mut found = Vec::new();
        for operand in named {
            match &operand.ast {
                Ast::Word(name) if of(Role::Parameter).any(|p| p == name) && trained(name) => found.push(name.clone()),
                _ => {
                    let text = operand.to_string();
                    let hint = nearest(&text, of(Role::Parameter).filter(|p| trained(p)).map(String::as_str));
                    problems.add(operand.place, Problem::NotTrained { name: text, hint });
                }
            }
        }
        found
    }

    /// The lines that bound the norm of all gradients together; the name of the number that each is multiplied by.
    fn clipped(&self, header: &Header, parameters: &[String], most: &Ast, place: SourceLocation, lines: &mut Vec<Assigned>) -> String {
        let at = |ast: Ast| node(place, ast);
        let mut all: Option<ParsedExpr> = None;
        for parameter in parameters {
            let gradient = || at(Ast::Word(format!("d_{parameter}")));
            let square = at(product(gradient(), gradient()));
            let dims = header.tensors.get(parameter).map(|t| t.dims.clone()).unwrap_or_default();
            let value = if dims.is_empty() { square } else { at(sum(square, &dims, place)) };
            let target = self.numbered(&format!("{parameter}.norm2"));
            lines.push(assigned(&target, place, vec![], value));
            let own = at(Ast::Word(target));
            all = Some(match all {
                None => own,
                Some(all) => at(Ast::Binary(Binary::Add, Box::new(all), Box::new(own))),
            });
        }
        let target = self.numbered("clip.scale");
        let with = BTreeMap::from([
            ("all".to_string(), all.map_or(Ast::Number(0.0), |all| all.ast)),
            ("norm".to_string(), most.clone()),
            ("eps".to_string(), Ast::Number(CLIP_EPS)),
        ]);
        lines.push(assigned(&target, place, vec![], expression("min(1, norm / (sqrt(all) + eps))", &with, place)));
        target
    }
}

/// The value of every option, by name.
fn options(optimizer: &Optimizer, name: &Name, arguments: &[Argument], problems: &mut Problems) -> BTreeMap<String, Ast> {
    let known = || optimizer.options.iter().map(|(option, _)| *option).chain([CLIP]);
    let mut found: BTreeMap<String, Ast> = BTreeMap::new();
    for argument in arguments {
        let Some(option) = &argument.option else { continue };
        if !known().any(|known| known == option.text) {
            let hint = nearest(&option.text, known());
            problems.add(option.place, Problem::UnknownOption { operator: name.text.clone(), option: option.text.clone(), hint });
        }
        found.insert(option.text.clone(), argument.value.ast.clone());
    }
    for (option, default) in optimizer.options {
        match default {
            _ if found.contains_key(*option) => {}
            Some(default) => _ = found.insert(option.to_string(), Ast::Number(*default)),
            None => {
                let expected = format!("`{option}:`, as in `{}({option}: 0.01)`", optimizer.name);
                problems.add(name.place, Problem::Arguments { operator: name.text.clone(), expected });
            }
        }
    }
    found
}

/// Declares the state of an optimizer, 0 before the first step.
fn declare(header: &mut Header, name: &str, place: SourceLocation, dims: Vec<String>, positive: bool, problems: &mut Problems) {
    if let Some(line) = header.declared(name) {
        return problems.add(place, Problem::DeclaredTwice { name: name.into(), line });
    }
    let bounds = Bounds { low: Scalar::Const(0.0), high: Scalar::Const(f64::INFINITY), open: [false, true] };
    let dtype = header.dtype.accumulator();
    let range = positive.then_some(bounds);
    let tensor = DeclaredTensor { place, dims, dtype, role: Role::Parameter, grad: false, range, initial: Some(0.0), sound: true };
    header.tensors.insert(name.into(), tensor);
}

fn node(place: SourceLocation, ast: Ast) -> ParsedExpr {
    ParsedExpr { place, ast }
}

fn word(name: &str, stands_for: &str) -> (String, Ast) {
    (name.to_string(), Ast::Word(stands_for.to_string()))
}

fn product(a: ParsedExpr, b: ParsedExpr) -> Ast {
    Ast::Binary(Binary::Mul, Box::new(a), Box::new(b))
}

fn sum(of: ParsedExpr, dims: &[String], place: SourceLocation) -> Ast {
    let over = dims.iter().map(|dim| node(place, Ast::Word(dim.clone()))).collect();
    let option = Some(Name { place, text: "over".into() });
    let of = Argument { option: None, value: of };
    Ast::Call("sum".into(), vec![of, Argument { option, value: node(place, Ast::List(over)) }])
}

/// A line that assigns a whole tensor.
fn assigned(target: &str, place: SourceLocation, dims: Vec<String>, value: ParsedExpr) -> Assigned {
    let indices = dims.into_iter().map(|text| Name { place, text }).collect();
    Assigned { name: Name { place, text: target.into() }, indices, value }
}

/// A formula, all of it at one place, with names replaced.
fn expression(formula: &str, with: &BTreeMap<String, Ast>, place: SourceLocation) -> ParsedExpr {
    let phrase = Phrase::at(place, formula.into());
    let read = lexer::words(&phrase.text, &phrase.places, place).and_then(parser::expression);
    // The formulas are those of this file, and tests read all of them.
    let mut read = read.unwrap_or_else(|_| node(place, Ast::Number(f64::NAN)));
    replace(&mut read, with);
    read
}

fn replace(node: &mut ParsedExpr, with: &BTreeMap<String, Ast>) {
    match &mut node.ast {
        Ast::Word(name) => {
            if let Some(other) = with.get(name) {
                node.ast = other.clone();
            }
        }
        Ast::Negative(of) => replace(of, with),
        Ast::Binary(_, a, b) => {
            replace(a, with);
            replace(b, with);
        }
        Ast::Call(_, arguments) => arguments.iter_mut().for_each(|argument| replace(&mut argument.value, with)),
        Ast::Number(_) | Ast::Access(..) | Ast::List(_) | Ast::Slice(..) => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_formula_can_be_read() {
        let formulas = ALL.iter().flat_map(|o| o.shared.into_iter().chain(o.rules.iter().map(|(_, rule)| *rule)));
        for formula in formulas.chain(["t + 1", "min(1, norm / (sqrt(all) + eps))"]) {
            assert_ne!(expression(formula, &BTreeMap::new(), SourceLocation::START).ast, Ast::Number(f64::NAN), "{formula}");
        }
    }
}
