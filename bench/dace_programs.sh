#!/usr/bin/env bash
# Programs of DaCe's Python in Memlet: DaCe 1.0.2 and 2.0 write and run each program of bench/peers/dace_programs.py, Memlet imports the
# file and interprets the recipe in f64 with the same inputs, and the results are compared. Prints a table, and how many are equal.
#
#     cargo build -p recipes
#     bench/dace_programs.sh [OPTION…] [PROGRAM…]      [all programs]
#
#     --versions LIST  [v2 v1]
#     --forms LIST     plain, as the frontend writes it; simple, after simplify(); maps, with library nodes expanded as well
#                      [plain simple maps]
#     --seconds N      that DaCe may take for a program [600]
#     --out FOLDER     [target/dace], where bench/dace.sh installs DaCe as well
set -euo pipefail
cd "$(dirname "$0")/.."
memlet=$(realpath "${MEMLET:-target/debug/memlet}") script=$PWD/bench/peers/dace_programs.py
versions="v2 v1" forms="plain simple maps" seconds=600 out=target/dace programs=()
while [ $# -gt 0 ]; do
    case $1 in
        --versions | --forms | --seconds | --out)
            [ $# -gt 1 ] || { echo "$1 needs a value"; exit 2; }
            printf -v "${1#--}" %s "$2"; shift 2 ;;
        -*) echo "unknown option $1; they are listed at the top of $0"; exit 2 ;;
        *) programs+=("$1"); shift ;;
    esac
done
[ -x "$memlet" ] || { echo "$memlet is missing: build it with cargo build -p recipes"; exit 2; }
mkdir -p "$out"
out=$(cd "$out" && pwd)
# shellcheck source=bench/install_dace.sh disable=SC2086 # a list of versions
. bench/install_dace.sh && install_dace "$out" $versions
first=$out/${versions%% *}/bin/python
[ ${#programs[@]} -gt 0 ] || mapfile -t programs < <("$first" "$script" list)
export DACE_compiler_cpu_args="-std=c++17 -fPIC -O1"
equal=0 all=0
for version in $versions; do
    python=$out/$version/bin/python folder=$out/programs/$version
    mkdir -p "$folder"
    printf '| program, DaCe %s |' "$version"
    for form in $forms; do printf ' %s |' "$form"; done
    printf '\n'
    for program in "${programs[@]}"; do
        mkdir -p "$folder/$program"
        # shellcheck disable=SC2086 # a list of forms
        (cd "$folder/$program" && PATH="$out/$version/bin:$PATH" timeout "$seconds" "$python" "$script" make "$program" "$folder" $forms \
            >told 2>log) || true
        printf '| %s |' "$program"
        for form in $forms; do
            name=$program.$form all=$((all + 1))
            cell=$("$python" "$script" compare "$folder" "$name" "$memlet" 2>"$folder/$name.log" | tail -1) || true
            printf ' %s |' "${cell:-$(tail -1 "$folder/$name.log")}"
            case $cell in [0-9]*) equal=$((equal + 1)) ;; esac
        done
        printf '\n'
    done
done
echo "$equal of $all are equal"
