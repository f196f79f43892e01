"""Workloads of FusionStitching with LSTMs in PyTorch, whose layers oneDNN computes on cores: a peer beside JAX.

    stitching_torch.py NAME THREADS FILE.safetensors FILE.npz

FILE.safetensors and FILE.npz are the tensors and the results in f64 that `stitching_worker.py` writes, under the recipe's names. The first
step is held against these results; then each line of stdin, a number of seconds, is answered with times of that long. Needs torch, numpy
and safetensors.
"""
import json
import sys
import time

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.numpy import load_file
from torch import nn

#: Where PyTorch has the gates of a recipe's cell (in, fresh, keep, out): in, keep, fresh, out.
GATES = [0, 2, 1, 3]
#: The largest difference of a loss or of a parameter after the first step, relative to its largest element.
CLOSE = 1e-3


def lstm_into(layer, tensors, name, suffix=""):
    """Gives a layer the parameters of a recipe's cell, which adds 1 to the gate that keeps the state."""
    for kind, target in (("wx", "weight_ih"), ("wh", "weight_hh")):
        value = tensors[f"{name}_{kind}"][:, GATES]
        getattr(layer, f"{target}_l0{suffix}").data = torch.from_numpy(value.reshape(len(value), -1).T.copy())
    bias = tensors[f"{name}_c"]
    getattr(layer, f"bias_ih_l0{suffix}").data = torch.from_numpy(bias[GATES].reshape(-1).copy())
    # A recipe has one bias; the other one of the layer is the constant.
    other = getattr(layer, f"bias_hh_l0{suffix}")
    other.data = torch.tensor([0.0, 1.0, 0.0, 0.0]).repeat_interleave(bias.shape[1])
    other.requires_grad_(False)


def lstm_out(layer, name, suffix=""):
    """The parameters of a layer under the recipe's names."""
    found = {}
    for kind, source in (("wx", "weight_ih"), ("wh", "weight_hh")):
        value = getattr(layer, f"{source}_l0{suffix}").detach().numpy().T
        found[f"{name}_{kind}"] = value.reshape(len(value), 4, -1)[:, GATES]
    return found | {f"{name}_c": getattr(layer, f"bias_ih_l0{suffix}").detach().numpy().reshape(4, -1)[GATES]}


class BiRnn(nn.Module):
    def __init__(self, t):
        super().__init__()
        self.lstm, self.out = nn.LSTM(28, 128, bidirectional=True), nn.Linear(256, 10)
        lstm_into(self.lstm, t, "f")
        lstm_into(self.lstm, t, "b", "_reverse")
        self.out.weight.data, self.out.bias.data = torch.from_numpy(np.concatenate([t["wf"], t["wb"]]).T.copy()), torch.from_numpy(t["c"])
        self.x, self.label = torch.from_numpy(t["x"]).swapaxes(0, 1).contiguous(), torch.from_numpy(t["label"]).long()
        self.update = torch.optim.SGD(self.parameters(), 0.001)

    def loss(self):
        return F.cross_entropy(self.out(self.lstm(self.x)[0][-1]), self.label)

    def found(self):
        w = self.out.weight.detach().numpy().T
        return lstm_out(self.lstm, "f") | lstm_out(self.lstm, "b", "_reverse") | {"wf": w[:128], "wb": w[128:], "c": self.out.bias.detach().numpy()}


class DynRnn(nn.Module):
    def __init__(self, t):
        super().__init__()
        self.lstm, self.out = nn.LSTM(1, 64), nn.Linear(64, 2)
        lstm_into(self.lstm, t, "f")
        self.out.weight.data, self.out.bias.data = torch.from_numpy(t["w"].T.copy()), torch.from_numpy(t["c"])
        self.x, self.label = torch.from_numpy(t["x"]).swapaxes(0, 1).contiguous(), torch.from_numpy(t["label"]).long()
        self.last, self.rows = torch.from_numpy(t["length"]).long() - 1, torch.arange(len(t["length"]))
        self.update = torch.optim.SGD(self.parameters(), 0.01)

    def loss(self):
        # Times beyond a sequence's length decide nothing.
        return F.cross_entropy(self.out(self.lstm(self.x)[0][self.last, self.rows]), self.label)

    def found(self):
        return lstm_out(self.lstm, "f") | {"w": self.out.weight.detach().numpy().T, "c": self.out.bias.detach().numpy()}


class Speech(nn.Module):
    def __init__(self, t):
        super().__init__()
        self.one, self.norm, self.two, self.out = nn.LSTM(80, 256), nn.LayerNorm(256, eps=1e-6), nn.LSTM(256, 256), nn.Linear(256, 48)
        lstm_into(self.one, t, "a")
        lstm_into(self.two, t, "b")
        self.norm.weight.data, self.norm.bias.data = torch.from_numpy(t["scale"]), torch.from_numpy(t["shift"])
        self.out.weight.data, self.out.bias.data = torch.from_numpy(t["w"].T.copy()), torch.from_numpy(t["c"])
        self.x, self.label = torch.from_numpy(t["x"]).swapaxes(0, 1).contiguous(), torch.from_numpy(t["label"]).long()
        self.length = torch.from_numpy(t["length"]).long()
        self.labels = torch.full_like(self.length, self.label.shape[1])
        self.update = torch.optim.SGD(self.parameters(), 1e-3, momentum=0.9)

    def loss(self):
        log = F.log_softmax(self.out(self.two(self.norm(self.one(self.x)[0]))[0]), -1)
        return F.ctc_loss(log, self.label, self.length, self.labels, reduction="none").mean()

    def found(self):
        found = {"scale": self.norm.weight, "shift": self.norm.bias, "w": self.out.weight.T, "c": self.out.bias}
        return lstm_out(self.one, "a") | lstm_out(self.two, "b") | {name: value.detach().numpy() for name, value in found.items()}


WORKLOADS = {"bi-rnn": (BiRnn, None), "dyn-rnn": (DynRnn, None), "speech": (Speech, 1.0)}


def main():
    name, threads, tensors, results = sys.argv[1:]
    torch.set_num_threads(int(threads))
    made, most = WORKLOADS[name]
    module = made({n: v.copy() for n, v in load_file(tensors).items()})

    def step():
        module.update.zero_grad(set_to_none=True)
        loss = module.loss()
        loss.backward()
        if most is not None:
            nn.utils.clip_grad_norm_(module.parameters(), most)
        module.update.step()
        return loss.item()

    begin, right = time.perf_counter(), np.load(results)
    found = {"loss": np.asarray(step())} | module.found()
    for key, value in found.items():
        apart = float(np.abs(value - right[key]).max() / max(np.abs(right[key]).max(), 1e-30))
        if not apart < CLOSE:
            sys.exit(f"{name}: `{key}` is {apart:.1e} away from the result in f64")
    step()
    print(json.dumps({"ready_s": time.perf_counter() - begin, "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        samples, end = [], time.perf_counter() + float(line)
        while time.perf_counter() < end or len(samples) < 3:
            begin = time.perf_counter()
            step()
            samples.append(1e3 * (time.perf_counter() - begin))
        print(json.dumps({"ms": samples}), flush=True)


if __name__ == "__main__":
    main()
