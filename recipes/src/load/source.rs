//! The text of a recipe, and where in it a step's characters stand.

use super::problem::SourceLocation;

/// What a blank after a colon inside `steps` becomes; the step grammar treats it as a blank.
const SHIELD: char = '\u{a0}';

/// A recipe's text, ready for YAML.
///
/// YAML reads `softmax(x, over: k)` in an unquoted step as a mapping, because of the colon and the blank. Inside the
/// `steps` section, and the `steps` of a block, that blank becomes a no-break space, which leaves every column where it was.
pub struct RecipeText {
    pub text: String,
    lines: Vec<Vec<char>>,
}

impl RecipeText {
    pub fn new(text: &str) -> Self {
        let mut shielded = String::with_capacity(text.len());
        // How far the key `steps` is indented whose steps these lines are, and whether the section is that of blocks.
        let mut inside: Option<usize> = None;
        let mut in_blocks = false;
        for line in text.split_inclusive('\n') {
            let content = line.trim_start_matches([' ', '\t']);
            let indent = line.len() - content.len();
            let begins = content.chars().next().unwrap_or('\n');
            let ends = |steps: &usize| indent < *steps || indent == *steps && begins != '-';
            if !matches!(begins, '\r' | '\n' | '#') {
                if indent == 0 && begins != '-' {
                    in_blocks = line.starts_with("blocks:");
                }
                inside = inside.filter(|steps| !ends(steps));
            }
            let is_key = inside.is_none() && content.starts_with("steps:") && (indent == 0 || in_blocks);
            if is_key {
                inside = Some(indent);
            }
            if inside.is_some() && !is_key {
                shield(line, &mut shielded);
            } else {
                shielded.push_str(line);
            }
        }
        let lines = shielded.lines().map(|l| l.chars().collect()).collect();
        RecipeText { text: shielded, lines }
    }

    /// The place of each character of a scalar that begins at `start`, found by walking along both.
    ///
    /// Quotes, escapes, block indicators and folded line ends are skipped in the source.
    pub fn places(&self, start: SourceLocation, value: &str) -> Vec<SourceLocation> {
        let mut line = start.line.saturating_sub(1) as usize;
        let mut column = start.column.saturating_sub(1) as usize;
        let mut places = Vec::with_capacity(value.len());
        for c in value.chars() {
            if !c.is_whitespace() {
                (line, column) = self.find(c, line, column).unwrap_or((line, column));
            }
            places.push(SourceLocation::at(line as u32 + 1, column as u32 + 1));
            if !c.is_whitespace() || self.lines.get(line).is_some_and(|l| l.get(column).is_some_and(|s| s.is_whitespace())) {
                column += 1;
            }
        }
        places
    }

    /// The number that begins at a place, as it is written.
    pub fn number(&self, place: SourceLocation) -> Option<String> {
        let line = self.lines.get(place.line.checked_sub(1)? as usize)?;
        let rest = line.get(place.column.checked_sub(1)? as usize..)?;
        let text: String = rest.iter().take_while(|c| !c.is_whitespace() && !matches!(c, ',' | ']' | '}')).collect();
        text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '+' | '-' | '.')).then_some(text)
    }

    /// The next occurrence of a character, at most a few lines further down.
    fn find(&self, wanted: char, line: usize, column: usize) -> Option<(usize, usize)> {
        for (down, text) in self.lines.iter().skip(line).take(8).enumerate() {
            let from = if down == 0 { column } else { 0 };
            if let Some(at) = text.iter().skip(from).position(|c| *c == wanted) {
                return Some((line + down, from + at));
            }
        }
        None
    }
}

fn shield(line: &str, into: &mut String) {
    let mut letters = line.chars().peekable();
    while let Some(c) = letters.next() {
        into.push(c);
        if c == ':' {
            match letters.peek() {
                Some(' ' | '\t') => {
                    letters.next();
                    into.push(SHIELD);
                }
                Some('\n' | '\r') | None => into.push(SHIELD),
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_steps_are_shielded() {
        let source = RecipeText::new("dims: {b: 8}\nsteps:\n  - a = softmax(x, over: k)\ntrain: {upstream: a}\n");
        assert_eq!(source.text, "dims: {b: 8}\nsteps:\n  - a = softmax(x, over:\u{a0}k)\ntrain: {upstream: a}\n");
    }

    #[test]
    fn steps_of_blocks_are_shielded_up_to_the_next_key() {
        let text = "blocks:\n  a:\n    inputs: {x: [n]}\n    steps:\n    - y = max(x, over: n)\n    outputs: [y]\nsteps:\n- z = a(x)\n";
        let source = RecipeText::new(text);
        assert_eq!(source.text, text.replace("over: n", "over:\u{a0}n"));
    }

    #[test]
    fn quoted_characters_are_found_in_place() {
        let source = RecipeText::new("steps:\n  - \"a = b\"\n");
        let places = source.places(SourceLocation::at(2, 5), "a = b");
        assert_eq!(places.iter().map(|p| p.column).collect::<Vec<_>>(), [6, 7, 8, 9, 10]);
    }
}
