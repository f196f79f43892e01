//! Kernels that run once, before the first step. In a program without a backward pass parameters are the same in every step, so kernels
//! that read nothing but parameters, or results of such kernels, run when the parameters have been loaded.

use kernels::constant::StepConstants;
use sdfg::Sdfg;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// The kernels of a program that run once, and the containers whose values are the same in every step.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Once {
    pub kernels: BTreeSet<String>,
    /// Parameters, and what kernels that run once write. A relayout of one of these runs once, too.
    pub containers: BTreeSet<String>,
}

impl Once {
    /// Nothing for programs with a backward pass, or that write a parameter.
    pub fn of(program: &Sdfg) -> Once {
        let StepConstants { kernels, containers } = StepConstants::of(program);
        Once { kernels, containers }
    }
}

/// What was done once for all steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DoneOnce {
    /// Parameters that the plan holds in another order than the recipe's: bytes, and milliseconds of packing them as they were loaded.
    pub packed_bytes: u64,
    pub packed_ms: f64,
    /// Kernels and relayouts that read nothing but parameters, milliseconds of running them, and bytes of the results that steps read.
    pub kernels: usize,
    pub relayouts: usize,
    pub ms: f64,
    pub result_bytes: u64,
}

impl DoneOnce {
    pub fn is_nothing(&self) -> bool {
        self.packed_bytes == 0 && self.kernels == 0 && self.relayouts == 0
    }
}

impl fmt::Display for DoneOnce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |bytes: u64| bytes as f64 / 1e6;
        let mut parts = Vec::new();
        if self.packed_bytes > 0 {
            parts.push(format!(
                "{:.2} MB of parameters packed into the plan's layouts as they were loaded, {:.1} ms",
                megabytes(self.packed_bytes),
                self.packed_ms
            ));
        }
        if self.kernels + self.relayouts > 0 {
            parts.push(format!(
                "{} kernels and {} relayouts of parameters alone, {:.2} ms, with {:.2} MB of results",
                self.kernels,
                self.relayouts,
                self.ms,
                megabytes(self.result_bytes)
            ));
        }
        write!(f, "done once, in no step: {}", parts.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::variants::programs::programs;

    fn recipe(train: &str) -> Sdfg {
        let text = format!(
            "model: m\ndims: {{n: 2, c: 3, o: 4}}\ninputs: {{x: [n, c]}}\nparameters: {{k: [o, c], v: [o], g: [o]}}\nsteps:\n  \
             - \"s[o] = g * rsqrt(v * v + 1)\"\n  - \"t[n,o] = k[o,c] * x[n,c]\"\n  - \"y[n,o] = t * s[o]\"\n{train}"
        );
        let recipe = crate::load::load_str("m.yaml", &text, &[]).unwrap_or_else(|errors| panic!("{errors}"));
        programs(&recipe, false).unwrap_or_else(|error| panic!("{error}")).unfused
    }

    #[test]
    fn what_parameters_alone_decide_runs_once_unless_they_are_trained() {
        let once = Once::of(&recipe(""));
        assert!(once.kernels.contains("s") && !once.kernels.contains("y"), "{once:?}");
        assert!(once.containers.is_superset(&["g", "k", "s", "v"].map(String::from).into()) && !once.containers.contains("t"), "{once:?}");
        assert_eq!(Once::of(&recipe("train: {upstream: y}\n")), Once::default());
    }
}
