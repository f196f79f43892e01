//! The line of a recipe that an error is found in, with a mark under the words at fault.

use annotate_snippets::{AnnotationKind, Group, Level, Renderer, Snippet};
use sdfg::Origin;

/// Characters of a line that are shown at most.
const WIDTH: usize = 200;

/// The line of `text` at a place, with a mark under what begins there: a word, a number, or one character. `None` where there is none.
pub fn marked(text: &str, origin: &Origin) -> Option<String> {
    let line = text.lines().nth(origin.line.checked_sub(1)? as usize)?;
    if line.chars().count() > WIDTH {
        return None;
    }
    let start = line.char_indices().nth(origin.column.checked_sub(1)? as usize)?.0;
    let rest = &line[start..];
    let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len()).max(rest.chars().next()?.len_utf8());
    let mark = AnnotationKind::Primary.span(start..start + end);
    let snippet = Snippet::source(line).line_start(origin.line as usize).annotation(mark);
    Some(Renderer::plain().render(&[Group::with_level(Level::ERROR).element(snippet)]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_marked_where_they_stand() {
        let at = |line, column| marked("model: m\n  - é[i] = gg[i] + 2\n", &Origin { file: "t.yaml".into(), line, column });
        assert_eq!(at(2, 12).as_deref(), Some("  |\n2 |   - é[i] = gg[i] + 2\n  |            ^^"));
        assert_eq!(at(2, 18).as_deref(), Some("  |\n2 |   - é[i] = gg[i] + 2\n  |                  ^"));
        assert_eq!(at(2, 21), None);
        assert_eq!(at(9, 1), None);
    }
}
