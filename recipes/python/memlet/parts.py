"""Parts of tensors and rows by number: slices, ``cat``, padding, embeddings, losses that pick by labels, and their gradients."""

from .graph import aten, number
from .indices import Unsupported, apart, extent, unite
from .values import Formula, Place, Position, Row, Value, new_axis, whole


def reason_against(node):
    """Why one of these operators stays with PyTorch."""
    if node.target is aten.nll_loss_forward.default and node.args[2] is not None:
        return "classes have weights"
    if node.target is aten.embedding_dense_backward.default and len(node.args) > 4 and node.args[4]:
        return "gradients are scaled by frequency"
    if node.target is aten.cat.default and any(n.meta["val"].dtype != node.meta["val"].dtype for n in node.all_input_nodes):
        return "tensors of several types are joined"
    return None


def _bounds(n, start, end):
    start = 0 if start is None else min(max(start + n if start < 0 else start, 0), n)
    end = n if end is None else min(max(end + n if end < 0 else end, start), n)
    return start, end


def _part(recipe, value, dim, start, step, n):
    """``value[…, start + step * i, …]`` with ``i < n``."""
    if isinstance(value, Formula):
        value = recipe.stored(value)
    dim %= len(value.axes)
    axis = value.axes[dim]
    if extent(axis) == n and step == 1:
        return value
    taken = []
    fresh = [apart(a, taken) if d != dim else new_axis(n) for d, a in enumerate(value.axes)]
    if value.lacks(axis):
        return value.seen([new_axis(n) if d == dim else a for d, a in enumerate(value.axes)])
    whole(axis)
    read = [Place([(step, fresh[d])], start) if d == dim else a for d, a in enumerate(fresh)]
    return recipe.step(fresh, "{0}", [(value, read)])


def _slice(recipe, node, args, shape):
    value, dim, start, end, step = [*args, *(0, None, None, 1)[len(args) - 1 :]]
    dim %= len(shape)
    start, _ = _bounds(extent(value.axes[dim]), start, end)
    return _part(recipe, value, dim, start, step, shape[dim])


def _select(recipe, node, args, shape):
    value, dim, at = args
    dim %= len(value.axes)
    made = _part(recipe, value, dim, at % extent(value.axes[dim]), 1, 1)
    return made.seen([a for d, a in enumerate(made.axes) if d != dim])


def _spread(recipe, value, dim, n, start, step, fill=0):
    """A tensor of ``n`` places along an axis with ``value`` from ``start`` on in every ``step``-th, and ``fill`` elsewhere."""
    value = recipe.stored(value)
    dim %= len(value.axes)
    if step != 1:
        raise Unsupported("the gradient of a slice with steps")
    if extent(value.axes[dim]) == n and start == 0:
        return value
    taken = []
    fresh = [apart(a, taken) if d != dim else new_axis(n) for d, a in enumerate(value.axes)]
    axis = value.axes[dim]
    if not axis:
        # A single place: no index of the operand tells whether it is this one.
        here = Formula([fresh[dim]], f"{{0}} == {start}", [Position(fresh[dim])])
        others = [a if d != dim else [] for d, a in enumerate(fresh)]
        return recipe.step(fresh, f"where({{0}}, {{1}}, {fill})", [(here, [fresh[dim]]), (value, others)])
    if value.lacks(axis):
        raise Unsupported("an expanded axis is padded")
    whole(axis)
    read = [Place([(1, fresh[d])], -start, fill) if d == dim else a for d, a in enumerate(fresh)]
    return recipe.step(fresh, "{0}", [(value, read)])


def _split(recipe, node, args, shape):
    value, sizes, dim = [*args, 0][:3]
    starts = [sum(sizes[:n]) for n in range(len(sizes))]
    return tuple(_part(recipe, value, dim, start, 1, n) for start, n in zip(starts, sizes))


def _slice_gradient(recipe, node, args, shape):
    value, sizes, dim, start, end, step = args
    start, _ = _bounds(sizes[dim], start, end)
    return _spread(recipe, value, dim, sizes[dim], start, step)


