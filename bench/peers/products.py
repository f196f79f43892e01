"""Matrix products in PyTorch (oneDNN, MKL) and NumPy (OpenBLAS), one line of numbers in, one line of seconds out.

A line `batch m n k repeats` is answered by the seconds of each repeat with the fastest library and order of factors, which
are found once for each line, and by their names.
"""

import itertools
import sys
import time

import numpy
import torch

torch.set_num_threads(int(sys.argv[1]))
known = {}


def multiply(precision, a, b, out):
    """A product in a precision that PyTorch may lower: below `highest` it asks oneDNN, which may take bf16 for f32."""
    torch.set_float32_matmul_precision(precision)
    torch.matmul(a, b, out=out)


def keeps_f32():
    """Whether products below `highest` are of f32 here all the same."""
    a, b = (torch.rand(256, 256, generator=torch.Generator().manual_seed(seed)) for seed in (1, 2))
    out = torch.empty(256, 256)
    multiply("medium", a, b, out)
    return torch.allclose(out.double(), a.double() @ b.double(), rtol=1e-5)


PRECISIONS = {"torch": "highest", "oneDNN": "medium"} if keeps_f32() else {"torch": "highest"}


def matrices(batch, rows, columns, turned):
    """A batch of matrices whose rows, or columns if `turned`, are contiguous, and the same in NumPy."""
    shape = (batch, columns, rows) if turned else (batch, rows, columns)
    stored = torch.full(shape, 0.5)
    logical = stored.transpose(1, 2) if turned else stored
    return (logical if batch > 1 else logical[0]), (logical.numpy() if batch > 1 else logical[0].numpy())


def candidates(batch, m, n, k):
    for left, right in itertools.product((False, True), repeat=2):
        a, na = matrices(batch, m, k, left)
        b, nb = matrices(batch, k, n, right)
        out = torch.empty((batch, m, n) if batch > 1 else (m, n))
        nout = out.numpy()
        order = f"{'t' if left else 'n'}{'t' if right else 'n'}"
        for name, precision in PRECISIONS.items():
            yield f"{name} {order}", lambda a=a, b=b, out=out, precision=precision: multiply(precision, a, b, out)
        yield f"numpy {order}", lambda a=na, b=nb, out=nout: numpy.matmul(a, b, out=out)


def seconds(run):
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


for line in sys.stdin:
    *shape, repeats = map(int, line.split())
    key = tuple(shape)
    if key not in known:
        with torch.no_grad():
            found = list(candidates(*shape))
            best = {name: min(seconds(run) for _ in range(6)) for name, run in found}
        name = min(best, key=best.get)
        known.clear()
        known[key] = (name, dict(found)[name])
    name, run = known[key]
    print(name.replace(" ", "/"), *(seconds(run) for _ in range(repeats)), flush=True)
