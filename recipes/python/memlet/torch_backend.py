"""PyTorch programs on plans of Memlet: ``torch.compile(model, backend="memlet")`` and ``memlet.compile(module, example)``.

Dynamo and AOTAutograd make graphs of aten operators, forward and backward. What a recipe says goes to Memlet, partition by partition: a
recipe is written, optimized and built once, and kept in a cache; everything else stays with PyTorch. Equal layers are partitions with one
plan.
``memlet.torch_backend.table()`` prints which is which, and why. Which plans run is chosen of all together (`plans.py`).
"""

import contextlib
import operator
from unittest import mock

import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import partitioners
from torch.fx.graph import _BoxedCodeGen
from torch.fx.passes.infra.partitioner import CapabilityBasedPartitioner
from torch.fx.passes.operator_support import OperatorSupportBase
from torch.fx.passes.utils.fuser_utils import fuse_by_partitions

from . import decompositions, layers, plans
from .budgets import budgets
from .graph import Recipe
from .indices import Unsupported, leaves
from .library import MemletError
from .masks import MASK, SEED
from .operators import VIEWS, is_of_indices, lowered, reason_against
from .plans import Options

#: What is left to PyTorch or given to Memlet: (graph, operators, where, why).
REPORT = []


def table():
    """The partitions so far as text: where operators run, and why those of PyTorch stay there. Equal partitions have one line."""
    counted = {}
    for row in REPORT:
        counted[row] = counted.get(row, 0) + 1
    rows = [("graph", "operators", "runs in", "why")]
    rows += [(g, f"{times} x {n}" if times > 1 else str(n), where, why) for (g, n, where, why), times in counted.items()]
    return _columns(rows)


def choice():
    """The plans in use as text: which finalist of each was chosen, with its time and its share of the memory that all have in common."""
    return _columns(plans.table())


def _columns(rows):
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths)).rstrip() for row in rows)


class _Support(OperatorSupportBase):
    def is_node_supported(self, modules, node):
        return node.op == "call_function" and reason_against(node) is None


class _Partition(torch.nn.Module):
    """A partition that runs as a step of the library that its plan has now."""

    def __init__(self, plan, recipe):
        super().__init__()
        self.plan, self.seed, self.mask_step = plan, recipe.seed, recipe.mask_step or 0
        plan.users.add(self)
        self.given = []
        for value, tensor, at in recipe.inputs:
            shape = [leaf.size.root().n for axis in value.base for leaf in leaves(axis)]
            self.given.append((value.name, at, shape if list(tensor.shape) != shape else None, tensor.dtype is torch.bool))
        self.made = []
        for value, tensor in recipe.outputs:
            base = [leaf.label for axis in value.base for leaf in leaves(axis)]
            seen = [leaf for axis in value.axes for leaf in leaves(axis)]
            known = [base.index(leaf.label) if leaf.label in base else None for leaf in seen]
            sizes = [leaf.size.root().n for leaf in seen]
            plain = known == list(range(len(base)))
            self.made.append((value.name, plain, known, sizes, tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype))

    def forward(self, *tensors):
        given = {}
        for name, at, shape, is_truth in self.given:
            tensor = tensors[at].detach()
            if not tensor.is_contiguous():
                # Axes can be split without copies.
                tensor = tensor.contiguous()
            if is_truth:
                tensor = tensor.view(torch.uint8)
            given[name] = tensor if shape is None else tensor.view(shape)
        seed = 1 if self.seed is None else int(tensors[self.seed])
        results = self.plan.step(seed=seed, step=self.mask_step, **given)
        found = []
        for name, plain, known, sizes, shape, stride, dtype in self.made:
            tensor = results[name] if name in results else given[name]
            if not plain:
                tensor = tensor.permute([k for k in known if k is not None])
                for at, k in enumerate(known):
                    if k is None:
                        tensor = tensor.unsqueeze(at)
                tensor = tensor.expand(sizes)
            tensor = tensor.reshape(shape)
            if tensor.dtype != dtype:
                tensor = tensor.to(dtype)
            # The operators around it were traced for these strides.
            found.append(tensor if tensor.stride() == stride else torch.empty_strided(shape, stride, dtype=tensor.dtype).copy_(tensor))
        return tuple(found) if len(found) > 1 else found[0]


def _partitions(module):
    """The operators of each partition: connected ones that recipes say, divided into equal layers."""
    found = []
    for partition in CapabilityBasedPartitioner(module, _Support(), allows_single_node_partition=True).propose_partitions():
        groups = {}
        for node in partition.nodes:
            groups.setdefault(node.meta.get("memlet_group", 0), []).append(node)
        found += groups.values()
    order = {node: at for at, node in enumerate(module.graph.nodes)}
    worth = [n for n in (sorted(nodes, key=order.get) for nodes in found) if _is_worth_it(n)]
    return [dict.fromkeys(nodes) for nodes in sorted(worth, key=lambda nodes: order[nodes[0]])]


