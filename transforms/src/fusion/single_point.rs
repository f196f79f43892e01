//! Kernels with a single point: one core or one block of threads does all of their work.

use crate::refusal::Reason;
use sdfg::{Scope, Sdfg};

/// Bytes that one core moves in about the time of a few launches.
const LIMIT: u64 = 128 << 10;

/// Points of a scope's outer map at the program's sizes; `None` if its size is unknown.
pub(in crate::fusion) fn points(scope: &Scope, program: &Sdfg) -> Option<i64> {
    scope.map.indices.iter().try_fold(1i64, |points, index| points.checked_mul(index.count().eval(&program.sizes).ok()?))
}

/// Refuses a scope with one point that moves more bytes than `LIMIT`, if one of the units that it is made of has several points: one
/// core would do the work that several cores shared.
///
/// # Errors
/// [`Reason::SinglePoint`].
pub(in crate::fusion) fn shared_among_cores(scope: &Scope, program: &Sdfg, bytes: u64, parts_have_several: bool) -> Result<(), Reason> {
    match points(scope, program) {
        Some(1) if parts_have_several && bytes > LIMIT => Err(Reason::SinglePoint { bytes, limit: LIMIT }),
        _ => Ok(()),
    }
}
