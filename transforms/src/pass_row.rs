//! A row of a folder's table of passes.

use crate::differentiate;
use crate::pass::Pass;
use sdfg::Sdfg;

/// The kind of program that a pass takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Takes {
    /// Operators without gradients.
    Forward,
    /// Operators, differentiated or not.
    Operators,
    /// Maps, which expansion made of all operators but contractions.
    Maps,
}

/// A pass as the table of its folder has it.
pub struct PassRow {
    /// Its name, which [`Pass::name`] answers too.
    pub name: &'static str,
    pub takes: Takes,
    /// What the pass does, in a few words.
    pub about: &'static str,
    /// The pass for a program, differentiated by these seeds if it differentiates.
    pub make: fn(&Sdfg, differentiate::Options) -> Box<dyn Pass>,
}

impl PassRow {
    pub(crate) const fn new(
        name: &'static str,
        takes: Takes,
        about: &'static str,
        make: fn(&Sdfg, differentiate::Options) -> Box<dyn Pass>,
    ) -> Self {
        PassRow { name, takes, about, make }
    }
}
