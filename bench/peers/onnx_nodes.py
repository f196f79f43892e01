"""The layers of recipes against the node tests of ONNX: convolutions, pooling, Concat, Pad, BatchNormalization, LRN, Upsample.

    onnx_nodes.py MEMLET [--verbose]

The Python package `onnx` computes the tests' tensors; nothing of them is stored here. Each test becomes a recipe of one layer, which
`MEMLET interpret` runs in f64. The last lines say how many agree, and for each that has no recipe why. The exit code is 1 where one
disagrees.
"""
import collections
import pathlib
import subprocess
import sys
import tempfile
import warnings

import numpy as np
import onnx
from onnx import helper
from onnx.backend.test.case.node import collect_testcases

OPERATORS = [
    "Conv", "ConvTranspose", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool", "Concat", "Pad", "BatchNormalization", "LRN",
    "Upsample",
]
# The tests' tensors are f32.
TOLERANCE = 2e-5
# Tests whose results were typed in: the mean 2.5564 / 9 = 0.28404 stands as 0.2841.
TYPED_IN = {"test_averagepool_2d_ceil_last_window_starts_on_pad": 1e-4}


class NoRecipe(Exception):
    """What the layers of recipes do not have."""


class Recipe:
    def __init__(self):
        self.dims, self.inputs, self.tensors, self.steps, self.outputs = {}, {}, {}, [], []

    def tensor(self, name, values, dims):
        """Declares a tensor and its dims, whose sizes are those of its values."""
        for dim, size in zip(dims, values.shape):
            assert self.dims.setdefault(dim, size) == size, (dim, size)
        self.inputs[name], self.tensors[name] = dims, values.astype(np.float64)

    def result(self, name, shape, dims):
        for dim, size in zip(dims, shape):
            assert self.dims.setdefault(dim, size) == size, (dim, size)
        self.outputs.append(name)
        return f"{name}[{','.join(dims)}]"

    def text(self):
        lines = ["model: node", f"dims: {{{', '.join(f'{dim}: {size}' for dim, size in self.dims.items())}}}", "dtype: f64", "inputs:"]
        lines += [f"  {name}: [{', '.join(dims)}]" for name, dims in self.inputs.items()]
        lines += ["steps:"] + [f'  - "{step}"' for step in self.steps] + [f"outputs: [{', '.join(self.outputs)}]"]
        return "\n".join(lines) + "\n"


def named(letter, count):
    return [f"{letter}{n}" for n in range(count)]


def listed(values):
    return f"[{', '.join(str(int(v)) for v in values)}]"


