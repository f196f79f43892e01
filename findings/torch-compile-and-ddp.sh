#!/usr/bin/env bash
# torch 2.15.0: `torch.compile(DistributedDataParallel(module))` compiles nothing if `module` is an `nn.Sequential`, without a word, and
# fails where DDP's buckets are below 1 MiB.
#
# Dynamo breaks its graph inside DDP's own forward, and goes on with the next frame, the wrapped module's. That of `nn.Sequential` (and of
# other classes of `torch.nn`) is on its list of files to skip, so everything runs eagerly: the backend is never called, and nothing is
# printed. A class of one's own with the same layers is compiled, and cut into a graph for each bucket of gradients. `bucket_cap_mb=0.5` is
# a good value for DDP alone; compiled, it ends in an AssertionError, because the first bucket of the cutter has 1 MiB whatever DDP's has.
# An instance that was compiled without DDP shows neither, so a test of a backend has to have DDP around a class of its own.
#
# Output seen (graphs that the backend was given, by their operators):
#   Sequential alone [12]; in DDP []; Own in DDP, buckets of 25 MB [10, 2]; of 1 MB [2, 2, 2, 2, 2, 2]
#   buckets of 0.5 MB: eager works; compiled AssertionError: First bucket should be smaller/equal to other buckets to get comms warmed up
#   ASAP
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.15.0 numpy==2.4.6 setuptools==84.2.1
cat > "$folder/run.py" <<'PY'
import os
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo", init_method=f"file://{os.path.dirname(__file__)}/store", rank=0, world_size=1)
layers = lambda: [layer for _ in range(6) for layer in (torch.nn.Linear(512, 512), torch.nn.ReLU())]


class Own(torch.nn.Module):
    def __init__(self, *layers):
        super().__init__()
        self.layers = torch.nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


def graphs(module):
    found = []

    def backend(graph, example):
        found.append(sum(node.op == "call_function" for node in graph.graph.nodes))
        return graph.forward

    torch._dynamo.reset()
    torch.compile(module, backend=backend)(torch.randn(4, 512)).sum().backward()
    return found


alone = graphs(torch.nn.Sequential(*layers()))
wrapped = graphs(DistributedDataParallel(torch.nn.Sequential(*layers())))
large = graphs(DistributedDataParallel(Own(*layers())))
small = graphs(DistributedDataParallel(Own(*layers()), bucket_cap_mb=1))
print(f"Sequential alone {alone}; in DDP {wrapped}; Own in DDP, buckets of 25 MB {large}; of 1 MB {small}")
less = DistributedDataParallel(Own(*layers()), bucket_cap_mb=0.5)
less(torch.randn(4, 512)).sum().backward()
try:
    graphs(less)
    told = "works"
except AssertionError as error:
    told = f"AssertionError: {error}"
print(f"buckets of 0.5 MB: eager works; compiled {told}")
assert alone == [12] and wrapped == [] and large == [10, 2] and small == [2] * 6
assert told.startswith("AssertionError: First bucket should be smaller")
PY
"$folder/venv/bin/python" -W ignore "$folder/run.py" 2> "$folder/errors" || { cat "$folder/errors"; exit 1; }
