//! Reads the sections of a recipe into its [`Header`]; the steps stay text. A constant is read as a step that has no index.

use super::context::StepContext;
use super::header::{DeclaredConstant, DeclaredTensor, Header};
use super::initial::Initial;
use super::names::{nearest, titled, usable};
use super::phrase::Phrase;
use super::problem::{Problem, Problems, SourceLocation};
use super::resolve::{Absence, Resolver};
use super::source::RecipeText;
use super::yaml::{Name, YamlNode, YamlValue};
use super::{Overrides, lexer, number, parser, sizes, value};
use indexmap::IndexMap;
use sdfg::{Bindings, Bounds, Dtype, Role, Scalar};

pub const KEYS: [&str; 15] = [
    "model",
    "about",
    "dims",
    "dtype",
    "tf32",
    "winograd",
    "constants",
    "inputs",
    "parameters",
    "state",
    "blocks",
    "outputs",
    "steps",
    "train",
    "update",
];
pub const TENSOR_KEYS: [&str; 5] = ["dims", "dtype", "grad", "range", "initial"];
pub const STATE_KEYS: [&str; 4] = ["dims", "dtype", "range", "initial"];
pub const TRAIN_KEYS: [&str; 2] = ["upstream", "loss"];

/// What a section declares.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Input,
    Parameter,
    /// Kept between steps as parameters are, and never differentiated.
    State,
}

/// Steps that one recipe may have.
const STEPS: usize = 4096;
/// Dims, tensors and constants that one recipe may declare, each.
const DECLARATIONS: usize = 4096;
/// Numbers, sizes and operations that a constant may be made of once those above it are written out.
const PARTS: usize = 500;

impl Header {
    pub fn read(root: &YamlNode, source: &RecipeText, overrides: &Overrides, problems: &mut Problems) -> Header {
        let mut header = Header {
            model: String::new(),
            about: String::new(),
            dtype: Dtype::F32,
            tf32: false,
            winograd: false,
            dropout: !overrides.no_dropout,
            narrow: overrides.narrow,
            dims: IndexMap::new(),
            sizes: Bindings::new(),
            constants: IndexMap::new(),
            tensors: IndexMap::new(),
            initial: IndexMap::new(),
            outputs: None,
            steps: Vec::new(),
            update: Vec::new(),
            upstream: vec![],
            loss: None,
        };
        let YamlValue::Map(entries) = &root.value else {
            wrong(problems, root.place, "a recipe", "a mapping with `model`, `dims`, `inputs` and `steps`");
            return header;
        };
        for (key, _) in entries {
            if !KEYS.contains(&key.text.as_str()) {
                problems.add(key.place, Problem::UnknownKey { key: key.text.clone(), hint: nearest(&key.text, KEYS) });
            }
        }
        let find = |wanted: &str| entries.iter().find(|(key, _)| key.text == wanted).map(|(_, value)| value);
        for key in ["model", "dims", "steps"] {
            if find(key).is_none() {
                problems.add(root.place, Problem::MissingKey(key.into()));
            }
        }
        // Later sections speak of what earlier ones declare, in whatever order the file has them.
        if let Some(node) = find("model")
            && let Some(name) = text(node, "`model`", problems)
        {
            titled(&name, problems);
            header.model = name.text;
        }
        if let Some(node) = find("about")
            && let Some(name) = text(node, "`about`", problems)
        {
            header.about = name.text;
        }
        if let Some(node) = find("dtype")
            && let Some(dtype) = dtype(node, problems)
        {
            header.dtype = dtype;
        }
        header.dtype = overrides.dtype.unwrap_or(header.dtype);
        for (name, allowed) in [("tf32", &mut header.tf32), ("winograd", &mut header.winograd)] {
            match find(name).map(|node| (&node.value, node.place)) {
                Some((YamlValue::Bool(said), _)) => *allowed = *said,
                Some((_, place)) => wrong(problems, place, &format!("`{name}`"), "true or false"),
                None => {}
            }
        }
        if let Some(node) = find("dims") {
            let entries = declarations(node, "`dims`", problems);
            (header.dims, header.sizes) = sizes::read(node.place, entries, &overrides.sizes, problems);
        }
        if let Some(node) = find("constants") {
            header.read_constants(node, source, problems);
        }
        for (key, kind) in [("inputs", Kind::Input), ("parameters", Kind::Parameter), ("state", Kind::State)] {
            if let Some(node) = find(key) {
                header.read_tensors(declarations(node, &format!("`{key}`"), problems), kind, source, problems);
            }
        }
        if let Some(node) = find("outputs") {
            header.outputs = words(node, "`outputs`", problems);
        }
        if let Some(node) = find("steps") {
            header.read_steps(node, source, problems);
        }
        if let Some(node) = find("update") {
            header.read_update(node, source, problems);
        }
        if let Some(node) = find("train") {
            header.read_train(node, problems);
        }
        header
    }

