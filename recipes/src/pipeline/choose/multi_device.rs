//! A sweep that several devices share. Each measures a part of every space into its own records: a copy of the common ones, followed by
//! new lines. The new lines are appended to the common records at the end, or at the beginning of the next sweep if this one was killed.

use super::sweep_all::sweep_all;
use crate::load::Recipe;
use crate::pipeline::PipelineError;
use crate::pipeline::measure::{BudgetLedger, MeasurementBudget, MemoryLimit, SweepContext, SweepEvent};
use crate::pipeline::run::Target;
use crate::pipeline::variants::Programs;
use bench::unit::Bytes;
use kernels::pool::Pool;
use layouts::Store;
use layouts::candidates::Shard;
use layouts::record::CacheState;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// The inputs that all parts share.
pub struct Shared<'a> {
    pub recipe: &'a Recipe,
    pub programs: &'a Programs,
    /// One for each device.
    pub targets: Vec<Target>,
    pub out: &'a Path,
    /// The common records; no other process has them open.
    pub records: &'a Path,
    pub budget: Option<Duration>,
    /// The part of the space that this machine measures, among several machines.
    pub shard: Shard,
    pub interrupt: &'a AtomicBool,
    /// The state of the caches when timed runs begin.
    pub cache: CacheState,
    /// Bytes that each device may fill, if not all of its memory.
    pub memory: Option<Bytes>,
    /// Called after every configuration of any device.
    pub progress: &'a (dyn Fn(SweepEvent) + Sync),
    /// Called at once when a device fails, whether or not others go on.
    pub failed: &'a (dyn Fn(&Target, &PipelineError) + Sync),
}

fn fault(path: &Path) -> impl Fn(std::io::Error) -> PipelineError {
    let file = path.display().to_string();
    move |e| PipelineError::Plan { file: file.clone(), why: e.to_string() }
}

fn folder(out: &Path, n: usize) -> PathBuf {
    out.join(format!("part-{n}"))
}

/// Measures on all devices at once and gathers their records. Measurements made before a device failed are kept.
///
/// # Errors
/// The first failure of a device.
pub fn sweep(shared: &Shared) -> Result<(), PipelineError> {
    gather(shared.out, shared.records)?;
    let outcomes: Vec<Result<(), PipelineError>> = std::thread::scope(|scope| {
        let parts: Vec<_> = (0..shared.targets.len())
            .map(|n| scope.spawn(move || part(shared, n).inspect_err(|error| (shared.failed)(&shared.targets[n], error))))
            .collect();
        let lost = || PipelineError::Internal("a part of the sweep ended in a panic".into());
        parts.into_iter().map(|part| part.join().unwrap_or_else(|_| Err(lost()))).collect()
    });
    gather(shared.out, shared.records)?;
    outcomes.into_iter().collect()
}

/// The part of one device.
fn part(shared: &Shared, n: usize) -> Result<(), PipelineError> {
    let folder = folder(shared.out, n);
    fs::create_dir_all(&folder).map_err(fault(&folder))?;
    let records = folder.join("records.jsonl");
    let known = if shared.records.exists() { fs::copy(shared.records, &records).map_err(fault(&records))? } else { 0 };
    bench::atomic::write(&folder.join("known"), known.to_string().as_bytes()).map_err(fault(&folder))?;
    let (device, pool) = (shared.targets[n].open()?, Pool::new(1)?);
    let (mut store, mut ledger) = (Store::open(&records)?, BudgetLedger::open(&folder));
    let of = shared.targets.len() as u64;
    let mut with = SweepContext {
        pool: &pool,
        device: &*device,
        store: &mut store,
        interrupt: shared.interrupt,
        cache: shared.cache,
        memory: MemoryLimit::on(&*device, shared.memory)?,
        shard: Shard { index: shared.shard.index + shared.shard.of * n as u64, of: shared.shard.of * of },
        ledger: &mut ledger,
        hopeless_ms: None,
        settle: None,
        budget: MeasurementBudget::default(),
        progress: &mut |told| (shared.progress)(told),
    };
    // Each part adds its own partially fused program.
    sweep_all(shared.recipe, &mut shared.programs.clone(), shared.budget, &mut with).map(|_| ())
}

/// Appends the new records of all parts to the common ones, and removes the parts.
fn gather(out: &Path, records: &Path) -> Result<(), PipelineError> {
    for folder in (0..).map(|n| folder(out, n)).take_while(|folder| folder.exists()) {
        let part = folder.join("records.jsonl");
        let known = fs::read_to_string(folder.join("known")).ok().and_then(|text| text.trim().parse::<usize>().ok());
        if let (Some(known), Ok(bytes)) = (known, fs::read(&part)) {
            // A torn line at the end is no measurement.
            let whole = bytes.iter().rposition(|b| *b == b'\n').map_or(0, |n| n + 1);
            let mut file = fs::OpenOptions::new().create(true).append(true).open(records).map_err(fault(records))?;
            file.write_all(bytes.get(known..whole).unwrap_or_default()).map_err(fault(records))?;
        }
        fs::remove_dir_all(&folder).map_err(fault(&folder))?;
    }
    Ok(())
}
