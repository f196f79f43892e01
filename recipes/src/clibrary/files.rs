//! The files of a library.

use super::boundary::Boundary;
use super::flatten::{Flattener, Schedules};
use super::names::{distinct, identifier};
use super::tables::{Texts, plan_h, tables_c};
use super::text::{caps, named};
use crate::pipeline::PipelineError;
use crate::pipeline::choose::plan::Plan;
use kernels::Toolchain;
use std::fmt::Write;
use std::path::Path;

/// A file that is compiled.
pub struct SourceFile {
    pub path: String,
    /// Whether it is compiled with the flags of generated code, for the processor at hand.
    pub is_generated: bool,
}

pub struct CLibrary<'a> {
    pub name: &'a str,
    pub plan: &'a Plan,
    pub boundary: &'a Boundary,
    pub flat: &'a Flattener<'a>,
    pub schedules: &'a Schedules,
    pub most_threads: usize,
}

impl CLibrary<'_> {
    /// Writes all files. Returns those to compile.
    ///
    /// # Errors
    /// A folder that cannot be written.
    pub fn write(&self, out: &Path) -> Result<Vec<SourceFile>, PipelineError> {
        let (name, caps) = (self.name, caps(self.name));
        let texts = Texts::of(&self.flat.kernels);
        let (mut files, mut sources): (Vec<(String, String)>, Vec<SourceFile>) = (vec![], vec![]);
        let mut source = |path: String, text: String, is_generated: bool| {
            files.push((path.clone(), text));
            sources.push(SourceFile { path, is_generated });
        };
        source("src/library.c".into(), named(include_str!("runtime/library.c"), name), false);
        source("src/engine.c".into(), named(include_str!("runtime/engine.c"), name), false);
        source("src/pool.c".into(), named(include_str!("runtime/pool.c"), name), false);
        source("src/tables.c".into(), tables_c(name, self.boundary, self.flat, self.schedules, &texts), false);
        source("src/random.c".into(), named(include_str!("runtime/random.c"), name), true);
        source("src/stream.c".into(), named(include_str!("runtime/stream.c"), name), true);
        for (n, text) in &texts.kernels {
            let of = ["kernel", "prepare", "finish", "scatter"];
            let renamed: String = of.iter().map(|function| format!("#define memlet_{function} {name}_{function}_{n}\n")).collect();
            let file = identifier(&self.flat.kernels[*n].name);
            source(format!("src/kernels/{n:03}_{file}.c"), renamed + text, true);
        }
        for (n, text) in texts.libraries.iter().enumerate() {
            let of = ["pack", "pack_rows", "gemm"];
            let renamed: String = of.iter().map(|function| format!("#define memlet_{function} {name}_products_{n}_{function}\n")).collect();
            source(format!("src/kernels/products_{n}.c"), renamed + text, true);
        }
        files.push(("src/internal.h".into(), named(include_str!("runtime/internal.h"), name)));
        files.push(("src/plan.h".into(), plan_h(name, self.boundary, self.flat, self.schedules, self.most_threads)));
        files.push((format!("include/{name}.h"), self.header()));
        let example = named(include_str!("runtime/example.c"), name);
        files.push(("example.c".into(), example));
        let list = |generated: Option<bool>| {
            let listed = sources.iter().filter(|s| generated.is_none_or(|g| s.is_generated == g));
            listed.map(|s| format!("    {}", s.path)).collect::<Vec<_>>().join("\n")
        };
        let cmake = include_str!("runtime/CMakeLists.txt").replace("\nGENERATED\n", &format!("\n{}\n", list(Some(true))));
        let cmake = cmake
            .replace("\nSOURCES)", &format!("\n{})", list(None)))
            .replace("\"FLAGS\"", &format!("\"{}\"", Toolchain::texts().code_flags().join(" ")));
        files.push(("CMakeLists.txt".into(), named(&cmake, name)));
        files.push(("README.md".into(), self.readme(&caps)));
        files.push(("library.json".into(), self.manifest()));
        for (path, text) in &files {
            let path = out.join(path);
            let fault = |e: std::io::Error| PipelineError::Tensors { file: path.display().to_string(), why: e.to_string() };
            path.parent().map_or(Ok(()), std::fs::create_dir_all).map_err(fault)?;
            bench::atomic::write(&path, text.as_bytes()).map_err(fault)?;
        }
        Ok(sources)
    }

    /// What other tools need to know to load the library.
    fn manifest(&self) -> String {
        let name = self.name;
        // Contexts that keep nothing in their workspaces from one step to the next may share one, a step at a time.
        let workspace = if self.flat.keeps(self.schedules) { "kept" } else { "scratch" };
        let library = format!("lib{name}.so");
        let about = serde_json::json!({"name": name, "library": library, "abi": 1, "threads": self.plan.threads, "workspace": workspace});
        format!("{about}\n")
    }

    /// The tensors as lines of a table.
    fn table(&self, border: &str) -> String {
        let mut rows = vec![["memory", "tensor", "role", "type", "shape", "layout"].map(String::from)];
        for tensor in &self.boundary.tensors {
            let shape: Vec<String> = tensor.dims.iter().zip(&tensor.shape).map(|(dim, size)| format!("{dim}={size}")).collect();
            let role = match &tensor.replaces {
                Some(parameter) => format!("next value of {parameter}"),
                None => tensor.role.to_string(),
            };
            let shape = if shape.is_empty() { "one number".to_string() } else { shape.join(" ") };
            let memory = tensor.memory.to_string();
            rows.push([memory, tensor.name.clone(), role, tensor.dtype.to_string(), shape, tensor.layout.to_string()]);
        }
        let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
        let widths: Vec<usize> = (0..6).map(width).collect();
        let mut text = String::new();
        for (n, row) in rows.iter().enumerate() {
            let line = |cells: Vec<String>| match border {
                "|" => format!("| {} |", cells.join(" | ")),
                _ => format!("{border}{}", cells.join("  ").trim_end().replace("*/", "* /")),
            };
            let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}")).collect();
            let _ = writeln!(text, "{}", line(cells));
            if n == 0 && border == "|" {
                let _ = writeln!(text, "{}", line(widths.iter().map(|width| "-".repeat(*width)).collect()));
            }
        }
        text.trim_end().to_string()
    }

    fn header(&self) -> String {
        let (name, caps) = (self.name, caps(self.name));
        let numbers = |what: &str, names: Vec<String>| {
            let each = names.iter().enumerate().map(|(n, own)| format!("    {caps}_{what}_{own} = {n},\n"));
            each.collect::<String>() + &format!("    {caps}_{what}_COUNT = {}", names.len())
        };
        let memories = distinct(self.boundary.memories.iter().map(|m| m.name.as_str()));
        let tensors = distinct(self.boundary.tensors.iter().map(|t| t.name.as_str()));
        named(include_str!("runtime/header.h"), name)
            .replace("\nTABLE\n", &format!("\n{}\n", self.table(" *   ")))
            .replace("\nMEMORIES\n", &format!("\n{}\n", numbers("MEMORY", memories)))
            .replace("\nTENSORS\n", &format!("\n{}\n", numbers("TENSOR", tensors)))
            .replace("of PROGRAM", &format!("of {}", self.plan.chosen.program.name.replace("*/", "* /")))
            .replace(
                "from PLAN",
                &format!("from a plan of {}", self.plan.recipe.rsplit('/').next().unwrap_or_default().replace("*/", "* /")),
            )
    }

    fn readme(&self, caps: &str) -> String {
        named(&include_str!("runtime/README.md").replace("CAPS", caps), self.name)
            .replace("\nTABLE\n", &format!("\n{}\n", self.table("|")))
            .replace("PROGRAM", &self.plan.chosen.program.name)
            .replace("MACHINE", &self.plan.device)
            .replace("THREADS", &self.most_threads.to_string())
    }
}
