#!/usr/bin/env python3
"""The stored measurements: their archives, their index, and the pages of results that are made from them.

    bench/records.py unpack [FOLDER]         every archive into FOLDER [target/records]
    bench/records.py pack FOLDER [MACHINE]   the folder of a new record into the archive of its machine
    bench/records.py write                   the tables between markers: index, README.md, docs/results
    bench/records.py check                   whether these tables are what the archives say; exit code 1 if not

An archive bench/records/MACHINE.zip holds one folder for each record, named DATE-MACHINE; more records of a day end in -run2, -run3.
Each folder has an about.txt with the lines `commit:`, `what:` and `command:`. Nothing but Python 3 is needed.
"""
import gzip
import json
import os
import re
import sys
import zipfile

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
RECORDS = os.path.join(ROOT, "bench", "records")
sys.path.insert(0, os.path.join(ROOT, "bench", "peers"))
import table  # noqa: E402

# Machines in the order of the tables: archive, title, heading of its column.
CORES = [
    ("epyc-zen3-2core", "AMD EPYC Zen 3, 2 cores", "EPYC Zen 3"),
    ("epyc-zen4-2core", "AMD EPYC Zen 4, 2 cores", "EPYC Zen 4"),
    ("epyc-zen5-2core", "AMD EPYC Zen 5, 2 cores", "EPYC Zen 5"),
    ("xeon-emerald-rapids-2core", "Intel Xeon Emerald Rapids, 2 cores", "Xeon Emerald Rapids"),
]
GPU = "nvidia-h200"
# The steps of the tables: recipe, sizes that tell it apart, title.
STEPS = [
    ("bert_large_encoder", {"B": 8, "J": 512}, "BERT-large layer, b=8, j=512"),
    ("bert_base_encoder", {"B": 8, "J": 128}, "BERT-base layer, b=8, j=128"),
    ("bert_large_encoder", {"B": 2, "J": 128}, "BERT-large layer, b=2, j=128"),
    ("mha", {"B": 8, "J": 512}, "attention, b=8, j=512, i=1024"),
]
STORED = ["f32", "bf16, weights f32", "bf16"]


class Archive:
    """The records of one machine, read where they lie."""

    def __init__(self, machine):
        self.file = zipfile.ZipFile(os.path.join(RECORDS, machine + ".zip"))
        self.names = sorted(self.file.namelist())

    def text(self, name):
        return self.file.read(name).decode()

    def folders(self):
        return sorted({name.split("/")[0] for name in self.names})

    def about(self, folder):
        lines = self.text(f"{folder}/about.txt").splitlines()
        return dict(line.split(": ", 1) for line in lines if ": " in line)

    def comparisons(self):
        """Each report of `memlet compare --record`, with the folder that it lies in."""
        for name in self.names:
            folder, base = name.split("/")[0], os.path.basename(name)
            if base.startswith("compare-") and base.endswith(".json"):
                for report in json.loads(self.text(name)):
                    yield folder, report


def machines():
    return sorted(name[:-4] for name in os.listdir(RECORDS) if name.endswith(".zip"))


def unpack(to):
    for machine in machines():
        Archive(machine).file.extractall(to)
    print(f"{', '.join(machines())}: unpacked into {os.path.relpath(to)}")


