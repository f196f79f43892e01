//! Names: which ones are accepted, and which one a person probably meant.

use super::problem::{Hint, Problem, Problems};
use super::yaml::Name;

/// Why a name cannot stand in generated code; `None` if it can.
///
/// Letters, digits and `_` only, so that a dot always marks a name that Memlet made, and every name survives in C.
pub fn refusal(name: &str) -> Option<&'static str> {
    let mut letters = name.chars();
    let first = letters.next();
    if !first.is_some_and(|c| c.is_ascii_alphabetic() || c == '_') || !letters.all(|c| c.is_ascii_alphanumeric() || c == '_') {
        Some("a name is a letter or `_`, then letters, digits and `_`")
    } else if name.len() > 64 {
        Some("a name has at most 64 characters")
    } else if name == "inf" {
        Some("in steps `inf` is infinity")
    } else if name.starts_with("d_") {
        Some("`d_` is reserved for gradients")
    } else {
        None
    }
}

/// Reports a name that cannot be used.
pub fn usable(name: &Name, problems: &mut Problems) {
    if let Some(why) = refusal(&name.text) {
        problems.add(name.place, Problem::BadName { name: shown(&name.text), why: why.into() });
    }
}

/// Reports the name of a model that cannot be one: it is for people, so it is any line of text. Files are named after it elsewhere.
pub fn titled(name: &Name, problems: &mut Problems) {
    let why = if name.text.trim().is_empty() {
        "a model's name has at least one character"
    } else if name.text.chars().any(char::is_control) {
        "a model's name is one line, without control characters"
    } else if name.text.chars().count() > TITLE {
        "a model's name has at most 200 characters"
    } else {
        return;
    };
    problems.add(name.place, Problem::BadName { name: shown(&name.text).escape_debug().to_string(), why: why.into() });
}

/// Characters of a model's name.
const TITLE: usize = 200;

/// A name as far as a person reads it.
fn shown(name: &str) -> String {
    if name.chars().count() > 80 { name.chars().take(80).chain("…".chars()).collect() } else { name.into() }
}

/// More valid names than a person reads in one line.
const LISTED: usize = 40;

/// The valid name nearest to `name` by edits, the first one of equals; if none is near, all of them. A beginning counts as near.
pub fn nearest<'a>(name: &str, valid: impl IntoIterator<Item = &'a str>) -> Hint {
    let valid: Vec<&str> = valid.into_iter().collect();
    let wanted: String = name.chars().take(80).collect();
    let length = wanted.chars().count();
    let limit = (length / 2).max(2);
    let distance = |v: &str| if !name.is_empty() && v.starts_with(name) { 1 } else { strsim::levenshtein(&wanted, v) };
    // A name that would be changed in every character is not near.
    let near = |v: &&str| distance(v) <= limit && distance(v) < length.max(v.chars().count());
    match valid.iter().filter(|v| near(v)).min_by_key(|v| distance(v)) {
        Some(v) => Hint::Near(v.to_string()),
        None if valid.is_empty() || valid.len() > LISTED => Hint::None,
        None => Hint::Among(valid.iter().map(|v| format!("`{v}`")).collect::<Vec<_>>().join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_no_name_is_near_all_are_named() {
        assert_eq!(nearest("sofmax", ["relu", "softmax"]), Hint::Near("softmax".into()));
        assert_eq!(nearest("sofmax", ["relu", "exp"]), Hint::Among("`relu`, `exp`".into()));
        assert_eq!(nearest("q", ["b", "j"]), Hint::Among("`b`, `j`".into()));
        assert_eq!(nearest("sofmax", ["relu"; LISTED + 1]), Hint::None);
        assert_eq!(nearest("up", ["loss", "upstream"]), Hint::Near("upstream".into()));
        assert_eq!(nearest("up", []), Hint::None);
    }
}
