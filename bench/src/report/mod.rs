//! The report: one self-contained HTML page and one SVG for each figure.

mod figures;
mod graph;
mod headline;
mod page;
pub mod tables;

pub use page::STYLE;

use crate::atomic;
use crate::check::{CheckError, check};
use crate::model::Report;
use crate::plot::PlotError;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    Plot(#[from] PlotError),
    #[error("cannot write {path}; check that the output folder exists and has room")]
    Write {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// Writes `report.html` and `figures/*.svg` under `dir`, which is made if it does not exist. Everything is drawn before
/// the first file is written, and each file appears whole or not at all.
///
/// # Errors
/// [`ReportError::Check`] when a number cannot be shown; [`ReportError::Plot`] when a figure cannot be drawn;
/// [`ReportError::Write`] from the file system.
pub fn write(dir: &Path, report: &Report) -> Result<(), ReportError> {
    check(report)?;
    let figures = figures::draw(report)?;
    let html = page::html(report, &figures);
    let folder = dir.join("figures");
    let located = |path: &Path| {
        let path = path.to_path_buf();
        move |source| ReportError::Write { path, source }
    };
    fs::create_dir_all(&folder).map_err(located(&folder))?;
    for figure in &figures {
        let path = folder.join(format!("{}.svg", figure.file));
        atomic::write(&path, figure.svg.as_bytes()).map_err(located(&path))?;
    }
    let path = dir.join("report.html");
    atomic::write(&path, html.as_bytes()).map_err(located(&path))
}