def pack(folder, machine):
    """Writes the archive anew, in the order of names and with one time for all, so that the same records give the same bytes."""
    folder = folder.rstrip("/")
    day, rest = os.path.basename(folder)[:10], os.path.basename(folder)[11:]
    machine = machine or re.sub(r"-run\d+$", "", rest)
    path = os.path.join(RECORDS, machine + ".zip")
    files = {}
    if os.path.exists(path):
        with zipfile.ZipFile(path) as old:
            files = {name: old.read(name) for name in old.namelist()}
    name, run = f"{day}-{machine}", 1
    while any(each.startswith(name + "/") for each in files):
        run += 1
        name = f"{day}-{machine}-run{run}"
    for at, _, inside in os.walk(folder):
        for each in inside:
            path_of = os.path.join(at, each)
            within = f"{name}/{os.path.relpath(path_of, folder)}"
            with open(path_of, "rb") as file:
                data = file.read()
            # An archive compresses better what is not compressed yet.
            files[within.removesuffix(".gz")] = gzip.decompress(data) if within.endswith(".gz") else data
    if f"{name}/about.txt" not in files:
        sys.exit(f"{folder}/about.txt is missing: it needs the lines `commit: …`, `what: …` and `command: …`")
    with zipfile.ZipFile(path + ".new", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as new:
        for each in sorted(files):
            entry = zipfile.ZipInfo(each, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            new.writestr(entry, files[each], zipfile.ZIP_DEFLATED, 9)
    os.replace(path + ".new", path)
    print(f"{os.path.relpath(path)} holds {name}; `bench/records.py write` brings the tables up to date, then {folder} may go")


def index():
    """What each record is: one row a folder."""
    yield "| record | archive | commit | what | command |"
    yield "| --- | --- | --- | --- | --- |"
    rows = []
    for machine in machines():
        archive = Archive(machine)
        for folder in archive.folders():
            about = archive.about(folder)
            rows.append((folder, f"| `{folder}` | `{machine}.zip` | {about['commit']} | {about['what']} | {about['command']} |"))
    yield from (row for _, row in sorted(rows))


def best(report):
    return table.best([row for row in report["rows"] if row["outcome"] == "timed" and not row["forward_only"]])


def ratios(machine, threads=2):
    """The best peer's time over ours, by step, storage and dropout: all records of the machine."""
    found = {}
    for _, report in Archive(machine).comparisons():
        peer = best(report)
        if peer and report["threads"] == threads:
            for number, (recipe, sizes, _) in enumerate(STEPS):
                if report["recipe"] == recipe and all(report["sizes"].get(dim) == size for dim, size in sizes.items()):
                    found.setdefault((number, stored(report), report["dropout"]), []).append(peer["ratio"]["median"])
    return found


def stored(report):
    """Records before 2026-11-26 do not name the type of weights; it was f32."""
    return table.stored(report)


def span(values):
    if not values:
        return "–"
    least, most = f"{min(values):.2f}", f"{max(values):.2f}"
    return least if least == most else f"{least}–{most}"


def summary():
    """One row a step: with and without dropout, for each machine."""
    yield "| step, forward and backward | stored in | " + " | ".join(heading for *_, heading in CORES) + " |"
    yield "| --- | --- |" + " --- |" * len(CORES)
    each = [ratios(machine) for machine, *_ in CORES]
    for type_ in STORED:
        for number, (*_, title) in enumerate(STEPS):
            cells = [[span(found.get((number, type_, drops), [])) for drops in (True, False)] for found in each]
            if any(cell != ["–", "–"] for cell in cells):
                yield f"| {title} | {type_} | " + " | ".join("" if c == ["–", "–"] else " / ".join(c) for c in cells) + " |"


def comparisons(machine):
    """Every record of a machine, in the columns of `bench/peers/table.py`, with its folder."""
    head, rule = table.HEAD.splitlines()
    yield head.rstrip() + " record |"
    yield rule + " --- |"
    for folder, report in Archive(machine).comparisons():
        yield f"{table.line(report)} {folder} |"


def gpu():
    """One layer on one GPU: ours, then the peers of the same run, from the fastest on."""
    archive = Archive(GPU)
    for folder in archive.folders():
        names = set(archive.names)
        yield f"`{folder}`, commit {archive.about(folder)['commit']}:"
        yield ""
        yield "| step, forward and backward | by | ms |"
        yield "| --- | --- | --: |"
        for part, title in (("layer", "BERT-large layer, b=8, j=512"), ("mha", "attention, b=8, j=512")):
            if f"{folder}/{part}/times.json" in names:
                ours = json.loads(archive.text(f"{folder}/{part}/times.json"))
                yield f"| {title} | Memlet, `{ours['name']}` | {ours['step_ms']:.3f} |"
        peers = [json.loads(line) for line in archive.text(f"{folder}/peers.jsonl").splitlines()]
        for peer in sorted((p for p in peers if "step_ms" in p), key=lambda p: (p["batch"], p["step_ms"])):
            yield f"| BERT-large layer, b={peer['batch']}, j={peer['length']} | {peer['variant']} | {peer['step_ms']:.3f} |"
        yield ""
        for peer in peers:
            if "error" in peer:
                yield f"- Not timed: {peer['variant']}{', b=%d' % peer['batch'] if 'batch' in peer else ''}: {peer['error']}."
        yield ""


def blocks():
    """Each table between markers: file, name of the block, lines."""
    yield "bench/records/README.md", "index", index()
    yield "README.md", "summary", summary()
    yield "docs/results/README.md", "summary", summary()
    for machine, *_ in CORES:
        yield f"docs/results/{machine}.md", "comparisons", comparisons(machine)
    yield f"docs/results/{GPU}.md", "gpu", gpu()


def write(check):
    stale = []
    for path, name, lines in blocks():
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        begin, end = f"<!-- begin {name}: bench/records.py write -->\n", f"<!-- end {name} -->"
        if begin not in text or end not in text:
            sys.exit(f"{path} lacks the markers of its table: {begin.strip()} and {end}")
        before, rest = text.split(begin, 1)
        made = before + begin + "\n".join(lines).rstrip() + "\n" + end + rest.split(end, 1)[1]
        if made != text:
            stale.append(path)
            if not check:
                with open(os.path.join(ROOT, path), "w", encoding="utf-8") as file:
                    file.write(made)
    if check and stale:
        sys.exit(f"out of date: {', '.join(stale)}; run bench/records.py write and look at the difference")
    print("tables are up to date" if not stale else f"written: {', '.join(stale)}")


def main(command=None, *rest):
    if command == "unpack" and len(rest) <= 1:
        unpack(rest[0] if rest else os.path.join(ROOT, "target", "records"))
    elif command == "pack" and 1 <= len(rest) <= 2:
        pack(rest[0], rest[1] if len(rest) > 1 else None)
    elif command in ("write", "check") and not rest:
        write(command == "check")
    else:
        print(__doc__, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(*sys.argv[1:])
