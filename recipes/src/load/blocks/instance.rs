//! Writes out the uses of blocks: the dims, parameters and steps of every instance, under names of its own.

use super::definition::{Block, instances};
use super::scope::{Meaning, NameScope};
use super::uses::{BlockStep, BlockUse, OptionValue, REPEAT};
use super::{Blocks, declared, report};
use crate::load::names::nearest;
use crate::load::phrase::Phrase;
use crate::load::problem::{Problem, Problems, SourceLocation};
use crate::load::yaml::{Name, YamlNode, YamlValue};
use indexmap::{IndexMap, IndexSet};
use sdfg::syntax::Token;
use sdfg::{Bindings, Expr};

/// Instances that one recipe may have, those within others counted.
const INSTANCES: usize = 4096;
/// Steps that are written out at most; the reader of steps refuses fewer.
const STEPS: usize = 1 << 16;

/// What the uses of a recipe are written out as.
pub struct BlockExpansion<'a> {
    blocks: &'a Blocks,
    problems: &'a mut Problems,
    pub dims: Vec<(Name, YamlNode)>,
    pub parameters: Vec<(Name, YamlNode)>,
    pub steps: Vec<Phrase>,
    pub used: IndexSet<String>,
    /// Names that are taken, with their lines.
    taken: IndexMap<String, u32>,
    /// The dims of every tensor that is known so far.
    tensors: IndexMap<String, Vec<String>>,
    instances: usize,
}

impl<'a> BlockExpansion<'a> {
    /// The expansion of `steps`, where the sections of the recipe are `recipe`.
    pub fn of(blocks: &'a Blocks, recipe: &[(Name, YamlNode)], steps: &[Phrase], problems: &'a mut Problems) -> Self {
        let mut taken = IndexMap::new();
        let mut scope = NameScope::default();
        for section in ["dims", "constants", "inputs", "parameters"] {
            taken.extend(declared(recipe, section).map(|(name, _)| (name.text.clone(), name.place.line)));
        }
        for (name, node) in declared(recipe, "constants") {
            if let YamlValue::Int(number) = node.value {
                scope.meanings.insert(name.text.clone(), Meaning::Number(number.to_string()));
            }
        }
        let tensors = ["inputs", "parameters"].into_iter().flat_map(|section| declared(recipe, section));
        let tensors = tensors.filter_map(|(name, node)| Some((name.text.clone(), axes(node)?))).collect();
        let (dims, parameters, used) = (vec![], vec![], IndexSet::new());
        let mut all = BlockExpansion { blocks, problems, dims, parameters, steps: vec![], used, taken, tensors, instances: 0 };
        let steps: Vec<BlockStep> = steps.iter().filter_map(|phrase| BlockStep::read(phrase, blocks, all.problems)).collect();
        scope.instances = instances(&steps);
        all.write(&steps, &scope);
        all
    }

    fn write(&mut self, steps: &[BlockStep], scope: &NameScope) {
        for step in steps {
            match step {
                // Numbers of the recipe are no part of its own steps.
                BlockStep::Plain(phrase) if scope.within == 0 => self.plain(phrase.clone()),
                BlockStep::Plain(phrase) => self.plain(scope.renamed(phrase)),
                BlockStep::Use(used) => self.uses(used, scope),
            }
            if self.steps.len() > STEPS {
                return;
            }
        }
    }

    fn plain(&mut self, step: Phrase) {
        if let Some((name, dims)) = left(&step) {
            self.tensors.insert(name, dims);
        }
        self.steps.push(step);
    }

    /// One instance, or several of which each reads the result of the one before.
    fn uses(&mut self, used: &BlockUse, scope: &NameScope) {
        let Some(block) = self.blocks.get(&used.block.text) else { return };
        self.used.insert(used.block.text.clone());
        for (option, _) in &used.options {
            if !block.options().any(|name| name == option.text) {
                let hint = nearest(&option.text, block.options());
                let operator = used.block.text.clone();
                self.problems.add(option.place, Problem::UnknownOption { operator, option: option.text.clone(), hint });
                return;
            }
        }
        let Some(count) = self.count(used, scope) else { return };
        let result = scope.global(&used.instance.text);
        let own = format!("{}{}", scope.prefix, used.instance.text);
        let mut before: Option<String> = None;
        for n in 1..=count {
            self.instances += 1;
            if self.instances > INSTANCES {
                let what = "instances of blocks".into();
                return self.problems.add(used.block.place, Problem::TooMany { what, count: self.instances, limit: INSTANCES });
            }
            let name = if count == 1 { own.clone() } else { format!("{own}_{n}") };
            let result = if n == count { result.clone() } else { name.clone() };
            let Some(inner) = self.scope(used, block, scope, (n - 1) as usize, (&name, &result), before.as_deref()) else { return };
            self.write(&block.steps, &inner);
            before = Some(result);
        }
    }

