//! Recurrent layers: LSTM, GRU and RNN as loops over time.

use super::layout::{joined, part};
use super::pointwise::real;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::recipe::StepIndex;
use crate::import::step::{Out, at, summed};
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[
    ("GRU", |n| recurrent(n, &["z", "r", "h"], gru)),
    ("LSTM", |n| recurrent(n, &["i", "o", "f", "c"], lstm)),
    ("RNN", |n| recurrent(n, &["h"], rnn)),
];

/// One direction of a layer: its operands, and the indices of the step under way.
struct Layer {
    /// [t, b, i], [g · u, i], [g · u, k], [2 · g · u]
    x: DigitView,
    w: DigitView,
    r: DigitView,
    bias: Option<DigitView>,
    /// [b, u] before the first time, and peepholes [3 · u].
    before: Option<DigitView>,
    cell: Option<DigitView>,
    peepholes: Option<DigitView>,
    lengths: Option<DigitView>,
    reversed: bool,
    times: usize,
    batch: usize,
    units: usize,
    gates: usize,
    activations: Vec<String>,
    clip: Option<String>,
}

/// Indices of one step, and which states it reads.
struct Around {
    t: StepIndex,
    b: StepIndex,
    u: StepIndex,
}

type Made = fn(&mut OnnxNode, &Layer) -> Result<(String, Option<String>), UnsupportedNode>;

