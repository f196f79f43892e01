"""Tables 2 to 4 and Figures 6 to 8 of "FusionStitching" as tables: the paper's figures beside ours, in Markdown and JSON.

    stitching_paper.py FOLDER --time MEMLET [--threads N --seconds N] NAME…

FOLDER is what bench/stitching.sh fills: NAME.safetensors, NAME/plan.json with its report, and stitching.json, of whose last run times and
launches are. The separate program of each plan is timed here; the times of kernels alone are those of the report.

*Source* of the paper's figures: Long, Yang, Lin, arXiv:1911.11576v1, Tables 2 to 4 and sections 6.4 and 6.5. Its Figures 6 to 8 are
pictures: of them there is what the text says.
"""
import argparse
import json
import os
import subprocess
import sys
import textwrap

# name: (operators, kernels, mean µs, share of time outside of products), then kernels and time: (xla/tf, fs/tf) each.
PAPER = {
    "nmt": ((1532, 5940, 9.2, 46), (1.65, 3.25), (1.36, 1.84)),
    "multi-interests": ((992, 495, 202.8, 81), (1.63, 2.27), (1.25, 1.57)),
    "speech": ((3204, 261029, 4.0, 47), (1.3, 13.5), (1.09, 1.35)),
    "dialog": ((27428, 398265, 5.4, 80), (2.6, 5.7), (2.53, 4.6)),
    "logistic": ((62, 1540, 3.1, 60), (1.5, 4.6), (1.46, 1.83)),
    "word2vec": ((206, 64, 2.5, 71), (2.9, 4.9), (2.6, 3.3)),
    "bi-rnn": ((461, 1085, 3.7, 56), (2.8, 6.8), (2.5, 4.1)),
    "dyn-rnn": ((957, 1352, 3.2, 63), (3.2, 7.8), (3.8, 5.7)),
    "perceptron": ((108, 49, 5.4, 47), (1.1, 1.3), (0.94, 1.18)),
    "var-encoder": ((239, 112, 4.5, 53), (1.5, 1.9), (0.8, 1.09)),
}
APPLICATIONS = ["nmt", "multi-interests", "speech", "dialog"]
# Section 6.4 says this of Figure 6; 6.5 of Figure 7, on average of four applications, and of Figure 8.
GEMM_PATTERNS = {"nmt": 16, "multi-interests": 16}
KERNEL_TIME = 0.61
ELEMENTWISE_TIME = 50
# Table 4: percent of patterns that use shared memory, percent of their time, mean and most KB, allocated ÷ requested.
ON_CHIP = {
    "nmt": (42, 87, 3.6, 18.6, 0.81), "multi-interests": (24, 56, 7.5, 36.0, 0.88), "speech": (90, 95, 5.5, 16.4, 0.98),
    "dialog": (34, 62, 1.4, 4.1, 0.87),
}
CLASSES = ("elementwise", "normalization", "contraction")


