"""Equal layers of a graph: stretches of operators that repeat, so that one plan serves all of them.

The operators of a model stand in the order of its layers. A stretch repeats where the operators a period further on are the same, on
tensors of the same shapes. A wrong guess here costs time alone: a recipe is made of each stretch by itself, and equal ones share a plan.
"""

import operator

import torch

from .masks import MASK
from .operators import POINTWISE, VIEWS, is_of_indices
from .pooling import POOLED, is_of_gradients

aten = torch.ops.aten
EQUAL = (aten.eq.Tensor,)
#: What is computed again from saved values at little cost, beside functions point by point.
CHEAP_TO_RECOMPUTE = (aten.gelu.default, aten.silu.default, aten.native_layer_norm.default)
EXTREMA = (aten.amax.default, aten.amin.default)

#: Operators that a layer must have to be worth a plan of its own.
LEAST = 8


def _kind(node):
    """What two operators of equal layers have in common."""

    def described(a):
        if isinstance(a, torch.fx.Node):
            value = a.meta.get("val")
            return ("tensor", tuple(value.shape), value.dtype) if isinstance(value, torch.Tensor) else "several"
        if isinstance(a, (list, tuple)):
            return tuple(described(b) for b in a)
        return repr(a)

    args = node.args if node.target is not MASK else (None, *node.args[1:3], None, None, node.args[5])
    return (str(node.target), described(args), tuple((k, described(v)) for k, v in sorted(node.kwargs.items())))


def repeated(nodes):
    """The stretches that repeat: (first, period, times, slack), of the longest repetition; ``None`` without any."""
    numbers, kinds = {}, []
    for node in nodes:
        kinds.append(numbers.setdefault(_kind(node), len(numbers)))
    places = {}
    for at, kind in enumerate(kinds):
        places.setdefault(kind, []).append(at)
    # A layer has operators that stand in it once: their distances are the periods to try.
    periods = {b - a for at in places.values() if len(at) < 64 for a, b in zip(at, at[1:])}
    best = None
    for period in sorted(p for p in periods if p >= LEAST):
        run = first = 0
        for at in range(len(kinds) - period + 1):
            if at < len(kinds) - period and kinds[at] == kinds[at + period]:
                first = at if run == 0 else first
                run += 1
                continue
            if run >= period and (best is None or run + period > best[0]):
                best = (run + period, first, period)
            run = 0
    if best is None:
        return None
    length, first, period = best
    return first, period, length // period, length % period


def _crossing(nodes, numbers, cut):
    """The bytes that cross a cut, saved tensors aside."""
    found = 0
    for node in nodes[:cut]:
        if any(numbers.get(user, -1) >= cut for user in node.users):
            value = node.meta.get("val")
            several = value if isinstance(value, (tuple, list)) else [value]
            found += sum(v.numel() * v.element_size() for v in several if isinstance(v, torch.Tensor))
    return found


def _steps(nodes):
    """The steps of the masks among some operators."""
    return {node.args[4] for node in nodes if node.target is MASK}


def in_order(graph):
    """Puts masks, and what is made of indices alone, before each operator that reads it, and views that are handed out behind what they
    view: so layers are equal as lists of operators, and nothing of no cost crosses from one to the next."""
    for node in reversed(list(graph.nodes)):
        if node.op != "call_function" or not (node.target is MASK or is_of_indices(node)):
            continue
        for user in list(node.users):
            if user.op == "output":
                continue
            with graph.inserting_before(user):
                own = graph.node_copy(node, lambda n: n)
            user.replace_input_with(node, own)
        if not node.users:
            graph.erase_node(node)
    for node in list(graph.nodes):
        if node.op == "call_function" and node.target in VIEWS and len(node.all_input_nodes) == 1 and node.users:
            if all(user.op == "output" for user in node.users) and node.all_input_nodes[0].op == "call_function":
                node.all_input_nodes[0].append(node)


def is_free(node):
    """Whether computing a value again costs nothing: views, masks, and what is made of indices alone."""
    return node.op == "call_function" and (node.target in VIEWS or node.target is MASK or is_of_indices(node))


def is_compared(node):
    """Whether a value, or a view of it, is compared for equality."""
    return any(user.target in EQUAL or (user.target in VIEWS and is_compared(user)) for user in node.users)


