//! Generated C without the names of what it computes: kernels whose texts differ in names alone are compiled once.
//!
//! The emitter says which identifiers it made of a kernel's names, and these alone are replaced. Whether two kernels do the same is another
//! question, which [`crate::KernelClass`] answers on the program.

use std::collections::{BTreeSet, HashMap};

/// Which words may be among some names, by their first byte and their length: most words of a text are not, and need no search.
struct MayBeName([u64; 128]);

impl MayBeName {
    fn of(names: &BTreeSet<String>) -> Self {
        let mut lengths = [0; 128];
        for name in names {
            if let Some(first) = name.bytes().next().filter(u8::is_ascii) {
                lengths[usize::from(first)] |= 1 << name.len().min(63);
            }
        }
        MayBeName(lengths)
    }

    fn says(&self, word: &str) -> bool {
        word.bytes().next().is_some_and(|first| self.0[usize::from(first & 127)] >> word.len().min(63) & 1 == 1)
    }
}

/// The same code without comments, with the given names numbered in the order in which they come.
pub fn canonical(text: &str, names: &BTreeSet<String>) -> String {
    let may_be_name = MayBeName::of(names);
    // The words that were searched for, each with its number if it is a name.
    let mut numbers: HashMap<&str, Option<usize>> = HashMap::new();
    let mut next = 0;
    let mut found = String::with_capacity(text.len());
    let of_word = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let mut rest = text;
    while !rest.is_empty() {
        // What stands between words, up to a word or to what may be a comment. Bytes that are not ASCII are no words.
        let between = rest.bytes().position(|byte| of_word(&byte) || byte == b'/').unwrap_or(rest.len());
        found += &rest[..between];
        rest = &rest[between..];
        if let Some(comment) = rest.strip_prefix("/*") {
            rest = comment.split_once("*/").map_or("", |(_, after)| after);
            continue;
        }
        if let Some(after) = rest.strip_prefix('/') {
            found.push('/');
            rest = after;
            continue;
        }
        let length = rest.bytes().position(|byte| !of_word(&byte)).unwrap_or(rest.len());
        let (word, after) = rest.split_at(length);
        let number = match may_be_name.says(word) {
            true => *numbers.entry(word).or_insert_with(|| {
                let number = names.contains(word).then_some(next);
                next += usize::from(number.is_some());
                number
            }),
            false => None,
        };
        match number {
            Some(number) => {
                found += "name";
                found += &number.to_string();
            }
            None => found += word,
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
        assert_eq!(of("a/ö*b / t_a /* é */ * t_a", "t_a a"), "name0/ö*b / name1  * name1");
    }
}