    fn read_constants(&mut self, node: &YamlNode, source: &RecipeText, problems: &mut Problems) {
        for (name, node) in declarations(node, "`constants`", problems) {
            usable(name, problems);
            let value = match (plain_number(&node.value), &node.value) {
                (Some(Ok(number)), _) => Some(Scalar::Const(number)),
                (Some(Err(why)), _) => {
                    problems.add(node.place, Problem::Syntax(why));
                    None
                }
                (None, YamlValue::Text(text)) => self.constant(&name.text, node.place, text, source, problems),
                _ => {
                    wrong(
                        problems,
                        node.place,
                        &format!("the constant `{}`", name.text),
                        "a number, or an expression of numbers and sizes",
                    );
                    None
                }
            };
            // After an error it stands for something, so that its uses are not reported too.
            let value = value.unwrap_or(Scalar::Const(1.0));
            self.constants.insert(name.text.clone(), DeclaredConstant { place: name.place, value });
        }
    }

    /// The value of a constant that is written as an expression of numbers, sizes, and constants above it.
    fn constant(&self, name: &str, place: SourceLocation, text: &str, source: &RecipeText, problems: &mut Problems) -> Option<Scalar> {
        // In an instance of a block the text is no longer that of the file.
        let places = if place.within > 0 { vec![place; text.chars().count()] } else { source.places(place, text) };
        let parsed = lexer::words(text, &places, place).and_then(parser::expression);
        let parsed = parsed.map_err(|(place, problem)| problems.add(place, problem)).ok()?;
        match (Resolver { header: self, problems, absent: &|_| Absence::Unknown }).value(&parsed, &[])? {
            value::StepValue::Scalar(scalar) => {
                let known = scalar.constant(&Bindings::new()).map_or(scalar, Scalar::Const);
                let mut parts = 0;
                known.walk(&mut |_| parts += 1);
                if parts > PARTS {
                    problems.add(place, Problem::LongConstant { name: name.into(), parts, limit: PARTS });
                    return None;
                }
                Some(known)
            }
            _ => {
                wrong(problems, place, &format!("the constant `{name}`"), "a number, or an expression of numbers and sizes");
                None
            }
        }
    }

