//! Makes kernels of the patterns of a plan, one after the other.

use super::kernel::kernel;
use crate::pass::{Context, Facts, Pass, Rewritten, Stopped};
use crate::refusal::{Reason, Refusal, Site};
use sdfg::Sdfg;

/// Makes one kernel of each pattern that is still whole in the program.
///
/// *Legal when* composition or fusion makes one kernel of all its units; both check that.
/// *Moves less because* the plan says so: its patterns were chosen by the bytes and launches that they save.
#[derive(Clone, Debug, Default)]
pub struct Stitch {
    /// The names of the units of each pattern. No unit is in two patterns.
    pub patterns: Vec<Vec<String>>,
}

/// The name of the pass in logs.
pub const NAME: &str = "stitch";

impl Pass for Stitch {
    fn name(&self) -> &'static str {
        NAME
    }

    fn run(&self, program: &Sdfg, context: &mut Context<'_>) -> Result<Rewritten, Stopped> {
        let units = program.units();
        let mut refusals = Vec::new();
        for pattern in &self.patterns {
            let found: Vec<_> = units.iter().filter(|(_, _, unit)| pattern.iter().any(|name| name == unit.name())).collect();
            // A pattern that was made is one unit.
            let Some((state, _, _)) = found.first().filter(|_| found.len() == pattern.len() && found.len() > 1) else { continue };
            if found.iter().any(|(other, _, _)| other != state) {
                continue;
            }
            let site = Site { state: *state, units: found.iter().map(|(_, node, _)| *node).collect() };
            match kernel(program, &site) {
                Ok((patch, _)) if context.barred.has(&patch.summary) => refusals.push(refusal(&site, pattern, Reason::FoundWrong)),
                Ok((patch, cluster)) => {
                    return Ok(Rewritten::patch(patch).with(Facts { kernels: cluster.into_iter().collect(), ..Facts::default() }));
                }
                Err(reason) => refusals.push(refusal(&site, pattern, reason)),
            }
        }
        Err(Stopped::refused(refusals))
    }

    fn repeats(&self) -> bool {
        true
    }
}

fn refusal(site: &Site, pattern: &[String], reason: Reason) -> Refusal {
    Refusal { transform: NAME, site: site.clone(), units: pattern.to_vec(), reason, origin: None }
}
