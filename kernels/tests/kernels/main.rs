//! Kernels as their users see them: against the interpreter, on this machine's cores and, of GPUs, on the shim.

mod alpha_equivalence;
mod common;
mod contraction;
mod cublaslt;
mod cublaslt_epilogues;
mod cuda;
mod cuda_mutations;
mod cuda_streaming;
mod cuda_tiles;
mod few_rows;
mod gemms;
mod harness;
mod in_place;
mod instructions;
mod layers;
mod maps;
mod maps_edges;
mod maps_functions;
mod maps_mutations;
mod maps_storage;
mod nvrtc;
mod precompile;
mod tiles;
mod window_reduction;
mod windows;
mod winograd;
