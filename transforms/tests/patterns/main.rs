//! What passes make of small programs, as text.

mod builder;
mod composition;
mod copies;
mod cross_layer;
mod fusion;
mod group;
mod stitch;
