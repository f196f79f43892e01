//! The recipe that an import writes: dims by their sizes, tensors, and steps with a comment each.

use super::constant::ConstantTensor;
use indexmap::{IndexMap, IndexSet};
use sdfg::Dtype;
use std::fmt::Write;

/// An index of a step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepIndex {
    pub name: String,
    pub size: usize,
}

/// What is declared of a given tensor.
pub struct Declaration {
    pub name: String,
    pub dims: Vec<String>,
    pub dtype: Dtype,
    pub range: Option<String>,
}

/// A parameter: its declaration, and its elements.
pub struct Weight {
    pub given: Declaration,
    pub shape: Vec<usize>,
    pub values: ConstantTensor,
}

#[derive(Default)]
pub struct Writer {
    /// How many names each size has, by size in order of appearance.
    dims: IndexMap<usize, usize>,
    /// Names of sizes that the model itself gives.
    named: IndexMap<usize, String>,
    /// Sizes of inputs, and what other sizes are made of: the expression, and the sizes in it.
    free: IndexSet<usize>,
    derived: IndexMap<usize, (String, Vec<usize>)>,
    /// All names of tensors.
    names: IndexSet<String>,
    pub inputs: Vec<Declaration>,
    pub weights: Vec<Weight>,
    /// Comment and text of each step.
    steps: Vec<(String, String)>,
}

/// Letters that stand before a size in the names of its dims.
const LETTERS: &[u8] = b"ijklmn";

impl Writer {
    /// Calls a size by a name of the model's; the first name of a size is its name.
    pub fn name_size(&mut self, size: usize, name: &str) {
        let name = name.to_lowercase();
        if crate::load::name_refusal(&name).is_none() && !is_size(&name) && !self.named.values().any(|n| *n == name) {
            self.named.entry(size).or_insert(name);
        }
    }

    /// The `n`-th name of a size.
    fn dim(&self, size: usize, n: usize) -> String {
        match (self.named.get(&size), n) {
            (Some(name), 0) => name.clone(),
            (Some(name), n) => format!("{name}_{}", n + 1),
            (None, n) if n < LETTERS.len() => format!("{}{size}", char::from(LETTERS[n])),
            (None, n) => format!("i{size}_{}", n + 1),
        }
    }

    /// Says that an input has this size, so that it stands for itself.
    pub fn free(&mut self, size: usize) {
        self.free.insert(size);
    }

    /// Says what a size is made of, so that `--set` and checks at other sizes keep what belongs together. The first statement counts, and
    /// one that would go round in a circle does not.
    pub fn derive(&mut self, size: usize, of: &[usize], expression: impl FnOnce(&dyn Fn(usize) -> String) -> String) {
        let fixed = |n: usize| self.free.contains(&n) || self.named.contains_key(&n);
        if size == 1 || fixed(size) || self.derived.contains_key(&size) || of.iter().any(|n| self.leads(*n, size)) {
            return;
        }
        let text = expression(&|n| self.dim(n, 0));
        for n in of.iter().chain([&size]) {
            self.dims.entry(*n).or_insert(1);
        }
        self.derived.insert(size, (text, of.to_vec()));
    }

    /// Whether a size is made of another one.
    fn leads(&self, from: usize, to: usize) -> bool {
        from == to || self.derived.get(&from).is_some_and(|(_, of)| of.iter().any(|n| self.leads(*n, to)))
    }

    /// The dim that says a size; `None` for 1.
    pub fn sized(&mut self, size: usize) -> Option<String> {
        if size == 1 {
            return None;
        }
        self.dims.entry(size).or_insert(1);
        Some(self.dim(size, 0))
    }

    /// The next index of a size in a step, of which `used` counts the indices so far.
    pub fn index(&mut self, used: &mut IndexMap<usize, usize>, size: usize) -> StepIndex {
        let n = used.entry(size).or_insert(0);
        let name = self.dim(size, *n);
        *n += 1;
        let known = self.dims.entry(size).or_insert(0);
        *known = (*known).max(*n);
        StepIndex { name, size }
    }

    /// A name for a tensor that no other has, made from a name of the graph.
    pub fn unique(&mut self, wanted: &str) -> String {
        let base = legal(wanted);
        // A bare word of a step may be a tensor or an index.
        let is_dim = |name: &str| self.named.values().any(|n| name.starts_with(n.as_str())) || is_size(name);
        let free =
            |name: &str, names: &IndexSet<String>| crate::load::name_refusal(name).is_none() && !names.contains(name) && !is_dim(name);
        let base = if is_dim(&base) { format!("t_{base}") } else { base };
        let mut name = base.clone();
        let mut n = 2;
        while !free(&name, &self.names) {
            name = format!("{base}_{n}");
            n += 1;
        }
        self.names.insert(name.clone());
        name
    }