    fn read_tensors(&mut self, entries: &[(Name, YamlNode)], kind: Kind, source: &RecipeText, problems: &mut Problems) {
        let role = if kind == Kind::Input { Role::Input } else { Role::Parameter };
        let is_state = kind == Kind::State;
        let keys: &[&str] = if is_state { &STATE_KEYS } else { &TENSOR_KEYS };
        for (name, value) in entries {
            usable(name, problems);
            if let Some(line) = self.declared(&name.text) {
                problems.add(name.place, Problem::DeclaredTwice { name: name.text.clone(), line });
                continue;
            }
            let before = problems.failures();
            let own = unnamed(self.dtype, role);
            let (place, dims, initial) = (name.place, Vec::new(), is_state.then_some(0.0));
            let mut tensor = DeclaredTensor { place, dims, dtype: own, role, grad: !is_state, range: None, initial, sound: true };
            let what = format!("the tensor `{}`", name.text);
            let (mut range, mut begins) = (None, None);
            match &value.value {
                YamlValue::List(_) => tensor.dims = self.axes(&name.text, value, &what, problems),
                YamlValue::Map(options) => {
                    for (key, value) in options {
                        match (key.text.as_str(), &value.value) {
                            (unknown, _) if !keys.contains(&unknown) => problems
                                .add(key.place, Problem::UnknownKey { key: unknown.into(), hint: nearest(unknown, keys.iter().copied()) }),
                            ("dims", _) => tensor.dims = self.axes(&name.text, value, &what, problems),
                            ("dtype", _) => tensor.dtype = dtype(value, problems).unwrap_or(own),
                            ("grad", YamlValue::Bool(grad)) => tensor.grad = *grad,
                            ("range", _) => range = Some(value),
                            ("initial", _) if kind == Kind::Input => {
                                let text = format!(
                                    "the input `{}` is given anew each step, so it has no `initial`; parameters and state have",
                                    name.text
                                );
                                problems.add(key.place, Problem::Syntax(text));
                            }
                            ("initial", _) if kind == Kind::Parameter => begins = Some(value),
                            ("initial", _) => match plain_number(&value.value) {
                                Some(Ok(number)) if tensor.dtype.stores(number) => tensor.initial = Some(number),
                                Some(Err(why)) => problems.add(value.place, Problem::Syntax(why)),
                                _ => wrong(problems, value.place, "`initial`", "one number, which the tensor's type holds"),
                            },
                            _ => wrong(problems, value.place, "`grad`", "true or false"),
                        }
                    }
                    if !options.iter().any(|(key, _)| key.text == "dims") {
                        problems.add(value.place, Problem::MissingKey(format!("dims` of `{}", name.text)));
                    }
                }
                _ => wrong(problems, value.place, &what, "a list of dims, such as [i, b, j]"),
            }
            if let Some(node) = range {
                tensor.range = self.range(&name.text, node, tensor.dtype, source, problems);
            }
            if let Some(initial) = begins.and_then(|node| self.initial(&name.text, node, source, problems)) {
                self.initial.insert(name.text.clone(), initial);
            }
            tensor.sound = problems.failures() == before;
            self.tensors.insert(name.text.clone(), tensor);
        }
    }

    /// What a parameter begins with: a number, or a distribution such as `normal(0.02)`.
    fn initial(&self, tensor: &str, node: &YamlNode, source: &RecipeText, problems: &mut Problems) -> Option<Initial> {
        match plain_number(&node.value) {
            Some(Ok(number)) => return Some(Initial::Constant(number)),
            Some(Err(why)) => {
                problems.add(node.place, Problem::Syntax(why));
                return None;
            }
            None => {}
        }
        if let YamlValue::Text(text) = &node.value
            && let Some((name, inner)) = text.trim().strip_suffix(')').and_then(|rest| rest.split_once('('))
            && Initial::NAMES.contains(&name.trim())
        {
            let of = self.constant(tensor, node.place, inner, source, problems)?.constant(&self.sizes);
            if let Some(initial) = of.ok().filter(|of| of.is_finite() && *of > 0.0).and_then(|of| Initial::named(name.trim(), of)) {
                return Some(initial);
            }
        }
        let expected = "a number, normal(0.02) with a standard deviation, or uniform(0.1) with a bound, both positive";
        wrong(problems, node.place, &format!("`initial` of `{tensor}`"), expected);
        None
    }

    /// The range of a tensor's values: `[low, high]`, or a text that may leave bounds out, such as `[0, size(c))`.
    fn range(&self, tensor: &str, node: &YamlNode, dtype: Dtype, source: &RecipeText, problems: &mut Problems) -> Option<Bounds> {
        let bad = |problems: &mut Problems| {
            wrong(
                problems,
                node.place,
                &format!("the range of `{tensor}`"),
                "[low, high], or a text such as \"[0, size(c))\" or \"(0, inf)\"",
            );
            None
        };
        let (bounds, open) = match &node.value {
            YamlValue::List(items) => match items.as_slice() {
                [low, high] => ([self.bound(tensor, low, source, problems)?, self.bound(tensor, high, source, problems)?], [false, false]),
                _ => return bad(problems),
            },
            YamlValue::Text(text) => {
                let text = text.trim();
                let open = [text.starts_with('('), text.ends_with(')')];
                let inner = text.strip_prefix(['[', '(']).and_then(|rest| rest.strip_suffix([']', ')']));
                let Some((low, high)) = inner.and_then(split) else { return bad(problems) };
                let mut bound = |text: &str| self.constant(tensor, node.place, text, source, problems);
                ([bound(low)?, bound(high)?], open)
            }
            _ => return bad(problems),
        };
        let [low, high] = bounds;
        let range = Bounds { low, high, open };
        match range.under(&self.sizes) {
            Ok(interval) if interval.is_empty(!dtype.is_floating()) => {
                problems.add(node.place, Problem::EmptyRange { tensor: tensor.into(), range: interval.to_string(), dtype });
                None
            }
            Ok(_) => Some(range),
            Err(_) => bad(problems),
        }
    }

