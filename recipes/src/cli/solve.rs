//! `memlet solve`: selects from stored measurements, without the device.

use super::out::{errln, out, outln};
use super::{cells, duration, table};
use crate::pipeline::PipelineError;
use crate::pipeline::choose::solve::{Decision, SolveRequest, StackDecision, decide, decide_stack};
use crate::pipeline::variants::folder_name::folder_name;
use bench::unit::significant;
use clap::Args;
use layouts::certificate::Certificate;
use layouts::count::{Count, Effort};
use layouts::exact::{SearchLimits, SearchProgress};
use layouts::{Method, Store};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[derive(Args)]
pub struct SolveArgs {
    /// Records of `memlet sweep` or `memlet optimize`; several are merged
    #[arg(required = true)]
    records: Vec<PathBuf>,
    /// The file for the certificate [default: certificate.json next to the first records]
    #[arg(long)]
    certificate: Option<PathBuf>,
    /// How many times all times are resampled to see whether the choice stands
    #[arg(long, default_value_t = 50)]
    resamples: usize,
    /// How many of the best choices are listed
    #[arg(long, default_value_t = 5)]
    top: usize,
    /// Count the choices that cost at most 1% more as far as memory allows, which may take hours, instead of half a minute
    #[arg(long)]
    count: bool,
    /// Stop after this time; the gap to the best possible choice is printed
    #[arg(long, value_parser = duration)]
    time: Option<Duration>,
    /// Choose for a stack of this many layers, each of which is the whole program
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..))]
    layers: u16,
    /// In a stack: a container of a layer, and the container of the next layer that it is identical to, e.g. --join y=x [default: the
    /// result and the input of equal layouts, and their gradients]
    #[arg(long, value_name = "DATA=DATA", value_parser = join)]
    join: Vec<(String, String)>,
    /// Print JSON: every choice in full
    #[arg(long)]
    json: bool,
}

pub(super) fn join(text: &str) -> Result<(String, String), String> {
    let (near, far) = text.split_once('=').ok_or("write DATA=DATA, e.g. y=x")?;
    Ok((near.trim().to_string(), far.trim().to_string()))
}

impl SolveArgs {
    pub fn run(&self) -> Result<(), PipelineError> {
        let store = Store::merge(&self.records)?;
        let programs = layouts::SelectionProblem::of_records(&store);
        if programs.is_empty() {
            let file = self.records.iter().map(|r| r.display().to_string()).collect::<Vec<_>>().join(", ");
            return Err(PipelineError::Plan {
                file,
                why: "no program was swept in these records; `memlet sweep RECIPE` makes them".into(),
            });
        }
        if !self.json {
            outln!("costs are times of kernels alone, with {} caches", store.cache());
        }
        let (mut decisions, mut stacks) = (Vec::new(), Vec::new());
        for (name, program) in &programs {
            let start = Instant::now();
            let mut told = start;
            let mut watch = |p: SearchProgress| {
                if std::io::stderr().is_terminal() && told.elapsed() > Duration::from_secs(1) {
                    told = Instant::now();
                    errln!("{:.0} s: {}", start.elapsed().as_secs_f64(), so_far(p));
                }
                let stop = super::INTERRUPT.load(std::sync::atomic::Ordering::SeqCst);
                !stop && self.time.is_none_or(|limit| start.elapsed() < limit)
            };
            if self.layers > 1 {
                let of = (usize::from(self.layers), &self.join);
                let decision = decide_stack(name, program, &store, of, SearchLimits::default(), &mut watch)?;
                let seconds = start.elapsed().as_secs_f64();
                let path = self.write(name, &decision.certificate, programs.len() > 1)?;
                if !self.json {
                    print_stack(&decision, self.layers, seconds);
                    checked_with(&path);
                }
                stacks.push(decision);
                continue;
            }
            let effort = if self.count { Effort::FULL } else { Effort::BRIEF };
            let counted = |done: usize, of: usize| {
                if done > 0 && done.is_multiple_of(50) && std::io::stderr().is_terminal() {
                    errln!("{:.0} s: counted {done} of {of} combinations of variants", start.elapsed().as_secs_f64());
                }
                !super::INTERRUPT.load(std::sync::atomic::Ordering::SeqCst)
            };
            let resampled = |done: usize| {
                if done.is_multiple_of(1000) && std::io::stderr().is_terminal() {
                    errln!("{:.0} s: drew {done} of {} times again", start.elapsed().as_secs_f64(), self.resamples);
                }
                let stop = super::INTERRUPT.load(std::sync::atomic::Ordering::SeqCst);
                !stop && self.time.is_none_or(|limit| start.elapsed() < limit)
            };
            let count = Some((effort, &counted as _));
            let asked = SolveRequest { choices: self.top, resamples: self.resamples, resampled: Some(&resampled), count };
            let decision = decide(name, program, &store, &asked, SearchLimits::default(), &mut watch)?;
            let path = self.write(name, &decision.certificate, programs.len() > 1)?;
            if !self.json {
                print(&decision, self.count);
                checked_with(&path);
            }
            decisions.push(decision);
        }
        if self.json {
            let text = if self.layers > 1 { serde_json::to_string(&stacks) } else { serde_json::to_string(&decisions) };
            outln!("{}", text.map_err(|e| PipelineError::Internal(e.to_string()))?);
        }
        Ok(())
    }

