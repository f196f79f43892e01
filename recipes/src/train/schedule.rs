//! Inputs that the command line sets: one number in all steps, or a schedule.

use std::fmt;
use std::str::FromStr;

/// What an input is in each step.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum InputSchedule {
    Constant(f64),
    /// Rises in a straight line to `peak` over `warmup` steps, then falls as half a cosine to `end`, which it reaches after `over` steps in
    /// all, and stays there.
    Cosine {
        peak: f64,
        warmup: u64,
        end: f64,
        /// `None`: over all steps of the run.
        over: Option<u64>,
    },
}

impl InputSchedule {
    /// The same with its length, if it is that of the run.
    pub fn over(self, steps: u64) -> InputSchedule {
        match self {
            InputSchedule::Cosine { peak, warmup, end, over } => {
                InputSchedule::Cosine { peak, warmup, end, over: Some(over.unwrap_or(steps)) }
            }
            constant => constant,
        }
    }

    /// The value in a step, counted from 0.
    pub fn at(&self, step: u64) -> f64 {
        match *self {
            InputSchedule::Constant(value) => value,
            InputSchedule::Cosine { peak, warmup, .. } if step < warmup => peak * (step + 1) as f64 / warmup as f64,
            InputSchedule::Cosine { peak, warmup, end, over } => {
                let length = over.unwrap_or(warmup).saturating_sub(warmup).max(1);
                let part = ((step - warmup) as f64 / length as f64).min(1.0);
                end + (peak - end) * 0.5 * (1.0 + (std::f64::consts::PI * part).cos())
            }
        }
    }
}

impl fmt::Display for InputSchedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            InputSchedule::Constant(value) => write!(f, "{value}"),
            InputSchedule::Cosine { peak, warmup, end, over } => {
                write!(f, "cosine({peak}, warmup: {warmup}, end: {end}")?;
                over.map_or(Ok(()), |over| write!(f, ", over: {over}"))?;
                f.write_str(")")
            }
        }
    }
}

const EXPECTED: &str = "write a number, or cosine(0.001, warmup: 20, end: 0.0001, over: 200), of which all but the first may be left out";

impl FromStr for InputSchedule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no value of an input: {EXPECTED}");
        let number = |text: &str| text.trim().parse::<f64>().ok().filter(|v| v.is_finite()).ok_or_else(wrong);
        let Some(inner) = text.trim().strip_prefix("cosine(").and_then(|rest| rest.strip_suffix(')')) else {
            return Ok(InputSchedule::Constant(number(text)?));
        };
        let mut parts = inner.split(',');
        let peak = number(parts.next().unwrap_or_default())?;
        let (mut warmup, mut end, mut length) = (0, 0.0, None);
        for part in parts {
            let (option, value) = part.split_once(':').ok_or_else(wrong)?;
            let count = || value.trim().parse::<u64>().map_err(|_| wrong());
            match option.trim() {
                "warmup" => warmup = count()?,
                "over" => length = Some(count()?),
                "end" => end = number(value)?,
                _ => return Err(wrong()),
            }
        }
        Ok(InputSchedule::Cosine { peak, warmup, end, over: length })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schedule_rises_and_falls() {
        let schedule: InputSchedule = "cosine(0.1, warmup: 4, end: 0.02)".parse().expect("a schedule");
        let schedule = schedule.over(12);
        let values: Vec<f64> = (0..14).map(|step| schedule.at(step)).collect();
        assert_eq!(values[..5], [0.025, 0.05, 0.1 * 3.0 / 4.0, 0.1, 0.1]);
        assert!(values[4..13].windows(2).all(|pair| pair[1] < pair[0]), "{values:?}");
        // Half way between peak and end in the middle, and at the end from then on.
        assert!((values[8] - 0.06).abs() < 1e-15, "{values:?}");
        assert_eq!(values[12..], [0.02, 0.02]);
        assert_eq!(schedule.to_string().parse(), Ok(schedule));
    }

    #[test]
    fn a_value_is_a_number_or_a_schedule() {
        assert_eq!("1e-3".parse(), Ok(InputSchedule::Constant(1e-3)));
        assert_eq!("cosine(1)".parse(), Ok(InputSchedule::Cosine { peak: 1.0, warmup: 0, end: 0.0, over: None }));
        for wrong in ["", "fast", "nan", "cosine()", "cosine(1, 2)", "cosine(1, warm: 2)", "cosine(1, warmup: -2)", "sine(1)"] {
            assert!(wrong.parse::<InputSchedule>().is_err_and(|why| why.contains("write a number, or cosine(")), "{wrong}");
        }
    }
}
