"""A C library of `memlet build` from Python: `python test_library.py MEMLET` with a `memlet` binary, or MEMLET in the environment.

A training step of two layers with SGD is held against NumPy in f64, in place and without copies; PyTorch's tensors too where it is installed.
"""

import os
import subprocess
import sys
import tempfile
import time
import unittest

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import memlet  # noqa: E402

BINARY = os.environ.get("MEMLET", "memlet")
RECIPE = """model: layers
dims: {n: 24, i: 20, u: 33, k: 7}
inputs: {x: [n, i], t: [n, k]}
parameters: {w: [i, u], c: [u], v: [u, k]}
steps:
  - h[n,u] = tanh(x[n,i] * w[i,u] + c[u])
  - y[n,k] = h[n,u] * v[u,k]
  - "loss[] = sum((y[n,k] - t[n,k]) * (y[n,k] - t[n,k]), over: [n, k])"
outputs: [loss]
train: {loss: loss}
update: ["sgd(rate: 0.01)"]
"""
RATE = 0.01


def run(*words):
    subprocess.run([BINARY, *words], check=True, stdout=subprocess.DEVNULL)


def reference(p, x, t):
    """The loss, and the parameters after a step."""
    w, c, v = (p[name].astype(np.float64) for name in "wcv")
    h = np.tanh(x @ w + c)
    y = h @ v
    d_y = 2 * (y - t)
    d_h = (d_y @ v.T) * (1 - h * h)
    return np.sum((y - t) ** 2), {"w": w - RATE * (x.T @ d_h), "c": c - RATE * d_h.sum(0), "v": v - RATE * (h.T @ d_y)}


class Library(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        at = cls.folder.name
        with open(f"{at}/layers.yaml", "w", encoding="utf-8") as file:
            file.write(RECIPE)
        run("optimize", f"{at}/layers.yaml", "--budget", "2s", "--timing", "500ms", "--threads", "2", "--out", f"{at}/plan")
        run("build", f"{at}/plan", "--out", f"{at}/library")
        draw = np.random.default_rng(1)
        cls.given = {name: draw.standard_normal(shape).astype(np.float32) * 0.3 for name, shape in
                     {"x": (24, 20), "t": (24, 7), "w": (20, 33), "c": (33,), "v": (33, 7)}.items()}  # fmt: skip

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def step(self, threads=2):
        return memlet.load(f"{self.folder.name}/library", threads=threads)

    def train(self, step, laid):
        right = {name: self.given[name] for name in "wcv"}
        for number in range(3):
            loss, right = reference(right, self.given["x"].astype(np.float64), self.given["t"])
            found = step(step=number, **laid)["loss"]
            self.assertLess(abs(float(found) - loss), 1e-5 * abs(loss))
        return right

    def laid(self, step, of):
        """Each tensor as the plan wants it."""
        found = {}
        for name, values in self.given.items():
            tensor = step.tensor(name)
            if tensor.strides is None:
                found[name] = step.pack(name, values)
            else:
                found[name] = of(step.empty(name))
                found[name][...] = of(values)
        return found

    def test_parameters_are_updated_in_place(self):
        step = self.step()
        laid = self.laid(step, lambda array: array)
        right = self.train(step, laid)
        for name, values in right.items():
            found = laid[name].numpy() if isinstance(laid[name], memlet.Packed) else laid[name]
            np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-6)

    def test_tensors_of_pytorch_are_used_in_place(self):
        try:
            import torch
        except ImportError:
            self.skipTest("PyTorch is not installed")
        step = self.step()
        laid = self.laid(step, torch.from_numpy)
        right = self.train(step, laid)
        for name, values in right.items():
            found = laid[name].numpy()
            np.testing.assert_allclose(found, values, rtol=1e-4, atol=1e-6)
        self.assertIsInstance(step(**laid)["loss"], torch.Tensor)

    def test_a_bound_step_looks_at_nothing_and_runs_the_same(self):
        step = self.step()
        laid = self.laid(step, lambda array: array)
        bound, right = step.bind(**laid), {name: self.given[name] for name in "wcv"}
        for number in range(3):
            loss, right = reference(right, self.given["x"].astype(np.float64), self.given["t"])
            self.assertLess(abs(float(bound(step=number)["loss"]) - loss), 1e-5 * abs(loss))

    def test_inputs_that_lie_otherwise_are_copied(self):
        step = self.step(1)
        laid = self.laid(step, lambda array: array)
        wide = np.zeros((24, 40), np.float32)
        wide[:, ::2] = self.given["x"]
        laid["x"] = wide[:, ::2]
        self.train(step, laid)

    def test_mistakes_are_errors(self):
        step = self.step()
        laid = self.laid(step, lambda array: array)
        with self.assertRaisesRegex(memlet.MemletError, "number of threads"):
            self.step(1000)
        with self.assertRaisesRegex(memlet.MemletError, "`w` was not given"):
            step(**{name: values for name, values in laid.items() if name != "w"})
        with self.assertRaisesRegex(memlet.MemletError, "is not given z"):
            step(z=laid["x"], **laid)
        with self.assertRaisesRegex(memlet.MemletError, "`c` is updated in place"):
            step(**{**laid, "c": np.zeros(34, np.float32)})
        with self.assertRaisesRegex(memlet.MemletError, "the shape"):
            step(**{**laid, "x": np.zeros((3, 20), np.float32)})
        with self.assertRaisesRegex(memlet.MemletError, "memlet build"):
            memlet.load(self.folder.name)

    def test_a_call_costs_little(self):
        """Beyond the step's own time, of which the library's own function tells."""
        step = self.step(1)
        laid = self.laid(step, lambda array: array)
        out = {name: step.empty(name) for name in ("loss", "d_x", "d_t")}
        fastest = {}
        bound = step.bind(out=out, **laid)
        for name, call in {"bound": bound, "call": lambda: step(out=out, **laid), "c": lambda: step._step(step._context, step._pointers, 1, 0, 0)}.items():
            times = []
            for _ in range(200):
                began = time.perf_counter()
                call()
                times.append(time.perf_counter() - began)
            fastest[name] = min(times) * 1e6
        print(f"a call {fastest['call']:.1f} µs, a bound one {fastest['bound']:.1f} µs, the step alone {fastest['c']:.1f} µs")
        # The figure to hold is 15 µs; machines that do other things too take longer.
        self.assertLess(fastest["call"] - fastest["c"], 60)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        BINARY = sys.argv.pop(1)
    unittest.main(verbosity=1)
