//! What verification found of plans.

use super::outcome::Verified;
use crate::pipeline::PipelineError;
use crate::pipeline::verify::Verification;
use kernels::error::Blame;

/// What was found of plans. One that is wrong is left out, and the command fails in the end; what is right about the others is not
/// lost with it.
pub struct Verdicts<'a> {
    pub say: &'a dyn Fn(&str),
    pub right: Vec<Verified>,
    pub wrong: Option<PipelineError>,
}

impl Verdicts<'_> {
    pub fn is_right(&mut self, name: &str, found: Result<Verification, PipelineError>) -> Result<bool, PipelineError> {
        match found {
            Err(PipelineError::Mismatch(what)) => {
                (self.say)(&format!("{name} is left out, its result is wrong: {what}"));
                self.wrong.get_or_insert(PipelineError::Mismatch(format!("{name}: {what}")));
                Ok(false)
            }
            // The device is fine, and so may be other plans.
            Err(PipelineError::Kernel(error)) if error.blame() == Blame::Configuration => {
                (self.say)(&format!("{name} is left out, it does not run: {error}"));
                self.wrong.get_or_insert(PipelineError::Kernel(error));
                Ok(false)
            }
            Err(error) => Err(error),
            Ok(found) => {
                (self.say)(&format!("verified {name} against {}: worst error {:.3} of tolerance", found.against, found.worst()));
                self.right.push(Verified { plan: name.to_string(), worst: found.worst(), against: found.against });
                Ok(true)
            }
        }
    }

    /// What the command ends with.
    pub fn end(self, done: Result<(), PipelineError>) -> Result<(), PipelineError> {
        done.and(self.wrong.map_or(Ok(()), Err))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrong_plan_is_left_out_and_said_in_the_end() {
        let said = std::cell::RefCell::new(String::new());
        let say = |text: &str| said.borrow_mut().push_str(text);
        let mut verdicts = Verdicts { say: &say, right: vec![], wrong: None };
        let wrong = |what: &str| Err(PipelineError::Mismatch(what.into()));
        assert!(!verdicts.is_right("mixed", wrong("d_w1 is off")).unwrap_or(true));
        assert!(!verdicts.is_right("composed", wrong("y is off")).unwrap_or(true));
        // What a device cannot do is no verdict.
        assert!(verdicts.is_right("fused", Err(PipelineError::Internal("lost".into()))).is_err());
        let lost = kernels::KernelError::GpuLost { what: "it is gone".into() };
        assert!(verdicts.is_right("fused", Err(PipelineError::Kernel(lost))).is_err());
        let refused = kernels::KernelError::Cuda { what: "no such algorithm".into() };
        assert!(!verdicts.is_right("stacked", Err(PipelineError::Kernel(refused))).unwrap_or(true));
        assert!(said.borrow().contains("mixed is left out, its result is wrong: d_w1 is off"));
        let ended = verdicts.end(Ok(()));
        assert!(ended.as_ref().is_err_and(|e| e.exit_code() == 3 && e.to_string().contains("mixed: d_w1 is off")), "{ended:?}");
    }
}
