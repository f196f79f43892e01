"""One table of the workloads of FusionStitching, in Markdown, and the same as JSON.

    stitching_table.py FOLDER [--time MEMLET --threads N --rounds N --seconds N] [--torch PYTHON] NAME…

FOLDER is what bench/stitching.sh fills: NAME.launches, NAME.safetensors, NAME.npz and NAME/plan.json. With --time, plans are checked and
timed beside JAX, and all goes to FOLDER/stitching.json and FOLDER/stitching.md. With --torch, workloads of LSTMs are timed beside PyTorch as
well (`stitching_torch.py`). Ratios are those of a turn of the best peer over the turn of ours just before it, the best peer being the one
with the least median; their interval is that of the median, from the order statistics of a binomial distribution. Rows of workloads that are not
named stay as an earlier run has left them.
"""
import argparse
import json
import math
import os
import subprocess
import sys
import tempfile

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))


def median(samples):
    return float(np.median(samples))


def interval(samples):
    """95% bounds of the median, or the extremes of few samples."""
    ordered, n = sorted(samples), len(samples)
    reach = int(math.floor((n - 1.96 * math.sqrt(n)) / 2))
    return (ordered[max(reach, 0)], ordered[min(n - 1 - reach, n - 1)])


def launches(folder, name):
    found = [json.loads(line) for line in open(f"{folder}/{name}.launches")]
    least = lambda kind: min((f["launches"] for f in found if f["for"] == kind), default=None)
    return {"xla_cpu": least("cores"), "xla_gpu": least("H100")}


def run(memlet, folder, name, threads, seconds, *more):
    command = [memlet, "run", f"{folder}/{name}/plan.json", "--inputs", f"{folder}/{name}.safetensors", "--threads", str(threads)]
    done = subprocess.run([*command, "--timing", f"{seconds}s", "--json", *more], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def wrong(folder, name):
    """The largest difference from JAX's results in f64, relative to a tensor's largest change or element, and where it is."""
    ours, right = np.load(f"{folder}/{name}.ours.npz"), np.load(f"{folder}/{name}.npz")
    missing = sorted(set(right.files) - set(ours.files))
    if missing:
        raise RuntimeError(f"our results lack {', '.join(missing)}")
    worst = (0.0, "")
    for key in right.files:
        want = np.asarray(right[key], np.float64)
        scale = max(float(np.abs(want).max()), 1e-30)
        worst = max(worst, (float(np.abs(np.asarray(ours[key], np.float64) - want).max()) / scale, key))
    return worst


def timed(arguments, name):
    folder, first = arguments.folder, ["--outputs", f"{arguments.folder}/{name}.ours.npz"]
    ours = run(arguments.time, folder, name, arguments.threads, 0.2, *first)
    error, where = wrong(folder, name)
    row = {"dispatches": ours["dispatches"], "kernels": ours["launches"], "error": error, "error_in": where}
    peers = {"jax": Peer([sys.executable, f"{HERE}/stitching_worker.py", "times", name, str(arguments.threads)])}
    row |= {"jax_compile_s": peers["jax"].ready["ready_s"], "jax": peers["jax"].ready["jax"], "machine": machine(arguments.threads)}
    if arguments.torch and name in LSTMS:
        files = [f"{folder}/{name}.safetensors", f"{folder}/{name}.npz"]
        peers["torch"] = Peer([arguments.torch, f"{HERE}/stitching_torch.py", name, str(arguments.threads), *files])
        row["torch"] = peers["torch"].ready["torch"]
    row |= {"rounds": arguments.rounds, "seconds": arguments.seconds}
    times, busy = {who: [] for who in ["ours", *peers]}, []
    for _ in range(arguments.rounds):
        mine = run(arguments.time, folder, name, arguments.threads, arguments.seconds)
        times["ours"].append(median(mine["samples"]["step_ms"]))
        for who, peer in peers.items():
            times[who].append(median(peer.turn(arguments.seconds)))
        busy.append(os.getloadavg()[0])
    for peer in peers.values():
        peer.end()
    row["step_ms"] = {who: median(samples) for who, samples in times.items()}
    row["best"] = min(peers, key=lambda who: row["step_ms"][who])
    ratios = [theirs / mine for mine, theirs in zip(times["ours"], times[row["best"]])]
    row |= {"ratio": median(ratios), "interval": interval(ratios), "load": median(busy)}
    return row


#: Workloads that PyTorch's LSTM computes.
LSTMS = ("speech", "bi-rnn", "dyn-rnn")


class Peer:
    """A worker that is ready, and then answers a number of seconds with milliseconds of steps for so long."""

    def __init__(self, command):
        errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True)
        line = self.process.stdout.readline()
        if not line:
            self.process.wait()
            errors.seek(0)
            said = errors.read().strip().splitlines()
            raise RuntimeError(said[-1] if said else f"{command[1]} ended at once")
        self.ready = json.loads(line)

    def turn(self, seconds):
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())["ms"]

    def end(self):
        self.process.stdin.close()
        self.process.wait()