def _is_worth_it(nodes):
    return sum(node.target not in VIEWS and node.target is not MASK and not is_of_indices(node) for node in nodes) >= Options.least


#: How often a graph is divided anew because a partition has an operator that a recipe cannot say after all.
TRIES = 40


def _recipes(module, kind):
    """Recipes of all partitions by the name of their submodule, in a module that calls these."""
    for left in reversed(range(TRIES)):
        graph, mapped = torch.fx.Graph(), {}
        graph.output(graph.graph_copy(module.graph, mapped))
        # The constants of a graph are attributes of its module; those that the graph names are taken over.
        copied = torch.fx.GraphModule(module, graph)
        back = {new.name: old for old, new in mapped.items()}
        fused = fuse_by_partitions(copied, _partitions(copied), prefix="memlet_")
        recipes, again = {}, False
        for name, child in fused.named_children():
            try:
                recipe = Recipe(child.graph, f"torch_{kind}", lowered)
                recipes[name] = (child, recipe, recipe.text())
            except Unsupported as error:
                if error.node is not None and error.node.name in back and left:
                    back[error.node.name].meta["memlet_refused"] = str(error)
                    again = True
                else:
                    REPORT.append((kind, sum(n.op == "call_function" for n in child.graph.nodes), "PyTorch", str(error)))
        if not again:
            return fused, recipes


def _compiled(module, kind):
    name = f"{kind} {len({row[0] for row in REPORT if row[0].startswith(kind)})}"
    if not any("memlet_group" in node.meta for node in module.graph.nodes):
        decompositions.dropouts_as_masks(module)
        layers.settle(module.graph, None)
    fused, recipes = _recipes(module, kind)
    threads, made = Options.threads or torch.get_num_threads(), {}
    each = budgets([text for _, _, text in recipes.values()], Options.budget)
    for child_name, (child, recipe, text) in recipes.items():
        operators = sum(n.op == "call_function" for n in child.graph.nodes)
        try:
            made[child_name] = operators, _Partition(plans.plan(text, threads, each[text]), recipe)
        except MemletError as error:
            REPORT.append((name, operators, "PyTorch", str(error)))
    faults = plans.choose() if made else {}
    for child_name, (operators, partition) in made.items():
        if partition.plan.step is None:
            REPORT.append((name, operators, "PyTorch", faults.get(partition.plan.name, "no plan of it can be built")))
            continue
        setattr(fused, child_name, partition)
        REPORT.append((name, operators, "Memlet", partition.plan.name))
    against = {}
    for node in fused.graph.nodes:
        if node.op == "call_function" and node.target not in (operator.getitem, SEED):
            why = reason_against(node) or "a partition of its own would be too small"
            against[why] = against.get(why, 0) + 1
    for why, operators in against.items():
        REPORT.append((name, operators, "PyTorch", why))
    fused.recompile()
    return fused


def _compiler(kind):
    def compiler(module, example):
        compiled = _compiled(module, kind)
        # It takes its inputs in a list, which it empties: each is let go behind the last operator that reads it.
        compiled.graph.set_codegen(_BoxedCodeGen())
        compiled.recompile()

        def run(inputs):
            return compiled(inputs)

        run._boxed_call = True
        return run

    return compiler


def _divided(joint, inputs, **about):
    """Divides the joint graph of forward and backward; what costs nothing to compute again is not saved."""
    if Options.dropout != "pytorch":
        decompositions.dropouts_as_masks(joint)
    choose = partitioners.choose_saved_values_set

    def chosen(*args, **named):
        return layers.without_rematerialized(layers.sources(choose(*args, **named)))

    with mock.patch.object(partitioners, "choose_saved_values_set", chosen):
        forward, backward = partitioners.min_cut_rematerialization_partition(joint, inputs, **about)
    layers.settle(forward.graph, backward.graph)
    forward.recompile()
    backward.recompile()
    return forward, backward


_aot = aot_autograd(
    fw_compiler=_compiler("forward"), bw_compiler=_compiler("backward"), inference_compiler=_compiler("inference"), partition_fn=_divided,
    decompositions=decompositions.decompositions(),
)  # fmt: skip


def backend(module, example, **options):
    """The backend that ``torch.compile`` finds under the name ``memlet``."""
    decompositions.write_out(module)
    return _aot(module, example, **options)


@contextlib.contextmanager
def options(**given):
    """Options for what is compiled inside: ``budget="1m"``, ``threads=2``, ``binary=…``, ``least=…``, ``dropout="pytorch"``,
    ``memory_slack=0.05``."""
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
