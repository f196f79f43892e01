#!/usr/bin/env bash
# Everything that is measured on a GPU, unattended: what the device can do, the sweeps, the plans and their times for multi-head
# attention and the BERT-large layer, every kernel of both beside the CPU's at full size, the plans beside PyTorch in f64, and
# PyTorch and JAX on the same layer in the same run. Needs no Rust; a C compiler for the CPU's kernels.
#
#     cargo build --release -p recipes          # once, on any machine with Rust and the same processor family
#     bench/gpu.sh [MEMLET]                     # on the machine with the GPU; MEMLET is target/release/memlet by default
#
# Under 8 minutes on an H200: no stage begins anything when its time is up. What it writes goes to bench/records/<date>-<device>/; a
# second run goes on where the first stopped. `memlet solve` chooses again from the records (gunzip them first), on any machine.
#
#     STAGES="machine mha layer short checks peers"    # what to do, in this order; recipe:NAME sweeps recipes/NAME.yaml
#     SECONDS_ALL=465                                  # for everything
#     SECONDS_LAYER=80 SECONDS_MHA=20 SECONDS_SHORT=20 SECONDS_PEERS=140    # for sweeps, and for all peers together
#     DTYPE=bf16 SIZES="--set b=8" COLD=1              # of sweeps; COLD=1 times kernels with a cold second-level cache
#     PYTHON=python3 JAX_PYTHON=python3                # with PyTorch, and with JAX
#     DEVICE=cuda                                      # or cuda:1, cuda:0,1
#
# NVRTC and cuBLASLt are those of the CUDA toolkit, or of Python's wheels in the folder that MEMLET_CUDA_PATH names. This script has
# not been run on hardware yet: with DEVICE=shim its own way has been run at small sizes, and its Python parts on a CPU.
set -uo pipefail
cd "$(dirname "$0")/.."
memlet=${1:-target/release/memlet}
[ -x "$memlet" ] || { echo "$memlet is missing: build it with cargo build --release -p recipes"; exit 2; }
command -v nvidia-smi >/dev/null || { echo "nvidia-smi is missing: there is no NVIDIA driver here"; exit 4; }
stages=${STAGES:-machine mha layer short checks peers}
on=${DEVICE:-cuda}
python=${PYTHON:-python3}
jax=${JAX_PYTHON:-$python}
if [ -z "${MEMLET_CUDA_PATH:-}" ]; then
    # PyTorch's wheels bring both libraries.
    found=$("$python" -c 'import nvidia.cu13 as n; print(list(n.__path__)[0])' 2>/dev/null) && export MEMLET_CUDA_PATH=$found
fi
export MEMLET_CACHE_DIR=${MEMLET_CACHE_DIR:-$PWD/target/cache}

