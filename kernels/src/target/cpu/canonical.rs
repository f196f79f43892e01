//! Generated C without the names of what it computes: kernels whose texts differ in names alone are compiled once.
//!
//! The emitter says which identifiers it made of a kernel's names, and these alone are replaced. Whether two kernels do the same is another
//! question, which [`crate::KernelClass`] answers on the program.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;

/// The same code without comments, with the given names numbered in the order in which they come.
pub fn canonical(text: &str, names: &BTreeSet<String>) -> String {
    let names: HashSet<&str> = names.iter().map(String::as_str).collect();
    let mut numbers: HashMap<&str, usize> = HashMap::new();
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
        if names.contains(word) {
            let number = numbers.len();
            let _ = write!(found, "name{}", numbers.entry(word).or_insert(number));
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

    fn of(text: &str, names: &str) -> String {
        canonical(text, &names.split(' ').map(String::from).collect())
    }

    #[test]
    fn names_and_comments_make_no_difference() {
        let one = "/* qq */ t_qq[i_b * s_t_qq_0 + i_p] = (real)t_wq[i_p] * 1e-4f; /* a.0 */";
        let two = "/* of vv */ t_vv[i_k * s_t_vv_0 + i_w] = (real)t_wv[i_w] * 1e-4f; /* b */";
        let (one, two) = (of(one, "t_qq i_b s_t_qq_0 i_p t_wq"), of(two, "t_vv i_k s_t_vv_0 i_w t_wv"));
        assert_eq!(one, two);
        assert_eq!(one.trim(), "name0[name1 * name2 + name3] = (real)name4[name3] * 1e-4f;");
    }

    #[test]
    fn what_differs_in_more_than_names_stays_different() {
        let (text, names) = ("t_a[i_x] = t_b[i_x] + t_c[i_y];", "t_a t_b t_c i_x i_y");
        for other in ["t_a[i_x] = t_b[i_y] + t_c[i_x];", "t_a[i_x] = t_b[i_x] + t_b[i_y];", "t_a[i_x] = t_b[i_x] - t_c[i_y];"] {
            assert_ne!(of(text, names), of(other, names), "{other}");
        }
        // Words that are no names stay, even where they look like one.
        assert_eq!(of("r_exp(x1) / 0x7fffu + t_d", "t_a"), "r_exp(x1) / 0x7fffu + t_d");
        assert_eq!(of("unfinished /* comment", "t_a"), "unfinished ");
    }
}
