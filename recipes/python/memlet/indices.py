"""Shapes of a PyTorch graph as indices of a recipe.

A view of a tensor renames nothing in a recipe where each axis is a product of indices: ``[b*j, i]`` and ``[b, j, h*p]`` are one tensor
``[b, j, h, p]``. So an axis is a list of *atoms*, each with a size that can be split when a view asks for it. Sizes that must be equal are
united, and split together. Axes of size 1 have no atoms.
"""

from itertools import count


class Unsupported(Exception):
    """What a recipe does not say, with the reason."""

    #: The operator that is the reason, if it is one.
    node = None


class Size:
    """A size that may turn out to be a product; equal ones are united."""

    def __init__(self, n):
        self.n, self.parent, self.parts, self.is_whole = n, None, None, False
        #: Another size and an expression of it that this one is, as of windows along an image; whether it is the same number in every
        #: program of this kind, as of a window.
        self.derived, self.is_constant = None, False

    def root(self):
        at = self
        while at.parent is not None:
            at = at.parent
        return at

    def split(self, outer):
        """Makes this a product of ``outer`` and the rest."""
        root = self.root()
        if root.is_whole:
            raise Unsupported(f"a view cuts an axis of {root.n} along which windows or parts are read")
        if root.n % outer:
            raise Unsupported(f"a view cuts an axis of {root.n} into pieces of {outer}")
        root.parts = [Size(outer), Size(root.n // outer)]


class Atom:
    """An index of an operation."""

    numbers = count()

    def __init__(self, size, label=None):
        self.size, self.label = size, label if label is not None else f"{next(Atom.numbers)}"


def leaves(axis):
    """The indices of an axis, from outer to inner, after all splits so far."""
    found = []
    for atom in axis:
        root = atom.size.root()
        if root.parts is None:
            found.append(Atom(root, atom.label))
        else:
            found += leaves([Atom(part, f"{atom.label}_{n}") for n, part in enumerate(root.parts)])
    return found


def extent(axis):
    found = 1
    for leaf in leaves(axis):
        found *= leaf.size.n
    return found


def axis_of(n):
    """A new axis of a size."""
    return [] if n == 1 else [Atom(Size(n))]


def unite(one, other):
    """Makes two axes of the same size products of the same sizes."""
    while True:
        a, b = leaves(one), leaves(other)
        for x, y in zip(a, b):
            x, y = x.size.root(), y.size.root()
            if x is y:
                continue
            if x.n == y.n:
                y.parent, x.is_whole, x.is_constant = x, x.is_whole or y.is_whole, x.is_constant or y.is_constant
                x.derived = x.derived or y.derived
            elif x.n > y.n:
                x.split(y.n)
            else:
                y.split(x.n)
            break
        else:
            if len(a) != len(b):
                raise Unsupported(f"axes of {extent(one)} and {extent(other)} meet")
            return


def meets(label, other):
    """Whether two labels name the same index, or one a part of the other."""
    return label == other or label.startswith(other + "_") or other.startswith(label + "_")


def apart(axis, taken):
    """An axis whose labels are none of those taken: some may have to be new."""
    found = [Atom(leaf.size) if any(meets(leaf.label, label) for label in taken) else leaf for leaf in leaves(axis)]
    taken += [atom.label for atom in found]
    return found


def reshaped(axes, shape):
    """The axes of a view in another shape."""
    rest = [leaf for axis in axes for leaf in leaves(axis)]
    found = []
    for n in shape:
        axis, wanted = [], n
        while wanted > 1:
            if not rest:
                raise Unsupported("a view has another number of elements")
            first = rest[0]
            if first.size.n > wanted:
                first.size.split(wanted)
                rest[:1] = leaves([first])
                first = rest[0]
            if wanted % first.size.n:
                raise Unsupported(f"a view of {n} takes {first.size.n} of an axis")
            wanted //= first.size.n
            axis.append(rest.pop(0))
        found.append(axis)
    if rest:
        raise Unsupported("a view has another number of elements")
    return found
