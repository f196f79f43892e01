//! What the CUDA of a configuration means as a schedule template.

use crate::error::KernelError;
use crate::kernel::KernelSpec;
use crate::template::ScheduleTemplate;
use sdfg::config::KernelConfig;

pub fn template_of(_spec: &KernelSpec, _config: &KernelConfig) -> Result<Option<ScheduleTemplate>, KernelError> {
    Ok(None)
}
