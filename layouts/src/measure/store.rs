//! Measurements in an append-only file of JSON lines (format: [`crate::measure::record`]).
//!
//! A line is written with one call and ends in a newline, so a process killed at any moment leaves at most one torn line,
//! the last: it is ignored when reading and cut off when the file is opened for writing. Any other damaged line is an
//! error that names it. Several files (shards, or sessions of several days) merge into the same contents in any order.

use crate::measure::record::{CacheState, Line, Measurement, Outcome, Session};
use sdfg::config::KernelConfig;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    #[error("{path}: {source}; check that the folder exists and can be written")]
    File { path: PathBuf, source: std::io::Error },
    #[error("{path}: {source}; `memlet sweep` and `memlet optimize` write records, as records.jsonl in their folder")]
    Read { path: PathBuf, source: std::io::Error },
    #[error(
        "{path}: these are no records of measurements; `memlet sweep` and `memlet optimize` write them, as records.jsonl in their folder"
    )]
    Foreign { path: PathBuf },
    #[error("{path}:{line}: this line is damaged ({why}); delete it to lose only this measurement")]
    Line { path: PathBuf, line: usize, why: String },
    #[error(
        "{path}: measured on `{there}`, but this is `{here}`; times of different machines, or with warm and with cold caches, do not mix: use another file, or `memlet merge --apart`"
    )]
    Machine { path: PathBuf, there: String, here: String },
    #[error("{path}: another run writes to it; wait for that one, or write to another folder (--out, --records)")]
    Busy { path: PathBuf },
    #[error("a measurement could not be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
    #[error("no session was begun: call `begin` before `append`")]
    NoSession,
}

/// The beginning of every file of records.
const BEGINNING: &[u8] = b"{\"line\":";

type Filed = BTreeMap<KernelConfig, Measurement>;

/// All measurements, by key and configuration, and the file to which new ones are appended.
#[derive(Debug, Default)]
pub struct Store {
    path: PathBuf,
    file: Option<File>,
    sessions: BTreeMap<String, Session>,
    records: BTreeMap<String, Filed>,
    /// (key, identity) → the configuration that has a time.
    timed: BTreeMap<String, BTreeMap<String, KernelConfig>>,
    /// Mark → what was run under it, as (key, configuration).
    marked: BTreeMap<String, (String, KernelConfig)>,
    current: Option<String>,
}

/// Whether a sample cannot be a time: it is negative or not finite.
fn is_no_time(sample: &f64) -> bool {
    !sample.is_finite() || *sample < 0.0
}

fn machine(session: &Session) -> String {
    format!("{}, {}, {} threads, {} caches", session.device, session.toolchain, session.threads, session.cache)
}

impl Store {
    /// A store without a file.
    pub fn in_memory() -> Self {
        Store::default()
    }

    /// Reads a file without changing it.
    pub fn read(path: &Path) -> Result<Self, StoreError> {
        let mut store = Store { path: path.to_path_buf(), ..Store::default() };
        let mut bytes = Vec::new();
        let error = |source| StoreError::Read { path: path.to_path_buf(), source };
        File::open(path).and_then(|mut f| f.read_to_end(&mut bytes)).map_err(error)?;
        store.absorb(path, &bytes)?;
        Ok(store)
    }

