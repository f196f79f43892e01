//! Reads the section `blocks`: what each block declares, and whether its steps mention anything else.

use super::scope::is_inner;
use super::uses::{BlockStep, REPEAT};
use super::{Blocks, declared, report};
use crate::load::names::{nearest, usable};
use crate::load::operator_names;
use crate::load::phrase::Phrase;
use crate::load::problem::{Problem, Problems, SourceLocation};
use crate::load::source::RecipeText;
use crate::load::yaml::{Name, YamlNode, YamlValue};
use indexmap::{IndexMap, IndexSet};
use sdfg::syntax::Token;

pub const BLOCK_KEYS: [&str; 6] = ["dims", "constants", "inputs", "parameters", "outputs", "steps"];

/// A block as it is written.
#[derive(Clone, Debug)]
pub struct Block {
    pub name: Name,
    /// Sizes; `None` where each use gives one.
    pub dims: Vec<(Name, Option<Phrase>)>,
    /// Numbers that stand for themselves wherever the block names them; `None` where each use gives one.
    pub constants: Vec<(Name, Option<Phrase>)>,
    /// Tensors that a use gives, with names for their dims.
    pub inputs: Vec<(Name, Vec<Name>)>,
    pub parameters: Vec<(Name, YamlNode)>,
    pub steps: Vec<BlockStep>,
    /// The results that others may read under names of the instance; the first is the instance's own.
    pub outputs: Vec<String>,
}

impl Block {
    /// How a use looks.
    pub fn usage(&self) -> String {
        let tensors = self.inputs.iter().map(|(name, _)| name.text.clone());
        let options =
            self.dims.iter().chain(&self.constants).filter(|(_, value)| value.is_none()).map(|(name, _)| format!("{}: …", name.text));
        tensors.chain(options).collect::<Vec<_>>().join(", ")
    }

    /// Everything that an option can give.
    pub fn options(&self) -> impl Iterator<Item = &str> {
        self.dims.iter().chain(&self.constants).map(|(name, _)| name.text.as_str()).chain([REPEAT])
    }

    /// The results of its steps and the instances that they make.
    pub fn results(&self) -> impl Iterator<Item = String> {
        self.steps.iter().filter_map(result).map(|name| name.text)
    }

    /// The instances that its steps make.
    pub fn instances(&self) -> Vec<String> {
        instances(&self.steps)
    }

    /// The names that it declares, each once.
    fn declares(&self) -> Vec<Name> {
        let mut found: Vec<Name> = self.dims.iter().chain(&self.constants).map(|(name, _)| name.clone()).collect();
        found.extend(self.inputs.iter().map(|(name, _)| name.clone()));
        found.extend(self.parameters.iter().map(|(name, _)| name.clone()));
        found
    }
}

pub fn instances(steps: &[BlockStep]) -> Vec<String> {
    steps.iter().filter_map(|step| if let BlockStep::Use(used) = step { Some(used.instance.text.clone()) } else { None }).collect()
}

/// What a step assigns.
fn result(step: &BlockStep) -> Option<Name> {
    match step {
        BlockStep::Use(used) => Some(used.instance.clone()),
        BlockStep::Plain(phrase) => match phrase.words().first().map(|word| &word.token) {
            Some(Token::Name { text, .. }) => Some(Name { place: phrase.place_of(0), text: text.clone() }),
            _ => None,
        },
    }
}

/// The blocks of a recipe whose other sections are `recipe`.
pub fn read(node: &YamlNode, recipe: &[(Name, YamlNode)], source: &RecipeText, problems: &mut Problems) -> Blocks {
    let mut blocks: Blocks = IndexMap::new();
    let YamlValue::Map(entries) = &node.value else {
        wrong(problems, node.place, "`blocks`", "a mapping from names to blocks");
        return blocks;
    };
    let mut steps = Vec::new();
    for (name, node) in entries {
        usable(name, problems);
        if operator_names().any(|operator| operator == name.text) {
            problems.add(name.place, Problem::BlockIsOperator { name: name.text.clone() });
        }
        let (block, phrases) = block(name, node, source, problems);
        blocks.insert(name.text.clone(), block);
        steps.push((name.text.clone(), phrases));
    }
    // Which names are those of blocks is known only now.
    for (name, phrases) in steps {
        let steps: Vec<BlockStep> = phrases.iter().filter_map(|phrase| BlockStep::read(phrase, &blocks, problems)).collect();
        if let Some(block) = blocks.get_mut(&name) {
            block.steps = steps;
            settle_outputs(block, problems);
        }
    }
    for block in blocks.values() {
        names_are_known(block, recipe, problems);
    }
    if problems.is_empty() {
        find_cycle(&blocks, problems);
    }
    blocks
}

