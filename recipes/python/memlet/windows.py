"""Convolutions, pooling and batch normalization as steps of a recipe, and their gradients."""

import math

from .graph import aten, number
from .indices import Unsupported, apart, extent, reshaped, unite
from .values import Place, Pooled, new_axis, whole


def _each(value, dims):
    """One number for each dim of a window."""
    value = list(value)
    return value * dims if len(value) == 1 else value or None


def reason_against(node):
    """Why one of these operators stays with PyTorch."""
    if node.target is aten.convolution.default:
        if node.args[6]:
            return "a transposed convolution"
    if node.target is aten.convolution_backward.default:
        if node.args[7]:
            return "a transposed convolution"
        if any(s != 1 for s in node.args[4]) and node.args[10][0]:
            return "the gradient of a convolution with strides"
    if node.target is aten.max_pool2d_with_indices.default:
        if any(user.args[1] != 0 for user in node.users):
            return "the places of maxima are read"
    return None


def _window(recipe, value, fresh, windows, strides, pads, dilations, fill):
    """Where a window reads the last axes of a tensor: ``stride * p + dilation * r - pad``."""
    dims = len(windows)
    read = list(fresh)
    for n in range(dims):
        axis = value.axes[len(value.axes) - dims + n]
        out, inside = fresh[len(fresh) - dims + n], windows[n]
        size, reach = extent(axis), strides[n] * (extent(out) - 1) + dilations[n] * (extent(inside) - 1)
        if not axis:
            if pads[n] or reach:
                raise Unsupported("a window reads around a single place")
            read[len(read) - dims + n] = []
            continue
        whole(axis)
        outside = pads[n] > 0 or reach - pads[n] >= size
        read[len(read) - dims + n] = Place([(strides[n], out), (dilations[n], inside)], -pads[n], fill if outside else None)
    return read


