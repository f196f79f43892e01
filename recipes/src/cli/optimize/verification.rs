//! Collects the results of verifying plans.

use super::summary::{RefusedPlan, Verified};
use crate::pipeline::PipelineError;
use crate::pipeline::check::plan::Verification;
use crate::pipeline::choose::plan::PlanRefusal;
use kernels::error::Blame;

/// Results of verification. A wrong plan is refused and left out, and a verified one is taken instead.
pub struct PlanChecks<'a> {
    pub say: &'a dyn Fn(&str),
    pub right: Vec<Verified>,
    pub refused: Vec<RefusedPlan>,
}

impl<'a> PlanChecks<'a> {
    pub fn new(say: &'a dyn Fn(&str)) -> Self {
        PlanChecks { say, right: vec![], refused: vec![] }
    }

    /// The refusal that follows from a check, which is reported and kept; `None` for a correct plan.
    ///
    /// # Errors
    /// Errors that are no verdict on the plan, such as a lost device.
    pub fn refusal(&mut self, name: &str, found: Result<Verification, PipelineError>) -> Result<Option<PlanRefusal>, PipelineError> {
        let refusal = match found {
            Err(PipelineError::Mismatch(what)) => PlanRefusal::Wrong(what),
            // The device works, so other plans may run.
            Err(PipelineError::Kernel(error)) if error.blame() == Blame::Configuration => PlanRefusal::Fails(error.to_string()),
            Err(error) => return Err(error),
            Ok(found) => {
                (self.say)(&format!("verified {name} against {}: worst error {:.3} of tolerance", found.against, found.worst()));
                self.right.push(Verified { plan: name.to_string(), worst: found.worst(), against: found.against });
                return Ok(None);
            }
        };
        (self.say)(&format!("REFUSED: {name} is left out, {refusal}"));
        self.refused.push(RefusedPlan { plan: name.to_string(), why: refusal.clone() });
        Ok(Some(refusal))
    }

    /// The error of a command without a correct plan: the refusal of the first.
    pub fn nothing_is_right(&self) -> PipelineError {
        match self.refused.first() {
            Some(RefusedPlan { plan, why: PlanRefusal::Wrong(what) }) => {
                PipelineError::Mismatch(format!("no plan could be verified, nor the unfused one; {plan}: {what}"))
            }
            Some(RefusedPlan { plan, why }) => {
                PipelineError::Measure(format!("no plan could be verified, nor the unfused one; {plan}: {why}"))
            }
            None => PipelineError::Internal("there is no plan to verify".into()),
        }
    }

    /// The closing warning if plans were refused; it names the plan that is taken.
    pub fn warning(&self, taken: &str) -> Option<String> {
        let mut names: Vec<&str> = self.refused.iter().map(|r| r.plan.as_str()).collect();
        names.dedup();
        let refused = match names.as_slice() {
            [] => return None,
            [one] => format!("the plan `{one}` was found wrong and is refused"),
            several => format!("{} plans were found wrong and are refused (`{}`)", several.len(), several.join("`, `")),
        };
        Some(format!(
            "WARNING: {refused}, which is a fault of Memlet's: please report it. The plan that is handed out is `{taken}`, which was \
             verified; refused ones lie in plans/ with what was found of them"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_plan_is_left_out_and_reported_in_the_end() {
        let said = std::cell::RefCell::new(String::new());
        let say = |text: &str| said.borrow_mut().push_str(text);
        let mut verdicts = PlanChecks::new(&say);
        let wrong = |what: &str| Err(PipelineError::Mismatch(what.into()));
        assert!(verdicts.warning("fused").is_none());
        assert!(matches!(verdicts.refusal("partially fused", wrong("d_w1 is off")), Ok(Some(PlanRefusal::Wrong(_)))));
        assert!(matches!(verdicts.refusal("gemm-fused", wrong("y is off")), Ok(Some(PlanRefusal::Wrong(_)))));
        // A failure of the device is no verdict.
        assert!(verdicts.refusal("fused", Err(PipelineError::Internal("lost".into()))).is_err());
        let lost = kernels::KernelError::GpuLost { what: "it is gone".into() };
        assert!(verdicts.refusal("fused", Err(PipelineError::Kernel(lost))).is_err());
        let refused = kernels::KernelError::Cuda { what: "no such algorithm".into() };
        assert!(matches!(verdicts.refusal("stacked", Err(PipelineError::Kernel(refused))), Ok(Some(PlanRefusal::Fails(_)))));
        assert!(said.borrow().contains("partially fused is left out, its result is wrong: d_w1 is off"));
        let warning = verdicts.warning("unfused").unwrap_or_default();
        assert!(warning.contains("3 plans were found wrong") && warning.contains("handed out is `unfused`"), "{warning}");
        let nothing = verdicts.nothing_is_right();
        assert!(nothing.exit_code() == 3 && nothing.to_string().contains("partially fused: d_w1 is off"), "{nothing}");
    }
}
