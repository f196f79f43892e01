//! The library itself: descriptors made from a description, the algorithms it offers, and the launches.

use super::description::{Description, Matrix, Order};
use super::choice::Choice;
use crate::contraction::{Problem, Types};
use crate::device::cuda::{Context, Library, Memory};
use crate::error::KernelError;
use crate::kernel::{Completion, Executable, KernelSpec, RunContext};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use sdfg::Dtype;
use std::ffi::c_void;
use std::mem::zeroed;
use std::sync::Arc;

/// How many algorithms the library is asked for; it has fewer for most cases.
const ASKED: usize = 200;
/// Bytes that the beginning of every container is a multiple of.
const ALIGNMENT: usize = sdfg::lifetime::ALIGNMENT as usize;

/// A handle of the library on one GPU, and its workspace.
pub struct CublasLt {
    context: Arc<Context>,
    handle: sys::cublasLtHandle_t,
    workspace: Memory,
}

/// An algorithm that the library offers for a product.
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
    pub custom: u32,
    pub inner: u16,
    pub cluster: u16,
}

impl std::fmt::Display for Algorithm {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Algorithm { workspace, id, tile, stages, split_k, swizzling, custom, inner, cluster, .. } = self;
        write!(f, "id {id}, tile {tile}, stages {stages}, split-K {split_k}, swizzling {swizzling}, custom {custom}, ")?;
        write!(f, "inner shape {inner}, cluster {cluster}, workspace {workspace} bytes")
    }
}

// SAFETY: the handle may be used by any thread (the manual says so of it), and the context is bound before it is.
unsafe impl Send for CublasLt {}
// SAFETY: as above; the workspace is used by one stream alone.
unsafe impl Sync for CublasLt {}

/// What the library is told of a product: descriptors made from a description. Needs the library, but no GPU.
pub struct Descriptors {
    description: Description,
    types: Types,
    operation: sys::cublasLtMatmulDesc_t,
    layouts: [sys::cublasLtMatrixLayout_t; 3],
}

// SAFETY: descriptors are values of the library that nobody changes once they are made.
unsafe impl Send for Descriptors {}
// SAFETY: as above.
unsafe impl Sync for Descriptors {}

/// A product on a GPU.
pub struct Matmul {
    library: Arc<CublasLt>,
    descriptors: Descriptors,
}

fn failed(what: &str) -> impl Fn(CublasError) -> KernelError + '_ {
    move |e| {
        let what = format!("{what}: {e:?}");
        match e.0 {
            // The GPU refused to run something: an error that stays.
            sys::cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED => KernelError::Crash { what },
            _ => KernelError::Cuda { what },
        }
    }
}

/// Arithmetic, and the type of α and β.
fn arithmetic(factor: Dtype, tf32: bool) -> (sys::cublasComputeType_t, sys::cudaDataType_t) {
    use sys::cublasComputeType_t as Compute;
    use sys::cudaDataType_t as Data;
    match factor {
        Dtype::F64 => (Compute::CUBLAS_COMPUTE_64F, Data::CUDA_R_64F),
        Dtype::F32 if tf32 => (Compute::CUBLAS_COMPUTE_32F_FAST_TF32, Data::CUDA_R_32F),
        _ => (Compute::CUBLAS_COMPUTE_32F, Data::CUDA_R_32F),
    }
}

fn storage(dtype: Dtype) -> Option<sys::cudaDataType_t> {
    use sys::cudaDataType_t as Data;
    Some(match dtype {
        Dtype::F32 => Data::CUDA_R_32F,
        Dtype::F64 => Data::CUDA_R_64F,
        Dtype::Bf16 => Data::CUDA_R_16BF,
        Dtype::F16 => Data::CUDA_R_16F,
        _ => return None,
    })
}

/// The library's version, e.g. 13.0.2. It must have been loaded.
fn version() -> String {
    // SAFETY: a function without arguments.
    let number = unsafe { sys::cublasLtGetVersion() };
    format!("{}.{}.{}", number / 10_000, number % 10_000 / 100, number % 100)
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
        context.current()?;
        let handle = result::create_handle().map_err(failed("cublasLtCreate"))?;
        Ok(CublasLt { context: context.clone(), handle, workspace })
    }

    pub fn version(&self) -> String {
        version()
    }

    /// A product on this GPU. f32 is rounded to TF32 only if `tf32` says so.
    ///
    /// # Errors
    /// As [`Descriptors::new`].
    pub fn matmul(self: &Arc<Self>, description: &Description, types: Types, tf32: bool) -> Result<Matmul, KernelError> {
        Ok(Matmul { library: self.clone(), descriptors: Descriptors::new(description, types, tf32)? })
    }
}

