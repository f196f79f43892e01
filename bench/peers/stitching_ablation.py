"""What each part of FusionStitching brings, and what Memlet adds to it: kernels, dispatches and times of each step, in Markdown and JSON.

    stitching_ablation.py FOLDER --time MEMLET [--threads N --rounds N --seconds N] NAME…

FOLDER is what bench/stitching.sh --ablation fills: NAME.safetensors, NAME/plan.json, and ablation/NAME-SET/plans/*.json of the plans with
the candidates of each set. All plans of a workload run in turns; a time is the median of a plan's turns.
"""
import argparse
import json
import os
import subprocess
import sys

import numpy as np

# The step, the set of candidates that its plan was chosen from, and whether kernels share dispatches.
STEPS = [
    ("separate", "separate", False),
    ("ladder", "ladder", False),
    ("+ exploration", "explored", False),
    ("+ packing", "explored", True),
    ("+ block composition", "all", True),
    ("+ what Memlet adds", None, False),
]


def plans(folder, name):
    """Each step with the file of its plan, as far as there is one."""
    files = {None: f"{folder}/{name}/plan.json", "separate": f"{folder}/ablation/{name}-separate.json"}
    for step, chosen, packed in STEPS:
        # The choice by times of kernels alone, without what whole steps have changed in it.
        file = files.get(chosen, f"{folder}/ablation/{name}-{chosen}/plans/stitched-exact.json")
        yield step, file if os.path.exists(file) else None, packed


def separate(folder, name):
    """Writes the unfused program as a plan: the baseline of the plan that was chosen."""
    plan = json.load(open(f"{folder}/{name}/plan.json"))
    os.makedirs(f"{folder}/ablation", exist_ok=True)
    if plan["baselines"]:
        json.dump({**plan, "chosen": plan["baselines"][-1], "baselines": []}, open(f"{folder}/ablation/{name}-separate.json", "w"))


def run(arguments, name, plan, packed):
    command = [arguments.time, "run", plan, "--inputs", f"{arguments.folder}/{name}.safetensors", "--threads", str(arguments.threads)]
    command += ["--timing", f"{arguments.seconds}s", "--json", *(["--packed"] if packed else [])]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{plan}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--time", required=True)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=0.3)
    parser.add_argument("names", nargs="+")
    arguments = parser.parse_args()
    rows = []
    for name in arguments.names:
        separate(arguments.folder, name)
        found = [(step, plan, packed) for step, plan, packed in plans(arguments.folder, name) if plan]
        runs = {step: [] for step, _, _ in found}
        try:
            for _ in range(arguments.rounds):
                for step, plan, packed in found:
                    runs[step].append(run(arguments, name, plan, packed))
        except (RuntimeError, OSError) as error:
            print(f"{name}: {error}", file=sys.stderr)
            continue
        steps = {
            step: {
                "kernels": of[0]["launches"], "dispatches": of[0]["dispatches"], "peak_bytes": of[0]["actual_peak_bytes"],
                "ms": float(np.median([r["step_ms"] for r in of])),
            }
            for step, of in runs.items()
        }
        rows.append({"workload": name, "steps": steps})
    lines = [
        "| workload | " + " | ".join(step for step, *_ in STEPS) + " |",
        "| --- |" + " --: |" * len(STEPS),
    ]
    cell = lambda s: f"{s['kernels']} / {s['dispatches']} / {s['ms']:.3g}" if s else "–"
    for row in rows:
        lines.append(f"| {row['workload']} | " + " | ".join(cell(row["steps"].get(step)) for step, *_ in STEPS) + " |")
    lines += ["", "Kernels / dispatches of a step / ms."]
    print("\n".join(lines))
    json.dump({"rows": rows}, open(f"{arguments.folder}/ablation.json", "w"), indent=1)
    open(f"{arguments.folder}/ablation.md", "w").write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