    /// How many instances a use makes.
    fn count(&mut self, used: &BlockUse, scope: &NameScope) -> Option<i64> {
        let mut count: Option<(String, i64)> = None;
        for (option, given) in &used.options {
            let length = match given {
                OptionValue::Each(items) => items.len() as i64,
                OptionValue::One(_) if option.text != REPEAT => continue,
                OptionValue::One(phrase) => match number(&scope.renamed(phrase)).and_then(|text| text.parse().ok()) {
                    Some(times) if times >= 1 => times,
                    _ => {
                        report(self.problems, phrase.place, format!("`{REPEAT}` is a whole number from 1, such as 3"));
                        return None;
                    }
                },
            };
            match &count {
                Some((other, known)) if *known != length => {
                    let why = format!(
                        "`{other}` makes {known} instances and `{}` {length}; a list has one value for each, so give all of them as many",
                        option.text
                    );
                    report(self.problems, option.place, why);
                    return None;
                }
                _ => count = Some((option.text.clone(), length)),
            }
        }
        Some(count.map_or(1, |(_, count)| count))
    }

    /// The names in an instance; declares its dims and parameters. `None` after an error.
    fn scope(
        &mut self,
        used: &BlockUse,
        block: &Block,
        outer: &NameScope,
        at: usize,
        (name, result): (&str, &str),
        before: Option<&str>,
    ) -> Option<NameScope> {
        let within = self.problems.instance(format!("`{name}` (`{}`, line {})", block.name.text, used.block.place.line));
        let prefix = format!("{name}_");
        let mut scope = NameScope { prefix, within, instances: block.instances(), ..NameScope::default() };
        for (section, names) in [("dims", &block.dims), ("constants", &block.constants)] {
            for (local, _) in names {
                let given = used.options.iter().any(|(option, _)| option.text == local.text);
                if !given && names.iter().any(|(other, value)| other == local && value.is_none()) {
                    let what = format!("the {} `{}`", if section == "dims" { "size" } else { "number" }, local.text);
                    let problem = Problem::BlockNeeds { block: block.name.text.clone(), what, usage: block.usage() };
                    self.problems.add(used.block.place, problem);
                    return None;
                }
            }
        }
        self.bind_inputs(used, block, outer, before, &mut scope)?;
        let given = |local: &Name| used.options.iter().find(|(option, _)| option.text == local.text).and_then(|(_, given)| given.at(at));
        for (local, value) in &block.constants {
            let phrase = match (given(local), value) {
                (Some(phrase), _) => outer.renamed(phrase),
                (None, Some(phrase)) => scope.renamed(phrase),
                (None, None) => continue,
            };
            let Some(number) = number(&phrase) else {
                let why = format!(
                    "the constant `{}` of `{}` is a number, or an expression of whole numbers in which `/` rounds down, such as (k - 1) / 2",
                    local.text, block.name.text
                );
                report(self.problems, phrase.place, why);
                return None;
            };
            scope.meanings.insert(local.text.clone(), Meaning::Number(number));
        }
        for (local, _) in &block.dims {
            let name = scope.global_of(&local.text);
            scope.meanings.insert(local.text.clone(), Meaning::Name(name));
        }
        for (local, value) in &block.dims {
            let (phrase, renamed) = match (given(local), value) {
                (Some(phrase), _) => (phrase, outer.renamed(phrase)),
                (None, Some(phrase)) => (phrase, scope.renamed(phrase)),
                (None, None) => continue,
            };
            // A number that is written is a size of its own; one that is computed is that number.
            let size = phrase.text.trim().parse().map_or(YamlValue::Text(renamed.text), YamlValue::Int);
            let node = YamlNode { place: renamed.place, value: size };
            self.declare(local, &scope, node, true)?;
        }
        for (local, node) in &block.parameters {
            let name = scope.global_of(&local.text);
            scope.meanings.insert(local.text.clone(), Meaning::Name(name.clone()));
            let node = parameter(node, &scope);
            if let Some(dims) = axes(&node) {
                self.tensors.insert(name, dims);
            }
            self.declare(local, &scope, node, false)?;
        }
        for local in block.results() {
            let own = match block.outputs.first() {
                Some(first) if *first == local => result.into(),
                _ => scope.global_of(&local),
            };
            scope.meanings.insert(local, Meaning::Name(own));
        }
        Some(scope)
    }

