//! Facts about the machine from `/proc` and `/sys`; unreadable facts stay unknown rather than guessed.

use crate::unit::Bytes;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    pub cpu: String,
    /// Hardware threads that this process may use.
    pub threads: u64,
    pub cores: u64,
    pub caches: Vec<CacheLevel>,
    pub memory: Bytes,
    pub os: String,
}

/// All caches of one level and kind together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheLevel {
    /// `L1d`, `L1i`, `L2`, `L3`.
    pub name: String,
    pub bytes_each: Bytes,
    pub count: u64,
}

impl Machine {
    /// This machine. Fields that the system does not report are empty or 0.
    pub fn here() -> Machine {
        let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Machine {
            cpu: field(&cpu, "model name").unwrap_or_default(),
            threads: std::thread::available_parallelism().map_or(0, |n| n.get() as u64),
            cores: physical_cores(&cpu),
            caches: caches(Path::new("/sys/devices/system/cpu")),
            memory: memory(&fs::read_to_string("/proc/meminfo").unwrap_or_default()),
            os: operating_system(),
        }
    }

    /// One line for captions: `AMD EPYC, 2 cores, 33.6 MB L3, 8.2 GB`.
    pub fn line(&self) -> String {
        let mut parts = vec![if self.cpu.is_empty() { "unknown CPU".to_string() } else { self.cpu.clone() }];
        if self.cores > 0 {
            parts.push(format!("{} core{}", self.cores, if self.cores == 1 { "" } else { "s" }));
        }
        if let Some(last) = self.caches.last() {
            parts.push(format!("{} {}", Bytes(last.bytes_each.0 * last.count), last.name));
        }
        if self.memory.0 > 0 {
            parts.push(format!("{} memory", self.memory));
        }
        parts.join(", ")
    }
}

/// The name of this host in its network; empty where the system does not say it.
pub fn host_name() -> String {
    fs::read_to_string("/proc/sys/kernel/hostname").map(|name| name.trim().to_string()).unwrap_or_default()
}

fn field(text: &str, key: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        (name.trim() == key).then(|| value.trim().to_string())
    })
}

/// Distinct (package, core) pairs; kernels that print neither give the number of processors.
fn physical_cores(cpuinfo: &str) -> u64 {
    let blocks: Vec<&str> = cpuinfo.split("\n\n").filter(|b| field(b, "processor").is_some()).collect();
    let pairs: BTreeSet<_> = blocks.iter().filter_map(|b| Some((field(b, "physical id")?, field(b, "core id")?))).collect();
    if pairs.is_empty() { blocks.len() as u64 } else { pairs.len() as u64 }
}

fn memory(meminfo: &str) -> Bytes {
    let kibibytes = field(meminfo, "MemTotal").and_then(|v| v.trim_end_matches("kB").trim().parse::<u64>().ok());
    Bytes(kibibytes.unwrap_or(0).saturating_mul(1024))
}

fn operating_system() -> String {
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release.lines().find_map(|l| l.strip_prefix("PRETTY_NAME=")).map(|v| v.trim_matches('"').to_string());
    let kernel = fs::read_to_string("/proc/sys/kernel/osrelease").map(|k| k.trim().to_string()).unwrap_or_default();
    match name {
        Some(name) if !kernel.is_empty() => format!("{name}, Linux {kernel}"),
        Some(name) => name,
        None => std::env::consts::OS.to_string(),
    }
}

fn caches(cpus: &Path) -> Vec<CacheLevel> {
    // A cache shared by several processors is listed under each of them with the same `shared_cpu_list`.
    let mut seen: BTreeSet<(String, String, u64)> = BTreeSet::new();
    for cpu in entries(cpus, "cpu") {
        for index in entries(&cpu.join("cache"), "index") {
            let read = |file: &str| fs::read_to_string(index.join(file)).map(|t| t.trim().to_string()).ok();
            let (Some(level), Some(kind), Some(size), Some(shared)) = (read("level"), read("type"), read("size"), read("shared_cpu_list"))
            else {
                continue;
            };
            let suffix = match kind.as_str() {
                "Data" => "d",
                "Instruction" => "i",
                _ => "",
            };
            seen.insert((format!("L{level}{suffix}"), shared, cache_size(&size)));
        }
    }
    let mut levels: Vec<CacheLevel> = Vec::new();
    for (name, _, size) in seen {
        match levels.last_mut() {
            Some(last) if last.name == name && last.bytes_each.0 == size => last.count += 1,
            _ => levels.push(CacheLevel { name, bytes_each: Bytes(size), count: 1 }),
        }
    }
    levels
}

fn entries(folder: &Path, prefix: &str) -> Vec<std::path::PathBuf> {
    let numbered = |name: &str| name.strip_prefix(prefix).is_some_and(|n| !n.is_empty() && n.bytes().all(|b| b.is_ascii_digit()));
    let listed = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<_> = listed.filter(|e| e.file_name().to_str().is_some_and(numbered)).map(|e| e.path()).collect();
    found.sort();
    found
}

/// `32768K` or `32M`.
fn cache_size(text: &str) -> u64 {
    let (digits, scale) = match text.as_bytes().last() {
        Some(b'K') => (&text[..text.len() - 1], 1024),
        Some(b'M') => (&text[..text.len() - 1], 1024 * 1024),
        _ => (text, 1),
    };
    digits.parse::<u64>().unwrap_or(0).saturating_mul(scale)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyperthreads_count_once() {
        let block = |p: u32, core: u32| format!("processor\t: {p}\nphysical id\t: 0\ncore id\t: {core}\nmodel name\t: Some CPU\n\n");
        let text: String = [(0, 0), (1, 1), (2, 0), (3, 1)].iter().map(|(p, c)| block(*p, *c)).collect();
        assert_eq!(physical_cores(&text), 2);
        assert_eq!(physical_cores("processor : 0\n\nprocessor : 1\n\n"), 2);
        assert_eq!(field(&text, "model name").as_deref(), Some("Some CPU"));
    }

    #[test]
    fn sizes_are_read_with_their_suffix() {
        assert_eq!(cache_size("32K"), 32 * 1024);
        assert_eq!(cache_size("32M"), 32 * 1024 * 1024);
        assert_eq!(cache_size(""), 0);
        assert_eq!(memory("MemTotal:       2 kB\n"), Bytes(2048));
    }

    #[test]
    fn an_unknown_machine_still_has_a_line() {
        assert_eq!(Machine::default().line(), "unknown CPU");
    }
}
