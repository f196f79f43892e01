//! Numbers as people write them: what is read is what stands there, or the number is refused.

/// The value of a number without a sign: digits with a point and an exponent.
///
/// # Errors
/// Why it is no number, or would become another one.
pub fn read(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| format!("`{text}` is not a number"))?;
    let digits = text.split(['e', 'E']).next().unwrap_or(text);
    let whole = text.chars().all(|c| c.is_ascii_digit());
    if let Some(why) = octal(text) {
        return Err(why);
    }
    if value.is_infinite() {
        return Err(format!("the number `{text}` is too large; write inf if infinity is meant"));
    }
    if value == 0.0 && digits.contains(|c: char| ('1'..='9').contains(&c)) {
        return Err(format!("the number `{text}` is too small and would be 0; write 0 if that is meant"));
    }
    // What has more digits than 2^127 is no count of anything.
    if whole && text.parse::<i128>().is_ok_and(|exact| value as i128 != exact) {
        return Err(format!("the number `{text}` has more digits than f64 holds; the nearest is {value:.0}"));
    }
    Ok(value)
}

/// What is wrong with a number that begins with a zero, but for the one before a point.
pub fn octal(text: &str) -> Option<String> {
    without_leading_zeros(text).map(|plain| format!("`{text}` begins with a zero, which some read as octal; write {plain}"))
}

/// A whole part without the zeros that it begins with, if there are any but the one before a point.
fn without_leading_zeros(text: &str) -> Option<&str> {
    let rest = text.strip_prefix('0').filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))?;
    let plain = rest.trim_start_matches('0');
    let ends = |rest: &str| !rest.starts_with(|c: char| c.is_ascii_digit());
    Some(if ends(plain) { &rest[rest.len() - plain.len() - 1..] } else { plain })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_what_stands_there() {
        for (text, value) in
            [("0", 0.0), ("0.0", 0.0), ("0e5", 0.0), ("1e-5", 1e-5), ("5e-324", 5e-324), ("9007199254740992", 9007199254740992.0)]
        {
            assert_eq!(read(text), Ok(value), "{text}");
        }
        for (text, says) in [
            ("010", "write 10"),
            ("08", "write 8"),
            ("00", "write 0"),
            ("00.5", "write 0.5"),
            ("1e400", "write inf"),
            ("1e-400", "would be 0"),
            ("0.001e-400", "would be 0"),
            ("9007199254740993", "the nearest is 9007199254740992"),
            ("1.2.3", "is not a number"),
        ] {
            assert!(read(text).is_err_and(|why| why.contains(says)), "{text}: {:?}", read(text));
        }
    }
}
