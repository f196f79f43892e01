//! Steps of a node: values under labels become text, and text becomes a step.

use super::element::ElementType;
use super::error::UnsupportedNode;
use super::node::OnnxNode;
use super::recipe::StepIndex;
use super::view::{AffineSum, DigitAxis, DigitView, ElementSource};
use indexmap::IndexMap;

/// What a subscript is made of.
#[derive(Clone, Debug, PartialEq)]
pub enum Term {
    Index(StepIndex),
    /// An index divided by a number, rounded down.
    Floor(StepIndex, usize),
    /// The size of a dim.
    Size(String),
}

pub type SubscriptExpr = AffineSum<Term>;

/// The place that an index names.
pub fn at(index: &StepIndex) -> SubscriptExpr {
    AffineSum::of(Term::Index(index.clone()))
}

/// What a step is called after.
#[derive(Clone, Copy)]
pub enum Out {
    /// A result of the node.
    Result(usize),
    /// A step on the way to the result.
    Part(&'static str),
}

/// Operands as texts, and the indices of each label.
pub struct Labelled {
    pub indices: IndexMap<usize, Vec<StepIndex>>,
    pub texts: Vec<String>,
}

/// A number as a step has it.
pub fn literal(value: f64, element: ElementType) -> String {
    let digits = |value: f64| match element {
        ElementType::F32 | ElementType::F16 | ElementType::Bf16 => format!("{:?}", value as f32),
        ElementType::F64 => format!("{value:?}"),
        _ => format!("{value:.0}"),
    };
    match value {
        v if v.is_nan() => "(inf - inf)".into(),
        v if v == f64::INFINITY => "inf".into(),
        v if v == f64::NEG_INFINITY => "(-inf)".into(),
        v => {
            let text = digits(v.abs());
            let text = text.strip_suffix(".0").unwrap_or(&text);
            if v.is_sign_negative() { format!("(-{text})") } else { text.to_string() }
        }
    }
}

/// An index of a place as a subscript of an axis with some size.
fn subscript(place: &SubscriptExpr, size: usize) -> String {
    let term = |(term, coefficient): &(Term, i64)| {
        let name = match term {
            Term::Index(index) => index.name.clone(),
            Term::Floor(index, by) => format!("floor({} / {by})", index.name),
            Term::Size(dim) => format!("size({dim})"),
        };
        match coefficient.abs() {
            1 => name,
            n => format!("{n}*{name}"),
        }
    };
    let mut text = String::new();
    let ordered = place.terms.iter().filter(|(_, c)| *c > 0).chain(place.terms.iter().filter(|(_, c)| *c < 0));
    for (n, part) in ordered.enumerate() {
        let sign = if part.1 < 0 { "-" } else { "+" };
        if n > 0 || part.1 < 0 {
            text.push_str(sign);
        }
        text.push_str(&term(part));
    }
    match (place.terms.as_slice(), place.constant) {
        ([], constant) => constant.to_string(),
        // A plain index reads an axis of its own size.
        ([(Term::Index(index), 1)], 0) if index.size == size => text,
        ([(Term::Index(_), 1)], 0) => format!("{text}+0"),
        (_, 0) => text,
        (_, constant) => format!("{text}{}{}", if constant < 0 { "-" } else { "+" }, constant.abs()),
    }
}

/// Whether a word stands in an expression.
pub fn mentions(expression: &str, word: &str) -> bool {
    expression.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).any(|part| part == word)
}

impl OnnxNode<'_, '_> {
    /// Begins a step, which has its own indices.
    pub fn begin(&mut self) {
        self.used.clear();
    }

    /// An index that the step has not yet.
    pub fn index(&mut self, size: usize) -> StepIndex {
        self.import.recipe.index(&mut self.used, size)
    }

    /// A value's elements at a place for each digit; `fill` is what lies outside.
    pub fn text(&self, view: &DigitView, places: &IndexMap<usize, SubscriptExpr>, fill: Option<&str>) -> String {
        self.text_with(view, places, &IndexMap::new(), fill)
    }

