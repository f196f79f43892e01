//! What people write between the brackets of a tensor that is no name of a dim, and how a recipe says the same.

use super::lexer::Token;

/// What stands before the brackets.
#[derive(Clone, Copy)]
pub enum Brackets<'a> {
    /// A tensor that is read.
    Read(&'a str),
    /// The tensor that a step assigns.
    Assigned,
    /// Nothing: a list of dims.
    List,
}

/// Why a subscript that begins here is none, and the way around it; `None` where it may be the name of a dim.
pub fn elsewhere(brackets: Brackets, tokens: &[&Token]) -> Option<String> {
    let (first, next) = (tokens.first()?, tokens.get(1).copied());
    let is_sign = |token: Option<&Token>, signs: &[&str]| matches!(token, Some(Token::Sign(sign)) if signs.contains(sign));
    let slice = is_sign(Some(first), &[":"]) || is_sign(next, &[":"]);
    let computed = is_sign(Some(first), &["-", "(", "+"]) || is_sign(next, &["+", "-", "*", "/", "("]);
    let gathered = matches!(first, Token::Name(_)) && is_sign(next, &["["]);
    let number = matches!(first, Token::Number(_));
    if !(slice || computed || gathered || number) {
        return None;
    }
    let shown = text(tokens);
    let tensor = match brackets {
        Brackets::List => return None,
        Brackets::Assigned => {
            return Some(format!(
                "`{shown}` is no subscript on the left: a step assigns a whole tensor, and names a dim for each of its axes; what differs from \
                 place to place is picked on the right, as in `where(t == 0, …, …)`"
            ));
        }
        Brackets::Read(tensor) => tensor,
    };
    Some(if slice {
        format!(
            "`{shown}` is no subscript: each is the name of one dim, all of which is read; of a part of it make a tensor with a dim of its own, \
             or mask the rest, as in `where(t < 3, {tensor}[…, t], 0)`"
        )
    } else if gathered {
        format!(
            "`{shown}` is no subscript: each is the name of one dim, and no tensor is read at places that another one holds; compare the places \
             instead, `sum(where({shown} == v, {tensor}[…, v, …], 0), over: v)`, with `v` the dim that `{tensor}` has there"
        )
    } else if computed {
        format!(
            "`{shown}` is no subscript: each is the name of one dim, so there are no windows and no shifts; let `{tensor}` be given with the \
             window as a dim of its own, as in `{tensor}: [b, c, p, r]`, and write a recurrence out, with a step for each time: \
             `h1[b,u] = … h0[b,v] …`"
        )
    } else {
        format!(
            "`{shown}` is no subscript: each is the name of one dim; one place along it is picked by a comparison, \
             `sum(where(t == {shown}, {tensor}[…, t, …], 0), over: t)`, with `t` the dim that `{tensor}` has there"
        )
    })
}

/// A subscript as it was written, without blanks: up to the comma or bracket that ends it.
fn text(tokens: &[&Token]) -> String {
    let (mut shown, mut depth) = (String::new(), 0);
    for token in tokens {
        match token {
            Token::Sign("[" | "(") => depth += 1,
            Token::Sign("]" | ")") if depth > 0 => depth -= 1,
            Token::Sign("," | "]" | ")") if depth == 0 => break,
            _ => {}
        }
        match token {
            Token::Name(name) => shown += name,
            Token::Number(value) => shown += &value.to_string(),
            Token::Sign(sign) => shown += sign,
        }
    }
    shown
}