device=$(nvidia-smi --query-gpu=name --format=csv,noheader | head -1 | tr -c 'A-Za-z0-9\n' '-' | tr 'A-Z' 'a-z')
folder=${OUT:-bench/records/$(date -u +%Y-%m-%d)-$device}
scratch=target/gpu/${on//[^a-z0-9]/-}
mkdir -p "$folder" "$scratch"
log() { echo "[$((SECONDS))s] $*" | tee -a "$folder/log.txt"; }
clocks() { nvidia-smi --query-gpu=clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv,noheader | head -1; }
worst=0
failed() { log "$1 ended with code $2"; [ "$2" -gt "$worst" ] && worst=$2; return 0; }

# Seconds that are left of all, at most as many as are asked for.
left() { local rest=$((${SECONDS_ALL:-465} - SECONDS)); echo $((rest < $1 ? (rest > 1 ? rest : 1) : $1)); }

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

# optimized NAME RECIPE SECONDS LIMIT [SIZES...]: sweep, choice, verification, timing, report, and the time of every kernel.
optimized() {
    local name=$1 recipe=$2 seconds=$3 limit=$4
    shift 4
    log "$name: $recipe $* ${SIZES:-}, sweep of $seconds s, clocks $(clocks)"
    mkdir -p "$folder/$name"
    # shellcheck disable=SC2086
    resumed timeout "$(left "$limit")" "$memlet" optimize "$recipe" --device "$on" --dtype "${DTYPE:-bf16}" --budget "${seconds}s" \
        --timing "${TIMING:-5s}" ${COLD:+--cold} "$@" ${SIZES:-} --out "$scratch/$name" >>"$folder/log.txt" 2>&1 || failed "$name" $?
    for file in records.jsonl plan.json report.json; do
        [ -f "$scratch/$name/$file" ] && gzip -9c "$scratch/$name/$file" >"$folder/$name/$file.gz"
    done
    [ -f "$scratch/$name/certificate.json" ] && cp "$scratch/$name/certificate.json" "$folder/$name/"
    [ -f "$scratch/$name/plan.json" ] || return 0
    timeout "$(left 60)" "$memlet" run "$scratch/$name/plan.json" --baselines --kernels --timing "${TIMING:-5s}" --json \
        >"$folder/$name/times.json" 2>>"$folder/log.txt" || failed "$name, timing" $?
    log "$name: $(head -c 400 "$folder/$name/times.json")"
}

# beside NAME: every kernel of the plan beside the CPU's on the same tensors, at full size.
beside() {
    [ -f "$scratch/$1/plan.json" ] || return 0
    timeout "$(left 90)" "$memlet" run "$scratch/$1/plan.json" --check --timing 0s --json >"$folder/$1/kernels.json" \
        2>"$folder/$1/kernels.txt" || failed "$1, kernels beside the CPU's" $?
    log "$1: $(grep -c . "$folder/$1/kernels.txt") lines on kernels beside the CPU's: $(tail -1 "$folder/$1/kernels.txt" | cut -c1-200)"
}

# whole NAME MODEL SIZES: every output and gradient of the plan at full size against PyTorch in f64.
whole() {
    local inputs=$scratch/$1.inputs.safetensors results=$scratch/$1.results.safetensors
    [ -f "$scratch/$1/plan.json" ] || return 0
    timeout "$(left 60)" "$python" bench/peers/gpu_check.py "$2" "$inputs" --draw "$3" 2>>"$folder/log.txt" &&
        timeout "$(left 60)" "$memlet" run "$scratch/$1/plan.json" --inputs "$inputs" --outputs "$results" --no-dropout --timing 0s \
            >/dev/null 2>>"$folder/log.txt" &&
        timeout "$(left 60)" "$python" bench/peers/gpu_check.py "$2" "$inputs" --results "$results" --dtype "${DTYPE:-bf16}" \
            >"$folder/$1/check.json" 2>>"$folder/log.txt" ||
        failed "$1, check" $?
    rm -f "$inputs" "$results"
    log "$1: $(head -c 600 "$folder/$1/check.json" 2>/dev/null)"
}

# peer VARIANT BATCH LENGTH LIMIT [MORE...]: one peer; what it prints is one line of JSON, also where it ends early.
peer() {
    local variant=$1 batch=$2 length=$3 limit=$4 with=$python
    shift 4
    case $variant in jax*) with=$jax ;; esac
    XLA_PYTHON_CLIENT_PREALLOCATE=false timeout "$limit" "$with" bench/peers/gpu_worker.py "$variant" --batch "$batch" \
        --length "$length" "$@" 2>>"$folder/peers.log"
    local code=$?
    [ "$code" -lt 2 ] || echo "{\"variant\": \"$variant\", \"batch\": $batch, \"length\": $length, \"error\": \"ended with code $code\"}"
}

sizes=("8 512" "96 128")

# What PyTorch compiles is kept: it is made while the CPU checks kernels and the GPU has little to do, and timed later.
compiled() {
    local each
    for each in "${sizes[@]}"; do
        # shellcheck disable=SC2086
        peer compile $each "$(left 120)" --seconds 0 --steps 1 >/dev/null
    done
}

# One peer after the other until the time is up; one that takes too long is left out, and said to be.
peers() {
    local end=$((SECONDS + $(left "${SECONDS_PEERS:-140}"))) each variant rest
    for variant in graph-sdpa compile graph-cudnn jax graph-eager graph-sdpa-autocast eager sdpa compile-autocast; do
        for each in "${sizes[@]}"; do
            set -- $each
            rest=$((end - SECONDS))
            if [ "$rest" -lt 10 ]; then
                echo "{\"variant\": \"$variant\", \"batch\": $1, \"length\": $2, \"error\": \"no time was left\"}"
                continue
            fi
            peer "$variant" "$1" "$2" $((rest < 90 ? rest : 90)) --seconds 2
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
        case $on in
        cuda*) timeout "$(left 60)" "$memlet" devices --measure --json >"$folder/ceilings.json" 2>>"$folder/log.txt" || failed ceilings $? ;;
        *) "$memlet" devices --json >"$folder/ceilings.json" 2>>"$folder/log.txt" || failed ceilings $? ;;
        esac
        log "ceilings: $(head -c 600 "$folder/ceilings.json")"
        ;;
    mha) optimized mha recipes/mha.yaml "${SECONDS_MHA:-20}" 90 ;;
    layer) optimized layer recipes/bert-large-encoder.yaml "${SECONDS_LAYER:-80}" 200 ;;
    short) optimized short recipes/bert-large-encoder.yaml "${SECONDS_SHORT:-20}" 90 --set b=96 --set j=128 ;;
    recipe:*) optimized "${stage#recipe:}" "recipes/${stage#recipe:}.yaml" "${SECONDS_LAYER:-80}" 200 ;;
    checks)
        case $stages in *peers*) compiled & ;; esac
        for stage in $stages; do
            case $stage in
            mha) beside mha && whole mha attention b=8,j=512,h=16,p=64,i=1024 ;;
            layer) beside layer && whole layer encoder b=8,j=512,h=16,p=64,i=1024,u=4096 ;;
            recipe:*) beside "${stage#recipe:}" ;;
            esac
        done
        wait
        ;;
    peers) peers ;;
    *) log "there is no stage $stage" ;;
    esac
done
log "done in $SECONDS s: $(du -sh "$folder" | cut -f1) in $folder"
exit "$worst"
