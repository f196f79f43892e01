//! What operators see of the step that calls them.

use super::header::Header;
use super::parser::ParsedExpr;
use super::problem::Problems;
use super::value::StepValue;

/// The resolution of a step, as far as operators take part in it.
pub trait StepContext {
    /// What the recipe declares, and what the steps above assign.
    fn header(&self) -> &Header;

    fn problems(&mut self) -> &mut Problems;

    /// The value of an expression where the indices `kept` are bound. `None` after an error, which has been reported.
    fn value(&mut self, node: &ParsedExpr, kept: &[String]) -> Option<StepValue>;

    /// Indices that occur in an expression and that no `over` inside it binds, in order of appearance.
    fn occurring(&self, node: &ParsedExpr) -> Vec<String>;
}
