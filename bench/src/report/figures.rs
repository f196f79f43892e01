//! Which figures a report has.

use crate::model::{KernelSweep, Report};
use crate::plot::{self, PlotError};
use sdfg::Class;

/// Violins on one axis; more would make them too small to compare on a page.
const VIOLINS: usize = 16;

pub struct Figure {
    /// Name of the SVG without its ending, and anchor in the page.
    pub file: String,
    pub section: Section,
    pub caption: &'static str,
    pub svg: String,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Section {
    Waterfall,
    Totals,
    Operators,
    Classes,
    Roofline,
    Sweeps,
    Selection,
    Memory,
}

/// Every figure that the report has data for.
///
/// # Errors
/// Errors of plots for values that cannot be drawn; figures without data are left out.
pub fn draw(report: &Report) -> Result<Vec<Figure>, PlotError> {
    let program = report.program.as_str();
    let mut figures = Vec::new();
    let mut add = |file: &str, section, caption, drawn: Result<String, PlotError>| match drawn {
        Ok(svg) => {
            figures.push(Figure { file: file.to_string(), section, caption, svg });
            Ok(())
        }
        Err(PlotError::Empty { .. }) => Ok(()),
        Err(error) => Err(error),
    };
    add(
        "waterfall",
        Section::Waterfall,
        "What each stage of the optimisation leaves of the bytes and of the time; percentages against the first stage, of times against the first of their kind.",
        plot::waterfall(program, &report.waterfall),
    )?;
    add(
        "totals",
        Section::Totals,
        "Medians of a whole training step, contenders interleaved; what was clearly slower in a first race is left out. Whiskers are 95% intervals.",
        plot::totals(program, &report.contenders),
    )?;
    add(
        "operators",
        Section::Operators,
        "Each kernel of the plan against the sum of its operators run one by one.",
        plot::operators(program, &report.kernels),
    )?;
    add(
        "classes",
        Section::Classes,
        "Where the flop are and where the time goes, before and after.",
        plot::classes(program, &report.classes),
    )?;
    add(
        "roofline",
        Section::Roofline,
        "Kernels under what was reached in the same run: the fastest contraction, and a copy of arrays that fit no cache (NT: \
         with non-temporal stores). Bytes are distinct elements of each container of a kernel.",
        plot::roofline(program, &report.roofline),
    )?;
    add(
        "memory",
        Section::Memory,
        "Every buffer of the plan from its first kernel to its last, where it lies. What is written in the place of another buffer \
         continues it. The line is the most that is alive at once.",
        plot::memory(program, &report.memory),
    )?;
    let (contractions, others): (Vec<_>, Vec<_>) = report.sweeps.iter().partition(|s| s.class == Class::Contraction);
    for (kind, title, sweeps) in
        [("contractions", "Configurations of the contractions", contractions), ("fused", "Configurations of the fused kernels", others)]
    {
        for (n, chunk) in sweeps.chunks(VIOLINS).enumerate() {
            let chunk: &[&KernelSweep] = chunk;
            add(
                &format!("sweep-{kind}-{}", n + 1),
                Section::Sweeps,
                "Every measured configuration of each kernel: the width is how many take that long; of a few, each is a mark.",
                plot::violins(&format!("{title}: {program}"), chunk),
            )?;
        }
    }
    add(
        "config-graph",
        Section::Selection,
        "Each line is a measured configuration of the kernel between two cuts; the strong line is the plan.",
        plot::config_graph(program, &report.config_graph),
    )?;
    Ok(figures)
}
