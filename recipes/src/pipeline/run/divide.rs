//! Plans whose kernels are divided along one dim of the program, such as the batch, so that packing brings more of them into one dispatch.

use super::candidate::Candidate;
use crate::pipeline::PipelineError;
use kernels::KernelSpec;
use kernels::device::Device;
use kernels::packing::divide::divide;
use std::collections::BTreeMap;

/// The same plan with every kernel that allows it divided among `workers` along the dim that most kernels can be divided along, and packed;
/// `None` where that changes nothing.
///
/// # Errors
/// Kernels that the plan's program does not have.
pub fn divided(candidate: &Candidate, device: &dyn Device, workers: usize) -> Result<Option<Candidate>, PipelineError> {
    let Some(partitioned) = device.partitioned().filter(|_| workers > 1) else { return Ok(None) };
    let program = &candidate.program;
    // Dim → the kernels that can be divided along it.
    let mut found: BTreeMap<String, BTreeMap<String, kernels::KernelSpec>> = BTreeMap::new();
    let mut configs = BTreeMap::new();
    for (_, _, unit) in program.units() {
        let spec = KernelSpec::new(program, &unit)?;
        let Some(config) = candidate.configuration.kernels.get(&spec.name) else { continue };
        for dim in program.dims.keys() {
            if let Some((config, _)) = divide(&spec, config, dim, workers, partitioned) {
                configs.insert((dim.clone(), spec.name.clone()), config);
                found.entry(dim.clone()).or_default().insert(spec.name.clone(), spec.clone());
            }
        }
    }
    let most = found.iter().max_by_key(|(dim, kernels)| (kernels.len(), std::cmp::Reverse(dim.as_str())));
    let Some((dim, kernels)) = most.filter(|(_, kernels)| kernels.len() > 1) else { return Ok(None) };
    let mut divided = Candidate { name: format!("{} · packed along {dim}", candidate.name), packed: true, ..candidate.clone() };
    for kernel in kernels.keys() {
        let (Some(own), Some(config)) = (divided.configuration.kernels.get_mut(kernel), configs.get(&(dim.clone(), kernel.clone()))) else {
            continue;
        };
        if *own != *config {
            divided.measured_as.insert(kernel.clone(), std::mem::replace(own, config.clone()));
        }
    }
    Ok(Some(divided).filter(|divided| divided.measured_as != candidate.measured_as))
}