fn block(name: &Name, node: &YamlNode, source: &RecipeText, problems: &mut Problems) -> (Block, Vec<Phrase>) {
    let (dims, constants, inputs, parameters, outputs) = (vec![], vec![], vec![], vec![], vec![]);
    let mut block = Block { name: name.clone(), dims, constants, inputs, parameters, outputs, steps: vec![] };
    let mut steps = Vec::new();
    let what = format!("the block `{}`", name.text);
    let YamlValue::Map(entries) = &node.value else {
        wrong(problems, node.place, &what, "a mapping with `inputs` and `steps`");
        return (block, steps);
    };
    for (key, node) in entries {
        match key.text.as_str() {
            "dims" => block.dims = numbers(node, "`dims`", source, problems),
            "constants" => block.constants = numbers(node, "`constants`", source, problems),
            "inputs" => {
                for (tensor, node) in mapping(node, "`inputs`", problems) {
                    usable(tensor, problems);
                    let dims = words(node, &format!("the input `{}`", tensor.text), problems);
                    block.inputs.push((tensor.clone(), dims));
                }
            }
            "parameters" => block.parameters = mapping(node, "`parameters`", problems).to_vec(),
            "outputs" => block.outputs = words(node, "`outputs`", problems).into_iter().map(|name| name.text).collect(),
            "steps" => steps = phrases(node, source, problems).unwrap_or_default(),
            unknown => problems.add(key.place, Problem::UnknownKey { key: unknown.into(), hint: nearest(unknown, BLOCK_KEYS) }),
        }
    }
    if steps.is_empty() && problems.is_empty() {
        wrong(problems, name.place, &what, "a mapping with at least one step in `steps`");
    }
    let mut seen: IndexMap<String, u32> = IndexMap::new();
    for declared in block.declares() {
        usable(&declared, problems);
        if declared.text == REPEAT {
            let why = format!("every use of a block has an option `{REPEAT}`");
            problems.add(declared.place, Problem::BadName { name: declared.text.clone(), why });
        }
        match seen.get(&declared.text) {
            Some(line) => problems.add(declared.place, Problem::DeclaredTwice { name: declared.text, line: *line }),
            None => {
                seen.insert(declared.text, declared.place.line);
            }
        }
    }
    for dim in block.inputs.iter().flat_map(|(_, dims)| dims) {
        if let Some(line) = seen.get(&dim.text) {
            problems.add(dim.place, Problem::DeclaredTwice { name: dim.text.clone(), line: *line });
        }
    }
    (block, steps)
}

/// Sizes or constants: numbers, expressions, or nothing where each use gives one.
fn numbers(node: &YamlNode, what: &str, source: &RecipeText, problems: &mut Problems) -> Vec<(Name, Option<Phrase>)> {
    let mut found = Vec::new();
    for (name, node) in mapping(node, what, problems) {
        usable(name, problems);
        let value = match &node.value {
            YamlValue::Null => None,
            YamlValue::Int(number) => Some(Phrase::at(node.place, number.to_string())),
            YamlValue::Float(_, written) => Some(Phrase::at(node.place, written.clone())),
            YamlValue::Text(text) => Some(Phrase::written(node.place, text, source)),
            _ => {
                wrong(problems, node.place, &format!("`{}`", name.text), "a number, an expression, or nothing where each use gives one");
                None
            }
        };
        found.push((name.clone(), value));
    }
    found
}

fn mapping<'a>(node: &'a YamlNode, what: &str, problems: &mut Problems) -> &'a [(Name, YamlNode)] {
    match &node.value {
        YamlValue::Map(entries) => entries,
        YamlValue::Null => &[],
        _ => {
            wrong(problems, node.place, &format!("{what} of a block"), "a mapping");
            &[]
        }
    }
}

fn words(node: &YamlNode, what: &str, problems: &mut Problems) -> Vec<Name> {
    let word = |item: &YamlNode| match &item.value {
        YamlValue::Text(text) => Some(Name { place: item.place, text: text.clone() }),
        _ => None,
    };
    let found = if let YamlValue::List(items) = &node.value { items.iter().map(word).collect() } else { None };
    found.unwrap_or_else(|| {
        wrong(problems, node.place, what, "a list of names, such as [n, c]");
        vec![]
    })
}

