#!/usr/bin/env bash
# The workloads of "FusionStitching" and its Figure 1 beside JAX: for each, a plan is chosen, its results are held against JAX's in f64, its
# dispatches are counted beside XLA's launches (on this machine's cores, and compiled for an H100, which needs no GPU), and both are timed in
# turns. Prints a table and writes JSON.
#
#     cargo build --release -p recipes
#     [MEMLET_TORCH=PYTHON] bench/stitching.sh [OPTION…] [WORKLOAD…]
#
# MEMLET_TORCH names a Python with torch, numpy and safetensors, whose LSTM is then timed as well in speech, bi-rnn and dyn-rnn.
#
# Workloads are recipes of the same name: nmt, multi-interests, speech, dialog, logistic, word2vec, bi-rnn, dyn-rnn, perceptron, var-encoder,
# figure-1 [all that have a recipe].
#
#     --threads N      [2]
#     --budget TIME    for the sweep of each plan [2m]
#     --rounds N       of timing, ours and JAX's in turns [10]
#     --seconds N      of each turn [1]
#     --counts         only counts launches: no plan is made
#     --ablation       what each part brings: plans of the ladder's patterns, with explored ones, with shared dispatches, with products, and
#                      the plan of all programs, each with its kernels, dispatches and time; without JAX
#     --paper          Tables 2 to 4 and Figures 6 to 8 of the paper, theirs beside ours: of the plans and times that are there
#     --plans          what plans of fusion save by their scores, and what greedy ones do, also for other recipes; nothing is timed
#     --write          puts all tables that are there into docs/results/stitching.md
#     --out FOLDER     [target/memlet/stitching]
#
# The packages below are pip's, in an environment that is made under target/ the first time (1 GB with XLA's compiler for GPUs; without that
# one, if it cannot be had). The same command again keeps plans and counts that are there, and times anew. Nothing else should run on the
# machine: the JSON has the load at each row.
set -euo pipefail
cd "$(dirname "$0")/.."
memlet=${MEMLET:-target/release/memlet}
packages="jax==0.10.2 numpy==2.4.6 safetensors"
compiler="jax-cuda12-pjrt==0.10.2 nvidia-cuda-nvcc-cu12"
all="nmt multi-interests speech dialog logistic word2vec bi-rnn dyn-rnn perceptron var-encoder figure-1"

threads=2 budget=2m rounds=10 seconds=1 counts=false ablation=false paper=false plans=false write=false out=target/memlet/stitching names=()
while [ $# -gt 0 ]; do
    case $1 in
        --threads | --budget | --rounds | --seconds | --out)
            [ $# -gt 1 ] || { echo "$1 needs a value"; exit 2; }
            printf -v "${1#--}" %s "$2"; shift 2 ;;
        --counts) counts=true; shift ;;
        --ablation) ablation=true; shift ;;
        --paper) paper=true; shift ;;
        --plans) plans=true; shift ;;
        --write) write=true; shift ;;
        -*) echo "unknown option $1; they are listed at the top of $0"; exit 2 ;;
        *)
            [[ " $all " == *" $1 "* ]] || { echo "no workload $1; there are: $all"; exit 2; }
            names+=("$1"); shift ;;
    esac
