"""What NumPy and PyTorch make of special values: NaN, infinities, zeros, subnormal and huge numbers, ties.

Writes recipes/tests/special_values/known.json:

    python bench/peers/special_values.py > recipes/tests/special_values/known.json

Each case has steps of a recipe, the values they are given, the results of NumPy in f32 and of PyTorch in f32 and bf16, and PyTorch's
gradients of the sum of all results, or of the first result of each row where a row has several.
"""

import json
import math
import warnings

import numpy as np
import torch
from torch.nn import functional

warnings.filterwarnings("ignore")
np.seterr(all="ignore")

INF, NAN = float("inf"), float("nan")
ONE = [NAN, INF, -INF, 0.0, -0.0, 1e-40, -1e-40, 1e30, -1e30, 100.0, -100.0, 1.0, -1.0]
PAIRS = [
    (NAN, 3.0), (3.0, NAN), (INF, -INF), (INF, INF), (-INF, 2.0), (2.0, INF), (0.0, 0.0), (0.0, -0.0), (-0.0, 0.0), (0.0, 1.0),
    (0.0, 2.0), (0.0, -1.0), (1.0, 0.0), (2.0, 2.0), (1e20, 1e20), (1e-20, 1e-20), (1e30, 1e-30), (1e-40, 1e-40), (-2.0, 3.0), (-2.0, 0.5),
]
ROWS = {
    "numbers": [1.0, 2.0, 3.0, 4.0],
    "one NaN": [1.0, NAN, 3.0, 4.0],
    "only NaN": [NAN] * 4,
    "one ∞": [1.0, INF, 3.0, 4.0],
    "one −∞": [1.0, -INF, 3.0, 4.0],
    "only −∞": [-INF] * 4,
    "ties": [4.0, 1.0, 4.0, 2.0],
    "only zeros": [0.0] * 4,
    "subnormal": [1e-40, 2e-40, 3e-40, 4e-40],
    "huge": [1e38] * 4,
    "tiny and huge": [1e30, 1e-30, -1e30, 1.0],
    "constant": [0.1] * 4,
}


def f(value):
    return np.float32(value)


def erf(x):
    return np.vectorize(math.erf)(x).astype(np.float32)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def softmax(x):
    powers = np.exp(x - x.max(1, keepdims=True))
    return powers / powers.sum(1, keepdims=True)


def layernorm(eps):
    def normalized(x):
        apart = x - x.mean(1, keepdims=True)
        return apart / np.sqrt((apart * apart).mean(1, keepdims=True) + f(eps))

    return normalized


def clamped(bound):
    return lambda x: bound(x, torch.tensor(0.5, dtype=x.dtype))


ROOT = math.sqrt(2 / math.pi)
# Name, step, NumPy, PyTorch.
UNARY = [
    ("exp", "exp(x[n])", np.exp, torch.exp),
    ("log", "log(x[n])", np.log, torch.log),
    ("sqrt", "sqrt(x[n])", np.sqrt, torch.sqrt),
    ("rsqrt", "rsqrt(x[n])", lambda x: 1 / np.sqrt(x), torch.rsqrt),
    ("tanh", "tanh(x[n])", np.tanh, torch.tanh),
    ("erf", "erf(x[n])", erf, torch.erf),
    ("sigmoid", "sigmoid(x[n])", sigmoid, torch.sigmoid),
    ("abs", "abs(x[n])", np.abs, torch.abs),
    ("sin", "sin(x[n])", np.sin, torch.sin),
    ("cos", "cos(x[n])", np.cos, torch.cos),
    ("floor", "floor(x[n])", np.floor, torch.floor),
    ("relu", "relu(x[n])", lambda x: np.maximum(x, f(0)), torch.relu),
    ("gelu", "gelu(x[n])", lambda x: f(0.5) * x * (1 + erf(x / f(math.sqrt(2)))), functional.gelu),
    (
        "gelu, tanh",
        "gelu(x[n], form: tanh)",
        lambda x: f(0.5) * x * (1 + np.tanh(f(ROOT) * (x + f(0.044715) * x * x * x))),
        lambda x: functional.gelu(x, approximate="tanh"),
    ),
    ("silu", "silu(x[n])", lambda x: x * sigmoid(x), functional.silu),
    ("pow(x, 2)", "pow(x[n], 2)", lambda x: x ** f(2), lambda x: torch.pow(x, 2)),
    ("pow(x, 3)", "pow(x[n], 3)", lambda x: np.power(x, f(3)), lambda x: torch.pow(x, 3)),
    ("pow(x, 0.5)", "pow(x[n], 0.5)", lambda x: np.power(x, f(0.5)), lambda x: torch.pow(x, 0.5)),
    ("pow(x, -1)", "pow(x[n], -1)", lambda x: np.power(x, f(-1)), lambda x: torch.pow(x, -1)),
    ("1 / x", "1 / x[n]", lambda x: 1 / x, lambda x: 1 / x),
    ("x * x", "x[n] * x[n]", lambda x: x * x, lambda x: x * x),
    ("0 * x", "0 * x[n]", lambda x: f(0) * x, lambda x: 0 * x),
    ("max(x, 0.5)", "max(x[n], 0.5)", lambda x: np.maximum(x, f(0.5)), clamped(torch.maximum)),
    ("min(x, 0.5)", "min(x[n], 0.5)", lambda x: np.minimum(x, f(0.5)), clamped(torch.minimum)),
    ("clamp to [-1, 1]", "min(max(x[n], -1), 1)", lambda x: np.clip(x, f(-1), f(1)), lambda x: torch.clamp(x, -1, 1)),
    ("where(x > 0, x, 0)", "where(x[n] > 0, x[n], 0)", lambda x: np.where(x > 0, x, 0), lambda x: torch.where(x > 0, x, 0)),
]
# The same where one step makes what another one selects.
SELECTED = [
    ("sqrt(x)", "sqrt(x[n])", np.sqrt, torch.sqrt),
    ("log(x)", "log(x[n])", np.log, torch.log),
    ("rsqrt(x)", "rsqrt(x[n])", lambda x: 1 / np.sqrt(x), torch.rsqrt),
    ("1 / x", "1 / x[n]", lambda x: 1 / x, lambda x: 1 / x),
    ("pow(x, 0.5)", "pow(x[n], 0.5)", lambda x: np.power(x, f(0.5)), lambda x: torch.pow(x, 0.5)),
]
BINARY = [
    ("a + b", "a[n] + b[n]", np.add, torch.add),
    ("a - b", "a[n] - b[n]", np.subtract, torch.sub),
    ("a * b", "a[n] * b[n]", np.multiply, torch.mul),
    ("a / b", "a[n] / b[n]", np.divide, torch.div),
    ("max(a, b)", "max(a[n], b[n])", np.maximum, torch.maximum),
    ("min(a, b)", "min(a[n], b[n])", np.minimum, torch.minimum),
    ("pow(a, b)", "pow(a[n], b[n])", np.power, torch.pow),
]
REDUCED = [
    ("sum", ["z[r] = sum(x[r,k], over: k)"], lambda x: x.sum(1), lambda x: x.sum(1)),
    ("mean", ["z[r] = mean(x[r,k], over: k)"], lambda x: x.mean(1), lambda x: x.mean(1)),
    ("max", ["z[r] = max(x[r,k], over: k)"], lambda x: x.max(1), lambda x: x.amax(1)),
    ("min", ["z[r] = min(x[r,k], over: k)"], lambda x: x.min(1), lambda x: x.amin(1)),
    ("softmax", ["z[r,k] = softmax(x[r,k], over: k)"], softmax, lambda x: torch.softmax(x, 1)),
    (
        "layernorm",
        ["z[r,k] = layernorm(x[r,k], over: k)"],
        layernorm(1e-5),
        lambda x: functional.layer_norm(x, (4,), eps=1e-5),
    ),
    (
        "layernorm, eps: 1e-12",
        ["z[r,k] = layernorm(x[r,k], over: k, eps: 1e-12)"],
        layernorm(1e-12),
        lambda x: functional.layer_norm(x, (4,), eps=1e-12),
    ),
    (
        "norm",
        ["q[r] = sum(pow(x[r,k], 2), over: k)", "z[r] = sqrt(q[r])"],
        lambda x: np.sqrt((x * x).sum(1)),
        lambda x: torch.sqrt(torch.pow(x, 2).sum(1)),
    ),
    ("max of sqrt", ["z[r] = max(sqrt(x[r,k]), over: k)"], lambda x: np.sqrt(x).max(1), lambda x: torch.sqrt(x).amax(1)),
]


