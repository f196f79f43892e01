//! YAML as a tree in which every node knows its place.

use super::phrase::Phrase;
use super::problem::{Problem, SourceLocation};
use super::source::RecipeText;
use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_yaml::budget::BudgetBreach;
use serde_yaml::granit_parser::ErrorKind;
use serde_yaml::{Error, ExternalMessageSource, Location, MessageFormatter, Spanned, UserMessageFormatter};
use std::fmt;

/// Levels of YAML that a recipe can sensibly have, with room to spare.
const DEPTH: usize = 32;

#[derive(Clone, Debug)]
pub struct YamlNode {
    pub place: SourceLocation,
    pub value: YamlValue,
}

#[derive(Clone, Debug)]
pub enum YamlValue {
    Null,
    Bool(bool),
    Int(i64),
    /// A number that is no integer of 64 bits, with what stands in the file.
    Float(f64, String),
    Text(String),
    /// A step that was written out of a block, or that stands beside one that was.
    Phrase(Phrase),
    List(Vec<YamlNode>),
    Map(Vec<(Name, YamlNode)>),
}

/// A key or other word with its place.
#[derive(Clone, Debug, PartialEq)]
pub struct Name {
    pub place: SourceLocation,
    pub text: String,
}

/// Reads one document.
///
/// # Errors
/// Broken YAML, a duplicate key, or more than [`DEPTH`] levels, with the place.
pub fn read(source: &RecipeText) -> Result<YamlNode, (SourceLocation, Problem)> {
    let mut options = serde_yaml::Options::default();
    options.strict_booleans = true;
    // Whoever reads a value says what may not be infinite.
    options.non_finite_float_policy = serde_yaml::NonFiniteFloatPolicy::PassThrough;
    options.with_snippet = false;
    if let Some(budget) = &mut options.budget {
        budget.max_depth = DEPTH;
        budget.flow_nesting_limit = DEPTH;
    }
    let tree: Result<Spanned<YamlValue>, _> = serde_yaml::from_str_with_options(&source.text, options);
    let tree = tree.map(|tree| {
        let mut tree = node(tree);
        as_written(&mut tree, source);
        tree
    });
    tree.map_err(|error| (error.location().map_or(SourceLocation::START, place), problem(error.without_snippet())))
}

/// An error of the parser, in words of the file where the parser speaks of itself.
fn problem(error: &Error) -> Problem {
    let said = match error {
        Error::AliasError { error, .. } => return problem(error),
        Error::Budget { breach: BudgetBreach::Depth { .. }, .. } => return Problem::TooDeep { limit: DEPTH },
        Error::ExternalMessage { source, msg, .. } => match source.as_ref() {
            ExternalMessageSource::Parser(scan) if matches!(scan.kind(), ErrorKind::RecursionLimitExceeded) => {
                return Problem::TooDeep { limit: DEPTH };
            }
            _ => msg.clone(),
        },
        Error::Budget { .. } => "it is larger than any recipe, each alias counted as all that it stands for".into(),
        Error::MultipleDocuments { .. } => "a second document begins here; a recipe is one, without `---` in it".into(),
        Error::DuplicateMappingKey { key: Some(key), .. } => format!("duplicate mapping key: {key}"),
        other => UserMessageFormatter.format_message(other).into_owned(),
    };
    // What a terminal would act on is spelled out.
    let spelled = |c: char| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() };
    Problem::Yaml(said.replace('\u{a0}', " ").chars().map(spelled).collect())
}

fn place(location: Location) -> SourceLocation {
    let number = |n: u64| u32::try_from(n).unwrap_or(u32::MAX).max(1);
    SourceLocation::at(number(location.line()), number(location.column()))
}

fn node(spanned: Spanned<YamlValue>) -> YamlNode {
    YamlNode { place: place(spanned.referenced), value: spanned.value }
}

/// Gives the numbers of a tree the text that stands in the file: their values may have lost digits.
fn as_written(tree: &mut YamlNode, source: &RecipeText) {
    match &mut tree.value {
        YamlValue::Float(_, text) => {
            if let Some(written) = source.number(tree.place) {
                *text = written;
            }
        }
        YamlValue::List(items) => items.iter_mut().for_each(|item| as_written(item, source)),
        YamlValue::Map(entries) => entries.iter_mut().for_each(|(_, value)| as_written(value, source)),
        YamlValue::Null | YamlValue::Bool(_) | YamlValue::Int(_) | YamlValue::Text(_) | YamlValue::Phrase(_) => {}
    }
}

impl<'de> Deserialize<'de> for YamlValue {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Tree)
    }
}

struct Tree;

impl<'de> Visitor<'de> for Tree {
    type Value = YamlValue;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a number, a text, a list or a mapping")
    }

    fn visit_unit<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_none<E>(self) -> Result<YamlValue, E> {
        Ok(YamlValue::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<YamlValue, E> {
        Ok(YamlValue::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<YamlValue, E> {
        Ok(YamlValue::Int(value))
    }

    fn visit_u64<E>(self, value: u64) -> Result<YamlValue, E> {
        Ok(i64::try_from(value).map_or(YamlValue::Float(value as f64, value.to_string()), YamlValue::Int))
    }

    fn visit_i128<E>(self, value: i128) -> Result<YamlValue, E> {
        Ok(i64::try_from(value).map_or(YamlValue::Float(value as f64, value.to_string()), YamlValue::Int))
    }

    fn visit_u128<E>(self, value: u128) -> Result<YamlValue, E> {
        Ok(i64::try_from(value).map_or(YamlValue::Float(value as f64, value.to_string()), YamlValue::Int))
    }

    fn visit_f64<E>(self, value: f64) -> Result<YamlValue, E> {
        Ok(YamlValue::Float(value, value.to_string()))
    }

    fn visit_str<E>(self, value: &str) -> Result<YamlValue, E> {
        Ok(YamlValue::Text(value.to_string()))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<YamlValue, A::Error> {
        let mut list = Vec::new();
        while let Some(item) = items.next_element::<Spanned<YamlValue>>()? {
            list.push(node(item));
        }
        Ok(YamlValue::List(list))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut entries: A) -> Result<YamlValue, A::Error> {
        let mut map = Vec::new();
        while let Some((key, value)) = entries.next_entry::<Spanned<String>, Spanned<YamlValue>>()? {
            map.push((Name { place: place(key.referenced), text: key.value }, node(value)));
        }
        Ok(YamlValue::Map(map))
    }
}
