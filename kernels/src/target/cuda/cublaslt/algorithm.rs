//! An algorithm of the library, and what it is made of.

use crate::error::KernelError;
use crate::target::cuda::cublaslt::catalogue::{AlgorithmCapabilities, AlgorithmConfig};
use crate::target::cuda::cublaslt::config::Units;
use crate::target::cuda::cublaslt::descriptors::{Descriptors, failed};
use cudarc::cublaslt::sys;
use std::mem::zeroed;

/// Where an algorithm is listed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Listing {
    /// The library's heuristic, its first choice first.
    Heuristic,
    /// Its catalogue, of what the heuristic does not offer.
    Catalogue,
}

impl Listing {
    /// Numbers from here on are of the catalogue.
    pub const CATALOGUE: usize = 128;
    /// All numbers that there may be.
    pub const ALL: usize = 512;

    /// Where an algorithm is listed, and its number there.
    pub fn of(number: usize) -> (Self, usize) {
        match number.checked_sub(Listing::CATALOGUE) {
            None => (Listing::Heuristic, number),
            Some(later) => (Listing::Catalogue, later),
        }
    }

    /// The number of an algorithm that is number `n` here.
    pub fn number(self, n: usize) -> usize {
        match self {
            Listing::Heuristic => n,
            Listing::Catalogue => Listing::CATALOGUE + n,
        }
    }

    /// Most algorithms of it.
    pub fn most(self) -> usize {
        match self {
            Listing::Heuristic => Listing::CATALOGUE,
            Listing::Catalogue => Listing::ALL - Listing::CATALOGUE,
        }
    }
}