def _select_gradient(recipe, node, args, shape):
    value, sizes, dim, at = args
    dim %= len(sizes)
    value = recipe.stored(value)
    return _spread(recipe, value.seen([*value.axes[:dim], [], *value.axes[dim:]]), dim, sizes[dim], at % sizes[dim], 1)


def _pad(recipe, node, args, shape):
    value, pads, fill = [*args, 0][:3]
    for n in range(len(pads) // 2):
        before, after = pads[2 * n : 2 * n + 2]
        dim = len(shape) - 1 - n
        if min(before, after) < 0:
            # What is taken away first.
            value = _part(recipe, value, dim, max(-before, 0), 1, extent(value.axes[dim]) + min(before, 0) + min(after, 0))
        value = _spread(recipe, value, dim, shape[dim], max(before, 0), 1, fill)
    return value


def _cat(recipe, node, args, shape):
    values, dim = [recipe.stored(v) for v in args[0]], (args[1] if len(args) > 1 else 0) % len(shape)
    for d in range(len(shape)):
        for other in values[1:]:
            if d != dim:
                unite(values[0].axes[d], other.axes[d])
    sizes = {extent(value.axes[dim]) for value in values}
    if len(sizes) == 1 and len(values) > 1 and all(user.target is aten.view.default for user in node.users):
        return _stacked(recipe, values, dim)
    taken = []
    fresh = [apart(a, taken) if d != dim else new_axis(shape[dim]) for d, a in enumerate(values[0].axes)]
    whole(fresh[dim])
    template, operands, at = "", [(Formula([fresh[dim]], "{0}", [Position(fresh[dim])]), [fresh[dim]])], 0
    for n, value in enumerate(values):
        axis = value.axes[dim]
        if axis:
            if value.lacks(axis):
                raise Unsupported("an expanded axis is joined")
            whole(axis)
        read = [Place([(1, fresh[d])], -at, 0) if d == dim and axis else [] if d == dim else a for d, a in enumerate(fresh)]
        operands.append((value, read))
        at += extent(axis)
        last = n == len(values) - 1
        template += f"{{{n + 1}}}" if last else f"where({{0}} < {at}, {{{n + 1}}}, "
    return recipe.step(fresh, template + ")" * (len(values) - 1), operands)


def _stacked(recipe, values, dim):
    """Equal tensors behind one another along an axis that a view divides: which of them, and the place in it."""
    for other in values[1:]:
        unite(values[0].axes[dim], other.axes[dim])
    taken = []
    fresh = [apart(a, taken) for a in values[0].axes]
    which = new_axis(len(values))
    operands = [(Formula([which], "{0}", [Position(which)]), [which]), *((value, fresh) for value in values)]
    template = "".join(f"where({{0}} == {n}, {{{n + 1}}}, " for n in range(len(values) - 1)) + f"{{{len(values)}}}" + ")" * (len(values) - 1)
    return recipe.step([which + a if d == dim else a for d, a in enumerate(fresh)], template, operands)


def _index(recipe, index, axes, n):
    """The subscript that a tensor of whole numbers is, or the axis that numbers of indices run along."""
    if isinstance(index, Value):
        return Row(index, axes)
    plain = isinstance(index, Formula) and index.template == "{0}" and [type(o) for o in index.operands] == [Position]
    if not plain or sum(1 for a in axes if a) > 1:
        raise Unsupported("rows are named by what is computed")
    return Place([(1, a) for a in axes if a])


def _embedding(recipe, node, args, shape):
    table, index = args[:2]
    taken = []
    rows = [apart(a, taken) for a in index.axes]
    kept = apart(table.axes[1], taken)
    whole(table.axes[0])
    if not table.axes[0]:
        raise Unsupported("a table of one row")
    read = _index(recipe, index, rows, shape)
    return recipe.step([*rows, kept], "{0}", [(table, [read, kept])])


def _embedding_gradient(recipe, node, args, shape):
    gradient, index, rows, padding = args[:4]
    gradient = recipe.stored(gradient)
    taken = []
    fresh = [apart(a, taken) for a in gradient.axes]
    at, kept, row = fresh[:-1], fresh[-1], new_axis(rows)
    whole(row)
    if not isinstance(index, Value):
        place = _index(recipe, index, at, rows)
        if any(extent(a) > 1 and gradient.lacks(a) for a in gradient.axes):
            raise Unsupported("an expanded gradient of rows")
        for axis in gradient.axes[:-1]:
            whole(axis)
        read = [Place([(1, row)], 0, 0) if a else [] for a in gradient.axes[:-1]]
        return recipe.step([row, kept], "{0}", [(gradient, [*read, kept])])
    for one, other in zip(index.axes, gradient.axes):
        unite(one, other)
    over = [a for a in at if a]
    value = "{0}" if padding is None or padding < 0 else f"where({{1}} == {padding}, 0, {{0}})"
    if value != "{0}":
        masked = recipe.step(fresh, value, [(gradient, fresh), (index, at)])
        gradient = masked
    if not over:
        raise Unsupported("a gradient of a single row")
    here = Formula([row], "{0}", [Position(row)])
    return recipe.step([row, kept], "scatter({0}, {1}, over: [OVER], into: {2})", [(gradient, fresh), (index, at), (here, [row])], over)


def _nll(recipe, node, args, shape):
    """The loss, and how many labels count."""
    score, label, _, reduction, ignored = args
    score = recipe.stored(score)
    if len(score.axes) != 2 or not score.axes[1] or not score.axes[0]:
        raise Unsupported("a loss of one sample or one class")
    unite(score.axes[0], label.axes[0])
    taken = []
    rows, classes = apart(score.axes[0], taken), apart(score.axes[1], taken)
    picked = Formula([classes], "{0}", [Position(classes)])
    template = "-sum(where({1} == {2}, {0}, 0), over: [OVER])"
    if ignored >= 0:
        template = f"where({{1}} == {ignored}, 0, {template})"
    loss = recipe.step([rows], template, [(score, [rows, classes]), (label, [rows]), (picked, [classes])], [classes])
    counts = _counted(recipe, label, ignored)
    if reduction == 0:
        return loss, counts
    summed = recipe.reduction(loss, [0], False, "sum")
    return (recipe.pointwise("{0} / {1}", [summed, counts], ()) if reduction == 1 else summed), counts


def _counted(recipe, label, ignored):
    is_counted = recipe.pointwise(f"where({{0}} == {number(ignored)}, 0, 1)", [label], (extent(label.axes[0]),))
    return recipe.reduction(is_counted, [0], False, "sum")


def _nll_gradient(recipe, node, args, shape):
    gradient, score, label, _, reduction, ignored, counts = args
    unite(score.axes[0], label.axes[0])
    taken = []
    rows, classes = apart(score.axes[0], taken), apart(score.axes[1], taken)
    picked = Formula([classes], "{0}", [Position(classes)])
    share = {0: "{0}", 1: "{0} / {3}", 2: "{0}"}[reduction]
    hit = f"where({{1}} == {{2}}, -({share}), 0)"
    if ignored >= 0:
        hit = f"where({{1}} == {ignored}, 0, {hit})"
    operands = [(gradient, [rows] if reduction == 0 else []), (label, [rows]), (picked, [classes]), (counts, [])]
    return recipe.step([rows, classes], hit, operands)


LOWERED = {
    aten.slice.Tensor: _slice,
    aten.select.int: _select,
    aten.split_with_sizes.default: _split,
    aten.slice_backward.default: _slice_gradient,
    aten.select_backward.default: _select_gradient,
    aten.constant_pad_nd.default: _pad,
    aten.cat.default: _cat,
    aten.embedding.default: _embedding,
    aten.embedding_dense_backward.default: _embedding_gradient,
    aten.nll_loss_forward.default: _nll,
    aten.nll_loss_backward.default: _nll_gradient,
}
