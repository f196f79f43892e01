//! The library itself: descriptors made from a description, the algorithms it offers, and the launches.

use super::description::{Description, Matrix, Order};
use crate::device::cuda::{Context, Library, Memory};
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
    workspace: Memory,
}

/// An algorithm that the library offers for a product, the one it would choose first.
#[derive(Clone, Debug)]
pub struct Algorithm {
    algorithm: sys::cublasLtMatmulAlgo_t,
    /// Bytes.
    pub workspace: usize,
    pub id: i32,
    pub tile: u32,
    pub stages: u32,
    pub split_k: i32,
    pub swizzling: u32,
}

/// A description with its descriptors.
pub struct Matmul<'a> {
    library: &'a CublasLt,
    description: Description,
    dtype: Dtype,
    operation: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
}

fn failed(what: &str) -> impl Fn(CublasError) -> KernelError + '_ {
    move |e| KernelError::Cuda { what: format!("{what}: {e:?}") }
}

/// Storage, arithmetic and the type of α.
fn types(dtype: Dtype, tf32: bool) -> Option<(sys::cudaDataType_t, sys::cublasComputeType_t, sys::cudaDataType_t)> {
    use sys::cublasComputeType_t as Compute;
    use sys::cudaDataType_t as Data;
    Some(match dtype {
        Dtype::F32 if tf32 => (Data::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F_FAST_TF32, Data::CUDA_R_32F),
        Dtype::F32 => (Data::CUDA_R_32F, Compute::CUBLAS_COMPUTE_32F, Data::CUDA_R_32F),
        Dtype::F64 => (Data::CUDA_R_64F, Compute::CUBLAS_COMPUTE_64F, Data::CUDA_R_64F),
        Dtype::Bf16 => (Data::CUDA_R_16BF, Compute::CUBLAS_COMPUTE_32F, Data::CUDA_R_32F),
        Dtype::F16 => (Data::CUDA_R_16F, Compute::CUBLAS_COMPUTE_32F, Data::CUDA_R_32F),
        _ => return None,
    })
}

/// Sets one attribute of a descriptor.
///
/// # Safety
/// The descriptor lives, and the attribute has this type.
unsafe fn describe<T>(layout: sys::cublasLtMatrixLayout_t, key: sys::cublasLtMatrixLayoutAttribute_t, value: T) -> Result<(), KernelError> {
    // SAFETY: as promised by the caller; the value is copied.
    unsafe { result::set_matrix_layout_attribute(layout, key, (&raw const value).cast(), size_of::<T>()) }
        .map_err(failed("cublasLtMatrixLayoutSetAttribute"))
}

impl CublasLt {
    /// # Errors
    /// No library; no memory.
    pub fn new(context: &Arc<Context>, workspace: usize) -> Result<Self, KernelError> {
        Library::CublasLt.load()?;
        let workspace = context.memory(workspace)?;
        let handle = result::create_handle().map_err(failed("cublasLtCreate"))?;
        Ok(CublasLt { context: context.clone(), handle, workspace })
    }

    /// Makes the descriptors of a product. f32 is rounded to TF32 only if `tf32` says so.
    ///
    /// # Errors
    /// Element types that the library does not multiply; batches of addresses, which are not launched yet.
    pub fn matmul(&self, description: &Description, dtype: Dtype, tf32: bool) -> Result<Matmul<'_>, KernelError> {
        let unsupported = |what: String| KernelError::Cuda { what };
        let (storage, compute, scale) = types(dtype, tf32).ok_or_else(|| unsupported(format!("cuBLASLt has no products of {dtype}")))?;
        if description.pointers {
            return Err(unsupported("batches of addresses are described, but not launched yet; use strided batches".into()));
        }
        let layout = |matrix: &Matrix| -> Result<sys::cublasLtMatrixLayout_t, KernelError> {
            use sys::cublasLtMatrixLayoutAttribute_t as Key;
            let (rows, columns) = (matrix.rows as u64, matrix.columns as u64);
            let layout = result::create_matrix_layout(storage, rows, columns, matrix.leading as i64)
                .map_err(failed("cublasLtMatrixLayoutCreate"))?;
            let order = match matrix.order {
                Order::Column => sys::cublasLtOrder_t::CUBLASLT_ORDER_COL,
                Order::Row => sys::cublasLtOrder_t::CUBLASLT_ORDER_ROW,
            };
            // SAFETY: the layout was just made; the manual gives these types.
            unsafe {
                describe(layout, Key::CUBLASLT_MATRIX_LAYOUT_ORDER, order as i32)?;
                describe(layout, Key::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, description.batch as i32)?;
                describe(layout, Key::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, matrix.stride as i64)?;
            }
            Ok(layout)
        };
        let operation = result::create_matmul_desc(compute, scale).map_err(failed("cublasLtMatmulDescCreate"))?;
        use sys::cublasLtMatmulDescAttributes_t as Key;
        for (key, transposed) in
            [(Key::CUBLASLT_MATMUL_DESC_TRANSA, description.transpose_a), (Key::CUBLASLT_MATMUL_DESC_TRANSB, description.transpose_b)]
        {
            // CUBLAS_OP_N and CUBLAS_OP_T.
            let value = i32::from(transposed);
            // SAFETY: the operation was just made; the manual gives this type.
            unsafe { result::set_matmul_desc_attribute(operation, key, (&raw const value).cast(), size_of::<i32>()) }
                .map_err(failed("cublasLtMatmulDescSetAttribute"))?;
        }
        let layouts = [layout(&description.a)?, layout(&description.b)?, layout(&description.d)?];
        Ok(Matmul { library: self, description: description.clone(), dtype, operation, layouts })
    }
}

