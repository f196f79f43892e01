//! The library itself: the algorithms that it offers for a product, and the launches.

use crate::contraction::Types;
use crate::error::KernelError;
use crate::target::cuda::cublaslt::algorithm::{Algorithm, Listing, algorithm, known, told};
use crate::target::cuda::cublaslt::catalogue::catalogued;
use crate::target::cuda::cublaslt::config::Units;
use crate::target::cuda::cublaslt::description::{Description, GemmLaunch};
use crate::target::cuda::cublaslt::descriptors::{Descriptors, failed};
use crate::target::cuda::{CudaContext, CudaLibrary, GpuMemory, STREAMS};
use cudarc::cublaslt::result;
use cudarc::cublaslt::sys;
use sdfg::Dtype;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::c_void;
use std::mem::zeroed;
use std::sync::{Arc, Mutex};

/// Shares of the workspace that algorithms are asked for one after another: some that need little are offered only where there is
/// little.
const SHARES: [usize; 3] = [1, 8, usize::MAX];
/// Algorithms of the catalogue that the library is asked whether they fit a product.
const CHECKS: usize = 8192;

/// A handle of the library on one GPU, and its workspace.
pub struct CublasLt {
    context: Arc<CudaContext>,
    handle: sys::cublasLtHandle_t,
    /// One for each stream.
    workspaces: Vec<GpuMemory>,
}

// SAFETY: the handle may be used by any thread (the manual says so of it), and the context is bound before it is.
unsafe impl Send for CublasLt {}
// SAFETY: as above; each workspace is used by one stream alone.
unsafe impl Sync for CublasLt {}

/// A product on a GPU.
pub struct Matmul {
    library: Arc<CublasLt>,
    pub(crate) descriptors: Descriptors,
    /// Addresses of a batch's matrices, on the GPU, by launch and by where the containers lie.
    arrays: Mutex<BTreeMap<[u64; 3], Arrays>>,
}

/// For each launch the addresses of the first matrices, of the second, of the results.
type Arrays = Vec<[GpuMemory; 3]>;

/// Where a product finds what it reads and writes.
#[derive(Clone, Copy, Debug)]
pub struct GemmAddresses {
    /// `a`, `b`, `out`.
    pub operands: [u64; 3],
    /// Vector and auxiliary matrix of an epilogue.
    pub beside: [u64; 2],
}

impl CublasLt {
    /// # Errors
    /// No library; no memory.
    pub fn new(context: &Arc<CudaContext>, workspace: usize) -> Result<Self, KernelError> {
        CudaLibrary::CublasLt.load()?;
        let workspaces = (0..STREAMS).map(|_| GpuMemory::new(context, workspace)).collect::<Result<_, _>>()?;
        context.current()?;
        let handle = result::create_handle().map_err(failed("cublasLtCreate"))?;
        Ok(CublasLt { context: context.clone(), handle, workspaces })
    }

    /// That of the stream which takes launches.
    fn workspace(&self) -> &GpuMemory {
        &self.workspaces[self.context.at()]
    }

    /// E.g. 13.0.2.
    pub fn version(&self) -> String {
        // SAFETY: a function without arguments.
        let number = unsafe { sys::cublasLtGetVersion() };
        format!("{}.{}.{}", number / 10_000, number % 10_000 / 100, number % 100)
    }

