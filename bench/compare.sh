#!/usr/bin/env bash
# The comparison with other frameworks, whole: for every shape, element type, with and without dropout, and number of threads
# a plan is chosen and timed beside the peers, and one table says how they stand.
#
#     cargo build --release -p recipes
#     MEMLET_TORCH=PYTHON MEMLET_JAX=PYTHON MEMLET_ONNX=PYTHON bench/compare.sh [OPTION…]
#
# Each variable names the Python of an environment that has the framework, numpy and safetensors; those not set take no part.
#
#     --quick              two shapes made small, few rounds, few peers: some minutes, nothing for a record; goes into
#                          target/memlet/compare/quick. Options after it change that again
#     --shapes LIST        of paper, base, small, mha [all]
#     --dtypes LIST        of f32, bf16 [f32]
#     --dropout LIST       of with, without [with,without]
#     --threads LIST       [2]
#     --budget TIME        for the sweep of each plan [10m]
#     --warm               kernels are timed with their tensors in the caches, not with caches emptied before each run, which is nearer to
#                          what a step finds that does not fit them; elsewhere than on x86-64 they always are
#     --narrow             of bf16: our weights and residuals in bf16, too, as in a model that PyTorch cast as a whole
#     --memory-slack SHARE how much slower than the fastest a plan may be that needs less memory [that of memlet optimize]
#     --timing TIME        for timing the best plans as wholes [30s]
#     --rounds N           of each comparison [15]
#     --variants LIST      of the peers [all of memlet compare]
#     --out FOLDER         [target/records/DATE-MACHINE]
#
# Ctrl-C stops it; the same command goes on with what has no record yet (on another day, name the folder with --out). Nothing
# else should run on the machine: every record says how busy others kept it. `bench/records.py pack FOLDER` puts the finished
# record into the archive of its machine.
set -euo pipefail
cd "$(dirname "$0")/.."
memlet=${MEMLET:-target/release/memlet}

command="bench/compare.sh $*"
shapes=paper,base,small,mha dtypes=f32 dropout=with,without threads=2 budget=10m timing=30s rounds=15 variants= out= quick= cold= memory_slack= narrow=
[ "$(uname -m)" != x86_64 ] || cold=yes
while [ $# -gt 0 ]; do
    case $1 in
        --quick)
            quick=yes shapes=base,mha budget=10s timing=3s rounds=3 variants=eager,sdpa,jax,onnx-attention
            shift ;;
        --warm) cold=; shift ;;
        --narrow) narrow=yes; shift ;;
        --shapes | --dtypes | --dropout | --threads | --budget | --memory-slack | --timing | --rounds | --variants | --out)
            [ $# -gt 1 ] || { echo "$1 needs a value"; exit 2; }
            name=${1#--}
            printf -v "${name//-/_}" %s "$2"; shift 2 ;;
        *) echo "unknown option $1; they are listed at the top of $0"; exit 2 ;;
    esac
done
[ -x "$memlet" ] || { echo "$memlet is missing: build it with cargo build --release -p recipes"; exit 2; }

peers=()
for framework in torch jax onnx; do
    variable=MEMLET_${framework^^}
    [ -z "${!variable:-}" ] || peers+=("--$framework" "${!variable}")
done
[ ${#peers[@]} -gt 0 ] || { echo "nobody to compare with: set MEMLET_TORCH, MEMLET_JAX or MEMLET_ONNX to a Python"; exit 2; }
[ -z "$variants" ] || peers+=(--variants "$variants")
# What a peer lacks is said now, not after minutes of choosing plans.
"$memlet" compare --peers-only "${peers[@]}" || exit

processor=$({ LC_ALL=C lscpu || uname -m; } 2>/dev/null | sed -n 's/^Model name: *//p;s/^\(aarch64\|arm64\)$/\1/p' | head -1 |
    sed 's/([A-Za-z]*)//g; s/\b\(Intel\|AMD\|CPU\|Processor\|[0-9]*-Core\)\b//g; s/@.*//' | tr -cs 'A-Za-z0-9\n' '-' | tr 'A-Z' 'a-z' |
    sed 's/^-*//; s/-*$//')
machine=${processor:-machine}-$(getconf _NPROCESSORS_ONLN)core
if [ -n "$quick" ]; then out=${out:-target/memlet/compare/quick}; else out=${out:-target/records/$(date -u +%Y-%m-%d)-$machine}; fi
mkdir -p "$out"

# The recipe of a shape, and what replaces its sizes.
recipe() {
    case $1 in
        paper) echo recipes/bert-large-encoder.yaml ${quick:+--set b=1 --set j=64} ;;
        base) echo recipes/bert-base-encoder.yaml ${quick:+--set b=2 --set j=64} ;;
        small) echo recipes/bert-large-encoder.yaml --set b=2 --set "j=$([ -n "$quick" ] && echo 32 || echo 128)" ;;
        mha) echo recipes/mha.yaml ${quick:+--set b=2 --set j=64} ;;
    esac
}

