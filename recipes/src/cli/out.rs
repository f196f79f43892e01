//! What commands print. Whoever reads may stop before the end, as `head` does, and a file may be full: work goes on, and what it made is
//! kept; the standard macros would end it in a panic.

use std::fmt::Arguments;
use std::io::{Error, ErrorKind, Write, stderr, stdout};
use std::sync::OnceLock;

/// Why standard output took no more, first.
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

/// Whoever does not hear why something failed is told by the exit code.
pub fn to_errors(text: Arguments) {
    let _ = stderr().lock().write_fmt(text);
}

/// Why what was printed is not all there, unless whoever read it wanted no more.
pub fn refused() -> Option<&'static Error> {
    REFUSED.get().filter(|why| why.kind() != ErrorKind::BrokenPipe)
}
