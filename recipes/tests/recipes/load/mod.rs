//! Recipes as programs: what steps become, what is shipped, and what is refused.

mod errors;
mod listing;
mod long;
pub mod shipped;
mod steps;
