//! Names of the library and of what is in it, as C takes them.

use std::collections::BTreeSet;

/// Words that C and C++ keep for themselves, and names that a library cannot have beside the system's.
const KEPT: [&str; 24] = [
    "auto", "break", "case", "char", "const", "continue", "default", "do", "double", "else", "enum", "float", "for", "goto", "if", "int",
    "long", "return", "short", "static", "struct", "void", "while", "example",
];

/// The name that a library has by default: the model's, in small letters.
pub fn of_model(model: &str) -> String {
    let name = identifier(model).to_lowercase();
    if KEPT.contains(&name.as_str()) { format!("{name}_step") } else { name }
}

/// A name that was asked for.
///
/// # Errors
/// A sentence for names that are no identifiers.
pub fn checked(name: &str) -> Result<String, String> {
    if identifier(name) == name && !KEPT.contains(&name) {
        return Ok(name.to_string());
    }
    Err(format!("`{name}` is no name for a C library: write letters, digits and _, a letter first, and none of C's own words"))
}

/// A text with everything replaced that an identifier cannot have.
pub fn identifier(text: &str) -> String {
    let mut name: String = text.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic()) {
        name.insert_str(0, "m_");
    }
    name
}

/// Identifiers of several names, all different.
pub fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    // `COUNT` ends the lists of numbers.
    let mut taken: BTreeSet<String> = ["COUNT".to_string()].into();
    let mut found = Vec::new();
    for name in names {
        let plain: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        let own = std::iter::once(plain.clone()).chain((2..).map(|n| format!("{plain}_{n}"))).find(|name| !taken.contains(name));
        let own = own.unwrap_or(plain);
        taken.insert(own.clone());
        found.push(own);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_identifiers() {
        assert_eq!([of_model("BERT-base"), of_model("3d"), of_model("example")], ["bert_base", "m_3d", "example_step"]);
        assert_eq!(checked("mlp_2"), Ok("mlp_2".into()));
        for wrong in ["", "2mlp", "a-b", "int", "a b"] {
            assert!(checked(wrong).is_err_and(|why| why.contains("write letters")), "{wrong}");
        }
        assert_eq!(distinct(["w.next", "w_next", "COUNT"].into_iter()), ["w_next", "w_next_2", "COUNT_2"]);
    }
}