impl Drop for CublasLt {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

impl Matmul<'_> {
    /// All algorithms that the library offers, its own first choice first.
    ///
    /// # Errors
    /// A product that it does not do.
    pub fn algorithms(&self) -> Result<Vec<Algorithm>, KernelError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Key;
        self.library.context.current()?;
        let preference = result::create_matmul_pref().map_err(failed("cublasLtMatmulPreferenceCreate"))?;
        let bytes = self.library.workspace.len();
        // SAFETY: a heuristic result is numbers alone.
        let mut found = vec![unsafe { zeroed::<sys::cublasLtMatmulHeuristicResult_t>() }; ASKED];
        let mut count = 0;
        let [a, b, d] = self.layouts;
        // SAFETY: all descriptors live; there is room for as many results as are asked for.
        let status = unsafe {
            let key = Key::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let set = result::set_matmul_pref_attribute(preference, key, (&raw const bytes).cast(), size_of::<usize>());
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.library.handle,
                self.operation,
                a,
                b,
                d,
                d,
                preference,
                ASKED as i32,
                found.as_mut_ptr(),
                &mut count,
            )
            .result();
            let _ = result::destroy_matmul_pref(preference);
            set.and(status)
        };
        status.map_err(failed("cublasLtMatmulAlgoGetHeuristic"))?;
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
        let d = &self.description;
        let width = self.dtype.bytes(1);
        let (a, b) = if d.exchanged { (b, a) } else { (a, b) };
        for launch in &d.launches {
            let beta = if launch.accumulate { 1.0 } else { 0.0 };
            // α and β have the type of the arithmetic.
            let (single, double) = ([d.alpha as f32, beta as f32], [d.alpha, beta]);
            let factors: [*const c_void; 2] = if self.dtype == Dtype::F64 {
                [(&raw const double[0]).cast(), (&raw const double[1]).cast()]
            } else {
                [(&raw const single[0]).cast(), (&raw const single[1]).cast()]
            };
            for origin in &launch.origins {
                let at = |base: u64, elements: usize| (base + elements as u64 * width) as *mut c_void;
                let [x, y, z] = self.layouts;
                // SAFETY: as promised by the caller; descriptors, factors and workspace live until the call returns, the
                // workspace until the library is dropped.
                unsafe {
                    result::matmul(
                        self.library.handle,
                        self.operation,
                        factors[0],
                        factors[1],
                        at(a, origin[0]),
                        x,
                        at(b, origin[1]),
                        y,
                        at(out, origin[2]),
                        z,
                        at(out, origin[2]),
                        z,
                        &algorithm.algorithm,
                        self.library.workspace.address() as *mut c_void,
                        self.library.workspace.len(),
                        self.library.context.stream().cast(),
                    )
                }
                .map_err(failed("cublasLtMatmul"))?;
            }
        }
        Ok(())
    }
}

impl Drop for Matmul<'_> {
    fn drop(&mut self) {
        // SAFETY: made in `matmul`, destroyed once.
        unsafe {
            let _ = result::destroy_matmul_desc(self.operation);
            for layout in self.layouts {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

fn algorithm(algorithm: sys::cublasLtMatmulAlgo_t, workspace: usize) -> Algorithm {
    use sys::cublasLtMatmulAlgoConfigAttributes_t as Key;
    let read = |key| -> i32 {
        let (mut value, mut written) = (0i32, 0);
        // SAFETY: these attributes are of four bytes; one that the library does not know stays 0.
        let _ =
            unsafe { sys::cublasLtMatmulAlgoConfigGetAttribute(&algorithm, key, (&raw mut value).cast(), size_of::<i32>(), &mut written) };
        value
    };
    Algorithm {
        workspace,
        id: read(Key::CUBLASLT_ALGO_CONFIG_ID),
        tile: read(Key::CUBLASLT_ALGO_CONFIG_TILE_ID) as u32,
        stages: read(Key::CUBLASLT_ALGO_CONFIG_STAGES_ID) as u32,
        split_k: read(Key::CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
        swizzling: read(Key::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING) as u32,
        algorithm,
    }
}
