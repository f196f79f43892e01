#!/usr/bin/env bash
# A sweep as a job array of SLURM: each task measures one part of the space on a node of its own, and a last job merges the records, solves
# once, and chooses a plan.
#
#     bench/slurm/sweep.sh RECIPE --shards N --out FOLDER [--sbatch "OPTION…"] [-- OPTION…]
#
#     --shards N           parts of the space
#     --out FOLDER         on a file system that all nodes see: FOLDER/shard-1 and so on, and what memlet optimize writes
#     --sbatch "OPTION…"   options of sbatch for all jobs, such as a partition, a time limit, or --constraint, which keeps to nodes of one
#                          kind: times of different processors do not mix
#     after --             options of memlet sweep and optimize, such as --exhaustive, --budget 10m or --set b=4
#
# A part that failed, or whose node died, is lost alone: the same command submits what is not done, which goes on from its own records, and
# merges again. MEMLET names the binary [target/release/memlet], which all nodes see too.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)

recipe= shards= out= options=()
while [ $# -gt 0 ]; do
    case $1 in
        --shards | --out | --sbatch)
            [ $# -gt 1 ] || { echo "$1 needs a value"; exit 2; }
            case $1 in
                --shards) shards=$2 ;;
                --out) out=$2 ;;
                --sbatch) read -ra options <<< "$2" ;;
            esac
            shift 2 ;;
        --) shift; break ;;
        -*) echo "unknown option $1; they are listed at the top of $0, and those of memlet come after --"; exit 2 ;;
        *) recipe=$1; shift ;;
    esac
done
[[ -n $recipe && $shards =~ ^[1-9][0-9]*$ && -n $out ]] || { echo "give RECIPE --shards N --out FOLDER"; exit 2; }
[ -f "$recipe" ] || { echo "$recipe does not exist"; exit 2; }
memlet=$(realpath "${MEMLET:-$here/../../target/release/memlet}")
[ -x "$memlet" ] || { echo "$memlet is missing: build it with cargo build --release -p recipes"; exit 2; }
command -v sbatch > /dev/null || { echo "sbatch is missing: this is no machine of a SLURM cluster"; exit 2; }
mkdir -p "$out/log"
recipe=$(realpath "$recipe") out=$(realpath "$out")

# Parts of another sweep are not taken for parts of this one.
wanted="$recipe --shards $shards -- $*"
if [ -f "$out/sweep.txt" ] && [ "$(cat "$out/sweep.txt")" != "$wanted" ]; then
    echo "$out holds parts of another sweep ($(cat "$out/sweep.txt")): take another folder"
    exit 2
fi
echo "$wanted" > "$out/sweep.txt"

# Task 2,5-7: what has not ended well yet.
open=
for n in $(seq "$shards"); do
    [ -f "$out/shard-$n/sweep.json" ] || open+=${open:+,}$n
done
after=()
if [ -n "$open" ]; then
    # A task has its node for itself, since what runs beside it would be in its times.
    array=$(sbatch --parsable --array="$open" --job-name="memlet sweep" --exclusive --output="$out/log/shard-%a.txt" "${options[@]}" \
        "$here/shard.sh" "$memlet" "$recipe" "$shards" "$out" "$@")
    # Not afterok: where a part has failed, such a job would wait for ever.
    after=(--dependency="afterany:${array%%;*}")
    echo "parts $open are job ${array%%;*}"
fi
merge=$(sbatch --parsable "${after[@]}" --job-name="memlet merge" --exclusive --output="$out/log/merge.txt" "${options[@]}" \
    "$here/merge.sh" "$memlet" "$recipe" "$shards" "$out" "$@")
echo "merging is job ${merge%%;*}; $out/log has what they print"
