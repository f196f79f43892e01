//! Steps of blocks and recipes: a step as it stands, or the use of a block, `name = block(tensor, …, option: value, …)`.

use super::{Blocks, report};
use crate::load::phrase::{Phrase, Word};
use crate::load::problem::Problems;
use crate::load::yaml::Name;
use sdfg::syntax::Token;
use std::ops::Range;

/// The option that says how often a block is used, each time with the result of the time before.
pub const REPEAT: &str = "repeat";

#[derive(Clone, Debug)]
pub enum BlockStep {
    Plain(Phrase),
    Use(BlockUse),
}

/// One use of a block, or several in a row.
#[derive(Clone, Debug)]
pub struct BlockUse {
    pub instance: Name,
    pub block: Name,
    pub tensors: Vec<Name>,
    pub options: Vec<(Name, OptionValue)>,
}

/// The value of an option.
#[derive(Clone, Debug)]
pub enum OptionValue {
    One(Phrase),
    /// One for each instance.
    Each(Vec<Phrase>),
}

impl BlockStep {
    /// Reads a step. `None` after an error, which has been reported.
    pub fn read(phrase: &Phrase, blocks: &Blocks, problems: &mut Problems) -> Option<BlockStep> {
        let words = phrase.words();
        let is_use = |at: usize| match (words.get(at).map(|w| &w.token), words.get(at + 1).map(|w| &w.token)) {
            (Some(Token::Name { text, .. }), Some(Token::Sign("("))) => blocks.contains_key(text),
            _ => false,
        };
        let Some(at) = (0..words.len()).find(|at| is_use(*at)) else { return Some(BlockStep::Plain(phrase.clone())) };
        let block = name(phrase, &words[at])?;
        let alone = at == 2 && matches!(words[1].token, Token::Sign("=")) && closing(&words, at + 1) == Some(words.len() - 1);
        let Some(instance) = words.first().and_then(|word| name(phrase, word)).filter(|_| alone) else {
            let text = &block.text;
            report(
                problems,
                block.place,
                format!(
                    "the block `{text}` stands alone in a step that names its result without dims, `NAME = {text}(TENSOR, …)`; its result has dims of its own"
                ),
            );
            return None;
        };
        let (mut tensors, mut options) = (Vec::new(), Vec::<(Name, OptionValue)>::new());
        for range in parts(&words, at + 2..words.len() - 1) {
            let part = &words[range.clone()];
            match part {
                [option, Word { token: Token::Sign(":"), .. }, first, ..] => {
                    let option = name(phrase, option)?;
                    if options.iter().any(|(other, _)| other.text == option.text) {
                        report(problems, option.place, format!("the option `{}` is given twice", option.text));
                        return None;
                    }
                    let value = range.start + 2..range.end;
                    let is_list = first.token == Token::Sign("[") && closing(&words, value.start) == Some(value.end - 1);
                    let given = match is_list {
                        true => OptionValue::Each(
                            parts(&words, value.start + 1..value.end - 1).into_iter().map(|item| text(phrase, &words[item])).collect(),
                        ),
                        false => OptionValue::One(text(phrase, &words[value])),
                    };
                    options.push((option, given));
                }
                [tensor] if options.is_empty() && matches!(tensor.token, Token::Name { .. }) => tensors.push(name(phrase, tensor)?),
                _ => {
                    let place = part.first().map_or(block.place, |word| phrase.place_of(word.range.start));
                    let text = &block.text;
                    report(
                        problems,
                        place,
                        format!(
                            "`{text}` takes names of tensors and then options, `{text}(TENSOR, …, OPTION: VALUE, …)`; give what is computed a step of its own"
                        ),
                    );
                    return None;
                }
            }
        }
        Some(BlockStep::Use(BlockUse { instance, block, tensors, options }))
    }
}

fn name(phrase: &Phrase, word: &Word) -> Option<Name> {
    match &word.token {
        Token::Name { text, .. } => Some(Name { place: phrase.place_of(word.range.start), text: text.clone() }),
        _ => None,
    }
}

/// The text of some words.
fn text(phrase: &Phrase, words: &[Word]) -> Phrase {
    let (from, to) = (words.first().map_or(0, |w| w.range.start), words.last().map_or(0, |w| w.range.end));
    phrase.part(from..to)
}

/// The bracket that closes the one at `open`.
fn closing(words: &[Word], open: usize) -> Option<usize> {
    let mut depth = 0;
    words.iter().enumerate().skip(open).find_map(|(at, word)| {
        match word.token {
            Token::Sign("(" | "[") => depth += 1,
            Token::Sign(")" | "]") => depth -= 1,
            _ => {}
        }
        (depth == 0).then_some(at)
    })
}

/// The words between commas that stand in no bracket; none for no words.
fn parts(words: &[Word], range: Range<usize>) -> Vec<Range<usize>> {
    let mut found = Vec::new();
    let (mut depth, mut start) = (0, range.start);
    for at in range.clone() {
        match words[at].token {
            Token::Sign("(" | "[") => depth += 1,
            Token::Sign(")" | "]") => depth -= 1,
            Token::Sign(",") if depth == 0 => {
                found.push(start..at);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !range.is_empty() {
        found.push(start..range.end);
    }
    found
}