def machine(threads):
    """The processor, and the threads that both sides use."""
    try:
        named = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    except OSError:
        named = []
    return f"{named[0] if named else 'an unknown processor'}, {threads} threads"


def kept(folder, names):
    """The rows of other workloads of an earlier run."""
    try:
        return [row for row in json.load(open(f"{folder}/stitching.json"))["rows"] if row["workload"] not in names]
    except (OSError, ValueError, KeyError):
        return []


def geometric(values):
    values = [v for v in values if v]
    return math.exp(sum(map(math.log, values)) / len(values)) if values else None


def shown(value, form="{:.2f}"):
    return "–" if value is None else form.format(value)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--time")
    parser.add_argument("--torch")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.names:
        row = {"workload": name, "launches": launches(arguments.folder, name)}
        if arguments.time:
            try:
                row |= timed(arguments, name)
                row["launches"]["ours"] = row["dispatches"]
            except (RuntimeError, OSError) as error:
                row["failed"] = str(error)
                print(f"{name}: {error}", file=sys.stderr)
        rows.append(row)
    order = "nmt multi-interests speech dialog logistic word2vec bi-rnn dyn-rnn perceptron var-encoder figure-1".split()
    rows = sorted(kept(arguments.folder, arguments.names) + rows, key=lambda row: order.index(row["workload"]))
    lines = [
        "| workload | kernels | dispatches | XLA:CPU | ÷ ours | XLA:GPU | ÷ ours | ours, ms | JAX, ms | PyTorch, ms | best ÷ ours (95%, of few turns all) | error against f64 |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        ours, times = row["launches"].get("ours"), row.get("step_ms", {})
        per = lambda kind: row["launches"][kind] / ours if ours and row["launches"][kind] else None
        row["fewer"] = {kind: per(kind) for kind in ("xla_cpu", "xla_gpu")}
        ratio = f"{row['ratio']:.2f} ({row['interval'][0]:.2f}–{row['interval'][1]:.2f})" if "ratio" in row else "–"
        cells = [
            row["workload"], shown(row.get("kernels"), "{}"), shown(ours, "{}"), shown(row["launches"]["xla_cpu"], "{}"),
            shown(row["fewer"]["xla_cpu"]), shown(row["launches"]["xla_gpu"], "{}"), shown(row["fewer"]["xla_gpu"]),
            shown(times.get("ours"), "{:.3g}"), shown(times.get("jax"), "{:.3g}"), shown(times.get("torch"), "{:.3g}"), ratio, shown(row.get("error"), "{:.1e}"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    # Figure 1 is an example of the paper, none of its workloads.
    counted = [row for row in rows if row["workload"] != "figure-1"]
    means = {
        "xla_cpu": geometric(row["fewer"]["xla_cpu"] for row in counted), "xla_gpu": geometric(row["fewer"]["xla_gpu"] for row in counted),
        "step": geometric(row.get("ratio") for row in counted),
    }
    lines.append(f"| geometric mean without Figure 1 | | | | {shown(means['xla_cpu'])} | | {shown(means['xla_gpu'])} | | | | {shown(means['step'])} | |")
    timed_rows = [row for row in rows if "machine" in row]
    torch = "".join(sorted({f"; PyTorch {r['torch']}" for r in timed_rows if "torch" in r}))
    for text in sorted({f"{r['machine']}; JAX {r['jax']}{torch}; turns of {r['seconds']:g} s" for r in timed_rows}):
        rounds = sorted({r["rounds"] for r in timed_rows})
        lines += ["", f"{text}, {' or '.join(map(str, rounds))} a side."]
    print("\n".join(lines))
    json.dump({"rows": rows, "geometric": means}, open(f"{arguments.folder}/stitching.json", "w"), indent=1)
    open(f"{arguments.folder}/stitching.md", "w").write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
