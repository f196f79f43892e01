//! The program and its vocabulary: a stateful dataflow multigraph in which every byte that moves is a memlet.
//!
//! # Meaning
//! A program runs its states from the first one, following transitions whose condition holds. A state runs its nodes in
//! any order that respects its edges. A map runs its inside once for each point of its iteration space; a memlet on an
//! edge into a node is read before the node runs, one on an edge out is written after. A write with a combine
//! (write-conflict resolution) starts from the combine's identity: for a heap container once before its first such
//! write in a run, for a container local to a scope once in each iteration of that scope. A library node means its
//! expansion. Each element of a heap container is written by one top-level unit
//! of a program and read only after it; several units may write disjoint parts of a container.
//!
//! A program has no layout: subscripts are logical. A [`config::Configuration`] gives layouts and knobs.
//!
//! This crate does no I/O and knows no device and no clock.

#![cfg_attr(
    not(test),
    deny(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::unreachable, clippy::todo, clippy::unimplemented)
)]

pub mod affine;
mod assemble;
pub mod bounds;
pub mod config;
pub mod data;
pub mod dot;
pub mod evaluate;
pub mod functions;
pub mod graph;
pub mod interpret;
pub mod json;
pub mod layout;
pub mod library;
pub mod lifetime;
pub mod memlet;
pub mod movement;
pub mod node;
pub mod philox;
pub mod propagate;
pub mod random;
pub mod recurrence;
pub mod rename;
pub mod rounding;
pub mod scalar;
pub mod scope;
pub mod state;
pub mod symbol;
pub mod syntax;
pub mod text;
pub mod tolerance;
pub mod validate;

pub use bounds::{Bounds, ValueInterval};
pub use data::{Container, Dtype, Lifetime, Origin, Role, Storage, View};
pub use graph::{BuildError, Condition, Relation, Sdfg, Transition};
pub use layout::Layout;
pub use library::{Class, Op};
pub use memlet::{Combine, Fill, Memlet, Range};
pub use node::{
    Computation, Direction, Edge, EdgeId, Index, IndexKind, Library, Loop, Map, Nested, Node, NodeId, Operand, Operation, Port, Slice,
    StateId, Tasklet, Vertex,
};
pub use scalar::{Binary, Scalar, Unary};
pub use scope::{Item, Scope, Unit};
pub use state::State;
pub use symbol::{Bindings, Expr, SymbolError};
