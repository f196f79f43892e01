//! The command line as people use it: its output, its files, and its exit codes.

mod bf16;
mod cache;
mod command;
mod commands;
mod compare;
mod dace;
mod devices;
mod docs;
mod edited_plans;
mod finalists;
#[cfg(unix)]
mod gpu_script;
mod import;
mod loops;
mod merging;
mod onnx;
mod python;
mod schedule_templates;
mod sites;
mod stacks;
#[cfg(target_os = "linux")]
mod stand_in;
mod surroundings;
mod too_large;
mod train;
