"""Maxima and averages over windows as steps of a recipe, and the gradients of maxima."""

from .graph import aten, number
from .indices import Unsupported, apart, extent, unite
from .values import Formula, Place, Pooled, Position, new_axis, whole
from .windows import each, read_in_windows, relate

POOLED = aten.max_pool2d_with_indices.default


def reason_against(node):
    """Why one of these operators stays with PyTorch."""
    if node.target is POOLED and any(user.args[1] != 0 and not is_of_gradients(user) for user in node.users):
        return "the places of maxima are read"
    return None


def is_of_gradients(places):
    """Whether nothing but gradients reads the places of maxima, so that they need not be numbers of elements."""
    return all(user.target is aten.max_pool2d_with_indices_backward.default for user in places.users)


def _pool(recipe, x, kernel, strides, pads, dilations, shape, template, fill):
    dims = len(kernel)
    x = recipe.stored(x)
    taken = []
    fresh = [*[apart(a, taken) for a in x.axes[:-dims]], *[new_axis(n) for n in shape[-dims:]]]
    windows = [new_axis(n) for n in kernel]
    read = read_in_windows(recipe, x, fresh, windows, strides, pads, dilations, fill)
    if not any(windows):
        return recipe.step(fresh, "{0}", [(x, read)])
    return recipe.step(fresh, template, [(x, read)], windows)


def _max_pool(recipe, node, args, shape):
    x, kernel, strides, pads, dilations = [*args, *([], [0], [1])[len(args) - 2 :]][:5]
    kernel = each(kernel, 2)
    strides = each(strides, 2) or kernel
    made = tuple(node.meta["val"][0].shape)
    top = _pool(recipe, x, kernel, strides, each(pads, 2), each(dilations, 2), made, "max({0}, over: [OVER])", float("-inf"))
    return top, Pooled(top)


def _max_pool_gradient(recipe, node, args, shape):
    """The gradient of a window goes to the first element that equals its maximum. Which tap of the window that is is found first, then each
    element looks at the windows that it lies in."""
    gradient, x, kernel, strides, pads, dilations, _, pooled = args
    if not isinstance(pooled, Pooled):
        raise Unsupported("the places of maxima are given")
    gradient, x, top = recipe.stored(gradient), recipe.stored(x), pooled.top
    kernel, pads = each(kernel, 2), each(pads, 2)
    strides = each(strides, 2) or kernel
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
    read = read_in_windows(recipe, x, fresh, taps, strides, pads, [1, 1], float("-inf"))
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
            relate(window, place, stride, pads[n], kernel[n] - 1)
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
    kernel = each(kernel, 2)
    strides, pads = each(strides, 2) or kernel, each(pads, 2)
    inside = [strides[n] * (shape[n - 2] - 1) + kernel[n] - pads[n] <= extent(x.axes[n - 2]) for n in range(2)]
    if (any(pads) and not count_pad) or (ceil and not all(inside)):
        raise Unsupported("an average over windows of several sizes")
    by = divisor or kernel[0] * kernel[1]
    return _pool(recipe, x, kernel, strides, pads, [1, 1], shape, f"sum({{0}}, over: [OVER]) * {number(1 / by)}", 0)


LOWERED = {
    POOLED: _max_pool,
    aten.max_pool2d_with_indices_backward.default: _max_pool_gradient,
    aten.avg_pool2d.default: _average_pool,
}
