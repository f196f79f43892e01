//! `memlet cache`: the compiled kernels that are kept between commands.

use super::out::outln;
use super::{cells, table};
use crate::pipeline::PipelineError;
use bench::unit::Bytes;
use clap::Args;
use kernels::{KernelError, Toolchain};
use serde::Serialize;
use std::fs::DirEntry;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

/// Kernels are compiled again when they are needed, so that nothing is lost but time.
#[derive(Args)]
pub struct CacheArgs {
    /// Delete the compiled kernels
    #[arg(long)]
    clear: bool,
    /// Only what was written longer ago than so many days
    #[arg(long, value_name = "DAYS")]
    older: Option<u32>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Files of one kind.
#[derive(Serialize)]
struct Kept {
    what: &'static str,
    files: usize,
    bytes: u64,
    #[serde(skip)]
    paths: Vec<PathBuf>,
}

#[derive(Serialize)]
struct Listing {
    folder: PathBuf,
    kinds: Vec<Kept>,
    bytes: u64,
    deleted: bool,
}

/// Kinds of files by their endings. Others in the folder are not Memlet's and stay.
const KINDS: [(&str, &[&str]); 4] = [
    ("kernels for cores", &["so"]),
    ("their texts, in C and C++", &["c", "cpp"]),
    ("kernels for GPUs", &["cubin"]),
    ("what these need", &["json"]),
];

impl CacheArgs {
    /// # Errors
    /// A folder that cannot be read, or a file that cannot be deleted.
    pub fn run(&self) -> Result<(), PipelineError> {
        let folder = Toolchain::cache();
        let mut kinds = KINDS.map(|(what, _)| Kept { what, files: 0, bytes: 0, paths: vec![] });
        for entry in self.entries(&folder)? {
            let path = entry.path();
            let Some(kind) = kind_of(&path) else { continue };
            kinds[kind].files += 1;
            kinds[kind].bytes += entry.metadata().map_or(0, |data| data.len());
            kinds[kind].paths.push(path);
        }
        let kinds: Vec<Kept> = kinds.into_iter().filter(|kept| kept.files > 0).collect();
        if self.clear {
            for path in kinds.iter().flat_map(|kept| &kept.paths) {
                match std::fs::remove_file(path) {
                    // Another process may have deleted it first.
                    Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                        return Err(KernelError::Cache { path: path.clone(), source }.into());
                    }
                    _ => {}
                }
            }
        }
        let bytes = kinds.iter().map(|kept| kept.bytes).sum();
        let listing = Listing { folder, kinds, bytes, deleted: self.clear };
        if self.json {
            outln!("{}", serde_json::to_string(&listing).map_err(|e| PipelineError::Internal(e.to_string()))?);
        } else {
            listing.print();
        }
        Ok(())
    }

    /// The files of the folder that are old enough; none where there is no folder yet.
    fn entries(&self, folder: &PathBuf) -> Result<Vec<DirEntry>, PipelineError> {
        let entries = match std::fs::read_dir(folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(vec![]),
            Err(source) => return Err(KernelError::Cache { path: folder.clone(), source }.into()),
        };
        let least = self.older.map(|days| Duration::from_secs(u64::from(days) * 24 * 3600));
        let now = SystemTime::now();
        let is_old = |entry: &DirEntry| match least {
            None => true,
            Some(least) => {
                let written = entry.metadata().and_then(|data| data.modified());
                written.is_ok_and(|written| now.duration_since(written).is_ok_and(|age| age >= least))
            }
        };
        Ok(entries.flatten().filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_file()) && is_old(entry)).collect())
    }
}

/// Which kind a file is: its name is a hash with one of the known endings.
fn kind_of(path: &std::path::Path) -> Option<usize> {
    let (stem, ending) = (path.file_stem()?.to_str()?, path.extension()?.to_str()?);
    let is_hash = stem.len() == blake3::OUT_LEN * 2 && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
    KINDS.iter().position(|(_, endings)| is_hash && endings.contains(&ending))
}

impl Listing {
    fn print(&self) {
        let what = if self.deleted { "deleted from" } else { "in" };
        outln!("{} {what} {}", Bytes(self.bytes), self.folder.display());
        if self.kinds.is_empty() {
            return;
        }
        let mut rows = table(&["kind", "files", "size"]).words(&["kind"]);
        for kept in &self.kinds {
            rows.row(cells([kept.what.to_string(), kept.files.to_string(), Bytes(kept.bytes).to_string()].to_vec()));
        }
        outln!("{}", rows.text(bench::table::colour()));
    }
}
