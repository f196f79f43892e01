//! The preludes of generated code, with the scalar functions of the table in `sdfg` written into them.
//!
//! ```text
//! //@ double exp log       a line of a prelude: here are these functions defined, in double precision,
//! //@ float *              and here, in single precision, all others that have an expression of one line
//! ```
//!
//! A function whose row has no expression for a prelude is written out in it by hand.

use sdfg::Unary;
use sdfg::functions::{Body, Code, Function};
use std::sync::LazyLock;

/// What every C kernel starts with.
pub fn c_prelude() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        defined(include_str!("../target/cpu/prelude.c"), |row| match row.code {
            Code::Called { c, .. } => Some(c),
            Code::Inline(_) => None,
        })
    });
    &TEXT
}

/// What every CUDA kernel starts with.
pub fn cuda_prelude() -> &'static str {
    static TEXT: LazyLock<String> = LazyLock::new(|| {
        defined(include_str!("../target/cuda/emit/prelude.cu"), |row| match row.code {
            Code::Called { cuda, .. } => Some(cuda),
            Code::Inline(_) => None,
        })
    });
    &TEXT
}

/// A prelude whose marked lines have become definitions.
fn defined(prelude: &str, body: impl Fn(&Function) -> Option<Body>) -> String {
    // Qualifiers and the type of single precision, as each prelude calls them.
    let (qualifiers, single) = if prelude.contains("#define DEVICE") { ("DEVICE", "real") } else { ("ALWAYS", "float") };
    let marks: Vec<Vec<&str>> = prelude.lines().filter_map(mark).collect();
    let mut text = String::new();
    for line in prelude.lines() {
        let Some(words) = mark(line) else {
            text += line;
            text.push('\n');
            continue;
        };
        let double = words.first() == Some(&"double");
        let placed = |name: &str| marks.iter().any(|other| other.first() == words.first() && other.contains(&name));
        for word in words.iter().skip(1) {
            for row in Unary::ALL.iter().map(|op| op.row()).filter(|row| row.name == *word || *word == "*" && !placed(row.name)) {
                let expression = body(row).and_then(|body| if double { body.double } else { body.float });
                let of = if double { "real" } else { single };
                text += &expression.map_or(String::new(), |e| format!("{qualifiers} {of} r_{}({of} x) {{ return {e}; }}\n", row.name));
            }
        }
    }
    text
}

/// The words of a marked line: the precision, then names.
fn mark(line: &str) -> Option<Vec<&str>> {
    Some(line.strip_prefix("//@ ")?.split_whitespace().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every function that kernels call has a definition in each precision: of its row, or written by hand in the prelude.
    #[test]
    fn preludes_define_every_function_of_the_table() {
        for op in Unary::ALL {
            let (name, Code::Called { c, cuda }) = (op.row().name, op.row().code) else { continue };
            for (prelude, given, body) in [
                (include_str!("../target/cpu/prelude.c"), c_prelude(), c),
                (include_str!("../target/cuda/emit/prelude.cu"), cuda_prelude(), cuda),
            ] {
                let definition = format!(" r_{name}(");
                let by_hand = prelude
                    .lines()
                    .any(|line| line.contains("real x)") && line.contains(&definition) || line.contains(&format!("{definition}float x)")));
                let by_row = usize::from(body.double.is_some()) + usize::from(body.float.is_some());
                assert!(by_row == 2 || by_hand, "`{name}`");
                let found = given
                    .lines()
                    .filter(|line| line.contains(" real r_") || line.contains(" float r_"))
                    .filter(|line| line.contains(&definition))
                    .count();
                assert!(found >= by_row.max(1), "`{name}` is defined {found} times");
            }
        }
    }
}
