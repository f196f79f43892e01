"""Where windows of an image are read, and how many there are: what convolutions and pooling have in common."""

from .indices import Unsupported, extent, unite
from .values import Place, constant, derive, whole


def each(value, dims):
    """One number for each dim of a window."""
    value = list(value)
    return value * dims if len(value) == 1 else value or None


def read_in_windows(recipe, value, fresh, windows, strides, pads, dilations, fill):
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
        relate(out, axis, strides[n], pads[n], dilations[n] * (extent(inside) - 1))
        outside = pads[n] > 0 or reach - pads[n] >= size
        read[len(read) - dims + n] = Place([(strides[n], out), (dilations[n], inside)], -pads[n], fill if outside else None)
    return read


def relate(out, axis, stride, pad, reach):
    """The number of windows along an axis: as many as fit, or one more where the last may be cut off."""
    for more in (0, stride - 1):
        beside = 2 * pad - reach - 1 + more
        if extent(out) == (extent(axis) + beside) // stride + 1:
            derive(out, axis, "{}" if (stride, beside) == (1, -1) else f"({{}}{beside:+d})/{stride} + 1")
            return
