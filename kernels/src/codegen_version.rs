//! The version of the code generator: part of every key under which times of kernels are stored, so that times of older code are not
//! reused.
//!
//! It is a hash of the sources of this crate, made by `build.rs` without comments, white space and tests, and of the preludes, into which
//! other crates write. Nobody has to remember to change it. It changes more often than the generated code does: a refactoring costs its
//! users one more measurement of their kernels, and a forgotten change would give them wrong times.

use crate::emit::functions;
use std::sync::LazyLock;

/// The version of the code generator in this build.
pub fn codegen_version() -> &'static str {
    static VERSION: LazyLock<String> = LazyLock::new(|| {
        let mut hasher = blake3::Hasher::new();
        hasher.update(env!("MEMLET_CODEGEN_SOURCES").as_bytes());
        hasher.update(functions::c_prelude().as_bytes()).update(functions::cuda_prelude().as_bytes());
        hasher.finalize().to_hex()[..32].to_string()
    });
    &VERSION
}
