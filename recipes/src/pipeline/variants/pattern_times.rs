//! What each pattern of a plan of fusion takes as one kernel, and its units apart, as measured.

use super::execution_scores::RunPattern;
use super::fusion_plan::FusionPlan;
use crate::pipeline::PipelineError;
use kernels::KernelSpecs;
use layouts::{SelectionProblem, Store};
use std::collections::BTreeMap;

/// Picoseconds of a millisecond.
const MS: f64 = 1e9;

/// Least times of the kernels of a plan of fusion and of the units that they are made of, each alone with its dispatch.
pub struct PatternTimes<'a> {
    /// Content hash of each unit of the separate program, by which records know it.
    units: BTreeMap<String, String>,
    kernels: BTreeMap<&'a str, &'a str>,
    store: &'a Store,
}

impl<'a> PatternTimes<'a> {
    /// The times of a plan, and of the program that it was carried out in.
    ///
    /// # Errors
    /// Units that are no kernels: Memlet is at fault.
    pub fn of(plan: &FusionPlan, problem: &'a SelectionProblem, store: &'a Store) -> Result<Self, PipelineError> {
        let specs = KernelSpecs::of(&plan.separate);
        let units: Result<_, PipelineError> =
            plan.separate.units().iter().map(|(_, _, unit)| Ok((unit.name().to_string(), specs.spec(unit)?.key()))).collect();
        let kernels = problem.kernels.iter().map(|kernel| (kernel.name.as_str(), kernel.key.as_str())).collect();
        Ok(PatternTimes { units: units?, kernels, store })
    }

    fn least(&self, key: &str) -> Option<f64> {
        self.store.of(key).filter_map(|m| self.store.ms(m)).min_by(f64::total_cmp)
    }

    /// Milliseconds of units of the separate program, one after the other; `None` where one was not measured.
    pub fn apart(&self, units: &[String]) -> Option<f64> {
        units.iter().map(|unit| self.least(self.units.get(unit)?)).sum()
    }

    /// Milliseconds of a kernel of the program.
    pub fn together(&self, kernel: &str) -> Option<f64> {
        self.least(self.kernels.get(kernel)?)
    }

    /// The patterns of the plan that have become kernels and have times, as their units have. Those of loops' bodies have none.
    pub fn run_patterns(&self, plan: &FusionPlan) -> Vec<RunPattern> {
        let states = plan.plans.iter().filter(|state| !state.is_loop);
        let found = states.flat_map(|state| state.chosen.iter().zip(state.patterns())).filter_map(|(chosen, units)| {
            let kernel = &plan.made.iter().find(|made| made.units == units)?.kernel;
            let saved_ps = ((self.apart(&units)? - self.together(kernel)?) * MS).round() as i64;
            Some(RunPattern { form: chosen.form.clone(), model_ps: chosen.model_ps, more_ps: chosen.more_ps, saved_ps })
        });
        found.collect()
    }
}
