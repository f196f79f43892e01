//! Long and deep recipes: reading takes time in proportion to their length. Each of these would never end if every term, or every level,
//! doubled the work.

use super::listing::{errors, operations, with_steps};

#[test]
fn a_sum_of_many_terms_is_read_term_by_term() {
    for sign in [" + ", " - "] {
        let terms: Vec<String> = (0..60).map(|n| format!("cos(g[i] + {n})")).collect();
        let read = operations(&[&format!("a[i] = {}", terms.join(sign))]);
        assert_eq!(read.last().map(String::as_str).unwrap_or_default().split(':').next(), Some("a[i] = map"));
        // A sum of tensors and operators is a residual, or a bias.
        let terms: Vec<String> = (0..60).map(|n| format!("tanh(g + {n})")).collect();
        let read = operations(&[&format!("a[i] = {}", terms.join(sign))]);
        assert_eq!(read.iter().filter(|line| line.contains(" = residual: ")).count(), 59);
        let read = operations(&[&format!("a[i,b,j] = x{}", format!("{sign}g").repeat(60))]);
        assert_eq!(read.iter().filter(|line| line.contains(" = bias: ")).count(), 60);
    }
}

#[test]
fn nested_values_are_read_level_by_level() {
    let nested = |open: &str, close: &str, deep: usize| format!("a[i] = {}relu(g){}", open.repeat(deep), close.repeat(deep));
    for step in [
        nested("where(g > 0, ", ", 0)", 45),
        nested("where(g > 0, 0, ", ")", 45),
        nested("2 * (", ")", 45),
        nested("1 + (g + ", ")", 45),
        nested("max(g, ", ")", 45),
        nested("-(-", ")", 16),
    ] {
        assert!(!operations(&[step.as_str()]).is_empty(), "{step}");
    }
    let product = format!("a[u] = {}w[u,i] * g[i]{}", "(c * ".repeat(45), ")".repeat(45));
    assert!(!operations(&[&product]).is_empty());
}

/// A constant that uses the constants above it, each twice, would double with every line.
#[test]
fn constants_do_not_double_without_end() {
    let doubled = |first: &str, lines: usize| {
        let lines: String = (1..lines).map(|n| format!(", c{n}: c{} * c{}", n - 1, n - 1)).collect();
        with_steps(&["a[i] = g[i]"]).replace("{half: 0.5}", &format!("{{half: 0.5, c0: {first}{lines}}}"))
    };
    assert!(recipes::load::load_str("t.yaml", &doubled("0.999", 60), &[]).is_ok(), "numbers are worked out");
    let refused = errors(&doubled("sqrt(size(p))", 60));
    assert!(refused[0].contains("the constant `c8` is too long when it is written out in sizes"), "{refused:?}");
}
