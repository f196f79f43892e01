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
    "readme": ["optimize", "recipes/mha.yaml", "--set", "b=2", "--set", "j=128", "--budget", "30s", "--out", "OUT"],
    "encoder-12": ["optimize", MADE / "encoder-12.yaml", "--budget", "20s", "--out", "OUT"],
    "encoder-12-once": ["sweep", MADE / "encoder-12.yaml", "--budget", "1s", "--out", "OUT"],
    "lstm-4": ["optimize", MADE / "lstm-4.yaml", "--budget", "20s", "--out", "OUT"],
    "lstm-4-once": ["sweep", MADE / "lstm-4.yaml", "--budget", "1s", "--out", "OUT"],
    "gru-16": ["sweep", MADE / "gru-16.yaml", "--budget", "1s", "--out", "OUT"],
    "gru-32": ["sweep", MADE / "gru-32.yaml", "--budget", "1s", "--out", "OUT"],
    "gru-64": ["sweep", MADE / "gru-64.yaml", "--budget", "1s", "--out", "OUT"],
}
ROWS |= {f"analyze-{name}": ["analyze", MADE / f"{name}.yaml", "--json"] for name in
         ["encoder-12", "gru-16", "gru-32", "gru-64", "dense-10", "dense-20", "dense-40", "dense-80", "dense-160", "dense-200", "dense-320",
          "dense-640", "dense-1280"]}


def once(build, row):
    """Wall-clock and processor seconds and kilobytes of one run; None where it fails or takes too long."""
    for folder in ["cache", "out"]:
        shutil.rmtree(WORK / folder, ignore_errors=True)
        (WORK / folder).mkdir()
    arguments = [str(WORK / "out") if part == "OUT" else str(part) for part in ROWS[row]]
    # GNU time adds up the process and the compilers that it waits for.
    command = ["/usr/bin/time", "-o", WORK / "time", "-f", "%e %U %S %M", "timeout", os.environ["LIMIT"], BUILDS[build], *arguments]
    environment = os.environ | {"MEMLET_CACHE_DIR": str(WORK / "cache")}
    told = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if told.returncode != 0:
        print(f"{row}: {build} ended with {told.returncode}: {told.stdout[-200:].decode(errors='replace')}", file=sys.stderr)
        return None
    wall, user, system, kilobytes = (WORK / "time").read_text().split()[-4:]
    return {"wall_s": float(wall), "cpu_s": float(user) + float(system), "kilobytes": int(kilobytes)}


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
        found.append({"row": row, "command": [str(part) for part in ROWS[row]], "times": times})
    machine = {"processor": platform.processor() or platform.machine(), "cores": os.cpu_count(), "system": platform.release(),
               "date": time.strftime("%Y-%m-%d"), "builds": BUILDS}
    pathlib.Path("target/memlet/waiting.json").write_text(json.dumps({"machine": machine, "rows": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
