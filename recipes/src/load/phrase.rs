//! A text of a recipe in which names can be replaced, while every character keeps its place in the file.

use super::lexer;
use super::problem::SourceLocation;
use super::source::RecipeText;
use sdfg::syntax::{self, Placed, Token};
use std::ops::Range;

/// A text, and where each of its characters stands in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Phrase {
    /// Where it begins, in the instance of a block that it belongs to.
    pub place: SourceLocation,
    pub text: String,
    pub places: Vec<SourceLocation>,
}

/// A word of a phrase and its characters.
#[derive(Clone, Debug, PartialEq)]
pub struct Word {
    pub token: Token,
    pub range: Range<usize>,
}

/// A word that may be the name of a tensor, a dim or a constant: no operator, no option, no keyword.
#[derive(Clone, Debug, PartialEq)]
pub struct Mention {
    pub text: String,
    pub range: Range<usize>,
    /// Subscripts follow.
    pub has_subscripts: bool,
}

/// Words of steps that name nothing.
const KEYWORDS: [&str; 2] = ["inf", "else"];
/// Options whose value is a word, not a name.
const WORDED: [&str; 1] = ["form"];

impl Phrase {
    /// A text as it stands in the file.
    pub fn written(place: SourceLocation, text: &str, source: &RecipeText) -> Phrase {
        Phrase { place, text: text.into(), places: source.places(place, text) }
    }

    /// A text all of which stands at one place.
    pub fn at(place: SourceLocation, text: String) -> Phrase {
        let places = vec![place; text.chars().count()];
        Phrase { place, text, places }
    }

    /// Its words without the end; none if a character begins no word, which the reader of the phrase reports.
    pub fn words(&self) -> Vec<Word> {
        let tokens = syntax::tokens(&self.text, &lexer::DIALECT).unwrap_or_default();
        let word = |Placed { token, position }: Placed| {
            let length = match &token {
                Token::Name { text, .. } | Token::Number(text) => text.chars().count(),
                Token::Sign(sign) => sign.len(),
                Token::End => return None,
            };
            Some(Word { token, range: position.at..position.at + length })
        };
        tokens.into_iter().filter_map(word).collect()
    }

    /// The names in it.
    pub fn mentions(&self) -> Vec<Mention> {
        let words = self.words();
        let sign = |at: usize| match words.get(at).map(|word| &word.token) {
            Some(Token::Sign(sign)) => *sign,
            _ => "",
        };
        let mut open: Vec<&str> = Vec::new();
        let mut found = Vec::new();
        for (at, word) in words.iter().enumerate() {
            match &word.token {
                Token::Sign(bracket @ ("(" | "[")) => open.push(bracket),
                Token::Sign(")" | "]") => {
                    open.pop();
                }
                Token::Name { text, .. } => {
                    let begins = |at: usize| at > 0 && matches!(sign(at - 1), "(" | ",");
                    let is_option = sign(at + 1) == ":" && open.last() == Some(&"(") && begins(at);
                    let is_worded = at > 1
                        && sign(at - 1) == ":"
                        && matches!(&words[at - 2].token, Token::Name { text, .. } if WORDED.contains(&text.as_str()));
                    let is_call = sign(at + 1) == "(";
                    if !(is_option || is_worded || is_call || KEYWORDS.contains(&text.as_str())) {
                        found.push(Mention { text: text.clone(), range: word.range.clone(), has_subscripts: sign(at + 1) == "[" });
                    }
                }
                _ => {}
            }
        }
        found
    }

    /// The place of a character.
    pub fn place_of(&self, at: usize) -> SourceLocation {
        let place = self.places.get(at).copied().unwrap_or(self.place);
        SourceLocation { within: self.place.within, ..place }
    }

    /// Some of its characters.
    pub fn part(&self, range: Range<usize>) -> Phrase {
        let text = self.text.chars().skip(range.start).take(range.len()).collect();
        let places = self.places.iter().skip(range.start).take(range.len()).copied().collect();
        Phrase { place: self.place_of(range.start), text, places }
    }

    /// The same with names replaced; what replaces a name stands where the name does. `within` is the instance that it then belongs to.
    pub fn renamed(&self, within: u32, replace: &dyn Fn(&Mention) -> Option<String>) -> Phrase {
        let letters: Vec<char> = self.text.chars().collect();
        let (mut text, mut places) = (String::new(), Vec::new());
        let mut done = 0;
        let copy = |range: Range<usize>, text: &mut String, places: &mut Vec<SourceLocation>| {
            text.extend(letters.iter().skip(range.start).take(range.len()));
            places.extend(range.map(|at| self.places.get(at).copied().unwrap_or(self.place)));
        };
        for mention in self.mentions() {
            let Some(new) = replace(&mention) else { continue };
            copy(done..mention.range.start, &mut text, &mut places);
            let place = self.places.get(mention.range.start).copied().unwrap_or(self.place);
            places.extend(new.chars().map(|_| place));
            text.push_str(&new);
            done = mention.range.end;
        }
        copy(done..letters.len(), &mut text, &mut places);
        Phrase { place: SourceLocation { within, ..self.place }, text, places }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_told_from_operators_options_and_keywords() {
        let phrase = Phrase::at(SourceLocation::START, "y[n,o] = gelu(max(x[n, i else -inf], over: i) * k, form: tanh)".into());
        let names: Vec<String> = phrase.mentions().into_iter().map(|m| m.text).collect();
        assert_eq!(names, ["y", "n", "o", "x", "n", "i", "i", "k"]);
    }

    #[test]
    fn a_renamed_text_keeps_its_places() {
        let places = (1..=9).map(|column| SourceLocation::at(7, column)).collect();
        let phrase = Phrase { place: SourceLocation::at(7, 1), text: "a = bb[i]".into(), places };
        let renamed = phrase.renamed(3, &|m| (m.text == "bb").then(|| "long".into()));
        assert_eq!(renamed.text, "a = long[i]");
        assert_eq!(renamed.places.iter().map(|p| p.column).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 5, 5, 5, 7, 8, 9]);
        assert_eq!(renamed.place, SourceLocation { within: 3, ..SourceLocation::at(7, 1) });
    }
}
