//! Printing by commands. A reader may close the pipe before the end, as `head` does, and a disk may be full. Work goes on and its results
//! are kept, where the standard macros would panic.

use std::fmt::Arguments;
use std::io::{Error, ErrorKind, Write, stderr, stdout};
use std::sync::OnceLock;

/// The first error of standard output.
static REFUSED: OnceLock<Error> = OnceLock::new();

/// Prints to standard output.
macro_rules! out {
    ($($text:tt)*) => { $crate::cli::out::to_output(format_args!($($text)*)) };
}

/// Prints a line to standard output.
macro_rules! outln {
    ($($text:tt)*) => { $crate::cli::out::to_output(format_args!("{}\n", format_args!($($text)*))) };
}

/// Prints to standard error.
macro_rules! err {
    ($($text:tt)*) => { $crate::cli::out::to_errors(format_args!($($text)*)) };
}

/// Prints a line to standard error.
macro_rules! errln {
    ($($text:tt)*) => { $crate::cli::out::to_errors(format_args!("{}\n", format_args!($($text)*))) };
}

pub(crate) use {err, errln, out, outln};

pub fn to_output(text: Arguments) {
    if REFUSED.get().is_some() {
        return;
    }
    let mut output = stdout().lock();
    if let Err(why) = output.write_fmt(text).and_then(|()| output.flush()) {
        let _ = REFUSED.set(why);
    }
}

/// If standard error is closed, the exit code still reports the failure.
pub fn to_errors(text: Arguments) {
    let _ = stderr().lock().write_fmt(text);
}

/// Why output was lost, unless the reader closed the pipe.
pub fn refused() -> Option<&'static Error> {
    REFUSED.get().filter(|why| why.kind() != ErrorKind::BrokenPipe)
}
