//! Pieces of C text.

use std::fmt::Write;

/// A name in capitals, as constants have it.
pub fn caps(name: &str) -> String {
    name.to_uppercase()
}

/// A file of the runtime under the library's name.
pub fn named(template: &str, name: &str) -> String {
    // CMake has a word of its own that begins alike.
    let parts = template.split("NAMESPACE").map(|part| part.replace("CAPS_", &format!("{}_", caps(name))).replace("NAME", name));
    parts.collect::<Vec<_>>().join("NAMESPACE")
}

/// A whole number as C takes it.
pub fn number(n: i64) -> String {
    match n {
        i64::MIN => "INT64_MIN".into(),
        n if n.unsigned_abs() < 1 << 31 => n.to_string(),
        n => format!("INT64_C({n})"),
    }
}

/// A number of double precision as C takes it.
pub fn double(value: f64) -> String {
    match value {
        v if v.is_nan() => "__builtin_nan(\"\")".into(),
        f64::INFINITY => "__builtin_inf()".into(),
        f64::NEG_INFINITY => "-__builtin_inf()".into(),
        v => format!("{v:e}"),
    }
}

/// A text in quotes.
pub fn string(text: &str) -> String {
    let mut quoted = String::from("\"");
    for byte in text.bytes() {
        match byte {
            b'"' | b'\\' => drop(write!(quoted, "\\{}", char::from(byte))),
            b' '..=b'~' => quoted.push(char::from(byte)),
            // Three digits end an octal escape, whatever follows.
            other => drop(write!(quoted, "\\{other:03o}")),
        }
    }
    quoted + "\""
}

/// A constant array; `none` is its only element where it has no other.
pub fn table(declaration: &str, rows: impl Iterator<Item = String>, none: &str) -> String {
    let rows: Vec<String> = rows.collect();
    let mut text = format!("{declaration} = {{\n");
    if rows.is_empty() {
        let _ = writeln!(text, "    {none}");
    }
    let mut line = String::new();
    for row in &rows {
        if !line.is_empty() && line.len() + row.len() > 120 {
            let _ = writeln!(text, "   {line}");
            line.clear();
        }
        let _ = write!(line, " {row},");
    }
    if !line.is_empty() {
        let _ = writeln!(text, "   {line}");
    }
    text + "};\n\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_quoted_and_numbers_have_their_type() {
        assert_eq!(string("a\"b\\é"), "\"a\\\"b\\\\\\303\\251\"");
        assert_eq!([number(5), number(1 << 40)], ["5".to_string(), "INT64_C(1099511627776)".into()]);
        assert_eq!(double(f64::NEG_INFINITY), "-__builtin_inf()");
        assert_eq!(named("CAPS_OK NAME_step NAMESPACE NAME::", "mlp"), "MLP_OK mlp_step NAMESPACE mlp::");
        assert_eq!(table("int x[]", std::iter::empty(), "0"), "int x[] = {\n    0\n};\n\n");
    }
}
