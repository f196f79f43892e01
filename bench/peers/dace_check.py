"""Runs SDFGs that `memlet export` wrote in DaCe, and compares their results with those of Memlet's interpreter.

    dace_check.py FILE.sdfg TENSORS.npz draw          draws what the program is given, at the sizes that the file names
    dace_check.py FILE.sdfg TENSORS.npz run WANT.npz  loads, validates and runs it; prints one JSON object
    dace_check.py ANSWER.json - cell                  such an object as cells of a table

Differences are relative to each tensor's largest element, or to a thousandth of the largest of all results where that is more: some
gradients, such as those of keys' biases, are zero but for rounding.
"""
import json
import os
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")
KINDS = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "int64": np.int64, "int32": np.int32, "int16": np.int16, "uint8": np.uint8}


def arguments(sdfg):
    """(identifier, Memlet's name, element type, shape) of all arrays that are handed over."""
    own, arrays = sdfg["memlet"], sdfg["attributes"]["_arrays"]
    sizes = {**own["sizes"], "int_floor": lambda a, b: a // b, "Min": min, "Max": max}
    for made, array in arrays.items():
        about = array["attributes"]
        if not about["transient"]:
            shape = [int(eval(size, {}, sizes)) for size in about["shape"]]
            yield made, own["names"].get(made, made), KINDS[about["dtype"]], shape


def draw(sdfg, path):
    random, found = np.random.default_rng(7), {}
    for _, name, kind, shape in arguments(sdfg):
        if name not in sdfg["memlet"]["given"]:
            continue
        low, high = sdfg["memlet"]["given"][name] or (None, None)
        if np.issubdtype(kind, np.integer):
            low, high = (0 if low is None else int(low)), (1 if high is None else int(high))
            value = random.integers(low, high + 1, shape)
        else:
            low, high = (-1.0 if low is None else max(low, -1e6)), (1.0 if high is None else min(high, 1e6))
            value = low + (high - low) * (0.05 + 0.9 * random.random(shape))
        declared = found_dims(sdfg, name, shape)
        found[name] = np.asarray(value).astype(kind).reshape(declared)
    np.savez(path, **found)


def found_dims(sdfg, name, shape):
    """Memlet's shape: a single number has none, where DaCe has one element."""
    return [] if name in sdfg["memlet"]["numbers"] else shape


def run(text, path, tensors, wanted):
    import dace

    told = {"dace": dace.__version__, "loaded": False, "valid": False, "ran": False}
    try:
        program = dace.SDFG.from_file(path)
        told["loaded"] = True
        program.validate()
        told["valid"] = True
        given, want, call = np.load(tensors), np.load(wanted), {}
        for made, name, kind, shape in arguments(text):
            call[made] = np.array(np.asarray(given[name], kind).reshape(shape), copy=True, order="C") if name in given.files else np.full(shape, 77, kind)
        program(**call, **text["memlet"]["sizes"])
        told["ran"] = True
        worst = (0.0, "")
        finite = lambda v: np.abs(v[np.isfinite(v)]).max(initial=0.0) if v.dtype.kind == "f" else 0.0
        floor = 1e-3 * max((finite(np.asarray(want[key])) for key in want.files), default=0.0)
        for made, name, _, _ in arguments(text):
            key = name.removesuffix(".new")
            if name in given.files or key not in want.files:
                continue
            a, b = call[made].astype(np.float64).ravel(), np.asarray(want[key], np.float64).ravel()
            if not np.array_equal(np.isfinite(a), np.isfinite(b)):
                worst = (float("inf"), name)
                continue
            a, b = a[np.isfinite(b)], b[np.isfinite(b)]
            error = float(np.abs(a - b).max(initial=0.0) / max(np.abs(b).max(initial=0.0), floor, 1e-30))
            worst = max(worst, (error, name))
        told["error"], told["in"] = worst
    except Exception as error:  # whatever DaCe raises is what is to be told
        lines = [line for line in str(error).splitlines() if "error" in line.lower()] or str(error).splitlines() or [""]
        told["failed"] = f"{type(error).__name__}: {lines[0][:300]}"
    print(json.dumps(told))


def cell(path):
    try:
        told = json.load(open(path))
    except ValueError:
        told = {"failed": "no answer in time"}
    if "failed" in told:
        stage = "not run" if told.get("valid") else "not valid" if told.get("loaded") else "not loaded"
        print(f" {stage}: {told['failed']} | – |", end="")
    else:
        print(f" equal | {told['error']:.1e} |" if told["error"] < 1e-9 else f" differs in {told['in']} | {told['error']:.1e} |", end="")


def main():
    path, tensors, verb = sys.argv[1:4]
    if verb == "cell":
        return cell(path)
    path, tensors = os.path.abspath(path), os.path.abspath(tensors)
    text = json.load(open(path))
    if verb == "draw":
        draw(text, tensors)
    else:
        run(text, path, tensors, os.path.abspath(sys.argv[4]))


if __name__ == "__main__":
    main()
