#!/usr/bin/env bash
# Everything that is measured on a GPU, unattended: what the device can do, the sweeps, the plans and their times for multi-head
# attention and the BERT-large layer, every kernel of both beside the CPU's at full size, the plans beside PyTorch in f64, and
# PyTorch and JAX on the same layer in the same run. Needs no Rust; a C compiler for the CPU's kernels.
#
#     cargo build --release -p recipes          # once, on any machine with Rust and the same processor family
#     bench/gpu.sh [MEMLET]                     # on the machine with the GPU; MEMLET is target/release/memlet by default
#
# Under 8 minutes on an H200: each stage leaves the time that later ones are meant to have, and begins nothing when its own is up.
# What it writes goes to target/records/<date>-<device>/; a second run goes on where the first stopped. `memlet solve` chooses again
# from the records (gunzip them first), on any machine. `bench/records.py pack FOLDER` puts the folder into the device's archive.
#
#     STAGES="machine mha layer short checks peers"    # what to do, in this order; recipe:NAME sweeps recipes/NAME.yaml, and
#                                                      # `pytorch` the layer with its tensors as they lie in PyTorch
#     SECONDS_ALL=470                                  # for everything
#     SECONDS_LAYER=70 SECONDS_MHA=20 SECONDS_SHORT=15 # for sweeps alone
#     SECONDS_CHECKS=50 SECONDS_PEERS=150              # for all checks, and for all peers
#     DTYPE=bf16 SIZES="--set b=8" COLD=1              # of sweeps; COLD=1 times kernels with a cold second-level cache
#     NARROW=1                                         # weights, residuals and scores in DTYPE too, as PyTorch's peers without autocast
#     PYTHON=python3 JAX_PYTHON=python3                # with PyTorch, and with JAX
#     PEER_AT="8,512 96,128" PEER_SECONDS=2            # batches and lengths of peers, and how long each is timed
#     PEERS="compile:45 sdpa,graph-sdpa,graph-cudnn:0" # which, in this order, and seconds that each leaves to those that follow:
#                                                      # max-autotune alone takes 90 to 150, and has what it needs only if it is first
#     DEVICE=cuda                                      # or cuda:1, cuda:0,1
#     RECORDS=target/records/<date>-<device>           # where records go
#
# NVRTC and cuBLASLt are those of the CUDA toolkit, or of Python's wheels in the folder that MEMLET_CUDA_PATH names. Sweeps
# alone want more time than that for a good plan: SECONDS_ALL=530 SECONDS_LAYER=235 made the records of an H200.
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
MEMLET_COMMIT=${COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
export MEMLET_COMMIT
dtype=${DTYPE:-bf16}
# The GPU that peers run on, and whose clocks are read: the first of those that Memlet uses.
number=0
case $on in cuda:*) number=${on#cuda:} && number=${number%%,*} ;; esac
# CUDA and nvidia-smi number them alike then, and what somebody else uses stays out of sight.
export CUDA_DEVICE_ORDER=PCI_BUS_ID
[ -z "${CUDA_VISIBLE_DEVICES:-}" ] || number=$(cut -d, -f$((number + 1)) <<<"$CUDA_VISIBLE_DEVICES")

device=$(nvidia-smi -i "$number" --query-gpu=name --format=csv,noheader | head -1 | tr -c 'A-Za-z0-9\n' '-' | tr 'A-Z' 'a-z')
# What cannot be measured together lies apart.
way=$([ "$dtype" = bf16 ] || echo "-$dtype")${NARROW:+-narrow}${COLD:+-cold}
folder=${RECORDS:-target/records/$(date -u +%Y-%m-%d)-$device$way}
# Of another commit or at other sizes, plans and measurements that lie there would pass for today's.
scratch=target/gpu/${on//[^a-z0-9]/-}$way-$(printf '%s' "$MEMLET_COMMIT ${SIZES:-}" | cksum | cut -d' ' -f1)
mkdir -p "$folder" "$scratch"
# What the index of records says of this one.
[ -s "$folder/about.txt" ] || printf 'commit: %s\nwhat: %s\ncommand: %s\n' "$MEMLET_COMMIT" \
    "$stages, $dtype${NARROW:+, weights in it too}${COLD:+, cold}" "\`bench/gpu.sh\`; its log is in \`log.txt\`" >"$folder/about.txt"
log() { echo "[$((SECONDS))s] $*" | tee -a "$folder/log.txt"; }
# What comes in, with the time.
stamped() { while IFS= read -r line; do echo "[$((SECONDS))s] $line"; done; }
worst=0
failed() { log "$1 ended with code $2"; [ "$2" -gt "$worst" ] && worst=$2; return 0; }

# Clocks and power all along, twice a second.
nvidia-smi -i "$number" --query-gpu=timestamp,clocks.sm,clocks.mem,power.draw,temperature.gpu --format=csv -lms 500 \
    >>"$folder/clocks.csv" 2>/dev/null &
watching=$!
trap 'kill "$watching" 2>/dev/null' EXIT
clocks() { tail -1 "$folder/clocks.csv"; }

# Seconds that a stage is meant to take in all: its sweep, and what comes with it.
meant() {
    case $1 in
    machine) echo 30 ;;
    mha) echo $((${SECONDS_MHA:-20} + 30)) ;;
    layer | pytorch | recipe:*) echo $((${SECONDS_LAYER:-70} + 45)) ;;
    short) echo $((${SECONDS_SHORT:-15} + 30)) ;;
    checks) echo "${SECONDS_CHECKS:-50}" ;;
    peers) echo "${SECONDS_PEERS:-150}" ;;
    *) echo 0 ;;
    esac
}

