//! Prints schedule templates: those of a kernel's configurations, and kernels that run as a template says.

use super::out::outln;
use crate::analyze::schedule_template::TemplatedKernel;
use crate::pipeline::PipelineError;
use bench::unit::{Bytes, significant};
use kernels::template::{ScheduleTemplate, TemplateSpace};

/// Prints the first templates of a kernel, the most promising one first.
pub fn list(space: &TemplateSpace, own: Option<&ScheduleTemplate>, most: usize, json: bool) -> Result<(), PipelineError> {
    let shown = space.templates.iter().take(most);
    if json {
        let row = |t: &kernels::template::MeantTemplate| {
            serde_json::json!({
                "template": t.template.to_string(),
                "configurations": t.configurations,
                "cost_bytes": t.cost.is_finite().then_some(t.cost),
                "config": t.config,
                "relayouts": t.relayouts,
                "plan": own == Some(&t.template),
            })
        };
        let object = serde_json::json!({
            "templates": shown.map(row).collect::<Vec<_>>(),
            "all_templates": space.templates.len(),
            "configurations": space.all,
            "looked_at": space.looked_at,
            "without_template": space.without,
            "refused": space.refused,
        });
        outln!("{object}");
        return Ok(());
    }
    for t in shown {
        let mark = if own == Some(&t.template) { "the plan's, " } else { "" };
        let cost = if t.cost.is_finite() { Bytes(t.cost as u64).to_string() } else { "no predicted cost".into() };
        let relayouts = if t.relayouts.is_empty() { String::new() } else { format!(", relayouts of {}", t.relayouts.join(", ")) };
        let configurations = if t.configurations == 1 { "configuration" } else { "configurations" };
        outln!("{}\n  {mark}{cost}, {} {configurations}{relayouts}", t.template, t.configurations);
    }
    outln!("");
    let all = if space.looked_at < space.all { format!(", of {} in all", space.all) } else { String::new() };
    outln!(
        "{} of {} templates; {} configurations were looked at{all}",
        most.min(space.templates.len()),
        space.templates.len(),
        space.looked_at
    );
    if space.without > 0 {
        outln!("{} of these are a library's, or their code is no loop nest of the grammar", space.without);
    }
    if space.refused > 0 {
        outln!("{} cannot be generated", space.refused);
    }
    let dims = |dims: &[(String, u64)]| dims.iter().map(|(index, n)| format!("{index}:{n}")).collect::<Vec<_>>().join(", ");
    // What stays in registers has no schedule.
    let has_schedule = |operator: &str| space.templates.iter().any(|t| t.template.schedules.iter().any(|s| s.operator == operator));
    let operators = space.operators().operators.iter().filter(|o| has_schedule(&o.operator));
    let of: Vec<String> = operators.map(|o| format!("{}[{}]", o.operator, dims(&o.dims))).collect();
    outln!("operators: {}", of.join(" "));
    Ok(())
}

/// Prints what a template made of a kernel.
pub fn tell(of: &TemplatedKernel) {
    outln!("{} as {}", of.kernel, of.template);
    outln!("  configuration: {}", of.config);
    let means = if of.configurations == 1 { "configuration means" } else { "configurations mean" };
    outln!("  {} {means} it, of {} that were looked at", of.configurations, of.looked_at);
    let relayouts =
        if of.relayouts.is_empty() { "none".to_string() } else { format!("{} ({})", of.relayouts.len(), of.relayouts.join(", ")) };
    outln!("  relayouts for it: {relayouts}");
    outln!("  beside the f64 interpreter at small sizes: {:.3} of the tolerance", of.ratio);
    outln!("  alone: {} ms; the plan's own configuration: {} ms", significant(of.alone_ms), significant(of.plan_alone_ms));
    match &of.plan_template {
        Some(own) if *own == of.template => outln!("  it is the template that the plan runs"),
        Some(own) => outln!("  the plan runs {own}"),
        None => outln!("  the plan runs it from a library: {}", of.plan_config),
    }
}
