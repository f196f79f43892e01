"""What the operators of a graph hand to one another while a recipe is made of them: tensors, numbers of indices, masks, places in windows.

An axis of size 1 has no atoms, and the recipe no dim for it.
"""

from .indices import Atom, Size, Unsupported, extent, leaves


class Value:
    """A tensor: that of a name in the recipe, whose dims are ``base``, seen with ``axes``."""

    def __init__(self, name, base, axes):
        self.name, self.base, self.axes = name, base, axes

    def seen(self, axes):
        return Value(self.name, self.base, axes)

    def lacks(self, axis):
        """Whether an axis is one that was only expanded: no element depends on it."""
        own = {leaf.label for of in self.base for leaf in leaves(of)}
        found = [leaf.label in own for leaf in leaves(axis)]
        if any(found) != all(found):
            raise Unsupported("an axis is expanded in part")
        return not any(found)


class Formula:
    """What is computed of indices and numbers alone: an expression that each reader writes out, not a tensor."""

    def __init__(self, axes, template, operands):
        self.axes, self.template, self.operands = axes, template, operands

    def seen(self, axes):
        return Formula(axes, self.template, self.operands)

    def lacks(self, axis):
        return False


class Position:
    """The number of an index along an axis of a formula."""

    def __init__(self, axis):
        self.axis = axis


class Mask:
    """The factors of a dropout."""

    def __init__(self, axes, rate, stream):
        self.axes, self.rate, self.stream = axes, rate, stream


class Pooled:
    """The places of maxima, which nothing but the gradient of their pooling can read: it finds them by the maxima."""

    def __init__(self, top):
        self.top = top


class Place:
    """A subscript on an axis that stays whole: a sum of multiples of axes and a number, divided by ``divisor`` and rounded down, and
    multiples of axes behind that; ``fill`` is the value outside of it."""

    def __init__(self, terms, offset=0, fill=None, divisor=1, behind=()):
        self.terms, self.offset, self.fill, self.divisor, self.behind = terms, offset, fill, divisor, list(behind)


class Row:
    """A subscript that another tensor names."""

    def __init__(self, value, axes):
        self.value, self.axes = value, axes


def whole(axis):
    """Keeps an axis from being split, since a subscript of it is computed."""
    found = leaves(axis)
    if len(found) > 1:
        raise Unsupported("a window or a part is read along an axis that views have divided")
    for leaf in found:
        leaf.size.root().is_whole = True


def derive(axis, of, expression):
    """Notes that the size of an axis is an expression of another's, in which that is ``{}``: programs of other sizes have it, too."""
    own, other = leaves(axis), leaves(of)
    if len(own) == len(other) == 1 and own[0].size.root() is not other[0].size.root():
        own[0].size.root().derived = own[0].size.root().derived or (other[0].size, expression)


def constant(axis):
    """An axis of a window: it has its size in programs of other sizes as well."""
    for leaf in leaves(axis):
        leaf.size.root().is_constant = True
    return axis


def new_axis(n):
    return [] if n == 1 else [Atom(Size(n))]


def terms(axis, names):
    """The number of an index along an axis: multiples of the recipe's indices."""
    found, stride = [], 1
    for leaf in reversed(leaves(axis)):
        found.insert(0, (stride, names[leaf.label]))
        stride *= leaf.size.root().n
    return found


def total(found, offset=0):
    """A sum of multiples of indices as text."""
    text = "+".join(name if times == 1 else f"{times}*{name}" for times, name in found).replace("+-", "-")
    return f"{text}{offset:+d}" if text and offset else text or str(offset)


def shape_of(axes):
    return tuple(extent(axis) for axis in axes)