fn recurrent(node: &mut OnnxNode, gates: &[&str], made: Made) -> Results {
    let direction = node.string("direction", "forward");
    let batch_first = node.int("layout", 0) != 0;
    let count = if direction == "bidirectional" { 2 } else { 1 };
    let x = node.view(0)?;
    let x = if batch_first { x.transposed(&[1, 0, 2])? } else { x };
    let (w, r) = (node.view(1)?, node.view(2)?);
    let [times, batch, _] = x.shape()[..] else { return UnsupportedNode::form("its input has no three axes") };
    if [&w, &r].iter().any(|weights| weights.axes.len() != 3) {
        return UnsupportedNode::form("its weights have no three axes");
    }
    let units = r.axes[2].size;
    let bias = node.optional(3)?;
    let lengths = node.optional(4)?;
    let is_lstm = gates.len() == 4;
    let states = [node.optional(5)?, if is_lstm { node.optional(6)? } else { None }];
    let peepholes = if is_lstm { node.optional(7)? } else { None };
    if node.int("input_forget", 0) != 0 {
        return UnsupportedNode::form("`input_forget` is not supported");
    }
    let clip = if crate::import::attribute::float(node.proto, "clip").is_some() { Some(real(node, "clip", 0.0)) } else { None };
    let of_direction = |node: &mut OnnxNode, view: &DigitView, d: usize, axis: usize| -> Result<DigitView, UnsupportedNode> {
        let parts: Vec<(i64, i64, usize)> =
            view.axes.iter().enumerate().map(|(a, own)| if a == axis { (d as i64, 1, 1) } else { (0, 1, own.size) }).collect();
        Ok(part(node, view.clone(), &parts)?.squeezed(&[axis]))
    };
    let named: Vec<String> = node
        .proto
        .attribute
        .iter()
        .find(|a| a.name == "activations")
        .map_or(vec![], |a| a.strings.iter().map(|s| String::from_utf8_lossy(s).to_lowercase()).collect());
    let functions = match gates.len() {
        4 => vec!["sigmoid", "tanh", "tanh"],
        3 => vec!["sigmoid", "tanh"],
        _ => vec!["tanh"],
    };
    let (mut all, mut last, mut cells) = (vec![], vec![], vec![]);
    for d in 0..count {
        let reversed = direction == "reverse" || d == 1;
        let first = |node: &mut OnnxNode, view: &Option<DigitView>, axis: usize| {
            view.as_ref().map(|view| of_direction(node, view, d, axis)).transpose()
        };
        let state = |node: &mut OnnxNode, view: &Option<DigitView>| {
            let view = view.as_ref().map(|view| if batch_first { view.transposed(&[1, 0, 2]) } else { Ok(view.clone()) }).transpose()?;
            first(node, &view, 0)
        };
        let own: Vec<String> =
            (0..functions.len()).map(|n| named.get(d * functions.len() + n).cloned().unwrap_or_else(|| functions[n].to_string())).collect();
        if let Some(other) = own.iter().find(|name| !["sigmoid", "tanh", "relu"].contains(&name.as_str())) {
            return UnsupportedNode::form(format!("the activation `{other}` is not supported; sigmoid, tanh and relu are"));
        }
        let layer = Layer {
            x: x.clone(),
            w: of_direction(node, &w, d, 0)?,
            r: of_direction(node, &r, d, 0)?,
            bias: first(node, &bias, 0)?,
            before: state(node, &states[0])?,
            cell: state(node, &states[1])?,
            peepholes: first(node, &peepholes, 0)?,
            lengths: lengths.clone(),
            reversed,
            times,
            batch,
            units,
            gates: gates.len(),
            activations: own,
            clip: clip.clone(),
        };
        let (h, c) = made(node, &layer)?;
        let shape = [vec![times], vec![batch], vec![units]];
        let h = DigitView::of(h, x.element, &shape);
        let end = if reversed { 0 } else { times as i64 - 1 };
        let at_end = |view: &DigitView| view.sliced(0, end, 1, 1).ok_or_else(|| UnsupportedNode::Form("its axis of time is parted".into()));
        last.push(at_end(&h)?);
        if let Some(c) = c {
            cells.push(at_end(&DigitView::of(c, x.element, &shape))?);
        }
        // Beyond a sequence's length the result is 0, and the state stays.
        let y = match &layer.lengths {
            None => h,
            Some(lengths) => {
                let labelled = node.labelled(&[(h, vec![0, 1, 2]), (lengths.clone(), vec![1])], &[0, 1, 2])?;
                let t = labelled.indices[&0].first().map_or("0".to_string(), |i| i.name.clone());
                let expression = format!("where({t} < {}, {}, 0)", labelled.texts[1], labelled.texts[0]);
                let axes = (0..3).map(|a| labelled.indices[&a].clone()).collect();
                node.define(Out::Part("y"), axes, &expression, x.element)
            }
        };
        all.push(y.unsqueezed(&[1])?);
    }
    let stack = |node: &mut OnnxNode, views: &[DigitView], along: usize, part: &'static str| match views {
        [only] => Ok(only.clone()),
        several => joined(node, several, along, Out::Part(part)),
    };
    let y = stack(node, &all, 1, "all")?;
    let h = stack(node, &last, 0, "last")?;
    let turned = |view: DigitView, order: &[usize]| if batch_first { view.transposed(order) } else { Ok(view) };
    let mut results = vec![GraphValue::View(turned(y, &[2, 0, 1, 3])?), GraphValue::View(turned(h, &[1, 0, 2])?)];
    if !cells.is_empty() {
        let c = stack(node, &cells, 0, "cells")?;
        results.push(GraphValue::View(turned(c, &[1, 0, 2])?));
    }
    Ok(results)
}

impl Layer {
    fn around(&self, node: &mut OnnxNode) -> Around {
        node.begin();
        Around { t: node.index(self.times), b: node.index(self.batch), u: node.index(self.units) }
    }

    /// Rows of a gate of a matrix or vector, from a first row on.
    fn rows(&self, node: &mut OnnxNode, view: &DigitView, first: usize) -> Result<DigitView, UnsupportedNode> {
        let own: Vec<(i64, i64, usize)> =
            view.axes.iter().enumerate().map(|(a, axis)| if a == 0 { (first as i64, 1, self.units) } else { (0, 1, axis.size) }).collect();
        let used = std::mem::take(&mut node.used);
        let rows = part(node, view.clone(), &own)?;
        node.used = used;
        Ok(rows)
    }

    /// A state at the time before, at a unit.
    fn previous(&self, node: &OnnxNode, name: &str, initial: &Option<DigitView>, at_unit: &StepIndex, around: &Around) -> String {
        let t = &around.t.name;
        let shift = if self.reversed { format!("{t}+1") } else { format!("{t}-1") };
        let before = format!("{name}[{shift},{},{} else 0]", around.b.name, at_unit.name);
        match initial {
            None => before,
            Some(initial) => {
                let first = if self.reversed { self.times - 1 } else { 0 };
                let given = node.read(initial, &[at(&around.b), at(at_unit)], None);
                format!("where({t} == {first}, {given}, {before})")
            }
        }
    }

