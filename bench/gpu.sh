#!/usr/bin/env bash
# Everything that is measured on a GPU, unattended: what the device can do, the sweep, the plan and its check at full size for
# multi-head attention and the BERT-large layer, and PyTorch and JAX on the same layer in the same run. Needs no Rust.
#
#     cargo build --release -p recipes          # once, on any machine with Rust and the same processor family
#     bench/gpu.sh [MEMLET]                     # on the machine with the GPU; MEMLET is target/release/memlet by default
#
# Under 8 minutes on an H200. What it writes goes to bench/records/<date>-<device>/; a second run goes on where the first stopped.
#
#     STAGES="machine mha layer short peers"    # what to do, in this order
#     SECONDS_LAYER=110 SECONDS_MHA=25 SECONDS_SHORT=35 SECONDS_PEERS=150    # for sweeps, and for all peers together
#     PYTHON=python3 JAX_PYTHON=python3         # with PyTorch, and with JAX
#
# NVRTC and cuBLASLt are those of the CUDA toolkit, or of Python's wheels in the folder that MEMLET_CUDA_PATH names. This script has
# not been run on hardware yet; its Python parts have been run on a CPU at small sizes, and the pipeline on the shim.
set -uo pipefail
cd "$(dirname "$0")/.."
memlet=${1:-target/release/memlet}
[ -x "$memlet" ] || { echo "$memlet is missing: build it with cargo build --release -p recipes"; exit 2; }
command -v nvidia-smi >/dev/null || { echo "nvidia-smi is missing: there is no NVIDIA driver here"; exit 4; }
stages=${STAGES:-machine mha layer short peers}
python=${PYTHON:-python3}
jax=${JAX_PYTHON:-$python}
if [ -z "${MEMLET_CUDA_PATH:-}" ]; then
    # PyTorch's wheels bring both libraries.
    found=$("$python" -c 'import nvidia.cu13 as n; print(list(n.__path__)[0])' 2>/dev/null) && export MEMLET_CUDA_PATH=$found
fi
export MEMLET_CACHE_DIR=${MEMLET_CACHE_DIR:-$PWD/target/cache}

device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr -c 'A-Za-z0-9\n' '-' | tr 'A-Z' 'a-z')
folder=${OUT:-bench/records/$(date -u +%Y-%m-%d)-$device}
mkdir -p "$folder" target/gpu
log() { echo "[$((SECONDS))s] $*" | tee -a "$folder/log.txt"; }
clocks() { nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader | head -1; }
worst=0
failed() { log "$1 ended with code $2"; [ "$2" -gt "$worst" ] && worst=$2; return 0; }

# A kernel that breaks the GPU's context ends the process, not the sweep: the same command goes on without it.
resumed() {
    local code=0
    for _ in 1 2 3 4; do
        "$@" && return 0
        code=$?
        [ "$code" = 1 ] || return "$code"
        log "going on after: $(tail -1 "$folder/log.txt" | cut -c1-300)"
    done
    return "$code"
}

# optimized NAME RECIPE SECONDS LIMIT [SIZES...]: sweep, choice, verification, timing, report.
optimized() {
    local name=$1 recipe=$2 seconds=$3 limit=$4
    shift 4
    log "$name: $recipe $* bf16, sweep of $seconds s, clocks $(clocks)"
    resumed timeout "$limit" "$memlet" optimize "$recipe" --device cuda --dtype bf16 --budget "${seconds}s" --timing 8s "$@" \
        --out "target/gpu/$name" >>"$folder/log.txt" 2>&1 || failed "$name" $?
    for file in records.jsonl plan.json certificate.json report.json; do
        [ -f "target/gpu/$name/$file" ] && gzip -9c "target/gpu/$name/$file" >"$folder/$name.$file.gz"
    done
    [ -f "target/gpu/$name/plan.json" ] || return 0
    "$memlet" run "target/gpu/$name/plan.json" --baselines --timing 8s --json >"$folder/$name.times.json" 2>>"$folder/log.txt" \
        || failed "$name, timing" $?
    log "$name: $(head -c 400 "$folder/$name.times.json")"
}

