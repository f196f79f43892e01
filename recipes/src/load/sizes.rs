//! Dims and their sizes.
//!
//! The size of the dim `j` is the symbol `J`, because inside a map `j` itself means the index. A dim defined by others
//! (`k: j`, `u: 4*i`) has their sizes in its own, so that equal sizes are equal expressions.

use super::canonical::canonical;
use super::names::{nearest, usable};
use super::number;
use super::problem::{Problem, Problems, SourceLocation};
use super::yaml::{Name, YamlNode, YamlValue};
use indexmap::IndexMap;
use sdfg::{Bindings, Expr};
use std::collections::BTreeMap;

/// No size, and no number of elements or bytes, may exceed this.
pub const LIMIT: i64 = 1 << 62;

/// Numbers, names and signs that a definition may have, and what it may cost to write it out in size symbols.
const WORDS: usize = 200;

/// Dim → symbolic size, and size symbol → value.
pub fn read(
    place: SourceLocation,
    entries: &[(Name, YamlNode)],
    overrides: &[(String, i64)],
    problems: &mut Problems,
) -> (IndexMap<String, Expr>, Bindings) {
    let mut bound: IndexMap<&str, (SourceLocation, i64)> = IndexMap::new();
    let mut derived: IndexMap<&str, (SourceLocation, Expr)> = IndexMap::new();
    for (name, node) in entries {
        usable(name, problems);
        match &node.value {
            YamlValue::Int(value) => {
                bound.insert(&name.text, (node.place, *value));
            }
            // The length bounds the depth of the expression.
            YamlValue::Text(text) if written(text) > WORDS => {
                problems.add(node.place, too_long(&name.text));
                bound.insert(&name.text, (node.place, 1));
            }
            YamlValue::Text(text) if zeros(text).is_some() => {
                problems.add(node.place, Problem::NoSize { dim: name.text.clone(), why: zeros(text).unwrap_or_default() });
                bound.insert(&name.text, (node.place, 1));
            }
            YamlValue::Text(text) => match text.parse::<Expr>() {
                Ok(expr) => {
                    derived.insert(&name.text, (node.place, expr));
                }
                Err(error) => {
                    problems.add(node.place, Problem::NoSize { dim: name.text.clone(), why: error.to_string() });
                    bound.insert(&name.text, (node.place, 1));
                }
            },
            YamlValue::Float(value, written) => {
                let whole = value.fract() == 0.0 && (1.0..LIMIT as f64).contains(value);
                let why = number::octal(written).unwrap_or_else(|| match whole {
                    true => format!("write it without point or exponent, as {value}"),
                    false => format!("it is a whole number from 1 to 2^62, but here stands {written}"),
                });
                problems.add(node.place, Problem::NoSize { dim: name.text.clone(), why });
                bound.insert(&name.text, (node.place, 1));
            }
            YamlValue::Null => {
                let why = "nothing, or null, stands here; write a whole number, another dim, or an expression such as 4*i".into();
                problems.add(node.place, Problem::NoSize { dim: name.text.clone(), why });
                bound.insert(&name.text, (node.place, 1));
            }
            _ => {
                let expected = "an integer, another dim, or an expression such as 4*i".into();
                problems.add(node.place, Problem::WrongKind { what: format!("the size of `{}`", name.text), expected });
                bound.insert(&name.text, (node.place, 1));
            }
        }
    }
    apply(place, overrides, &mut bound, &derived, problems);

    let mut dims: IndexMap<String, Expr> = IndexMap::new();
    let mut sizes = Bindings::new();
    for (name, (place, value)) in &bound {
        if *value < 1 {
            problems.add(*place, Problem::NotPositive { dim: name.to_string(), value: *value });
        }
        let mut symbol = name.to_uppercase();
        while sizes.contains_key(&symbol) || bound.contains_key(symbol.as_str()) || derived.contains_key(symbol.as_str()) {
            symbol.push('_');
        }
        dims.insert(name.to_string(), Expr::sym(&symbol));
        sizes.insert(symbol, *value);
    }
    define(&derived, &mut dims, &sizes, problems);
    // In the order of the recipe.
    let order = |name: &String| entries.iter().position(|(n, _)| n.text == *name);
    dims.sort_by_cached_key(|name, _| order(name));
    (dims, sizes)
}

