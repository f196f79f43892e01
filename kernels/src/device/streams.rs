//! Launches beside one another, on devices that have several streams.

use crate::error::KernelError;

/// The streams of a device, while it records: launches on one of them run in order, launches on different ones beside one another,
/// as far as marks allow. A recording begins on stream 0, and whatever else is used waits for a mark there first and is waited
/// for there in the end.
pub trait Streams {
    /// How many there are.
    fn count(&self) -> usize;

    /// Later launches go to this stream, below [`Streams::count`].
    fn enter(&self, stream: usize);

    /// Remembers everything on the current stream under a number that this recording has not used yet.
    ///
    /// # Errors
    /// A device that failed.
    fn mark(&self, number: usize) -> Result<(), KernelError>;

    /// What follows on the current stream waits for what was remembered under the number.
    ///
    /// # Errors
    /// A number that was not used; a device that failed.
    fn wait(&self, number: usize) -> Result<(), KernelError>;
}
