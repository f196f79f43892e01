//! What was decided on fusions of contractions, as plans keep it: which pay, and what they were compared with.

use super::partial_fusion::{FusionSet, TrialCost};
use super::programs::Variant;
use bench::unit::significant;
use serde::{Deserialize, Serialize};
use transforms::Reason;

/// What was decided on the compositions of a recipe.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartialFusionLog {
    /// `None` where all fused contractions pay, or the partially fused program would be one of the others.
    #[serde(rename = "mixture")]
    pub fusion_set: Option<FusionSet>,
    pub weighed: Vec<TrialCost>,
    /// Programs that lend their kernels to others: those with a composition undone that were swept, by name.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<(String, FusionSet)>,
}

impl PartialFusionLog {
    /// Says of kernels that are not wanted what was measured with them and without.
    pub fn tell(&self, variant: &mut Variant) {
        for refusal in &mut variant.refusals {
            let Reason::NotWanted { kernel, why } = &mut refusal.reason else { continue };
            let row = self.weighed.iter().find(|w| w.changed && (w.subject == *kernel || w.alike.contains(kernel)));
            if let Some((row, (with, instead))) = row.and_then(|row| Some((row, row.ms()?))) {
                let all = if row.alike.is_empty() { "it".to_string() } else { format!("the {} that are alike", row.alike.len() + 1) };
                *why = format!(": {} ms were measured with {all}, {} ms without", significant(with), significant(instead));
            }
        }
    }
}
