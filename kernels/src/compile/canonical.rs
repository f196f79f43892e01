//! Generated C without the names of what it computes: kernels that differ in names alone are compiled once.

use std::collections::BTreeMap;

/// What the emitter begins the names of containers, indices, dims, sizes and strides with.
const GIVEN: [&str; 12] = ["t_", "i_", "n_", "s_", "d_", "at_", "first_", "out_", "size_", "whole_", "tile_", "columns_"];

/// The same code without comments, with its given names numbered in the order in which they come.
pub fn canonical(text: &str) -> String {
    let mut numbers: BTreeMap<&str, usize> = BTreeMap::new();
    let mut found = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
            continue;
        }
        let of_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let length = rest.find(|c| !of_word(c)).unwrap_or(rest.len()).max(if of_word(first) { 0 } else { first.len_utf8() });
        let (word, after) = rest.split_at(length);
        if GIVEN.iter().any(|start| word.starts_with(start)) {
            let number = numbers.len();
            found += &format!("name{}", numbers.entry(word).or_insert(number));
        } else {
            found += word;
        }
        rest = after;
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_comments_make_no_difference() {
        let one = "/* qq */ t_qq[i_b * s_t_qq_0 + i_p] = (real)t_wq[i_p] * 1e-4f; /* a.0 */";
        let two = "/* of vv */ t_vv[i_k * s_t_vv_0 + i_w] = (real)t_wv[i_w] * 1e-4f; /* b */";
        assert_eq!(canonical(one), canonical(two));
        assert_eq!(canonical(one).trim(), "name0[name1 * name2 + name3] = (real)name4[name3] * 1e-4f;");
    }

    /// Texts that are compiled together tell their functions apart by these names.
    #[test]
    fn functions_keep_their_names() {
        for name in crate::compile::FUNCTIONS.iter().chain(&crate::compile::MACROS) {
            assert_eq!(canonical(name), *name);
        }
    }

    #[test]
    fn what_differs_in_more_than_names_stays_different() {
        let text = "t_a[i_x] = t_b[i_x] + t_c[i_y];";
        for other in ["t_a[i_x] = t_b[i_y] + t_c[i_x];", "t_a[i_x] = t_b[i_x] + t_b[i_y];", "t_a[i_x] = t_b[i_x] - t_c[i_y];"] {
            assert_ne!(canonical(text), canonical(other), "{other}");
        }
        assert_eq!(canonical("r_exp(x1) / 0x7fffu"), "r_exp(x1) / 0x7fffu");
        assert_eq!(canonical("unfinished /* comment"), "unfinished ");
    }
}
