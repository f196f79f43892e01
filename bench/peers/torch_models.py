#!/usr/bin/env python3
"""Times a training step of whole BERT and GPT-2 models in PyTorch: eager, fused attention, inductor, and plans of Memlet, in turns.

    python bench/peers/torch_models.py bert --layers 12 --dropout 0.1 --budget 60s --memlet target/release/memlet
    python bench/peers/torch_models.py gpt2 --layers 12 --batch 4 --length 128 --compare

needs torch, and the package in recipes/python. Prints a table: milliseconds of forward, loss and backward without an optimizer (the median
of rounds in which everyone runs once), the time of the first step, and the most bytes of tensors alive at once, in which the workspaces of
plans count. ``--compare`` compares loss and gradients with PyTorch in f64, without dropout, instead.
"""
import argparse
import copy
import json
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../recipes/python"))

FUSED = True


class Layer(nn.Module):
    """A layer of BERT (normalization behind the sums) or of GPT-2 (before the products, causal, GELU by tanh)."""

    def __init__(self, i, heads, rate, causal):
        super().__init__()
        self.heads, self.rate, self.causal = heads, rate, causal
        self.q, self.k, self.v, self.o = (nn.Linear(i, i) for _ in range(4))
        self.first, self.second = nn.LayerNorm(i), nn.LayerNorm(i)
        self.up, self.down, self.drop = nn.Linear(i, 4 * i), nn.Linear(4 * i, i), nn.Dropout(rate)

    def attended(self, x):
        b, j, i = x.shape
        q, k, v = (f(x).view(b, j, self.heads, i // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        rate = self.rate if self.training else 0.0
        if FUSED:
            y = F.scaled_dot_product_attention(q, k, v, None, rate, is_causal=self.causal)
        else:
            score = q @ k.transpose(-1, -2) * (i // self.heads) ** -0.5
            if self.causal:
                score = score.masked_fill(torch.ones(j, j, dtype=torch.bool).triu(1), float("-inf"))
            y = F.dropout(torch.softmax(score, -1), rate) @ v
        return self.drop(self.o(y.transpose(1, 2).reshape(b, j, i)))

    def forward(self, x):
        if self.causal:
            x = x + self.attended(self.first(x))
            return x + self.drop(self.down(F.gelu(self.up(self.second(x)), approximate="tanh")))
        x = self.first(x + self.attended(x))
        return self.second(x + self.drop(self.down(F.gelu(self.up(x)))))


class Model(nn.Module):
    """Embeddings, layers, and a head with the table of words as its weights; the loss is the cross entropy of every position."""

    def __init__(self, kind, layers, i, heads, words, places, rate):
        super().__init__()
        causal = kind == "gpt2"
        self.words, self.places = nn.Embedding(words, i), nn.Embedding(places, i)
        self.drop, self.norm = nn.Dropout(rate), nn.LayerNorm(i)
        self.layers = nn.ModuleList(Layer(i, heads, rate, causal) for _ in range(layers))
        self.causal, self.head = causal, None if causal else nn.Linear(i, i)
        self.last, self.bias = (None, None) if causal else (nn.LayerNorm(i), nn.Parameter(torch.zeros(words)))
        for p in self.parameters():
            if p.dim() > 1:
                nn.init.normal_(p, std=0.02)

    def forward(self, ids, labels):
        x = self.words(ids) + self.places(torch.arange(ids.shape[1]))
        x = self.drop(x) if self.causal else self.drop(self.norm(x))
        for layer in self.layers:
            x = layer(x)
        x = self.norm(x) if self.causal else self.last(F.gelu(self.head(x)))
        scores = x @ self.words.weight.t()
        scores = scores if self.bias is None else scores + self.bias
        return F.cross_entropy(scores.view(-1, scores.shape[-1]), labels.view(-1))


def step(call, module, data):
    module.zero_grad(set_to_none=True)
    loss = call(*data)
    loss.backward()
    return loss.item()


def most_bytes(run):
    """The most bytes that PyTorch's allocator held beyond what it held before."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        run()
    live = most = 0
    for event in sorted((e for e in profile.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()):
        live += event.nbytes()
        most = max(most, live)
    return most


def main():
    global FUSED
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["bert", "gpt2"])
    for name, default in {"layers": 12, "batch": 8, "length": 128, "width": 768, "heads": 12, "threads": 2, "rounds": 7}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--words", type=int)
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--budget", default="60s")
    parser.add_argument("--memlet", default="memlet")
    parser.add_argument("--who", default="eager,sdpa,inductor,memlet")
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    from memlet import plans, torch_backend

    torch_backend.Options.binary, torch_backend.Options.budget = args.memlet, args.budget
    words = args.words or (30522 if args.model == "bert" else 50257)
    module = Model(args.model, args.layers, args.width, args.heads, words, max(args.length, 512), args.dropout)
    data = torch.randint(0, words, (args.batch, args.length)), torch.randint(0, words, (args.batch, args.length))
    parameters = sum(p.numel() * 4 for p in module.parameters())
    if args.compare:
        exact = copy.deepcopy(module).double()
        compiled = torch.compile(module, backend=torch_backend.backend, dynamic=False)
        print(f"loss: memlet {step(compiled, module, data):.7f}, PyTorch {step(exact, exact, data):.7f} in f64")
        pairs = [(name, p.grad, q.grad) for (name, p), q in zip(module.named_parameters(), exact.parameters())]
        apart = [(((p - q).abs().max() / q.abs().max()).item(), name) for name, p, q in pairs]
        plain = [(e, name) for e, name in apart if not name.endswith("k.bias")]
        print("largest relative difference of a gradient: {:.2e} ({})".format(*max(plain)))
        print(torch_backend.table())
        return
    calls, first, peak = {}, {}, {}
    for who in args.who.split(","):
        FUSED = who != "eager"
        torch._dynamo.reset()
        backends = {"inductor": "inductor", "memlet": torch_backend.backend}
        calls[who] = torch.compile(module, backend=backends[who], dynamic=False) if who in backends else module
        began = time.perf_counter()
        step(calls[who], module, data)
        first[who] = time.perf_counter() - began
        step(calls[who], module, data)
        peak[who] = most_bytes(lambda: step(calls[who], module, data))
        calls[who + " fused"] = FUSED
    names, samples = args.who.split(","), {}
    for _ in range(args.rounds):
        for who in names:
            FUSED = calls[who + " fused"]
            began, cpu = time.perf_counter(), time.process_time()
            step(calls[who], module, data)
            samples.setdefault(who, []).append(((time.perf_counter() - began) * 1e3, (time.process_time() - cpu) * 1e3))
    if "memlet" in names:
        peak["memlet"] += plans.workspace_bytes()
        print(torch_backend.table())
        print(torch_backend.choice())
    print(f"{args.model}, {args.layers} layers, batch {args.batch}, length {args.length}, dropout {args.dropout}, {args.threads} threads")
    print(f"parameters {parameters / 1e6:.0f} MB")
    print("who       ms a step  least    CPU ms   first step s   most MB beside parameters")
    for who in names:
        wall, cpu = zip(*samples[who])
        print(f"{who:9} {statistics.median(wall):9.1f} {min(wall):8.1f} {statistics.median(cpu):9.1f} {first[who]:10.1f} {peak[who] / 1e6:14.1f}")
    if "memlet" in names and len(names) > 1:
        median = lambda who, n: statistics.median(sample[n] for sample in samples[who])  # noqa: E731
        peers = [who for who in names if who != "memlet"]
        best = min(peers, key=lambda who: median(who, 0))
        by_cpu = min(median(who, 1) for who in peers) / median("memlet", 1)
        print(f"best peer ({best}) / memlet: {median(best, 0) / median('memlet', 0):.3f}; of the medians of CPU time: {by_cpu:.3f}")
    if args.json:
        print(json.dumps({"samples": samples, "first": first, "peak": peak}))


if __name__ == "__main__":
    main()
