//! Schedule templates of a plan's kernels, and the plan with a kernel as a template says.

use crate::pipeline::PipelineError;
use crate::pipeline::measure::device_bench::DeviceBench;
use crate::pipeline::measure::swept_kernel::SweptKernel;
use crate::pipeline::run::{Candidate, Target};
use kernels::device::Device;
use kernels::loops;
use kernels::pool::Pool;
use kernels::template::{KernelOperators, ScheduleTemplate, TemplateError, TemplateSpace};
use kernels::{ConfigSpace, KernelSpec};
use layouts::measure::space::{Bench, Fault, TimingResult};
use layouts::record::median;
use sdfg::config::KernelConfig;
use sdfg::{StateId, Unit};
use serde::Serialize;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A kernel of a plan, and the template that it is to run as.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AskedTemplate {
    pub kernel: String,
    pub template: ScheduleTemplate,
}

impl FromStr for AskedTemplate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (kernel, template) = text.split_once('=').filter(|(kernel, _)| !kernel.contains('[')).ok_or_else(|| {
            format!("`{text}` names no kernel; write it before the template: y='y[GRID,WARP];'. `memlet explain PLAN KERNEL --templates` lists templates")
        })?;
        Ok(AskedTemplate { kernel: kernel.trim().to_string(), template: template.parse().map_err(|e| format!("{e}"))? })
    }
}

/// The template of a kernel in a plan; of a loop over time that of each kernel of its body.
#[derive(Clone, Debug, Serialize)]
pub struct PlanTemplate {
    pub kernel: String,
    /// The text; `None` where a library has the kernel, or its code is no loop nest of the grammar.
    pub template: Option<String>,
    /// The operators that have a schedule, each with its indices and their iterations.
    pub operators: Vec<(String, Vec<(String, u64)>)>,
}

impl PlanTemplate {
    /// # Errors
    /// Kernels and configurations that cannot be generated.
    pub fn of(target: &Target, spec: &KernelSpec, config: &KernelConfig) -> Result<Vec<Self>, PipelineError> {
        if loops::is_loop(spec) {
            let members = loops::members(spec, config);
            let each = members.iter().map(|(member, config)| PlanTemplate::of(target, member, config));
            return Ok(each.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect());
        }
        let template = target.template()(spec, config)?;
        let operators = match &template {
            Some(template) => {
                let all = KernelOperators::of(spec)?;
                let dims = |name: &str| all.get(name).map(|o| (name.to_string(), o.dims.clone()));
                template.schedules.iter().filter_map(|s| dims(&s.operator)).collect()
            }
            None => vec![],
        };
        Ok(vec![PlanTemplate { kernel: spec.name.clone(), template: template.map(|t| t.to_string()), operators }])
    }
}

impl fmt::Display for PlanTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(template) = &self.template else {
            return write!(f, "schedule template of {}: none, its code is no loop nest that is generated here", self.kernel);
        };
        write!(f, "schedule template of {}: {template}", self.kernel)?;
        let dims = |dims: &[(String, u64)]| dims.iter().map(|(index, n)| format!("{index}:{n}")).collect::<Vec<_>>().join(", ");
        let operators: Vec<String> = self.operators.iter().map(|(operator, all)| format!("{operator}[{}]", dims(all))).collect();
        write!(f, "\n  where {}", operators.join(" "))
    }
}

/// A kernel of a candidate, with what is asked of its templates.
pub struct PlanKernel<'a> {
    pub spec: KernelSpec,
    pub config: &'a KernelConfig,
    candidate: &'a Candidate,
    state: StateId,
    unit: Unit,
}

impl<'a> PlanKernel<'a> {
    /// The kernel of this name; `None` if the candidate has none.
    ///
    /// # Errors
    /// Sizes without a value.
    pub fn of(candidate: &'a Candidate, name: &str) -> Result<Option<Self>, PipelineError> {
        let found = candidate.program.units().into_iter().find(|(_, _, unit)| unit.name() == name);
        let (Some((state, _, unit)), Some(config)) = (found, candidate.configuration.kernels.get(name)) else { return Ok(None) };
        Ok(Some(PlanKernel { spec: KernelSpec::new(&candidate.program, &unit)?, config, candidate, state, unit }))
    }

    /// The templates that configurations of a space mean.
    ///
    /// # Errors
    /// Loops over time; kernels that cannot be generated.
    pub fn templates(&self, target: &Target, space: &dyn ConfigSpace) -> Result<TemplateSpace, TemplateError> {
        if matches!(self.spec.unit, Unit::Nested(_)) {
            let why = "it launches several kernels, which have templates of their own".into();
            return Err(TemplateError::NoTemplate { kernel: self.spec.name.clone(), why });
        }
        if target.template()(&self.spec, self.config)?.is_none() && KernelOperators::of(&self.spec).is_err() {
            let why = "its code is no loop nest that is generated here".into();
            return Err(TemplateError::NoTemplate { kernel: self.spec.name.clone(), why });
        }
        Ok(TemplateSpace::new(&self.spec, space, (self.config, &self.candidate.configuration.layouts), target.template())?)
    }
}

