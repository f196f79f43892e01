#!/usr/bin/env bash
# Tests sweep.sh on this machine alone, with a SLURM of its own in a temporary folder (Debian: apt-get install slurm-wlm):
# four parts of a small recipe, one of them killed and done again, merged and solved; the configurations are those of one sweep.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
for program in munged slurmctld slurmd sbatch; do
    PATH=$PATH:/usr/sbin command -v $program > /dev/null || { echo "$program is missing: install slurm-wlm"; exit 2; }
done
export PATH=$PATH:/usr/sbin MEMLET=${MEMLET:-$here/../../target/release/memlet}
folder=$(mktemp -d)

stop() {
    for daemon in slurmd slurmctld munged; do
        [ ! -f "$folder/$daemon.pid" ] || kill "$(cat "$folder/$daemon.pid")" 2> /dev/null || true
    done
    sleep 1
    rm -rf "$folder"
}
trap stop EXIT

start() {
    local host cores
    host=$(hostname -s) cores=$(nproc)
    mkdir -p "$folder/state" "$folder/spool"
    mkdir -m 700 "$folder/munge"
    head -c 1024 /dev/urandom > "$folder/munge/key"
    chmod 400 "$folder/munge/key"
    cat > "$folder/slurm.conf" <<CONF
ClusterName=one
SlurmctldHost=$host
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/munge
AuthInfo=socket=$folder/munge/socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SlurmctldPort=16817
SlurmdPort=16818
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=1
MpiDefault=none
NodeName=$host CPUs=$cores State=UNKNOWN
PartitionName=all Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
    export SLURM_CONF=$folder/slurm.conf
    # --force: in a container the root of the file system may belong to another user.
    munged --force --key-file="$folder/munge/key" --socket="$folder/munge/socket" --pid-file="$folder/munged.pid" \
        --seed-file="$folder/munge/seed" --log-file="$folder/munge/log" 2> /dev/null
    slurmctld
    slurmd
    for _ in $(seq 60); do
        [ "$(sinfo -h -o %T 2> /dev/null)" != idle ] || return 0
        sleep 0.5
    done
    echo "SLURM does not start:"
    tail -n 5 "$folder"/*.log
    exit 1
}

# Waits until a job has left the queue.
ended() {
    while [ -n "$(squeue -h -j "$1" 2> /dev/null)" ]; do sleep 0.5; done
}

start
recipe=$folder/small.yaml out=$folder/run
cat > "$recipe" <<'YAML'
model: small
dims: {b: 6, j: 8}
inputs:
  x: [b, j]
steps:
  - h[b,j] = 2 * x[b,j]
  - y[b,j] = softmax(h[b,j], over: j)
train: {upstream: y}
YAML
options=(--threads 1 --exhaustive)
submit() { "$here/sweep.sh" "$recipe" --shards 4 --out "$out" -- "${options[@]}"; }

told=$(submit)
echo "$told"
array=$(sed -n 's/.*are job //p' <<< "$told") merge=$(sed -n 's/.*is job \([0-9]*\);.*/\1/p' <<< "$told")
# Part 3 is killed in the middle, as by a node that dies.
until [ -f "$out/shard-3/records.jsonl" ] && [ "$(wc -l < "$out/shard-3/records.jsonl")" -gt 9 ]; do sleep 0.1; done
scancel --signal=KILL --full "${array}_3"
ended "$merge"
[ ! -f "$out/shard-3/sweep.json" ] || { echo "part 3 ended before it was killed"; exit 1; }
[ ! -f "$out/records.jsonl" ] || { echo "records were merged without part 3"; exit 1; }
cat "$out/log/merge.txt"
grep -q "not done: 3 of 4" "$out/log/merge.txt"
kept=$(wc -l < "$out/shard-3/records.jsonl")

told=$(submit)
echo "$told"
grep -q "^parts 3 are job" <<< "$told"
ended "$(sed -n 's/.*is job \([0-9]*\);.*/\1/p' <<< "$told")"
cat "$out/log/merge.txt"
[ -f "$out/plan.json" ] || { echo "there is no plan"; exit 1; }
# One certificate for the programs of the recipe, one for the unfused program.
certificates=("$out"/solved-*.json)
[ -f "${certificates[1]}" ] || { echo "there are no certificates"; exit 1; }
for certificate in "${certificates[@]}"; do "$MEMLET" verify-selection "$certificate"; done

"$MEMLET" sweep "$recipe" --out "$folder/one" "${options[@]}" > /dev/null 2>&1
python3 - "$out" "$folder/one" "$kept" <<'PY'
import json, pathlib, socket, sys

def read(path):
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [l for l in lines if l["line"] == "session"], [l for l in lines if l["line"] == "measurement"]

out, one, kept = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), int(sys.argv[3])
configuration = lambda m: (m["key"], json.dumps(m["config"], sort_keys=True))
sessions, merged = read(out / "records.jsonl")
alone_sessions, alone = read(one / "records.jsonl")
parts = [read(out / f"shard-{n}" / "records.jsonl") for n in range(1, 5)]
found, wanted = {configuration(m) for m in merged}, {configuration(m) for m in alone}
in_parts = set().union(*({configuration(m) for m in part} for _, part in parts))
assert in_parts <= found, "a record of a part is lost"
assert wanted <= found, f"one sweep has {len(wanted - found)} configurations that the parts lack"
assert {s["session"] for part, _ in parts for s in part} <= {s["session"] for s in sessions}, "provenance is lost"
hosts = (out / "hosts.txt").read_text().splitlines()
assert len(hosts) == 4 and all(f": {socket.gethostname()}, " in line for line in hosts), hosts
processes = {s["session"].split(".")[0].split("-")[1] for s in parts[2][0]}
assert len(processes) == 2, "part 3 did not go on from its own records"
assert len(parts[2][1]) + len(parts[2][0]) > kept
print(f"{len(found)} configurations in the merged records, {len(in_parts)} of the parts, {len(wanted)} of one sweep")
PY
