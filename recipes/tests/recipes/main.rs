//! Recipes, their programs and the pipeline as a library has them.

mod analyze;
mod analyze_covers;
mod analyze_table_iii;
mod argmax;
mod beside;
mod budget;
mod checked_programs;
mod composed;
mod cuda;
mod device_support;
mod epilogues;
mod faults;
mod index_orders;
mod kernels;
mod load;
mod logarithms;
mod memory;
mod mixed;
mod networks;
mod packing;
mod pipeline_folders;
mod pytorch;
mod pytorch_support;
mod ranges;
mod recorded;
mod records;
mod recurrence;
mod reported;
mod stacking;
#[cfg(target_os = "linux")]
mod stand_in;
mod tensor_files;
mod updates;
mod variants;
mod windows;
mod wrong_kernels;
