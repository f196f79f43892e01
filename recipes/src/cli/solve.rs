//! `memlet solve`: choose again from stored measurements, without the device.

use super::{cells, duration, table};
use crate::pipeline::PipelineError;
use crate::pipeline::decide::{Decision, decide};
use bench::unit::significant;
use clap::Args;
use layouts::exact::Limits;
use layouts::{Method, Store};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct SolveArgs {
    /// Records of `memlet sweep` or `memlet optimize`; several are merged
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// Where the certificate goes [default: certificate.json beside the first records]
    #[arg(long)]
    certificate: Option<PathBuf>,
    /// How often times are drawn again from their samples to see whether the choice stands
    #[arg(long, default_value_t = 50)]
    resamples: usize,
    /// How many of the best choices are listed
    #[arg(long, default_value_t = 5)]
    top: usize,
    /// Stop after this time; the gap to the best that is possible is printed
    #[arg(long, value_parser = duration)]
    time: Option<Duration>,
    /// Print JSON: every choice in full
    #[arg(long)]
    json: bool,
}

impl SolveArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let store = Store::merge(&self.records)?;
        let programs = layouts::Program::of_records(&store);
        if programs.is_empty() {
            let file = self.records.iter().map(|r| r.display().to_string()).collect::<Vec<_>>().join(", ");
            return Err(PipelineError::Plan {
                file,
                why: "no program was swept in these records; `memlet sweep RECIPE` makes them".into(),
            });
        }
        let mut all = Vec::new();
        for (name, program) in &programs {
            let start = Instant::now();
            let mut told = start;
            let mut watch = |p: layouts::exact::Progress| {
                if std::io::stderr().is_terminal() && told.elapsed() > Duration::from_secs(1) {
                    told = Instant::now();
                    let gap = 100.0 * (p.total - p.bound) as f64 / p.total.max(1) as f64;
                    eprintln!(
                        "{:.0} s: {} ms, at most {gap:.3}% above the best",
                        start.elapsed().as_secs_f64(),
                        significant(p.total as f64 / 1e9)
                    );
                }
                let stop = super::INTERRUPT.load(std::sync::atomic::Ordering::SeqCst);
                !stop && self.time.is_none_or(|limit| start.elapsed() < limit)
            };
            let decision = decide(name, program, &store, self.top, self.resamples, Limits::default(), &mut watch)?;
            let seconds = start.elapsed().as_secs_f64();
            let path = self.write(&decision, programs.len() > 1)?;
            if !self.json {
                print(&decision, &path, seconds);
            }
            all.push(decision);
        }
        if self.json {
            println!("{}", serde_json::to_string(&all).map_err(|e| PipelineError::Internal(e.to_string()))?);
        }
        Ok(())
    }

    /// Writes the certificate; one for each program, by its name, if there are several.
    fn write(&self, decision: &Decision, several: bool) -> Result<PathBuf, PipelineError> {
        let beside = || self.records[0].parent().unwrap_or(Path::new("")).join("certificate.json");
        let mut path = self.certificate.clone().unwrap_or_else(beside);
        if several {
            let name: String = decision.name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
            let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
            path.set_file_name(format!("{stem}-{name}.json"));
        }
        let folder = path.parent().unwrap_or(Path::new(""));
        let relative = |record: &PathBuf| {
            let same = record.parent() == Some(folder);
            let absolute = || std::path::absolute(record).unwrap_or_else(|_| record.clone());
            let shown = if same { record.file_name().map(PathBuf::from).unwrap_or_default() } else { absolute() };
            shown.display().to_string()
        };
        let certificate = decision.certificate.clone().about(self.records.iter().map(relative).collect());
        let fault = |why: String| PipelineError::Plan { file: path.display().to_string(), why };
        let text = certificate.text().map_err(|e| fault(e.to_string()))?;
        bench::atomic::write(&path, text.as_bytes()).map_err(|e| fault(e.to_string()))?;
        Ok(path)
    }
}

/// The choices of all methods, and how far each stands above the optimum.
fn print(decision: &Decision, certificate: &Path, seconds: f64) {
    let Some(exact) = decision.selections.iter().find(|s| s.method == Method::Exact) else { return };
    println!("{}", decision.name);
    let mut rows = table(&["method", "program", "predicted ms", "above exact", "above minima"]);
    let above = |ms: f64, least: f64| if least > 0.0 { format!("{:.2}%", 100.0 * (ms / least - 1.0)) } else { String::new() };
    for s in &decision.selections {
        let variants: Vec<&str> = s.configuration.variants.values().map(String::as_str).collect();
        rows.row(cells(vec![
            s.method.to_string(),
            variants.join(", "),
            significant(s.total_ms),
            above(s.total_ms, exact.total_ms),
            above(s.total_ms, exact.sum_of_minima_ms),
        ]));
    }
    let minima = exact.sum_of_minima_ms;
    rows.row(cells(vec![
        "each kernel at its fastest".into(),
        String::new(),
        significant(minima),
        above(minima, exact.total_ms),
        "0.00%".into(),
    ]));
    print!("{}", rows.text(bench::table::colour()));
    match exact.proven {
        true => println!("proven in {seconds:.1} s: no choice in the stored measurements costs less (gap 0)"),
        false => println!(
            "not proven: at most {:.3}% above the best choice, which costs at least {} ms",
            100.0 * exact.gap,
            significant(exact.bound_ms)
        ),
    }
    for (variant, kernel) in &decision.certificate.scope.left_out {
        println!("left out: `{variant}`, whose kernel `{kernel}` was not measured yet");
    }
    match &decision.within {
        Some(count) if count.least == count.most => println!("{} choices cost at most 1% more", count.least),
        Some(count) => println!("between {} and {} choices cost at most 1% more", count.least, count.most),
        None => println!("choices within 1% were not counted: the program is too wide"),
    }
    if let Some(r) = &decision.robustness {
        println!(
            "of {} redraws of all times from their samples, the choice is the best in {:.0}%; it costs at most {} ms ({:.2}%) more than the best{}",
            r.resamples,
            100.0 * r.optimal,
            significant(r.worst_regret_ms),
            100.0 * r.worst_regret,
            if r.proven < r.resamples { format!(" ({} proven)", r.proven) } else { String::new() }
        );
    }
    for (n, s) in decision.top.iter().enumerate() {
        println!("choice {}: {} ms (+{})", n + 1, significant(s.total_ms), above(s.total_ms, exact.total_ms));
    }
    println!("certificate: {}; check it with: memlet verify-selection {}", certificate.display(), certificate.display());
}
