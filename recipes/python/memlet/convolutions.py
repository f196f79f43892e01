"""Convolutions and transposed convolutions as steps of a recipe, and their gradients."""

import math

from .graph import aten
from .indices import Unsupported, apart, extent, reshaped, unite
from .values import Formula, Place, Position, constant, new_axis, whole
from .windows import each, read_in_windows, relate


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
    read = read_in_windows(recipe, x_seen, [batch, [*outer, *inner], *reached], inside, strides, unpadded, dilations, 0)
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


def _transposed(recipe, image, kernel, axes, strides, pads, dilations, groups, bias=None):
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
            relate(of, place, strides[n], pads[n], dilations[n] * (extent(own) - 1))
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
        result = _zeros_inserted(recipe, result, axes, strides, pads, picked)
        if bias is not None:
            result = recipe.pointwise("{0} + {1}", [result, bias.seen([bias.axes[0], *[[]] * dims])], (*map(extent, result.axes[:2]), *sizes))
    return result


def _zeros_inserted(recipe, value, axes, strides, pads, picked):
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
            relate(of, place, strides[n], pads[n], 0)
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
    read = read_in_windows(recipe, x_seen, [batch, [*outer, *channel], *reached], inside, strides, unpadded, dilations, 0)
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
    strides, pads, dilations = each(strides, dims), each(pads, dims), each(dilations, dims)
    x, kernel = recipe.stored(x), recipe.stored(kernel)
    _draw_kernel(recipe, kernel, node.args[1])
    if transposed:
        return _transposed(recipe, x, kernel, [new_axis(n) for n in shape[2:]], strides, pads, dilations, groups, bias)
    return _convolved(recipe, x, kernel, [new_axis(n) for n in shape[2:]], strides, pads, dilations, groups, bias)


def _convolution_gradient(recipe, node, args, shape):
    """Of input, kernel and bias."""
    gradient, x, kernel, _, strides, pads, dilations, transposed, _, groups, wanted = args
    gradient, x, kernel = (recipe.stored(v) for v in (gradient, x, kernel))
    _draw_kernel(recipe, kernel, node.args[2])
    dims = len(x.axes) - 2
    by = (each(strides, dims), each(pads, dims), each(dilations, dims), groups)
    found = [None, None, None]
    if wanted[0] and transposed:
        found[0] = _convolved(recipe, gradient, kernel, x.axes[2:], *by)
    elif wanted[0]:
        found[0] = _transposed(recipe, gradient, kernel, x.axes[2:], *by)
    if wanted[1]:
        # A transposed convolution reads the gradient in windows, and has the image in the place of the result.
        found[1] = _kernel_gradient(recipe, *((x, gradient) if transposed else (gradient, x)), kernel.axes[2:], *by)
    if wanted[2]:
        found[2] = recipe.reduction(gradient, [0, *range(2, 2 + dims)], False, "sum")
    return tuple(found)


LOWERED = {aten.convolution.default: _convolution, aten.convolution_backward.default: _convolution_gradient}