def windows(options, shape, kernel, ceil=False):
    """Strides, dilations and paddings of a node over the last dims of `shape`, as options of a layer."""
    count = len(kernel)
    strides, dilations = options.get("strides", [1] * count), options.get("dilations", [1] * count)
    pads = options.get("pads", [0] * 2 * count)
    before, after = list(pads[:count]), list(pads[count:])
    mode = options.get("auto_pad", b"NOTSET")
    mode = mode.decode() if isinstance(mode, bytes) else mode
    if mode.startswith("SAME"):
        for n, size in enumerate(shape[-count:]):
            extent = (kernel[n] - 1) * dilations[n] + 1
            total = max((-(-size // strides[n]) - 1) * strides[n] + extent - size, 0)
            before[n] = total // 2 if mode == "SAME_UPPER" else total - total // 2
            after[n] = total - before[n]
    elif mode == "VALID":
        before, after = [0] * count, [0] * count
    return f"stride: {listed(strides)}, dilation: {listed(dilations)}, pad: {listed(before)}, pad_end: {listed(after)}"


def conv(options, given, expected):
    x, k = given[:2]
    count, groups = x.ndim - 2, options.get("group", 1)
    recipe = Recipe()
    spatial, within, places = named("h", count), named("r", count), named("p", count)
    recipe.tensor("x", x, ["n", "c", *spatial])
    moved = windows(options, x.shape, k.shape[2:])
    shape = expected[0].shape
    if groups == 1:
        recipe.tensor("k", k, ["o", "c", *within])
        left, bias, call = ["n", "o", *places], ["o"], f"conv(x, k, {moved})"
    elif k.shape[1] == 1 and groups == k.shape[0]:
        recipe.tensor("k", k[:, 0], ["c", *within])
        left, bias, call = ["n", "c", *places], ["c"], f"conv(x, k, {moved})"
    else:
        own = k.reshape(groups, k.shape[0] // groups, *k.shape[1:])
        recipe.tensor("k", own, ["f", "e", "i", *within])
        shape = (shape[0], groups, own.shape[1], *shape[2:])
        left, bias, call = ["n", "f", "e", *places], ["f", "e"], f"conv(x, k, {moved}, groups: f)"
    if len(given) > 2:
        recipe.tensor("b", given[2].reshape([recipe.dims[d] for d in bias]) if bias[0] in recipe.dims else given[2], bias)
        call += f" + b[{','.join(bias)}]"
    recipe.steps = [f"{recipe.result('y', shape, left)} = {call}"]
    return recipe


def conv_transpose(options, given, expected):
    x, k = given[:2]
    count = x.ndim - 2
    if options.get("group", 1) != 1 or any(d != 1 for d in options.get("dilations", [1])):
        raise NoRecipe("conv_transpose has no groups and no dilation")
    strides = options.get("strides", [1] * count)
    pads = list(options.get("pads", [0] * 2 * count)[:count])
    mode = options.get("auto_pad", b"NOTSET").decode() if isinstance(options.get("auto_pad"), bytes) else options.get("auto_pad", "NOTSET")
    if "output_shape" in options or mode.startswith("SAME"):
        extra = options.get("output_padding", [0] * count)
        for n in range(count):
            total = strides[n] * (x.shape[n + 2] - 1) + extra[n] + k.shape[n + 2] - expected[0].shape[n + 2]
            pads[n] = total // 2 if mode != "SAME_LOWER" else total - total // 2
            if mode == "NOTSET":
                pads[n] = total - total // 2
        if min(pads) < 0:
            raise NoRecipe("the result has more places in front than kernels reach")
    recipe = Recipe()
    recipe.tensor("x", x, ["n", "c", *named("h", count)])
    recipe.tensor("k", k, ["c", "o", *named("r", count)])
    left = recipe.result("y", expected[0].shape, ["n", "o", *named("p", count)])
    call = f"conv_transpose(x, k, stride: {listed(strides)}, pad: {listed(pads)})"
    if len(given) > 2:
        recipe.tensor("b", given[2], ["o"])
        call += " + b[o]"
    recipe.steps = [f"{left} = {call}"]
    return recipe


def pool(kind):
    def made(options, given, expected):
        if len(expected) > 1:
            raise NoRecipe("maxpool has no second result of places")
        kernel, x = options["kernel_shape"], given[0]
        recipe = Recipe()
        recipe.tensor("x", x, ["n", "c", *named("h", len(kernel))])
        within = named("r", len(kernel))
        recipe.dims.update(zip(within, kernel))
        moved = windows(options, x.shape, kernel)
        counted = ", count_pad: 1" if kind == "avgpool" and options.get("count_include_pad", 0) else ""
        left = recipe.result("y", expected[0].shape, ["n", "c", *named("p", len(kernel))])
        recipe.steps = [f"{left} = {kind}(x, over: [{', '.join(within)}], {moved}{counted})"]
        return recipe

    return made


def over_all(kind):
    def made(options, given, expected):
        recipe = Recipe()
        spatial = named("h", given[0].ndim - 2)
        recipe.tensor("x", given[0], ["n", "c", *spatial])
        call = "globalpool(x)" if kind == "mean" else f"max(x, over: [{', '.join(spatial)}])"
        recipe.steps = [f"{recipe.result('y', given[0].shape[:2], ['n', 'c'])} = {call}"]
        return recipe

    return made


def concat(options, given, expected):
    axis = options["axis"] % given[0].ndim
    recipe = Recipe()
    for n, x in enumerate(given):
        recipe.tensor(f"x{n}", x, [f"a{n}" if at == axis else f"d{at}" for at in range(x.ndim)])
    dims = [f"o{at}" if at == axis else f"d{at}" for at in range(given[0].ndim)]
    left = recipe.result("y", expected[0].shape, dims)
    recipe.steps = [f"{left} = concat({', '.join(recipe.inputs)}, along: o{axis})"]
    return recipe


def pad(options, given, expected):
    mode = options.get("mode", b"constant")
    mode = mode.decode() if isinstance(mode, bytes) else mode
    if mode != "constant":
        raise NoRecipe(f"pad has no mode {mode}")
    x, pads = given[0], [int(v) for v in given[1]]
    axes = [int(v) % x.ndim for v in given[3]] if len(given) > 3 else list(range(x.ndim))
    value = float(given[2].reshape(-1)[0]) if len(given) > 2 and given[2].size else 0.0
    recipe = Recipe()
    recipe.tensor("x", x, named("h", x.ndim))
    left = recipe.result("y", expected[0].shape, named("p", x.ndim))
    # Dims that are left alone have other names on the left, too, and nothing before them.
    before = [0] * x.ndim
    for axis, amount in zip(axes, pads):
        before[axis] = amount
    recipe.steps = [f"{left} = pad(x, along: [{', '.join(named('h', x.ndim))}], before: {listed(before)}, value: {value!r})"]
    return recipe


def batch_normalization(options, given, expected):
    x, scale, shift, mean, variance = given
    eps = float(options.get("epsilon", 1e-5))
    recipe = Recipe()
    spatial = named("h", x.ndim - 2)
    recipe.tensor("x", x, ["n", "c", *spatial])
    for name, values in (("g", scale), ("s", shift), ("m", mean), ("v", variance)):
        recipe.tensor(name, values, ["c"])
    left = recipe.result("y", expected[0].shape, ["n", "c", *spatial])
    if not options.get("training_mode", 0):
        recipe.steps = [f"{left} = g[c] * (x - m[c]) * rsqrt(v[c] + {eps!r}) + s[c]"]
        return recipe
    over = f"[{', '.join(['n', *spatial])}]"
    momentum = float(options.get("momentum", 0.9))
    recipe.outputs += ["m2", "v2"]
    recipe.steps = [
        f"{left} = batchnorm(x, over: {over}, scale: g[c], shift: s[c], eps: {eps!r})",
        f"a[c] = mean(x, over: {over})",
        f"b[c] = mean(pow(x - a, 2), over: {over})",
        f"m2[c] = {momentum!r} * m + (1 - {momentum!r}) * a",
        f"v2[c] = {momentum!r} * v + (1 - {momentum!r}) * b",
    ]
    return recipe


def response(options, given, expected):
    size, alpha, beta, bias = options["size"], options.get("alpha", 1e-4), options.get("beta", 0.75), options.get("bias", 1.0)
    recipe = Recipe()
    recipe.tensor("x", given[0], ["n", "c", *named("h", given[0].ndim - 2)])
    dims = ["n", "c", *named("h", given[0].ndim - 2)]
    recipe.dims["t"] = size
    shifted = ",".join(["n", f"c+t-{(size - 1) // 2}", *dims[2:]])
    left = recipe.result("y", expected[0].shape, dims)
    squares = f"a[{','.join(dims)}] = sum(pow(x[{shifted} else 0], 2), over: t)"
    recipe.steps = [squares, f"{left} = x * pow({float(bias)!r} + {float(alpha / size)!r} * a, -{float(beta)!r})"]
    return recipe


def upsample(options, given, expected):
    scales = [float(v) for v in given[1]]
    if options.get("mode", b"nearest") not in (b"nearest", "nearest") or any(s != int(s) for s in scales):
        raise NoRecipe("upsample repeats elements a whole number of times")
    recipe = Recipe()
    own = named("h", given[0].ndim)
    recipe.tensor("x", given[0], own)
    left = recipe.result("y", expected[0].shape, named("p", given[0].ndim))
    recipe.steps = [f"{left} = upsample(x, along: [{', '.join(own)}], by: {listed(scales)})"]
    return recipe


MADE = {
    "Conv": conv, "ConvTranspose": conv_transpose, "MaxPool": pool("maxpool"), "AveragePool": pool("avgpool"),
    "GlobalAveragePool": over_all("mean"), "GlobalMaxPool": over_all("max"), "Concat": concat, "Pad": pad,
    "BatchNormalization": batch_normalization, "LRN": response, "Upsample": upsample,
}


def verdict(memlet, folder, case):
    """`agrees`, `disagrees: …` or `no recipe: …`."""
    [node] = case.model.graph.node
    options = {a.name: helper.get_attribute_value(a) for a in node.attribute}
    inputs, outputs = case.data_sets[0]
    given = iter(inputs)
    given = [np.asarray(next(given)) if name else np.zeros(0) for name in node.input]
    outputs = [np.asarray(value) for value in outputs]
    try:
        recipe = MADE[node.op_type](options, given, outputs)
    except NoRecipe as why:
        return f"no recipe: {why}"
    (folder / "node.yaml").write_text(recipe.text())
    np.savez(folder / "given.npz", **recipe.tensors)
    command = [memlet, "interpret", folder / "node.yaml", "--inputs", folder / "given.npz", "--outputs", folder / "found.npz"]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        return f"disagrees: {(run.stderr or run.stdout).strip().splitlines()[0]}"
    found = np.load(folder / "found.npz")
    for name, expected in zip(recipe.outputs, outputs):
        own = found[name].reshape(expected.shape)
        tolerance = TYPED_IN.get(case.name, TOLERANCE)
        if not np.allclose(own, expected, rtol=tolerance, atol=tolerance):
            return f"disagrees: `{name}` by {np.abs(own - expected).max():.3g}"
    return "agrees"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    memlet, verbose = sys.argv[1], "--verbose" in sys.argv
    counts, reasons = collections.Counter(), []
    # Tests of other operators make infinities.
    warnings.simplefilter("ignore", RuntimeWarning)
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        # Pad's tests are only made for all operators together, as functions with subgraphs are.
        cases = [case for case in collect_testcases(None) if len(case.model.graph.node) == 1 and case.model.graph.node[0].op_type in OPERATORS]
        for case in cases:
            operator = case.model.graph.node[0].op_type
            said = verdict(memlet, folder, case)
            counts[operator, said.split(":")[0]] += 1
            if said != "agrees":
                reasons.append(f"{case.name}: {said}")
            elif verbose:
                print(f"{case.name}: agrees")
    print("\n".join(reasons))
    for operator in OPERATORS:
        agree, disagree, none = (counts[operator, kind] for kind in ("agrees", "disagrees", "no recipe"))
        print(f"{operator:20s} {agree:3d} agree, {disagree} disagree, {none} have no recipe")
    total = lambda kind: sum(count for (_, said), count in counts.items() if said == kind)
    print(f"all {total('agrees')} agree, {total('disagrees')} disagree, {total('no recipe')} have no recipe (onnx {onnx.__version__})")
    sys.exit(total("disagrees") > 0)


if __name__ == "__main__":
    main()
