//! The command line `memlet`.

pub mod analyze;
mod build;
mod cache;
mod compare;
mod device_argument;
mod devices;
mod explain;
mod export;
mod import_model;
mod interpret;
mod kernel_times;
mod merge;
mod optimize;
mod out;
mod place;
mod progress;
mod report;
mod restart;
mod run;
mod schedule_template;
mod solve;
mod sweep;
mod tensors;
mod train;
mod variants;
mod verify_selection;

use crate::import::{self, Imported};
use crate::load::{Overrides, Recipe, load, load_str, number};
use crate::pipeline::PipelineError;
use crate::pipeline::measure::launch_and_copy;
use crate::pipeline::oracle::overflow::explain_overflow;
use crate::pipeline::run::target::Target;
use crate::pipeline::variants::Planning;
use crate::pipeline::variants::folder_name::folder_name;
use bench::table::{Align, Cell, Table};
use bench::unit::Bytes;
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand};
use kernels::pool::Pool;
use sdfg::Dtype;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Set by Ctrl-C; measurements so far are kept.
static INTERRUPT: AtomicBool = AtomicBool::new(false);

/// Data-centric optimizer for tensor programs: finds where the bytes go, how few they could be, and the fastest arrangement.
#[derive(Parser)]
#[command(name = "memlet", version, about)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Operators, kernels, movement and refused fusions, without running anything
    Analyze(analyze::Analyze),
    /// Fuse, sweep, select, verify, time, and report
    Optimize(optimize::OptimizeArgs),
    /// Measure only; a repeated command resumes
    Sweep(sweep::SweepArgs),
    /// Merge the records of several sweeps, such as the parts of a job array
    Merge(merge::MergeArgs),
    /// Select from stored measurements
    Solve(solve::SolveArgs),
    /// Check the certificate of a choice against the stored measurements
    VerifySelection(verify_selection::VerifySelectionArgs),
    /// Run and time a plan against its baselines; tensors in and out
    Run(run::RunArgs),
    /// Train: many steps on batches from files, with checkpoints
    Train(train::TrainArgs),
    /// Compare a plan with PyTorch and JAX on the same recipe and data, after checking that all agree
    Compare(compare::CompareArgs),
    /// Write a plan as a C library that needs neither Rust nor Memlet
    Build(build::BuildArgs),
    /// Redraw the report of a run
    Report(report::ReportArgs),
    /// Explain a layout, a configuration or a fusion, and the cost of the next best
    Explain(explain::ExplainArgs),
    /// List the programs that are made of a recipe, with their passes
    Variants(variants::VariantsArgs),
    /// List devices and libraries, and those that are missing
    Devices(devices::DevicesArgs),
    /// List or delete the compiled kernels that are kept between commands
    Cache(cache::CacheArgs),
    /// Run a recipe through the f64 oracle; tensors in and out
    Interpret(interpret::InterpretArgs),
    /// Write a program as an SDFG of DaCe's
    Export(export::ExportArgs),
    /// Write an ONNX model, or a program of DaCe's, as a recipe and the tensors of its parameters
    Import(import_model::ImportArgs),
}

/// A recipe, and overrides of its sizes and types.
#[derive(Args, Clone)]
pub struct RecipeArgs {
    /// The recipe, a YAML file, or an ONNX model, or a program of DaCe's (.sdfg)
    pub recipe: PathBuf,
    /// Override a size, e.g. --set b=96
    #[arg(long = "set", value_name = "DIM=N", value_parser = size)]
    pub sizes: Vec<(String, i64)>,
    /// Store in another type than the recipe's `dtype`: f64, f32, bf16 or f16; sums, statistics and parameters in f32 at least
    #[arg(long, value_name = "TYPE", value_parser = floating)]
    pub dtype: Option<Dtype>,
    /// Take the recipe without its dropouts: no masks and no random numbers
    #[arg(long)]
    pub no_dropout: bool,
    /// Store weights, residuals and inputs of softmax in the same type too, as in a model that was cast as a whole
    #[arg(long)]
    pub narrow: bool,
}

impl RecipeArgs {
    pub fn overrides(&self) -> Overrides {
        Overrides { sizes: self.sizes.clone(), dtype: self.dtype, no_dropout: self.no_dropout, narrow: self.narrow }
    }