/// What is wrong with the first number of a definition that begins with a zero.
fn zeros(definition: &str) -> Option<String> {
    definition.split(|c: char| !(c.is_alphanumeric() || c == '_')).find_map(number::octal)
}

fn apply(
    place: SourceLocation,
    overrides: &[(String, i64)],
    bound: &mut IndexMap<&str, (SourceLocation, i64)>,
    derived: &IndexMap<&str, (SourceLocation, Expr)>,
    problems: &mut Problems,
) {
    for (name, value) in overrides {
        if let Some(known) = bound.get_mut(name.as_str()) {
            known.1 = *value;
        } else if let Some((_, definition)) = derived.get(name.as_str()) {
            problems.add(place, Problem::DerivedOverride { name: name.clone(), definition: definition.to_string() });
        } else {
            problems.add(place, Problem::UnknownOverride { name: name.clone(), hint: nearest(name, bound.keys().copied()) });
        }
    }
}

/// Resolves definitions until none is left or none can be.
fn define(derived: &IndexMap<&str, (SourceLocation, Expr)>, dims: &mut IndexMap<String, Expr>, sizes: &Bindings, problems: &mut Problems) {
    let mut waiting: Vec<(&str, SourceLocation, &Expr)> = Vec::new();
    for (name, (place, expr)) in derived {
        let unknown: Vec<String> =
            expr.symbols().into_iter().filter(|s| !dims.contains_key(s) && !derived.contains_key(s.as_str())).collect();
        for symbol in &unknown {
            let known = dims.keys().map(String::as_str).chain(derived.keys().copied());
            problems.add(*place, Problem::UnknownDim { name: symbol.clone(), hint: nearest(symbol, known) });
        }
        if unknown.is_empty() {
            waiting.push((name, *place, expr));
        } else {
            dims.insert(name.to_string(), Expr::Int(1));
        }
    }
    loop {
        let (ready, rest): (Vec<_>, Vec<_>) =
            waiting.into_iter().partition(|(_, _, expr)| expr.symbols().iter().all(|s| dims.contains_key(s)));
        waiting = rest;
        if ready.is_empty() {
            break;
        }
        for (name, place, expr) in ready {
            let with: BTreeMap<String, Expr> =
                expr.symbols().into_iter().filter_map(|s| Some((s.clone(), dims.get(&s)?.clone()))).collect();
            let cost: usize = words(expr).saturating_mul(with.values().map(words).max().unwrap_or(1));
            let checked = if cost > WORDS { Err(too_long(name)) } else { positive(name, canonical(&expr.substitute(&with)), sizes) };
            // After an error a size goes on standing for itself, so that its uses are not reported too.
            let size = checked.unwrap_or_else(|problem| {
                problems.add(place, problem);
                Expr::Int(1)
            });
            dims.insert(name.to_string(), size);
        }
    }
    if let Some((_, place, _)) = waiting.first() {
        let names: Vec<String> = waiting.iter().map(|(name, _, _)| format!("`{name}`")).collect();
        problems.add(*place, Problem::SizeCycle(names.join(", ")));
    }
    for (name, _, _) in waiting {
        dims.insert(name.to_string(), Expr::Int(1));
    }
}

fn positive(dim: &str, size: Expr, sizes: &Bindings) -> Result<Expr, Problem> {
    match size.eval(sizes) {
        Ok(value) if value < 1 => Err(Problem::NotPositive { dim: dim.into(), value }),
        Ok(_) => Ok(size),
        Err(error) => Err(Problem::NoSize { dim: dim.into(), why: error.to_string() }),
    }
}

fn too_long(dim: &str) -> Problem {
    Problem::NoSize { dim: dim.into(), why: "its definition is too long; give it a number".into() }
}

/// Numbers, names and signs of a text, blanks among them: names of blocks' instances may be long.
fn written(text: &str) -> usize {
    let is_word = |c: char| c.is_alphanumeric() || c == '_';
    let begins = text.chars().scan(false, |inside, c| {
        let before = std::mem::replace(inside, is_word(c));
        Some(!(before && is_word(c)))
    });
    begins.filter(|begins| *begins).count()
}

/// Numbers, symbols and operations of an expression.
fn words(expr: &Expr) -> usize {
    let text = expr.to_string();
    written(&text)
}
