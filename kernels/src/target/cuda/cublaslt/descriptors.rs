//! cuBLASLt's descriptors of matrices and operations, and its preferences. Making them needs the library, but no GPU.

use crate::contraction::Types;
use crate::error::KernelError;
use crate::target::cuda::CudaLibrary;
use crate::target::cuda::cublaslt::config::Units;
use crate::target::cuda::cublaslt::description::{Description, MajorOrder, Matrix};
use crate::target::cuda::cublaslt::epilogue_desc::{Bias, EpilogueDesc, EpilogueFunction};
use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use sdfg::Dtype;
use std::sync::{Mutex, MutexGuard};

/// The error of a call that the library refused.
pub(crate) fn failed(what: &str) -> impl Fn(CublasError) -> KernelError + '_ {
    move |e| {
        let what = format!("{what}: {e:?}");
        match e.0 {
            // The GPU refused to run something: an error that stays.
            sys::cublasStatus_t::CUBLAS_STATUS_EXECUTION_FAILED => KernelError::Crash { what },
            _ => KernelError::Cuda { what },
        }
    }
}

/// Bytes that the beginning of every container is a multiple of.
const ALIGNMENT: usize = sdfg::lifetime::ALIGNMENT as usize;

/// A product as the library takes it: descriptors made from a description.
pub struct Descriptors {
    pub(crate) description: Description,
    pub(crate) types: Types,
    pub(crate) operation: sys::cublasLtMatmulDesc_t,
    pub(crate) layouts: [sys::cublasLtMatrixLayout_t; 3],
    units: Units,
    /// Held while addresses of an epilogue stand in the operation.
    pub(crate) addressed: Mutex<()>,
}

// SAFETY: descriptors are values of the library that are not changed once they are made, but for addresses, under a lock.
unsafe impl Send for Descriptors {}
// SAFETY: as above.
unsafe impl Sync for Descriptors {}

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

fn stored(dtype: Dtype) -> Result<sys::cudaDataType_t, KernelError> {
    storage(dtype).ok_or_else(|| KernelError::Cuda { what: format!("cuBLASLt has no products of {dtype}") })
}

impl EpilogueDesc {
    /// The library's name for it; `None` where it has none.
    fn named(self) -> Option<sys::cublasLtEpilogue_t> {
        use sys::cublasLtEpilogue_t as Named;
        Some(match (self.function, self.bias, self.aux.is_some()) {
            (None, Some(Bias::Added), false) => Named::CUBLASLT_EPILOGUE_BIAS,
            (None, Some(Bias::OfA), false) => Named::CUBLASLT_EPILOGUE_BGRADA,
            (None, Some(Bias::OfB), false) => Named::CUBLASLT_EPILOGUE_BGRADB,
            (Some(EpilogueFunction::Relu), None, false) => Named::CUBLASLT_EPILOGUE_RELU,
            (Some(EpilogueFunction::Relu), Some(Bias::Added), false) => Named::CUBLASLT_EPILOGUE_RELU_BIAS,
            (Some(EpilogueFunction::Relu), None, true) => Named::CUBLASLT_EPILOGUE_RELU_AUX,
            (Some(EpilogueFunction::Relu), Some(Bias::Added), true) => Named::CUBLASLT_EPILOGUE_RELU_AUX_BIAS,
            (Some(EpilogueFunction::ReluGradient), None, true) => Named::CUBLASLT_EPILOGUE_DRELU,
            (Some(EpilogueFunction::ReluGradient), Some(Bias::OfResult), true) => Named::CUBLASLT_EPILOGUE_DRELU_BGRAD,
            (Some(EpilogueFunction::Gelu), None, false) => Named::CUBLASLT_EPILOGUE_GELU,
            (Some(EpilogueFunction::Gelu), None, true) => Named::CUBLASLT_EPILOGUE_GELU_AUX,
            (Some(EpilogueFunction::Gelu), Some(Bias::Added), false) => Named::CUBLASLT_EPILOGUE_GELU_BIAS,
            (Some(EpilogueFunction::Gelu), Some(Bias::Added), true) => Named::CUBLASLT_EPILOGUE_GELU_AUX_BIAS,
            (Some(EpilogueFunction::GeluGradient), None, true) => Named::CUBLASLT_EPILOGUE_DGELU,
            (Some(EpilogueFunction::GeluGradient), Some(Bias::OfResult), true) => Named::CUBLASLT_EPILOGUE_DGELU_BGRAD,
            _ => return None,
        })
    }
}