    pub fn load(&self) -> Result<Recipe, PipelineError> {
        let recipe = self.reload()?;
        for unread in &recipe.unread {
            out::errln!("{unread}");
        }
        Ok(recipe)
    }

    /// Loads the recipe once more, without messages.
    fn reload(&self) -> Result<Recipe, PipelineError> {
        if let Some(model) = self.model()? {
            // The sizes are those of the model, and the recipe made of it has them.
            let overrides = Overrides { sizes: vec![], ..self.overrides() };
            return Ok(load_str(&self.recipe.display().to_string(), &model.recipe, overrides)?);
        }
        Ok(load(&self.recipe, self.overrides())?)
    }

    /// The model that stands in the place of a recipe, if one does.
    pub fn model(&self) -> Result<Option<Imported>, PipelineError> {
        let model = import::is_model(&self.recipe).then(|| import::import(&self.recipe, &self.sizes));
        Ok(model.transpose()?)
    }
}

fn size(text: &str) -> Result<(String, i64), String> {
    let (dim, value) = text.split_once('=').ok_or("write DIM=N, e.g. b=96")?;
    let value = value.trim();
    if let Some(why) = number::octal(value) {
        return Err(why);
    }
    let value = value.parse().map_err(|_| format!("`{value}` is no whole number"))?;
    Ok((dim.trim().to_string(), value))
}

/// What plans of fusion are made by on cores: the stored measurement of all of this machine's, or typical ones.
fn measured_planning() -> Planning {
    let cores = kernels::processor::cores();
    Planning::of(launch_and_copy::stored(cores), cores)
}

fn floating(text: &str) -> Result<Dtype, String> {
    let found = Dtype::from_name(text).filter(|d| d.is_floating());
    found.ok_or_else(|| format!("`{text}` is no floating type; write f64, f32, bf16 or f16"))
}

/// `90s`, `3m`, `2h`, `100ms`, or seconds.
fn duration(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let factor = match unit {
        "ms" => 1e-3,
        "" | "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(format!("`{text}` is no duration; write 90s, 3m, 2h or 500ms")),
    };
    let seconds: f64 = number.parse().map_err(|_| format!("`{text}` is no duration; write 90s, 3m, 2h or 500ms"))?;
    Duration::try_from_secs_f64(seconds * factor).map_err(|e| e.to_string())
}

/// More workers than any machine has cores: all wait for one another at the end of every kernel.
const MOST_THREADS: usize = 1024;

/// A number of worker threads, at most [`MOST_THREADS`].
fn threads(text: &str) -> Result<usize, String> {
    let number = text.parse().ok().filter(|n| *n <= MOST_THREADS);
    number.ok_or_else(|| format!("`{text}` is no number of threads from 0 to {MOST_THREADS}"))
}

/// A pool of `threads` workers, or of one for each core if 0; warns if there are fewer cores.
fn workers(threads: usize) -> Result<Pool, PipelineError> {
    let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
    if threads > cores {
        out::errln!("{}", too_many(threads, cores));
    }
    Ok(Pool::new(threads)?)
}

fn too_many(threads: usize, cores: usize) -> String {
    let there = if cores == 1 { "1 core".to_string() } else { format!("{cores} cores") };
    format!("--threads {threads} on {there}: threads wait for one another in every kernel, which takes many times as long; leave it out")
}

/// A share in percent or as a fraction: `2%` or `0.02`.
fn share(text: &str) -> Result<f64, String> {
    let (number, unit) = text.strip_suffix('%').map_or((text, 1.0), |percent| (percent.trim_end(), 0.01));
    let share = number.parse::<f64>().ok().map(|n| n * unit).filter(|s| s.is_finite() && *s >= 0.0);
    match share {
        Some(share) if share > 1.0 && unit == 1.0 => Err(format!("`{text}` would be {}%; write {text}% if that is meant", share * 100.0)),
        _ => share.ok_or_else(|| format!("`{text}` is no share; write 2% or 0.02")),
    }
}