    /// The same, where some digits are elements of other tensors.
    pub fn text_with(
        &self,
        view: &DigitView,
        places: &IndexMap<usize, SubscriptExpr>,
        elements: &IndexMap<usize, String>,
        fill: Option<&str>,
    ) -> String {
        let ElementSource::Tensor { name, sizes, subscripts } = &view.source else {
            let ElementSource::Number(value) = &view.source else { return String::new() };
            return literal(*value, view.element);
        };
        if sizes.is_empty() {
            return name.clone();
        }
        let mut cut = false;
        let texts: Vec<String> = subscripts
            .iter()
            .zip(sizes)
            .map(|(own, size)| {
                if let [(id, 1)] = own.terms.as_slice()
                    && let Some(element) = elements.get(id)
                {
                    return element.clone();
                }
                let mut place = SubscriptExpr::number(own.constant);
                for (id, coefficient) in &own.terms {
                    if let Some(at) = places.get(id) {
                        place = place.plus(at, *coefficient);
                    }
                }
                cut |= place.terms.iter().any(|(t, c)| matches!(t, Term::Floor(..)) && *c < 0);
                subscript(&place, *size)
            })
            .collect();
        // Bounds of a remainder are not seen from its parts.
        let fill = fill.or(if cut { Some("0") } else { None });
        match fill {
            Some(fill) => format!("{name}[{} else {fill}]", texts.join(",")),
            None => format!("{name}[{}]", texts.join(",")),
        }
    }

    /// A value at one place for each axis; several digits of an axis take their parts of it by division.
    pub fn read(&self, view: &DigitView, at: &[SubscriptExpr], fill: Option<&str>) -> String {
        let mut places = IndexMap::new();
        for (axis, place) in view.axes.iter().zip(at) {
            spread(axis, place, &mut places);
        }
        self.text(view, &places, fill)
    }

    /// Texts of operands whose axes have labels: axes of one label run together, and those of size 1 are repeated. Labels that are not
    /// `kept` get no index where their size is 1.
    pub fn labelled(&mut self, operands: &[(DigitView, Vec<usize>)], kept: &[usize]) -> Result<Labelled, UnsupportedNode> {
        self.begin();
        self.labelled_further(operands, kept)
    }

    /// As [`OnnxNode::labelled`], in a step that has indices already.
    pub fn labelled_further(&mut self, operands: &[(DigitView, Vec<usize>)], kept: &[usize]) -> Result<Labelled, UnsupportedNode> {
        let mut operands = operands.to_vec();
        let mut indices: IndexMap<usize, Vec<StepIndex>> = IndexMap::new();
        let labels: Vec<usize> = kept.iter().chain(operands.iter().flat_map(|(_, labels)| labels)).copied().collect();
        for label in labels {
            if indices.contains_key(&label) {
                continue;
            }
            let axes = || operands.iter().flat_map(|(view, labels)| view.axes.iter().zip(labels).filter(|(_, l)| **l == label));
            let size = axes().map(|(axis, _)| axis.size).max().unwrap_or(1);
            if let Some((axis, _)) = axes().find(|(axis, _)| axis.size != 1 && axis.size != size) {
                return UnsupportedNode::form(format!("sizes {} and {size} of one axis do not fit each other", axis.size));
            }
            let sizes = if size == 1 {
                let digit = axes().any(|(axis, _)| !axis.digits.is_empty());
                if digit && kept.contains(&label) { vec![1] } else { vec![] }
            } else {
                match refined(size, axes().map(|(axis, _)| axis)) {
                    Some(sizes) => sizes,
                    None => {
                        let used = std::mem::take(&mut self.used);
                        for (view, labels) in &mut operands {
                            let cut = labels.iter().zip(&view.axes).any(|(l, axis)| *l == label && axis.digits.len() > 1);
                            if cut {
                                *view = self.copied(view, "whole")?;
                            }
                        }
                        self.used = used;
                        vec![size]
                    }
                }
            };
            let own = sizes.into_iter().map(|size| self.index(size)).collect();
            indices.insert(label, own);
        }
        let texts = operands
            .iter()
            .map(|(view, labels)| {
                let mut places = IndexMap::new();
                for (axis, label) in view.axes.iter().zip(labels) {
                    assigned(axis, &indices[label], &mut places);
                }
                self.text(view, &places, None)
            })
            .collect();
        Ok(Labelled { indices, texts })
    }

    /// The place of each digit of a value whose axes have labels; axes without one are left out.
    pub fn places(&self, view: &DigitView, labels: &[usize], labelled: &Labelled) -> IndexMap<usize, SubscriptExpr> {
        let mut places = IndexMap::new();
        for (axis, label) in view.axes.iter().zip(labels) {
            if let Some(indices) = labelled.indices.get(label) {
                assigned(axis, indices, &mut places);
            }
        }
        places
    }

    /// The shape of values that are broadcast together.
    pub fn broadcast(&self, views: &[DigitView]) -> Result<Vec<usize>, UnsupportedNode> {
        let rank = views.iter().map(|view| view.axes.len()).max().unwrap_or(0);
        let mut shape = vec![1; rank];
        for view in views {
            for (own, size) in view.shape().iter().rev().zip(shape.iter_mut().rev()) {
                match (*own, *size) {
                    (own, size) if own == size => {}
                    (own, 1) => *size = own,
                    (1, _) => {}
                    (own, size) => return UnsupportedNode::form(format!("sizes {own} and {size} do not fit each other")),
                }
            }
        }
        if shape.contains(&0) { Err(UnsupportedNode::Empty) } else { Ok(shape) }
    }

