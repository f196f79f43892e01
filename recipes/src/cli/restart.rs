//! Restarts the same command in a new process: after a kernel broke the GPU's context, the old process can no longer use the GPU.

use super::out::errln;
use std::process::{Command, ExitCode};

/// The environment variable that counts restarts.
const BEFORE: &str = "MEMLET_BEGUN_BEFORE";
/// The most restarts: if more kernels break the context, the device has another fault.
const MOST: u32 = 100;

fn before() -> u32 {
    std::env::var(BEFORE).ok().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Whether another restart is allowed.
pub fn allowed() -> bool {
    before() < MOST
}

/// Restarts the command, and ends with its exit code.
pub fn begin() -> ExitCode {
    errln!("beginning again without that kernel; what was measured is kept");
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "memlet".into()));
    command.args(std::env::args_os().skip(1)).env(BEFORE, (before() + 1).to_string());
    #[cfg(unix)]
    let ended: std::io::Result<std::process::ExitStatus> = Err(std::os::unix::process::CommandExt::exec(&mut command));
    #[cfg(not(unix))]
    let ended = command.status();
    match ended {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(e) => {
            errln!("it could not be begun again: {e}; the same command goes on");
            ExitCode::from(1)
        }
    }
}
