//! Names of files and folders derived from a model's name, which may be any text.

/// The most characters of a model's name in its folder's name, before the hash.
const LONG: usize = 64;

/// Suffixes that other code appends to folder names: element types, input handling, devices.
const SUFFIXES: [&str; 14] = ["f64", "f32", "bf16", "f16", "i64", "i32", "i16", "u8", "bit", "narrow", "dropout", "cuda", "shim", "cold"];

/// The name of a model's folder: the model's own name if it consists of letters, digits, `_` and `-`. Otherwise those characters of it
/// and a hash of the whole, so that no two models share a folder. It has no dot and no path separator.
pub fn folder_name(model: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-');
    let last = model.rsplit_once('-').map_or("", |(_, last)| last);
    let is_mark = last.len() == MARK && last.chars().all(|c| c.is_ascii_hexdigit());
    let usable = model.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && model.chars().all(is_plain) && model.len() <= LONG;
    if usable && !is_mark && !SUFFIXES.contains(&last) {
        return model.to_string();
    }
    let mut shown = String::new();
    for c in model.chars().map(|c| if is_plain(c) { c } else { '-' }) {
        if shown.len() < LONG && !(c == '-' && (shown.is_empty() || shown.ends_with('-'))) {
            shown.push(c);
        }
    }
    let shown = if shown.is_empty() { "model" } else { shown.trim_end_matches('-') };
    format!("{shown}-{}", &blake3::hash(model.as_bytes()).to_hex()[..MARK])
}

/// Hexadecimal digits of the hash.
const MARK: usize = 10;

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_model_has_a_folder_of_its_own() {
        for same in ["m", "bert_base_encoder", "gpt-2", "GRU", "_x", "2d"] {
            assert_eq!(folder_name(same), same);
        }
        let long = "a".repeat(200);
        let awkward = [
            "a b",
            "a  b",
            "a-b ",
            "a/b",
            "a\\b",
            "../b",
            "..",
            ".",
            "/etc/passwd",
            "~",
            "-rf",
            "-",
            "",
            " ",
            "é",
            "ü",
            "模型",
            "a:b",
            "a*b",
            "m-bf16",
            "m-no-dropout",
            "m-cold",
            "a\"b",
            "$(id)",
            &long,
            "con.",
            "a.b",
        ];
        let mut names: BTreeSet<String> = awkward.iter().map(|model| folder_name(model)).collect();
        names.extend(awkward.iter().map(|model| folder_name(&folder_name(model))));
        assert_eq!(names.len(), 2 * awkward.len(), "{names:?}");
        for name in &names {
            assert!(name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') && name.len() <= LONG + MARK * 2 + 2, "{name}");
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-')), "{name}");
        }
        assert_eq!([folder_name("../b"), folder_name("my model, v2")].map(|n| n[..n.len() - MARK].to_string()), ["b-", "my-model-v2-"]);
    }
}