    /// What a gate gets from the input, with both biases if `both`.
    fn input(&self, node: &mut OnnxNode, gate: usize, around: &Around, both: bool) -> Result<String, UnsupportedNode> {
        let i = node.index(self.x.axes[2].size);
        let w = self.rows(node, &self.w, gate * self.units)?;
        let w = node.read(&w, &[at(&around.u), at(&i)], None);
        let x = node.read(&self.x, &[at(&around.t), at(&around.b), at(&i)], None);
        let mut text = summed(&[&w, &x], &[i]);
        if self.bias.is_some() {
            text = format!("{text} + {}", self.bias_of(node, gate, around)?);
            if both {
                text = format!("{text} + {}", self.bias_of(node, self.gates + gate, around)?);
            }
        }
        Ok(text)
    }

    fn bias_of(&self, node: &mut OnnxNode, gate: usize, around: &Around) -> Result<String, UnsupportedNode> {
        let Some(bias) = &self.bias else { return Ok("0".into()) };
        let rows = self.rows(node, bias, gate * self.units)?;
        Ok(node.read(&rows, &[at(&around.u)], None))
    }

    /// What a gate gets from a state, whose text at a unit `state` gives.
    fn state(
        &self,
        node: &mut OnnxNode,
        gate: usize,
        around: &Around,
        state: impl FnOnce(&OnnxNode, &StepIndex) -> String,
    ) -> Result<String, UnsupportedNode> {
        let k = node.index(self.units);
        let r = self.rows(node, &self.r, gate * self.units)?;
        let r = node.read(&r, &[at(&around.u), at(&k)], None);
        let text = state(node, &k);
        Ok(format!("sum({r} * {text}, over: {})", k.name))
    }

    fn peephole(&self, node: &mut OnnxNode, n: usize, around: &Around, cell: &str) -> Result<String, UnsupportedNode> {
        let Some(peepholes) = &self.peepholes else { return Ok(String::new()) };
        let rows = self.rows(node, peepholes, n * self.units)?;
        Ok(format!(" + {} * {cell}", node.read(&rows, &[at(&around.u)], None)))
    }

    fn activated(&self, n: usize, text: &str) -> String {
        let text = match &self.clip {
            Some(clip) => format!("min(max({text}, -{clip}), {clip})"),
            None => text.to_string(),
        };
        format!("{}({text})", self.activations[n])
    }

    /// A state that stays where the sequence has ended.
    fn kept(&self, node: &OnnxNode, new: String, old: &str, around: &Around) -> String {
        match &self.lengths {
            Some(lengths) => {
                let length = node.read(lengths, &[at(&around.b)], None);
                format!("where({} < {length}, {new}, {old})", around.t.name)
            }
            None => new,
        }
    }

    fn step(&self, node: &mut OnnxNode, name: &str, around: &Around, text: &str) {
        let step = format!("{name}[{},{},{}] = {text}", around.t.name, around.b.name, around.u.name);
        let comment = node.comment.clone();
        node.import.recipe.step(&comment, step);
    }
}

fn names<const N: usize>(node: &mut OnnxNode, parts: [&str; N]) -> [String; N] {
    let base = node.proto.output.iter().find(|o| !o.is_empty()).cloned().unwrap_or_default();
    parts.map(|part| node.import.recipe.unique(&format!("{}_{part}", base.trim_end_matches("_output_0"))))
}

fn here(name: &str, around: &Around, unit: &StepIndex) -> String {
    format!("{name}[{},{},{}]", around.t.name, around.b.name, unit.name)
}