def sources(nodes):
    """What values are made of that cost nothing, or that plans are checked with better: to be saved for backward in their place, where
    each is made again.

    A view that is saved as such would be copied, since it has strides that no plan makes. The gradient of an extremum goes where elements
    equal it. Backward reads these elements anyway; of an extremum that it is given, values drawn for a check would equal none. Neither are
    the places of a pooling's maxima saved, which no recipe makes.
    """
    found = {}
    for node in nodes:
        if node.target is operator.getitem and node.args[1] == 1 and node.args[0].target is POOLED and is_of_gradients(node):
            found.update(dict.fromkeys(sources([node.args[0].args[0]])))
            continue
        is_extremum = node.target in EXTREMA and is_compared(node)
        for of in sources(node.all_input_nodes) if is_free(node) or is_extremum else [node]:
            found[of] = None
    return list(found)


def without_rematerialized(nodes):
    """Saved values without those that are made of others that are saved, point by point or by a normalization: backward computes them again
    from what it reads anyway. A dropped-out softmax is one, a GELU whose argument is saved, and what a layer norm makes."""
    kept = dict.fromkeys(nodes)

    def origins(node):
        """The saved values and inputs of the graph that a value is made of at no cost; ``None`` if there are others."""
        if node in kept or node.op == "placeholder":
            return [node]
        of = [origins(n) for n in node.all_input_nodes] if is_free(node) else [None]
        return None if None in of else [n for one in of for n in one]

    for node in nodes:
        made = node.args[0] if node.target is operator.getitem and node.args[1] == 0 else node
        if made.op == "call_function" and (made.target in POINTWISE or made.target in CHEAP_TO_RECOMPUTE):
            del kept[node]
            of = [origins(n) for n in made.all_input_nodes]
            # Inputs of the graph, as parameters, lie in memory anyway.
            kept.update(dict.fromkeys([node] if None in of else [n for one in of for n in one]))
    return list(kept)


def operators(graph):
    return [node for node in graph.nodes if node.op == "call_function"]


def settle(forward, backward):
    """Gives the masks of both graphs their streams and steps: those of equal layers differ in the step alone.

    Marks every operator with its group, ``meta["memlet_group"]``. No group has masks of two steps.
    """
    graphs = [graph for graph in (forward, backward) if graph is not None]
    for graph in graphs:
        in_order(graph)
    nodes = operators(forward)
    groups = divide(nodes, False)
    names, count = {}, {}
    for node, group in zip(nodes, groups):
        if node.target is MASK and node.args[3] not in names:
            names[node.args[3]] = (count.get(group, 0), group)
            count[group] = count.get(group, 0) + 1
    for graph in graphs:
        for node in operators(graph):
            if node.target is MASK:
                node.args = (*node.args[:3], *names[node.args[3]], node.args[5])
    for graph in graphs:
        nodes = operators(graph)
        if graph is backward:
            groups = divide(nodes, True)
        part, last, step = 0, None, None
        for node, group in zip(nodes, groups):
            own = node.args[4] if node.target is MASK else None
            if group != last or (own is not None and step not in (None, own)):
                part, step = part + 1, None
            last, step = group, own if own is not None else step
            # What an operator with several results hands out stays with it.
            node.meta["memlet_group"] = part if node.target is not operator.getitem else node.args[0].meta["memlet_group"]


def divide(nodes, settled):
    """Gives each operator the number of its group: what is before the layers, one for each layer, what is behind them.

    Layers are cut where the fewest bytes cross. With ``settled`` masks no layer reads those of two steps.
    """
    groups = [0] * len(nodes)
    found = repeated(nodes)
    if found is None:
        return groups
    first, period, times, slack = found
    numbers = {node: at for at, node in enumerate(nodes)}
    cuts = []
    for shift in range(period):
        start = first + shift
        count = times if shift <= slack else times - 1
        if count < 2:
            continue
        layers = [nodes[start + n * period : start + (n + 1) * period] for n in range(count)]
        if settled and any(len(_steps(layer)) > 1 for layer in layers):
            continue
        cuts.append((_crossing(nodes, numbers, start + period), -count, start))
    if not cuts:
        return groups
    _, count, start = min(cuts)
    for at in range(len(nodes)):
        if at >= start:
            groups[at] = min((at - start) // period, -count) + 1
    return groups
