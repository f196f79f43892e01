//! Kernels that several plans hold: those of the plans of one program are mostly the same under the same configurations, and making one
//! takes far longer than finding it here.

use crate::error::KernelError;
use crate::executable::Executable;
use crate::kernel::KernelSpec;
use crate::target::cpu::Toolchain;
use sdfg::config::KernelConfig;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Bytes of code of all kernels that are kept, 256 MiB: some ten programs of a thousand kernels.
const MOST: usize = 256 << 20;

/// The kernels that are kept, and the bytes of their code.
#[derive(Default)]
struct Kept {
    kernels: HashMap<String, Arc<dyn Executable>>,
    bytes: usize,
}

static KEPT: Mutex<Option<Kept>> = Mutex::new(None);

/// All that a kernel depends on.
fn key(spec: &KernelSpec, config: &KernelConfig, toolchain: &Toolchain) -> String {
    let Toolchain { command, version, cache, flags, texts_only } = toolchain;
    format!("{command} {version} {} {flags:?} {texts_only}\n{} {} {}\n{config:?}", cache.display(), spec.name, spec.images, spec.key())
}

fn known(key: &str) -> Option<Arc<dyn Executable>> {
    KEPT.lock().unwrap_or_else(PoisonError::into_inner).as_ref()?.kernels.get(key).cloned()
}

/// Whether a kernel under a configuration is there already.
pub fn has(spec: &KernelSpec, config: &KernelConfig, toolchain: &Toolchain) -> bool {
    known(&key(spec, config, toolchain)).is_some()
}

/// A kernel under a configuration, made now or before. One that keeps something from run to run is made anew.
///
/// # Errors
/// Those of `make`.
pub fn shared(
    (spec, config): (&KernelSpec, &KernelConfig),
    toolchain: &Toolchain,
    make: impl FnOnce() -> Result<Arc<dyn Executable>, KernelError>,
) -> Result<Arc<dyn Executable>, KernelError> {
    let key = key(spec, config, toolchain);
    if let Some(known) = known(&key) {
        return Ok(known);
    }
    let made = make()?;
    if made.is_shareable() {
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = kept.get_or_insert_with(Kept::default);
        kept.bytes += made.source().map_or(0, str::len) + key.len();
        if kept.bytes > MOST {
            *kept = Kept::default();
        }
        kept.kernels.insert(key, made.clone());
    }
    Ok(made)
}
