"""Two processes that train together without PyTorch: `python test_processes.py MEMLET`, or MEMLET in the environment. Needs NumPy alone.

Each process runs forward and backward of its half of a batch on a C library, gradients are averaged over a socket on loopback, and NumPy
takes the step. The parameters are those of one process with the whole batch, and of NumPy in f64.
"""

import os
import socket
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import memlet  # noqa: E402

BINARY = os.environ.get("MEMLET", "memlet")
#: Without `update`, gradients are results of the step.
RECIPE = """model: halves
dims: {n: 12, i: 20, u: 33, k: 7}
inputs: {x: {dims: [n, i], grad: false}, t: {dims: [n, k], grad: false}}
parameters: {w: [i, u], c: [u], v: [u, k]}
steps:
  - h[n,u] = tanh(x[n,i] * w[i,u] + c[u])
  - y[n,k] = h[n,u] * v[u,k]
  - "loss[] = mean((y[n,k] - t[n,k]) * (y[n,k] - t[n,k]), over: [n, k])"
outputs: [loss]
train: {loss: loss}
"""
SHAPES = {"w": (20, 33), "c": (33,), "v": (33, 7)}
BATCH, STEPS, RATE, MOMENTUM = 24, 20, 0.2, 0.9


def start():
    draw = np.random.default_rng(1)
    return {name: (0.3 * draw.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}


def batch(step):
    draw = np.random.default_rng(100 + step)
    x = draw.standard_normal((BATCH, 20)).astype(np.float32)
    return x, np.tanh(x[:, :7] - x[:, 7:14])


def train(gradients, rows, exchange):
    """Parameters after all steps of SGD with momentum; `gradients` is of these rows of a batch, and `exchange` makes the mean of all."""
    parameters, speed = start(), {name: np.zeros(shape, np.float32) for name, shape in SHAPES.items()}
    for step in range(STEPS):
        x, t = batch(step)
        found = exchange(gradients(np.ascontiguousarray(x[rows]), np.ascontiguousarray(t[rows]), parameters))
        for name, gradient in found.items():
            speed[name] = MOMENTUM * speed[name] + gradient
            parameters[name] = parameters[name] - np.float32(RATE) * speed[name]
    return parameters


def by_library(folder):
    step = memlet.load(folder, threads=1)

    def gradients(x, t, parameters):
        found = step(x=x, t=t, **parameters)
        return {name: np.asarray(found[f"d_{name}"]) for name in SHAPES}

    return gradients


def by_numpy(x, t, parameters):
    """The same in f64."""
    x, t = x.astype(np.float64), t.astype(np.float64)
    w, c, v = (parameters[name].astype(np.float64) for name in "wcv")
    h = np.tanh(x @ w + c)
    d_y = 2 * (h @ v - t) / t.size
    d_h = (d_y @ v.T) * (1 - h * h)
    return {"w": x.T @ d_h, "c": d_h.sum(0), "v": h.T @ d_y}


def averaged(link):
    """The mean of this process's gradients and the other's. The sum of two numbers is the same in both processes, bit by bit."""

    def exchange(own):
        link.sendall(b"".join(own[name].tobytes() for name in SHAPES))
        size = sum(own[name].nbytes for name in SHAPES)
        got = b""
        while len(got) < size:
            more = link.recv(size - len(got))
            if not more:
                raise ConnectionError("the other process has ended")
            got += more
        found = {}
        for name, shape in SHAPES.items():
            other = np.frombuffer(got[: own[name].nbytes], np.float32).reshape(shape)
            got = got[own[name].nbytes :]
            found[name] = (own[name] + other) / np.float32(2)
        return found

    return exchange


def work(rank, folder, port, out):
    if rank == 0:
        with socket.create_server(("127.0.0.1", port)) as server:
            print(server.getsockname()[1], flush=True)
            link = server.accept()[0]
    else:
        link = socket.create_connection(("127.0.0.1", port), timeout=60)
    link.settimeout(60)
    half = BATCH // 2
    with link:
        np.savez(out, **train(by_library(folder), slice(rank * half, (rank + 1) * half), averaged(link)))


class Processes(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        at = Path(cls.folder.name)
        (at / "halves.yaml").write_text(RECIPE)
        for name, rows in (("half", BATCH // 2), ("whole", BATCH)):
            words = ["optimize", at / "halves.yaml", "--set", f"n={rows}", "--budget", "0s", "--timing", "200ms", "--threads", "1"]
            for command in ([*words, "--out", at / f"{name}-plan"], ["build", at / f"{name}-plan", "--out", at / name]):
                subprocess.run([BINARY, *command], check=True, stdout=subprocess.DEVNULL)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def close(self, one, other):
        for name in SHAPES:
            self.assertLess(np.abs(one[name] - other[name]).max(), 1e-5 * np.abs(other[name]).max(), name)

    def test_two_processes_train_as_one_with_the_whole_batch(self):
        at = Path(self.folder.name)
        command = [sys.executable, __file__, "--worker"]
        first = subprocess.Popen([*command, "0", at / "half", "0", at / "0.npz"], stdout=subprocess.PIPE, text=True)
        port = first.stdout.readline().strip()
        second = subprocess.Popen([*command, "1", at / "half", port, at / "1.npz"])
        self.assertEqual([first.wait(120), second.wait(120)], [0, 0])
        first.stdout.close()
        found, twin = np.load(at / "0.npz"), np.load(at / "1.npz")
        for name in SHAPES:
            self.assertEqual(found[name].tobytes(), twin[name].tobytes(), name)
        whole = slice(0, BATCH)
        self.close(found, train(by_library(at / "whole"), whole, lambda own: own))
        right = train(by_numpy, whole, lambda own: own)
        self.close(found, right)
        self.assertGreater(np.abs(right["v"] - start()["v"]).max(), 0.1, "the parameters have hardly moved")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(int(sys.argv[2]), sys.argv[3], int(sys.argv[4]), sys.argv[5])
        sys.exit(0)
    if len(sys.argv) > 1:
        BINARY = sys.argv.pop(1)
    unittest.main()
