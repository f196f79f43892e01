//! Fusion on random programs: it ends, never moves more, and saves launches.

use transforms::{DriverOptions, Expand, Fusion, Stop, moved_bytes, run_pipeline};

#[test]
fn fusion_ends_and_never_moves_more() {
    for seed in 0..60 {
        let program = sdfg::random::program(seed);
        let expanded = run_pipeline(&program, &[&Expand], &DriverOptions::default()).expect("expansion");
        let fused = run_pipeline(&expanded.program, &[&Fusion::default()], &DriverOptions::default()).expect("fusion");
        assert_eq!(fused.stop, Stop::Fixpoint, "seed {seed}");
        for step in &fused.steps {
            assert!(
                step.bytes_after <= step.bytes_before,
                "seed {seed}: {} moves {} -> {} bytes",
                step.summary,
                step.bytes_before,
                step.bytes_after
            );
            assert!(step.launches_after < step.launches_before, "seed {seed}: {}", step.summary);
        }
        assert!(moved_bytes(&fused.program) <= moved_bytes(&expanded.program));
    }
}