/// A kernel of a plan as a template says, checked and timed beside the plan's own configuration.
#[derive(Clone, Debug, Serialize)]
pub struct TemplatedKernel {
    pub kernel: String,
    pub template: String,
    pub config: KernelConfig,
    /// Containers that are held in another layout, and copied.
    pub relayouts: Vec<String>,
    /// Configurations that mean the template, of those that were looked at.
    pub configurations: u64,
    pub looked_at: u64,
    /// The largest error at small sizes ÷ its tolerance, beside the f64 interpreter.
    pub ratio: f64,
    /// Medians of the kernel alone, in milliseconds.
    pub alone_ms: f64,
    pub plan_alone_ms: f64,
    /// The template and the configuration of the plan.
    pub plan_template: Option<String>,
    pub plan_config: KernelConfig,
}

/// Puts a kernel of a candidate into the most promising configuration that means a template, after it has been compared with the
/// interpreter at small sizes.
///
/// # Errors
/// Kernels that the candidate lacks; templates that no configuration means; results that differ from the interpreter's.
pub fn put(
    candidate: &mut Candidate,
    asked: &AskedTemplate,
    target: &Target,
    (device, pool): (&dyn Device, &Pool),
    bad: &dyn Fn(String) -> PipelineError,
) -> Result<TemplatedKernel, PipelineError> {
    let kernel = &asked.kernel;
    let names = || candidate.configuration.kernels.keys().cloned().collect::<Vec<_>>().join(", ");
    let found = PlanKernel::of(candidate, kernel)?
        .ok_or_else(|| bad(format!("there is no kernel `{kernel}` in the plan; there are: {}", names())))?;
    let space = device.space(&found.spec)?;
    let space = found.templates(target, &*space).map_err(|e| bad(e.to_string()))?;
    let plan_template = target.template()(&found.spec, found.config)?;
    let meant = space.find(&asked.template, plan_template.as_ref()).map_err(|e| bad(e.to_string()))?;
    let plan_template = plan_template.map(|t| t.to_string());
    // The plan's own configuration means its template better than any other.
    let own = plan_template.as_ref() == Some(&meant.template.to_string());
    let config = if own { found.config.clone() } else { meant.config.clone() };
    let relayouts = if own { vec![] } else { meant.relayouts.clone() };

    let swept = [SweptKernel::new(&candidate.program, found.state, &found.unit, device)?];
    let mut bench = DeviceBench::new(&candidate.program, &swept, device, pool);
    let fault = |fault: Fault| PipelineError::Measure(format!("`{kernel}` under {config}: {fault}"));
    let ratio = bench.check(kernel, &config).map_err(fault)?.ratio;
    if ratio.is_nan() || ratio > 1.0 {
        let error = format!("`{kernel}` under {config} differs from the f64 interpreter at small sizes by {ratio:.3} times the tolerance");
        return Err(PipelineError::Mismatch(error));
    }
    let mut ms = |config: &KernelConfig| match bench.time(kernel, config, Duration::MAX).map_err(fault)? {
        TimingResult::Samples(samples) => Ok::<f64, PipelineError>(median(&samples).unwrap_or(f64::NAN)),
        TimingResult::ExceededAfter(ms) => Ok(ms),
    };
    let (alone_ms, plan_alone_ms) = (ms(&config)?, ms(found.config)?);
    let (plan_config, template, configurations) = (found.config.clone(), meant.template.to_string(), meant.configurations);
    let told = TemplatedKernel {
        kernel: kernel.clone(),
        template,
        config: config.clone(),
        relayouts,
        configurations,
        looked_at: space.looked_at,
        ratio,
        alone_ms,
        plan_alone_ms,
        plan_template,
        plan_config,
    };
    candidate.configuration.kernels.insert(kernel.clone(), config);
    // What was measured of the plan's own configuration is no measurement of this one.
    if !own {
        candidate.exchanges.retain(|e| e.kernel != *kernel);
        candidate.measured_as.remove(kernel);
    }
    Ok(told)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_stands_before_its_template() {
        let asked: AskedTemplate = "y=y[GRID,WARP]; cta_num=4;".parse().unwrap();
        assert_eq!((asked.kernel.as_str(), asked.template.cta_num), ("y", Some(4)));
        for (wrong, why) in
            [("y[GRID]; cta_num=4;", "names no kernel"), ("y", "names no kernel"), ("y=", "at least one"), ("y=y[G]", "column 3")]
        {
            assert!(wrong.parse::<AskedTemplate>().is_err_and(|e| e.contains(why)), "{wrong}");
        }
    }
}
