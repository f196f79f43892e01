//! `memlet variants`: the table of variants, or the programs made from a recipe.

use super::out::outln;
use crate::load::load;
use crate::pipeline::PipelineError;
use crate::pipeline::run::target::Target;
use crate::pipeline::variants::programs::programs_on;
use crate::pipeline::variants::table::{Contention, Devices, PassStep, Stacking, VARIANTS, VariantId};
use bench::table::{Align, Cell, Table, colour};
use bench::unit::Bytes;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use transforms::moved_bytes;

#[derive(Args)]
pub struct VariantsArgs {
    /// A recipe, a YAML file: list its programs instead of the table
    recipe: Option<PathBuf>,
    /// The device to make programs for: cpu or cuda; it may be absent
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    device: Target,
    /// Interpret the program at small sizes before and after every pass, and stop where they differ
    #[arg(long, requires = "recipe")]
    verify_each: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A program of a recipe.
#[derive(Serialize)]
struct Made {
    variant: VariantId,
    stacked: Vec<String>,
    title: String,
    kernels: usize,
    /// Bytes that all kernels read and write.
    bytes: u64,
    /// Kernels that hold a contraction with its neighbours.
    fused_contractions: usize,
}

impl VariantsArgs {
    /// # Errors
    /// Errors of the recipe, or a pass that `--verify-each` finds wrong.
    pub fn run(&self) -> Result<(), PipelineError> {
        let table = match &self.recipe {
            None if self.json => return json(&VARIANTS),
            None => rows(),
            Some(recipe) => {
                let made = self.programs(recipe)?;
                if self.json {
                    return json(&made);
                }
                programs_table(&made)
            }
        };
        outln!("{}", table.text(colour()).trim_end());
        if self.recipe.is_none() {
            outln!("\nPasses, in order; one with `?` is left out where it does not pay in the program that comes of it:\n");
            for row in VARIANTS {
                let passes: Vec<String> = row.passes.iter().map(|step| step_text(*step)).collect();
                outln!("{:18}  {}", row.id.text(), passes.join(" → "));
            }
            outln!("\nShares are of a measurement budget, the programs of one variant share it; `memlet variants RECIPE` shows them.");
        }
        Ok(())
    }

    fn programs(&self, recipe: &std::path::Path) -> Result<Vec<Made>, PipelineError> {
        let programs = programs_on(&load(recipe, &[])?, self.verify_each, self.device.epilogues())?;
        let unfused = Made {
            variant: VariantId::Unfused,
            stacked: vec![],
            title: VariantId::Unfused.row().title.into(),
            kernels: programs.unfused.units().len(),
            bytes: moved_bytes(&programs.unfused),
            fused_contractions: 0,
        };
        let made = programs.variants.iter().map(|v| Made {
            variant: v.key.id,
            stacked: v.key.stacked.clone(),
            title: v.key.to_string(),
            kernels: v.program.units().len(),
            bytes: moved_bytes(&v.program),
            fused_contractions: v.compositions.len(),
        });
        Ok([unfused].into_iter().chain(made).collect())
    }
}

fn json(value: &impl Serialize) -> Result<(), PipelineError> {
    outln!("{}", serde_json::to_string_pretty(value).map_err(|e| PipelineError::Internal(e.to_string()))?);
    Ok(())
}

fn rows() -> Table {
    let (left, right) = (Align::Left, Align::Right);
    let columns = [("variant", "", left), ("title", "", left), ("devices", "", left), ("stacking", "", left), ("cpu", "%", right)];
    let mut table = Table::new(&[&columns[..], &[("gpu", "%", right), ("timed as a whole", "", left)]].concat());
    for row in VARIANTS {
        let share = |part: f64| if part > 0.0 { Cell::text(format!("{:.0}", 100.0 * part)) } else { Cell::none() };
        table.row(vec![
            Cell::text(row.id.text()),
            Cell::text(row.title),
            Cell::text(match row.devices {
                Devices::Any => "any",
                Devices::Cpu => "CPU",
                Devices::Gpu => "GPU",
            }),
            Cell::text(match row.stacking {
                Stacking::None => "",
                Stacking::Each => "each way",
                Stacking::LongestIfFewerBytes => "none, longest",
                Stacking::Longest => "longest",
                Stacking::Searched => "searched",
            }),
            share(row.share.cpu),
            share(row.share.gpu),
            Cell::text(match row.contention {
                Contention::Baseline => "always, the baseline",
                Contention::AmongBest => "if among the best 3",
                Contention::UnlessFar => "unless far slower",
                Contention::Never => "never",
            }),
        ]);
    }
    table
}

/// A pass as the table shows it.
fn step_text(step: PassStep) -> String {
    let text = serde_json::to_value(step).ok().and_then(|value| value.as_str().map(String::from)).unwrap_or_default();
    if step.is_optional() { format!("{text}?") } else { text }
}

fn programs_table(made: &[Made]) -> Table {
    let (left, right) = (Align::Left, Align::Right);
    let mut table = Table::new(&[
        ("program", "", left),
        ("variant", "", left),
        ("kernels", "", right),
        ("fused contractions", "", right),
        ("moves", "", right),
    ]);
    for program in made {
        table.row(vec![
            Cell::text(&program.title),
            Cell::text(program.variant.text()),
            Cell::text(program.kernels.to_string()),
            Cell::text(program.fused_contractions.to_string()),
            Cell::text(Bytes(program.bytes).to_string()),
        ]);
    }
    table
}