def _grouped(axis, groups):
    """An axis as groups and what is in each."""
    return reshaped([axis], (groups, extent(axis) // groups))


def _draw_kernel(recipe, kernel, node):
    """Plans are checked with kernels that keep the magnitude of images through rectifiers, as those of a model do: with others, a network of
    twenty layers has no finite result in f32."""
    recipe.drawn.setdefault(kernel.name, (6 / math.prod(node.meta["val"].shape[1:])) ** 0.5)


def _convolution(recipe, node, args, shape):
    x, kernel, bias, strides, pads, dilations, _, _, groups = args
    dims = len(shape) - 2
    strides, pads, dilations = _each(strides, dims), _each(pads, dims), _each(dilations, dims)
    x, kernel = recipe.stored(x), recipe.stored(kernel)
    _draw_kernel(recipe, kernel, node.args[1])
    taken = []
    batch, places = apart(x.axes[0], taken), [new_axis(n) for n in shape[2:]]
    windows = [apart(a, taken) for a in kernel.axes[2:]]
    group, channels = _grouped(x.axes[1], groups)
    if groups > 1:
        kept_group, features = _grouped(kernel.axes[0], groups)
        unite(group, kept_group)
    else:
        features = kernel.axes[0]
    unite(channels, kernel.axes[1])
    inner, outer, feature = apart(channels, taken), apart(group, taken), apart(features, taken)
    made = [*outer, *feature]
    x_seen = x.seen([x.axes[0], group + channels if groups > 1 else x.axes[1], *x.axes[2:]])
    read = _window(recipe, x_seen, [batch, [*outer, *inner], *places], windows, strides, pads, dilations, 0)
    operands = [(kernel, [made, inner, *windows]), (x_seen, read)]
    product = "{0} * {1}"
    if bias is not None:
        unite(bias.axes[0], kernel.axes[0])
        operands.append((bias, [made]))
        product += " + {2}"
    return recipe.step([batch, made, *places], product, operands, [inner, *windows])


def _convolution_gradient(recipe, node, args, shape):
    """Of input, kernel and bias; the input's where windows move by one place."""
    gradient, x, kernel, _, strides, pads, dilations, _, _, groups, wanted = args
    gradient, x, kernel = (recipe.stored(v) for v in (gradient, x, kernel))
    _draw_kernel(recipe, kernel, node.args[2])
    dims = len(x.axes) - 2
    strides, pads, dilations = _each(strides, dims), _each(pads, dims), _each(dilations, dims)
    if groups > 1:
        raise Unsupported("the gradient of a convolution in groups")
    unite(gradient.axes[0], x.axes[0])
    unite(gradient.axes[1], kernel.axes[0])
    unite(x.axes[1], kernel.axes[1])
    found = [None, None, None]
    for at in range(3):
        if not wanted[at]:
            continue
        taken = []
        batch, feature, channel = apart(x.axes[0], taken), apart(kernel.axes[0], taken), apart(x.axes[1], taken)
        windows = [apart(a, taken) for a in kernel.axes[2:]]
        if at == 0:
            places = [apart(a, taken) for a in x.axes[2:]]
            read = [batch, feature]
            for n in range(dims):
                axis = gradient.axes[2 + n]
                if not axis:
                    raise Unsupported("a window reads around a single place")
                whole(axis)
                read.append(Place([(1, places[n]), (-dilations[n], windows[n])], pads[n], 0))
            operands = [(kernel, [feature, channel, *windows]), (gradient, read)]
            found[0] = recipe.step([batch, channel, *places], "{0} * {1}", operands, [feature, *windows])
        elif at == 1:
            places = [apart(a, taken) for a in gradient.axes[2:]]
            read = _window(recipe, x, [batch, channel, *places], windows, strides, pads, dilations, 0)
            operands = [(gradient, [batch, feature, *places]), (x, read)]
            found[1] = recipe.step([feature, channel, *windows], "{0} * {1}", operands, [batch, *places])
        else:
            found[2] = recipe.reduction(gradient, [0, *range(2, 2 + dims)], False, "sum")
    return tuple(found)


def _pool(recipe, x, kernel, strides, pads, dilations, shape, template, fill):
    dims = len(kernel)
    x = recipe.stored(x)
    taken = []
    fresh = [*[apart(a, taken) for a in x.axes[:-dims]], *[new_axis(n) for n in shape[-dims:]]]
    windows = [new_axis(n) for n in kernel]
    read = _window(recipe, x, fresh, windows, strides, pads, dilations, fill)
    if not any(windows):
        return recipe.step(fresh, "{0}", [(x, read)])
    return recipe.step(fresh, template, [(x, read)], windows)


def _max_pool(recipe, node, args, shape):
    x, kernel, strides, pads, dilations = [*args, *([], [0], [1])[len(args) - 2 :]][:5]
    kernel = _each(kernel, 2)
    strides = _each(strides, 2) or kernel
    made = tuple(node.meta["val"][0].shape)
    return _pool(recipe, x, kernel, strides, _each(pads, 2), _each(dilations, 2), made, "max({0}, over: [OVER])", float("-inf")), Pooled()


def _average_pool(recipe, node, args, shape):
    x, kernel, strides, pads, ceil, count_pad, divisor = [*args, *([], [0], False, True, None)[len(args) - 2 :]][:7]
    kernel = _each(kernel, 2)
    strides, pads = _each(strides, 2) or kernel, _each(pads, 2)
    inside = [strides[n] * (shape[n - 2] - 1) + kernel[n] - pads[n] <= extent(x.axes[n - 2]) for n in range(2)]
    if (any(pads) and not count_pad) or (ceil and not all(inside)):
        raise Unsupported("an average over windows of several sizes")
    by = divisor or kernel[0] * kernel[1]
    return _pool(recipe, x, kernel, strides, pads, [1, 1], shape, f"sum({{0}}, over: [OVER]) * {number(1 / by)}", 0)


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
    aten.convolution.default: _convolution,
    aten.convolution_backward.default: _convolution_gradient,
    aten.max_pool2d_with_indices.default: _max_pool,
    aten.avg_pool2d.default: _average_pool,
    aten._native_batch_norm_legit_no_training.default: _given_statistics,
    aten._native_batch_norm_legit_functional.default: _own_statistics,
}
