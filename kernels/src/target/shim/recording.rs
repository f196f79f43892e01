//! Recordings of the shim: launches on streams, run again in any order that the streams and their marks allow.

use crate::device::{Recording, Streams};
use crate::error::KernelError;
use crate::executable::Executable;
use crate::pool::Pool;
use crate::run_context::{Completion, RunContext};
use sdfg::interpret::Run;
use sdfg::philox;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// As many as a GPU is given.
const STREAMS: usize = crate::target::cuda::STREAMS;

/// One thing on a stream.
enum Entry {
    Launch { executable: Arc<dyn Executable>, arguments: Vec<usize> },
    Mark(usize),
    Wait(usize),
}

/// The launches on each stream so far.
#[derive(Default)]
struct Tape {
    streams: [Vec<Entry>; STREAMS],
    /// The current stream.
    at: usize,
    marks: BTreeSet<usize>,
}

/// Takes launches down instead of running them, while it is asked to.
#[derive(Default)]
pub struct Recorder(Mutex<Option<Tape>>);

fn fault(what: String) -> KernelError {
    KernelError::Shim { kernel: "a recording".into(), what }
}

impl Recorder {
    fn tape(&self) -> MutexGuard<'_, Option<Tape>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, entry: Entry) -> Result<(), KernelError> {
        let mut tape = self.tape();
        let tape = tape.as_mut().ok_or_else(|| fault("streams are there while something is recorded".into()))?;
        tape.streams[tape.at].push(entry);
        Ok(())
    }

    /// Takes down what `work` launches.
    ///
    /// # Errors
    /// What `work` returns; streams that a GPU would not capture, because they do not begin and end on the first one.
    pub fn record(&self, work: impl FnOnce() -> Result<(), KernelError>) -> Result<Replay, KernelError> {
        *self.tape() = Some(Tape::default());
        let outcome = work();
        let tape = self.tape().take().unwrap_or_default();
        outcome?;
        let joined = |number: usize| tape.streams[0].iter().any(|e| matches!(e, Entry::Wait(n) if *n == number));
        for (n, stream) in tape.streams.iter().enumerate().skip(1) {
            let fine = match (stream.first(), stream.last()) {
                (None, _) => true,
                (Some(Entry::Wait(_)), Some(Entry::Mark(number))) => joined(*number),
                _ => false,
            };
            if !fine {
                return Err(fault(format!("stream {n} does not begin and end on the first one")));
            }
        }
        Ok(Replay { streams: tape.streams, pool: Pool::new(1)?, runs: AtomicU64::new(0) })
    }
}

impl Streams for Recorder {
    fn count(&self) -> usize {
        STREAMS
    }

    fn enter(&self, stream: usize) {
        if let Some(tape) = self.tape().as_mut() {
            tape.at = stream.min(STREAMS - 1);
        }
    }

    fn mark(&self, number: usize) -> Result<(), KernelError> {
        self.put(Entry::Mark(number))?;
        if self.tape().as_mut().is_some_and(|tape| !tape.marks.insert(number)) {
            return Err(fault(format!("{number} is marked twice")));
        }
        Ok(())
    }

    fn wait(&self, number: usize) -> Result<(), KernelError> {
        if self.tape().as_ref().is_some_and(|tape| !tape.marks.contains(&number)) {
            return Err(fault(format!("nothing was marked {number}")));
        }
        self.put(Entry::Wait(number))
    }
}

/// A kernel that is taken down where a recorder is at work, and runs elsewhere.
pub struct Recordable {
    pub executable: Arc<dyn Executable>,
    pub recorder: Arc<Recorder>,
}

impl Executable for Recordable {
    unsafe fn run(&self, arguments: &[*mut u8], context: &RunContext) -> Result<Completion, KernelError> {
        if self.recorder.tape().is_some() {
            let arguments = arguments.iter().map(|a| *a as usize).collect();
            self.recorder.put(Entry::Launch { executable: self.executable.clone(), arguments })?;
            return Ok(Completion::Done);
        }
        // SAFETY: as promised by the caller.
        unsafe { self.executable.run(arguments, context) }
    }

    fn source(&self) -> Option<&str> {
        self.executable.source()
    }
}

/// Recorded launches. Each run takes another order among those that are allowed.
pub struct Replay {
    streams: [Vec<Entry>; STREAMS],
    pool: Pool,
    runs: AtomicU64,
}

impl Recording for Replay {
    fn run(&self, run: &Run) -> Result<(), KernelError> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed);
        let context = RunContext { seed: run.seed, step: run.step, dropout: run.dropout, pool: &self.pool, deadline: None, parameters: 0 };
        let (mut next, mut marked, mut draws) = ([0; STREAMS], BTreeSet::new(), 0u32);
        while (0..STREAMS).any(|s| next[s] < self.streams[s].len()) {
            let free = |s: &usize| match self.streams[*s].get(next[*s]) {
                None => false,
                Some(Entry::Wait(mark)) => marked.contains(mark),
                Some(_) => true,
            };
            let free: Vec<usize> = (0..STREAMS).filter(free).collect();
            if free.is_empty() {
                return Err(fault("its streams wait for one another".into()));
            }
            let random = philox::block([draws, 0, number as u32, (number >> 32) as u32], [0; 2])[0];
            let stream = free[random as usize % free.len()];
            draws += 1;
            match &self.streams[stream][next[stream]] {
                Entry::Mark(mark) => {
                    marked.insert(*mark);
                }
                Entry::Wait(_) => {}
                Entry::Launch { executable, arguments } => {
                    let arguments: Vec<*mut u8> = arguments.iter().map(|a| *a as *mut u8).collect();
                    // SAFETY: as promised by the caller that recorded it: the memory lives as long as the recording runs.
                    unsafe { executable.run(&arguments, &context)? };
                }
            }
            next[stream] += 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ran(recorder: &Recorder, work: impl FnOnce() -> Result<(), KernelError>) -> Option<String> {
        recorder.record(work).and_then(|replay| replay.run(&Run { seed: 0, step: 0, dropout: true })).err().map(|e| e.to_string())
    }

    #[test]
    fn what_a_gpu_would_not_capture_is_refused() {
        let recorder = Recorder::default();
        let says = |error: Option<String>, what: &str| assert!(error.as_ref().is_some_and(|e| e.contains(what)), "{error:?}");
        assert_eq!(ran(&recorder, || Ok(())), None);
        says(ran(&recorder, || recorder.wait(1)), "nothing was marked 1");
        says(ran(&recorder, || recorder.mark(1).and_then(|()| recorder.mark(1))), "marked twice");
        let forked = || {
            recorder.mark(0)?;
            recorder.enter(2);
            recorder.wait(0)?;
            recorder.mark(1)
        };
        says(ran(&recorder, forked), "stream 2 does not begin and end on the first one");
        let joined = || {
            forked()?;
            recorder.enter(0);
            recorder.wait(1)
        };
        assert_eq!(ran(&recorder, joined), None);
        // Outside of a recording there are no streams.
        says(recorder.mark(0).err().map(|e| e.to_string()), "while something is recorded");
    }
}
