//! Products that a plan leaves to a library of Rust, as generated code in the same layouts: measured ones where the plan's records have
//! some, else the one of the least predicted cost.

use crate::pipeline::PipelineError;
use crate::pipeline::run::candidate::Candidate;
use kernels::device::Device;
use kernels::target::cpu::is_generated;
use kernels::target::cpu::scatter::is_scatter;
use kernels::{KernelSpec, KernelSpecs, contraction, loops};
use layouts::Store;
use sdfg::config::KernelConfig;
use sdfg::{Class, Layout, Unit};
use std::collections::BTreeMap;
use std::path::Path;

/// A kernel that runs generated code where the plan has a library's.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Rechosen {
    pub kernel: String,
    pub was: String,
    pub is: String,
    /// Whether it is the fastest of several measured ones, and not the one that promises most.
    pub measured: bool,
}

/// Gives every product of a plan that a library computes a generated configuration.
///
/// # Errors
/// Products that cannot be generated.
pub fn rechoose(candidate: &mut Candidate, device: &dyn Device, plan: &Path) -> Result<Vec<Rechosen>, PipelineError> {
    let measured = records(plan);
    let (specs, mut found) = (KernelSpecs::of(&candidate.program), Vec::new());
    let mut configs: BTreeMap<String, KernelConfig> = BTreeMap::new();
    for (_, _, unit) in candidate.program.units() {
        let spec = specs.spec(&unit)?;
        let Some(config) = candidate.configuration.kernels.get(&spec.name) else { continue };
        if !loops::is_loop(&spec) {
            if let Some((config, rechosen)) = generated(&spec, config, device, measured.as_ref(), plan)? {
                configs.insert(spec.name.clone(), config);
                found.push(rechosen);
            }
            continue;
        }
        let mut whole = config.clone();
        for (n, (member, own)) in loops::members(&spec, config).iter().enumerate() {
            let Some((own, rechosen)) = generated(member, own, device, measured.as_ref(), plan)? else { continue };
            // The knobs of a loop are those of its kernels, under their numbers.
            whole.knobs.0.retain(|key, _| key.split_once('/').is_none_or(|(number, _)| number != n.to_string()));
            whole.knobs.0.extend(own.knobs.0.into_iter().map(|(key, value)| (format!("{n}/{key}"), value)));
            found.push(Rechosen { kernel: format!("{} in {}", rechosen.kernel, spec.name), ..rechosen });
        }
        configs.insert(spec.name.clone(), whole);
    }
    candidate.configuration.kernels.extend(configs);
    Ok(found)
}

/// A generated configuration of a product that a library computes; `None` for all other kernels.
fn generated(
    spec: &KernelSpec,
    config: &KernelConfig,
    device: &dyn Device,
    measured: Option<&Store>,
    plan: &Path,
) -> Result<Option<(KernelConfig, Rechosen)>, PipelineError> {
    let Unit::Operation(operation) = &spec.unit else { return Ok(None) };
    if operation.class() != Class::Contraction || is_scatter(operation) || contraction::is_windowed(operation) || is_generated(config) {
        return Ok(None);
    }
    let (space, key) = (device.space(spec)?, spec.key());
    let layout = |data: &str| {
        let own = || spec.containers.get(data).map(Layout::row_major).unwrap_or_default();
        config.layouts.get(data).cloned().unwrap_or_else(own)
    };
    let refused = || PipelineError::Plan {
        file: plan.display().to_string(),
        why: format!(
            "a library of Rust computes the product `{}` ({}), and none is generated in its layouts; optimize again with a longer --budget",
            spec.name, config.knobs
        ),
    };
    // The layouts are the slowest digits of a configuration's number.
    let (mut number, mut combinations) = (0, 1);
    for tensor in space.tensors() {
        let place = tensor.layouts.iter().position(|l| *l == layout(&tensor.data)).ok_or_else(refused)? as u64;
        let all = tensor.layouts.len() as u64;
        (number, combinations) = (number * all + place, combinations * all);
    }
    let knobs = space.count() / combinations;
    let numbers: Vec<u64> = (0..knobs).map(|knob| number * knobs + knob).filter(|n| is_generated(&space.config(*n))).collect();
    let costs = space.predicted_costs(&numbers);
    let promising = numbers.iter().zip(costs).min_by(|a, b| a.1.total_cmp(&b.1)).map(|(n, _)| space.config(*n));
    let alike = |config: &KernelConfig| space.tensors().iter().all(|t| config.layouts.get(&t.data) == Some(&layout(&t.data)));
    let timed = measured.into_iter().flat_map(|store| store.of(&key).filter_map(|m| Some((store.ms(m)?, m))));
    let fastest = timed
        .filter(|(_, m)| is_generated(&m.config) && alike(&m.config))
        .min_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, m)| m.config.clone());
    let by_measurement = fastest.is_some();
    let taken = fastest.or(promising).ok_or_else(refused)?;
    let rechosen =
        Rechosen { kernel: spec.name.clone(), was: config.knobs.to_string(), is: taken.knobs.to_string(), measured: by_measurement };
    Ok(Some((taken, rechosen)))
}

/// The records of the run that made a plan, if they lie beside it.
fn records(plan: &Path) -> Option<Store> {
    let folder = if plan.is_dir() { Some(plan) } else { plan.parent() };
    let beside = folder.into_iter().flat_map(|folder| [Some(folder), folder.parent()]).flatten();
    let file = beside.map(|folder| folder.join("records.jsonl")).find(|file| file.is_file())?;
    Store::read(&file).ok()
}
