"""What the workers of `memlet compare` have in common: the conversation, and tensors in the peers' form.

`memlet compare` starts one worker for each contender and talks to it over stdin and stdout, one JSON object a line. Between
requests a worker blocks on stdin, so that only one contender computes at a time.

    {"do": "load", "tensors": FILE, "model": {...}}     -> {"versions": {...}}
    {"do": "check", "dropout": false, "results": FILE}  -> {"finite": true, "first_s": ...}
    {"do": "memory", "dropout": true}                   -> {"given_bytes": ..., "peak_bytes": ...}
    {"do": "step", "dropout": true, "for_ms": 30}       -> {"forward_ms", "backward_ms", "step_ms", "cpu_s", "wall_s"}

`first_s` is the first step, compilation included; `given_bytes` are those of x, the parameters and the upstream gradient,
`peak_bytes` of all tensors alive at once in a step, these included. Steps are repeated for so many milliseconds, once at least: the
times are medians, `cpu_s` and `wall_s` those of the whole request.
Anything that goes wrong is answered with {"error": ...}.

The file of tensors is in the recipe's names and dim order, which the model's `dims` say: {"x": ["i", "b", "j"], ...}. The peers
get what is best for them: activations [b,j,i], weights [out,in], and one projection for queries, keys and values.
"""
import gc
import json
import os
import statistics
import sys
import time

import numpy as np
from safetensors.numpy import load_file, save_file

ATTENTION = ["wqkv", "bqkv", "wo", "bo"]
REST = ["g1", "s1", "w1", "b1", "w2", "b2", "g2", "s2"]


def parameters(model):
    return ATTENTION + (REST if model["family"] == "encoder" else [])


# Dims of the recipe's tensors as the peers take them, heads apart; what is not named has one dim.
ORDER = {
    "x": "bji", "y": "bji", "wq": "hpi", "wk": "hpi", "wv": "hpi", "bq": "hp", "bk": "hp", "bv": "hp", "wo": "ihp",
    "w1": "ui", "w2": "iu",
}


def turned(value, name, model, back=False):
    """A tensor of the recipe, or a gradient by it, in the peers' order; `back` from there in the recipe's."""
    dims = model["dims"][name]
    have, want = dims, ORDER.get(name, dims)
    if back:
        have, want = want, have
    return value.transpose([have.index(dim) for dim in want])


def peer_form(t, model):
    """The tensors of the recipe as the peers take them; those of a network as they are."""
    if model["family"] == "network":
        return t
    own = {n: turned(t[n], n, model) for n in t if n != "d_y"}
    found = {
        "x": own["x"], "dy": turned(t["d_y"], "y", model),
        "wqkv": np.concatenate([own[n].reshape(-1, own[n].shape[2]) for n in ("wq", "wk", "wv")]),
        "bqkv": np.concatenate([own[n].reshape(-1) for n in ("bq", "bk", "bv")]),
        "wo": own["wo"].reshape(own["wo"].shape[0], -1), "bo": own["bo"],
    }
    found |= {n: own[n] for n in parameters(model)[4:]}
    return {n: np.ascontiguousarray(v) for n, v in found.items()}


def recipe_form(y, gradients, model):
    """The output and gradients (of x and the parameters; None for forward alone) under the recipe's names, in its dim order."""
    if model["family"] == "network":
        return {model["output"]: np.ascontiguousarray(y, dtype=np.float32)}
    h, p = model["heads"], model["size"]
    own = {}
    if gradients is not None:
        own = {"x": gradients["x"], "bo": gradients["bo"], "wo": gradients["wo"].reshape(-1, h, p)}
        for name, w, b in zip("qkv", np.split(gradients["wqkv"], 3), np.split(gradients["bqkv"], 3)):
            own["w" + name], own["b" + name] = w.reshape(h, p, -1), b.reshape(h, p)
        own |= {n: gradients[n] for n in parameters(model)[4:]}
    found = {"y": turned(y, "y", model, back=True)} | {"d_" + n: turned(v, n, model, back=True) for n, v in own.items()}
    return {n: np.ascontiguousarray(v, dtype=np.float32) for n, v in found.items()}


class Session:
    """Answers requests with a peer: `peer(model, tensors)` has `versions`, `prepare(dropout)`, `results(prepared)` →
    (y, gradients by name or None) in NumPy, and `step(prepared)` → forward, backward and both, in seconds. Where tensors can
    be watched it has `memory(prepared)` → bytes given and bytes alive at once."""

    def __init__(self, peer):
        self.make, self.peer, self.model = peer, None, None
        self.dropout, self.prepared = None, None

    def load(self, request):
        self.model = request["model"]
        self.peer = self.make(self.model, peer_form(load_file(request["tensors"]), self.model))
        return {"versions": self.peer.versions}

    def ready(self, request):
        """What was prepared for dropout on or off; one at a time."""
        if self.dropout != request["dropout"]:
            self.prepared, self.dropout = None, None
            self.prepared = self.peer.prepare(request["dropout"])
            self.dropout = request["dropout"]
        return self.prepared

    def check(self, request):
        begin = time.perf_counter()
        y, gradients = self.peer.results(self.ready(request))
        took = time.perf_counter() - begin
        results = recipe_form(y, gradients, self.model)
        save_file(results, request["results"])
        return {"finite": all(bool(np.isfinite(v).all()) for v in results.values()), "first_s": took}

    def memory(self, request):
        given, peak = self.peer.memory(self.ready(request))
        return {"given_bytes": given, "peak_bytes": peak}

    def step(self, request):
        prepared = self.ready(request)
        wall, cpu = time.perf_counter(), time.process_time()
        until, steps = wall + request.get("for_ms", 0) / 1e3, []
        while not steps or time.perf_counter() < until:
            steps.append(self.peer.step(prepared))
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        forward, backward, step = (statistics.median(times) * 1e3 for times in zip(*steps))
        return {"forward_ms": forward, "backward_ms": backward, "step_ms": step, "cpu_s": cpu, "wall_s": wall}


def serve(peer):
    # Libraries may print what they like: only answers go to the real stdout.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    session = Session(peer)
    requests = {"load": session.load, "check": session.check, "memory": session.memory, "step": session.step}
    # A collection in the middle of a step would be timed with it; graphs of tensors hold no cycles.
    gc.disable()
    for line in sys.stdin:
        try:
            request = json.loads(line)
            answer = requests[request["do"]](request)
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"[:2000]}
        print(json.dumps(answer), file=answers, flush=True)