done
if [ ${#names[@]} = 0 ]; then
    for name in $all; do
        if $counts || [ -f "recipes/$name.yaml" ]; then names+=("$name"); else echo "$name: has no recipe yet"; fi
    done
fi
$counts || [ -x "$memlet" ] || { echo "$memlet is missing: build it with cargo build --release -p recipes"; exit 2; }

peers=target/stitching-peers
if ! [ "$(cat $peers/packages 2>/dev/null)" = "$packages" ]; then
    echo "installing $packages into $peers"
    python3 -m venv --clear $peers
    # shellcheck disable=SC2086 # a list of packages
    $peers/bin/python -m pip install --quiet $packages
    # The plugin stands apart from the packages: JAX would load it, and it finds no GPU.
    # shellcheck disable=SC2086
    $peers/bin/python -m pip install --quiet --no-deps --target $peers/h100 $compiler || echo "without XLA's compiler for GPUs"
    echo "$packages" >$peers/packages
fi
python=$peers/bin/python worker=bench/peers/stitching_worker.py plugin=$peers/h100/jax_plugins/xla_cuda12/xla_cuda_plugin.so
mkdir -p "$out"
trap 'echo; echo "stopped; the same command goes on from here"; exit 130' INT TERM

if $write; then
    $python bench/peers/stitching_page.py "$out" docs/results/stitching.md
    exit
fi

if $plans; then
    # shellcheck disable=SC2046 # names are words
    $python bench/peers/stitching_plans.py "$out" "$memlet" $(printf "recipes/%s.yaml " "${names[@]}" gru squeezenet-1.0 squeezenet-1.1 resnet-18-block resnet-50 inception-v3 mobilenet-v1)
    exit
fi

if $paper; then
    $python bench/peers/stitching_paper.py "$out" --time "$memlet" --threads "$threads" --seconds "$seconds" "${names[@]}"
    exit
fi

if $ablation; then
    for name in "${names[@]}"; do
        [ -s "$out/$name.safetensors" ] || $python $worker tensors "$name" "$out/$name.safetensors"
        [ -s "$out/$name/plan.json" ] ||
            "$memlet" optimize "recipes/$name.yaml" --threads "$threads" --budget "$budget" --out "$out/$name" >"$out/$name.log" 2>&1 || true
        for set in ladder explored all; do
            folder=$out/ablation/$name-$set
            [ -s "$folder/plan.json" ] && continue
            mkdir -p "$folder"
            echo "$name: a plan of fusion from $set patterns ($(date +%H:%M))"
            "$memlet" optimize "recipes/$name.yaml" --only stitched --candidates $set --threads "$threads" --budget "$budget" \
                --out "$folder" >"$folder.log" 2>&1 || echo "    no plan, see $folder.log: $(tail -1 "$folder.log")"
        done
    done
    $python bench/peers/stitching_ablation.py "$out" --time "$memlet" --threads "$threads" --rounds "$rounds" --seconds "$seconds" "${names[@]}"
    exit
fi

# XLA's launches: those of the better of its two ways with products, its own kernels or cuBLAS.
for name in "${names[@]}"; do
    file=$out/$name.launches
    [ -s "$file" ] && continue
    echo "$name: counting XLA's launches"
    $python $worker launches "$name" >"$file.part" 2>"$file.log"
    if [ -f $plugin ]; then
        for own in true false; do
            flags="--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer= --xla_gpu_enable_triton_gemm=$own"
            XLA_FLAGS="$flags --xla_gpu_cuda_data_dir=$PWD/$peers/h100/nvidia/cuda_nvcc" \
                $python $worker launches --h100 $plugin "$name" >>"$file.part" 2>>"$file.log" || true
        done
    fi
    mv "$file.part" "$file"
done

if ! $counts; then
    for name in "${names[@]}"; do
        plan=$out/$name/plan.json
        [ -s "$out/$name.safetensors" ] || $python $worker tensors "$name" "$out/$name.safetensors"
        [ -s "$out/$name.npz" ] || $python $worker results "$name" "$out/$name.npz"
        [ -s "$plan" ] && continue
        echo "$name: choosing a plan within $budget ($(date +%H:%M))"
        "$memlet" optimize "recipes/$name.yaml" --threads "$threads" --budget "$budget" --out "$out/$name" >"$out/$name.log" 2>&1 ||
            [ -s "$plan" ] || { echo "    no plan, see $out/$name.log: $(tail -1 "$out/$name.log")"; continue; }
    done
fi
options=()
$counts || options=(--time "$memlet" --threads "$threads" --rounds "$rounds" --seconds "$seconds" ${MEMLET_TORCH:+--torch "$MEMLET_TORCH"})
$python bench/peers/stitching_table.py "$out" "${options[@]}" "${names[@]}"