list() { echo "${1//,/ }"; }
# What is wrong with a list is said before anything is run.
each_of() {
    for word in $(list "$1"); do
        case " $2 " in *" $word "*) ;; *) echo "\`$word\` is none of: $2"; exit 2 ;; esac
    done
}
each_of "$shapes" "paper base small mha"
each_of "$dtypes" "f32 bf16"
each_of "$dropout" "with without"
[ -z "$narrow" ] || [ "$dtypes" = bf16 ] || { echo "--narrow is for --dtypes bf16"; exit 2; }

# What the index of records says of this one.
[ -s "$out/about.txt" ] || printf 'commit: %s\nwhat: %s\ncommand: `%s`\n' "$(git rev-parse --short HEAD 2>/dev/null || echo unknown)" \
    "beside other frameworks, $dtypes" "${command% }" >"$out/about.txt"

trap 'echo; echo "stopped; the same command goes on from here"; exit 130' INT TERM
total=$(($(list "$shapes" | wc -w) * $(list "$dtypes" | wc -w) * $(list "$dropout" | wc -w) * $(list "$threads" | wc -w)))
number=0
for count in $(list "$threads"); do
    for dtype in $(list "$dtypes"); do
        for shape in $(list "$shapes"); do
            for drops in $(list "$dropout"); do
                number=$((number + 1))
                case=$shape-$dtype-$drops-dropout-$count-threads
                [ -z "$narrow" ] || case+=-narrow
                [ -n "$cold" ] || case+=-warm
                record=$out/compare-$case.json
                if [ -s "$record" ]; then
                    echo "[$number/$total] $case: has a record"
                    continue
                fi
                read -ra given <<<"$(recipe "$shape")"
                [ "$drops" = with ] || given+=(--no-dropout)
                [ "$dtype" = f32 ] || given+=(--dtype "$dtype")
                [ -z "$narrow" ] || given+=(--narrow)
                [ -z "$cold" ] || given+=(--cold)
                [ -z "$memory_slack" ] || given+=(--memory-slack "$memory_slack")
                plans=target/memlet/compare/${quick:+quick/}$case${cold:+-cold}
                mkdir -p "$plans"
                echo "[$number/$total] $case: choosing a plan within $budget ($(date +%H:%M))"
                ended=0
                touch "$plans.started"
                "$memlet" optimize "${given[@]}" --threads "$count" --budget "$budget" --timing "$timing" --out "$plans" >"$plans.log" 2>&1 ||
                    ended=$?
                case $ended in
                0) ;;
                # Another plan was wrong; the one that was written is right.
                3) [ "$plans/plan.json" -nt "$plans.started" ] && echo "    a plan was wrong and left out, see $plans.log: $(tail -1 "$plans.log")" ;;
                *) false ;;
                esac || { echo "    no plan, see $plans.log: $(tail -1 "$plans.log")"; continue; }
                echo "[$number/$total] $case: $rounds rounds beside the peers ($(date +%H:%M))"
                "$memlet" compare "$plans/plan.json" "${peers[@]}" --threads "$count" --rounds "$rounds" --record "$record" \
                    >"${record%.json}.txt" 2>"$plans.peers.log" || echo "    not all peers were timed: $(tail -1 "$plans.peers.log")"
                grep -h "best peer" "${record%.json}.txt" | sed 's/^/    /' || true
            done
        done
    done
done
compgen -G "$out/compare-*.json" >/dev/null || { echo "there is no record: no table"; exit 1; }
"${MEMLET_TORCH:-${MEMLET_ONNX:-${MEMLET_JAX}}}" bench/peers/table.py "$out"/compare-*.json >"$out/compare.md"
echo "$out/compare.md:"
cat "$out/compare.md"