impl Descriptors {
    /// # Errors
    /// No library; element types that it does not multiply; batches of addresses, which are not launched yet; several products added
    /// up in memory that rounds each sum.
    pub fn new(description: &Description, types: Types, tf32: bool) -> Result<Self, KernelError> {
        Library::CublasLt.load()?;
        let unsupported = |what: String| KernelError::Cuda { what };
        let stored = |dtype| storage(dtype).ok_or_else(|| unsupported(format!("cuBLASLt has no products of {dtype}")));
        let (factor, out) = (stored(types.factor)?, stored(types.out)?);
        if description.pointers {
            return Err(unsupported("batches of addresses are described, but not launched yet; use strided batches".into()));
        }
        if types.narrows() && description.launches.iter().any(|l| l.accumulate) {
            return Err(unsupported(format!("sums of several products would be rounded to {} in between", types.out)));
        }
        let (compute, scale) = arithmetic(types.factor, tf32);
        let operation = result::create_matmul_desc(compute, scale).map_err(failed("cublasLtMatmulDescCreate"))?;
        // From here on the destructor gives back whatever was made.
        let mut made = Descriptors { description: description.clone(), types, operation, layouts: [std::ptr::null_mut(); 3] };
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
        for (n, (matrix, stored)) in [(&description.a, factor), (&description.b, factor), (&description.d, out)].into_iter().enumerate() {
            made.layouts[n] = layout(matrix, stored, description.batch)?;
        }
        Ok(made)
    }
}

