//! What a program means, moves, and needs: interpreter, movement, lifetimes, tolerances.

mod build;
mod interpret;
mod lifetime;
mod movement;
mod rounding;
mod rows;
mod tolerance;
mod windows;
