//! `memlet merge`: the records of several sweeps as one file.

use super::out::outln;
use super::{cells, table};
use crate::pipeline::PipelineError;
use crate::pipeline::variants::folder_name::folder_name;
use clap::Args;
use layouts::record::{Outcome, Session};
use layouts::{Store, StoreError};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// What was measured twice counts once, and nothing depends on the order of the files. Records that the folder has already are kept.
#[derive(Args)]
pub struct MergeArgs {
    /// Records, or folders of `memlet sweep`, such as run/shard-*
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// The folder for records.jsonl
    #[arg(long)]
    out: PathBuf,
    /// Where processors, compilers, threads or caches differ, write records of each kind into a folder of its own below --out
    #[arg(long)]
    apart: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

const FILE: &str = "records.jsonl";

/// All records of equal machines.
#[derive(Serialize)]
struct Kind {
    device: String,
    toolchain: String,
    threads: usize,
    cache: String,
    /// Each with what it measured.
    hosts: Vec<Host>,
    /// Configurations in the merged records.
    measurements: usize,
    records: PathBuf,
    #[serde(skip)]
    parts: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Host {
    host: String,
    hardware: String,
    sessions: usize,
    /// Configurations whose record in the merged file is this host's.
    measurements: usize,
    /// Those of them that were timed in full.
    timed: usize,
}

impl MergeArgs {
    /// # Errors
    /// Files that are no records; records of different machines without `--apart`.
    pub fn run(&self) -> Result<(), PipelineError> {
        let mut kinds = self.kinds()?;
        if kinds.len() > 1 && !self.apart {
            let told: Vec<String> = kinds.iter().map(|k| format!("{} ({})", k.called(), shown(&k.parts))).collect();
            let why = format!(
                "these records are of {} kinds of machines, whose times do not mix: {}; --apart merges each kind by itself",
                kinds.len(),
                told.join("; ")
            );
            return Err(PipelineError::Plan { file: self.out.display().to_string(), why });
        }
        let several = kinds.len() > 1;
        for kind in &mut kinds {
            let folder = if several { self.out.join(folder_name(&kind.called())) } else { self.out.clone() };
            kind.write(&folder)?;
        }
        if self.json {
            outln!("{}", serde_json::to_string(&kinds).map_err(|e| PipelineError::Internal(e.to_string()))?);
            return Ok(());
        }
        for kind in &kinds {
            outln!("{}: {} measurements on {}", kind.records.display(), kind.measurements, kind.called());
            let mut rows = table(&["host", "sessions", "measurements", "timed", "hardware"]).words(&["hardware"]);
            for host in &kind.hosts {
                let name = if host.host.is_empty() { "not recorded" } else { &host.host };
                let counts = [host.sessions, host.measurements, host.timed].map(|n| n.to_string());
                rows.row(cells([&[name.to_string()], &counts[..], std::slice::from_ref(&host.hardware)].concat()));
            }
            outln!("{}", rows.text(bench::table::colour()));
        }
        Ok(())
    }

    /// The files by the machine that they were measured on, in order of their machines. A file of records has those of one machine.
    fn kinds(&self) -> Result<Vec<Kind>, PipelineError> {
        let mut kinds: BTreeMap<(String, String, usize, String), Kind> = BTreeMap::new();
        for given in &self.records {
            let path = if given.is_dir() { given.join(FILE) } else { given.clone() };
            let store = Store::read(&path)?;
            let Some(session) = store.sessions().next() else {
                return Err(StoreError::Foreign { path }.into());
            };
            let Session { device, toolchain, threads, .. } = session.clone();
            let cache = session.cache.to_string();
            let key = (device.clone(), toolchain.clone(), threads, cache.clone());
            let new = || Kind { device, toolchain, threads, cache, hosts: vec![], measurements: 0, records: PathBuf::new(), parts: vec![] };
            kinds.entry(key).or_insert_with(new).parts.push(path);
        }
        Ok(kinds.into_values().collect())
    }
}

fn shown(paths: &[PathBuf]) -> String {
    paths.iter().map(|p| p.display().to_string()).collect::<Vec<_>>().join(", ")
}

impl Kind {
    /// The machine in words.
    fn called(&self) -> String {
        let Kind { device, toolchain, threads, cache, .. } = self;
        format!("{device}, {toolchain}, {threads} thread{}, {cache} caches", if *threads == 1 { "" } else { "s" })
    }

    /// Merges the parts with what the folder has, and replaces its records by that.
    fn write(&mut self, folder: &Path) -> Result<(), PipelineError> {
        let path = folder.join(FILE);
        let fault = |e: std::io::Error| PipelineError::Plan { file: path.display().to_string(), why: e.to_string() };
        std::fs::create_dir_all(folder).map_err(fault)?;
        // Opened as by a run that writes, so that no other one does, nor reads records that are about to be replaced.
        let held = Store::open(&path)?;
        let known = held.sessions().next().is_some();
        let store = Store::merge(&[self.parts.as_slice(), if known { std::slice::from_ref(&path) } else { &[] }].concat())?;
        let mut bytes = Vec::new();
        store.write_to(&mut bytes).map_err(fault)?;
        bench::atomic::write(&path, &bytes).map_err(fault)?;
        drop(held);
        let hosts: BTreeSet<(&str, &str)> = store.sessions().map(|s| (s.host.as_str(), s.hardware.as_str())).collect();
        self.hosts = hosts
            .into_iter()
            .map(|(host, hardware)| {
                let own: BTreeSet<&str> =
                    store.sessions().filter(|s| s.host == host && s.hardware == hardware).map(|s| s.session.as_str()).collect();
                let measured = || store.all().filter(|m| own.contains(m.session.as_str()));
                let timed = measured().filter(|m| matches!(m.outcome, Outcome::Measured { .. })).count();
                Host { host: host.into(), hardware: hardware.into(), sessions: own.len(), measurements: measured().count(), timed }
            })
            .collect();
        (self.measurements, self.records) = (store.all().count(), path);
        Ok(())
    }
}
