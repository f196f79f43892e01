"""Programs of DaCe's Python, as its samples are: written as .sdfg files, run by DaCe, and compared with what Memlet imports of them.

    dace_programs.py list                             the names of the programs
    dace_programs.py make NAME FOLDER [FORM…]         NAME.FORM.sdfg, what it is given, and DaCe's results; a JSON object a form
    dace_programs.py compare FOLDER NAME.FORM MEMLET  imports and interprets a file, and prints the difference from DaCe's results

Forms: `plain` as the frontend writes it, `simple` after simplify(), `maps` with library nodes expanded to maps as well.
"""
import json
import math
import os
import subprocess
import sys
import warnings

warnings.simplefilter("ignore")
import numpy as np

SIZES = {"N": 12, "M": 7, "K": 5, "T": 6, "B": 2, "H": 3, "D": 4}
FORMS = ("plain", "simple", "maps")


def programs():
    """Name → (program, its tensors by name, its symbols)."""
    import dace

    N, M, K, T, B, H, D = (dace.symbol(s) for s in SIZES)
    f64, f32, i64 = dace.float64, dace.float32, dace.int64
    found = {}

    def program(f):
        found[f.__name__] = dace.program(f)

    @program
    def axpy(a: f64, x: f64[N], y: f64[N]):
        y[:] = a * x + y

    @program
    def elementwise(x: f64[N, M], y: f64[N, M], z: f64[N, M]):
        z[:] = np.maximum(np.exp(-x) * np.sqrt(np.abs(y)) / (1 + x * x), 0.25) - np.minimum(x, y) ** 2

    @program
    def tasklets(x: f64[N], y: f64[N]):
        for i in dace.map[0:N]:
            with dace.tasklet:
                a << x[i]
                b >> y[i]
                t = a * 2
                b = math.exp(t) if t < 0 else math.sin(a) + 1

    @program
    def branching(x: f64[N], y: f64[N]):
        for i in dace.map[0:N]:
            with dace.tasklet:
                a << x[i]
                b >> y[i]
                if a > 0.5:
                    b = 1
                elif a < -0.5:
                    b = -1
                else:
                    b = a * a

    @program
    def total(x: f64[N, M], s: f64[1]):
        s[0] = np.sum(x)

    @program
    def row_sums(x: f64[N, M], s: f64[N], m: f64[M], least: f64[M]):
        s[:] = np.sum(x, axis=1)
        m[:] = np.max(x, axis=0)
        least[:] = np.min(x, axis=0)

    @program
    def mean_and_variance(x: f64[N, M], y: f64[N, M]):
        mean = np.sum(x, axis=1) / M
        centred = x - mean[:, np.newaxis]
        variance = np.sum(centred * centred, axis=1) / M
        y[:] = centred / np.sqrt(variance[:, np.newaxis] + 1e-5)

    @program
    def histogram_free_wcr(x: f64[N, M], s: f64[M]):
        s[:] = 0
        for i, j in dace.map[0:N, 0:M]:
            with dace.tasklet:
                a << x[i, j]
                b >> s(1, lambda p, q: p + q)[j]
                b = a * a

    @program
    def wcr_max(x: f64[N, M], s: f64[M]):
        s[:] = -1e30
        for i, j in dace.map[0:N, 0:M]:
            with dace.tasklet:
                a << x[i, j]
                b >> s(1, lambda p, q: max(p, q))[j]
                b = a

    @program
    def wcr_product(x: f64[K, M], s: f64[M]):
        s[:] = 1
        for i, j in dace.map[0:K, 0:M]:
            with dace.tasklet:
                a << x[i, j]
                b >> s(1, lambda p, q: p * q)[j]
                b = a

    @program
    def matmul(a: f64[N, K], b: f64[K, M], c: f64[N, M]):
        c[:] = a @ b

    @program
    def gemm(a: f64[N, K], b: f64[K, M], c: f64[N, M]):
        c[:] = 1.5 * (a @ b) + 0.5 * c

    @program
    def matmul_maps(a: f64[N, K], b: f64[K, M], c: f64[N, M]):
        t = np.ndarray([N, M, K], dtype=f64)
        for i, j, k in dace.map[0:N, 0:M, 0:K]:
            t[i, j, k] = a[i, k] * b[k, j]
        dace.reduce(lambda p, q: p + q, t, c, axis=2, identity=0)

    @program
    def matvec(a: f64[N, M], x: f64[M], y: f64[N]):
        y[:] = a @ x

    @program
    def vecmat(a: f64[N, M], x: f64[N], y: f64[M]):
        y[:] = x @ a

    @program
    def dot(x: f64[N], y: f64[N], s: f64[1]):
        s[0] = x @ y

    @program
    def outer(x: f64[N], y: f64[M], c: f64[N, M]):
        c[:] = x[:, np.newaxis] * y

    @program
    def batched(a: f64[B, N, K], b: f64[B, K, M], c: f64[B, N, M]):
        c[:] = a @ b

    @program
    def three_products(a: f64[N, K], b: f64[K, M], d: f64[M, K], c: f64[N, K]):
        c[:] = a @ b @ d

    @program
    def transposed(x: f64[N, M], y: f64[M, N]):
        y[:] = np.transpose(x) * 2

    @program
    def transposed4(x: f64[B, N, H, D], y: f64[B, H, N, D]):
        y[:] = np.transpose(x, (0, 2, 1, 3))

    @program
    def einsum(a: f64[B, N, K], b: f64[B, M, K], c: f64[B, N, M]):
        c[:] = np.einsum("bik,bjk->bij", a, b)

    @program
    def softmax(x: f64[N, M], y: f64[N, M]):
        m = np.max(x, axis=1)
        e = np.exp(x - m[:, np.newaxis])
        y[:] = e / np.sum(e, axis=1)[:, np.newaxis]

    @program
    def mlp(x: f64[B, N], w1: f64[N, K], b1: f64[K], w2: f64[K, M], b2: f64[M], y: f64[B, M]):
        h = np.maximum(x @ w1 + b1, 0)
        y[:] = h @ w2 + b2

    @program
    def attention(q: f64[B, H, N, D], k: f64[B, H, M, D], v: f64[B, H, M, D], y: f64[B, H, N, D]):
        s = np.einsum("bhnd,bhmd->bhnm", q, k) * 0.5
        top = np.max(s, axis=3)
        e = np.exp(s - top[:, :, :, np.newaxis])
        w = e / np.sum(e, axis=3)[:, :, :, np.newaxis]
        y[:] = np.einsum("bhnm,bhmd->bhnd", w, v)

    @program
    def heads(x: f64[B, N, H * D], w: f64[H * D, H * D], y: f64[B, H, N, D]):
        p = x @ w
        r = np.reshape(p, [B, N, H, D])
        y[:] = np.transpose(r, (0, 2, 1, 3))

    @program
    def stencil(a: f64[N], b: f64[N]):
        b[:] = 0
        b[1:-1] = (a[:-2] + a[1:-1] + a[2:]) / 3

    @program
    def jacobi(a: f64[N], b: f64[N]):
        for t in range(1, T):
            b[1:-1] = 0.33333 * (a[:-2] + a[1:-1] + a[2:])
            a[1:-1] = 0.33333 * (b[:-2] + b[1:-1] + b[2:])

    @program
    def jacobi_2d(a: f64[N, M], b: f64[N, M]):
        for t in range(T):
            b[1:-1, 1:-1] = 0.2 * (a[1:-1, 1:-1] + a[1:-1, :-2] + a[1:-1, 2:] + a[2:, 1:-1] + a[:-2, 1:-1])
            a[1:-1, 1:-1] = 0.2 * (b[1:-1, 1:-1] + b[1:-1, :-2] + b[1:-1, 2:] + b[2:, 1:-1] + b[:-2, 1:-1])

    @program
    def recurrent(x: f64[T, B, K], w: f64[M, M], u: f64[K, M], y: f64[T, B, M]):
        h = np.zeros((B, M), dtype=f64)
        for t in range(T):
            h[:] = np.tanh(h @ w + x[t] @ u)
            y[t] = h

    @program
    def running_sum(x: f64[N], y: f64[N]):
        y[0] = x[0]
        for i in range(1, N):
            y[i] = y[i - 1] * 0.5 + x[i]

    @program
    def backwards(x: f64[N], y: f64[N]):
        y[N - 1] = x[N - 1]
        for i in range(N - 2, -1, -1):
            y[i] = y[i + 1] * 0.5 + x[i]

    @program
    def loop_sum(x: f64[N, M], s: f64[M]):
        s[:] = 0
        for i in range(N):
            s[:] = s + x[i]

    @program
    def nested_loops(x: f64[N, M], y: f64[N, M]):
        for i in range(N):
            for j in range(M):
                y[i, j] = x[i, j] * x[i, j]

    @program
    def inner_loop(a: f64[N, K], b: f64[K, M], c: f64[N, M]):
        for i, j in dace.map[0:N, 0:M]:
            c[i, j] = 0
            for k in range(K):
                c[i, j] = c[i, j] + a[i, k] * b[k, j]

    @program
    def triangular(x: f64[N], y: f64[N]):
        y[:] = 0
        for i in dace.map[0:N]:
            for j in dace.map[0 : i + 1]:
                with dace.tasklet:
                    a << x[j]
                    b >> y(1, lambda p, q: p + q)[i]
                    b = a

    @program
    def strided(x: f64[N], y: f64[N]):
        y[::2] = x[::2] * 2
        y[1::2] = x[1::2] + 1

    @program
    def mirrored(x: f64[N], y: f64[N]):
        for i in dace.map[0:N]:
            y[i] = x[N - 1 - i]

    @program
    def joined(x: f64[N, K], y: f64[N, M], z: f64[N, K + M]):
        z[:, :K] = x
        z[:, K:] = y

    @program
    def gathered(table: f64[M, K], ids: i64[N], y: f64[N, K]):
        for i, k in dace.map[0:N, 0:K]:
            y[i, k] = table[ids[i], k]

    @program
    def masked(x: f64[N, M], y: f64[N, M]):
        for i, j in dace.map[0:N, 0:M]:
            with dace.tasklet:
                a << x[i, j]
                b >> y[i, j]
                b = a if j <= i else -1.0

    @program
    def if_else(x: f64[N], s: f64[1], y: f64[N]):
        if s[0] > 0:
            y[:] = x * s[0]
        else:
            y[:] = -x

    @program
    def where(x: f64[N, M], y: f64[N, M]):
        y[:] = np.where(x > 0, x, 0.1 * x)

    @program
    def single(x: f32[N, M], w: f32[M, K], y: f32[N, K]):
        y[:] = np.maximum(x @ w, 0)

    @program
    def convolution(x: f64[B, N, N], k: f64[3, 3], y: f64[B, N - 2, N - 2]):
        y[:] = 0
        for b, i, j, r, s in dace.map[0:B, 0 : N - 2, 0 : N - 2, 0:3, 0:3]:
            with dace.tasklet:
                a << x[b, i + r, j + s]
                w << k[r, s]
                o >> y(1, lambda p, q: p + q)[b, i, j]
                o = a * w

    @dace.program
    def scaled(v: f64[M], factor: f64):
        return v * factor + 1

    @program
    def calls(x: f64[N, M], y: f64[N, M]):
        for i in dace.map[0:N]:
            y[i] = scaled(x[i], 3.0)

    @program
    def tiled(x: f64[N, M], y: f64[N, M]):
        for i in dace.map[0:N:4]:
            for ii, j in dace.map[0:4, 0:M]:
                with dace.tasklet:
                    a << x[i + ii, j]
                    b >> y[i + ii, j]
                    b = a * 3

    @program
    def whole_numbers(x: i64[N], y: i64[N]):
        y[:] = (x // 3) * 2 + x % 3

    return found


def make(name, folder, forms):
    import dace
    dace.Config.set("library", "blas", "default_implementation", value="pure")
    dace.Config.set("optimizer", "autospecialize", value=False)
    program = programs()[name]
    random = np.random.default_rng(5)
    for form in forms:
        told = {"name": f"{name}.{form}", "dace": dace.__version__}
        base = os.path.join(folder, f"{name}.{form}")
        try:
            sdfg = program.to_sdfg(simplify=form != "plain")
            sdfg.name = f"{name}_{form}"
            if form == "maps":
                sdfg.expand_library_nodes()
                sdfg.simplify()
            used = {str(s): SIZES[str(s)] for s in sdfg.free_symbols if str(s) in SIZES}
            sdfg.save(base + ".sdfg")
            given, call = {}, {}
            for key, about in sdfg.arglist().items():
                if str(key) in SIZES and key not in sdfg.arrays:
                    used[str(key)] = SIZES[str(key)]
                    continue
                # Shapes that are tied to sizes by name follow from these.
                shape = [int(dace.symbolic.evaluate(s, used)) for s in about.shape] if key in sdfg.arrays else [1]
                kind = np.dtype(about.dtype.as_numpy_dtype()).type
                if np.issubdtype(kind, np.integer):
                    value = random.integers(0, SIZES["M"], shape).astype(kind)
                else:
                    value = (random.random(shape) * 2 - 1).astype(kind)
                given[key] = value
                call[key] = value.copy() if type(about).__name__ != "Scalar" else kind(value[0])
            np.savez(base + ".given.npz", **given)
            sdfg(**call, **used)
            np.savez(base + ".want.npz", **{key: value for key, value in call.items() if isinstance(value, np.ndarray)})
            told["sizes"] = used
        except Exception as error:  # whatever DaCe raises is what is to be told
            told["failed"] = f"{type(error).__name__}: {str(error).splitlines()[0][:160] if str(error) else ''}"
        print(json.dumps(told), flush=True)


def compare(folder, name, memlet):
    """Imports a program and interprets it; prints the largest difference from DaCe, relative to each tensor's largest element."""
    base = os.path.join(folder, name)
    lines = open(os.path.join(folder, name.split(".")[0], "told")).read().splitlines()
    told = next((line for line in map(json.loads, lines) if line["name"] == name), {"failed": "no answer in time"})
    if "failed" in told:
        return print(f"not run by DaCe: {told['failed']}")
    sets = [word for size, value in told["sizes"].items() for word in ("--set", f"{size}={value}")]
    answer = subprocess.run([memlet, "import", base + ".sdfg", "--out", base, "--json", *sets], capture_output=True, text=True)
    if answer.returncode:
        return print("refused: " + answer.stderr.strip().splitlines()[0].split(": ", 1)[-1])
    names = json.loads(answer.stdout)
    given, want = np.load(base + ".given.npz"), np.load(base + ".want.npz")
    np.savez(base + ".in.npz", **{names["inputs"][key]: given[key] for key in given.files if key in names["inputs"]})
    command = [memlet, "interpret", f"{base}/recipe.yaml", "--dtype", "f64", "--inputs", base + ".in.npz", "--outputs", base + ".out.npz"]
    answer = subprocess.run(command, capture_output=True, text=True)
    if answer.returncode:
        return print("not interpreted: " + answer.stderr.strip().splitlines()[0])
    got, worst = np.load(base + ".out.npz"), 0.0
    for key in want.files:
        if key not in names["outputs"]:
            if not np.array_equal(want[key], given[key]):
                return print(f"differs: {key} is written by DaCe alone")
            continue
        a, b = np.asarray(got[names["outputs"][key]], np.float64), np.asarray(want[key], np.float64)
        if a.shape != b.shape or not np.array_equal(np.isfinite(a), np.isfinite(b)):
            return print(f"differs: {key} has another shape, or is not finite")
        worst = max(worst, float(np.abs(a - b).max(initial=0.0) / max(np.abs(b).max(initial=0.0), 1e-30)))
    single = any(given[key].dtype == np.float32 for key in given.files)
    print(f"{worst:.1e}" if worst < (1e-5 if single else 1e-12) else f"differs: {worst:.1e}")


def main():
    verb = sys.argv[1]
    if verb == "list":
        print("\n".join(programs()))
    elif verb == "make":
        make(sys.argv[2], sys.argv[3], sys.argv[4:] or FORMS)
    else:
        compare(*sys.argv[2:5])


if __name__ == "__main__":
    main()
