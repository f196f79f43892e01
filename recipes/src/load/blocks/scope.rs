//! What the names in the steps of a recipe or of an instance stand for.

use crate::load::phrase::{Mention, Phrase};
use std::collections::HashMap;

#[derive(Clone, Debug)]
pub enum Meaning {
    /// A dim or tensor of the whole recipe.
    Name(String),
    /// A number, as text.
    Number(String),
    /// A tensor whose dims have other names here, as far as they do.
    Tensor { name: String, dims: Option<Vec<String>> },
}

/// The names of one instance, or of the recipe itself.
#[derive(Clone, Debug, Default)]
pub struct NameScope {
    /// Begins the names of all that is declared in it; empty for the recipe.
    pub prefix: String,
    /// The number of the instance; 0 for the recipe.
    pub within: u32,
    pub meanings: HashMap<String, Meaning>,
    /// Instances that its steps make: names of these, as far as they are mentioned, begin so.
    pub instances: Vec<String>,
}

impl NameScope {
    /// What a name is in the whole recipe.
    pub fn global(&self, name: &str) -> String {
        match self.meanings.get(name) {
            Some(Meaning::Name(name) | Meaning::Number(name) | Meaning::Tensor { name, .. }) => name.clone(),
            None if is_inner(name, &self.instances) => format!("{}{name}", self.prefix),
            None => name.into(),
        }
    }

    /// A text of this scope as the whole recipe says it.
    pub fn renamed(&self, phrase: &Phrase) -> Phrase {
        phrase.renamed(self.within, &|mention: &Mention| {
            let text = match self.meanings.get(&mention.text) {
                Some(Meaning::Number(number)) if number.starts_with('-') => format!("({number})"),
                Some(Meaning::Tensor { name, dims: Some(dims) }) if !mention.has_subscripts => format!("{name}[{}]", dims.join(",")),
                _ => self.global(&mention.text),
            };
            (text != mention.text).then_some(text)
        })
    }
}

/// Whether a name may be one that an instance declares: `a_w` for the instance `a`.
pub fn is_inner(name: &str, instances: &[String]) -> bool {
    instances.iter().any(|instance| name.strip_prefix(instance.as_str()).is_some_and(|rest| rest.len() > 1 && rest.starts_with('_')))
}
