"""One table of the workloads of FusionStitching, in Markdown, and the same as JSON.

    stitching_table.py FOLDER [--time MEMLET --threads N --rounds N --seconds N] NAME…

FOLDER is what bench/stitching.sh fills: NAME.launches, NAME.safetensors, NAME.npz and NAME/plan.json. With --time, plans are checked and
timed beside JAX, and all goes to FOLDER/stitching.json and FOLDER/stitching.md. Ratios are those of a turn of JAX over the turn of ours
just before it; their interval is that of the median, from the order statistics of a binomial distribution. Rows of workloads that are not
named stay as an earlier run has left them.
"""
import argparse
import json
import math
import os
import subprocess
import sys

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
    worker = [sys.executable, f"{HERE}/stitching_worker.py", "times", name, str(arguments.threads)]
    jax = subprocess.Popen(worker, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    ready = json.loads(jax.stdout.readline())
    row |= {"jax_compile_s": ready["ready_s"], "jax": ready["jax"], "machine": machine(arguments.threads)}
    row |= {"rounds": arguments.rounds, "seconds": arguments.seconds}
    pairs, busy = [], []
    for _ in range(arguments.rounds):
        mine = run(arguments.time, folder, name, arguments.threads, arguments.seconds)
        jax.stdin.write(f"{arguments.seconds}\n")
        jax.stdin.flush()
        theirs = json.loads(jax.stdout.readline())
        pairs.append((median(mine["samples"]["step_ms"]), median(theirs["ms"])))
        busy.append(os.getloadavg()[0])
    jax.stdin.close()
    jax.wait()
    ratios = [theirs / mine for mine, theirs in pairs]
    row["step_ms"] = {"ours": median([p[0] for p in pairs]), "jax": median([p[1] for p in pairs])}
    row |= {"ratio": median(ratios), "interval": interval(ratios), "load": median(busy)}
    return row


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
        "| workload | kernels | dispatches | XLA:CPU | ÷ ours | XLA:GPU | ÷ ours | ours, ms | JAX, ms | ÷ ours (95%, of few turns all) | error against f64 |",
        "| --- | --: | --: | --: | --: | --: | --: | --: | --: | --: | --: |",
    ]
    for row in rows:
        ours, times = row["launches"].get("ours"), row.get("step_ms", {})
        per = lambda kind: row["launches"][kind] / ours if ours and row["launches"][kind] else None
        row["fewer"] = {kind: per(kind) for kind in ("xla_cpu", "xla_gpu")}
        ratio = f"{row['ratio']:.2f} ({row['interval'][0]:.2f}–{row['interval'][1]:.2f})" if "ratio" in row else "–"
        cells = [
            row["workload"], shown(row.get("kernels"), "{}"), shown(ours, "{}"), shown(row["launches"]["xla_cpu"], "{}"),
            shown(row["fewer"]["xla_cpu"]), shown(row["launches"]["xla_gpu"], "{}"), shown(row["fewer"]["xla_gpu"]),
            shown(times.get("ours"), "{:.3g}"), shown(times.get("jax"), "{:.3g}"), ratio, shown(row.get("error"), "{:.1e}"),
        ]
        lines.append("| " + " | ".join(cells) + " |")
    # Figure 1 is an example of the paper, none of its workloads.
    counted = [row for row in rows if row["workload"] != "figure-1"]
    means = {
        "xla_cpu": geometric(row["fewer"]["xla_cpu"] for row in counted), "xla_gpu": geometric(row["fewer"]["xla_gpu"] for row in counted),
        "step": geometric(row.get("ratio") for row in counted),
    }
    lines.append(f"| geometric mean without Figure 1 | | | | {shown(means['xla_cpu'])} | | {shown(means['xla_gpu'])} | | | {shown(means['step'])} | |")
    timed_rows = [row for row in rows if "machine" in row]
    for text in sorted({f"{r['machine']}; JAX {r['jax']}; turns of {r['seconds']:g} s" for r in timed_rows}):
        rounds = sorted({r["rounds"] for r in timed_rows})
        lines += ["", f"{text}, {' or '.join(map(str, rounds))} a side."]
    print("\n".join(lines))
    json.dump({"rows": rows, "geometric": means}, open(f"{arguments.folder}/stitching.json", "w"), indent=1)
    open(f"{arguments.folder}/stitching.md", "w").write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
