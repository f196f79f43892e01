"""Times two builds of memlet in turns; bench/waiting.sh says what its environment holds."""

import json
import os
import pathlib
import platform
import shutil
import statistics
import subprocess
import sys
import time

WORK = pathlib.Path(os.environ["WORK"])
MADE = WORK / "recipes"
BUILDS = {"this": os.environ["MEMLET"]} | ({"other": os.environ["OTHER"]} if os.environ["OTHER"] else {})

# By name: the arguments, in which OUT stands for an empty folder.
ROWS = {
    "readme": ["optimize", "recipes/mha.yaml", "--set", "b=2", "--set", "j=128", "--budget", "6s", "--out", "OUT"],
    "encoder-12": ["optimize", MADE / "encoder-12.yaml", "--budget", "20s", "--out", "OUT"],
    "encoder-12-once": ["sweep", MADE / "encoder-12.yaml", "--budget", "1s", "--out", "OUT"],
    "lstm-4": ["optimize", MADE / "lstm-4.yaml", "--budget", "20s", "--out", "OUT"],
    "lstm-4-once": ["sweep", MADE / "lstm-4.yaml", "--budget", "1s", "--out", "OUT"],
    "gru-16": ["sweep", MADE / "gru-16.yaml", "--budget", "1s", "--out", "OUT"],
    "gru-32": ["sweep", MADE / "gru-32.yaml", "--budget", "1s", "--out", "OUT"],
    "gru-64": ["sweep", MADE / "gru-64.yaml", "--budget", "1s", "--out", "OUT"],
}
ROWS |= {f"analyze-{name}": ["analyze", MADE / f"{name}.yaml", "--json"] for name in
         ["encoder-3", "encoder-12", "encoder-25", "encoder-250", "gru-16", "gru-32", "gru-64", "dense-10", "dense-20", "dense-40",
          "dense-80", "dense-160", "dense-200", "dense-320", "dense-640", "dense-1280"]}

# Where the older build needs another budget for a plan that is as fast: its README's own.
OTHER_BUDGET = {"readme": "30s"}
# Turns in which the plans of both builds are timed.
TURNS = 5


def arguments_of(build, row):
    arguments = [str(WORK / build / "out") if part == "OUT" else str(part) for part in ROWS[row]]
    if build == "other" and row in OTHER_BUDGET:
        arguments[arguments.index("--budget") + 1] = OTHER_BUDGET[row]
    return arguments


def once(build, row):
    """Wall-clock and processor seconds and kilobytes of one run; None where it fails or takes too long."""
    for folder in ["cache", "out"]:
        shutil.rmtree(WORK / build / folder, ignore_errors=True)
        (WORK / build / folder).mkdir(parents=True)
    arguments = arguments_of(build, row)
    # GNU time adds up the process and the compilers that it waits for.
    command = ["/usr/bin/time", "-o", WORK / "time", "-f", "%e %U %S %M", "timeout", os.environ["LIMIT"], BUILDS[build], *arguments]
    environment = os.environ | {"MEMLET_CACHE_DIR": str(WORK / build / "cache")}
    told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if told.returncode != 0:
        print(f"{row}: {build} ended with {told.returncode}: {told.stdout[-200:].decode(errors='replace')}", file=sys.stderr)
        return None
    wall, user, system, kilobytes = (WORK / "time").read_text().split()[-4:]
    return {"wall_s": float(wall), "cpu_s": float(user) + float(system), "kilobytes": int(kilobytes)}


def steps():
    """Milliseconds of a step of each build's last plan, timed in turns; None where some build has no plan."""
    times = {build: [] for build in BUILDS}
    for _ in range(TURNS):
        for build, binary in BUILDS.items():
            plan = WORK / build / "out" / "plan.json"
            environment = os.environ | {"MEMLET_CACHE_DIR": str(WORK / build / "cache")}
            told = subprocess.run([binary, "run", plan, "--json"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=False)
            if told.returncode != 0:
                return None
            times[build].append(json.loads(told.stdout.splitlines()[0])["step_ms"])
    return times


def main():
    rows = sys.argv[1:] or list(ROWS)
    unknown = [row for row in rows if row not in ROWS]
    if unknown:
        sys.exit(f"no row is called {', '.join(unknown)}; there are {', '.join(ROWS)}")
    found = []
    print("| row | " + " | ".join(f"{build}: wall s, cpu s, MB" for build in BUILDS) + " | wall ÷ | cpu ÷ |")
    print("| --- |" + " --- |" * (len(BUILDS) + 2))
    for row in rows:
        times = {build: [] for build in BUILDS}
        for _ in range(int(os.environ["RUNS"])):
            for build in BUILDS:
                if None not in times[build]:
                    times[build].append(once(build, row))
        median = lambda build, what: statistics.median(t[what] for t in times[build])
        ended = {build: bool(times[build]) and None not in times[build] for build in BUILDS}
        cell = lambda build: (
            f"{median(build, 'wall_s'):.2f}, {median(build, 'cpu_s'):.2f}, {median(build, 'kilobytes') / 1e3:.0f}" if ended[build] else "–")
        ratio = lambda what: f"{median('other', what) / median('this', what):.2f}" if len(BUILDS) > 1 and all(ended.values()) else "–"
        print(f"| {row} | " + " | ".join(cell(build) for build in BUILDS) + f" | {ratio('wall_s')} | {ratio('cpu_s')} |", flush=True)
        ran = steps() if ROWS[row][0] == "optimize" and all(ended.values()) else None
        if ran:
            medians = {build: statistics.median(of) for build, of in ran.items()}
            ratio = f"; step of the other's plan ÷ this one's {medians['other'] / medians['this']:.3f}" if "other" in medians else ""
            print(f"{row}: step " + ", ".join(f"{build} {ms:.3g} ms" for build, ms in medians.items()) + ratio, file=sys.stderr)
        commands = {build: ["memlet", *arguments_of(build, row)] for build in BUILDS}
        found.append({"row": row, "commands": commands, "times": times, "step_ms": ran})
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "system": platform.release(),
               "date": time.strftime("%Y-%m-%d"), "builds": BUILDS}
    pathlib.Path("target/memlet/waiting.json").write_text(json.dumps({"machine": machine, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
