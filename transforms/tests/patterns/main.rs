//! What fusion and composition make of small programs, as text.

mod builder;
mod composition;
mod cross_layer;
mod fusion;
mod group;