/// `8GB`, `512MB` or `300kB`, decimal as everywhere; or bytes.
fn bytes(text: &str) -> Result<Bytes, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let factor = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1.0,
        "kb" | "k" => 1e3,
        "mb" | "m" => 1e6,
        "gb" | "g" => 1e9,
        "tb" | "t" => 1e12,
        _ => f64::NAN,
    };
    let bytes = number.parse::<f64>().map(|n| n * factor).ok().filter(|b| *b >= 1.0 && *b < u64::MAX as f64);
    bytes.map(|b| Bytes(b as u64)).ok_or_else(|| format!("`{text}` is no amount of memory; write 8GB or 512MB"))
}

/// The default folder for a recipe's results: it depends on the recipe, the types and the kind of device.
fn default_out(recipe: &Recipe, args: &RecipeArgs, target: &Target) -> PathBuf {
    let stored = args.dtype.map(|dtype| format!("-{dtype}")).unwrap_or_default();
    let dropout = if args.no_dropout { "-no-dropout" } else { "" };
    let narrow = if args.narrow { "-narrow" } else { "" };
    let device = if target.is_cpu() { String::new() } else { format!("-{}", target.kind()) };
    Path::new("target").join("memlet").join(format!("{}{stored}{narrow}{dropout}{device}", folder_name(&recipe.program.name)))
}