    /// Opens a file for appending, for this run alone, creates it if needed, cuts off a torn last line.
    pub fn open(path: &Path) -> Result<Self, StoreError> {
        let error = |source| StoreError::File { path: path.to_path_buf(), source };
        let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).map_err(error)?;
        // A file system that knows no locks has none to respect.
        if let Err(TryLockError::WouldBlock) = file.try_lock() {
            return Err(StoreError::Busy { path: path.to_path_buf() });
        }
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(error)?;
        let mut store = Store { path: path.to_path_buf(), ..Store::default() };
        let whole = store.absorb(path, &bytes)?;
        file.set_len(whole as u64).map_err(error)?;
        file.seek(SeekFrom::End(0)).map_err(error)?;
        store.file = Some(file);
        Ok(store)
    }

    /// Reads several files into one store; the result does not depend on their order.
    pub fn merge(paths: &[PathBuf]) -> Result<Self, StoreError> {
        let mut merged = Store::default();
        for path in paths {
            let part = Store::read(path)?;
            for session in part.sessions.into_values() {
                merged.admit(path, session)?;
            }
            for measurement in part.records.into_values().flat_map(BTreeMap::into_values) {
                merged.file_away(measurement);
            }
        }
        Ok(merged)
    }

    /// Writes all sessions and then all measurements that count, in an order that depends on nothing but these.
    pub fn write_to(&self, to: &mut dyn Write) -> std::io::Result<()> {
        let sessions = self.sessions.values().map(|session| Line::Session(Box::new(session.clone())));
        let measurements = self.all().map(|measurement| Line::Measurement(Box::new(measurement.clone())));
        for line in sessions.chain(measurements) {
            serde_json::to_writer(&mut *to, &line)?;
            to.write_all(b"\n")?;
        }
        Ok(())
    }

    /// Files the lines; returns the length without a torn last line.
    fn absorb(&mut self, path: &Path, bytes: &[u8]) -> Result<usize, StoreError> {
        let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
        for (n, line) in bytes.get(..whole).unwrap_or_default().split(|b| *b == b'\n').enumerate() {
            if line.iter().all(u8::is_ascii_whitespace) {
                continue;
            }
            let damaged = |why: String| StoreError::Line { path: path.to_path_buf(), line: n + 1, why };
            // A session is the first; that of a file of another kind is not to be deleted for the sake of what comes after it.
            if n == 0 && !line.starts_with(BEGINNING) {
                return Err(StoreError::Foreign { path: path.to_path_buf() });
            }
            match serde_json::from_slice(line).map_err(|e| damaged(e.to_string()))? {
                Line::Session(session) => self.admit(path, *session)?,
                Line::Measurement(m) if matches!(&m.outcome, Outcome::Measured { samples } if samples.is_empty()) => {
                    return Err(damaged("measured, but without samples".into()));
                }
                Line::Measurement(m) if matches!(&m.outcome, Outcome::Measured { samples } if samples.iter().any(is_no_time)) => {
                    return Err(damaged("a sample is no time: it is negative or not finite".into()));
                }
                Line::Measurement(m) if !self.sessions.contains_key(&m.session) => {
                    return Err(damaged(format!("no session `{}` before it", m.session)));
                }
                Line::Measurement(measurement) => self.file_away(*measurement),
            }
        }
        Ok(whole)
    }

    fn admit(&mut self, path: &Path, session: Session) -> Result<(), StoreError> {
        if let Some(other) = self.sessions.values().find(|s| s.machine() != session.machine()) {
            return Err(StoreError::Machine { path: path.to_path_buf(), there: machine(other), here: machine(&session) });
        }
        self.sessions.insert(session.session.clone(), session);
        Ok(())
    }

    fn file_away(&mut self, measurement: Measurement) {
        let filed = self.records.entry(measurement.key.clone()).or_default();
        if filed.get(&measurement.config).is_some_and(|known| !measurement.outweighs(known)) {
            return;
        }
        if !measurement.mark.is_empty() && measurement.lender.is_none() {
            let weighs_more = |(key, config): &(String, KernelConfig)| {
                let known = self.records.get(key).and_then(|filed| filed.get(config));
                known.is_none_or(|known| measurement.outweighs(known))
            };
            if self.marked.get(&measurement.mark).is_none_or(weighs_more) {
                self.marked.insert(measurement.mark.clone(), (measurement.key.clone(), measurement.config.clone()));
            }
        }
        let filed = self.records.entry(measurement.key.clone()).or_default();
        let timed = self.timed.entry(measurement.key.clone()).or_default();
        let (config, identity, has_time) = (measurement.config.clone(), measurement.identity.clone(), measurement.ms().is_some());
        let replaced = filed.insert(config.clone(), measurement);
        if let Some(old) = replaced.map(|m| m.identity).filter(|old| timed.get(old) == Some(&config)) {
            // Its time is gone or stands for another identity now: look for another one that has it.
            timed.remove(&old);
            if let Some((config, _)) = filed.iter().find(|(_, m)| m.identity == old && m.ms().is_some()) {
                timed.insert(old, config.clone());
            }
        }
        // The smallest configuration, so that the order of reading does not matter.
        if has_time && timed.get(&identity).is_none_or(|known| config < *known) {
            timed.insert(identity, config);
        }
    }

    fn write(&mut self, line: &Line) -> Result<(), StoreError> {
        if let Some(file) = &mut self.file {
            let mut text = serde_json::to_string(line)?;
            text.push('\n');
            file.write_all(text.as_bytes()).map_err(|source| StoreError::File { path: self.path.clone(), source })?;
        }
        Ok(())
    }

    /// Begins a session: every later measurement belongs to it.
    pub fn begin(&mut self, session: Session) -> Result<(), StoreError> {
        let line = Line::Session(Box::new(session.clone()));
        self.admit(&self.path.clone(), session.clone())?;
        self.current = Some(session.session);
        self.write(&line)
    }

    /// Adds a measurement to the file and to the store. Its session is the current one.
    pub fn append(&mut self, mut measurement: Measurement) -> Result<(), StoreError> {
        measurement.session = self.current.clone().ok_or(StoreError::NoSession)?;
        let line = Line::Measurement(Box::new(measurement.clone()));
        self.write(&line)?;
        self.file_away(measurement);
        Ok(())
    }

    /// Sessions in order of their names.
    pub fn sessions(&self) -> impl Iterator<Item = &Session> {
        self.sessions.values()
    }

    /// The state of the caches before timed runs, equal in all sessions.
    pub fn cache(&self) -> CacheState {
        self.sessions().next().map(|s| s.cache).unwrap_or_default()
    }

    pub fn get(&self, key: &str, config: &KernelConfig) -> Option<&Measurement> {
        self.records.get(key)?.get(config)
    }

    /// All records of a kernel, in order of their configurations.
    pub fn of(&self, key: &str) -> impl Iterator<Item = &Measurement> {
        self.records.get(key).into_iter().flat_map(BTreeMap::values)
    }

    /// All records, by key and configuration.
    pub fn all(&self) -> impl Iterator<Item = &Measurement> {
        self.records.values().flat_map(BTreeMap::values)
    }

    /// How much was learned so far: configurations, and fresh samples of some. It grows with every measurement that counts.
    pub fn learned(&self) -> usize {
        self.all().map(|m| 1 + m.round as usize).sum()
    }

    /// The configuration of this key and identity that has a time.
    pub fn twin(&self, key: &str, identity: &str) -> Option<&Measurement> {
        self.get(key, self.timed.get(key)?.get(identity)?)
    }

    /// Records of a kernel that differs in names alone.
    pub fn marked(&self, mark: &str) -> Option<&Measurement> {
        let (key, config) = self.marked.get(mark)?;
        self.get(key, config)
    }

    /// Median in milliseconds: its own, or that of the configuration to which it is identical.
    pub fn ms(&self, measurement: &Measurement) -> Option<f64> {
        match measurement.outcome {
            Outcome::Identical => self.twin(&measurement.key, &measurement.identity)?.ms(),
            _ => measurement.ms(),
        }
    }

    /// The same measurements, each time replaced by another one.
    pub fn with_times(&self, time: impl Fn(&Measurement, f64) -> f64) -> Store {
        let mut records = self.records.clone();
        for record in records.values_mut().flat_map(BTreeMap::values_mut) {
            if let Some(ms) = self.ms(record) {
                record.outcome = Outcome::Measured { samples: vec![time(record, ms)] };
            }
        }
        Store { sessions: self.sessions.clone(), records, timed: self.timed.clone(), marked: self.marked.clone(), ..Store::default() }
    }

    /// The same measurements, each with as many samples as it has, drawn from its own with replacement. What was borrowed is
    /// drawn once with what lent it: it is one measurement.
    pub fn resampled(&self, seed: u64) -> Store {
        // SplitMix64.
        let mut state = seed;
        let mut below = |n: usize| {
            state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let mut z = state;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            ((z ^ (z >> 31)) % n.max(1) as u64) as usize
        };
        let mut records = self.records.clone();
        let mut drawn: BTreeMap<(String, Vec<u64>), Vec<f64>> = BTreeMap::new();
        for record in records.values_mut().flat_map(BTreeMap::values_mut) {
            if let Outcome::Measured { samples } = &mut record.outcome {
                let mut draw = || (0..samples.len()).map(|_| samples[below(samples.len())]).collect();
                *samples = if record.mark.is_empty() {
                    draw()
                } else {
                    let measured = samples.iter().map(|s| s.to_bits()).collect();
                    drawn.entry((record.mark.clone(), measured)).or_insert_with(draw).clone()
                };
            }
        }
        Store { sessions: self.sessions.clone(), records, timed: self.timed.clone(), marked: self.marked.clone(), ..Store::default() }
    }

    /// Writes one row per record: `records.csv`.
    pub fn csv(&self, to: &mut dyn Write) -> std::io::Result<()> {
        writeln!(to, "kernel,key,config,outcome,round,median_ms,bound_ms,error_over_tolerance,samples_ms,reason,lender,session")?;
        for m in self.all() {
            let (bound, reason) = match &m.outcome {
                Outcome::Raced { bound_ms, reason } | Outcome::Bounded { bound_ms, reason } => (bound_ms.to_string(), reason.as_str()),
                Outcome::Failed { reason } => (String::new(), reason.as_str()),
                _ => (String::new(), ""),
            };
            let samples: Vec<String> = match &m.outcome {
                Outcome::Measured { samples } => samples.iter().map(f64::to_string).collect(),
                _ => Vec::new(),
            };
            let number = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
            let cells = [
                m.kernel.clone(),
                m.key.clone(),
                m.config.to_string(),
                m.outcome.name().to_string(),
                m.round.to_string(),
                number(self.ms(m)),
                bound,
                number(m.check),
                samples.join(" "),
                reason.to_string(),
                m.lender.clone().unwrap_or_default(),
                m.session.clone(),
            ];
            writeln!(to, "{}", cells.map(|c| quoted(&c)).join(","))?;
        }
        Ok(())
    }
}

/// A CSV cell, quoted where it must be (RFC 4180).
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_string() }
}
