#!/usr/bin/env bash
# Convolutional networks and the cases of "Cross-Layer Data Reuse" beside ONNX Runtime and OpenVINO: for every recipe and number of
# threads a plan is chosen and timed beside the peers, in turns, conversions from and to the recipe's order of dims included. One table
# says how they stand, and a JSON file has every sample.
#
#     cargo build --release -p recipes
#     bench/convolutions.sh [OPTION…]
#
# The peers are pip's, of the versions below, in an environment that is made under target/ the first time.
#
#     --names LIST     of a1, a2, b1, c1 (the cases), squeezenet-1.0, squeezenet-1.1, mobilenet-v1, resnet-18, resnet-50, googlenet,
#                      inception-v3, vgg-19 [all but the last two]
#     --threads LIST   [2,1]
#     --budget TIME    for the sweep of each plan [3m]
#     --timing TIME    for timing the best plans as wholes [10s]
#     --rounds N       of each comparison; in each, every peer is timed once, and ours just before it [60]
#     --out FOLDER     [target/memlet/convolutions]
#     --winograd       lets convolutions be computed in Winograd's form, which the peers may do as well
#
# Ctrl-C stops it; the same command goes on with what has no record yet. Nothing else should run on the machine: every record says how
# busy others kept it, and on a busy machine nothing but ratios says anything.
set -euo pipefail
cd "$(dirname "$0")/.."
memlet=${MEMLET:-target/release/memlet}
packages="onnx==1.23.2 onnxruntime==1.32.0 openvino==2026.4.1 numpy==2.4.6 safetensors"

names=a1,a2,b1,c1,squeezenet-1.0,squeezenet-1.1,mobilenet-v1,resnet-18,resnet-50,googlenet
threads=2,1 budget=3m timing=10s rounds=60 out=target/memlet/convolutions winograd=
while [ $# -gt 0 ]; do
    case $1 in
        --names | --threads | --budget | --timing | --rounds | --out)
            [ $# -gt 1 ] || { echo "$1 needs a value"; exit 2; }
            printf -v "${1#--}" %s "$2"; shift 2 ;;
        --winograd) winograd=yes; shift ;;
        *) echo "unknown option $1; they are listed at the top of $0"; exit 2 ;;
    esac
done
[ -x "$memlet" ] || { echo "$memlet is missing: build it with cargo build --release -p recipes"; exit 2; }

# The recipe of a name; with Winograd's form a copy of it.
recipe() {
    local given
    case $1 in
        a1 | a2 | b1 | c1) given=recipes/cross-layer/$1.yaml ;;
        *) given=recipes/$1.yaml ;;
    esac
    if [ -n "$winograd" ] && [ -f "$given" ]; then
        mkdir -p "$out/recipes"
        sed 's/^model:.*/&\nwinograd: true/' "$given" >"$out/recipes/$1.yaml"
        given=$out/recipes/$1.yaml
    fi
    echo "$given"
}
for name in ${names//,/ }; do
    [ -f "$(recipe "$name")" ] || { echo "there is no $(recipe "$name")"; exit 2; }
done

python=target/peers/bin/python
if ! [ "$(cat target/peers/packages 2>/dev/null)" = "$packages" ]; then
    echo "installing $packages into target/peers"
    python3 -m venv --clear target/peers
    # shellcheck disable=SC2086 # a list of packages
    "$python" -m pip install --quiet $packages
    echo "$packages" >target/peers/packages
fi
"$memlet" compare --peers-only --onnx "$python" --openvino "$python"

mkdir -p "$out"
trap 'echo; echo "stopped; the same command goes on from here"; exit 130' INT TERM
for count in ${threads//,/ }; do
    for name in ${names//,/ }; do
        record=$out/$name-$count.json plans=$out/$name-$count
        if [ -s "$record" ]; then
            echo "$name, $count threads: has a record"
            continue
        fi
        echo "$name, $count threads: choosing a plan within $budget ($(date +%H:%M))"
        if ! "$memlet" optimize "$(recipe "$name")" --threads "$count" --budget "$budget" --timing "$timing" --out "$plans" >"$plans.log" 2>&1; then
            # Code 3: another plan was wrong; the one that was written is right.
            [ -s "$plans/plan.json" ] || { echo "    no plan, see $plans.log: $(tail -1 "$plans.log")"; continue; }
        fi
        "$memlet" compare "$plans/plan.json" --onnx "$python" --openvino "$python" --threads "$count" --rounds "$rounds" \
            --record "$record" >"$plans.txt" 2>>"$plans.log" || echo "    not all peers were timed, see $plans.txt"
        grep -h "best peer" "$plans.txt" | sed 's/^/    /' || true
    done
done
compgen -G "$out/*.json" >/dev/null || { echo "there is no record: no table"; exit 1; }
python3 bench/peers/convolutions_table.py "$out"/*.json | tee "$out/convolutions.md"
