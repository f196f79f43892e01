//! A contender's process, which exchanges JSON objects, one a line.

use super::CompareError;
use super::contender::PeerContender;
use super::memory::TensorBytes;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a process may take to end after its stdin has been closed.
const FAREWELL: Duration = Duration::from_secs(5);

/// The scripts that workers run; they are written into one folder.
const SCRIPTS: [(&str, &str); 7] = [
    ("session.py", include_str!("../../../bench/peers/session.py")),
    ("torch_worker.py", include_str!("../../../bench/peers/torch_worker.py")),
    ("tensor_bytes.py", include_str!("../../../bench/peers/tensor_bytes.py")),
    ("jax_worker.py", include_str!("../../../bench/peers/jax_worker.py")),
    ("onnx_worker.py", include_str!("../../../bench/peers/onnx_worker.py")),
    ("openvino_worker.py", include_str!("../../../bench/peers/openvino_worker.py")),
    ("networks.py", include_str!("../../../bench/peers/networks.py")),
];

/// Writes the workers' scripts.
///
/// # Errors
/// [`CompareError::Folder`].
pub fn write_scripts(folder: &Path) -> Result<(), CompareError> {
    for (name, text) in SCRIPTS {
        let path = folder.join(name);
        std::fs::write(&path, text).map_err(|source| CompareError::Folder { path, source })?;
    }
    Ok(())
}

/// The pause between turns. After a parallel region the threads of a pool spin for some milliseconds before they sleep; PyTorch's
/// computed for up to 8 ms within the first 20 ms after a step and not at all later, JAX's for 0.2 ms, and ONNX Runtime's (1.32) one core
/// for 35 to 55 ms. With this pause the spinning falls into no turn, and the pools keep their own settings.
pub const SETTLE: Duration = Duration::from_millis(100);

/// How threads of a pool wait for work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wait {
    #[default]
    Default,
    Passive,
}

impl Wait {
    /// The environment variable that sets it.
    pub fn environment(self) -> Option<(&'static str, &'static str)> {
        match self {
            Wait::Default => None,
            Wait::Passive => Some(("OMP_WAIT_POLICY", "passive")),
        }
    }
}

/// Times of a step as a worker answers them, medians where it ran several; zero for a missing backward pass.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize, serde::Serialize)]
pub struct PeerStep {
    pub forward_ms: f64,
    pub backward_ms: f64,
    pub step_ms: f64,
    /// CPU time of the whole request, over all threads.
    pub cpu_s: f64,
    pub wall_s: f64,
}

/// A worker's answer about its results.
#[derive(Clone, Copy, Debug, PartialEq, serde::Deserialize)]
pub struct Checked {
    pub finite: bool,
    /// Seconds of the first step, including compilation.
    pub first_s: f64,
}

#[derive(Debug)]
pub struct Worker {
    name: String,
    child: Child,
    stdin: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// The file of the process's stderr.
    complaints: PathBuf,
}

impl Worker {
    /// Starts a contender in `folder`, with `threads` for every library that reads the environment.
    ///
    /// # Errors
    /// [`CompareError::Start`], [`CompareError::Folder`].
    pub fn start(contender: &PeerContender, threads: usize, folder: &Path, wait: Wait) -> Result<Worker, CompareError> {
        let (name, python) = (contender.name(), &contender.python);
        let complaints = folder.join(format!("{}.log", name.replace(", ", "-")));
        let log = File::create(&complaints).map_err(|source| CompareError::Folder { path: complaints.clone(), source })?;
        // A relative path, unless it is a mere name to be looked up, is relative to the user's folder, not to `folder`.
        let path = if python.components().count() > 1 { std::path::absolute(python).unwrap_or_default() } else { python.clone() };
        let mut command = Command::new(path);
        command.args(contender.script(threads)).current_dir(folder);
        for variable in ["OMP_NUM_THREADS", "MKL_NUM_THREADS"] {
            command.env(variable, threads.to_string());
        }
        command.envs(wait.environment());
        // A pool of compilers would outlive the compilation and compute during the measurements.
        command.env("TORCHINDUCTOR_COMPILE_THREADS", "1").env("PYTHONDONTWRITEBYTECODE", "1");
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let started = command.spawn().map_err(|source| CompareError::Start { python: python.clone(), source });
        let mut child = started?;
        let (Some(stdin), Some(stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(CompareError::Silent { contender: name, log: String::new() });
        };
        Ok(Worker { name, child, stdin: Some(stdin), answers: BufReader::new(stdout), complaints })
    }

    /// Sends the worker the model and the tensors; returns the versions of its libraries.
    pub fn load(&mut self, model: &Value, tensors: &Path) -> Result<Value, CompareError> {
        let answer: Value = self.ask(&json!({"do": "load", "model": model, "tensors": tensors}))?;
        Ok(answer.get("versions").cloned().unwrap_or(Value::Null))
    }

    /// Runs the first step with this `dropout`, and has its results written to a safetensors file.
    pub fn check(&mut self, dropout: bool, results: &Path) -> Result<Checked, CompareError> {
        self.ask(&json!({"do": "check", "dropout": dropout, "results": results}))
    }

    /// Runs a step and counts the bytes of its tensors.
    pub fn memory(&mut self, dropout: bool) -> Result<TensorBytes, CompareError> {
        self.ask(&json!({"do": "memory", "dropout": dropout}))
    }

    /// Repeats the step for some time, once at least: medians of its times.
    pub fn step(&mut self, dropout: bool, time: Duration) -> Result<PeerStep, CompareError> {
        self.ask(&json!({"do": "step", "dropout": dropout, "for_ms": time.as_millis() as u64}))
    }

    /// Waits for the answer without a limit: compilation may take minutes.
    fn ask<T: DeserializeOwned>(&mut self, request: &Value) -> Result<T, CompareError> {
        let mut line = String::new();
        let sent = self.stdin.as_mut().is_some_and(|stdin| writeln!(stdin, "{request}").and_then(|()| stdin.flush()).is_ok());
        if !sent || self.answers.read_line(&mut line).unwrap_or(0) == 0 {
            return Err(CompareError::Silent { contender: self.name.clone(), log: self.last_words() });
        }
        let garbled = |why: String| CompareError::Garbled { contender: self.name.clone(), why };
        let answer: Value = serde_json::from_str(&line).map_err(|e| garbled(e.to_string()))?;
        if let Some(why) = answer.get("error").and_then(Value::as_str) {
            return Err(CompareError::Peer { contender: self.name.clone(), why: why.to_string() });
        }
        serde_json::from_value(answer).map_err(|e| garbled(e.to_string()))
    }

    /// The last lines of the process's stderr.
    fn last_words(&self) -> String {
        let text = std::fs::read(&self.complaints).map(|b| String::from_utf8_lossy(&b).into_owned()).unwrap_or_default();
        let lines: Vec<&str> = text.lines().filter(|l| !l.trim().is_empty()).collect();
        lines.get(lines.len().saturating_sub(3)..).unwrap_or_default().join("; ")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A closed stdin ends the worker; one that does not end in time is killed.
        self.stdin = None;
        let begin = Instant::now();
        while begin.elapsed() < FAREWELL {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(10)),
                _ => return,
            }
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
