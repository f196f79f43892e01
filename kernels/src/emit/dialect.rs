//! What the printers of targets do differently.

use crate::emit::printer::Printer;
use crate::error::KernelError;
use crate::loopnest::{BankedRows, Element};
use sdfg::Combine;

/// A target's language, with whatever state its printer has of its own.
pub trait TargetDialect: Sized {
    /// How rows of tiles lie in local memory; `None` where they follow each other without gaps.
    const BANKS: Option<BankedRows>;
    /// Whether a thread takes strips of the innermost loop that begin anywhere, in place of the whole loop.
    const STRIPS: bool;
    /// Whether sums of many terms are kept in blocks, and extrema flag NaN, by shared code.
    const LONG_SUMS: bool;
    /// Whether compilers make vectors of the innermost loop, which must be free of branches for that.
    const BLENDS: bool;

    /// Text of where an element is: a variable, or a place in memory.
    ///
    /// # Errors
    /// Containers without an address in the language.
    fn place(printer: &mut Printer<'_, Self>, element: &Element) -> Result<String, KernelError>;

    /// Text of the value at a place.
    ///
    /// # Errors
    /// As [`TargetDialect::place`].
    fn load(printer: &Printer<'_, Self>, element: &Element, place: String) -> Result<String, KernelError>;

    /// Text of the value of an element that may be outside its container, where it is read without asking; `None` where it must be asked.
    ///
    /// # Errors
    /// As [`TargetDialect::place`].
    fn padded(_printer: &mut Printer<'_, Self>, _element: &Element) -> Result<Option<String>, KernelError> {
        Ok(None)
    }

    /// A statement that stores a value at a place.
    ///
    /// # Errors
    /// As [`TargetDialect::place`].
    fn store(printer: &Printer<'_, Self>, element: &Element, place: &str, value: &str) -> Result<String, KernelError>;

    /// Text of what has been reduced so far into an element.
    ///
    /// # Errors
    /// As [`TargetDialect::place`].
    fn held_value(printer: &mut Printer<'_, Self>, element: &Element) -> Result<String, KernelError>;

    /// `left ⊕ right` of a combine over single values.
    fn combined(combine: Combine, left: &str, right: &str) -> String;

    /// The larger (`>`) or smaller (`<`) of two values, NaN where either is; `number` says that neither can be.
    fn extreme(sign: char, a: &str, b: &str, number: bool) -> String;

    /// The first arguments of functions that draw mask `number`.
    fn mask(number: usize) -> String;
}
