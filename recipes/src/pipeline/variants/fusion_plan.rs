//! A plan of fusion that a variant carries out: what it was made by, its patterns, and the kernels that they have become.

use super::planning::Planning;
use super::stitching::{StatePlan, stitching};
use crate::pipeline::PipelineError;
use sdfg::Sdfg;
use transforms::Stitched;
use transforms::stitch::Stitch;

/// A plan of fusion with what it was made of.
#[derive(Clone, Debug)]
pub struct FusionPlan {
    /// The program whose units the patterns name.
    pub separate: Sdfg,
    pub planning: Planning,
    pub plans: Vec<StatePlan>,
    /// The kernels outside of loops that patterns have become.
    pub made: Vec<Stitched>,
}

impl FusionPlan {
    /// The plan of a program whose operations are expanded but for contractions; `None` if it has no pattern.
    ///
    /// # Errors
    /// As [`stitching`].
    pub fn of(separate: &Sdfg, planning: &Planning) -> Result<Option<Self>, PipelineError> {
        let plans = stitching(separate, planning)?;
        let plan = FusionPlan { separate: separate.clone(), planning: planning.clone(), plans, made: vec![] };
        Ok(plan.plans.iter().any(|plan| !plan.chosen.is_empty()).then_some(plan))
    }

    /// The pass that makes the plan's kernels.
    pub fn pass(&self) -> Stitch {
        let patterns = self.plans.iter().flat_map(StatePlan::patterns).collect();
        Stitch { patterns, again: self.plans.iter().flat_map(StatePlan::again).collect() }
    }

    /// The same plan, once its kernels are made.
    pub fn carried_out(self, made: &[Stitched]) -> Self {
        FusionPlan { made: made.to_vec(), ..self }
    }

    /// Candidates of all states and loops, and whether every plan is proven to be the best of them.
    pub fn proof(&self) -> (usize, bool) {
        let candidates = self.plans.iter().map(|plan| plan.problem.patterns.len()).sum();
        (candidates, self.plans.iter().all(StatePlan::is_proven))
    }

    /// What a choice among programs is relative to because of this plan, in a sentence.
    pub fn relative(&self) -> String {
        let (candidates, proven) = self.proof();
        let patterns: usize = self.plans.iter().map(|plan| plan.chosen.len()).sum();
        let proof = if proven { "proven to save most of them" } else { "not proven to save most of them" };
        let scores = &self.planning.scores;
        format!("the stitched program is one plan of fusion: {patterns} of {candidates} candidate patterns, {proof} by scores of {scores}")
    }
}
