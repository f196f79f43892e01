"""Convolutions, pooling and batch normalization as steps of a recipe, and their gradients."""

import math

from .graph import aten, number
from .indices import Unsupported, apart, extent, reshaped, unite
from .values import Formula, Place, Pooled, Position, constant, derive, new_axis, whole

POOLED = aten.max_pool2d_with_indices.default


def _each(value, dims):
    """One number for each dim of a window."""
    value = list(value)
    return value * dims if len(value) == 1 else value or None


def reason_against(node):
    """Why one of these operators stays with PyTorch."""
    if node.target is POOLED and any(user.args[1] != 0 and not is_of_gradients(user) for user in node.users):
        return "the places of maxima are read"
    return None


def is_of_gradients(places):
    """Whether nothing but gradients reads the places of maxima, so that they need not be numbers of elements."""
    return all(user.target is aten.max_pool2d_with_indices_backward.default for user in places.users)


def _window(recipe, value, fresh, windows, strides, pads, dilations, fill):
    """Where a window reads the last axes of a tensor: ``stride * p + dilation * r - pad``."""
    dims = len(windows)
    read = list(fresh)
    for n in range(dims):
        axis = value.axes[len(value.axes) - dims + n]
        out, inside = fresh[len(fresh) - dims + n], windows[n]
        size, reach = extent(axis), strides[n] * (extent(out) - 1) + dilations[n] * (extent(inside) - 1)
        if not axis:
            if reach or pads[n]:
                raise Unsupported("a window reads around a single place")
            read[len(read) - dims + n] = []
            continue
        if strides[n] == 1 and not inside and not pads[n] and extent(out) == size:
            unite(axis, out)
            read[len(read) - dims + n] = out
            continue
        whole(axis)
        constant(inside)
        _relate(out, axis, strides[n], pads[n], dilations[n] * (extent(inside) - 1))
        outside = pads[n] > 0 or reach - pads[n] >= size
        read[len(read) - dims + n] = Place([(strides[n], out), (dilations[n], inside)], -pads[n], fill if outside else None)
    return read


def _relate(out, axis, stride, pad, reach):
    """The number of windows along an axis: as many as fit, or one more where the last may be cut off."""
    for more in (0, stride - 1):
        beside = 2 * pad - reach - 1 + more
        if extent(out) == (extent(axis) + beside) // stride + 1:
            derive(out, axis, "{}" if (stride, beside) == (1, -1) else f"({{}}{beside:+d})/{stride} + 1")
            return


