//! `memlet verify-selection`: whether a certificate holds against the stored measurements.

use super::out::outln;
use super::solve::relative;
use crate::pipeline::PipelineError;
use bench::unit::significant;
use clap::Args;
use layouts::Store;
use layouts::certificate::Certificate;
use layouts::verify::{swept, verify};
use std::path::{Path, PathBuf};

#[derive(Args)]
pub struct VerifySelectionArgs {
    /// A certificate of `memlet solve` or `memlet optimize`
    file: PathBuf,
    /// The records that it refers to [default: those that it names]
    #[arg(long)]
    records: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl VerifySelectionArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let certificate = Certificate::read(&self.file)?;
        let folder = self.file.parent().unwrap_or(Path::new("."));
        let named = || certificate.records.iter().map(|r| folder.join(r)).collect();
        let records: Vec<PathBuf> = if self.records.is_empty() { named() } else { self.records.clone() };
        let store = Store::merge(&records)?;
        let refused = |error| PipelineError::Refused { file: self.file.display().to_string(), error: Box::new(error) };
        let confirmed = swept(&certificate, &store).and_then(|()| verify(&certificate, &store)).map_err(refused)?;
        let ms = |ps: i64| significant(layouts::cost::milliseconds(ps));
        if self.json {
            let proven = confirmed.bound_ps >= confirmed.total_ps;
            let value = serde_json::json!({"total_ps": confirmed.total_ps, "bound_ps": confirmed.bound_ps, "proven": proven});
            outln!("{value}");
            return Ok(());
        }
        let layers = match certificate.layers.len() {
            1 => String::new(),
            n => format!(" for {n} layers"),
        };
        outln!("confirmed: the choice{layers} costs {} ms ({} ps)", ms(confirmed.total_ps), confirmed.total_ps);
        if confirmed.bound_ps >= confirmed.total_ps {
            outln!("confirmed: no choice in the stored measurements costs less");
        } else {
            outln!(
                "confirmed: no choice in the stored measurements costs less than {} ms ({} ps)",
                ms(confirmed.bound_ps),
                confirmed.bound_ps
            );
        }
        outln!("{}, with {} caches", relative(&certificate), store.cache());
        Ok(())
    }
}
