//! An algorithm of the library, and what it is made of.

use cudarc::cublaslt::sys;

/// An algorithm that the library offers for a product.
#[derive(Clone, Debug)]
pub struct Algorithm {
    pub(super) algorithm: sys::cublasLtMatmulAlgo_t,
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

/// What the library says about an algorithm; an attribute that it does not know stays 0.
pub(super) fn algorithm(algorithm: sys::cublasLtMatmulAlgo_t, workspace: usize) -> Algorithm {
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
