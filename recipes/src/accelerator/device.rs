//! The accelerator: how fast it computes, how fast it moves, and how much it holds.

use serde::{Deserialize, Serialize};
use serde_yaml::Spanned;
use std::path::Path;

/// A device for which plans are made instead of measured.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Accelerator {
    pub name: String,
    /// Operations a second.
    pub flop_per_second: f64,
    /// Bytes a second between the outer and the on-chip memory.
    pub bytes_per_second: f64,
    /// Bytes of the on-chip memory.
    pub on_chip_bytes: u64,
}

/// What is wrong with the file of a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {why}")]
pub struct DeviceError {
    /// File, line and column.
    pub place: String,
    pub why: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Described {
    accelerator: Spanned<String>,
    flop_per_second: Spanned<f64>,
    bytes_per_second: Spanned<f64>,
    on_chip_bytes: Spanned<u64>,
}

impl Accelerator {
    /// Reads a description.
    ///
    /// # Errors
    /// A file that cannot be read, is no such description, or has a number that no device has; each with its place.
    pub fn read(path: &Path) -> Result<Accelerator, DeviceError> {
        let file = path.display().to_string();
        let text = std::fs::read_to_string(path)
            .map_err(|e| DeviceError { place: file.clone(), why: format!("the description of the device cannot be read: {e}") })?;
        Accelerator::parse(&file, &text)
    }

    /// Reads a description from text; `file` is what errors call it.
    ///
    /// # Errors
    /// As [`Accelerator::read`].
    pub fn parse(file: &str, text: &str) -> Result<Accelerator, DeviceError> {
        const KEYS: &str = "a device has the keys accelerator, flop_per_second, bytes_per_second and on_chip_bytes";
        let described: Described = serde_yaml::from_str(text).map_err(|error| {
            let place = error.location().map_or(file.to_string(), |l| format!("{file}:{}:{}", l.line().max(1), l.column().max(1)));
            let said = error.without_snippet().to_string();
            let said = said.lines().next().unwrap_or_default().trim().trim_end_matches('.').to_string();
            DeviceError { place, why: format!("{said}; {KEYS}") }
        })?;
        let number = |what: &str, value: &Spanned<f64>| {
            let place = format!("{file}:{}:{}", value.referenced.line().max(1), value.referenced.column().max(1));
            let positive = value.value.is_finite() && value.value > 0.0;
            positive
                .then_some(value.value)
                .ok_or_else(|| DeviceError { place, why: format!("`{what}` is {}; write a number above 0", value.value) })
        };
        let bytes = &described.on_chip_bytes;
        let place = || format!("{file}:{}:{}", bytes.referenced.line().max(1), bytes.referenced.column().max(1));
        if !(1024..=1 << 32).contains(&bytes.value) {
            let why = format!("`on_chip_bytes` is {}; write a number from 1024 to 4294967296", bytes.value);
            return Err(DeviceError { place: place(), why });
        }
        Ok(Accelerator {
            name: described.accelerator.value,
            flop_per_second: number("flop_per_second", &described.flop_per_second)?,
            bytes_per_second: number("bytes_per_second", &described.bytes_per_second)?,
            on_chip_bytes: bytes.value,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GOOD: &str = "accelerator: small\nflop_per_second: 200e9\nbytes_per_second: 1.5e9\non_chip_bytes: 786432\n";

    #[test]
    fn a_description_is_read() {
        let found = Accelerator::parse("d.yaml", GOOD).unwrap();
        assert_eq!((found.flop_per_second, found.bytes_per_second, found.on_chip_bytes), (200e9, 1.5e9, 786_432));
    }

    #[test]
    fn what_is_wrong_with_a_description_is_said_with_its_place() {
        for (from, to, place, words) in [
            ("200e9", "0", "d.yaml:2:18", "above 0"),
            ("1.5e9", "fast", "d.yaml:3:", "bytes_per_second"),
            ("786432", "100", "d.yaml:4:16", "from 1024"),
            ("on_chip_bytes", "on_chip", "d.yaml:", "on_chip_bytes"),
            ("flop_per_second: 200e9\n", "", "d.yaml", "flop_per_second"),
        ] {
            let error = Accelerator::parse("d.yaml", &GOOD.replace(from, to)).unwrap_err().to_string();
            assert!(error.starts_with(place) && error.contains(words), "{error}");
        }
    }
}