/// The descriptor of a matrix.
fn layout(matrix: &Matrix, stored: sys::cudaDataType_t, batch: usize) -> Result<sys::cublasLtMatrixLayout_t, KernelError> {
    use sys::cublasLtMatrixLayoutAttribute_t as Key;
    let (rows, columns) = (matrix.rows as u64, matrix.columns as u64);
    let layout =
        result::create_matrix_layout(stored, rows, columns, matrix.leading as i64).map_err(failed("cublasLtMatrixLayoutCreate"))?;
    let order = match matrix.order {
        Order::Column => sys::cublasLtOrder_t::CUBLASLT_ORDER_COL,
        Order::Row => sys::cublasLtOrder_t::CUBLASLT_ORDER_ROW,
    };
    // SAFETY: the layout was just made; the manual gives these types.
    let described = unsafe {
        describe(layout, Key::CUBLASLT_MATRIX_LAYOUT_ORDER, order as i32)
            .and_then(|()| describe(layout, Key::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch as i32))
            .and_then(|()| describe(layout, Key::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, matrix.stride as i64))
    };
    if let Err(error) = described {
        // SAFETY: made above, given back once.
        let _ = unsafe { result::destroy_matrix_layout(layout) };
        return Err(error);
    }
    Ok(layout)
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
        use sys::cublasLtMatmulPreferenceAttributes_t as Key;
        self.library.context.current()?;
        let preference = result::create_matmul_pref().map_err(failed("cublasLtMatmulPreferenceCreate"))?;
        let bytes = self.library.workspace.len();
        let alignments = self.descriptors.alignments();
        // SAFETY: a heuristic result is numbers alone.
        let mut found = vec![unsafe { zeroed::<sys::cublasLtMatmulHeuristicResult_t>() }; ASKED];
        let mut count = 0;
        let [a, b, d] = self.descriptors.layouts;
        let keys = [
            (Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignments[0]),
            (Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, alignments[1]),
            (Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, alignments[2]),
            (Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, alignments[2]),
        ];
        // SAFETY: all descriptors live; the manual gives these types; there is room for as many results as are asked for.
        let status = unsafe {
            let key = Key::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
            let mut set = result::set_matmul_pref_attribute(preference, key, (&raw const bytes).cast(), size_of::<usize>());
            for (key, bytes) in keys {
                set = set.and(result::set_matmul_pref_attribute(preference, key, (&raw const bytes).cast(), size_of::<u32>()));
            }
            let status = sys::cublasLtMatmulAlgoGetHeuristic(
                self.library.handle,
                self.descriptors.operation,
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

/// A contraction under one configuration on a GPU.
pub struct Product {
    name: String,
    matmul: Matmul,
    algorithm: Algorithm,
    arguments: usize,
    /// Which argument is `a`, `b`, `out`.
    position: [usize; 3],
    text: String,
}

impl Product {
    /// Works a configuration out; `offered` are the algorithms that the library has for it.
    ///
    /// # Errors
    /// An algorithm that the library does not have.
    pub fn new(spec: &KernelSpec, problem: &Problem, choice: &Choice, matmul: Matmul, offered: &[Algorithm]) -> Result<Self, KernelError> {
        let algorithm = offered.get(choice.algorithm).cloned().ok_or_else(|| KernelError::Cuda {
            what: format!("cuBLASLt has {} algorithms for `{}`, none with number {}", offered.len(), spec.name, choice.algorithm),
        })?;
        let text = format!("/* cublasLtMatmul, {}\n   {:#?}\n   algorithm {}: {algorithm} */\n", problem.types, matmul.descriptors.description, choice.algorithm);
        let position = problem.positions(spec)?;
        Ok(Product { name: spec.name.clone(), matmul, algorithm, arguments: spec.arguments().len(), position, text })
    }
}

impl Executable for Product {
    /// Returns before the products are done, whatever the deadline.
    unsafe fn run(&self, arguments: &[*mut u8], _: &RunContext) -> Result<Completion, KernelError> {
        if arguments.len() != self.arguments {
            return Err(KernelError::Arguments { kernel: self.name.clone(), expected: self.arguments, given: arguments.len() });
        }
        // SAFETY: as promised by the caller.
        unsafe { self.matmul.launch(self.position.map(|p| arguments[p] as u64), &self.algorithm)? };
        Ok(Completion::Done)
    }

    fn source(&self) -> Option<&str> {
        Some(&self.text)
    }
}

impl Descriptors {
    /// Bytes that the beginnings of the three matrices are multiples of, in every launch.
    fn alignments(&self) -> [u32; 3] {
        let widths = self.types.widths();
        std::array::from_fn(|t| {
            let begins = self.description.launches.iter().flat_map(|l| &l.origins).map(|o| o[t] * widths[t]);
            // A power of two: the lowest bit that any beginning has set.
            begins.fold(ALIGNMENT, |least, bytes| if bytes == 0 { least } else { least.min(1 << bytes.trailing_zeros()) }) as u32
        })
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; what was not made yet is null.
        unsafe {
            let _ = result::destroy_matmul_desc(self.operation);
            for layout in self.layouts.into_iter().filter(|l| !l.is_null()) {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

/// What the library says about an algorithm; an attribute that it does not know stays 0.
fn algorithm(algorithm: sys::cublasLtMatmulAlgo_t, workspace: usize) -> Algorithm {
    use sys::cublasLtMatmulAlgoConfigAttributes_t as Key;
    /// # Safety
    /// The attribute has this type.
    unsafe fn read<T: Default>(algorithm: &sys::cublasLtMatmulAlgo_t, key: Key) -> T {
        let (mut value, mut written) = (T::default(), 0);
        // SAFETY: as promised by the caller; the library writes no more than it is told there is room for.
        let _ = unsafe { sys::cublasLtMatmulAlgoConfigGetAttribute(algorithm, key, (&raw mut value).cast(), size_of::<T>(), &mut written) };
        value
    }
    // SAFETY: the header gives these types: four bytes, the last two two bytes.
    unsafe {
        Algorithm {
            workspace,
            id: read(&algorithm, Key::CUBLASLT_ALGO_CONFIG_ID),
            tile: read(&algorithm, Key::CUBLASLT_ALGO_CONFIG_TILE_ID),
            stages: read(&algorithm, Key::CUBLASLT_ALGO_CONFIG_STAGES_ID),
            split_k: read(&algorithm, Key::CUBLASLT_ALGO_CONFIG_SPLITK_NUM),
            swizzling: read(&algorithm, Key::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING),
            custom: read(&algorithm, Key::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION),
            inner: read(&algorithm, Key::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID),
            cluster: read(&algorithm, Key::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID),
            algorithm,
        }
    }
}
