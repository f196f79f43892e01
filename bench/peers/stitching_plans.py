"""Plans of fusion of recipes: their candidates, what they save, and what the greedy plan saves on the same scores, in Markdown and JSON.

    stitching_plans.py FOLDER MEMLET RECIPE…

Plans are made by `memlet analyze --stitch`; sums are over the states and loops of a recipe, which are planned apart. Nothing is timed.
"""
import json
import os
import subprocess
import sys

HEADS = ["recipe", "units", "candidates", "kernels", "saves, µs", "over greedy", "over greedy, best state", "proven", "s"]


def row(memlet, recipe):
    done = subprocess.run([memlet, "analyze", recipe, "--stitch", "--json"], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{recipe}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}")
    found = json.loads(done.stdout)
    states = [state for state in found["states"] if state["candidates"]["kept"]]
    total = lambda key: sum(state[key] for state in states)
    over = lambda state: state["saved_ps"] / max(state["greedy_ps"], 1) - 1
    return {
        "recipe": os.path.basename(recipe).removesuffix(".yaml"), "units": total("units"), "kernels": total("kernels"),
        "candidates": sum(state["candidates"]["kept"] for state in states), "saved_us": total("saved_ps") / 1e6,
        "over_greedy": total("saved_ps") / max(total("greedy_ps"), 1) - 1, "over_greedy_best": max(map(over, states), default=0.0),
        "proven": all(state["proven"] for state in states), "seconds": found["seconds"], "scores": found["scores"],
    }


def main():
    folder, memlet, recipes = sys.argv[1], sys.argv[2], sys.argv[3:]
    rows = []
    for recipe in recipes:
        try:
            rows.append(row(memlet, recipe))
        except RuntimeError as error:
            print(error, file=sys.stderr)
    lines = ["| " + " | ".join(HEADS) + " |", "| --- |" + " --: |" * (len(HEADS) - 1)]
    for r in rows:
        cells = [r["recipe"], f"{r['units']:,}", f"{r['candidates']:,}", f"{r['kernels']:,}", f"{r['saved_us']:,.4g}"]
        cells += [f"{100 * r[key]:.1f}%" for key in ("over_greedy", "over_greedy_best")]
        cells += ["yes" if r["proven"] else "no", f"{r['seconds']:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    if rows:
        text += f"\nScores: {rows[0]['scores']}.\n"
    print(text)
    json.dump({"rows": rows}, open(f"{folder}/plans.json", "w"), indent=1)
    open(f"{folder}/plans.md", "w").write(text)


if __name__ == "__main__":
    main()