def run(arguments, name, plan, *options):
    """What `memlet run` says of a plan."""
    command = [arguments.time, "run", plan, "--inputs", f"{arguments.folder}/{name}.safetensors", "--threads", str(arguments.threads)]
    done = subprocess.run([*command, "--timing", f"{arguments.seconds}s", "--json", *options], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{plan}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def separate(folder, name):
    """The file of the separate program's plan: the baseline of the plan that was chosen."""
    plan = json.load(open(f"{folder}/{name}/plan.json"))
    os.makedirs(f"{folder}/paper", exist_ok=True)
    file = f"{folder}/paper/{name}-separate.json"
    json.dump({**plan, "chosen": plan["baselines"][-1], "baselines": []}, open(file, "w"))
    return file


def ms(quantity):
    return next(iter(quantity.values())) if quantity else None


def on_chip(arguments, name):
    """What fused kernels hold in the memory of a worker, those of loops' bodies included."""
    kernels = run(arguments, name, f"{arguments.folder}/{name}/plan.json", "--kernels")["kernels"]
    fused = []
    for kernel in kernels:
        for part in kernel.get("body") or [kernel]:
            if part.get("operators", 1) > 1:
                fused.append((part["ms"] if "ms" in part else part["in_step_ms"], part["on_chip"]["allocated"], part["on_chip"]["requested"]))
    held = [part for part in fused if part[1] > 0]
    whole = sum(ms for ms, *_ in fused)
    allocated = [bytes for _, bytes, _ in held]
    return {
        "fused": len(fused), "patterns": 100 * len(held) / len(fused) if fused else None,
        "time": 100 * sum(ms for ms, *_ in held) / whole if whole else None,
        "mean_kb": sum(allocated) / len(held) / 1024 if held else None, "most_kb": max(allocated) / 1024 if held else None,
        "ratio": sum(allocated) / sum(asked for *_, asked in held) if held else None,
    }


def measured(arguments, name, row):
    found = run(arguments, name, separate(arguments.folder, name))
    dispatches, step = found["dispatches"], found["step_ms"]
    report = json.load(open(f"{arguments.folder}/{name}/report.json"))
    share = lambda some, of: 100 * some / of if of else None
    # Operators within loops are measured with their loop alone.
    alone = [(o["class"], ms(o.get("unfused"))) for o in report["operators"]]
    apart = None if any(time is None for _, time in alone) else sum(time for _, time in alone)
    # A loop holds kernels of several classes, and the report has one time for all of them.
    ours = [("loop" if not k["holds"] else k["class"], len(k["holds"]), ms(k.get("ours")) or 0.0) for k in report["kernels"]]
    whole = sum(time for *_, time in ours)
    fused = [k for k in ours if k[1] > 1]
    launches, times = row["launches"], row["step_ms"]
    return {
        "workload": name,
        "separate": {
            "operators": len(report["operators"]), "kernels": dispatches, "mean_us": 1e3 * step / dispatches,
            "memory": share(sum(time for c, time in alone if c != "contraction"), apart) if apart else None,
        },
        "kernels": {"xla": dispatches / launches["xla_gpu"] if launches.get("xla_gpu") else None, "ours": dispatches / launches["ours"]},
        "times": {"xla": step / times["jax"], "ours": step / times["ours"]},
        "patterns": {c: share(sum(k[0] == c for k in fused), len(fused)) for c in CLASSES} | {"count": len(fused)},
        "kernel_time": times["ours"] / times["jax"],
        "breakdown": {c: share(sum(k[2] for k in ours if k[0] == c), whole) for c in (*CLASSES, "loop")},
        "on_chip": on_chip(arguments, name),
    }


def shown(value, form="{:.2f}"):
    return "–" if value is None else form.format(value)


def table(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "| --- |" + " --: |" * (len(heads) - 1)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def pair(theirs, ours, form="{:.2f}"):
    return f"{shown(theirs, form)} / {shown(ours, form)}"


def tables(rows):
    two, three, four, six, seven, eight = [], [], [], [], [], []
    for row in rows:
        name, known = row["workload"], PAPER.get(row["workload"])
        whole, percent = "{:.0f}", "{:.0f}%"
        if known:
            (operators, count, mean, memory), (xla_k, fs_k), (xla_t, fs_t) = known
            own = row["separate"]
            two.append([
                name, pair(operators, own["operators"], whole), pair(count, own["kernels"], whole), pair(mean, own["mean_us"], "{:.3g}"),
                pair(memory, own["memory"], percent),
            ])
            k, t = row["kernels"], row["times"]
            by = lambda a, b: a / b if a and b else None
            three.append([
                name, pair(xla_k, k["xla"]), pair(fs_k, k["ours"]), pair(fs_k / xla_k, by(k["ours"], k["xla"])), pair(xla_t, t.get("xla")),
                pair(fs_t, t.get("ours")), pair(fs_t / xla_t, by(t.get("ours"), t.get("xla"))),
            ])
            patterns = row["patterns"]
            six.append([
                name, str(patterns["count"]), shown(patterns["elementwise"], percent), shown(patterns["normalization"], percent),
                pair(GEMM_PATTERNS.get(name), patterns["contraction"], percent),
            ])
        held, theirs = row["on_chip"], ON_CHIP.get(name, (None,) * 5)
        four.append([
            name, str(held["fused"]), pair(theirs[0], held["patterns"], percent), pair(theirs[1], held["time"], percent),
            pair(theirs[2], held["mean_kb"], "{:.1f}"), pair(theirs[3], held["most_kb"], "{:.1f}"), pair(theirs[4], held["ratio"]),
        ])
        if name in APPLICATIONS:
            seven.append([name, shown(row["kernel_time"])])
            eight.append([name, *(shown(row["breakdown"][c], percent) for c in (*CLASSES, "loop"))])
    mean = [row["kernel_time"] for row in rows if row["workload"] in APPLICATIONS]
    seven.append(["mean of the four", pair(KERNEL_TIME, sum(mean) / len(mean) if mean else None)])
    eight.append(["the paper, all four", f"about {ELEMENTWISE_TIME}%", "", "", ""])
    yield ("Table 2, the programs as they are: the paper's on TensorFlow and a V100 / our separate program on these cores, whose kernels"
           " are its dispatches"), table(
        ["workload", "operators", "kernels of a step", "mean, µs", "time outside of products"], two)
    yield ("Table 3, fewer kernels and less time: theirs / ours. `tf` is our separate program, `xla` is XLA:GPU for kernels and `jax.jit`"
           " on these cores for time, `fs` is our plan, of which dispatches count as kernels"), table(
        ["workload", "tf ÷ xla, kernels", "tf ÷ fs", "xla ÷ fs", "tf ÷ xla, time", "tf ÷ fs", "xla ÷ fs"], three)
    yield ("Table 4, fused kernels that hold values on chip: theirs in the shared memory of a block / ours in the memory of a worker, where"
           " packed factors and tiles of products lie too. Time is that of these among fused kernels; kernels of loops' bodies count"), table(
        ["workload", "fused kernels", "which hold some", "their time", "mean, KiB", "most, KiB", "allocated ÷ requested"], four)
    yield "Figure 6, what our fused kernels hold; of the paper's, the text gives products alone (theirs / ours)", table(
        ["workload", "fused kernels", "element-wise", "reduction", "product"], six)
    yield "Figure 7, the time of a step ÷ that of XLA: theirs, of kernels on a GPU, / ours beside `jax.jit` on cores", table(
        ["workload", "time"], seven)
    yield "Figure 8, the sum of our kernels' times alone by what they hold; a loop is one kernel", table(
        ["workload", "element-wise", "reduction", "product", "loops"], eight)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--time", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    known = {row["workload"]: row for row in json.load(open(f"{arguments.folder}/stitching.json"))["rows"]}
    rows = []
    for name in arguments.names:
        row = known.get(name)
        if not row or "ours" not in row["launches"]:
            print(f"{name}: run bench/stitching.sh {name} first", file=sys.stderr)
            continue
        try:
            rows.append(measured(arguments, name, row))
        except (RuntimeError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
    text = "\n\n".join(f"{textwrap.fill(title, 139)}:\n\n{rows}" for title, rows in tables(rows))
    print(text)
    json.dump({"rows": rows}, open(f"{arguments.folder}/paper.json", "w"), indent=1)
    open(f"{arguments.folder}/paper.md", "w").write(text + "\n")


if __name__ == "__main__":
    main()