    /// Labels of axes that are aligned from the last one on.
    ///
    /// # Errors
    /// Views of more axes than that.
    pub fn aligned(views: &[DigitView], rank: usize) -> Result<Vec<(DigitView, Vec<usize>)>, UnsupportedNode> {
        let of = |view: &DigitView| match rank.checked_sub(view.axes.len()) {
            Some(first) => Ok((view.clone(), (first..rank).collect())),
            None => Err(UnsupportedNode::Form(format!("an operand has {} axes, {rank} at most fit", view.axes.len()))),
        };
        views.iter().map(of).collect()
    }

    /// A step that computes each element from those of operands at its place, which are broadcast.
    pub fn pointwise(
        &mut self,
        out: Out,
        operands: &[DigitView],
        element: ElementType,
        f: impl FnOnce(&[String]) -> String,
    ) -> Result<DigitView, UnsupportedNode> {
        let shape = self.broadcast(operands)?;
        let kept: Vec<usize> = (0..shape.len()).collect();
        let labelled = self.labelled(&Self::aligned(operands, shape.len())?, &kept)?;
        let axes = kept.iter().map(|label| labelled.indices[label].clone()).collect();
        let expression = f(&labelled.texts);
        Ok(self.define(out, axes, &expression, element))
    }

    /// Adds a step; its axes' indices are those of the left side, in order.
    pub fn define(&mut self, out: Out, mut axes: Vec<Vec<StepIndex>>, expression: &str, element: ElementType) -> DigitView {
        let whole = axes.iter().all(|axis| axis.len() <= 1);
        let name = match out {
            Out::Result(n) => {
                let wanted = self.proto.output.get(n).cloned().unwrap_or_default();
                let name = if whole && !self.inner { self.import.output_name(&wanted) } else { None };
                match name {
                    Some(name) => {
                        // A result of the recipe has all its axes.
                        for axis in axes.iter_mut().filter(|axis| axis.is_empty()) {
                            axis.push(self.index(1));
                        }
                        name
                    }
                    None => self.import.recipe.unique(&wanted),
                }
            }
            Out::Part(suffix) => {
                let wanted = self.proto.output.iter().find(|o| !o.is_empty()).cloned().unwrap_or_default();
                self.import.recipe.unique(&format!("{}_{suffix}", wanted.trim_end_matches("_output_0")))
            }
        };
        let left: Vec<&StepIndex> = axes.iter().flatten().collect();
        let missing: Vec<String> =
            left.iter().filter(|i| !mentions(expression, &i.name)).map(|index| format!("0 * {}", index.name)).collect();
        let right = match missing.is_empty() {
            true => outer(expression).to_string(),
            false => format!("({}) + {}", outer(expression), missing.join(" + ")),
        };
        let names: Vec<&str> = left.iter().map(|i| i.name.as_str()).collect();
        let step = format!("{name}[{}] = {right}", names.join(","));
        self.import.recipe.step(&self.comment, step);
        let sizes: Vec<Vec<usize>> = axes.iter().map(|axis| axis.iter().map(|i| i.size).collect()).collect();
        DigitView::of(name, element, &sizes)
    }

    /// The same value as a tensor of its own, each axis of which is one dim.
    pub fn copied(&mut self, view: &DigitView, part: &'static str) -> Result<DigitView, UnsupportedNode> {
        self.copied_as(Out::Part(part), view)
    }

    pub fn copied_as(&mut self, out: Out, view: &DigitView) -> Result<DigitView, UnsupportedNode> {
        self.begin();
        let axes: Vec<Vec<StepIndex>> = view
            .axes
            .iter()
            .map(|axis| if axis.size == 1 && axis.digits.is_empty() { vec![] } else { vec![self.index(axis.size)] })
            .collect();
        let places: Vec<SubscriptExpr> = axes.iter().map(|axis| axis.first().map_or(SubscriptExpr::number(0), at)).collect();
        let text = self.read(view, &places, None);
        Ok(self.define(out, axes, &text, view.element))
    }

    /// The same value where these axes are whole dims: what is read outside of them lies outside of the tensor.
    pub fn whole(&mut self, view: &DigitView, axes: impl IntoIterator<Item = usize>) -> Result<DigitView, UnsupportedNode> {
        let mut axes = axes.into_iter();
        if axes.all(|axis| view.is_whole(axis)) {
            return Ok(view.clone());
        }
        self.begin();
        let axes: Vec<Vec<StepIndex>> = view.axes.iter().map(|axis| vec![self.index(axis.size)]).collect();
        let places: Vec<SubscriptExpr> = axes.iter().map(|axis| at(&axis[0])).collect();
        let text = self.read(view, &places, None);
        Ok(self.define(Out::Part("whole"), axes, &text, view.element))
    }
}