# Seconds that are left of all but what later stages are meant to take, at most as many as are asked for; fails if there are none.
later=0
left() {
    local rest=$((${SECONDS_ALL:-470} - SECONDS - later))
    [ "$rest" -gt 0 ] || return 1
    echo $((rest < $1 ? rest : $1))
}

# within SECONDS COMMAND...: the command for as long as is left; code 124 where nothing is, or where that was too short.
within() {
    local limit
    limit=$(left "$1") || return 124
    shift
    timeout "$limit" "$@"
}

# optimized NAME RECIPE SECONDS [SIZES...]: sweep, choice, verification, timing, report, and the time of every kernel.
optimized() {
    local name=$1 recipe=$2 seconds=$3
    shift 3
    log "$name: $recipe $* ${SIZES:-}, sweep of $seconds s, clocks $(clocks)"
    mkdir -p "$folder/$name"
    # A kernel that breaks the GPU's context ends the process; Memlet begins itself again without it. What ends it by a signal (CUDA's
    # libraries have their own faults) is begun once more: measurements and what was spent are kept.
    local code
    for _ in once again; do
        # shellcheck disable=SC2086
        within 600 "$memlet" optimize "$recipe" --device "$on" --dtype "$dtype" --budget "${seconds}s" \
            --timing "${TIMING:-5s}" --memory-slack 0% ${NARROW:+--narrow} ${COLD:+--cold} "$@" ${SIZES:-} --out "$scratch/$name" 2>&1 | stamped >>"$folder/log.txt"
        code=${PIPESTATUS[0]}
        [ "$code" -eq 0 ] || failed "$name" "$code"
        [ "$code" -gt 128 ] && [ "$code" -ne 130 ] || break
    done
    for file in records.jsonl plan.json report.json; do
        [ -f "$scratch/$name/$file" ] && gzip -9c "$scratch/$name/$file" >"$folder/$name/$file.gz"
    done
    [ -f "$scratch/$name/certificate.json" ] && cp "$scratch/$name/certificate.json" "$folder/$name/"
    [ -f "$scratch/$name/plan.json" ] || return 0
    within 60 "$memlet" run "$scratch/$name/plan.json" --baselines --kernels --timing "${TIMING:-5s}" --json \
        >"$folder/$name/times.json" 2>>"$folder/log.txt" || failed "$name, timing" $?
    log "$name: $(head -c 400 "$folder/$name/times.json")"
}

