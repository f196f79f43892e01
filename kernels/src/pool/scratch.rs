//! Working memory of kernels: a part for each worker, and one that they share.

use crate::buffer::AlignedBuffer;
use crate::error::KernelError;
use std::sync::MutexGuard;

/// Where a worker's part begins: no line of memory and no small page is another's, too.
const PAGE: usize = 4096;

/// Bytes of working memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Working {
    /// Of each worker.
    pub own: usize,
    /// Of all together.
    pub shared: usize,
}

impl Working {
    /// The larger of both, part by part.
    pub fn max(self, other: Working) -> Self {
        Working { own: self.own.max(other.own), shared: self.shared.max(other.shared) }
    }

    /// Of this number of workers, each of whose parts begins on a page.
    pub fn bytes(self, workers: usize) -> usize {
        self.own.next_multiple_of(PAGE) * workers + self.shared
    }
}

/// What the kernels of a pool have needed so far: parts of workers, one after another, then the shared one. They only grow: a line of
/// memory that a worker had in one kernel and another worker in the next would have to be fetched from that one's cache.
#[derive(Default)]
pub struct PoolMemory {
    buffer: Option<AlignedBuffer>,
    held: Working,
    workers: usize,
}

impl PoolMemory {
    /// Grows to hold a further demand besides the former ones, for this number of workers.
    ///
    /// # Errors
    /// No memory.
    pub(crate) fn grow(&mut self, wanted: Working, workers: usize) -> Result<(), KernelError> {
        let held = self.held.max(Working { own: wanted.own.next_multiple_of(PAGE), ..wanted });
        if self.buffer.is_none() || held != self.held {
            *self = PoolMemory::default();
            *self = PoolMemory { buffer: Some(AlignedBuffer::new(held.bytes(workers))?), held, workers };
        }
        // A kernel that reads what it has not written shows in tests.
        if cfg!(debug_assertions) {
            let bytes = self.buffer.as_mut().map_or(&mut [][..], AlignedBuffer::as_mut_slice);
            let (own, shared) = bytes.split_at_mut(held.own * workers);
            own.chunks_mut(held.own.max(1)).for_each(|part| part[..wanted.own].fill(0xff));
            shared[..wanted.shared].fill(0xff);
        }
        Ok(())
    }
}

/// Working memory of the kernel that runs.
pub struct Scratch<'a>(pub(crate) MutexGuard<'a, PoolMemory>);

impl Scratch<'_> {
    /// The first worker's part; the others' follow, each `stride` bytes after the one before.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.0.buffer.as_mut().map_or(std::ptr::null_mut(), AlignedBuffer::as_mut_ptr)
    }

    /// Bytes from one worker's part to the next one's.
    pub fn stride(&self) -> usize {
        self.0.held.own
    }

    /// Bytes from the first worker's part to what all share.
    pub fn shared_at(&self) -> usize {
        self.0.held.own * self.0.workers
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::Pool;

    #[test]
    fn parts_stay_where_they_are_for_smaller_kernels() {
        let pool = Pool::new(2).expect("threads");
        let ask = |own, shared| {
            let mut scratch = pool.scratch(Working { own, shared }).expect("memory");
            (scratch.as_mut_ptr() as usize, scratch.stride(), scratch.shared_at())
        };
        let (start, stride, shared) = ask(5000, 100);
        assert_eq!((stride, shared), (2 * PAGE, 4 * PAGE));
        assert_eq!(ask(10, 100), (start, stride, shared));
        assert_eq!(ask(10, 0), (start, stride, shared));
        let (_, stride, shared) = ask(3 * PAGE, 0);
        assert_eq!((stride, shared), (3 * PAGE, 6 * PAGE));
    }
}
