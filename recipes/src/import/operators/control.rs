//! Graphs within the graph: branches that are known are taken, and loops whose number of rounds is known are written out.

use super::layout::{joined, part};
use crate::import::attribute::axis;
use crate::import::constant::ConstantTensor;
use crate::import::element::ElementType;
use crate::import::error::UnsupportedNode;
use crate::import::node::{OnnxNode, OperatorWriter};
use crate::import::proto::GraphProto;
use crate::import::step::Out;
use crate::import::value::GraphValue;
use crate::import::view::DigitView;

type Results = Result<Vec<GraphValue>, UnsupportedNode>;

pub const ALL: &[(&str, OperatorWriter)] = &[("If", branch), ("Loop", rounds), ("Scan", scan)];

/// Rounds that are written out.
const ROUNDS: usize = 64;

fn branch(node: &mut OnnxNode) -> Results {
    let graph = |node: &OnnxNode, name: &str| node.graph(name).cloned().ok_or_else(|| UnsupportedNode::Form(format!("it has no `{name}`")));
    let (yes, no) = (graph(node, "then_branch")?, graph(node, "else_branch")?);
    if let Some(condition) = node.constant(0) {
        let taken = if condition.only().unwrap_or(0.0) != 0.0 { yes } else { no };
        return node.body(&taken, vec![]);
    }
    // Where the condition is computed, both branches are, and each element is chosen.
    let condition = node.view(0)?;
    let condition = condition.squeezed(&(0..condition.axes.len()).collect::<Vec<_>>());
    let (yes, no) = (node.body(&yes, vec![])?, node.body(&no, vec![])?);
    let mut results = vec![];
    for (n, (a, b)) in yes.into_iter().zip(no).enumerate() {
        let (a, b) = (node.operand(a)?, node.operand(b)?);
        if a.shape() != b.shape() {
            return UnsupportedNode::form("its condition depends on inputs, and its branches make results of different shapes");
        }
        let element = a.element;
        let chosen =
            node.pointwise(Out::Result(n), &[condition.clone(), a, b], element, |t| format!("where({}, {}, {})", t[0], t[1], t[2]))?;
        results.push(GraphValue::View(chosen));
    }
    Ok(results)
}

fn rounds(node: &mut OnnxNode) -> Results {
    let Some(body) = node.graph("body").cloned() else { return UnsupportedNode::form("it has no `body`") };
    let most = match (node.given(0), node.constant(0)) {
        (true, Some(most)) => most.only().map_or(i64::MAX, |n| n as i64),
        (true, None) => return Err(node.unknown(0)),
        _ => i64::MAX,
    };
    let mut goes_on = match (node.given(1), node.constant(1)) {
        (true, Some(condition)) => condition.only() != Some(0.0),
        (true, None) => return Err(node.unknown(1)),
        _ => true,
    };
    let mut state: Vec<GraphValue> = node.inputs.iter().skip(2).cloned().collect();
    let carried = state.len();
    let mut made: Vec<Vec<DigitView>> = vec![];
    let mut round = 0;
    while goes_on && round < most {
        if round as usize >= ROUNDS {
            return UnsupportedNode::form(format!("it has more than {ROUNDS} rounds, which would be written out"));
        }
        let count = node.import.known("round", ConstantTensor::whole(ElementType::I64, vec![], vec![round]));
        let condition = node.import.known("goes_on", ConstantTensor::whole(ElementType::Bool, vec![], vec![1]));
        let results = node.body(&body, [count, condition].into_iter().chain(state).collect())?;
        let mut results = results.into_iter();
        goes_on = match results.next() {
            Some(GraphValue::Known(known)) => known.constant.only() != Some(0.0),
            _ => return UnsupportedNode::form("whether it goes on depends on inputs"),
        };
        state = results.by_ref().take(carried).collect();
        for (n, value) in results.enumerate() {
            if made.len() <= n {
                made.push(vec![]);
            }
            let view = node.operand(value)?;
            made[n].push(view.unsqueezed(&[0])?);
        }
        round += 1;
    }
    let mut all = state;
    for (n, views) in made.into_iter().enumerate() {
        all.push(stacked(node, carried + n, &views, 0)?);
    }
    if all.len() < node.proto.output.len() {
        return Err(UnsupportedNode::Empty);
    }
    Ok(all)
}