# checked NAME MODEL SIZES: every output and gradient of the plan at full size against PyTorch in f64.
checked() {
    local inputs=target/gpu/$1.inputs.safetensors results=target/gpu/$1.results.safetensors
    [ -f "target/gpu/$1/plan.json" ] || return 0
    "$python" bench/peers/gpu_check.py "$2" "$inputs" --draw "$3" &&
        "$memlet" run "target/gpu/$1/plan.json" --inputs "$inputs" --outputs "$results" --no-dropout --timing 0s >/dev/null &&
        "$python" bench/peers/gpu_check.py "$2" "$inputs" --results "$results" --dtype bf16 >"$folder/$1.check.json" ||
        failed "$1, check" $?
    rm -f "$inputs" "$results"
    log "$1: $(head -c 600 "$folder/$1.check.json" 2>/dev/null)"
}

# One peer after the other until the time is up; one that takes too long is left out, and said to be.
peers() {
    local end=$((SECONDS + ${SECONDS_PEERS:-150}))
    for sizes in "8 512" "96 128"; do
        set -- $sizes
        for variant in graph-sdpa compile graph-cudnn graph-eager jax graph-sdpa-autocast eager sdpa compile-autocast; do
            local left=$((end - SECONDS)) with=$python
            if [ "$left" -lt 10 ]; then
                echo "{\"variant\": \"$variant\", \"batch\": $1, \"length\": $2, \"error\": \"no time was left\"}"
                continue
            fi
            [ "$variant" = jax ] && with=$jax
            XLA_PYTHON_CLIENT_PREALLOCATE=false timeout $((left < 90 ? left : 90)) "$with" bench/peers/gpu_worker.py "$variant" \
                --batch "$1" --length "$2" --seconds 2 2>>"$folder/peers.log"
            local code=$?
            [ "$code" -lt 124 ] || echo "{\"variant\": \"$variant\", \"batch\": $1, \"length\": $2, \"error\": \"ended with code $code\"}"
        done
    done >>"$folder/peers.jsonl"
    log "peers: $(grep -c step_ms "$folder/peers.jsonl") of $(wc -l <"$folder/peers.jsonl") have a time; clocks $(clocks)"
}

for stage in $stages; do
    case $stage in
    machine)
        {
            echo "commit $(git rev-parse HEAD 2>/dev/null || echo "${COMMIT:-unknown}")"
            uname -srm
            nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,memory.total --format=csv
            "$python" -c 'import torch; print("torch", torch.__version__, torch.version.cuda, torch.backends.cudnn.version())'
            "$jax" -c 'import jax; print("jax", jax.__version__)'
        } >"$folder/machine.txt" 2>&1
        timeout 120 "$memlet" devices --measure --json >"$folder/ceilings.json" 2>>"$folder/log.txt" || failed ceilings $?
        log "ceilings: $(head -c 600 "$folder/ceilings.json")"
        ;;
    mha)
        optimized mha recipes/mha.yaml "${SECONDS_MHA:-25}" 120
        checked mha attention b=8,j=512,h=16,p=64,i=1024
        ;;
    layer)
        optimized layer recipes/bert-large-encoder.yaml "${SECONDS_LAYER:-110}" 300
        checked layer encoder b=8,j=512,h=16,p=64,i=1024,u=4096
        ;;
    short)
        optimized short recipes/bert-large-encoder.yaml "${SECONDS_SHORT:-35}" 150 --set b=96 --set j=128
        ;;
    peers) peers ;;
    *) log "there is no stage $stage" ;;
    esac
done
log "done in $SECONDS s: $(du -sh "$folder" | cut -f1) in $folder"
exit "$worst"
