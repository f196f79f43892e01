//! The decisions on fusions of contractions, as plans keep them: which pay, and the times that they were judged by.

use super::partial_fusion::{FusionSet, TrialCost};
use super::variant::Variant;
use bench::unit::significant;
use serde::{Deserialize, Serialize};
use transforms::Reason;

/// The decisions on fusions of a recipe's contractions.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PartialFusionLog {
    /// `None` where all fusions pay, or where the partially fused program would equal another variant.
    #[serde(rename = "mixture")]
    pub fusion_set: Option<FusionSet>,
    pub weighed: Vec<TrialCost>,
    /// Names of the trials that were swept, with their fusion sets: they lend their kernels to other programs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub trials: Vec<(String, FusionSet)>,
}

impl PartialFusionLog {
    /// Adds the measured times with and without a fusion to the refusals of unwanted kernels.
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
