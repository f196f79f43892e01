//! Parameters that a step replaces: where the value of the next step lies, and how it takes the place of this one's.
//!
//! In place is safe where the kernel that writes the new value reads the old one at the same places, or not at all any more, and every
//! other kernel that reads the old one has run before. Otherwise the new value has memory of its own, which is exchanged with the
//! parameter's when the step has ended: that copies nothing. Where the layouts differ, or a recording holds the addresses, it is copied.

use super::launch::{Slot, SlotPlace};
use crate::pipeline::PipelineError;
use serde::Serialize;

/// How the value of the next step takes the place of this step's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Replacement {
    /// The kernel writes it where the parameter lies.
    InPlace,
    /// It lies beside the parameter; both exchange their memory after the step.
    Exchanged,
    /// It lies beside the parameter, and is copied after the step.
    Copied,
}

impl std::fmt::Display for Replacement {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Replacement::InPlace => "in place",
            Replacement::Exchanged => "beside it, exchanged after the step",
            Replacement::Copied => "beside it, copied after the step",
        })
    }
}

/// How the parameters are replaced, as a sentence; `None` where there are none.
pub fn summary(replaced: &[Replaced]) -> Option<String> {
    let all = [Replacement::InPlace, Replacement::Exchanged, Replacement::Copied];
    let of = |how: Replacement| -> Vec<&str> { replaced.iter().filter(|r| r.how == how).map(|r| r.parameter.as_str()).collect() };
    let parts: Vec<String> =
        all.into_iter().filter(|how| !of(*how).is_empty()).map(|how| format!("{how}: {}", of(how).join(", "))).collect();
    (!parts.is_empty()).then(|| format!("parameters are replaced {}", parts.join("; ")))
}

/// A parameter that the step replaces.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replaced {
    pub parameter: String,
    /// The slots of its value in this step and in the next one.
    pub slots: [usize; 2],
    pub how: Replacement,
}

/// What the parameters of a program were, to begin a step with them again.
#[derive(Default)]
pub struct Values(Vec<(usize, Vec<u8>)>);

impl Values {
    /// The values that the step replaces.
    ///
    /// # Errors
    /// A device that failed.
    pub(in crate::pipeline) fn of(replaced: &[Replaced], slots: &[Slot]) -> Result<Self, PipelineError> {
        let mut values = Vec::new();
        for Replaced { slots: [now, _], .. } in replaced {
            if let Some(Slot { bytes, place: SlotPlace::Held(memory), .. }) = slots.get(*now) {
                values.push((*now, memory.read(0, *bytes)?));
            }
        }
        Ok(Values(values))
    }

    /// # Errors
    /// A device that failed.
    pub(in crate::pipeline) fn put_back(&self, slots: &mut [Slot]) -> Result<(), PipelineError> {
        for (slot, bytes) in &self.0 {
            if let Some(SlotPlace::Held(memory)) = slots.get_mut(*slot).map(|slot| &mut slot.place) {
                memory.write(0, bytes)?;
            }
        }
        Ok(())
    }
}

/// Exchanges the memory of all parameters that are replaced so.
pub(in crate::pipeline) fn exchange(replaced: &[Replaced], slots: &mut [Slot]) {
    for Replaced { slots: [now, next], .. } in replaced.iter().filter(|r| r.how == Replacement::Exchanged) {
        if let Ok([now, next]) = slots.get_disjoint_mut([*now, *next]) {
            std::mem::swap(&mut now.place, &mut next.place);
        }
    }
}
