//! Memory of a step: where each buffer lies, and for which kernels.

use crate::table::{Align, Cell, Table};
use serde::{Deserialize, Serialize};

/// One buffer in the arena.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Life {
    /// Container; with its layout where it is a copy in another one.
    pub name: String,
    pub bytes: u64,
    pub offset: u64,
    /// Numbers of kernels, from 0.
    pub first: usize,
    pub last: usize,
    /// Whether it is a result, which is kept to the end of the step.
    #[serde(default)]
    pub kept: bool,
    /// The buffer that it takes the place of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
}

/// The memory of a step: inputs, and an arena for all other buffers.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct MemoryMap {
    /// Inputs and parameters: name and bytes. They are held all the time.
    pub given: Vec<(String, u64)>,
    /// Names of the kernels, in order.
    pub kernels: Vec<String>,
    /// In order of first use.
    pub lives: Vec<Life>,
}

impl MemoryMap {
    pub fn given_bytes(&self) -> u64 {
        self.given.iter().map(|(_, bytes)| bytes).sum()
    }

    /// Bytes of inputs, parameters and results.
    pub fn boundary_bytes(&self) -> u64 {
        self.given_bytes() + self.lives.iter().filter(|l| l.kept).map(|l| l.bytes).sum::<u64>()
    }

    /// Bytes from the start of the arena to the end of the highest buffer.
    pub fn arena_bytes(&self) -> u64 {
        self.lives.iter().map(|l| l.offset + l.bytes).max().unwrap_or(0)
    }

    /// The last kernel at which a buffer has its place for itself, without the kernel that writes another one over it.
    pub fn until(&self, life: &Life) -> usize {
        let replaced = self.lives.iter().any(|l| l.first == life.last && l.over.as_ref() == Some(&life.name));
        if replaced { life.last.saturating_sub(1) } else { life.last }
    }

    /// The buffers in the arena while a kernel runs.
    pub fn alive(&self, kernel: usize) -> impl Iterator<Item = &Life> {
        self.lives.iter().filter(move |l| (l.first..=self.until(l)).contains(&kernel))
    }

    pub fn alive_bytes(&self, kernel: usize) -> u64 {
        self.alive(kernel).map(|l| l.bytes).sum()
    }

    /// The kernel at which most bytes are alive, the first of equals; `None` without kernels.
    pub fn fullest(&self) -> Option<usize> {
        (0..self.kernels.len()).rev().max_by_key(|k| self.alive_bytes(*k))
    }

    /// The place of the peak, in a sentence; empty without kernels.
    pub fn summary(&self) -> String {
        let megabytes = |bytes: u64| format!("{:.1} MB", bytes as f64 / 1e6);
        let Some(at) = self.fullest() else { return String::new() };
        let idle = self.arena_bytes().saturating_sub(self.alive_bytes(at));
        let gaps = if idle * 1000 > self.arena_bytes() { format!("; {} lie idle between", megabytes(idle)) } else { String::new() };
        format!(
            "peak {} at kernel {} of {}, `{}`: {} of it given, and {} once the step has ended{gaps}",
            megabytes(self.given_bytes() + self.alive_bytes(at)),
            at + 1,
            self.kernels.len(),
            self.kernels[at],
            megabytes(self.given_bytes()),
            megabytes(self.boundary_bytes()),
        )
    }

    /// The buffers that are alive at the peak, the largest first.
    pub fn table(&self) -> Table {
        let mut table = Table::new(&[
            ("alive at the peak", "", Align::Left),
            ("size", "MB", Align::Right),
            ("from kernel", "", Align::Left),
            ("to", "", Align::Left),
            ("in the place of", "", Align::Left),
        ]);
        let Some(at) = self.fullest() else { return table };
        let size = |bytes: u64| Cell::number(bytes as f64 / 1e6, 2);
        let kernel = |n: usize| Cell::text(self.kernels.get(n).map(String::as_str).unwrap_or_default());
        let nothing = || Cell::text("");
        table.row(vec![Cell::text("inputs and parameters"), size(self.given_bytes()), nothing(), nothing(), nothing()]);
        let mut alive: Vec<&Life> = self.alive(at).collect();
        alive.sort_by(|a, b| b.bytes.cmp(&a.bytes).then(a.first.cmp(&b.first)));
        for life in alive {
            let to = if life.kept { Cell::text("result") } else { kernel(life.last) };
            let over = Cell::text(life.over.as_deref().unwrap_or_default());
            table.row(vec![Cell::text(&life.name), size(life.bytes), kernel(life.first), to, over]);
        }
        table
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn life(name: &str, bytes: u64, first: usize, last: usize, over: Option<&str>) -> Life {
        Life { name: name.into(), bytes, offset: 0, first, last, kept: false, over: over.map(String::from) }
    }

    #[test]
    fn results_written_in_place_count_once() {
        let kernels = ["one", "two", "three"].map(String::from).to_vec();
        let lives = vec![life("a", 8, 0, 1, None), life("b", 8, 1, 2, Some("a")), life("c", 1, 2, 2, None)];
        let map = MemoryMap { given: vec![("x".into(), 4)], kernels, lives };
        assert_eq!([0, 1, 2].map(|k| map.alive_bytes(k)), [8, 8, 9]);
        assert_eq!(map.fullest(), Some(2));
        let names: Vec<&str> = map.alive(1).map(|l| l.name.as_str()).collect();
        assert_eq!(names, ["b"]);
        assert_eq!(map.table().rows.len(), 3, "what is given, b and c");
    }
}