# beside NAME: every kernel of the chosen plan beside the CPU's on the same tensors, at full size; then those of the other plans that
# were timed, as long as there is time: other programs have other kernels.
beside() {
    local plan to code checked=0 all=0
    [ -f "$scratch/$1/plan.json" ] || return 0
    for plan in "$scratch/$1/plan.json" "$scratch/$1"/plans/*.json; do
        [ -f "$plan" ] || continue
        all=$((all + 1))
        to=$folder/$1/kernels
        [ "$plan" = "$scratch/$1/plan.json" ] || to=$folder/$1/kernels-$(basename "$plan" .json)
        within 90 "$memlet" run "$plan" --check --timing 0s --json >"$to.json" 2>"$to.txt"
        code=$?
        case $code in
        0) checked=$((checked + 1)) ;;
        # The chosen plan must be checked; of the others as many as there is time for.
        124)
            rm -f "$to.json"
            # How far it has come is told, kernel by kernel.
            if [ "$all" -gt 1 ]; then rm -f "$to.txt"; else failed "$1, kernels beside the CPU's" "$code"; fi
            ;;
        *) failed "$1, kernels of $(basename "$plan") beside the CPU's" "$code" ;;
        esac
    done
    log "$1: kernels of $checked of $all plans beside the CPU's: $(tail -1 "$folder/$1/kernels.txt" 2>/dev/null | cut -c1-200)"
}

# whole NAME MODEL SIZES [--lie pytorch]: every output and gradient of the plan at full size against PyTorch in f64.
whole() {
    local inputs=$scratch/$1.inputs.safetensors results=$scratch/$1.results.safetensors
    [ -f "$scratch/$1/plan.json" ] || return 0
    [ -z "${SIZES:-}" ] || { log "$1: not held against PyTorch at the sizes $SIZES" && return 0; }
    within 60 "$python" bench/peers/gpu_check.py "$2" "$inputs" --draw "$3" "${@:4}" 2>>"$folder/log.txt" &&
        within 60 "$memlet" run "$scratch/$1/plan.json" --inputs "$inputs" --outputs "$results" --no-dropout --timing 0s \
            >/dev/null 2>>"$folder/log.txt" &&
        within 60 "$python" bench/peers/gpu_check.py "$2" "$inputs" --results "$results" --dtype "$dtype" ${NARROW:+--narrow} "${@:4}" \
            >"$folder/$1/check.json" 2>>"$folder/log.txt" ||
        failed "$1, check" $?
    rm -f "$inputs" "$results"
    log "$1: $(head -c 600 "$folder/$1/check.json" 2>/dev/null)"
}

# peer VARIANT,... SECONDS: peers in one process, one after the other, alone on the GPU, all but so many seconds of what is left. Each
# prints one line of JSON; what the process did not come to, because it was stopped, is said as well.
peer() {
    local limit code with=$python
    case $1 in jax*) with=$jax ;; esac
    limit=$(($(left 600 || echo 0) - $2))
    if [ "$limit" -lt 15 ]; then
        echo "{\"variant\": \"$1\", \"error\": \"no time was left\"}"
        return
    fi
    XLA_PYTHON_CLIENT_PREALLOCATE=false CUDA_VISIBLE_DEVICES=$number timeout "$limit" "$with" bench/peers/gpu_worker.py "$1" \
        $(for at in ${PEER_AT:-8,512 96,128}; do echo "--at $at"; done) --seconds "${PEER_SECONDS:-2}" --until $((limit - 10)) 2>>"$folder/peers.log"
    code=$?
    [ "$code" -lt 2 ] || echo "{\"variant\": \"$1\", \"error\": \"the process ended with code $code\"}"
}

# Those that every run must have come first. What max-autotune chooses is chosen on a GPU that does nothing else.
peers() {
    local each
    {
        for each in ${PEERS:-compile:60 sdpa,eager,graph-sdpa,graph-cudnn:30 jax:0 graph-eager,graph-sdpa-autocast,compile-autocast:0}; do
            peer "${each%:*}" "${each##*:}"
        done
    } >>"$folder/peers.jsonl"
    log "peers: $(grep -c '"step_ms"' "$folder/peers.jsonl") times in $(wc -l <"$folder/peers.jsonl") lines; clocks $(clocks)"
}

rest=($stages)
for stage in $stages; do
    rest=("${rest[@]:1}")
    later=0
    for next in "${rest[@]}"; do later=$((later + $(meant "$next"))); done
    case $stage in
    machine)
        {
            echo "commit $MEMLET_COMMIT"
            uname -srm
            nvidia-smi -i "$number" --query-gpu=name,driver_version,clocks.sm,clocks.mem,clocks.max.sm,clocks.max.mem,power.limit,memory.total --format=csv
            "$python" -c 'import torch; print("torch", torch.__version__, torch.version.cuda, torch.backends.cudnn.version())'
            "$jax" -c 'import jax; print("jax", jax.__version__)'
        } >"$folder/machine.txt" 2>&1
        case $on in
        cuda*) within 60 "$memlet" devices --measure --json >"$folder/ceilings.json" 2>>"$folder/log.txt" || failed ceilings $? ;;
        *) "$memlet" devices --json >"$folder/ceilings.json" 2>>"$folder/log.txt" || failed ceilings $? ;;
        esac
        log "ceilings: $(head -c 600 "$folder/ceilings.json")"
        ;;
    mha) optimized mha recipes/mha.yaml "${SECONDS_MHA:-20}" ;;
    layer) optimized layer recipes/bert-large-encoder.yaml "${SECONDS_LAYER:-70}" ;;
    pytorch) optimized pytorch recipes/bert-large-pytorch.yaml "${SECONDS_LAYER:-70}" ;;
    short) optimized short recipes/bert-large-encoder.yaml "${SECONDS_SHORT:-15}" --set b=96 --set j=128 ;;
    recipe:*) optimized "${stage#recipe:}" "recipes/${stage#recipe:}.yaml" "${SECONDS_LAYER:-70}" ;;
    checks)
        size=b=8,j=512,h=16,p=64,i=1024,u=4096
        case " $stages " in *" layer "*) whole layer encoder $size ;; esac
        case " $stages " in *" pytorch "*) whole pytorch encoder $size --lie pytorch ;; esac
        case " $stages " in *" mha "*) whole mha attention b=8,j=512,h=16,p=64,i=1024 ;; esac
        for each in $stages; do
            case $each in
            mha | layer | pytorch | short) beside "$each" ;;
            recipe:*) beside "${each#recipe:}" ;;
            esac
        done
        ;;
    peers) peers ;;
    *) log "there is no stage $stage" ;;
    esac
done
log "done in $SECONDS s: $(du -sh "$folder" | cut -f1) in $folder"
exit "$worst"