/// The steps of a section. `None` where it is no list, which its reader reports.
pub fn phrases(node: &YamlNode, source: &RecipeText, problems: &mut Problems) -> Option<Vec<Phrase>> {
    let YamlValue::List(items) = &node.value else {
        wrong(problems, node.place, "`steps`", "a list of steps, each `- name[index, …] = expression`");
        return None;
    };
    let phrase = |item: &YamlNode| match &item.value {
        YamlValue::Text(text) => Some(Phrase::written(item.place, text, source)),
        _ => {
            wrong(problems, item.place, "a step", "a text");
            None
        }
    };
    items.iter().map(phrase).collect()
}

fn wrong(problems: &mut Problems, place: SourceLocation, what: &str, expected: &str) {
    problems.add(place, Problem::WrongKind { what: what.into(), expected: expected.into() });
}

/// Without `outputs` the result is the one that no step reads.
fn settle_outputs(block: &mut Block, problems: &mut Problems) {
    let results: Vec<Name> = block.steps.iter().filter_map(result).collect();
    if let Some(unknown) = block.outputs.iter().find(|output| results.iter().all(|name| name.text != **output)) {
        let hint = nearest(unknown, results.iter().map(|name| name.text.as_str()));
        problems.add(block.name.place, Problem::NotAResult { name: unknown.clone(), hint });
    }
    if !block.outputs.is_empty() {
        return;
    }
    let mut read: IndexSet<String> = IndexSet::new();
    for step in &block.steps {
        match step {
            BlockStep::Plain(phrase) => read.extend(phrase.mentions().into_iter().skip(1).map(|mention| mention.text)),
            BlockStep::Use(used) => read.extend(used.tensors.iter().map(|name| name.text.clone())),
        }
    }
    let unread: Vec<&Name> = results.iter().filter(|name| !read.contains(&name.text)).collect();
    match unread.as_slice() {
        [only] => block.outputs = vec![only.text.clone()],
        _ if !problems.is_empty() => {}
        several => {
            let names: Vec<String> = several.iter().map(|name| format!("`{}`", name.text)).collect();
            let why = format!(
                "the block `{}` has {} results that none of its steps reads ({}); name its result in `outputs: […]`",
                block.name.text,
                several.len(),
                names.join(", ")
            );
            report(problems, block.name.place, why);
        }
    }
}

/// Reports names in a block that neither it nor the recipe declares.
fn names_are_known(block: &Block, recipe: &[(Name, YamlNode)], problems: &mut Problems) {
    let mut known: IndexSet<String> = block.declares().into_iter().map(|name| name.text).collect();
    known.extend(block.inputs.iter().flat_map(|(_, dims)| dims).map(|dim| dim.text.clone()));
    known.extend(block.results());
    for section in ["dims", "constants", "inputs", "parameters"] {
        known.extend(declared(recipe, section).map(|(name, _)| name.text.clone()));
    }
    let instances = block.instances();
    let mut check = |name: &str, place: SourceLocation| {
        if !known.contains(name) && !is_inner(name, &instances) {
            let hint = nearest(name, known.iter().map(String::as_str));
            problems.add(place, Problem::UnknownInBlock { name: name.into(), block: block.name.text.clone(), hint });
        }
    };
    let mut phrases: Vec<&Phrase> = block.dims.iter().chain(&block.constants).filter_map(|(_, value)| value.as_ref()).collect();
    for step in &block.steps {
        match step {
            BlockStep::Plain(phrase) => phrases.push(phrase),
            BlockStep::Use(used) => {
                used.tensors.iter().for_each(|name| check(&name.text, name.place));
                phrases.extend(used.options.iter().flat_map(|(_, given)| given.phrases()));
            }
        }
    }
    for phrase in phrases {
        for mention in phrase.mentions() {
            check(&mention.text, phrase.place_of(mention.range.start));
        }
    }
}

fn find_cycle(blocks: &Blocks, problems: &mut Problems) {
    fn visit<'a>(blocks: &'a Blocks, block: &'a Block, path: &mut Vec<&'a str>, done: &mut IndexSet<&'a str>) -> Option<String> {
        let name = block.name.text.as_str();
        if let Some(from) = path.iter().position(|other| *other == name) {
            return Some(path[from..].iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "));
        }
        if done.contains(name) {
            return None;
        }
        path.push(name);
        let used = block.steps.iter().filter_map(|step| if let BlockStep::Use(used) = step { blocks.get(&used.block.text) } else { None });
        let found = used.into_iter().find_map(|inner| visit(blocks, inner, path, done));
        path.pop();
        done.insert(name);
        found
    }
    let mut done = IndexSet::new();
    for block in blocks.values() {
        if let Some(names) = visit(blocks, block, &mut vec![], &mut done) {
            return problems.add(block.name.place, Problem::BlockCycle(names));
        }
    }
}