/// A table whose first column is text and whose other columns are numbers.
fn table(columns: &[&str]) -> Table {
    let column = |(n, name): (usize, &&str)| (name.to_string(), "", if n == 0 { Align::Left } else { Align::Right });
    let columns: Vec<(String, &'static str, Align)> = columns.iter().enumerate().map(column).collect();
    let borrowed: Vec<(&str, &'static str, Align)> = columns.iter().map(|(name, unit, align)| (name.as_str(), *unit, *align)).collect();
    Table::new(&borrowed)
}

fn cells(row: Vec<String>) -> Vec<Cell> {
    row.into_iter().map(Cell::text).collect()
}

fn command_line() -> String {
    bench::record::command_line(std::env::args())
}

/// Turns success into failure if output was lost.
fn printed(code: ExitCode) -> ExitCode {
    match out::refused() {
        Some(why) if code == ExitCode::SUCCESS => {
            out::errln!("what was to be printed is not all there: {why}");
            ExitCode::FAILURE
        }
        _ => code,
    }
}

pub fn main() -> ExitCode {
    // SAFETY: no thread but this one runs yet.
    unsafe { kernels::InstructionSet::limit_libraries() };
    // A second Ctrl-C ends the process at once; the first lets the current measurement finish.
    let _ = ctrlc::set_handler(|| {
        if INTERRUPT.swap(true, std::sync::atomic::Ordering::SeqCst) {
            std::process::exit(130);
        }
        out::errln!("\nending as soon as what is at work is done; Ctrl-C again ends it at once");
    });
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        // Help and version are no errors.
        Err(told) if !told.use_stderr() || told.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => told.exit(),
        Err(mistake) => {
            out::errln!("{}", mistake_in_a_sentence(&mistake));
            return ExitCode::from(2);
        }
    };
    let done = match cli.command {
        Command::Analyze(args) => args.run(&mut std::io::stdout().lock()),
        Command::Optimize(args) => args.run().map_err(|error| explain_overflow(error, || args.measure.recipe.reload())),
        Command::Sweep(args) => args.run(),
        Command::Merge(args) => args.run(),
        Command::Solve(args) => args.run(),
        Command::VerifySelection(args) => args.run(),
        Command::Run(args) => args.run(),
        Command::Train(args) => args.run(),
        Command::Compare(args) => return printed(args.run()),
        Command::Build(args) => args.run(),
        Command::Report(args) => args.run(),
        Command::Explain(args) => args.run(),
        Command::Variants(args) => args.run(),
        Command::Devices(args) => args.run(),
        Command::Cache(args) => args.run(),
        Command::Interpret(args) => args.run(),
        Command::Export(args) => args.run(),
        Command::Import(args) => args.run(),
    };
    match done {
        Ok(()) if INTERRUPT.load(std::sync::atomic::Ordering::SeqCst) => ExitCode::from(130),
        Ok(()) => printed(ExitCode::SUCCESS),
        Err(error) => {
            out::errln!("{}", error.with_lines());
            if error.goes_on() && restart::allowed() { restart::begin() } else { ExitCode::from(error.exit_code()) }
        }
    }
}

/// A mistake in a command line, in one sentence that says how to write it.
fn mistake_in_a_sentence(mistake: &clap::Error) -> String {
    let told = mistake.render().to_string();
    let mut parts: Vec<String> = Vec::new();
    let mut usage = None;
    for line in told.lines().map(str::trim).filter(|line| !line.is_empty()) {
        if let Some(command) = line.strip_prefix("Usage: ") {
            usage = command.find(['<', '[']).map(|end| command[..end].trim().to_string());
        } else if let Some(line) = line.strip_prefix("error: ") {
            parts.push(line.trim_end_matches(':').to_string());
        } else if !line.starts_with("For more information") {
            parts.push(line.strip_prefix("tip: ").unwrap_or(line).to_string());
        }
    }
    // Where clap prints no usage, the command is the first word of the command line, if it is one.
    let command = || std::env::args().nth(1).filter(|word| Cli::command().find_subcommand(word).is_some());
    let usage = usage.unwrap_or_else(|| ["memlet".to_string()].into_iter().chain(command()).collect::<Vec<_>>().join(" "));
    format!("{}; `{} --help` lists what can be given", parts.join("; "), usage.split(" --").next().unwrap_or("memlet"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistake_in_a_command_line_is_one_sentence() {
        let said = |words: &[&str]| {
            let mistake = Cli::try_parse_from(["memlet"].iter().chain(words)).err().map(|e| mistake_in_a_sentence(&e)).unwrap_or_default();
            assert!(!mistake.contains('\n') && mistake.contains("memlet") && mistake.contains("--help"), "{mistake}");
            mistake
        };
        assert!(said(&["run", "plan.json", "--threads", "many"]).contains("`many` is no number of threads from 0 to 1024"));
        assert!(said(&["run", "plan.json", "--thread", "2"]).contains("a similar argument exists: '--threads'"));
        assert!(said(&["run"]).contains("<PLAN>"));
        assert!(said(&["optimise", "mlp.yaml"]).contains("optimize"));
        assert!(said(&["analyze", "mlp.yaml", "--dtype", "f31"]).contains("write f64, f32, bf16 or f16"));
    }

    #[test]
    fn threads_are_as_many_as_machines_have() {
        assert_eq!([threads("0"), threads("64")], [Ok(0), Ok(64)]);
        for wrong in ["-1", "1025", "many"] {
            assert!(threads(wrong).is_err_and(|why| why.contains("from 0 to 1024")), "{wrong}");
        }
    }

    #[test]
    fn more_threads_than_cores_are_warned_of() {
        assert!(too_many(64, 2).starts_with("--threads 64 on 2 cores: threads wait") && too_many(2, 1).contains("on 1 core:"));
    }

    #[test]
    fn durations_are_written_with_a_unit_or_in_seconds() {
        for (text, ms) in [("500ms", 500), ("1.5s", 1500), ("2", 2000), ("3m", 180_000), ("2h", 7_200_000)] {
            assert_eq!(duration(text), Ok(Duration::from_millis(ms)), "{text}");
        }
        for wrong in ["", "ms", "5q", "-1s"] {
            assert!(duration(wrong).is_err_and(|why| why.contains("write 90s, 3m, 2h or 500ms")), "{wrong}");
        }
    }

    #[test]
    fn memory_is_written_with_a_unit() {
        assert_eq!([bytes("8GB"), bytes("1.5 mb"), bytes("300")], [Ok(Bytes(8_000_000_000)), Ok(Bytes(1_500_000)), Ok(Bytes(300))]);
        for wrong in ["", "GB", "-1", "0", "8 apples", "nan", "1e99GB"] {
            assert!(bytes(wrong).is_err_and(|why| why.contains("write 8GB or 512MB")), "{wrong}");
        }
    }

    #[test]
    fn shares_are_written_in_two_ways() {
        assert_eq!([share("2%"), share("0.02"), share("0"), share("150 %")], [Ok(0.02), Ok(0.02), Ok(0.0), Ok(1.5)]);
        for wrong in ["", "%", "-1%", "two", "inf", "nan%"] {
            assert!(share(wrong).is_err_and(|why| why.contains("write 2% or 0.02")), "{wrong}");
        }
        assert!(share("25").is_err_and(|why| why.contains("2500%") && why.contains("write 25%")));
    }
}
