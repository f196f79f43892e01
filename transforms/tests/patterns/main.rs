//! What fusion and composition make of small programs, as text.

mod builder;
mod composition;
mod fusion;
mod group;
