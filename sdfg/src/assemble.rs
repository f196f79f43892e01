//! Puts a program together from parts that already have handles: what both exchange forms end in.
//!
//! Handles survive even where their numbering has holes: each hole is filled while building and emptied afterwards.

use crate::graph::{Sdfg, Transition};
use crate::node::{Edge, EdgeId, Node, NodeId, StateId, Vertex};
use crate::state::State;

/// Largest handle that a program read from outside may use: holes below it cost memory while building.
const LARGEST_HANDLE: u32 = 100_000;

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AssembleError {
    #[error("the handle {0} is given twice; number each state, node and edge once")]
    Duplicate(String),
    #[error("the handle {0} is too large; the largest is {LARGEST_HANDLE}")]
    TooLarge(String),
    #[error("{user} ends at {missing}, which is not there; declare it or correct the handle")]
    Missing { user: String, missing: String },
}

/// Handles must be distinct and small.
fn check(handles: &mut [u32], show: impl Fn(u32) -> String) -> Result<u32, AssembleError> {
    handles.sort_unstable();
    if let Some(pair) = handles.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(AssembleError::Duplicate(show(pair[0])));
    }
    match handles.last() {
        Some(&last) if last > LARGEST_HANDLE => Err(AssembleError::TooLarge(show(last))),
        Some(&last) => Ok(last + 1),
        None => Ok(0),
    }
}

/// A state with the given nodes and edges: (handle, source, target, edge).
pub(crate) fn state(
    name: String,
    mut nodes: Vec<(NodeId, Vertex)>,
    mut edges: Vec<(EdgeId, NodeId, NodeId, Edge)>,
) -> Result<State, AssembleError> {
    let mut state = State::new(name);
    let mut handles: Vec<u32> = nodes.iter().map(|(n, _)| n.0).collect();
    let end = check(&mut handles, |n| NodeId(n).to_string())?;
    nodes.sort_by_key(|(n, _)| *n);
    let mut given = nodes.into_iter().peekable();
    let mut holes = Vec::new();
    for number in 0..end {
        match given.next_if(|(n, _)| n.0 == number) {
            Some((_, Vertex { node, scope })) => _ = state.add_node(node, scope),
            None => holes.push(state.add_node(Node::Access(String::new()), None)),
        }
    }
    let mut numbers: Vec<u32> = edges.iter().map(|(e, ..)| e.0).collect();
    let end = check(&mut numbers, |e| EdgeId(e).to_string())?;
    for (edge, from, to, _) in &edges {
        if let Some(missing) = [from, to].into_iter().find(|n| handles.binary_search(&n.0).is_err()) {
            return Err(AssembleError::Missing { user: edge.to_string(), missing: missing.to_string() });
        }
    }
    edges.sort_by_key(|(e, ..)| *e);
    // Every hole lies below some edge, and that edge ends at a node, which can carry the filling.
    let anchor = edges.first().map_or(NodeId(0), |(_, from, ..)| *from);
    let mut given = edges.into_iter().peekable();
    let mut empty: Vec<EdgeId> = Vec::new();
    for number in 0..end {
        match given.next_if(|(e, ..)| e.0 == number) {
            Some((_, from, to, edge)) => _ = state.add_edge(from, to, edge),
            None => {
                let memlet = crate::memlet::Memlet::new("", vec![]);
                empty.push(state.add_edge(anchor, anchor, Edge { from: String::new(), to: String::new(), memlet }));
            }
        }
    }
    for edge in empty {
        state.remove_edge(edge);
    }
    for hole in holes {
        state.remove_node(hole);
    }
    Ok(state)
}

/// Gives a program without states its states and transitions.
pub(crate) fn states(
    program: &mut Sdfg,
    mut states: Vec<(StateId, State)>,
    transitions: Vec<(StateId, StateId, Transition)>,
) -> Result<(), AssembleError> {
    let mut handles: Vec<u32> = states.iter().map(|(s, _)| s.0).collect();
    let end = check(&mut handles, |s| StateId(s).to_string())?;
    states.sort_by_key(|(s, _)| *s);
    let mut given = states.into_iter().peekable();
    let mut holes = Vec::new();
    for number in 0..end {
        match given.next_if(|(s, _)| s.0 == number) {
            Some((_, state)) => _ = program.states.add_node(state),
            None => holes.push(program.states.add_node(State::default())),
        }
    }
    for (from, to, transition) in transitions {
        if let Some(missing) = [from, to].into_iter().find(|s| handles.binary_search(&s.0).is_err()) {
            return Err(AssembleError::Missing { user: format!("the transition {from} -> {to}"), missing: missing.to_string() });
        }
        program.add_transition(from, to, transition);
    }
    for hole in holes {
        program.states.remove_node(hole);
    }
    Ok(())
}
