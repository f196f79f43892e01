//! The library itself: the algorithms that it offers for a product, and the launches.

use super::algorithm::{Algorithm, algorithm};
use super::description::Description;
use super::descriptors::Descriptors;
use crate::contraction::Types;
use crate::device::cuda::{Context, Library, Memory, STREAMS};
use crate::error::KernelError;
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use sdfg::Dtype;
use std::ffi::c_void;
use std::mem::zeroed;
use std::sync::Arc;

/// How many algorithms the library is asked for; it has fewer for most cases.
const ASKED: usize = 200;

/// A handle of the library on one GPU, and its workspace.
pub struct CublasLt {
    context: Arc<Context>,
    handle: sys::cublasLtHandle_t,
    /// One for each stream.
    workspaces: Vec<Memory>,
}

// SAFETY: the handle may be used by any thread (the manual says so of it), and the context is bound before it is.
unsafe impl Send for CublasLt {}
// SAFETY: as above; each workspace is used by one stream alone.
unsafe impl Sync for CublasLt {}

/// A product on a GPU.
pub struct Matmul {
    library: Arc<CublasLt>,
    pub(super) descriptors: Descriptors,
}

pub(super) fn failed(what: &str) -> impl Fn(CublasError) -> KernelError + '_ {
    move |e| {
        let what = format!("{what}: {e:?}");
        match e.0 {
            // The GPU refused to run something: an error that stays.
            sys::cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED => KernelError::Crash { what },
            _ => KernelError::Cuda { what },
        }
    }
}

impl CublasLt {
    /// # Errors
    /// No library; no memory.
    pub fn new(context: &Arc<Context>, workspace: usize) -> Result<Self, KernelError> {
        Library::CublasLt.load()?;
        let workspaces = (0..STREAMS).map(|_| context.memory(workspace)).collect::<Result<_, _>>()?;
        context.current()?;
        let handle = result::create_handle().map_err(failed("cublasLtCreate"))?;
        Ok(CublasLt { context: context.clone(), handle, workspaces })
    }

    /// That of the stream which takes what is put under way.
    fn workspace(&self) -> &Memory {
        &self.workspaces[self.context.at()]
    }

    /// E.g. 13.0.2.
    pub fn version(&self) -> String {
        // SAFETY: a function without arguments.
        let number = unsafe { sys::cublasLtGetVersion() };
        format!("{}.{}.{}", number / 10_000, number % 10_000 / 100, number % 100)
    }

    /// A product on this GPU. f32 is rounded to TF32 only if `tf32` says so.
    ///
    /// # Errors
    /// As [`Descriptors::new`].
    pub fn matmul(self: &Arc<Self>, description: &Description, types: Types, tf32: bool) -> Result<Matmul, KernelError> {
        Ok(Matmul { library: self.clone(), descriptors: Descriptors::new(description, types, tf32)? })
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Matmul {
    /// All algorithms that the library offers, its own first choice first.
    ///
    /// # Errors
    /// A product that it does not do.
    pub fn algorithms(&self) -> Result<Vec<Algorithm>, KernelError> {
        self.library.context.current()?;
        let preference = self.descriptors.preference(self.library.workspace().len())?;
        // SAFETY: a heuristic result is numbers alone.
        let mut found = vec![unsafe { zeroed::<sys::cublasLtMatmulHeuristicResult_t>() }; ASKED];
        let mut count = 0;
        let Descriptors { operation, layouts: [a, b, d], .. } = &self.descriptors;
        // SAFETY: all descriptors live; there is room for as many results as are asked for.
        unsafe {
            sys::cublasLtMatmulAlgoGetHeuristic(
                self.library.handle,
                *operation,
                *a,
                *b,
                *d,
                *d,
                preference.0,
                ASKED as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        }
        .result()
        .map_err(failed("cublasLtMatmulAlgoGetHeuristic"))?;
        let usable = found.into_iter().take(count.max(0) as usize).filter(|f| f.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(usable.map(|f| algorithm(f.algo, f.workspaceSize)).collect())
    }

    /// Puts all launches on the context's stream.
    ///
    /// # Errors
    /// What the library refuses.
    ///
    /// # Safety
    /// `a`, `b` and `out` are addresses of whole containers on this GPU that live until the stream has been waited for; `out`
    /// overlaps with neither of the others.
    pub unsafe fn launch(&self, [a, b, out]: [u64; 3], algorithm: &Algorithm) -> Result<(), KernelError> {
        self.library.context.current()?;
        let Descriptors { description: d, types, operation, layouts: [x, y, z] } = &self.descriptors;
        let widths = types.widths().map(|w| w as u64);
        let (a, b) = if d.exchanged { (b, a) } else { (a, b) };
        for launch in &d.launches {
            let beta = if launch.accumulate { 1.0 } else { 0.0 };
            // α and β have the type of the arithmetic.
            let (single, double) = ([d.alpha as f32, beta as f32], [d.alpha, beta]);
            let factors: [*const c_void; 2] = if types.factor == Dtype::F64 {
                [(&raw const double[0]).cast(), (&raw const double[1]).cast()]
            } else {
                [(&raw const single[0]).cast(), (&raw const single[1]).cast()]
            };
            for origin in &launch.origins {
                let at = |base: u64, t: usize| (base + origin[t] as u64 * widths[t]) as *mut c_void;
                // SAFETY: as promised by the caller; descriptors, factors and workspace live until the call returns, the
                // workspace until the library is dropped.
                unsafe {
                    result::matmul(
                        self.library.handle,
                        *operation,
                        factors[0],
                        factors[1],
                        at(a, 0),
                        *x,
                        at(b, 1),
                        *y,
                        at(out, 2),
                        *z,
                        at(out, 2),
                        *z,
                        &algorithm.algorithm,
                        self.library.workspace().address() as *mut c_void,
                        self.library.workspace().len(),
                        self.library.context.stream().cast(),
                    )
                }
                .map_err(failed("cublasLtMatmul"))?;
            }
        }
        Ok(())
    }
}
