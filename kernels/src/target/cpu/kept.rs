//! Operands that are packed once for many runs: of weights, which hold the same in every step.
//!
//! A kernel whose packed operands are all constant keeps what it has packed, apart for each place that it is given them at: equal layers
//! share one kernel. It packs again when the context says that parameters have changed ([`crate::RunContext::parameters`]), or says
//! nothing.

use crate::buffer::AlignedBuffer;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// What was packed of operands at certain addresses.
#[derive(Debug)]
pub struct KeptOperands {
    buffer: AlignedBuffer,
    /// The parameters that it was packed of; 0 while it is not whole.
    packed_of: AtomicU64,
}

impl KeptOperands {
    /// Where it is: workers write parts that their shares give them.
    pub fn address(&self) -> *mut u8 {
        self.buffer.as_ptr().cast_mut()
    }

    /// Whether it holds what these parameters give.
    pub fn is_of(&self, parameters: u64) -> bool {
        parameters != 0 && self.packed_of.load(Ordering::Acquire) == parameters
    }

    /// Says that it is whole: all workers have met since they packed it.
    pub fn is_whole(&self, parameters: u64) {
        self.packed_of.store(parameters, Ordering::Release);
    }
}

/// What a kernel keeps.
#[derive(Debug, Default)]
pub struct KeptPacking {
    held: Mutex<BTreeMap<Vec<usize>, Option<Arc<KeptOperands>>>>,
}

impl KeptPacking {
    /// The memory for operands at these addresses; `None`, now and later, where there was none to be had. What was packed of other
    /// parameters is let go.
    pub fn at(&self, operands: Vec<usize>, bytes: usize, parameters: u64) -> Option<Arc<KeptOperands>> {
        let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = held.get(&operands) {
            return known.clone();
        }
        held.retain(|_, kept| kept.as_ref().is_none_or(|kept| [0, parameters].contains(&kept.packed_of.load(Ordering::Acquire))));
        let kept = AlignedBuffer::new(bytes).ok().map(|buffer| Arc::new(KeptOperands { buffer, packed_of: AtomicU64::new(0) }));
        held.insert(operands, kept.clone());
        kept
    }
}