    /// Writes the certificate; one for each program, by its name, if there are several.
    fn write(&self, name: &str, certificate: &Certificate, several: bool) -> Result<PathBuf, PipelineError> {
        let beside = || self.records[0].parent().unwrap_or(Path::new("")).join("certificate.json");
        let mut path = self.certificate.clone().unwrap_or_else(beside);
        if several {
            // A network's sizes make a longer name than a file may have.
            let short = (name.len() > LONGEST).then(|| folder_name(name));
            let name: String = short.as_deref().unwrap_or(name).chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
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
        let certificate = certificate.clone().about(self.records.iter().map(relative).collect());
        let fault = |why: String| PipelineError::Plan { file: path.display().to_string(), why };
        let text = certificate.text().map_err(|e| fault(e.to_string()))?;
        bench::atomic::write(&path, text.as_bytes()).map_err(|e| fault(e.to_string()))?;
        Ok(path)
    }
}

/// The most characters of a program's name, with its sizes, in a certificate's name.
const LONGEST: usize = 100;

/// The number of choices that cost little more than the best; `counted_on` if memory was the only limit.
fn nearly_as_good(count: &Count, counted_on: bool) -> String {
    let Count { least, most, combinations, uncounted } = count;
    let choices = match most {
        Some(most) if most == least => format!("{least}"),
        Some(most) => format!("between {least} and {most}"),
        None => format!("at least {least}"),
    };
    let among = match (combinations, uncounted) {
        (0 | 1, 0) => String::new(),
        (_, 0) => format!(", in {combinations} combinations of variants"),
        _ => {
            let why = if counted_on { "were not counted" } else { "are too wide to be counted in half a minute: --count takes longer" };
            format!("; of {combinations} combinations or sets of combinations of variants {uncounted} {why}")
        }
    };
    match choices.as_str() {
        "1" => format!("no other choice costs at most 1% more{among}"),
        _ => format!("{choices} choices cost at most 1% more{among}"),
    }
}

/// The best total of a search so far, and its largest possible distance from the optimum.
fn so_far(p: SearchProgress) -> String {
    let total = significant(p.total as f64 / 1e9);
    match p.bound {
        ..=0 => format!("{total} ms so far"),
        bound => format!("{total} ms, at most {:.3}% above the best", 100.0 * (p.total - bound) as f64 / p.total.max(1) as f64),
    }
}

/// The set of measurements that a proof is relative to.
pub(super) fn relative(certificate: &Certificate) -> String {
    let timed = &certificate.scope.timed;
    format!("relative to {} timed configurations of {} kernels", timed.values().sum::<usize>(), timed.len())
}

/// Prints the choices of all methods, and the distance of each from the optimum.
fn print(decision: &Decision, counted_on: bool) {
    let seconds = decision.solving.as_secs_f64();
    let Some(exact) = decision.selections.iter().find(|s| s.method == Method::Exact) else { return };
    outln!("{}", decision.name);
    let mut rows = table(&["method", "program", "predicted ms", "above exact", "above minima"]).words(&["program"]);
    let above = |ms: f64, least: f64| if least > 0.0 { format!("{:.2}%", 100.0 * (ms / least - 1.0)) } else { String::new() };
    for s in &decision.selections {
        rows.row(cells(vec![
            s.method.to_string(),
            decision.certificate.program.called(&s.configuration.variants),
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
    out!("{}", rows.text(bench::table::colour()));
    match exact.proven {
        true => {
            let redrawn = decision.robustness.as_ref();
            let sure = redrawn.map(|r| format!("; the best in {:.0}% of {} redraws of all times", 100.0 * r.optimal, r.resamples));
            let relative = relative(&decision.certificate);
            outln!(
                "proven in {seconds:.1} s: no choice in the stored measurements costs less (gap 0), {relative}{}",
                sure.unwrap_or_default()
            );
        }
        false => outln!(
            "not proven: at most {:.3}% above the best choice, which costs at least {} ms",
            100.0 * exact.gap,
            significant(exact.bound_ms)
        ),
    }
    for (variant, kernel) in &decision.certificate.scope.left_out {
        outln!("left out: `{variant}`, whose kernel `{kernel}` was not measured yet");
    }
    if let Some(count) = &decision.within {
        outln!("{}", nearly_as_good(count, counted_on));
    }
    if let Some(r) = &decision.robustness {
        outln!(
            "of {} redraws of all times from their samples, the choice is the best in {:.0}%; it costs at most {} ms ({:.2}%) more than the best{}",
            r.resamples,
            100.0 * r.optimal,
            significant(r.worst_regret_ms),
            100.0 * r.worst_regret,
            if r.proven < r.resamples { format!(" ({} proven)", r.proven) } else { String::new() }
        );
    }
    for (n, s) in decision.top.iter().enumerate() {
        outln!("choice {}: {} ms (+{})", n + 1, significant(s.total_ms), above(s.total_ms, exact.total_ms));
    }
}

/// Prints the cost of a stack, layer by layer, and the cost of separate layers.
fn print_stack(decision: &StackDecision, layers: u16, seconds: f64) {
    let joins: Vec<String> = decision.joins.iter().map(|(near, far)| format!("{near} is {far} of the next")).collect();
    outln!("{}: {layers} layers; {}", decision.name, joins.join(", "));
    let mut rows = table(&["layers", "program", "ms each", "changes of layout", "handed on in"]).words(&["program", "handed on in"]);
    for choice in &decision.choices {
        let s = &choice.selection;
        let handed: Vec<String> =
            decision.joins.iter().filter_map(|(near, _)| Some(format!("{near}[{}]", s.configuration.layouts.get(near)?))).collect();
        rows.row(cells(vec![
            runs(&choice.layers),
            decision.certificate.program.called(&s.configuration.variants),
            significant(s.total_ms),
            s.relayouts.len().to_string(),
            handed.join(" "),
        ]));
    }
    out!("{}", rows.text(bench::table::colour()));
    // Separate layers are among the choices, so a negative difference is rounding.
    let less = (100.0 * (1.0 - decision.total_ms / decision.alone_ms)).max(0.0);
    outln!(
        "{} ms in all, {less:.2}% less than the {} ms of layers that each begin and end as the recipe asks",
        significant(decision.total_ms),
        significant(decision.alone_ms)
    );
    match decision.proven {
        true => {
            outln!("proven in {seconds:.1} s: no choice in the stored measurements costs less (gap 0), {}", relative(&decision.certificate))
        }
        false => outln!(
            "not proven: at most {:.3}% above the best choice, which costs at least {} ms",
            100.0 * (1.0 - decision.bound_ms / decision.total_ms),
            significant(decision.bound_ms)
        ),
    }
}

/// Layers as ranges: `1, 2-23, 24`.
fn runs(layers: &[usize]) -> String {
    let mut runs: Vec<(usize, usize)> = Vec::new();
    for layer in layers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *layer => *last = *layer,
            _ => runs.push((*layer, *layer)),
        }
    }
    let shown = |(first, last): &(usize, usize)| if first == last { first.to_string() } else { format!("{first}-{last}") };
    runs.iter().map(shown).collect::<Vec<_>>().join(", ")
}

fn checked_with(certificate: &Path) {
    outln!("certificate: {}; check it with: memlet verify-selection {}", certificate.display(), certificate.display());
}
