//! Names that DaCe, Python and C++ take: identifiers that are no words of theirs.

use indexmap::IndexMap;
use std::collections::BTreeSet;

/// Words that no container may be called: of Python, of C++, and functions of the code in tasklets.
const TAKEN: &[&str] = &[
    "and",
    "as",
    "assert",
    "auto",
    "bool",
    "break",
    "case",
    "char",
    "class",
    "const",
    "continue",
    "dace",
    "def",
    "default",
    "del",
    "delete",
    "do",
    "double",
    "elif",
    "else",
    "enum",
    "except",
    "exp",
    "extern",
    "finally",
    "float",
    "for",
    "from",
    "global",
    "goto",
    "if",
    "import",
    "in",
    "inf",
    "inline",
    "int",
    "is",
    "lambda",
    "log",
    "long",
    "math",
    "max",
    "min",
    "namespace",
    "nan",
    "new",
    "nonlocal",
    "not",
    "operator",
    "or",
    "pass",
    "private",
    "public",
    "raise",
    "register",
    "return",
    "short",
    "signed",
    "sizeof",
    "static",
    "struct",
    "switch",
    "template",
    "this",
    "try",
    "typedef",
    "union",
    "unsigned",
    "using",
    "virtual",
    "void",
    "volatile",
    "while",
    "with",
    "yield",
];

/// Which identifier stands for which name.
#[derive(Default)]
pub struct Identifiers {
    known: IndexMap<String, String>,
    taken: BTreeSet<String>,
}

impl Identifiers {
    /// The identifier of a name, the same each time.
    pub fn of(&mut self, name: &str) -> String {
        if let Some(known) = self.known.get(name) {
            return known.clone();
        }
        let made = self.fresh(name);
        self.known.insert(name.to_string(), made.clone());
        made
    }

    /// The identifier of a container of a loop's body, which has its name in the body alone.
    pub fn named(&mut self, key: &str, wish: &str) -> String {
        let made = self.fresh(wish);
        self.known.insert(key.to_string(), made.clone());
        made
    }

    /// An identifier that nothing else has.
    pub fn fresh(&mut self, wish: &str) -> String {
        let mut made: String = wish.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
        // Single letters and Greek ones mean something to SymPy, which reads DaCe's subsets.
        let is_symbol = made.len() == 1 || ["beta", "gamma", "zeta", "pi"].contains(&made.as_str());
        if TAKEN.contains(&made.as_str()) || is_symbol || made.starts_with(|c: char| c.is_ascii_digit()) {
            made = format!("{}_{made}", if is_symbol { "t" } else { "x" });
        }
        let mut unique = made.clone();
        let mut n = 2;
        while !self.taken.insert(unique.clone()) {
            unique = format!("{made}_{n}");
            n += 1;
        }
        unique
    }

    /// Identifiers and the names that they stand for.
    pub fn all(&self) -> impl Iterator<Item = (&String, &String)> {
        self.known.iter().map(|(name, made)| (made, name))
    }
}

/// The symbol of a size.
pub fn size(symbol: &str) -> String {
    format!("size_{}", plain(symbol))
}

/// The parameter of a map.
pub fn index(name: &str) -> String {
    format!("i_{}", plain(name))
}

/// The connector of a tasklet: those that it reads, and those that it writes.
pub fn connector(name: &str, written: bool) -> String {
    format!("{}_{}", if written { "out" } else { "in" }, plain(name))
}

fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect()
}
