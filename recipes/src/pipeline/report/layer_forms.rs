//! Kernels of several layers: the best measured configuration of each form, with what it computes again.

use super::{Finished, Plan};
use crate::pipeline::PipelineError;
use bench::layer_form::LayerForm;
use bench::unit::{Measured, Milliseconds};
use kernels::KernelSpec;
use kernels::tiles::LayerFlop;
use layouts::measure::space::KernelSpace;
use sdfg::config::KernelConfig;

/// What the knob `form` says of layers, and its name in the report.
const FORMS: [(&str, &str); 2] = [("layers", "overlapped tiles"), ("rows", "rows kept")];

/// Of the plan's kernels.
pub fn layer_forms(run: &Finished, plan: &Plan) -> Result<Vec<LayerForm>, PipelineError> {
    let program = &plan.candidate.program;
    let mut found = Vec::new();
    for kernel in &plan.swept.kernels {
        let units = program.units();
        let Some((_, _, unit)) = units.iter().find(|(_, _, unit)| unit.name() == kernel.name()) else { continue };
        for (knob, name) in FORMS {
            let measured: Vec<(&KernelConfig, f64)> = run
                .store
                .of(kernel.key())
                .filter(|m| m.config.knobs.get("form") == Some(knob))
                .filter_map(|m| Some((&m.config, run.store.ms(m)?)))
                .collect();
            let Some((config, ms)) = measured.iter().copied().min_by(|a, b| a.1.total_cmp(&b.1)) else { continue };
            let Some(flop) = LayerFlop::of(&KernelSpec::new(program, unit)?, config)? else { continue };
            found.push(LayerForm {
                kernel: kernel.name().to_string(),
                form: name.to_string(),
                measured: measured.len() as u64,
                best: Measured(Milliseconds(ms)).into(),
                again: 100.0 * flop.again(),
                label: config.to_string(),
            });
        }
    }
    Ok(found)
}
