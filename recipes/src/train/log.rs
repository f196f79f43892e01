//! The log of a run: one line of a CSV file for each step, written as steps end. A run that goes on from a checkpoint goes on with its
//! log: lines of steps that are done over again are taken out.

use crate::pipeline::PipelineError;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

pub struct Log {
    path: PathBuf,
    file: File,
    columns: Vec<String>,
    /// Step and loss of each line.
    pub losses: Vec<(u64, f64)>,
}

/// The columns of every log, beside those of the run.
const STEP: &str = "step";
const MS: &str = "ms";

impl Log {
    /// Opens the log of a run in which `done` steps are done. `scalars` name its columns between the number of the step and its time; the
    /// first is the loss.
    ///
    /// # Errors
    /// Errors of the file system; a file that is no log of this run.
    pub fn open(path: &Path, scalars: &[String], done: u64) -> Result<Log, PipelineError> {
        let fault = |why: String| PipelineError::Tensors { file: path.display().to_string(), why };
        let columns: Vec<String> = [STEP].into_iter().chain(scalars.iter().map(String::as_str)).chain([MS]).map(String::from).collect();
        let header = columns.join(",");
        let mut kept = vec![header.clone()];
        let mut losses = vec![];
        if done > 0 && path.is_file() {
            let text = std::fs::read_to_string(path).map_err(|e| fault(e.to_string()))?;
            let mut lines = text.lines();
            if lines.next() != Some(&header) {
                return Err(fault(format!(
                    "this is no log of the run that goes on, whose first line is `{header}`; give --log another file"
                )));
            }
            // The last line may have been cut off.
            for line in lines.filter(|line| line.split(',').count() == columns.len()) {
                let mut cells = line.split(',');
                let step = cells.next().and_then(|cell| cell.parse::<u64>().ok());
                let loss = cells.next().and_then(|cell| cell.parse::<f64>().ok());
                if let (Some(step), Some(loss)) = (step, loss)
                    && step <= done
                {
                    kept.push(line.to_string());
                    losses.push((step, loss));
                }
            }
        }
        if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
            std::fs::create_dir_all(folder).map_err(|e| fault(e.to_string()))?;
        }
        let text = kept.join("\n") + "\n";
        bench::atomic::write(path, text.as_bytes()).map_err(|e| fault(e.to_string()))?;
        let file = File::options().append(true).open(path).map_err(|e| fault(e.to_string()))?;
        Ok(Log { path: path.to_path_buf(), file, columns, losses })
    }

    /// Adds the line of a step.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn line(&mut self, step: u64, scalars: &[f64], ms: f64) -> Result<(), PipelineError> {
        debug_assert_eq!(scalars.len() + 2, self.columns.len());
        let numbers: Vec<String> = scalars.iter().map(f64::to_string).collect();
        let line = format!("{step},{},{ms:.3}\n", numbers.join(","));
        let written = self.file.write_all(line.as_bytes());
        written.map_err(|e| PipelineError::Tensors { file: self.path.display().to_string(), why: e.to_string() })?;
        self.losses.push((step, scalars.first().copied().unwrap_or(f64::NAN)));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_log_goes_on_where_its_run_does() -> Result<(), Box<dyn std::error::Error>> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("deep/log.csv");
        let scalars = ["loss".to_string(), "lr".to_string()];
        let mut log = Log::open(&path, &scalars, 0)?;
        for step in 1..=4 {
            log.line(step, &[1.0 / step as f64, 0.1], 2.0)?;
        }
        // A line that a killed run did not finish.
        std::fs::write(&path, std::fs::read_to_string(&path)? + "5,0.2")?;
        let log = Log::open(&path, &scalars, 2)?;
        assert_eq!(log.losses, [(1, 1.0), (2, 0.5)]);
        assert_eq!(std::fs::read_to_string(&path)?, "step,loss,lr,ms\n1,1,0.1,2.000\n2,0.5,0.1,2.000\n");
        // Another run's file stays as it is.
        let error = Log::open(&path, &scalars[..1], 2).err().ok_or("another header")?;
        assert!(error.to_string().contains("`step,loss,ms`") && error.exit_code() == 2, "{error}");
        Ok(())
    }
}