def _grouped(axis, groups):
    """An axis as groups and what is in each."""
    return reshaped([axis], (groups, extent(axis) // groups))


def _draw_kernel(recipe, kernel, node):
    """Plans are checked with kernels that keep the magnitude of images through rectifiers, as those of a model do: with others, a network of
    twenty layers has no finite result in f32."""
    recipe.drawn.setdefault(kernel.name, (6 / math.prod(node.meta["val"].shape[1:])) ** 0.5)


def _convolved(recipe, x, kernel, places, strides, pads, dilations, groups, bias=None):
    """The windows of ``x``, of shape [n, groups·c, …], times a kernel of [groups·o, c, …]."""
    taken = []
    batch = apart(x.axes[0], taken)
    windows = [apart(a, taken) for a in kernel.axes[2:]]
    group, channels = _grouped(x.axes[1], groups)
    if groups > 1:
        kept_group, features = _grouped(kernel.axes[0], groups)
        unite(group, kept_group)
    else:
        features = kernel.axes[0]
    unite(channels, kernel.axes[1])
    inner, outer, feature = apart(channels, taken), apart(group, taken), apart(features, taken)
    places = [apart(a, taken) for a in places]
    made = [*outer, *feature]
    x_seen = x.seen([x.axes[0], group + channels if groups > 1 else x.axes[1], *x.axes[2:]])
    taps, own = _taps_at_single_places(x, windows, places, strides, pads, dilations)
    reached = [[] if n in own else place for n, place in enumerate(places)]
    unpadded = [0 if n in own else pad for n, pad in enumerate(pads)]
    inside = [[] if n in own else window for n, window in enumerate(windows)]
    read = _window(recipe, x_seen, [batch, [*outer, *inner], *reached], inside, strides, unpadded, dilations, 0)
    for n in own:
        whole(kernel.axes[2 + n])
    operands = [(kernel, [made, inner, *taps]), (x_seen, read)]
    product = "{0} * {1}"
    if bias is not None:
        unite(bias.axes[0], kernel.axes[0])
        operands.append((bias, [made]))
        product += " + {2}"
    return recipe.step([batch, made, *places], product, operands, [inner, *inside])


def _taps_at_single_places(x, windows, places, strides, pads, dilations):
    """How a kernel is read, and the axes of which an image has a single place: there the result's place says which tap meets it."""
    taps, own = list(windows), []
    for n, (window, place) in enumerate(zip(windows, places)):
        if x.axes[2 + n] or not window or dilations[n] > 1:
            continue
        inside = 0 <= pads[n] - strides[n] * (extent(place) - 1) and pads[n] < extent(window)
        taps[n] = Place([(-strides[n], place)] if place else [], pads[n], None if inside else 0)
        own.append(n)
    return taps, own


def _spread(recipe, image, kernel, axes, strides, pads, dilations, groups, bias=None):
    """A kernel of shape [groups·c, o, …] at each place of an image of [n, groups·c, …]: the result has the places of the given axes.

    Along an axis with a stride the kernel is read behind the place that it lies at, else the image in windows. A kernel of one place leaves
    places between its own at 0.
    """
    dims, sizes = len(axes), [extent(axis) for axis in axes]
    taken = []
    batch = apart(image.axes[0], taken)
    group, channels = _grouped(image.axes[1], groups)
    if groups > 1:
        kept_group, own = _grouped(kernel.axes[0], groups)
        unite(group, kept_group)
        unite(channels, own)
    else:
        unite(channels, kernel.axes[0])
    outer, inner, feature = apart(group, taken), apart(channels, taken), apart(kernel.axes[1], taken)
    made = [*outer, *feature]
    strided = [strides[n] > 1 and extent(kernel.axes[2 + n]) > 1 for n in range(dims)]
    picked = [strides[n] > 1 and extent(kernel.axes[2 + n]) == 1 for n in range(dims)]
    places, image_read, kernel_read, summed = [], [], [], [inner]
    for n in range(dims):
        own, of = kernel.axes[2 + n], image.axes[2 + n]
        if picked[n]:
            along = apart(of, taken)
            places.append(along)
            image_read.append(along)
            kernel_read.append([])
            continue
        place = apart(axes[n], taken)
        places.append(place)
        if of and place:
            constant(own)
            _relate(of, place, strides[n], pads[n], dilations[n] * (extent(own) - 1))
        if extent(own) == 1 and pads[n] == 0:
            unite(of, place)
            image_read.append(place)
            kernel_read.append([])
        elif (any(strided) or not of) and own:
            if dilations[n] > 1:
                raise Unsupported("a kernel with strides and dilations")
            whole(own)
            along = apart(of, taken)
            image_read.append(along)
            kernel_read.append(Place([(1, place), (-strides[n], along)], pads[n], 0))
            summed.append(along)
        else:
            if not of:
                raise Unsupported("a window reads around a single place")
            whole(of)
            tap = apart(own, taken)
            image_read.append(Place([(1, place), (-dilations[n], tap)], pads[n], 0))
            kernel_read.append(tap)
            summed.append(tap)
    operands = [(kernel, [[*outer, *inner], feature, *kernel_read]), (image, [batch, [*outer, *inner], *image_read])]
    product = "{0} * {1}"
    if bias is not None and not any(picked):
        unite(bias.axes[0], made)
        operands.append((bias, [made]))
        product += " + {2}"
    result = recipe.step([batch, made, *places], product, operands, summed)
    if any(picked):
        result = _put_apart(recipe, result, axes, strides, pads, picked)
        if bias is not None:
            result = recipe.pointwise("{0} + {1}", [result, bias.seen([bias.axes[0], *[[]] * dims])], (*map(extent, result.axes[:2]), *sizes))
    return result


def _put_apart(recipe, value, axes, strides, pads, picked):
    """The places of some axes at every so many places of the result, and 0 between."""
    taken = []
    fresh = [apart(axis, taken) for axis in value.axes[:2]]
    read, numbers, template = list(fresh), [], "{0}"
    for n in range(len(axes)):
        if not picked[n]:
            fresh.append(apart(value.axes[2 + n], taken))
            read.append(fresh[-1])
            continue
        place, of = apart(axes[n], taken), value.axes[2 + n]
        if not place and pads[n]:
            raise Unsupported("a window reads around a single place")
        fresh.append(place)
        if of:
            whole(of)
            _relate(of, place, strides[n], pads[n], 0)
        read.append(Place([(1, place)], pads[n], 0, strides[n]) if of else [])
        if place:
            numbers.append((Formula([place], f"{{0}} + {pads[n]}" if pads[n] else "{0}", [Position(place)]), [place]))
            number = f"{{{len(numbers)}}}"
            condition = f"{number} == {strides[n]} * floor({number} / {strides[n]})" if of else f"{number} == 0"
            template = f"where({condition}, {template}, 0)"
    return recipe.step(fresh, template, [(value, read), *numbers])


def _kernel_gradient(recipe, gradient, x, taps, strides, pads, dilations, groups):
    """Of a kernel of shape [groups·o, c, *taps] by the gradient of its result and what it was convolved with."""
    unite(gradient.axes[0], x.axes[0])
    outer, features = _grouped(gradient.axes[1], groups)
    group, channels = _grouped(x.axes[1], groups)
    if groups > 1:
        unite(outer, group)
    taken = []
    batch, outer, feature, channel = apart(x.axes[0], taken), apart(outer, taken), apart(features, taken), apart(channels, taken)
    windows = [apart(a, taken) for a in taps]
    places = [apart(a, taken) for a in gradient.axes[2:]]
    x_seen = x.seen([x.axes[0], group + channels if groups > 1 else x.axes[1], *x.axes[2:]])
    met, reached, unpadded, inside, alone = list(places), list(places), list(pads), list(windows), []
    for n, (window, place) in enumerate(zip(windows, places)):
        # The only place of an image meets one tap, or for each tap at most one place of the result.
        if x.axes[2 + n] or not (window or pads[n]):
            continue
        if place and (strides[n] > 1 or dilations[n] > 1 or not window):
            raise Unsupported("a window reads around a single place")
        reached[n], unpadded[n], inside[n] = [], 0, []
        if place:
            whole(gradient.axes[2 + n])
            met[n] = Place([(-1, window)], pads[n], 0)
        else:
            alone.append(n)
    read = _window(recipe, x_seen, [batch, [*outer, *channel], *reached], inside, strides, unpadded, dilations, 0)
    operands = [(gradient, [batch, [*outer, *feature], *met]), (x_seen, read)]
    made = [[] if n in alone else window for n, window in enumerate(windows)]
    result = recipe.step([[*outer, *feature], channel, *made], "{0} * {1}", operands, [batch, *reached])
    return _at_one_tap(recipe, result, windows, alone, pads, dilations) if alone else result


def _at_one_tap(recipe, value, windows, alone, pads, dilations):
    """A kernel that is 0 but for one tap along some axes."""
    taken = []
    fresh = [apart(axis, taken) for axis in value.axes[:2]]
    read, numbers, template = list(fresh), [], "{0}"
    for n, window in enumerate(windows):
        if n in alone:
            numbers.append((Formula([window], "{0}", [Position(window)]), [window]))
            template = f"where({dilations[n]} * {{{len(numbers)}}} == {pads[n]}, {template}, 0)"
        fresh.append(window if n in alone else apart(value.axes[2 + n], taken))
        read.append([] if n in alone else fresh[-1])
    return recipe.step(fresh, template, [(value, read), *numbers])


def _convolution(recipe, node, args, shape):
    x, kernel, bias, strides, pads, dilations, transposed, _, groups = args
    dims = len(shape) - 2
    strides, pads, dilations = _each(strides, dims), _each(pads, dims), _each(dilations, dims)
    x, kernel = recipe.stored(x), recipe.stored(kernel)
    _draw_kernel(recipe, kernel, node.args[1])
    if transposed:
        return _spread(recipe, x, kernel, [new_axis(n) for n in shape[2:]], strides, pads, dilations, groups, bias)
    return _convolved(recipe, x, kernel, [new_axis(n) for n in shape[2:]], strides, pads, dilations, groups, bias)


def _convolution_gradient(recipe, node, args, shape):
    """Of input, kernel and bias."""
    gradient, x, kernel, _, strides, pads, dilations, transposed, _, groups, wanted = args
    gradient, x, kernel = (recipe.stored(v) for v in (gradient, x, kernel))
    _draw_kernel(recipe, kernel, node.args[2])
    dims = len(x.axes) - 2
    by = (_each(strides, dims), _each(pads, dims), _each(dilations, dims), groups)
    found = [None, None, None]
    if wanted[0] and transposed:
        found[0] = _convolved(recipe, gradient, kernel, x.axes[2:], *by)
    elif wanted[0]:
        found[0] = _spread(recipe, gradient, kernel, x.axes[2:], *by)
    if wanted[1]:
        # A transposed convolution reads the gradient in windows, and has the image in the place of the result.
        found[1] = _kernel_gradient(recipe, *((x, gradient) if transposed else (gradient, x)), kernel.axes[2:], *by)
    if wanted[2]:
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
    top = _pool(recipe, x, kernel, strides, _each(pads, 2), _each(dilations, 2), made, "max({0}, over: [OVER])", float("-inf"))
    return top, Pooled(top)


def _max_pool_gradient(recipe, node, args, shape):
    """The gradient of a window goes to the first element that equals its maximum. Which tap of the window that is is found first, then each
    element looks at the windows that it lies in."""
    gradient, x, kernel, strides, pads, dilations, _, pooled = args
    if not isinstance(pooled, Pooled):
        raise Unsupported("the places of maxima are given")
    gradient, x, top = recipe.stored(gradient), recipe.stored(x), pooled.top
    kernel, pads = _each(kernel, 2), _each(pads, 2)
    strides = _each(strides, 2) or kernel
    if any(d != 1 for d in dilations):
        raise Unsupported("the gradient of a dilated pooling")
    if kernel == [1, 1]:
        raise Unsupported("the gradient of a pooling of single elements")
    # A tap that a window lacks has the number of none that it has.
    row = kernel[1] + strides[1]
    for one, other in [*zip(gradient.axes, top.axes), *zip(x.axes[:-2], top.axes[:-2])]:
        unite(one, other)
    taken = []
    fresh = [apart(a, taken) for a in top.axes]
    taps = [new_axis(n) for n in kernel]
    read = _window(recipe, x, fresh, taps, strides, pads, [1, 1], float("-inf"))
    tap = (Formula(taps, f"{row} * {{0}} + {{1}}", [Position(a) for a in taps]), taps)
    found = "min(where({0} == {1}, {2}, where({0} != {0}, {2}, inf)), over: [OVER])"
    first = recipe.step(fresh, found, [(x, read), (top, fresh), tap], taps)
    taken = []
    fresh = [apart(a, taken) for a in x.axes]
    read, steps, numbers = {-1: fresh[:-2], 0: fresh[:-2]}, [], []
    for n in range(2):
        place, window, stride = fresh[n - 2], gradient.axes[n - 2], strides[n]
        step = new_axis((kernel[n] + stride - 1) // stride) if window else []
        steps.append(step)
        inside = f"{{0}} + {pads[n]}"
        if window:
            _relate(window, place, stride, pads[n], kernel[n] - 1)
            whole(window)
            whole(first.axes[n - 2])
            inside += f" - {stride} * floor(({{0}} + {pads[n]}) / {stride}) + {stride} * {{1}}"
        numbers.append((Formula([place, step], inside, [Position(place), Position(step)]), [place, step]))
        for fill in read:
            behind = Place([(1, place)], pads[n], fill, stride, [(-1, step)] if step else [])
            read[fill] = [*read[fill], behind if window else []]
    template = f"where({{0}} == {row} * {{2}} + {{3}}, {{1}}, 0)"
    template = f"sum({template}, over: [OVER])" if any(steps) else template
    return recipe.step(fresh, template, [(first, read[-1]), (gradient, read[0]), *numbers], steps)


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
    POOLED: _max_pool,
    aten.max_pool2d_with_indices_backward.default: _max_pool_gradient,
    aten.avg_pool2d.default: _average_pool,
    aten._native_batch_norm_legit_no_training.default: _given_statistics,
    aten._native_batch_norm_legit_functional.default: _own_statistics,
}
