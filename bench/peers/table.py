"""One table of many comparisons, in Markdown.

    table.py RECORD.json…

A record is what `memlet compare --record` writes. The best peer is the fastest of those that do the whole step and agree with ours.
"""
import json
import os
import sys

HEAD = """\
| model | stored in | dropout | threads | ours, ms | best peer | its ms | ÷ ours (95%) | peak f32 reached | forward: ONNX Runtime ÷ ours (95%) | \
tensors ÷ eager's | without given | others, cores |
| --- | --- | --- | --: | --: | --- | --: | --: | --: | --: | --: | --: | --: |"""

NOTES = """\
- *÷ ours*: the median over rounds of the peer's time over ours just before it, and its 95% interval. Forward and backward,
  conversions from and to the recipe's order included in ours.
- *peak*: flop of the contractions alone, each counted once, over the time of our whole step, as a share of what the vector
  units did in f32 in the same run.
- *forward*: dropout off on both sides. Ours is the forward pass of a training step and keeps what the backward pass needs.
- *tensors*: bytes of tensors alive at once in our step over those in PyTorch's eager step with weights in the same type; then without
  input, parameters and upstream gradient on both sides.
- *others*: processors that others kept busy while ours ran. Above 0.1 the machine was not quiet.
"""


def interval(ratio):
    return f"{ratio['median']:.3f} ({ratio['interval']['lower']:.3f}–{ratio['interval']['upper']:.3f})"


def best(rows):
    return min(rows, key=lambda row: row["ratio"]["median"], default=None)


def stored(report):
    """The type of a report's tensors. Records before 2026-11-26 do not name the type of weights; it was f32."""
    weights = report.get("weights", "f32")
    return report["dtype"] if report["dtype"] == weights else f"{report['dtype']}, weights {weights}"


def alike(report, row):
    """Whether a peer stores its weights in the same type as ours."""
    return ("bf16" if row["precision"] == "bf16-native" else "f32") == report.get("weights", "f32")


def weighed_alike(reports):
    """The best peer with weights in the same type as ours, where another peer is the best of all."""
    for report in reports:
        timed = [row for row in report["rows"] if row["outcome"] == "timed" and not row["forward_only"]]
        first, equal = best(timed), best([row for row in timed if alike(report, row)])
        if equal and equal is not first:
            dropout = "with" if report["dropout"] else "without"
            yield (
                f"- With weights in {report.get('weights', 'f32')}, as ours, {report['recipe']}, {dropout} dropout, {report['threads']} threads: "
                f"{equal['variant']}, {equal['precision']} ÷ ours {interval(equal['ratio'])}"
            )


def line(report):
    timed = [row for row in report["rows"] if row["outcome"] == "timed"]
    whole, forward = (best([r for r in timed if r["forward_only"] == only]) for only in (False, True))
    ours, memory = report["ours"], report["memory"]
    eager = next((r["memory"] for r in report["rows"] if r["variant"] == "eager" and alike(report, r) and r.get("memory")), None)
    share = ours and report["peak"] and report["gigaflop"] / (ours["step_ms"] / 1e3) / report["peak"]
    beyond = lambda m: m["peak_bytes"] - m["given_bytes"]
    shape = ", ".join(f"{dim.lower()}={report['sizes'][dim]}" for dim in sorted(report["sizes"]))
    cells = [
        f"{report['recipe']} ({shape})", stored(report), "on" if report["dropout"] else "off", report["threads"],
        ours and f"{ours['step_ms']:.1f}",
        whole and f"{whole['variant']}, {whole['precision']}", whole and f"{whole['medians']['step_ms']:.1f}",
        whole and interval(whole["ratio"]), share and f"{share:.1%}",
        forward and f"{forward['variant']}: {interval(forward['ratio'])}",
        eager and f"{memory['peak_bytes'] / eager['peak_bytes']:.3f}", eager and f"{beyond(memory) / beyond(eager):.3f}",
        None if report["ours_others"] is None else f"{report['ours_others']:.2f}",
    ]
    return "| " + " | ".join("–" if cell is None else str(cell) for cell in cells) + " |"


def faster(reports):
    """Our time in f32 over that in bf16, where both were timed. The times are of two runs, so there is no interval."""
    key = lambda r: (r["recipe"], json.dumps(r["sizes"], sort_keys=True), r["dropout"], r["threads"])
    # Of several plans the fastest: the last one stays.
    wide = {key(r): r for r in sorted((r for r in reports if r["dtype"] == "f32" and r["ours"]), key=lambda r: -r["ours"]["step_ms"])}
    for narrow in reports:
        other = wide.get(key(narrow))
        if stored(narrow) == "bf16, weights f32" and narrow["ours"] and other:
            ratio = other["ours"]["step_ms"] / narrow["ours"]["step_ms"]
            dropout = "with" if narrow["dropout"] else "without"
            yield f"- Our f32 ÷ our bf16, {narrow['recipe']}, {dropout} dropout, {narrow['threads']} threads: {ratio:.2f}"


def main(paths):
    reports = []
    for path in paths:
        with open(path) as file:
            reports += [dict(report, path=os.path.basename(path)) for report in json.load(file)]
    if not reports:
        sys.exit("there is no record")
    machines = sorted({report["machine"] for report in reports})
    print("# Beside other frameworks\n")
    print("\n".join(machines) + "\n")
    print(HEAD)
    for report in reports:
        print(line(report))
    print()
    for text in [*weighed_alike(reports), *faster(reports)]:
        print(text)
    print(NOTES)
    absent = [(r, row) for r in reports for row in r["rows"] if row["outcome"] != "timed"]
    for report, row in absent:
        why = row.get("why") or "its results differ from ours"
        print(f"- Not timed in {report['path']}: {row['variant']}, {row['precision']}: {why.splitlines()[0][:200]}")
    print("\nThe plans, in this order:\n")
    for report in reports:
        print(f"- `{report['origin']}`")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1:])
