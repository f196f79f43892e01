//! Memory usage efficiency: MUE = Q/D · B/B̂ · 100, with its two factors.
//!
//! Q is the least number of bytes that must move: each tensor at the kernel's outer memlets once. D are the bytes that the implementation
//! moves, B is the bandwidth it reaches, and B̂ the copy bandwidth of the same run. A kernel is at 100 only if it moves every byte once
//! *and* moves it as fast as a copy does.

use crate::unit::{Bytes, Measured, Milliseconds};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum MueError {
    #[error("kernel {kernel} moves {moved} bytes, less than the {least} that its tensors hold: count every tensor in D once")]
    BelowLeast { kernel: String, moved: u64, least: u64 },
    #[error("kernel {kernel} moves nothing: MUE is only defined for kernels with tensors in memory")]
    NothingMoved { kernel: String },
    #[error("kernel {kernel}: {what} is {value}, which is no positive finite number; measure it again")]
    NotPositive { kernel: String, what: &'static str, value: f64 },
}

/// One term of Q.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorVolume {
    pub tensor: String,
    pub bytes: Bytes,
}

/// The bandwidth of a plain copy, read plus write, as measured in the same run.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CopyBandwidth {
    pub gigabytes_per_second: Measured<f64>,
    /// Whether the copy wrote with non-temporal stores, which spare the read of the destination.
    pub non_temporal: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Mue {
    /// The tensors that add up to Q.
    pub tensors: Vec<TensorVolume>,
    /// Q/D, at most 1.
    pub io: f64,
    /// B/B̂; above 1 where a working set fits a cache that the copy does not.
    pub bandwidth: f64,
}

impl Mue {
    /// # Errors
    /// If `moved` (D) is zero or less than the tensors' sum (Q), or a time or bandwidth is not a positive number.
    pub fn new(
        kernel: &str,
        tensors: Vec<TensorVolume>,
        moved: Bytes,
        time: Measured<Milliseconds>,
        copy: CopyBandwidth,
    ) -> Result<Mue, MueError> {
        let least: Bytes = tensors.iter().map(|t| t.bytes).sum();
        let kernel = || kernel.to_string();
        if moved.0 == 0 {
            return Err(MueError::NothingMoved { kernel: kernel() });
        }
        if moved < least {
            return Err(MueError::BelowLeast { kernel: kernel(), moved: moved.0, least: least.0 });
        }
        for (what, value) in [("its time in ms", time.0.0), ("the copy bandwidth in GB/s", copy.gigabytes_per_second.0)] {
            if !(value.is_finite() && value > 0.0) {
                return Err(MueError::NotPositive { kernel: kernel(), what, value });
            }
        }
        // Bytes per millisecond are kilobytes per second: 10⁶ kilobytes per second are a gigabyte per second.
        let reached = moved.0 as f64 / time.0.0 / 1e6;
        Ok(Mue { tensors, io: least.0 as f64 / moved.0 as f64, bandwidth: reached / copy.gigabytes_per_second.0 })
    }

    pub fn percent(&self) -> f64 {
        self.io * self.bandwidth * 100.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(bytes: u64) -> Vec<TensorVolume> {
        vec![TensorVolume { tensor: "x".into(), bytes: Bytes(bytes) }]
    }

    const COPY: CopyBandwidth = CopyBandwidth { gigabytes_per_second: Measured(20.0), non_temporal: true };

    #[test]
    fn factors_multiply() {
        // 20 MB in 2 ms are 10 GB/s: half of the copy; half of the 20 MB was needed.
        let mue = Mue::new("SM", tensor(10_000_000), Bytes(20_000_000), Measured(Milliseconds(2.0)), COPY).unwrap();
        assert_eq!((mue.io, mue.bandwidth, mue.percent()), (0.5, 0.5, 25.0));
    }

    #[test]
    fn impossible_inputs_are_refused() {
        let time = Measured(Milliseconds(1.0));
        assert!(matches!(Mue::new("k", vec![], Bytes(0), time, COPY), Err(MueError::NothingMoved { .. })));
        assert!(matches!(Mue::new("k", tensor(9), Bytes(8), time, COPY), Err(MueError::BelowLeast { .. })));
        assert!(matches!(Mue::new("k", tensor(8), Bytes(8), Measured(Milliseconds(0.0)), COPY), Err(MueError::NotPositive { .. })));
        assert!(matches!(Mue::new("k", tensor(8), Bytes(8), Measured(Milliseconds(f64::NAN)), COPY), Err(MueError::NotPositive { .. })));
    }
}
