//! Where a number comes from, and the open file that keeps every raw sample.

use crate::atomic;
pub use crate::machine::Machine;
use crate::protocol::Cache;
use indexmap::IndexMap;
use serde::{Deserialize, Serialize};
use std::fmt::Write;
use std::path::Path;
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

/// Everything needed to reproduce the numbers, or to know why they cannot be reproduced.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Provenance {
    pub machine: Machine,
    /// As the compiler names itself, e.g. the first line of `cc --version`.
    pub compiler: String,
    /// Memlet, libraries and peers, each with its version.
    pub versions: IndexMap<String, String>,
    /// Commit of the source tree, `+` behind it if files were changed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The command line that reproduces the numbers.
    pub command: String,
    /// UTC, ISO 8601.
    pub date: String,
}

impl Provenance {
    /// This machine, this process, now.
    pub fn here(compiler: impl Into<String>, versions: IndexMap<String, String>) -> Provenance {
        Provenance {
            machine: Machine::here(),
            compiler: compiler.into(),
            versions,
            commit: commit(),
            command: command_line(std::env::args()),
            date: date(SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())),
        }
    }
}

/// The arguments as a shell would take them, the program by its file name.
pub fn command_line(arguments: impl IntoIterator<Item = String>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let mut words = Vec::new();
    for (n, argument) in arguments.into_iter().enumerate() {
        let word = if n == 0 { argument.rsplit('/').next().unwrap_or_default().to_string() } else { argument };
        let quote = word.is_empty() || !word.chars().all(plain);
        words.push(if quote { format!("'{}'", word.replace('\'', r"'\''")) } else { word });
    }
    words.join(" ")
}

/// The commit of the tree that this crate was built from, if that tree is still there and under git.
fn commit() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").arg("-C").arg(env!("CARGO_MANIFEST_DIR")).args(arguments).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_string())
    };
    let id = git(&["rev-parse", "--short=12", "HEAD"])?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"])?;
    Some(if changed.is_empty() { id } else { format!("{id}+") })
}

/// ISO 8601 in UTC from seconds since 1970 (days to civil date after Hinnant's `civil_from_days`).
fn date(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    let shifted = days + 719_468;
    let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 { shifted_month + 3 } else { shifted_month - 9 };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", rest / 3600, rest / 60 % 60, rest % 60)
}

/// One raw sample, one line of `records.csv`.
#[derive(Clone, Debug, PartialEq)]
pub struct Record {
    pub program: String,
    /// A kernel, or `forward`, `backward`, `step` for a plan as a whole.
    pub subject: String,
    pub contender: String,
    /// Layouts and knobs, or empty.
    pub configuration: String,
    pub cache: Cache,
    pub sample: u64,
    pub milliseconds: f64,
}

/// Writes `path` whole: the provenance as `#` lines, a header, one line for each sample.
///
/// # Errors
/// Errors of the file system.
pub fn write(path: &Path, provenance: &Provenance, records: &[Record]) -> std::io::Result<()> {
    atomic::write(path, csv(provenance, records).as_bytes())
}

fn csv(provenance: &Provenance, records: &[Record]) -> String {
    let mut text = String::new();
    let mut note = |key: &str, value: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# {key}: {}", value.replace(['\n', '\r'], " "));
    };
    note("machine", &provenance.machine.line());
    note("os", &provenance.machine.os);
    note("compiler", &provenance.compiler);
    for (name, version) in &provenance.versions {
        note(name, version);
    }
    note("commit", provenance.commit.as_deref().unwrap_or("unknown"));
    note("command", &provenance.command);
    note("date", &provenance.date);
    text.push_str("program,subject,contender,configuration,cache,sample,milliseconds\n");
    for r in records {
        let fields = [&r.program, &r.subject, &r.contender, &r.configuration].map(|f| quoted(f));
        let _ = writeln!(text, "{},{},{},{}", fields.join(","), r.cache, r.sample, r.milliseconds);
    }
    text
}

/// RFC 4180: quoted where a comma, quote or line break stands in the field.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n', '\r', '#']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_civil() {
        assert_eq!(date(0), "1970-01-01T00:00:00Z");
        assert_eq!(date(951_782_399), "2000-02-28T23:59:59Z");
        assert_eq!(date(951_782_400), "2000-02-29T00:00:00Z");
        assert_eq!(date(1_798_761_599), "2026-12-31T23:59:59Z");
    }

    #[test]
    fn commands_can_be_pasted_into_a_shell() {
        let words = ["/usr/bin/memlet", "optimize", "my recipe.yaml", "--set", "b=96", "it's"].map(String::from);
        assert_eq!(command_line(words), r"memlet optimize 'my recipe.yaml' --set b=96 'it'\''s'");
    }

    #[test]
    fn fields_with_commas_are_quoted() {
        let record = Record {
            program: "mha".into(),
            subject: "SM".into(),
            contender: "ours".into(),
            configuration: "x[h,b,j,k] say \"hi\"".into(),
            cache: Cache::Warm,
            sample: 0,
            milliseconds: 1.25,
        };
        let text = csv(&Provenance { command: "memlet\nrun".into(), ..Provenance::default() }, &[record]);
        assert!(text.ends_with("mha,SM,ours,\"x[h,b,j,k] say \"\"hi\"\"\",warm,0,1.25\n"), "{text}");
        assert!(text.contains("# command: memlet run\n"), "a line break in a note would end the comment");
    }

    #[test]
    fn provenance_survives_json() {
        let here = Provenance::here("cc 1.0", IndexMap::from([("memlet".to_string(), "0.1.0".to_string())]));
        let text = serde_json::to_string(&here).unwrap();
        assert_eq!(serde_json::from_str::<Provenance>(&text).unwrap(), here);
    }
}
