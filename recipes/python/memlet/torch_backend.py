"""PyTorch programs on plans of Memlet: ``torch.compile(model, backend="memlet")`` and ``memlet.compile(module, example)``.

Dynamo and AOTAutograd make graphs of aten operators, forward and backward. What a recipe says goes to Memlet, partition by partition: a recipe
is written, optimized and built once, and kept in a cache; everything else stays with PyTorch. ``memlet.torch_backend.table()`` prints
which is which, and why.
"""

import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import torch
from torch._decomp import core_aten_decompositions
from torch._dynamo.backends.common import aot_autograd
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase

from .graph import OTHERS, POINTWISE, Recipe, aten, reason_against
from .indices import Unsupported, leaves
from .library import MemletError, load

#: What is left to PyTorch or given to Memlet: (graph, operators, where, why).
REPORT = []


class Options:
    """How partitions are optimized. Environment: MEMLET is the binary, MEMLET_BUDGET the time for each partition."""

    binary = os.environ.get("MEMLET", "memlet")
    budget = os.environ.get("MEMLET_BUDGET", "10s")
    threads = None
    #: Operators that a partition must have to be worth a call.
    least = 2

    @staticmethod
    def cache():
        base = os.environ.get("MEMLET_TORCH_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME", os.path.expanduser("~/.cache")), "memlet", "torch")
        return Path(base)


def table():
    """The partitions so far as text: where operators run, and why those of PyTorch stay there."""
    rows = [("graph", "operators", "runs in", "why")] + [(g, str(n), where, why) for g, n, where, why in REPORT]
    widths = [max(len(row[c]) for row in rows) for c in range(4)]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


def _decompositions():
    kept = {aten.threshold_backward.default, aten.tanh_backward.default, aten.sigmoid_backward.default, aten.silu.default,
            aten._softmax_backward_data.default, *OTHERS, *POINTWISE}  # fmt: skip
    return {op: of for op, of in core_aten_decompositions().items() if op not in kept}


class _Support(OperatorSupportBase):
    def is_node_supported(self, modules, node):
        return node.op == "call_function" and reason_against(node) is None


class _Partition(torch.nn.Module):
    """A partition that runs as a step of a library."""

    def __init__(self, step, recipe):
        super().__init__()
        self.step = step
        self.names = [value.name for value, _ in recipe.inputs]
        self.shapes = [[leaf.size.root().n for axis in value.base for leaf in leaves(axis)] for value, _ in recipe.inputs]
        self.made = []
        for value, tensor in recipe.outputs:
            base = [leaf.label for axis in value.base for leaf in leaves(axis)]
            seen = [leaf for axis in value.axes for leaf in leaves(axis)]
            known = [base.index(leaf.label) if leaf.label in base else None for leaf in seen]
            self.made.append((value.name, known, [leaf.size.root().n for leaf in seen], tuple(tensor.shape), tuple(tensor.stride())))

    def forward(self, *tensors):
        given = {name: tensor.detach().view(shape) if tuple(tensor.shape) != tuple(shape) else tensor.detach()
                 for name, tensor, shape in zip(self.names, map(_dense, tensors), self.shapes)}  # fmt: skip
        results = self.step(**given)
        found = []
        for name, known, sizes, shape, stride in self.made:
            base = results[name] if name in results else given[name]
            base = base.permute([k for k in known if k is not None])
            for at, k in enumerate(known):
                if k is None:
                    base = base.unsqueeze(at)
            tensor = base.expand(sizes).reshape(shape)
            # The operators around it were traced for these strides.
            found.append(tensor if tensor.stride() == stride else torch.empty_strided(shape, stride, dtype=tensor.dtype).copy_(tensor))
        return tuple(found) if len(found) > 1 else found[0]


def _dense(tensor):
    """A tensor whose axes can be split: one that views of it can be made of without copies."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _run(*words):
    done = subprocess.run([Options.binary, *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MemletError(f"{' '.join([Options.binary, *words])}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else done.returncode}")


@contextlib.contextmanager
def _alone(folder):
    """Keeps a cache for this process: several that measured at once, as those of torchrun, would disturb each other's times, and write into
    one folder. The others wait, and find the library."""
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _built(text):
    """The library of a recipe, from the cache if it is there."""
    threads = Options.threads or torch.get_num_threads()
    key = hashlib.sha256(f"{text}\n{threads} {Options.budget}".encode()).hexdigest()[:20]
    folder = Options.cache() / key
    made = folder / "library" / "library.json"
    if not made.exists():
        with _alone(Options.cache()):
            if not made.exists():
                _make(text, folder, key, threads)
    return load(folder / "library", threads=threads)


def _make(text, folder, key, threads):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "recipe.yaml").write_text(text, encoding="utf-8")
    _run("optimize", str(folder / "recipe.yaml"), "--budget", Options.budget, "--timing", "1s", "--threads", str(threads), "--out",
         str(folder / "plan"))  # fmt: skip
    # A library is there whole or not at all, for processes that look for it now and for those that come after a kill.
    part = folder / "part"
    _run("build", str(folder / "plan"), "--out", str(part), "--name", f"p{key}", "--threads", str(threads))
    shutil.rmtree(folder / "library", ignore_errors=True)
    part.rename(folder / "library")


def _compiler(kind):
    def compiled(module, example):
        name = f"{kind} {len({row[0] for row in REPORT if row[0].startswith(kind)})}"
        against = {}
        for node in module.graph.nodes:
            why = reason_against(node)
            if node.op == "call_function" and why:
                against[why] = against.get(why, 0) + 1
        partitioner = CapabilityBasedPartitioner(module, _Support(), allows_single_node_partition=True)
        partitions = [p for p in partitioner.propose_partitions() if sum(n.op == "call_function" for n in p.nodes) >= Options.least]
        fused = partitioner.fuse_partitions(partitions)
        for child_name, child in list(fused.named_children()):
            operators = sum(n.op == "call_function" for n in child.graph.nodes)
            try:
                recipe = Recipe(child.graph, f"{kind}_{child_name}")
                setattr(fused, child_name, _Partition(_built(recipe.text()), recipe))
                REPORT.append((name, operators, "Memlet", child_name))
            except (Unsupported, MemletError) as error:
                REPORT.append((name, operators, "PyTorch", str(error)))
        for why, operators in against.items():
            REPORT.append((name, operators, "PyTorch", why))
        fused.recompile()
        return fused

    from functorch.compile import make_boxed_func

    return lambda module, example: make_boxed_func(compiled(module, example).forward)


#: The backend that ``torch.compile`` finds under the name ``memlet``.
backend = aot_autograd(fw_compiler=_compiler("forward"), bw_compiler=_compiler("backward"), decompositions=_decompositions())


@contextlib.contextmanager
def options(**given):
    """Options for what is compiled inside: ``budget="1m"``, ``threads=2``, ``binary=…``, ``least=…``."""
    before = {name: getattr(Options, name) for name in given}
    for name, value in given.items():
        setattr(Options, name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            setattr(Options, name, value)


def compile(module, example, **given):
    """A module that runs on plans for inputs like those of ``example``; other shapes compile once more."""
    compiled = torch.compile(module, backend=backend, dynamic=False)
    with options(**given), torch.no_grad() if not any(p.requires_grad for p in module.parameters()) else contextlib.nullcontext():
        compiled(*example)
    return compiled
