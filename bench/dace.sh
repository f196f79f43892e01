#!/usr/bin/env bash
# Programs of Memlet in DaCe: each recipe is written as an SDFG, which DaCe 1.0.2 and 2.0 load, validate and run in f64; the results are
# compared with those of Memlet's interpreter at the same small sizes. Prints a table.
#
#     cargo build -p recipes
#     bench/dace.sh [OPTION…] [RECIPE…]        [all recipes]
#
#     --stage NAME     operators, unfused or fused [operators]
#     --versions LIST  [v2 v1]
#     --seconds N      that loading, compiling and running may take, each file [600]
#     --out FOLDER     [target/dace]
#
# DaCe is installed with pip into FOLDER the first time (1.3 GB for both versions), with a CMake. It needs a C++ compiler.
set -euo pipefail
cd "$(dirname "$0")/.."
memlet=${MEMLET:-target/debug/memlet}
stage=operators versions="v2 v1" seconds=600 out=target/dace recipes=()
while [ $# -gt 0 ]; do
    case $1 in
        --stage | --versions | --seconds | --out)
            [ $# -gt 1 ] || { echo "$1 needs a value"; exit 2; }
            printf -v "${1#--}" %s "$2"; shift 2 ;;
        -*) echo "unknown option $1; they are listed at the top of $0"; exit 2 ;;
        *) recipes+=("$1"); shift ;;
    esac
done
[ ${#recipes[@]} -gt 0 ] || recipes=(recipes/*.yaml recipes/models/*.yaml)
[ -x "$memlet" ] || { echo "$memlet is missing: build it with cargo build -p recipes"; exit 2; }
mkdir -p "$out/$stage"
out=$(cd "$out" && pwd)
# shellcheck source=bench/install_dace.sh disable=SC2086 # a list of versions
. bench/install_dace.sh && install_dace "$out" $versions
here=$PWD check=$PWD/bench/peers/dace_check.py
printf '| recipe | states |'
for version in $versions; do printf ' DaCe %s | error |' "$version"; done
printf '\n'
for recipe in "${recipes[@]}"; do
    name=$(basename "$recipe" .yaml) folder=$out/$stage/$(basename "$recipe" .yaml)
    mkdir -p "$folder"
    first=${versions%% *}
    if ! "$memlet" export "$recipe" --no-dropout --dtype f64 --stage "$stage" --small --out "$folder/small.sdfg" >"$folder/log" 2>&1; then
        echo "| $name | not written: $(tail -1 "$folder/log") |"; continue
    fi
    sets=$(python3 -c 'import json, sys; print(*(f"--set {d}={n}" for d, n in json.load(open(sys.argv[1]))["memlet"]["dims"].items()))' "$folder/small.sdfg")
    # Small sizes are too small for networks, which have windows over windows.
    for larger in "" "--set h=64 --set w=64 --set classes=10" "--set h=96 --set w=96 --set classes=10"; do
        sets=${larger:-$sets}
        # shellcheck disable=SC2086 # a list of options
        "$memlet" export "$recipe" --no-dropout --dtype f64 --stage "$stage" $sets --out "$folder/$name.sdfg" >"$folder/log" 2>&1 && break
    done
    # shellcheck disable=SC2086
    "$memlet" export "$recipe" --no-dropout --dtype f64 --stage "$stage" $sets --out "$folder/$name.sdfg" >"$folder/log" 2>&1 || { echo "| $name | $(tail -1 "$folder/log") |"; continue; }
    "$out/$first/bin/python" "$check" "$folder/$name.sdfg" "$folder/given.npz" draw
    # shellcheck disable=SC2086
    "$memlet" interpret "$recipe" --no-dropout --dtype f64 $sets --inputs "$folder/given.npz" --outputs "$folder/want.npz" >"$folder/log" 2>&1 || { echo "| $name | $(tail -1 "$folder/log") |"; continue; }
    states=$(python3 -c 'import json, sys; print(len(json.load(open(sys.argv[1]))["nodes"]))' "$folder/$name.sdfg")
    printf '| %s | %s |' "$name" "$states"
    for version in $versions; do
        mkdir -p "$folder/$version"
        told=$(cd "$folder/$version" && DACE_compiler_cpu_args="-std=c++17 -fPIC -O1" PATH="$out/$version/bin:$PATH" \
            timeout "$seconds" "$out/$version/bin/python" "$check" "$folder/$name.sdfg" "$folder/given.npz" run "$folder/want.npz" 2>"$folder/$version/log" | tail -1) || true
        cd "$here"
        echo "$told" >"$folder/$version.json"
        "$out/$first/bin/python" "$check" "$folder/$version.json" - cell
    done
    printf '\n'
done
