//! The line of a recipe that an error is found in, with a mark under the words at fault.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use sdfg::Origin;

/// Characters of a line that are shown at most.
const WIDTH: usize = 200;

/// What is marked of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MarkedExtent {
    /// A word, a number, or one character.
    Word,
    /// A subscript, up to the comma, bracket or `else` after it.
    Subscript,
}

impl MarkedExtent {
    /// How many bytes of a text belong to what begins it.
    fn of(self, rest: &str) -> Option<usize> {
        match self {
            MarkedExtent::Word => {
                let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
                Some(rest.find(|c| !is_word(c)).unwrap_or(rest.len()).max(rest.chars().next()?.len_utf8()))
            }
            MarkedExtent::Subscript => {
                let mut depth = 0;
                let ends = |(at, c): &(usize, char)| {
                    depth += match c {
                        '(' | '[' => 1,
                        ')' | ']' => -1,
                        _ => 0,
                    };
                    depth < 0 || (depth == 0 && (*c == ',' || rest[*at..].starts_with(" else ")))
                };
                let end = rest.char_indices().find(ends).map_or(rest.len(), |(at, _)| at);
                Some(rest[..end].trim_end().len()).filter(|length| *length > 0).or_else(|| MarkedExtent::Word.of(rest))
            }
        }
    }
}

/// The line of `text` at a place, with a mark under what begins there. `None` where there is none.
pub fn marked(text: &str, origin: &Origin, extent: MarkedExtent) -> Option<String> {
    let line = text.lines().nth(origin.line.checked_sub(1)? as usize)?;
    if line.chars().count() > WIDTH {
        return None;
    }
    let start = line.char_indices().nth(origin.column.checked_sub(1)? as usize)?.0;
    let rest = &line[start..];
    let mark = AnnotationKind::Primary.span(start..start + extent.of(rest)?);
    let snippet = Snippet::source(line).line_start(origin.line as usize).annotation(mark);
    Some(Renderer::plain().render(&[Group::with_level(Level::ERROR).element(snippet)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_marked_where_they_stand() {
        let text = "model: m\n  - é[i] = gg[i] + 2\n";
        let at = |line, column| marked(text, &Origin { file: "t.yaml".into(), line, column }, MarkedExtent::Word);
        assert_eq!(at(2, 12).as_deref(), Some("  |\n2 |   - é[i] = gg[i] + 2\n  |            ^^"));
        assert_eq!(at(2, 18).as_deref(), Some("  |\n2 |   - é[i] = gg[i] + 2\n  |                  ^"));
        assert_eq!(at(2, 21), None);
        assert_eq!(at(9, 1), None);
        let text = "- y[p] = x[p,2*(p + 1) - 1 else 0]\n";
        let at = |column| marked(text, &Origin { file: "t.yaml".into(), line: 1, column }, MarkedExtent::Subscript);
        assert_eq!(at(14).as_deref(), Some("  |\n1 | - y[p] = x[p,2*(p + 1) - 1 else 0]\n  |              ^^^^^^^^^^^^^"));
        assert_eq!(at(12).as_deref(), Some("  |\n1 | - y[p] = x[p,2*(p + 1) - 1 else 0]\n  |            ^"));
    }
}
