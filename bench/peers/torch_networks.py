#!/usr/bin/env python3
"""Times the convolutional networks of recipes/ as PyTorch modules: eager, inductor, and plans of Memlet through torch.compile, in turns.

    python bench/peers/torch_networks.py squeezenet-1.1 --budget 20s --memlet target/release/memlet
    python bench/peers/torch_networks.py resnet-18 --train --batch 8 --compare

needs torch and numpy, and the package in recipes/python. Inference of one image in evaluation mode, without gradients; with ``--train``
forward, cross entropy and backward, with batch statistics. Prints milliseconds (the median of rounds in which everyone runs once) and the
time of the first call; ``--compare`` compares results, and gradients, with PyTorch in f64 instead. A rectifier whose argument rounds to
the other sign changes gradients by far more than rounding, in eager mode as well: another ``--seed`` tells such a case from a fault.
"""
import argparse
import copy
import os
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../recipes/python"))
import networks  # noqa: E402


class Network(nn.Module):
    """The layers of a network with drawn parameters; its result is what the softmax reads."""

    def __init__(self, net):
        super().__init__()
        self.net, number, self.own = net, 0, nn.ModuleDict()
        for at, shapes in networks.parameters(net).items():
            drawn = [torch.from_numpy(networks.drawn(number + n + 1, shape)).float() for n, shape in enumerate(shapes)]
            number += len(shapes)
            layer, options = net.layers[at], net.layers[at].options
            if layer.op == "dense":
                self.own[str(at)] = nn.Linear(drawn[0][0].numel(), drawn[0].shape[0])
                self.own[str(at)].weight.data, self.own[str(at)].bias.data = drawn[0].flatten(1), drawn[1]
                continue
            kernel = drawn[0].unsqueeze(1) if options["groups"] > 1 else drawn[0]
            channels = kernel.shape[1] * options["groups"], kernel.shape[0]
            part = nn.Conv2d(*channels, options["window"], options["stride"], options["pad"], groups=options["groups"], bias=not net.normalized)
            part.weight.data = kernel
            if net.normalized:
                norm = nn.BatchNorm2d(channels[1])
                norm.running_mean, norm.running_var, norm.weight.data, norm.bias.data = drawn[1:]
                part = nn.Sequential(part, norm)
            else:
                part.bias.data = drawn[1]
            self.own[str(at)] = part

    def forward(self, x):
        results = []
        for at, layer in enumerate(self.net.layers):
            given = [results[i] for i in layer.inputs]
            if layer.op == "softmax":
                return given[0].flatten(1)
            if layer.op == "input":
                y = x
            elif layer.op == "conv":
                y = self.own[str(at)](given[0])
            elif layer.op == "dense":
                y = self.own[str(at)](given[0].flatten(1))[:, :, None, None]
            else:
                y = networks.without_parameters(layer, given)
            results.append(y)
        return results[-1]


def step(call, module, x, labels, train):
    """The result of a call, and of training the loss after backward."""
    if not train:
        with torch.no_grad():
            return call(x)
    module.zero_grad(set_to_none=True)
    loss = F.cross_entropy(call(x), labels)
    loss.backward()
    return loss.detach()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("network", choices=list(networks.NETWORKS))
    for name, default in {"batch": 1, "threads": 2, "rounds": 15, "seed": 1}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--budget", default="20s")
    parser.add_argument("--memlet", default="memlet")
    parser.add_argument("--who", default="eager,inductor,memlet")
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--compare", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(args.seed)
    from memlet import torch_backend

    torch_backend.Options.binary, torch_backend.Options.budget = args.memlet, args.budget
    net = networks.make(args.network)
    module = Network(net).train(args.train)
    x, labels = torch.randn(args.batch, *net.layers[0].shape), torch.randint(0, 1000, (args.batch,))
    if args.compare:
        exact = copy.deepcopy(module).double()
        found = step(torch.compile(module, backend=torch_backend.backend, dynamic=False), module, x, labels, args.train)
        right, plain = step(exact, exact, x.double(), labels, args.train), copy.deepcopy(module)
        eager = step(plain, plain, x, labels, args.train)
        apart = lambda a: ((a - right).abs().max() / right.abs().max()).item()  # noqa: E731
        print(f"result: memlet is {apart(found):.2e} of the largest element away from PyTorch in f64, eager mode {apart(eager):.2e}")
        if args.train:
            for name, p, q, r in ((n, p.grad, q.grad, r.grad) for (n, p), q, r in zip(module.named_parameters(), exact.parameters(), plain.parameters())):
                ours, theirs = (((g - q).abs().max() / q.abs().max()).item() for g in (p, r))
                if ours > 1e-4 and ours > 2 * theirs:
                    print(f"gradient of {name}: memlet {ours:.2e}, eager mode {theirs:.2e}")
        print(torch_backend.table())
        return
    calls, first, samples = {}, {}, {}
    backends = {"inductor": "inductor", "memlet": torch_backend.backend}
    for who in args.who.split(","):
        torch._dynamo.reset()
        own = copy.deepcopy(module)
        call = torch.compile(own, backend=backends[who], dynamic=False) if who in backends else own
        calls[who], began = (call, own), time.perf_counter()
        step(*calls[who], x, labels, args.train)
        first[who] = time.perf_counter() - began
    for _ in range(args.rounds):
        for who, (call, own) in calls.items():
            step(call, own, x, labels, args.train)
            began = time.perf_counter()
            for _ in range(1 if args.train else 3):
                step(call, own, x, labels, args.train)
            samples.setdefault(who, []).append((time.perf_counter() - began) * 1e3 / (1 if args.train else 3))
    if "memlet" in calls:
        print(torch_backend.table())
        print(torch_backend.choice())
    print(f"{args.network}, batch {args.batch}, {'training' if args.train else 'inference'}, {args.threads} threads")
    print("who        ms, median    least   first call s")
    for who, times in samples.items():
        print(f"{who:9} {statistics.median(times):11.2f} {min(times):8.2f} {first[who]:14.1f}")
    peers = [who for who in samples if who != "memlet"]
    if "memlet" in samples and peers:
        best = min(peers, key=lambda who: statistics.median(samples[who]))
        print(f"best peer ({best}) / memlet: {statistics.median(samples[best]) / statistics.median(samples['memlet']):.3f}")


if __name__ == "__main__":
    main()
