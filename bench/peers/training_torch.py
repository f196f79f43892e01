#!/usr/bin/env python3
"""Train a GPT-2 such as recipes/models/gpt-bytes.yaml in PyTorch, beside `memlet train`.

    python bench/peers/training_torch.py begin   plan.json weights.safetensors
    python bench/peers/training_torch.py train   plan.json weights.safetensors data.npz log.csv --steps 200 --rate 0.001 [--compile]
    python bench/peers/training_torch.py compare memlet.csv log.csv [f64.csv]

needs torch, numpy and safetensors. `begin` draws parameters as the recipe says, for both sides. `train` takes samples in their order, without
dropouts, in f32 (`--double`: f64) with `torch.optim.Adam`, and writes step, loss and milliseconds. The sizes and the number of layers are
those of the plan. `compare` prints how far two logs are apart, and each from a third one.
"""
import argparse
import csv
import json
import statistics
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

DEVIATIONS = {"wte": 0.02, "wpe": 0.01, "wq": 0.02, "wk": 0.02, "wv": 0.02, "wo": 0.01, "w1": 0.02, "w2": 0.01}
ONES = {"g", "g1", "g2"}


def parameters(plan):
    """Shapes of the recipe's parameters that are no state."""
    program = json.load(open(plan))["chosen"]["program"]
    sizes, dims = program["sizes"], program["dims"]
    value = lambda dim: eval(str(dims[dim]), {}, dict(sizes))
    containers = program["containers"]
    # Storage that holds several parameters beside one another is none itself.
    whole = {c["view"]["of"] for c in containers if c.get("view")}
    begins = [c for c in containers if c["role"] == "parameter" and c.get("initial") is None and c["name"] not in whole]
    found = {c["name"]: [value(dim) for dim in c["dims"]] for c in begins}
    return found


def begin(args):
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for name, shape in parameters(args.plan).items():
        own = name.rsplit("_", 1)[-1]
        if own in DEVIATIONS:
            tensors[name] = torch.randn(shape, generator=generator) * DEVIATIONS[own]
        else:
            tensors[name] = torch.full(shape, 1.0 if own in ONES else 0.0)
    save_file(tensors, args.weights)
    print(f"{args.weights}: {sum(t.numel() for t in tensors.values()) / 1e6:.2f} M parameters")


class Layer(torch.nn.Module):
    """One layer of GPT-2, as its modules are written by hand: one product for queries, keys and values, and fused attention."""

    def __init__(self, w):
        super().__init__()
        self.heads = w["wq"].shape[0]
        i = w["wq"].shape[2]
        keep = lambda t: torch.nn.Parameter(t.clone().contiguous())
        self.qkv = keep(torch.cat([w[n].reshape(-1, i) for n in ("wq", "wk", "wv")]))
        self.qkv_bias = keep(torch.cat([w[n].flatten() for n in ("bq", "bk", "bv")]))
        self.out = keep(w["wo"].reshape(-1, i).T)
        self.names = [n for n in ("bo", "g1", "s1", "g2", "s2", "w1", "b1", "w2", "b2")]
        for name in self.names:
            setattr(self, name, keep(w[name]))

    def forward(self, x):
        b, j, i = x.shape
        norm = F.layer_norm(x, (i,), self.g1, self.s1, 1e-5)
        q, k, v = F.linear(norm, self.qkv, self.qkv_bias).view(b, j, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        gamma = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.linear(gamma.transpose(1, 2).reshape(b, j, -1), self.out, self.bo)
        norm = F.layer_norm(x, (i,), self.g2, self.s2, 1e-5)
        return x + F.linear(F.gelu(F.linear(norm, self.w1, self.b1), approximate="tanh"), self.w2, self.b2)


class Model(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        keep = lambda t: torch.nn.Parameter(t.clone())
        self.wte, self.wpe, self.g, self.s = (keep(w[n]) for n in ("wte", "wpe", "g", "s"))
        prefixes = {n[: -len("wq")] for n in w if n.endswith("_wq")}
        ordered = sorted(prefixes, key=lambda p: (0, int(p.strip("_").rsplit("_")[-1])) if p.strip("_")[-1].isdigit() else (1, 0))
        self.layers = torch.nn.ModuleList(Layer({n[len(p) :]: t for n, t in w.items() if n.startswith(p)}) for p in ordered)

    def forward(self, tokens, following):
        x = F.embedding(tokens, self.wte) + self.wpe
        for layer in self.layers:
            x = layer(x)
        x = F.layer_norm(x, x.shape[-1:], self.g, self.s, 1e-5)
        return F.cross_entropy(F.linear(x, self.wte).flatten(0, 1), following.flatten())


def train(args):
    if args.threads:
        torch.set_num_threads(args.threads)
    dtype = torch.float64 if args.double else torch.float32
    model = Model({name: t.to(dtype) for name, t in load_file(args.weights).items()})
    optimizer = torch.optim.Adam(model.parameters(), lr=args.rate, fused=not args.double)
    data = np.load(args.data)
    batch = args.batch or json.load(open(args.plan))["chosen"]["program"]["sizes"]["B"]
    forward = torch.compile(model) if args.compile else model
    tokens, following = (torch.from_numpy(data[name].astype(np.int64)) for name in ("tokens", "next"))
    times, lines = [], []
    for step in range(args.steps):
        began = time.perf_counter()
        rows = torch.arange(step * batch, (step + 1) * batch) % len(tokens)
        loss = forward(tokens[rows], following[rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        value = loss.item()
        times.append(1e3 * (time.perf_counter() - began))
        lines.append([step + 1, repr(value), f"{times[-1]:.3f}"])
    with open(args.log, "w", newline="") as file:
        csv.writer(file).writerows([["step", "loss", "ms"], *lines])
    print(f"loss {lines[0][1]} -> {lines[-1][1]}; median {statistics.median(times[1:]):.3f} ms a step, torch {torch.__version__}")


def losses(path):
    rows = list(csv.DictReader(open(path)))
    return np.array([float(row["loss"]) for row in rows]), statistics.median(float(row["ms"]) for row in rows[1:])


def compare(args):
    (a, a_ms), (b, b_ms) = losses(args.ours), losses(args.theirs)
    print(f"{min(len(a), len(b))} steps; ms a step (median): ours {a_ms:.2f}, theirs {b_ms:.2f}, theirs / ours {b_ms / a_ms:.2f}")
    pairs = [("ours", a, "theirs", b)]
    if args.third:
        third, _ = losses(args.third)
        pairs += [("ours", a, "f64", third), ("theirs", b, "f64", third)]
    for name, x, other, y in pairs:
        count = min(len(x), len(y))
        off = np.abs(x[:count] - y[:count])
        at = int(off.argmax())
        print(f"{name} beside {other}: largest difference {off[at]:.2e} in step {at + 1} of a loss of {y[at]:.4f}; last {x[count-1]:.6f}, {y[count-1]:.6f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    for name, run, words in [
        ("begin", begin, ["plan", "weights"]),
        ("train", train, ["plan", "weights", "data", "log"]),
        ("compare", compare, ["ours", "theirs"]),
    ]:
        command = commands.add_parser(name)
        command.set_defaults(run=run)
        for word in words:
            command.add_argument(word)
        if name == "compare":
            command.add_argument("third", nargs="?")
        if name == "train":
            command.add_argument("--steps", type=int, default=200)
            command.add_argument("--rate", type=float, default=1e-3)
            command.add_argument("--threads", type=int)
            command.add_argument("--batch", type=int)
            command.add_argument("--compile", action="store_true")
            command.add_argument("--double", action="store_true")
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