    /// A bound that stands as an item of a list.
    fn bound(&self, tensor: &str, node: &YamlNode, source: &RecipeText, problems: &mut Problems) -> Option<Scalar> {
        match (plain_number(&node.value), &node.value) {
            (Some(Ok(number)), _) => Some(Scalar::Const(number)),
            (Some(Err(why)), _) => {
                problems.add(node.place, Problem::Syntax(why));
                None
            }
            (None, YamlValue::Text(text)) => self.constant(tensor, node.place, text, source, problems),
            _ => {
                wrong(problems, node.place, &format!("a bound of `{tensor}`"), "a number, or an expression of numbers and sizes");
                None
            }
        }
    }

    fn axes(&self, tensor: &str, node: &YamlNode, what: &str, problems: &mut Problems) -> Vec<String> {
        let mut axes: Vec<String> = Vec::new();
        for dim in words(node, what, problems).unwrap_or_default() {
            if !self.dims.contains_key(&dim.text) {
                problems.add(dim.place, self.unknown_dim(&dim.text));
            } else if axes.contains(&dim.text) {
                problems.add(dim.place, Problem::RepeatedIndex { tensor: tensor.into(), index: dim.text.clone() });
            } else {
                axes.push(dim.text);
            }
        }
        axes
    }

    fn read_steps(&mut self, node: &YamlNode, source: &RecipeText, problems: &mut Problems) {
        let YamlValue::List(items) = &node.value else {
            return wrong(problems, node.place, "`steps`", "a list of steps, each `- name[index, …] = expression`");
        };
        if items.is_empty() {
            return wrong(problems, node.place, "`steps`", "a list of at least one step");
        }
        if items.len() > STEPS {
            return problems.add(node.place, Problem::TooMany { what: "steps".into(), count: items.len(), limit: STEPS });
        }
        let step = |item: &YamlNode| match &item.value {
            YamlValue::Phrase(phrase) => Some(phrase.clone()),
            _ => text(item, "a step", problems).map(|name| Phrase::written(name.place, &name.text, source)),
        };
        self.steps = items.iter().filter_map(step).collect();
    }

    /// One line or a list of them: which lines there can be is for [`super::update`] to say.
    fn read_update(&mut self, node: &YamlNode, source: &RecipeText, problems: &mut Problems) {
        let items = match &node.value {
            YamlValue::List(items) if items.len() > STEPS => {
                return problems.add(node.place, Problem::TooMany { what: "lines of `update`".into(), count: items.len(), limit: STEPS });
            }
            YamlValue::List(items) if !items.is_empty() => items.as_slice(),
            YamlValue::Text(_) | YamlValue::Phrase(_) => std::slice::from_ref(node),
            _ => {
                let expected = "a line or a list of lines, such as `sgd(rate: 0.01)` or `w[o,i] = w - 0.01 * d_w`";
                return wrong(problems, node.place, "`update`", expected);
            }
        };
        let line = |item: &YamlNode| match &item.value {
            YamlValue::Phrase(phrase) => Some(phrase.clone()),
            _ => text(item, "a line of `update`", problems).map(|name| Phrase::written(name.place, &name.text, source)),
        };
        self.update = items.iter().filter_map(line).collect();
    }

    fn read_train(&mut self, node: &YamlNode, problems: &mut Problems) {
        let YamlValue::Map(entries) = &node.value else {
            return wrong(problems, node.place, "`train`", "a mapping, {upstream: NAME}, {upstream: [NAME, …]} or {loss: NAME}");
        };
        for (key, value) in entries {
            match key.text.as_str() {
                "upstream" => match &value.value {
                    YamlValue::List(items) if items.is_empty() => wrong(problems, value.place, "`upstream`", "at least one name"),
                    YamlValue::List(_) => self.upstream = words(value, "`upstream`", problems).unwrap_or_default(),
                    _ => self.upstream.extend(text(value, "`upstream`", problems)),
                },
                "loss" => self.loss = text(value, "`loss`", problems),
                unknown => problems.add(key.place, Problem::UnknownKey { key: unknown.into(), hint: nearest(unknown, TRAIN_KEYS) }),
            }
        }
        match (self.upstream.is_empty(), &self.loss) {
            (false, Some(_)) => problems.add(node.place, Problem::TrainTwice),
            (true, None) if entries.is_empty() => problems.add(node.place, Problem::MissingKey("upstream` or `loss` in `train".into())),
            _ => {}
        }
    }
}

