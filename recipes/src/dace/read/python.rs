//! The Python of tasklets, and the expressions of subsets and conditions, which read alike once SymPy's `$` before names is left out.
//!
//! ```text
//! statement  = target { '=' target } '=' expression | target op '=' expression | 'if' … ':' block { 'elif' … } [ 'else' … ] | 'pass'
//! expression = [ 'lambda' names ':' ] or [ 'if' or 'else' expression ]
//! ```

use indexmap::IndexSet;

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum PythonExpr {
    Number(f64),
    /// Without its modules: `math.exp` is `exp`.
    Name(String),
    Call(String, Vec<PythonExpr>),
    Subscript(String, Vec<PythonExpr>),
    Negative(Box<PythonExpr>),
    Not(Box<PythonExpr>),
    Binary(&'static str, Box<PythonExpr>, Box<PythonExpr>),
    /// `a if c else b`: condition, `a`, `b`.
    Choice(Box<PythonExpr>, Box<PythonExpr>, Box<PythonExpr>),
    Lambda(Vec<String>, Box<PythonExpr>),
}

impl PythonExpr {
    /// Names that stand in it, but for those of functions.
    pub fn names(&self, found: &mut IndexSet<String>) {
        match self {
            PythonExpr::Number(_) => {}
            PythonExpr::Name(name) => {
                found.insert(name.clone());
            }
            PythonExpr::Subscript(name, of) => {
                found.insert(name.clone());
                of.iter().for_each(|a| a.names(found));
            }
            PythonExpr::Call(_, of) => of.iter().for_each(|a| a.names(found)),
            PythonExpr::Negative(a) | PythonExpr::Not(a) | PythonExpr::Lambda(_, a) => a.names(found),
            PythonExpr::Binary(_, a, b) => [a, b].into_iter().for_each(|a| a.names(found)),
            PythonExpr::Choice(a, b, c) => [a, b, c].into_iter().for_each(|a| a.names(found)),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
pub enum PythonStatement {
    /// A name, the subscripts in its brackets, and its value.
    Assign(String, Vec<PythonExpr>, PythonExpr),
    If(PythonExpr, Vec<PythonStatement>, Vec<PythonStatement>),
}

#[derive(Clone, Debug, PartialEq)]
enum Word {
    Number(f64),
    Name(String),
    Sign(&'static str),
}

/// Signs, longer ones before those that they begin with.
const SIGNS: &[&str] = &[
    "**=", "//=", "**", "//", "<=", ">=", "==", "!=", "+=", "-=", "*=", "/=", "%=", "&&", "||", "+", "-", "*", "/", "%", "<", ">", "=",
    "(", ")", "[", "]", ",", ":", ".", ";", "&", "|", "~", "^", "!",
];

/// Expressions within expressions.
const DEEP: usize = 200;

fn words(text: &str) -> Result<Vec<Word>, String> {
    let mut found = vec![];
    let mut rest = text;
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_whitespace() || c == '$' || c == '\\');
        let Some(first) = rest.chars().next() else { return Ok(found) };
        if first == '#' {
            rest = rest.split_once('\n').map_or("", |(_, next)| next);
        } else if first.is_ascii_digit() || (first == '.' && rest[1..].starts_with(|c: char| c.is_ascii_digit())) {
            let mut end = 0;
            let bytes = rest.as_bytes();
            while end < bytes.len() {
                let sign = matches!(bytes[end], b'+' | b'-') && end > 0 && matches!(bytes[end - 1], b'e' | b'E');
                if !(bytes[end].is_ascii_alphanumeric() || matches!(bytes[end], b'.' | b'_') || sign) {
                    break;
                }
                end += 1;
            }
            let digits = rest[..end].trim_end_matches(['f', 'F', 'l', 'L', 'u', 'U']).replace('_', "");
            found.push(Word::Number(digits.parse().map_err(|_| format!("`{}` is no number", &rest[..end]))?));
            rest = &rest[end..];
        } else if first.is_alphabetic() || first == '_' {
            let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
            found.push(Word::Name(rest[..end].to_string()));
            rest = &rest[end..];
        } else {
            let sign = SIGNS.iter().find(|sign| rest.starts_with(**sign)).ok_or_else(|| format!("`{first}` is not understood"))?;
            found.push(Word::Sign(sign));
            rest = &rest[sign.len()..];
        }
    }
}

struct Reader {
    words: Vec<Word>,
    at: usize,
    depth: usize,
}

type Parsed = Result<PythonExpr, String>;

/// Reads one expression.
///
/// # Errors
/// What is not understood.
pub fn expression(text: &str) -> Parsed {
    let mut reader = Reader { words: words(text)?, at: 0, depth: 0 };
    let read = reader.expression()?;
    match reader.peek() {
        None => Ok(read),
        Some(word) => Err(format!("`{}` is not understood from {} on", text.trim(), shown(word))),
    }
}

/// Reads the statements of a tasklet.
///
/// # Errors
/// What is not understood.
pub fn statements(text: &str) -> Result<Vec<PythonStatement>, String> {
    let mut lines: Vec<(usize, String)> = vec![];
    let mut open = 0i32;
    for line in text.lines().flat_map(parted) {
        let indent = line.len() - line.trim_start().len();
        let bare = line.split('#').next().unwrap_or_default().trim();
        if bare.is_empty() {
            continue;
        }
        match lines.last_mut() {
            // Brackets that are open go on in the next line.
            Some((_, before)) if open > 0 => *before = format!("{before} {bare}"),
            _ => lines.push((indent, bare.to_string())),
        }
        open += bare.chars().map(|c| i32::from(matches!(c, '(' | '[')) - i32::from(matches!(c, ')' | ']'))).sum::<i32>();
    }
    let mut at = 0;
    block(&lines, &mut at, 0)
}

/// The statements of a line with `;` between them.
fn parted(line: &str) -> Vec<String> {
    let indent = &line[..line.len() - line.trim_start().len()];
    line.trim_start().split(';').map(|part| format!("{indent}{}", part.trim_start())).collect()
}

fn block(lines: &[(usize, String)], at: &mut usize, deep: usize) -> Result<Vec<PythonStatement>, String> {
    if deep > 30 {
        return Err("its blocks are nested too deep".into());
    }
    let mut found = vec![];
    let Some((indent, _)) = lines.get(*at) else { return Ok(found) };
    while let Some((own, line)) = lines.get(*at) {
        if own < indent {
            break;
        }
        *at += 1;
        let condition = line.strip_prefix("if ").or_else(|| line.strip_prefix("if(").map(|_| &line[2..]));
        if let Some(condition) = condition {
            found.push(branch(condition, lines, at, *own, deep)?);
        } else if line != "pass" {
            found.extend(assignment(line)?);
        }
    }
    Ok(found)
}

fn branch(condition: &str, lines: &[(usize, String)], at: &mut usize, indent: usize, deep: usize) -> Result<PythonStatement, String> {
    let (condition, rest) = condition.rsplit_once(':').ok_or_else(|| format!("`if {condition}` lacks its colon"))?;
    let inside = |rest: &str, at: &mut usize| match rest.trim() {
        "" if lines.get(*at).is_some_and(|(own, _)| *own > indent) => block(lines, at, deep + 1),
        "" => Err("a block is missing".to_string()),
        short => assignment(short),
    };
    let condition = expression(condition)?;
    let then = inside(rest, at)?;
    let mut otherwise = vec![];
    if let Some((own, line)) = lines.get(*at).filter(|(own, _)| *own == indent) {
        if let Some(rest) = line.strip_prefix("else") {
            *at += 1;
            otherwise = inside(rest.trim_start().strip_prefix(':').unwrap_or(rest), at)?;
        } else if let Some(rest) = line.strip_prefix("elif ") {
            *at += 1;
            otherwise = vec![branch(rest, lines, at, *own, deep + 1)?];
        }
    }
    Ok(PythonStatement::If(condition, then, otherwise))
}

/// `a = b`, `a[i] = b`, `a += b`, `a = b = c`.
fn assignment(line: &str) -> Result<Vec<PythonStatement>, String> {
    let mut reader = Reader { words: words(line)?, at: 0, depth: 0 };
    if reader.words.is_empty() {
        return Ok(vec![]);
    }
    let fault = || format!("`{}` is no assignment", line.trim());
    let mut targets = vec![];
    let mut value = reader.expression()?;
    while let Some(Word::Sign(sign)) = reader.peek().cloned() {
        reader.at += 1;
        match sign {
            "=" => targets.push(target(&value).ok_or_else(fault)?),
            "+=" | "-=" | "*=" | "/=" | "%=" | "**=" | "//=" => {
                let own = value.clone();
                let right = reader.expression()?;
                let op = SIGNS.iter().find(|s| **s == &sign[..sign.len() - 1]).copied().unwrap_or("+");
                targets.push(target(&own).ok_or_else(fault)?);
                value = PythonExpr::Binary(op, Box::new(own), Box::new(right));
                break;
            }
            _ => return Err(fault()),
        }
        value = reader.expression()?;
    }
    // A declared type, `a: dace.float64 = b`, says nothing more.
    if targets.is_empty() || reader.peek().is_some() {
        return Err(fault());
    }
    Ok(targets.into_iter().map(|(name, at)| PythonStatement::Assign(name, at, value.clone())).collect())
}

fn target(ast: &PythonExpr) -> Option<(String, Vec<PythonExpr>)> {
    match ast {
        PythonExpr::Name(name) => Some((name.clone(), vec![])),
        PythonExpr::Subscript(name, at) => Some((name.clone(), at.clone())),
        _ => None,
    }
}

fn shown(word: &Word) -> String {
    match word {
        Word::Number(value) => format!("`{value}`"),
        Word::Name(name) => format!("`{name}`"),
        Word::Sign(sign) => format!("`{sign}`"),
    }
}

const LEVELS: &[&[(&str, &str)]] = &[&[("or", "or"), ("||", "or"), ("|", "or")], &[("and", "and"), ("&&", "and"), ("&", "and")]];
const SUMS: &[(&str, &str)] = &[("+", "+"), ("-", "-")];
const PRODUCTS: &[(&str, &str)] = &[("*", "*"), ("/", "/"), ("//", "//"), ("%", "%")];
const COMPARED: &[(&str, &str)] = &[("<", "<"), ("<=", "<="), (">", ">"), (">=", ">="), ("==", "=="), ("!=", "!="), ("is", "==")];

impl Reader {
    fn peek(&self) -> Option<&Word> {
        self.words.get(self.at)
    }

    fn eat(&mut self, sign: &str) -> bool {
        let found = match self.peek() {
            Some(Word::Sign(own)) => *own == sign,
            Some(Word::Name(own)) => own == sign,
            _ => false,
        };
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, sign: &str) -> Result<(), String> {
        if self.eat(sign) { Ok(()) } else { Err(format!("`{sign}` is missing before {}", self.peek().map_or("the end".into(), shown))) }
    }

    fn one(&mut self, of: &[(&str, &'static str)]) -> Option<&'static str> {
        of.iter().find(|(sign, _)| self.eat(sign)).map(|(_, op)| *op)
    }

    fn expression(&mut self) -> Parsed {
        self.depth += 1;
        if self.depth > DEEP {
            return Err("it is nested too deep".into());
        }
        let read = self.choice();
        self.depth -= 1;
        read
    }

    fn choice(&mut self) -> Parsed {
        if self.eat("lambda") {
            let mut names = vec![];
            while let Some(Word::Name(name)) = self.peek().cloned() {
                self.at += 1;
                names.push(name);
                self.eat(",");
            }
            self.expect(":")?;
            return Ok(PythonExpr::Lambda(names, Box::new(self.expression()?)));
        }
        let value = self.level(0)?;
        if self.eat("if") {
            let condition = self.level(0)?;
            self.expect("else")?;
            let otherwise = self.expression()?;
            return Ok(PythonExpr::Choice(Box::new(condition), Box::new(value), Box::new(otherwise)));
        }
        Ok(value)
    }

    fn level(&mut self, level: usize) -> Parsed {
        let Some(own) = LEVELS.get(level) else { return self.negation() };
        let mut value = self.level(level + 1)?;
        while let Some(op) = self.one(own) {
            value = PythonExpr::Binary(op, Box::new(value), Box::new(self.level(level + 1)?));
        }
        Ok(value)
    }

    fn negation(&mut self) -> Parsed {
        if self.eat("not") || self.eat("!") {
            return Ok(PythonExpr::Not(Box::new(self.negation()?)));
        }
        // `a < b <= c` compares both.
        let mut left = self.operands(SUMS)?;
        let mut all: Option<PythonExpr> = None;
        while let Some(op) = self.one(COMPARED) {
            let right = self.operands(SUMS)?;
            let pair = PythonExpr::Binary(op, Box::new(left), Box::new(right.clone()));
            all = Some(match all {
                Some(before) => PythonExpr::Binary("and", Box::new(before), Box::new(pair)),
                None => pair,
            });
            left = right;
        }
        Ok(all.unwrap_or(left))
    }

    fn operands(&mut self, signs: &[(&str, &'static str)]) -> Parsed {
        let sums = signs.len() == SUMS.len();
        let mut value = if sums { self.operands(PRODUCTS)? } else { self.unary()? };
        while let Some(op) = self.one(signs) {
            let right = if sums { self.operands(PRODUCTS)? } else { self.unary()? };
            value = PythonExpr::Binary(op, Box::new(value), Box::new(right));
        }
        Ok(value)
    }

    fn unary(&mut self) -> Parsed {
        self.depth += 1;
        if self.depth > DEEP {
            return Err("it is nested too deep".into());
        }
        let read = if self.eat("-") {
            match self.unary()? {
                PythonExpr::Number(value) => Ok(PythonExpr::Number(-value)),
                value => Ok(PythonExpr::Negative(Box::new(value))),
            }
        } else if self.eat("+") {
            self.unary()
        } else if self.eat("~") {
            Ok(PythonExpr::Not(Box::new(self.unary()?)))
        } else {
            let base = self.atom()?;
            match self.eat("**") {
                true => Ok(PythonExpr::Binary("**", Box::new(base), Box::new(self.unary()?))),
                false => Ok(base),
            }
        };
        self.depth -= 1;
        read
    }

    fn atom(&mut self) -> Parsed {
        let word = self.peek().cloned();
        self.at += 1;
        match word {
            Some(Word::Number(value)) => Ok(PythonExpr::Number(value)),
            Some(Word::Sign("(")) => {
                let value = self.expression()?;
                if self.eat(",") {
                    return Err("tuples are not read".into());
                }
                self.expect(")")?;
                Ok(value)
            }
            Some(Word::Name(name)) => self.named(name),
            Some(word) => Err(format!("{} is not understood there", shown(&word))),
            None => Err("it ends where a value is missing".into()),
        }
    }

    fn named(&mut self, mut name: String) -> Parsed {
        while self.eat(".") {
            let Some(Word::Name(inner)) = self.peek().cloned() else { return Err(format!("`{name}.` lacks a name")) };
            self.at += 1;
            name = inner;
        }
        match name.as_str() {
            "True" | "true" => return Ok(PythonExpr::Number(1.0)),
            "False" | "false" => return Ok(PythonExpr::Number(0.0)),
            _ => {}
        }
        if self.eat("(") {
            let mut arguments = vec![];
            while !self.eat(")") {
                // `symbol(N, dtype=int64)`: what a keyword says of a name is left out.
                let keyword =
                    matches!((self.words.get(self.at), self.words.get(self.at + 1)), (Some(Word::Name(_)), Some(Word::Sign("="))));
                if keyword {
                    self.at += 2;
                    self.expression()?;
                } else {
                    arguments.push(self.expression()?);
                }
                if !self.eat(",") {
                    self.expect(")")?;
                    break;
                }
            }
            if let ("symbol", [one]) = (name.as_str(), arguments.as_slice()) {
                return Ok(one.clone());
            }
            return Ok(PythonExpr::Call(name, arguments));
        }
        if self.eat("[") {
            let mut at = vec![];
            while !self.eat("]") {
                at.push(self.expression()?);
                if !self.eat(",") {
                    self.expect("]")?;
                    break;
                }
            }
            return Ok(PythonExpr::Subscript(name, at));
        }
        Ok(PythonExpr::Name(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signs_bind_as_in_python() {
        let read = |text: &str| expression(text).map(|ast| format!("{ast:?}"));
        for (text, same) in [
            ("-x ** 2", "-(x ** 2)"),
            ("a + b * c < d and not e", "((a + (b * c)) < d) and (not e)"),
            ("a if b else c if d else e", "a if b else (c if d else e)"),
            ("0 <= i < n", "(0 <= i) and (i < n)"),
            ("math.exp(-1 + $N)", "exp((-1) + N)"),
            ("symbol($N, dtype=dace.int32) - 1", "N - 1"),
        ] {
            assert_eq!(read(text), read(same), "{text}");
        }
        assert!(read("a b").is_err() && read("a +").is_err() && read("(a").is_err());
    }

    #[test]
    fn statements_have_blocks() -> Result<(), String> {
        let read = statements("t = a\nif a > 0:\n    b = t\n    c[0] += 1\nelif a < 0: b = 2\nelse:\n    b = 3  # three\n")?;
        assert_eq!(read.len(), 2);
        let PythonStatement::If(_, then, otherwise) = &read[1] else { return Err("no branch".into()) };
        assert_eq!(then.len(), 2);
        assert!(matches!(otherwise.as_slice(), [PythonStatement::If(..)]));
        Ok(())
    }
}
