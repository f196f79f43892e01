"""The backend node tests of ONNX through `memlet import` and `memlet interpret`.

    onnx_nodes.py MEMLET [--only TEXT] [--verbose] [--json FILE]

The Python package `onnx` computes the tests' tensors; nothing of them is stored here. Counted as *whole* are all node tests; *of f32* are
those whose tensors are f32, f64, whole numbers or truth values, without sequences, strings and maps; *in scope* are those of f32 all of
whose operators the import names as supported. Inputs that say shapes, axes or places become initializers with the test's value where the
import asks for them, as models have them. The exit code is 1 where fewer than 90% of those in scope pass, or fewer than 500.
"""
import argparse
import collections
import concurrent.futures
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnx.backend.test.case.node import collect_testcases

F32 = {"FLOAT", "DOUBLE", "INT64", "INT32", "INT16", "INT8", "UINT8", "UINT16", "UINT32", "UINT64", "BOOL"}
# Of f32 results, as the suite itself compares; recipes compute in f64.
RELATIVE, ABSOLUTE = 1e-3, 1e-5
ASKS = re.compile(r"the value of `[^`]*` must be known.*")


def types(graph):
    kinds = set()
    for value in [*graph.input, *graph.output]:
        kind = value.type.WhichOneof("value")
        kinds.add(TensorProto.DataType.Name(value.type.tensor_type.elem_type) if kind == "tensor_type" else kind)
    return kinds


def operators(graph):
    found = set()
    for node in graph.node:
        found.add((f"{node.domain}." if node.domain not in ("", "ai.onnx") else "") + node.op_type)
        for attribute in node.attribute:
            if attribute.HasField("g"):
                found |= operators(attribute.g)
    return found


def array(value):
    return numpy_helper.to_array(value) if isinstance(value, TensorProto) else np.asarray(value)


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    return done.returncode, done.stdout, done.stderr


def verdict(memlet, case, folder):
    model, (inputs, outputs) = case.model, case.data_sets[0]
    names = [value.name for value in model.graph.input if value.name not in {t.name for t in model.graph.initializer}]
    given = {name: array(value) for name, value in zip(names, inputs)}
    # Tests leave sizes open that the data have.
    for value in model.graph.input:
        if value.name in given:
            shape = value.type.tensor_type.shape
            del shape.dim[:]
            for size in given[value.name].shape:
                shape.dim.add().dim_value = size
            value.type.tensor_type.shape.SetInParent()
    file = folder / "model.onnx"
    while True:
        file.write_bytes(model.SerializeToString())
        code, out, err = run(memlet, "import", file, "--out", folder, "--json")
        asked = [name for line in ASKS.findall(err) for name in re.findall("`([^`]*)`", line) if name in given]
        if code == 0 or not asked:
            break
        for name in asked:
            if name in given:
                model.graph.initializer.append(numpy_helper.from_array(given.pop(name), name))
                kept = [value for value in model.graph.input if value.name != name]
                del model.graph.input[:]
                model.graph.input.extend(kept)
    if code != 0:
        return ("refused" if code == 2 else "failed"), err.strip().splitlines()[0].replace(str(file) + ": ", "")
    said = json.loads(out)
    np.savez(folder / "given.npz", **{said["inputs"][name]: value for name, value in given.items() if name in said["inputs"]})
    command = [memlet, "interpret", folder / "recipe.yaml", "--dtype", "f64", "--weights", folder / "weights.safetensors"]
    code, out, err = run(*command, "--inputs", folder / "given.npz", "--outputs", folder / "found.npz")
    if code != 0:
        return "failed", " ".join(err.strip().splitlines())[:300]
    found = np.load(folder / "found.npz")
    for value, expected in zip(model.graph.output, outputs):
        own, expected = found[said["outputs"][value.name]], array(expected)
        if own.shape != expected.shape:
            return "differs", f"`{value.name}` has the shape {own.shape}, not {expected.shape}"
        if expected.dtype.kind in "iub":
            close = np.array_equal(own, expected.astype(np.float64))
        else:
            close = np.allclose(own.astype(expected.dtype), expected, rtol=RELATIVE, atol=ABSOLUTE, equal_nan=True)
        if not close:
            with np.errstate(all="ignore"):
                return "differs", f"`{value.name}` by {np.nanmax(np.abs(own - expected.astype(np.float64))):.3g}"
    return "passes", ""


def judged(task):
    memlet, case = task
    with tempfile.TemporaryDirectory() as folder:
        try:
            return verdict(memlet, case, pathlib.Path(folder))
        except subprocess.TimeoutExpired:
            return "failed", "it takes more than two minutes"


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("memlet")
    arguments.add_argument("--only", default="", help="tests whose name holds this")
    arguments.add_argument("--verbose", action="store_true", help="name the tests that pass, too")
    arguments.add_argument("--json", help="write verdicts there")
    arguments = arguments.parse_args()
    memlet = arguments.memlet
    # Tests of some operators make infinities on purpose.
    warnings.simplefilter("ignore")
    supported = set(run(memlet, "import", "--operators")[1].split())
    cases = [case for case in collect_testcases(None) if arguments.only in case.name]
    known = {case.name: (types(case.model.graph), operators(case.model.graph)) for case in cases}
    of_f32 = [case for case in cases if known[case.name][0] <= F32]
    scope = [case for case in of_f32 if known[case.name][1] <= supported]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        verdicts = list(pool.map(judged, [(memlet, case) for case in scope]))
    counts = collections.Counter(kind for kind, _ in verdicts)
    for case, (kind, why) in sorted(zip(scope, verdicts), key=lambda row: (row[1][0], row[0].name)):
        if kind != "passes" or arguments.verbose:
            print(f"{kind:8s} {case.name}: {why}")
    missing = collections.Counter(name for case in of_f32 for name in known[case.name][1] - supported)
    print("not supported, with the tests that need it:", ", ".join(f"{name} {count}" for name, count in missing.most_common()))
    share = counts["passes"] / max(len(scope), 1)
    print(f"{counts['passes']} pass of {len(scope)} in scope ({share:.1%}), of {len(of_f32)} of f32, of {len(cases)} whole; onnx {onnx.__version__}")
    if arguments.json:
        rows = {case.name: {"verdict": kind, "why": why} for case, (kind, why) in zip(scope, verdicts)}
        pathlib.Path(arguments.json).write_text(json.dumps(rows, indent=1))
    sys.exit(not arguments.only and (share < 0.9 or counts["passes"] < 500))


if __name__ == "__main__":
    main()