    /// A product on this GPU. f32 is rounded to TF32 only if the types say so, and never by plain units.
    ///
    /// # Errors
    /// As [`Descriptors::new`].
    pub fn matmul(self: &Arc<Self>, description: &Description, types: Types, units: Units) -> Result<Matmul, KernelError> {
        Ok(Matmul { library: self.clone(), descriptors: Descriptors::new(description, types, units)?, arrays: Mutex::default() })
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Matmul {
    /// All algorithms that the library offers on these units, with all of the workspace, a part of it and none; its own first choice
    /// first.
    ///
    /// # Errors
    /// A product that it does not do.
    pub fn algorithms(&self, units: Units) -> Result<Vec<Algorithm>, KernelError> {
        self.library.context.current()?;
        // Which algorithms there are depends on how well addresses are aligned: no better than those of containers in an arena.
        let _addressed = self.descriptors.address([self.library.workspace().address() + sdfg::lifetime::ALIGNMENT; 2])?;
        let mut all: Vec<Algorithm> = Vec::new();
        for share in SHARES {
            let found = match self.offered(self.library.workspace().len() / share, units) {
                // What it does with all of the workspace it may not do with less.
                Err(_) if !all.is_empty() => vec![],
                found => found?,
            };
            for each in found {
                if all.iter().all(|known| known.algorithm.data != each.algorithm.data) {
                    all.push(each);
                }
            }
        }
        all.truncate(Listing::Heuristic.most());
        Ok(all)
    }

    /// Algorithms of the library's catalogue on these units that fit the product and the workspace, besides `others`.
    ///
    /// # Errors
    /// A library that has no catalogue.
    pub fn catalogued(&self, units: Units, others: &[Algorithm]) -> Result<Vec<Algorithm>, KernelError> {
        self.library.context.current()?;
        let handle = self.library.handle;
        let room = self.library.workspace().len();
        let _addressed = self.descriptors.address([self.library.workspace().address() + sdfg::lifetime::ALIGNMENT; 2])?;
        let Descriptors { operation, layouts: [a, b, d], .. } = &self.descriptors;
        let check = |plain: &sys::cublasLtMatmulAlgo_t, knobs: &_| {
            let made = told(*plain, knobs)?;
            // SAFETY: a heuristic result is numbers alone.
            let mut found = unsafe { zeroed::<sys::cublasLtMatmulHeuristicResult_t>() };
            // SAFETY: all descriptors live; there is room for a result.
            let checked = unsafe { sys::cublasLtMatmulAlgoCheck(handle, *operation, *a, *b, *d, *d, &made, &mut found) };
            let fits = checked == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS && found.workspaceSize <= room;
            let new = others.iter().all(|other| other.algorithm.data != made.data);
            (fits && new).then(|| algorithm(made, found.workspaceSize))
        };
        Ok(catalogued(&known(handle, &self.descriptors, units)?, CHECKS, Listing::Catalogue.most(), check))
    }

    /// What the library offers where there is so much workspace.
    fn offered(&self, workspace: usize, units: Units) -> Result<Vec<Algorithm>, KernelError> {
        let preference = self.descriptors.preference(workspace, units)?;
        // SAFETY: a heuristic result is numbers alone.
        let mut found = vec![unsafe { zeroed::<sys::cublasLtMatmulHeuristicResult_t>() }; Listing::CATALOGUE];
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
                Listing::CATALOGUE as i32,
                found.as_mut_ptr(),
                &mut count,
            )
        }
        .result()
        .map_err(failed("cublasLtMatmulAlgoGetHeuristic"))?;
        let usable = found.into_iter().take(count.max(0) as usize).filter(|f| f.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(usable.map(|f| algorithm(f.algo, f.workspaceSize)).collect())
    }

    /// Where the addresses of every launch's matrices are, for containers that lie here; none unless batches are given by address.
    /// They are written once: before a launch is recorded, it has been run.
    fn arrays(&self, operands: [u64; 3]) -> Result<Vec<[u64; 3]>, KernelError> {
        let Descriptors { description: d, types, .. } = &self.descriptors;
        if !d.pointers {
            return Ok(vec![]);
        }
        let (widths, [a, b, out]) = (types.widths().map(|w| w as u64), operands);
        let bases = if d.exchanged { [b, a, out] } else { [a, b, out] };
        let array = |launch: &GemmLaunch, t: usize| -> Result<GpuMemory, KernelError> {
            let bytes: Vec<u8> = launch.origins.iter().flat_map(|o| (bases[t] + o[t] as u64 * widths[t]).to_le_bytes()).collect();
            let mut memory = GpuMemory::new(&self.library.context, bytes.len())?;
            memory.write(0, &bytes)?;
            Ok(memory)
        };
        let mut known = self.arrays.lock().unwrap_or_else(|e| e.into_inner());
        let arrays = match known.entry(operands) {
            Entry::Occupied(arrays) => arrays.into_mut(),
            Entry::Vacant(place) => {
                let arrays = d.launches.iter().map(|l| Ok([array(l, 0)?, array(l, 1)?, array(l, 2)?]));
                place.insert(arrays.collect::<Result<Arrays, KernelError>>()?)
            }
        };
        Ok(arrays.iter().map(|each| each.each_ref().map(GpuMemory::address)).collect())
    }

    /// Puts all launches on the context's stream.
    ///
    /// # Errors
    /// What the library refuses.
    ///
    /// # Safety
    /// The addresses are those of whole containers on this GPU that live until the stream has been waited for; those written
    /// overlap with none of the others.
    pub unsafe fn launch(&self, addresses: GemmAddresses, algorithm: &Algorithm) -> Result<(), KernelError> {
        self.library.context.current()?;
        let Descriptors { description: d, types, operation, layouts: [x, y, z], .. } = &self.descriptors;
        let [a, b, out] = addresses.operands;
        let _addressed = self.descriptors.address(addresses.beside)?;
        let widths = types.widths().map(|w| w as u64);
        let (a, b) = if d.exchanged { (b, a) } else { (a, b) };
        let arrays = self.arrays(addresses.operands)?;
        for (number, launch) in d.launches.iter().enumerate() {
            let beta = if launch.accumulate { 1.0 } else { 0.0 };
            // α and β have the type of the arithmetic.
            let (single, double) = ([d.alpha as f32, beta as f32], [d.alpha, beta]);
            let factors: [*const c_void; 2] = if types.factor == Dtype::F64 {
                [(&raw const double[0]).cast(), (&raw const double[1]).cast()]
            } else {
                [(&raw const single[0]).cast(), (&raw const single[1]).cast()]
            };
            // The library takes the place of the addresses of a batch of pointers, else the place of the matrices.
            let told: Vec<[u64; 3]> = match arrays.get(number) {
                Some(arrays) => vec![*arrays],
                None => launch.origins.iter().map(|o| std::array::from_fn(|t| [a, b, out][t] + o[t] as u64 * widths[t])).collect(),
            };
            for each in told {
                let at = |t: usize| each[t] as *mut c_void;
                // SAFETY: as promised by the caller; descriptors, factors and workspace live until the call returns, the
                // workspace until the library is dropped.
                unsafe {
                    result::matmul(
                        self.library.handle,
                        *operation,
                        factors[0],
                        factors[1],
                        at(0),
                        *x,
                        at(1),
                        *y,
                        at(2),
                        *z,
                        at(2),
                        *z,
                        &algorithm.algorithm,
                        self.library.workspace().address() as *mut c_void,
                        self.library.workspace().len(),
                        self.library.context.stream().cast(),
                    )
                }
                .map_err(|e| match failed("cublasLtMatmul")(e) {
                    // An algorithm that cannot be launched leaves the GPU as it was.
                    KernelError::Crash { what } if self.library.context.is_well() => KernelError::Cuda { what },
                    error => error,
                })?;
            }
        }
        Ok(())
    }
}
