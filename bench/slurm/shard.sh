#!/usr/bin/env bash
# One part of a sweep, as a task of the job array that sweep.sh submits.
set -euo pipefail
memlet=$1 recipe=$2 shards=$3 out=$4
shift 4

# Not SLURM_ARRAY_TASK_COUNT: that counts the tasks of this submission, which is one where one part is done again.
n=$SLURM_ARRAY_TASK_ID
folder=$out/shard-$n
mkdir -p "$folder"
echo "$(hostname), $(sed -n 's/^model name[^:]*: //p' /proc/cpuinfo | head -n 1), $(nproc) cores" > "$folder/host.txt"
"$memlet" sweep "$recipe" --shard "$n/$shards" --out "$folder" --json "$@" > "$folder/sweep.json.part"
# A part is done when this file is there, whole.
mv "$folder/sweep.json.part" "$folder/sweep.json"
