//! What each pattern of a plan of fusion takes as one kernel, and its units apart, as measured.

use super::sweep::SweptProgram;
use crate::pipeline::PipelineError;
use crate::pipeline::variants::FusionPlan;
use kernels::KernelSpecs;
use layouts::Store;
use std::collections::BTreeMap;

/// Least times of the kernels of a plan of fusion and of the units that they are made of, each alone with its dispatch.
pub struct PatternTimes<'a> {
    /// Content hash of each unit of the separate program, by which records know it.
    units: BTreeMap<String, String>,
    kernels: BTreeMap<&'a str, &'a str>,
    store: &'a Store,
}

impl<'a> PatternTimes<'a> {
    /// The times of a plan and of the program that it was carried out in.
    ///
    /// # Errors
    /// Units that are no kernels: Memlet is at fault.
    pub fn of(plan: &FusionPlan, swept: &'a SweptProgram, store: &'a Store) -> Result<Self, PipelineError> {
        let specs = KernelSpecs::of(&plan.separate);
        let units: Result<_, PipelineError> =
            plan.separate.units().iter().map(|(_, _, unit)| Ok((unit.name().to_string(), specs.spec(unit)?.key()))).collect();
        let kernels = swept.problem.kernels.iter().map(|kernel| (kernel.name.as_str(), kernel.key.as_str())).collect();
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
}
