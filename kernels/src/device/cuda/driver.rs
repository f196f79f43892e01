//! What the driver says about itself and the GPUs of this machine.

use super::Library;
use crate::error::KernelError;
use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys::{self, CUdevice_attribute_enum as Attribute};

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    pub number: i32,
    pub name: String,
    /// Compute capability, times 10.
    pub capability: u32,
    /// Bytes.
    pub memory: usize,
    pub processors: u32,
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

/// The error of a call to the driver, in the driver's own words.
pub fn failed(what: &str) -> impl Fn(DriverError) -> KernelError + '_ {
    move |e| KernelError::Cuda { what: format!("{what}: {e:?}") }
}

impl Driver {
    /// # Errors
    /// No driver; a driver without a GPU.
    pub fn find() -> Result<Self, KernelError> {
        Library::Driver.load()?;
        result::init().map_err(|e| KernelError::NoGpu { what: format!("{e:?}") })?;
        let mut version = 0;
        // SAFETY: the pointer is to an integer that lives long enough.
        unsafe { sys::cuDriverGetVersion(&mut version) }.result().map_err(failed("cuDriverGetVersion"))?;
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
        processors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
        cache: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
    })
}
