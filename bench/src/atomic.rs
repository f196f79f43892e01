//! Files that are either whole or absent: written to a temporary file in the same folder, then renamed.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

/// Replaces `path` by `contents`; a reader sees the old file or the new one, never a part.
///
/// # Errors
/// Errors of the file system; the temporary file is removed then.
pub fn write(path: &Path, contents: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"))?;
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}.part", std::process::id()));
    let part = path.with_file_name(hidden);
    let outcome = fs::File::create(&part)
        .and_then(|mut file| {
            file.write_all(contents)?;
            file.sync_all()
        })
        .and_then(|()| fs::rename(&part, path));
    if outcome.is_err() {
        // The first error is the one to report; a left-over temporary file does no harm.
        let _ = fs::remove_file(&part);
    }
    outcome
}
