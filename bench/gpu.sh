#!/usr/bin/env bash
# Checks and times the generated CUDA kernels and cuBLASLt on the first GPU of this machine, and writes a record.
#
#     cargo build --release -p kernels --example gpu       # once, on any machine with Rust
#     bench/gpu.sh target/release/examples/gpu             # on the machine with the GPU: needs no Rust
#
# NVRTC and cuBLASLt are those of the CUDA toolkit, or of Python's wheels in the folder that MEMLET_CUDA_PATH names. Not run on
# hardware yet.
set -euo pipefail
cd "$(dirname "$0")/.."
binary=${1:-target/release/examples/gpu}
[ -x "$binary" ] || { echo "$binary is missing: build it with cargo build --release -p kernels --example gpu"; exit 2; }
command -v nvidia-smi >/dev/null || { echo "nvidia-smi is missing: there is no NVIDIA driver here"; exit 4; }

device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr -c 'A-Za-z0-9\n' '-' | tr 'A-Z' 'a-z')
folder=bench/records/$(date -u +%Y-%m-%d)-$device
mkdir -p "$folder"
{
    echo "commit $(git rev-parse HEAD 2>/dev/null || echo unknown)"
    nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.limit,memory.total --format=csv
} >"$folder/machine.txt"
timeout 480 "$binary" | tee "$folder/gpu.txt"