/// A product that is summed over some indices: where each stands in two factors, the sum needs no word.
pub fn summed(factors: &[&str], over: &[StepIndex]) -> String {
    let count = |index: &StepIndex| factors.iter().filter(|factor| mentions(factor, &index.name)).count();
    let product = factors.join(" * ");
    let (absent, present): (Vec<&StepIndex>, Vec<&StepIndex>) = over.iter().partition(|index| count(index) == 0);
    let times: usize = absent.iter().map(|index| index.size).product();
    let sum = match present.iter().all(|index| count(index) >= 2) {
        true => product,
        false => reduced("sum", &product, &present),
    };
    if times == 1 { sum } else { format!("{times} * ({sum})") }
}

/// A reduction over some indices; over none it is its operand.
pub fn reduced(operator: &str, operand: &str, over: &[&StepIndex]) -> String {
    match over {
        [] => format!("({operand})"),
        [index] => format!("{operator}({operand}, over: {})", index.name),
        several => {
            let names: Vec<&str> = several.iter().map(|index| index.name.as_str()).collect();
            format!("{operator}({operand}, over: [{}])", names.join(", "))
        }
    }
}

/// An expression without brackets around all of it.
fn outer(expression: &str) -> &str {
    let Some(inner) = expression.strip_prefix('(').and_then(|rest| rest.strip_suffix(')')) else { return expression };
    let mut depth = 0i32;
    for c in inner.chars() {
        depth += match c {
            '(' => 1,
            ')' => -1,
            _ => 0,
        };
        if depth < 0 {
            return expression;
        }
    }
    inner
}

/// Sizes of digits that are parts of the digits of all axes with this size; `None` where they overlap.
fn refined<'a>(size: usize, axes: impl Iterator<Item = &'a DigitAxis>) -> Option<Vec<usize>> {
    let mut inner = vec![size];
    for axis in axes.filter(|axis| axis.size == size) {
        let mut below = 1;
        for digit in axis.digits.iter().rev() {
            inner.push(below);
            below *= digit.size;
        }
    }
    inner.sort_unstable();
    inner.dedup();
    inner.retain(|n| *n != 1);
    let mut sizes = vec![];
    let mut below = 1;
    for n in inner {
        if n % below != 0 {
            return None;
        }
        sizes.push(n / below);
        below = n;
    }
    sizes.reverse();
    Some(sizes)
}

/// Gives each digit of an axis its part of the label's indices.
fn assigned(axis: &DigitAxis, indices: &[StepIndex], places: &mut IndexMap<usize, SubscriptExpr>) {
    if axis.size == 1 {
        for digit in &axis.digits {
            // All digits of size 1 are at 0, which an index of size 1 is.
            let place = indices.first().filter(|i| i.size == 1).map_or(SubscriptExpr::number(0), at);
            places.insert(digit.id, place);
        }
        return;
    }
    if let ([index], true) = (indices, axis.digits.len() > 1) {
        return spread(axis, &at(index), places);
    }
    let mut left: Vec<&StepIndex> = indices.iter().collect();
    for digit in axis.digits.iter().rev() {
        let (mut place, mut below) = (SubscriptExpr::number(0), 1);
        while below < digit.size {
            let Some(index) = left.pop() else { break };
            place = place.plus(&at(index), below as i64);
            below *= index.size;
        }
        // Outer parts stand first.
        place.terms.reverse();
        places.insert(digit.id, place);
    }
}

/// Gives each digit of an axis its part of one place.
fn spread(axis: &DigitAxis, place: &SubscriptExpr, places: &mut IndexMap<usize, SubscriptExpr>) {
    if let [digit] = axis.digits.as_slice() {
        places.insert(digit.id, place.clone());
        return;
    }
    let mut below = 1;
    for digit in axis.digits.iter().rev() {
        let part = match (place.terms.as_slice(), place.constant) {
            ([], constant) => SubscriptExpr::number((constant / below as i64) % digit.size as i64),
            ([(Term::Index(index), 1)], 0) if digit.size > 1 => {
                let floor = |by: usize| match by {
                    1 => at(index),
                    by if by >= index.size => SubscriptExpr::number(0),
                    by => AffineSum::of(Term::Floor(index.clone(), by)),
                };
                floor(below).plus(&floor(below * digit.size), -(digit.size as i64))
            }
            _ => SubscriptExpr::number(0),
        };
        places.insert(digit.id, part);
        below *= digit.size;
    }
}