fn scan(node: &mut OnnxNode) -> Results {
    let Some(body) = node.graph("body").cloned() else { return UnsupportedNode::form("it has no `body`") };
    let inputs = node.int("num_scan_inputs", 0).max(0) as usize;
    let Some(carried) = node.inputs.len().checked_sub(inputs).filter(|_| inputs > 0) else {
        return UnsupportedNode::form("it has fewer inputs than it walks along");
    };
    let list = |name: &str| node.ints(name).unwrap_or_default();
    let (axes, directions) = (list("scan_input_axes"), list("scan_input_directions"));
    let (out_axes, out_directions) = (list("scan_output_axes"), list("scan_output_directions"));
    let mut along = vec![];
    for n in 0..inputs {
        let x = node.view(carried + n)?;
        let axis = axis(axes.get(n).copied().unwrap_or(0), x.axes.len())?;
        along.push((x, axis, directions.get(n).copied().unwrap_or(0) != 0));
    }
    let count = along[0].0.axes[along[0].1].size;
    if count > ROUNDS {
        return UnsupportedNode::form(format!("it has {count} rounds, which would be written out, and {ROUNDS} are the most"));
    }
    let mut state: Vec<GraphValue> = node.inputs[..carried].to_vec();
    let mut made: Vec<Vec<DigitView>> = vec![];
    for round in 0..count {
        let mut given = state;
        for (x, axis, reversed) in &along {
            let place = if *reversed { count - 1 - round } else { round } as i64;
            let parts: Vec<(i64, i64, usize)> =
                x.axes.iter().enumerate().map(|(a, own)| if a == *axis { (place, 1, 1) } else { (0, 1, own.size) }).collect();
            given.push(GraphValue::View(part(node, x.clone(), &parts)?.squeezed(&[*axis])));
        }
        let mut results = node.body(&body, given)?.into_iter();
        state = results.by_ref().take(carried).collect();
        for (n, value) in results.enumerate() {
            if made.len() <= n {
                made.push(vec![]);
            }
            let view = node.operand(value)?;
            let axis = axis(out_axes.get(n).copied().unwrap_or(0), view.axes.len() + 1)?;
            made[n].push(view.unsqueezed(&[axis])?);
        }
    }
    let mut all = state;
    for (n, mut views) in made.into_iter().enumerate() {
        if out_directions.get(n).copied().unwrap_or(0) != 0 {
            views.reverse();
        }
        let rank = views.first().map_or(1, |view| view.axes.len());
        all.push(stacked(node, carried + n, &views, axis(out_axes.get(n).copied().unwrap_or(0), rank)?)?);
    }
    Ok(all)
}

fn stacked(node: &mut OnnxNode, output: usize, views: &[DigitView], along: usize) -> Result<GraphValue, UnsupportedNode> {
    match views {
        [only] => Ok(GraphValue::View(only.clone())),
        several => Ok(GraphValue::View(joined(node, several, along, Out::Result(output))?)),
    }
}

impl OnnxNode<'_, '_> {
    /// The results of a graph within the node.
    fn body(&mut self, graph: &GraphProto, inputs: Vec<GraphValue>) -> Results {
        let values = self.import.body(graph, inputs, self.scope, self.depth)?;
        if values.iter().any(|value| matches!(value, GraphValue::Refused)) { Err(UnsupportedNode::Earlier) } else { Ok(values) }
    }

    /// A value as an operand.
    pub fn operand(&mut self, value: GraphValue) -> Result<DigitView, UnsupportedNode> {
        match value {
            GraphValue::View(view) => Ok(view),
            GraphValue::Known(known) => self.import.parameter(&known),
            GraphValue::Absent => UnsupportedNode::form("a value that is left out is used"),
            GraphValue::Refused => Err(UnsupportedNode::Earlier),
        }
    }
}
