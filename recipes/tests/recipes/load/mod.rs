//! Recipes as programs: what steps become, what is shipped, and what is refused.

mod errors;
mod listing;
pub mod shipped;
mod steps;