fn lstm(node: &mut OnnxNode, layer: &Layer) -> Result<(String, Option<String>), UnsupportedNode> {
    let [input, output, forget, proposed, cell, hidden] = names(node, ["i", "o", "f", "g", "c", "h"]);
    for (gate, name) in [(0, &input), (2, &forget), (3, &proposed)] {
        let around = layer.around(node);
        let x = layer.input(node, gate, &around, true)?;
        let h = layer.state(node, gate, &around, |node, k| layer.previous(node, &hidden, &layer.before, k, &around))?;
        let old = layer.previous(node, &cell, &layer.cell, &around.u, &around);
        let hole = match gate {
            0 => layer.peephole(node, 0, &around, &old)?,
            2 => layer.peephole(node, 2, &around, &old)?,
            _ => String::new(),
        };
        let text = layer.activated(usize::from(gate == 3), &format!("{x} + {h}{hole}"));
        layer.step(node, name, &around, &text);
    }
    let around = layer.around(node);
    let old = layer.previous(node, &cell, &layer.cell, &around.u, &around);
    let u = &around.u;
    let new = format!("{} * {old} + {} * {}", here(&forget, &around, u), here(&input, &around, u), here(&proposed, &around, u));
    let new = layer.kept(node, new, &old, &around);
    layer.step(node, &cell, &around, &new);
    let around = layer.around(node);
    let x = layer.input(node, 1, &around, true)?;
    let h = layer.state(node, 1, &around, |node, k| layer.previous(node, &hidden, &layer.before, k, &around))?;
    let hole = layer.peephole(node, 1, &around, &here(&cell, &around, &around.u))?;
    let text = layer.activated(0, &format!("{x} + {h}{hole}"));
    layer.step(node, &output, &around, &text);
    let around = layer.around(node);
    let new = format!("{} * {}({})", here(&output, &around, &around.u), layer.activations[2], here(&cell, &around, &around.u));
    let old = layer.previous(node, &hidden, &layer.before, &around.u, &around);
    let new = layer.kept(node, new, &old, &around);
    layer.step(node, &hidden, &around, &new);
    Ok((hidden, Some(cell)))
}

fn gru(node: &mut OnnxNode, layer: &Layer) -> Result<(String, Option<String>), UnsupportedNode> {
    let after = node.int("linear_before_reset", 0) != 0;
    let [update, reset, scaled, proposed, hidden] = names(node, ["z", "r", "rh", "g", "h"]);
    for (gate, name) in [(0, &update), (1, &reset)] {
        let around = layer.around(node);
        let x = layer.input(node, gate, &around, true)?;
        let h = layer.state(node, gate, &around, |node, k| layer.previous(node, &hidden, &layer.before, k, &around))?;
        let text = layer.activated(0, &format!("{x} + {h}"));
        layer.step(node, name, &around, &text);
    }
    if !after {
        let around = layer.around(node);
        let old = layer.previous(node, &hidden, &layer.before, &around.u, &around);
        let text = format!("{} * {old}", here(&reset, &around, &around.u));
        layer.step(node, &scaled, &around, &text);
    }
    let around = layer.around(node);
    let x = layer.input(node, 2, &around, !after)?;
    let text = if after {
        let h = layer.state(node, 2, &around, |node, k| layer.previous(node, &hidden, &layer.before, k, &around))?;
        let bias = layer.bias_of(node, 5, &around)?;
        format!("{x} + {} * ({h} + {bias})", here(&reset, &around, &around.u))
    } else {
        let h = layer.state(node, 2, &around, |_, k| here(&scaled, &around, k))?;
        format!("{x} + {h}")
    };
    let text = layer.activated(1, &text);
    layer.step(node, &proposed, &around, &text);
    let around = layer.around(node);
    let old = layer.previous(node, &hidden, &layer.before, &around.u, &around);
    let z = here(&update, &around, &around.u);
    let new = format!("(1 - {z}) * {} + {z} * {old}", here(&proposed, &around, &around.u));
    let new = layer.kept(node, new, &old, &around);
    layer.step(node, &hidden, &around, &new);
    Ok((hidden, None))
}

fn rnn(node: &mut OnnxNode, layer: &Layer) -> Result<(String, Option<String>), UnsupportedNode> {
    let [hidden] = names(node, ["h"]);
    let around = layer.around(node);
    let x = layer.input(node, 0, &around, true)?;
    let h = layer.state(node, 0, &around, |node, k| layer.previous(node, &hidden, &layer.before, k, &around))?;
    let text = layer.activated(0, &format!("{x} + {h}"));
    let old = layer.previous(node, &hidden, &layer.before, &around.u, &around);
    let text = layer.kept(node, text, &old, &around);
    layer.step(node, &hidden, &around, &text);
    Ok((hidden, None))
}
