//! Kernels that differ in names alone: queries, keys and values are projected by one and the same code.
//!
//! Two kernels are of one family if a one-to-one renaming of containers, indices and connectors turns one into the other, at
//! the same sizes. Then their configurations correspond, and what one takes says how long the other does.

use crate::kernel::{GENERATION, KernelSpec};
use indexmap::IndexSet;
use sdfg::Unit;
use serde_json::Value;
use std::collections::BTreeSet;
use std::fmt::Write;

/// Fields of a unit's text form that say where it comes from or how it is called, not what it does.
const ASIDE: [&str; 4] = ["origin", "pass", "label", "operator"];
/// Fields in whose values names of containers, connectors and indices stand; words anywhere else mean what they say.
const NAMING: [&str; 12] = ["name", "data", "connector", "start", "stop", "step", "at", "volume", "subscripts", "code", "reads", "writes"];

/// A kernel without its names.
#[derive(Clone, Debug)]
pub struct KernelClass {
    hash: String,
    /// The kernel's names, in the order in which they come in its text.
    names: IndexSet<String>,
}

impl KernelClass {
    /// Of a scope or a contraction; `None` for what is no kernel.
    pub fn of(spec: &KernelSpec) -> Option<Self> {
        let mut unit = match &spec.unit {
            Unit::Scope(scope) => serde_json::to_value(scope).ok()?,
            Unit::Operation(operation) => serde_json::to_value(operation).ok()?,
            Unit::Nested(_) | Unit::Alternatives(_) => return None,
        };
        strip(&mut unit, spec);
        let mut all = Words::default();
        all.gather(&unit, "");
        // A container called `max` keeps its name: elsewhere the word says what is computed.
        // So does a symbol, which stands for its size.
        all.literals.extend(spec.sizes.keys().cloned());
        let known: BTreeSet<String> = all.names.difference(&all.literals).cloned().collect();
        let mut family = KernelClass { hash: String::new(), names: IndexSet::new() };
        let mut text = format!("{GENERATION}\n{}", family.numbered(&unit.to_string(), &known));
        let mut containers: Vec<_> = spec.containers.values().collect();
        containers.sort_by_key(|c| family.names.get_index_of(&c.name).unwrap_or(usize::MAX));
        for c in containers {
            let shape: Vec<String> = c.dims.iter().map(|dim| size(spec, dim)).collect();
            let described = format!("\n{} {shape:?} {} {:?} {:?} {}", c.name, c.dtype, c.storage, c.view, spec.hands_back(&c.name));
            text += &family.numbered(&described, &known);
        }
        for (symbol, value) in &spec.sizes {
            let _ = write!(text, "\n{symbol}={value}");
        }
        family.hash = blake3::hash(text.as_bytes()).to_hex().to_string();
        Some(family)
    }

    /// A mark of one of the kernel's configurations that is the same for the corresponding one of every kernel of the family;
    /// `identity` is that of [`crate::ConfigSpace::identity`].
    pub fn fingerprint(&self, identity: &str) -> String {
        let mut text = format!("{}\n", self.hash);
        words(identity, |word, is_name| match self.names.get_index_of(word).filter(|_| is_name) {
            Some(number) => drop(write!(text, "#{number}")),
            // What lowering adds to an index of the kernel: `p_2`.
            None => match word.rsplit_once('_').and_then(|(name, part)| Some((self.names.get_index_of(name)?, part))) {
                Some((number, part)) => drop(write!(text, "#{number}_{part}")),
                None => text += word,
            },
        });
        blake3::hash(text.as_bytes()).to_hex()[..32].to_string()
    }

    /// A text with the known names in it numbered in the order in which they come.
    fn numbered(&mut self, text: &str, known: &BTreeSet<String>) -> String {
        let mut found = String::with_capacity(text.len());
        words(text, |word, is_name| {
            if is_name && known.contains(word) {
                let _ = write!(found, "#{}", self.names.insert_full(word.to_string()).0);
            } else {
                found += word;
            }
        });
        found
    }
}

/// Dims are no more than their sizes: `j` and `k` may be two names of one length.
fn size(spec: &KernelSpec, dim: &str) -> String {
    spec.size(dim).map_or_else(|_| dim.to_string(), |size| size.to_string())
}

fn strip(value: &mut Value, spec: &KernelSpec) {
    match value {
        Value::Object(fields) => {
            // Of names only those of indices matter.
            let index = fields.contains_key("dim");
            fields.retain(|field, _| !ASIDE.contains(&field.as_str()) && (index || field != "name"));
            for (field, value) in fields.iter_mut() {
                match value {
                    Value::String(dim) if field == "dim" => *dim = size(spec, dim),
                    Value::Object(indices) if field == "indices" => indices.values_mut().for_each(|value| {
                        if let Value::String(dim) = value {
                            *dim = size(spec, dim);
                        }
                    }),
                    _ => strip(value, spec),
                }
            }
        }
        Value::Array(values) => values.iter_mut().for_each(|value| strip(value, spec)),
        _ => {}
    }
}

/// The words of a unit's text form.
#[derive(Default)]
struct Words {
    names: BTreeSet<String>,
    literals: BTreeSet<String>,
}

impl Words {
    fn gather(&mut self, value: &Value, field: &str) {
        match value {
            Value::Object(fields) => {
                for (inner, value) in fields {
                    if field == "indices" {
                        self.names.insert(inner.clone());
                    } else {
                        self.literals.insert(inner.clone());
                    }
                    self.gather(value, inner);
                }
            }
            Value::Array(values) => values.iter().for_each(|v| self.gather(v, field)),
            Value::String(text) => {
                let all = if NAMING.contains(&field) { &mut self.names } else { &mut self.literals };
                words(text, |word, is_word| {
                    if is_word {
                        all.insert(word.to_string());
                    }
                });
                // What is called is a function.
                let called = text.match_indices('(').filter_map(|(at, _)| text[..at].rsplit(|c| !of_word(c)).next());
                self.literals.extend(called.map(String::from));
            }
            _ => {}
        }
    }
}

fn of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}

/// Splits a text into words (letters, digits, `_` and `.`) and what stands between them, and says which may be names.
fn words(text: &str, mut each: impl FnMut(&str, bool)) {
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let is_name = of_word(first);
        let length = rest.find(|c| of_word(c) != is_name).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        // What starts with a digit is a number.
        each(word, is_name && !first.is_ascii_digit() && first != '.');
        rest = after;
    }
}