def text(value):
    value = float(value)
    if value == 0 and math.copysign(1, value) < 0:
        return "-0"
    return "%.9g" % value


def texts(values):
    return [text(value) for value in np.asarray(values, dtype=np.float64).reshape(-1)]


def case(kind, name, steps, inputs, by_numpy, by_torch, rows=None):
    made = {"kind": kind, "name": name, "steps": steps, "inputs": {key: texts(values) for key, values in inputs.items()}}
    if rows:
        made["rows"] = rows
    made["numpy"] = texts(by_numpy(*[np.asarray(values, np.float32) for values in inputs.values()]))
    for dtype, suffix in [(torch.float32, "f32"), (torch.bfloat16, "bf16")]:
        given = [torch.tensor(values, dtype=torch.float32).to(dtype).requires_grad_() for values in inputs.values()]
        result = by_torch(*given)
        upstream = torch.ones_like(result)
        if rows and result.dim() == 2:
            upstream[:, 1:] = 0
        result.backward(upstream)
        made["torch_" + suffix] = texts(result.detach().float())
        made["gradient_" + suffix] = {key: texts(x.grad.float()) for key, x in zip(inputs, given)}
    return made


def selected(function, condition, zero):
    return lambda x: (torch if isinstance(x, torch.Tensor) else np).where(condition(x), function(x), zero(x))


def zeros(x):
    return torch.zeros_like(x) if isinstance(x, torch.Tensor) else np.zeros_like(x)


def cases():
    for name, step, by_numpy, by_torch in UNARY:
        yield case("unary", name, ["z[n] = " + step], {"x": ONE}, by_numpy, by_torch)
    for name, step, *both in SELECTED:
        steps = [f"s[n] = {step}", "z[n] = where(x[n] > 0, s[n], 0)"]
        by_both = [selected(function, lambda x: x > 0, zeros) for function in both]
        yield case("unary", f"where(x > 0, s, 0), s = {name}", steps, {"x": ONE}, *by_both)
    steps = ["s[n] = exp(x[n])", "z[n] = where(x[n] < 50, s[n], 0)"]
    by_both = [selected(function, lambda x: x < 50, zeros) for function in (np.exp, torch.exp)]
    yield case("unary", "where(x < 50, s, 0), s = exp(x)", steps, {"x": ONE}, *by_both)
    for name, step, *both in BINARY:
        inputs = {"a": [a for a, _ in PAIRS], "b": [b for _, b in PAIRS]}
        yield case("binary", name, ["z[n] = " + step], inputs, *both)
    for name, steps, *both in REDUCED:
        yield case("rows", name, steps, {"x": list(ROWS.values())}, *both, rows=list(ROWS))


if __name__ == "__main__":
    print("[\n" + ",\n".join(json.dumps(made, ensure_ascii=False) for made in cases()) + "\n]")
