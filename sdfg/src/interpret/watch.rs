//! Values that are larger than a narrower type holds, noticed while a program is interpreted in f64.

use crate::data::Origin;

/// A value beyond a limit, and the operation that computed it. Intermediate values count, also those that no result depends on.
#[derive(Clone, Debug, PartialEq)]
pub struct Overflow {
    pub operation: String,
    pub origin: Option<Origin>,
    pub value: f64,
}

/// The first value beyond a limit.
#[derive(Debug)]
pub(super) struct Watch {
    /// The largest magnitude that is let pass.
    pub limit: f64,
    pub found: Option<Overflow>,
}

impl Default for Watch {
    fn default() -> Self {
        Watch { limit: f64::INFINITY, found: None }
    }
}

impl Watch {
    pub fn beyond(limit: f64) -> Self {
        Watch { limit, found: None }
    }

    /// Whether a value is finite and beyond the limit.
    pub fn sees(&self, value: f64) -> bool {
        value.abs() > self.limit && value.is_finite()
    }

    /// Keeps the first value that is found.
    pub fn keep(&mut self, value: f64, operation: &str, origin: &Option<Origin>) {
        if self.found.is_none() {
            self.found = Some(Overflow { operation: operation.into(), origin: origin.clone(), value });
        }
    }
}
