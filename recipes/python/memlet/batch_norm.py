"""Batch normalization as steps of a recipe, with given statistics or those of the batch."""

from .graph import aten, number
from .indices import Unsupported


def _by_channel(recipe, template, args, rank):
    """Point by point, where tensors with one axis are of channels."""
    seen = [a.seen([a.axes[0], *[[]] * (len(rank) - 2)]) if hasattr(a, "axes") and len(a.axes) == 1 else a for a in args]
    return recipe.pointwise(template, seen, rank)


def _scaled(recipe, x, mean, inverse, weight, bias, rank):
    channels = (rank[1],)
    factor = recipe.pointwise("{0} * {1}", [inverse, weight], channels) if weight is not None else inverse
    if bias is None:
        addend = recipe.pointwise("-{0} * {1}", [mean, factor], channels)
    else:
        addend = recipe.pointwise("{0} - {1} * {2}", [bias, mean, factor], channels)
    return _by_channel(recipe, "{0} * {1} + {2}", [x, factor, addend], rank)


def _given_statistics(recipe, node, args, shape):
    """A normalization with given mean and variance."""
    x, weight, bias, mean, variance, _, eps = args
    rank = tuple(node.meta["val"][0].shape)
    if hasattr(variance, "name"):
        recipe.drawn.setdefault(variance.name, (0.5, 2.0))
    inverse = recipe.pointwise(f"rsqrt({{0}} + {eps!r})", [variance], (rank[1],))
    return _scaled(recipe, recipe.stored(x), mean, inverse, weight, bias, rank), None, None


def _own_statistics(recipe, node, args, shape):
    """Result, mean, reciprocal deviation, and the running statistics."""
    x, weight, bias, mean, variance, training, momentum, eps = args
    if not training:
        raise Unsupported("a normalization that is asked for both statistics")
    rank = tuple(node.meta["val"][0].shape)
    x = recipe.stored(x)
    dims = [0, *range(2, len(rank))]
    own = recipe.reduction(x, dims, False, "mean")
    off = _by_channel(recipe, "{0} - {1}", [x, own], rank)
    square = recipe.reduction(recipe.pointwise("{0} * {0}", [off], rank), dims, False, "mean")
    channels = (rank[1],)
    inverse = recipe.pointwise(f"rsqrt({{0}} + {eps!r})", [square], channels)
    count = 1
    for d in dims:
        count *= rank[d]
    result = _by_channel(recipe, "{0} * {1}", [off, inverse], rank)
    if weight is not None:
        result = _by_channel(recipe, "{0} * {1}", [result, weight], rank)
    if bias is not None:
        result = _by_channel(recipe, "{0} + {1}", [result, bias], rank)
    running = f"{number(1 - momentum)} * {{0}} + {number(momentum)} * {{1}}"
    unbiased = f"{number(1 - momentum)} * {{0}} + {number(momentum * count / max(count - 1, 1))} * {{1}}"
    return result, own, inverse, recipe.pointwise(running, [mean, own], channels), recipe.pointwise(unbiased, [variance, square], channels)


LOWERED = {
    aten._native_batch_norm_legit_no_training.default: _given_statistics,
    aten._native_batch_norm_legit_functional.default: _own_statistics,
}
