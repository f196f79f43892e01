//! Recipes as programs: the operations of steps, the shipped recipes, and refused recipes.

mod blocks;
mod errors;
mod layers;
mod listing;
mod long;
pub mod shipped;
mod steps;
