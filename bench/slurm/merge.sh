#!/usr/bin/env bash
# The last job of sweep.sh: merges the records of all parts, solves once, and makes a plan.
set -euo pipefail
memlet=$1 recipe=$2 shards=$3 out=$4
shift 4

missing= parts=()
for n in $(seq "$shards"); do
    if [ -f "$out/shard-$n/sweep.json" ]; then parts+=("$out/shard-$n/records.jsonl"); else missing+=" $n"; fi
done
if [ -n "$missing" ]; then
    echo "not done:$missing of $shards; log/shard-*.txt says why. The command that submitted this does those again, and merges"
    exit 1
fi
# Which host measured which part.
for n in $(seq "$shards"); do
    echo "part $n: $(cat "$out/shard-$n/host.txt")"
done | tee "$out/hosts.txt"
# The records of all parts; those of other processors, compilers or threads are refused here. A file of records holds sessions and their
# measurements, so several in a row are one.
"$memlet" solve "${parts[@]}" --certificate "$out/solved.json"
cat "${parts[@]}" > "$out/.records.part"
mv "$out/.records.part" "$out/records.jsonl"
# Parts measure the programs of the recipe. What is tried beyond these depends on all records: single fusions undone, and the best kernels
# of all programs in one. Plans are then checked and timed as wholes.
"$memlet" optimize "$recipe" --out "$out" "$@"
