//! What the driver says about itself and the GPUs of this machine.

use crate::error::KernelError;
use crate::target::cuda::CudaLibrary;
use crate::target::cuda::emit::Chip;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute, CUresult};

/// The version of CUDA that these bindings and the code that NVRTC makes need.
const NEEDED: (i32, i32) = (13, 0);

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub number: i32,
    pub name: String,
    /// Compute capability, times 10.
    pub capability: u32,
    /// Bytes.
    pub memory: usize,
    pub chip: Chip,
    /// Bytes of the second-level cache.
    pub cache: usize,
}

/// The driver and its GPUs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Driver {
    /// The newest version of CUDA that it runs.
    pub version: (i32, i32),
    pub gpus: Vec<Gpu>,
}

/// The error of a call to the driver, in the driver's own words, by what it says about the calls after it.
///
/// The driver's manual names the errors after which a context "is in an inconsistent state and any further CUDA work will return the
/// same error": those that a kernel can cause, and those that it cannot.
pub fn failed(what: &str) -> impl Fn(DriverError) -> KernelError + '_ {
    move |e| {
        let what = format!("{what}: {e:?}");
        match e.0 {
            CUresult::CUDA_ERROR_ILLEGAL_ADDRESS
            | CUresult::CUDA_ERROR_LAUNCH_TIMEOUT
            | CUresult::CUDA_ERROR_ASSERT
            | CUresult::CUDA_ERROR_HARDWARE_STACK_ERROR
            | CUresult::CUDA_ERROR_ILLEGAL_INSTRUCTION
            | CUresult::CUDA_ERROR_MISALIGNED_ADDRESS
            | CUresult::CUDA_ERROR_INVALID_ADDRESS_SPACE
            | CUresult::CUDA_ERROR_INVALID_PC
            | CUresult::CUDA_ERROR_LAUNCH_FAILED => KernelError::Crash { what },
            CUresult::CUDA_ERROR_DEINITIALIZED
            | CUresult::CUDA_ERROR_DEVICE_UNAVAILABLE
            | CUresult::CUDA_ERROR_NO_DEVICE
            | CUresult::CUDA_ERROR_INVALID_CONTEXT
            | CUresult::CUDA_ERROR_CONTEXT_IS_DESTROYED
            | CUresult::CUDA_ERROR_ECC_UNCORRECTABLE
            | CUresult::CUDA_ERROR_NVLINK_UNCORRECTABLE
            | CUresult::CUDA_ERROR_CONTAINED
            | CUresult::CUDA_ERROR_SYSTEM_NOT_READY
            | CUresult::CUDA_ERROR_EXTERNAL_DEVICE
            | CUresult::CUDA_ERROR_UNKNOWN => KernelError::GpuLost { what },
            _ => KernelError::Cuda { what },
        }
    }
}

/// Refuses a driver older than what it is asked to run.
///
/// # Errors
/// An older driver.
pub fn new_enough(has: (i32, i32), needs: (i32, i32)) -> Result<(), KernelError> {
    if has >= needs { Ok(()) } else { Err(KernelError::OldDriver { has, needs, advice: CudaLibrary::Driver.advice() }) }
}

impl Driver {
    /// # Errors
    /// No driver; one that is too old; one without a GPU.
    pub fn find() -> Result<Self, KernelError> {
        CudaLibrary::Driver.load()?;
        let mut version = 0;
        // SAFETY: the pointer is to an integer that lives long enough. The version may be asked for before anything else.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("cuDriverGetVersion"))?;
        // Newer functions than an old driver has must not be called at all.
        new_enough((version / 1000, version % 1000 / 10), NEEDED)?;
        result::init().map_err(|e| KernelError::NoGpu { what: format!("{e:?}") })?;
        let count = result::device::get_count().map_err(failed("cuDeviceGetCount"))?;
        let gpus = (0..count).map(gpu).collect::<Result<Vec<_>, _>>()?;
        if gpus.is_empty() {
            return Err(KernelError::NoGpu { what: "the driver knows no device".into() });
        }
        Ok(Driver { version: (version / 1000, version % 1000 / 10), gpus })
    }
}

fn gpu(number: i32) -> Result<Gpu, KernelError> {
    let device = result::device::get(number).map_err(failed("cuDeviceGet"))?;
    let attribute = |attribute| -> Result<u32, KernelError> {
        // SAFETY: the device was just asked for.
        let value = unsafe { result::device::get_attribute(device, attribute) }.map_err(failed("cuDeviceGetAttribute"))?;
        Ok(value.max(0) as u32)
    };
    let major = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let minor = attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?;
    Ok(Gpu {
        number,
        name: result::device::get_name(device).map_err(failed("cuDeviceGetName"))?,
        capability: 10 * major + minor,
        // SAFETY: as above.
        memory: unsafe { result::device::total_mem(device) }.map_err(failed("cuDeviceTotalMem"))?,
        chip: Chip {
            shared: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?.into(),
            processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.into(),
            tensor_cores: major >= 8,
        },
        cache: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Blame;

    #[test]
    fn an_old_driver_is_told_what_is_needed() {
        assert!(new_enough((13, 0), (13, 0)).is_ok() && new_enough((13, 1), (13, 0)).is_ok() && new_enough((14, 0), (13, 2)).is_ok());
        let error = new_enough((12, 8), (13, 0)).expect_err("older");
        assert!(error.missing());
        let text = error.to_string();
        assert!(text.contains("CUDA 12.8") && text.contains("CUDA 13.0") && text.contains("driver"), "{text}");
    }

    #[test]
    fn errors_are_told_apart_by_what_comes_after_them() {
        // `failed` puts the driver's words into the text, which loads it: here the variants are made as it makes them.
        let what = || "launching `softmax`: an illegal memory access".to_string();
        assert_eq!(KernelError::Crash { what: what() }.blame(), Blame::Crash);
        assert_eq!(KernelError::GpuLost { what: what() }.blame(), Blame::Device);
        assert_eq!(KernelError::GpuMemory { gpu: "G".into(), bytes: 9, free: 1, total: 2 }.blame(), Blame::Device);
        assert_eq!(KernelError::Scratch { kernel: "k".into(), bytes: 9, free: 1 }.blame(), Blame::Configuration);
        assert_eq!(KernelError::Cuda { what: what() }.blame(), Blame::Configuration);
    }
}