    /// Gives the inputs of a block tensors, and their dims names.
    fn bind_inputs(
        &mut self,
        used: &BlockUse,
        block: &Block,
        outer: &NameScope,
        before: Option<&str>,
        scope: &mut NameScope,
    ) -> Option<()> {
        if used.tensors.len() != block.inputs.len() {
            let what = match block.inputs.len() {
                0 => "no tensor".into(),
                1 => "one tensor".into(),
                count => format!("{count} tensors"),
            };
            self.problems.add(used.block.place, Problem::BlockNeeds { block: block.name.text.clone(), what, usage: block.usage() });
            return None;
        }
        for (n, ((input, wanted), tensor)) in block.inputs.iter().zip(&used.tensors).enumerate() {
            let name = match before {
                Some(before) if n == 0 => before.to_string(),
                _ => outer.global(&tensor.text),
            };
            let Some(dims) = self.tensors.get(&name).cloned() else {
                let hint = nearest(&tensor.text, self.tensors.keys().map(String::as_str));
                self.problems.add(tensor.place, Problem::UnknownTensor { name: tensor.text.clone(), hint });
                return None;
            };
            if dims.len() != wanted.len() {
                let axes = wanted.iter().map(|dim| dim.text.as_str()).collect::<Vec<_>>().join(", ");
                let why = format!(
                    "the input `{}` of `{}` has the axes [{axes}], but those of `{}` are [{}]; give a tensor with as many",
                    input.text,
                    block.name.text,
                    tensor.text,
                    dims.join(", ")
                );
                report(self.problems, tensor.place, why);
                return None;
            }
            for (dim, own) in wanted.iter().zip(&dims) {
                scope.meanings.entry(dim.text.clone()).or_insert_with(|| Meaning::Name(own.clone()));
            }
            let bound: Vec<String> = wanted.iter().map(|dim| scope.global(&dim.text)).collect();
            let dims = (bound != dims).then_some(bound);
            scope.meanings.insert(input.text.clone(), Meaning::Tensor { name, dims });
        }
        Some(())
    }

    /// Declares a dim or a parameter of an instance.
    fn declare(&mut self, local: &Name, scope: &NameScope, node: YamlNode, is_dim: bool) -> Option<()> {
        let place = SourceLocation { within: scope.within, ..local.place };
        let name = Name { place, text: scope.global_of(&local.text) };
        if let Some(line) = self.taken.insert(name.text.clone(), place.line) {
            self.problems.add(place, Problem::DeclaredTwice { name: name.text, line });
            return None;
        }
        if is_dim { &mut self.dims } else { &mut self.parameters }.push((name, node));
        Some(())
    }
}

impl NameScope {
    /// The name of what an instance declares itself.
    fn global_of(&self, local: &str) -> String {
        format!("{}{local}", self.prefix)
    }
}

impl OptionValue {
    /// The value for the instance `at`.
    fn at(&self, at: usize) -> Option<&Phrase> {
        match self {
            OptionValue::One(phrase) => Some(phrase),
            OptionValue::Each(items) => items.get(at),
        }
    }

    /// All values.
    pub fn phrases(&self) -> impl Iterator<Item = &Phrase> {
        match self {
            OptionValue::One(phrase) => std::slice::from_ref(phrase).iter(),
            OptionValue::Each(items) => items.iter(),
        }
    }
}

/// The text of a number: as it is written, or the value of an expression of whole numbers.
fn number(phrase: &Phrase) -> Option<String> {
    let text = phrase.text.trim();
    if text.parse::<f64>().is_ok_and(f64::is_finite) {
        return Some(text.into());
    }
    text.parse::<Expr>().ok()?.eval(&Bindings::new()).ok().map(|value| value.to_string())
}

/// The dims of a declared tensor.
fn axes(node: &YamlNode) -> Option<Vec<String>> {
    let items = match &node.value {
        YamlValue::List(items) => items,
        YamlValue::Map(options) => return options.iter().find(|(key, _)| key.text == "dims").and_then(|(_, dims)| axes(dims)),
        _ => return None,
    };
    items.iter().map(|item| if let YamlValue::Text(dim) = &item.value { Some(dim.clone()) } else { None }).collect()
}

/// What a step assigns, and its dims.
fn left(step: &Phrase) -> Option<(String, Vec<String>)> {
    let words = step.words();
    let mut words = words.into_iter().map(|word| word.token);
    let Some(Token::Name { text: name, .. }) = words.next() else { return None };
    let mut dims = Vec::new();
    for token in words {
        match token {
            Token::Sign("=") => return Some((name, dims)),
            Token::Sign("[" | "," | "]") => {}
            Token::Name { text, .. } => dims.push(text),
            _ => return None,
        }
    }
    None
}

/// The declaration of a parameter as the whole recipe says it.
fn parameter(node: &YamlNode, scope: &NameScope) -> YamlNode {
    let renamed = |text: &String| scope.renamed(&Phrase::at(node.place, text.clone())).text;
    let value = match &node.value {
        YamlValue::List(items) => YamlValue::List(items.iter().map(|item| parameter(item, scope)).collect()),
        YamlValue::Map(options) => YamlValue::Map(
            options
                .iter()
                .map(|(key, value)| (key.clone(), if key.text == "dtype" { value.clone() } else { parameter(value, scope) }))
                .collect(),
        ),
        YamlValue::Text(text) => YamlValue::Text(renamed(text)),
        other => other.clone(),
    };
    YamlNode { place: SourceLocation { within: scope.within, ..node.place }, value }
}