    /// Says what whole numbers an input holds that names places.
    pub fn limit(&mut self, name: &str, low: i64, high: i64) {
        if let Some(given) = self.inputs.iter_mut().find(|given| given.name == name && !given.dtype.is_floating()) {
            given.range.get_or_insert_with(|| format!("[{low}, {}]", high - 1));
        }
    }

    pub fn step(&mut self, comment: &str, text: String) {
        self.steps.push((comment.to_string(), text));
    }

    pub fn steps(&self) -> usize {
        self.steps.len()
    }

    /// Leaves out steps and parameters that no output needs.
    pub fn keep(&mut self, outputs: &[String]) {
        let mut needed: IndexSet<String> = outputs.iter().cloned().collect();
        let mut kept = vec![];
        for (comment, step) in std::mem::take(&mut self.steps).into_iter().rev() {
            let name = step.split('[').next().unwrap_or_default();
            if needed.contains(name) {
                let words = step.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
                needed.extend(words.filter(|word| self.names.contains(*word)).map(str::to_string));
                kept.push((comment, step));
            }
        }
        kept.reverse();
        self.steps = kept;
        self.weights.retain(|weight| needed.contains(&weight.given.name));
    }

    /// The type in which the recipe stores what it computes: the widest of the given floating ones.
    pub fn dtype(&self) -> Dtype {
        let given = || self.inputs.iter().chain(self.weights.iter().map(|w| &w.given)).map(|given| given.dtype);
        let order = [Dtype::F64, Dtype::F32, Dtype::Bf16, Dtype::F16];
        order.into_iter().find(|dtype| given().any(|own| own == *dtype)).unwrap_or(Dtype::F32)
    }

    /// The text of the recipe.
    pub fn text(&self, about: &str, model: &str, dtype: Dtype, outputs: &[String]) -> String {
        let mut text = String::new();
        let _ = writeln!(text, "model: {}", quoted(model));
        let _ = writeln!(text, "about: {}", quoted(about));
        if self.dims.is_empty() {
            text.push_str("dims: {i1: 1}\n");
        } else {
            text.push_str("# A dim is called after its size; dims of one size have other names for the first.\ndims:\n");
        }
        for (size, names) in &self.dims {
            let first = self.dim(*size, 0);
            let _ = match self.derived.get(size) {
                Some((expression, _)) => writeln!(text, "  {first}: {expression}"),
                None => writeln!(text, "  {first}: {size}"),
            };
            for n in 1..*names {
                let _ = writeln!(text, "  {}: {first}", self.dim(*size, n));
            }
        }
        let _ = writeln!(text, "dtype: {dtype}");
        let mut declared = |key: &str, tensors: &[&Declaration]| {
            if !tensors.is_empty() {
                let _ = writeln!(text, "{key}:");
            }
            for given in tensors {
                let dims = given.dims.join(", ");
                let range = given.range.as_ref().map(|range| format!(", range: \"{range}\"")).unwrap_or_default();
                let _ = match given.dtype == dtype && range.is_empty() {
                    true => writeln!(text, "  {}: [{dims}]", given.name),
                    false => writeln!(text, "  {}: {{dims: [{dims}], dtype: {}{range}}}", given.name, given.dtype),
                };
            }
        };
        declared("inputs", &self.inputs.iter().collect::<Vec<_>>());
        declared("parameters", &self.weights.iter().map(|w| &w.given).collect::<Vec<_>>());
        text.push_str("steps:\n");
        let mut before = None;
        for (comment, step) in &self.steps {
            if before != Some(comment) {
                let _ = writeln!(text, "  # {}", comment.replace(|c: char| c.is_control(), " "));
            }
            before = Some(comment);
            let _ = writeln!(text, "  - \"{step}\"");
        }
        let _ = writeln!(text, "outputs: [{}]", outputs.join(", "));
        text
    }
}

/// Whether a name may be that of a dim, such as `i56`.
fn is_size(name: &str) -> bool {
    let Some((letter, rest)) = name.as_bytes().split_first() else { return false };
    LETTERS.contains(letter) && rest.first().is_some_and(u8::is_ascii_digit) && rest.iter().all(|b| b.is_ascii_digit() || *b == b'_')
}

/// A name of letters, digits and `_`, made from any text, of 48 characters at most.
fn legal(text: &str) -> String {
    let short = text.trim_start_matches(['/', '.', ':']).replace("_output_0", "");
    let mut name = String::new();
    for c in short.chars() {
        match c {
            c if c.is_ascii_alphanumeric() => name.push(c),
            _ if name.ends_with('_') => {}
            _ => name.push('_'),
        }
    }
    // The end of a long name says more than its beginning.
    let mut name = name.trim_end_matches('_')[name.trim_end_matches('_').len().saturating_sub(48)..].to_string();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') || crate::load::name_refusal(&name).is_some() {
        name.insert_str(0, "t_");
    }
    name
}

/// A text in double quotes of YAML.
fn quoted(text: &str) -> String {
    let plain: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).take(180).collect();
    format!("\"{}\"", plain.replace('\\', "\\\\").replace('"', "\\\""))
}