/// An algorithm that the library offers for a product.
#[derive(Clone, Debug)]
pub struct Algorithm {
    pub(crate) algorithm: sys::cublasLtMatmulAlgo_t,
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
pub(crate) fn algorithm(algorithm: sys::cublasLtMatmulAlgo_t, workspace: usize) -> Algorithm {
    use sys::cublasLtMatmulAlgoConfigAttributes_t as Key;
    /// # Safety
    /// The attribute has this type.
    unsafe fn read<T: Default>(algorithm: &sys::cublasLtMatmulAlgo_t, key: Key) -> T {
        let (mut value, mut written) = (T::default(), 0);
        // SAFETY: as promised by the caller; the library writes no more than the room that it is given.
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

/// Algorithms that are known for a combination of types; the library has far fewer.
const IDS: usize = 256;

/// All algorithms that the library knows for these types on these units, and the settings of each.
pub(crate) fn known(
    handle: sys::cublasLtHandle_t,
    descriptors: &Descriptors,
    units: Units,
) -> Result<Vec<(sys::cublasLtMatmulAlgo_t, AlgorithmCapabilities)>, KernelError> {
    use sys::cublasLtMatmulAlgoCapAttributes_t as Key;
    let (compute, scale, [a, b, d]) = descriptors.arithmetic()?;
    let (mut ids, mut count) = ([0; IDS], 0);
    // SAFETY: there is room for as many numbers as are asked for.
    unsafe { sys::cublasLtMatmulAlgoGetIds(handle, compute, scale, a, b, d, d, IDS as i32, ids.as_mut_ptr(), &mut count) }
        .result()
        .map_err(failed("cublasLtMatmulAlgoGetIds"))?;
    let mut all = Vec::new();
    for id in ids.into_iter().take(count.max(0) as usize) {
        // SAFETY: an algorithm is numbers alone.
        let mut algorithm = unsafe { zeroed::<sys::cublasLtMatmulAlgo_t>() };
        // SAFETY: there is room for an algorithm. One that is not for these types after all is passed over.
        if unsafe { sys::cublasLtMatmulAlgoInit(handle, compute, scale, a, b, d, d, id, &mut algorithm) }.result().is_err() {
            continue;
        }
        // SAFETY (all): the header gives these types.
        let abilities = unsafe {
            // CUBLASLT_NUMERICAL_IMPL_FLAGS_FMA alone, of the bits that say what multiplies.
            if units == Units::Plain && able::<u64>(&algorithm, Key::CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS) & 0xff != 1 {
                continue;
            }
            AlgorithmCapabilities {
                tiles: listed(&algorithm, Key::CUBLASLT_ALGO_CAP_TILE_IDS),
                stages: listed(&algorithm, Key::CUBLASLT_ALGO_CAP_STAGES_IDS),
                splits: able::<i32>(&algorithm, Key::CUBLASLT_ALGO_CAP_SPLITK_SUPPORT) != 0,
                schemes: able(&algorithm, Key::CUBLASLT_ALGO_CAP_REDUCTION_SCHEME_MASK),
                swizzles: able::<u32>(&algorithm, Key::CUBLASLT_ALGO_CAP_CTA_SWIZZLING_SUPPORT) != 0,
                options: able(&algorithm, Key::CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX),
            }
        };
        all.push((algorithm, abilities));
    }
    Ok(all)
}

/// What an algorithm can do; what the library does not know of it is 0.
///
/// # Safety
/// The attribute has this type.
unsafe fn able<T: Default>(algorithm: &sys::cublasLtMatmulAlgo_t, key: sys::cublasLtMatmulAlgoCapAttributes_t) -> T {
    let (mut value, mut written) = (T::default(), 0);
    // SAFETY: as promised by the caller; the library writes no more than the room that it is given.
    let _ = unsafe { sys::cublasLtMatmulAlgoCapGetAttribute(algorithm, key, (&raw mut value).cast(), size_of::<T>(), &mut written) };
    value
}

/// An attribute that is a list of numbers.
///
/// # Safety
/// The attribute is one.
unsafe fn listed(algorithm: &sys::cublasLtMatmulAlgo_t, key: sys::cublasLtMatmulAlgoCapAttributes_t) -> Vec<u32> {
    let mut bytes = 0;
    // SAFETY: with no room the library says how many bytes there are.
    let _ = unsafe { sys::cublasLtMatmulAlgoCapGetAttribute(algorithm, key, std::ptr::null_mut(), 0, &mut bytes) };
    let mut list = vec![0u32; bytes / size_of::<u32>()];
    let room = list.len() * size_of::<u32>();
    // SAFETY: there is room for this number of bytes.
    match unsafe { sys::cublasLtMatmulAlgoCapGetAttribute(algorithm, key, list.as_mut_ptr().cast(), room, &mut bytes) }.result() {
        Ok(()) => list,
        Err(_) => vec![],
    }
}

/// An algorithm with these settings; `None` where the library refuses.
pub(crate) fn told(mut algorithm: sys::cublasLtMatmulAlgo_t, told: &AlgorithmConfig) -> Option<sys::cublasLtMatmulAlgo_t> {
    use sys::cublasLtMatmulAlgoConfigAttributes_t as Key;
    let AlgorithmConfig { tile, stages, split, scheme, swizzled, option } = *told;
    let values = [
        (Key::CUBLASLT_ALGO_CONFIG_TILE_ID, tile),
        (Key::CUBLASLT_ALGO_CONFIG_STAGES_ID, stages),
        (Key::CUBLASLT_ALGO_CONFIG_SPLITK_NUM, split as u32),
        (Key::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, scheme),
        (Key::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, u32::from(swizzled)),
        (Key::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, option as u32),
    ];
    // What it has no knob for stays unsaid.
    let plain = |key, value| value == if key == Key::CUBLASLT_ALGO_CONFIG_SPLITK_NUM { 1 } else { 0 };
    for (key, value) in values.into_iter().filter(|(key, value)| !plain(*key, *value)) {
        // SAFETY: the header gives types of four bytes.
        unsafe { sys::cublasLtMatmulAlgoConfigSetAttribute(&mut algorithm, key, (&raw const value).cast(), size_of::<u32>()) }
            .result()
            .ok()?;
    }
    Some(algorithm)
}
