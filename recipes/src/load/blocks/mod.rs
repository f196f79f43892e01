//! Blocks: parts of a recipe that are written once and used several times, each time with other tensors, sizes and numbers.
//!
//! ```yaml
//! blocks:
//!   dense:
//!     dims: {o: }                       # must be given
//!     inputs: {x: [b, i]}               # b and i are the dims of the given tensor
//!     parameters: {w: [o, i], c: [o]}
//!     steps:
//!       - y[b,o] = relu(w[o,i] * x[b,i] + c[o])
//! steps:
//!   - "h = dense(x, o: 64, repeat: 2)"  # h_1, and h of h_1
//!   - "z = dense(h, o: 10)"             # dims z_o, parameters z_w and z_c
//! ```
//!
//! A use makes an *instance*. All of it is written out before anything else reads the recipe: `z = dense(h, o: 10)` becomes the dim
//! `z_o: 10`, the parameters `z_w` and `z_c`, and the step `z[b,z_o] = relu(z_w[z_o,h_2_o] * h[b,h_2_o] + z_c[z_o])`. Each character keeps
//! its place in the file, and errors name the instance.

mod definition;
mod instance;
mod scope;
mod uses;

pub use definition::BLOCK_KEYS;

use super::problem::{Problem, Problems, SourceLocation};
use super::source::RecipeText;
use super::yaml::{Name, YamlNode, YamlValue};
use definition::Block;
use indexmap::IndexMap;
use instance::BlockExpansion;

/// A recipe without blocks that says the same, and the blocks that no step uses. The steps of the result are [`YamlValue::Phrase`].
pub fn expand(mut root: YamlNode, source: &RecipeText, problems: &mut Problems) -> (YamlNode, Vec<Name>) {
    let YamlValue::Map(entries) = &mut root.value else { return (root, vec![]) };
    let Some(at) = entries.iter().position(|(key, _)| key.text == "blocks") else { return (root, vec![]) };
    let (_, node) = entries.remove(at);
    let blocks = definition::read(&node, entries, source, problems);
    if !problems.is_empty() {
        return (root, vec![]);
    }
    let Some(steps) = entries.iter().find(|(key, _)| key.text == "steps").map(|(_, steps)| steps) else { return (root, vec![]) };
    let Some(steps) = definition::phrases(steps, source, problems) else { return (root, vec![]) };
    let expansion = BlockExpansion::of(&blocks, entries, &steps, problems);
    let unused = blocks.values().filter(|block| !expansion.used.contains(&block.name.text)).map(|block| block.name.clone()).collect();
    for (key, added) in [("dims", expansion.dims), ("parameters", expansion.parameters)] {
        append(entries, key, added);
    }
    for (key, node) in entries.iter_mut() {
        if key.text == "steps" {
            let steps = expansion.steps.iter();
            node.value =
                YamlValue::List(steps.map(|step| YamlNode { place: step.place, value: YamlValue::Phrase(step.clone()) }).collect());
        }
    }
    (root, unused)
}

/// Adds declarations to a section, which is made if there is none. What is no mapping is left as it is, for its reader to report.
fn append(entries: &mut Vec<(Name, YamlNode)>, key: &str, added: Vec<(Name, YamlNode)>) {
    if added.is_empty() {
        return;
    }
    match entries.iter_mut().find(|(name, _)| name.text == key) {
        Some((_, YamlNode { value: YamlValue::Map(declared), .. })) => declared.extend(added),
        Some((_, node)) if matches!(node.value, YamlValue::Null) => node.value = YamlValue::Map(added),
        Some(_) => {}
        None => {
            let name = Name { place: SourceLocation::START, text: key.into() };
            entries.push((name, YamlNode { place: SourceLocation::START, value: YamlValue::Map(added) }));
        }
    }
}

/// The names that a section of the recipe declares.
fn declared<'a>(entries: &'a [(Name, YamlNode)], section: &str) -> impl Iterator<Item = &'a (Name, YamlNode)> {
    let node = entries.iter().find(|(key, _)| key.text == section).map(|(_, node)| node);
    let declared = node.map_or(&[][..], |node| if let YamlValue::Map(declared) = &node.value { declared } else { &[] });
    declared.iter()
}

/// Blocks by name.
type Blocks = IndexMap<String, Block>;

fn report(problems: &mut Problems, place: SourceLocation, why: String) {
    problems.add(place, Problem::BlockUse(why));
}