/// The two sides of the comma that stands in no bracket.
fn split(text: &str) -> Option<(&str, &str)> {
    let mut depth = 0;
    let at = text.char_indices().find(|(_, c)| {
        match c {
            '(' | '[' => depth += 1,
            ')' | ']' => depth -= 1,
            _ => {}
        }
        *c == ',' && depth == 0
    });
    at.map(|(at, _)| (&text[..at], &text[at + 1..]))
}

fn wrong(problems: &mut Problems, place: SourceLocation, what: &str, expected: &str) {
    problems.add(place, Problem::WrongKind { what: what.into(), expected: expected.into() });
}

/// The type of a declared tensor that names none: parameters are master weights.
fn unnamed(recipe: Dtype, role: Role) -> Dtype {
    if role == Role::Parameter { recipe.accumulator() } else { recipe }
}

fn text(node: &YamlNode, what: &str, problems: &mut Problems) -> Option<Name> {
    match &node.value {
        YamlValue::Text(text) => Some(Name { place: node.place, text: text.clone() }),
        _ => {
            let written = match &node.value {
                YamlValue::Int(n) => Some(n.to_string()),
                YamlValue::Bool(yes) => Some(yes.to_string()),
                YamlValue::Float(_, written) => Some(written.clone()),
                _ => None,
            };
            let expected = written.map_or("a text".to_string(), |written| format!("a text; put `{written}` in quotes if it is one"));
            wrong(problems, node.place, what, &expected);
            None
        }
    }
}

/// The number that a value is; `None` where it is none.
///
/// # Errors
/// A number that would become another one.
fn plain_number(value: &YamlValue) -> Option<Result<f64, String>> {
    let signed = |text: &str| {
        let (sign, digits) = text.strip_prefix('-').map_or((1.0, text.strip_prefix('+').unwrap_or(text)), |digits| (-1.0, digits));
        digits.starts_with(|c: char| c.is_ascii_digit() || c == '.').then(|| number::read(digits).map(|value| sign * value))
    };
    match value {
        YamlValue::Int(n) => signed(&n.to_string()),
        YamlValue::Float(x, written) if written.trim_start_matches(['-', '+']).eq_ignore_ascii_case(".inf") => Some(Ok(*x)),
        YamlValue::Float(x, written) if x.is_nan() => Some(Err(format!("`{written}` is not a number"))),
        YamlValue::Float(_, written) => signed(written),
        // YAML 1.2 wants a point in `1e-5`; people do not.
        YamlValue::Text(text) if text.parse::<f64>().is_ok() => signed(text),
        _ => None,
    }
}

fn words(node: &YamlNode, what: &str, problems: &mut Problems) -> Option<Vec<Name>> {
    let YamlValue::List(items) = &node.value else {
        wrong(problems, node.place, what, "a list of names, such as [x, y]");
        return None;
    };
    Some(items.iter().filter_map(|item| text(item, &format!("an item of {what}"), problems)).collect())
}

fn declarations<'a>(node: &'a YamlNode, what: &str, problems: &mut Problems) -> &'a [(Name, YamlNode)] {
    match &node.value {
        YamlValue::Map(entries) if entries.len() > DECLARATIONS => {
            let what = format!("entries in {what}");
            problems.add(node.place, Problem::TooMany { what, count: entries.len(), limit: DECLARATIONS });
            &[]
        }
        YamlValue::Map(entries) => entries,
        YamlValue::Null => &[],
        _ => {
            wrong(problems, node.place, what, "a mapping");
            &[]
        }
    }
}

fn dtype(node: &YamlNode, problems: &mut Problems) -> Option<Dtype> {
    let name = text(node, "`dtype`", problems)?;
    let found = Dtype::from_name(&name.text);
    if found.is_none() {
        let hint = nearest(&name.text, Dtype::ALL.map(Dtype::name));
        problems.add(name.place, Problem::UnknownDtype { name: name.text, hint });
    }
    found
}
