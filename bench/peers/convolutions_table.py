"""A table of the records of bench/convolutions.sh.

    convolutions_table.py RECORD.json…

Times are medians; a ratio is the median over rounds of a peer's time over ours, timed just before it, with a 95% interval.
"""
import json
import statistics
import sys

ORDER = ["a1", "a2", "b1", "c1", "squeezenet_1.0", "squeezenet_1.1", "mobilenet_v1", "resnet_18", "resnet_50", "googlenet", "inception_v3", "vgg_19"]


def place(report):
    name = report["recipe"].removeprefix("cross_layer_")
    return -report["threads"], ORDER.index(name) if name in ORDER else len(ORDER)


def cell(row):
    """A peer's time, and its time over ours."""
    if row is None or "ratio" not in row:
        return row["outcome"] if row else "–", "–"
    low, high = row["ratio"]["interval"]["lower"], row["ratio"]["interval"]["upper"]
    return f"{row['medians']['forward_ms']:.3f}", f"{row['ratio']['median']:.2f} ({low:.2f}–{high:.2f})"


def main():
    reports = sorted((report for file in sys.argv[1:] for report in json.load(open(file))), key=place)
    print("| recipe | threads | Gflop | ours, ms | Gflop/s | ONNX Runtime, ms | ÷ ours (95%) | OpenVINO, ms | ÷ ours (95%) | best ÷ ours |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for report in reports:
        rows = {row["variant"]: row for row in report["rows"]}
        ours = [sample["forward_ms"] for row in report["rows"] for sample in row.get("ours", [])]
        (onnx, onnx_ratio), (vino, vino_ratio) = cell(rows.get("onnx")), cell(rows.get("openvino"))
        ratios = [row["ratio"]["median"] for row in report["rows"] if "ratio" in row]
        shown, rate = "–", "–"
        if ours:
            median = statistics.median(ours)
            shown, rate = f"{median:.3f}", f"{report['gigaflop'] / median * 1e3:.0f}"
        best = f"{min(ratios):.2f}" if ratios else "–"
        cells = [report["recipe"], str(report["threads"]), f"{report['gigaflop']:.4f}", shown, rate, onnx, onnx_ratio, vino, vino_ratio, best]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