/// Sets one attribute of an operation.
///
/// # Safety
/// The operation lives, and the attribute has this type.
pub(crate) unsafe fn set<T>(
    operation: sys::cublasLtMatmulDesc_t,
    key: sys::cublasLtMatmulDescAttributes_t,
    value: T,
) -> Result<(), KernelError> {
    // SAFETY: as promised by the caller; the value is copied.
    unsafe { result::set_matmul_desc_attribute(operation, key, (&raw const value).cast(), size_of::<T>()) }
        .map_err(failed("cublasLtMatmulDescSetAttribute"))
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

impl Descriptors {
    /// # Errors
    /// No library; element types that it does not multiply; several products added up in memory that rounds each sum.
    pub fn new(description: &Description, types: Types, units: Units) -> Result<Self, KernelError> {
        CudaLibrary::CublasLt.load()?;
        let unsupported = |what: String| KernelError::Cuda { what };
        let (factor, out) = (stored(types.factor)?, stored(types.out)?);
        if types.narrows() && description.launches.iter().any(|l| l.accumulate) {
            return Err(unsupported(format!("sums of several products would be rounded to {} in between", types.out)));
        }
        let (compute, scale) = arithmetic(types.factor, types.tf32 && units == Units::Any);
        let operation = result::create_matmul_desc(compute, scale).map_err(failed("cublasLtMatmulDescCreate"))?;
        // From here on the destructor gives back whatever was made.
        let mut made = Descriptors {
            description: description.clone(),
            types,
            operation,
            layouts: [std::ptr::null_mut(); 3],
            units,
            addressed: Mutex::new(()),
        };
        use sys::cublasLtMatmulDescAttributes_t as Key;
        for (key, transposed) in
            [(Key::CUBLASLT_MATMUL_DESC_TRANSA, description.transpose_a), (Key::CUBLASLT_MATMUL_DESC_TRANSB, description.transpose_b)]
        {
            // CUBLAS_OP_N and CUBLAS_OP_T.
            // SAFETY: the operation was just made; the manual gives this type.
            unsafe { set(operation, key, i32::from(transposed))? };
        }
        if let Some(ending) = description.epilogue {
            let named = ending.named().ok_or_else(|| unsupported(format!("cuBLASLt has no epilogue {ending:?}")))?;
            // SAFETY (all): as above.
            unsafe {
                set(operation, Key::CUBLASLT_MATMUL_DESC_EPILOGUE, named as u32)?;
                if ending.bias.is_some() {
                    set(operation, Key::CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, out as i32)?;
                }
                if let Some(leading) = ending.aux {
                    set(operation, Key::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, leading as i64)?;
                    // Bits have no type.
                    if !ending.function.is_some_and(EpilogueFunction::keeps_bits) {
                        set(operation, Key::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, out as i32)?;
                    }
                }
            }
        }
        for (n, (matrix, stored)) in [(&description.a, factor), (&description.b, factor), (&description.d, out)].into_iter().enumerate() {
            made.layouts[n] = layout(matrix, stored, (description.batch, description.pointers))?;
        }
        Ok(made)
    }
}

/// The descriptor of a matrix.
fn layout(
    matrix: &Matrix,
    stored: sys::cudaDataType_t,
    (batch, pointers): (usize, bool),
) -> Result<sys::cublasLtMatrixLayout_t, KernelError> {
    use sys::cublasLtMatrixLayoutAttribute_t as Key;
    let (rows, columns) = (matrix.rows as u64, matrix.columns as u64);
    let layout =
        result::create_matrix_layout(stored, rows, columns, matrix.leading as i64).map_err(failed("cublasLtMatrixLayoutCreate"))?;
    let order = match matrix.order {
        MajorOrder::Column => sys::cublasLtOrder_t::CUBLASLT_ORDER_COL,
        MajorOrder::Row => sys::cublasLtOrder_t::CUBLASLT_ORDER_ROW,
    };
    let addresses = sys::cublasLtBatchMode_t::CUBLASLT_BATCH_MODE_POINTER_ARRAY as u32;
    // SAFETY: the layout was just made; the manual gives these types.
    let described = unsafe {
        describe(layout, Key::CUBLASLT_MATRIX_LAYOUT_ORDER, order as i32)
            .and_then(|()| describe(layout, Key::CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, batch as i32))
            .and_then(|()| match pointers {
                // Older libraries have this mode alone, and no attribute for it.
                false => describe(layout, Key::CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, matrix.stride as i64),
                true => describe(layout, Key::CUBLASLT_MATRIX_LAYOUT_BATCH_MODE, addresses),
            })
    };
    if let Err(error) = described {
        // SAFETY: made above, given back once.
        let _ = unsafe { result::destroy_matrix_layout(layout) };
        return Err(error);
    }
    Ok(layout)
}

impl Descriptors {
    /// Arithmetic, the type of α and β, and those of the three matrices.
    pub(crate) fn arithmetic(&self) -> Result<(sys::cublasComputeType_t, sys::cudaDataType_t, [sys::cudaDataType_t; 3]), KernelError> {
        let (compute, scale) = arithmetic(self.types.factor, self.types.tf32 && self.units == Units::Any);
        let (factor, out) = (stored(self.types.factor)?, stored(self.types.out)?);
        Ok((compute, scale, [factor, factor, out]))
    }

    /// Tells the operation where vector and auxiliary matrix of its epilogue lie; that holds as long as the guard.
    ///
    /// # Errors
    /// A library that takes other attributes.
    pub fn address(&self, [bias, aux]: [u64; 2]) -> Result<MutexGuard<'_, ()>, KernelError> {
        use sys::cublasLtMatmulDescAttributes_t as Key;
        let guard = self.addressed.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(ending) = self.description.epilogue {
            // SAFETY (both): the operation lives, and no other thread changes it during the call; the manual gives these types.
            if ending.bias.is_some() {
                unsafe { set(self.operation, Key::CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias)? };
            }
            if ending.aux.is_some() {
                unsafe { set(self.operation, Key::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux)? };
            }
        }
        Ok(guard)
    }

    /// Number of the epilogue, and the leading dimension of its auxiliary matrix, as the library has noted them; 0 where there is none.
    ///
    /// # Errors
    /// A library that knows other attributes.
    pub fn noted_epilogue(&self) -> Result<(u32, i64), KernelError> {
        use sys::cublasLtMatmulDescAttributes_t as Key;
        let (mut epilogue, mut leading, mut written) = (0u32, 0i64, 0usize);
        for (key, to, size) in [
            (Key::CUBLASLT_MATMUL_DESC_EPILOGUE, (&raw mut epilogue).cast(), 4),
            (Key::CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, (&raw mut leading).cast(), 8),
        ] {
            // SAFETY: the operation lives; there is room for a value of this size.
            unsafe { sys::cublasLtMatmulDescGetAttribute(self.operation, key, to, size, &mut written) }
                .result()
                .map_err(failed("cublasLtMatmulDescGetAttribute"))?;
        }
        Ok((epilogue, leading))
    }

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

/// What algorithms may ask for.
pub struct Preference(pub(crate) sys::cublasLtMatmulPreference_t);

impl Descriptors {
    /// Algorithms on these units that need no more than `workspace` bytes, and no better alignment than these matrices have.
    ///
    /// # Errors
    /// A library that takes other attributes.
    pub fn preference(&self, workspace: usize, units: Units) -> Result<Preference, KernelError> {
        use sys::cublasLtMatmulPreferenceAttributes_t as Key;
        let preference = Preference(result::create_matmul_pref().map_err(failed("cublasLtMatmulPreferenceCreate"))?);
        let refused = failed("cublasLtMatmulPreferenceSetAttribute");
        let bytes = workspace as u64;
        let key = Key::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        // SAFETY: the preference was just made; the header gives this type.
        unsafe { result::set_matmul_pref_attribute(preference.0, key, (&raw const bytes).cast(), size_of::<u64>()) }.map_err(&refused)?;
        if units == Units::Plain {
            // CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA: scalar multiply-adds, with sums and factors of any type.
            let mask = 0x01u64 | !0xff;
            let key = Key::CUBLASLT_MATMUL_PREF_IMPL_MASK;
            // SAFETY: as above.
            unsafe { result::set_matmul_pref_attribute(preference.0, key, (&raw const mask).cast(), size_of::<u64>()) }
                .map_err(&refused)?;
        }
        let [a, b, d] = self.alignments();
        for (key, bytes) in [
            (Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, a),
            (Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, b),
            (Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, d),
            (Key::CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, d),
        ] {
            // SAFETY: as above.
            unsafe { result::set_matmul_pref_attribute(preference.0, key, (&raw const bytes).cast(), size_of::<u32>()) }
                .map_err(&refused)?;
        }
        Ok(preference)
    }

    /// Rows, columns and leading dimension of the three matrices, as the library has noted them.
    ///
    /// # Errors
    /// A library that knows other attributes.
    pub fn noted(&self) -> Result<[[u64; 3]; 3], KernelError> {
        use sys::cublasLtMatrixLayoutAttribute_t as Key;
        let mut noted = [[0u64; 3]; 3];
        for (layout, values) in self.layouts.iter().zip(&mut noted) {
            let keys = [Key::CUBLASLT_MATRIX_LAYOUT_ROWS, Key::CUBLASLT_MATRIX_LAYOUT_COLS, Key::CUBLASLT_MATRIX_LAYOUT_LD];
            for (key, value) in keys.into_iter().zip(values) {
                let mut written = 0;
                // SAFETY: the layout lives; the header gives types of eight bytes.
                unsafe { sys::cublasLtMatrixLayoutGetAttribute(*layout, key, (&raw mut *value).cast(), size_of::<u64>(), &mut written) }
                    .result()
                    .map_err(failed("cublasLtMatrixLayoutGetAttribute"))?;
            }
        }
        Ok(noted)
    }
}

impl Drop for Preference {
    fn drop(&mut self) {
        // SAFETY: made in `preference`, destroyed once.
        let _ = unsafe { result::destroy_matmul_pref(self.0) };
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
