"""A graph of aten operators as a recipe: its steps and their text. ``operators.py`` says what each operator becomes."""

import torch

from .indices import Unsupported, apart, axis_of, extent, leaves, unite
from .masks import MASK
from .values import Formula, Mask, Place, Position, Row, Value, terms, total

aten = torch.ops.aten
FLOATS = {torch.float32: "f32", torch.float64: "f64"}
#: What is given may also be of these types. What is computed of truth values and whole numbers is held as floating point numbers.
GIVEN = {**FLOATS, torch.int64: "i64", torch.int32: "i32", torch.bool: "u8"}


def number(value):
    """A number of Python as a recipe has it."""
    if isinstance(value, bool):
        return str(int(value))
    if value != value:
        raise Unsupported("a constant is NaN")
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "(-inf)"
    text = repr(float(value)) if not isinstance(value, int) else str(value)
    return f"({text})" if value < 0 else text


class Recipe:
    """Makes a recipe of a graph whose operators are all supported. ``Unsupported`` has the ``node`` that a recipe cannot say after all."""

    def __init__(self, graph, name, lowered):
        """``lowered(recipe, node)`` says an operator in steps of a recipe, and returns what it makes."""
        self.name, self.inputs, self.env, self.steps = name, [], {}, []
        #: By input the largest magnitude, or the range, of what it is drawn from when plans are checked.
        self.drawn = {}
        #: The placeholder of the dropouts' seed among those of the graph, and the step of all masks.
        self.seed, self.mask_step = None, None
        self.node, outputs = None, []
        for at, node in enumerate(graph.nodes):
            self.node = node
            try:
                if node.op == "placeholder":
                    self.env[node] = self.given(node, at)
                elif node.op == "output":
                    outputs = list(node.args[0]) if isinstance(node.args[0], (tuple, list)) else [node.args[0]]
                    self.outputs = [(self.result(made), made.meta["val"]) for made in outputs]
                elif node.op == "call_function":
                    self.env[node] = lowered(self, node)
            except Unsupported as error:
                error.node = outputs[0] if node.op == "output" and error.node is None else error.node or node
                raise

    def given(self, node, at):
        tensor = node.meta["val"]
        if all(user.target is MASK for user in node.users) and tensor.dtype is torch.int64 and not tensor.shape:
            self.seed = at
            return None
        axes = [axis_of(n) for n in tensor.shape]
        value = Value(f"x{len(self.inputs)}", list(axes), axes)
        self.inputs.append((value, tensor, at))
        return value

    def result(self, node):
        try:
            return self.stored(self.env[node])
        except Unsupported as error:
            error.node = node
            raise

    def of(self, argument):
        if isinstance(argument, torch.fx.Node):
            return self.env[argument]
        if isinstance(argument, (list, tuple)):
            return [self.of(a) for a in argument]
        return argument

    def step(self, out_axes, template, operands, summed=(), name=None):
        """A step: its result's axes, and operands with the op's axes that theirs stand for."""
        value = Value(name or f"y{len(self.steps)}", list(out_axes), list(out_axes))
        self.steps.append((value, template, operands, list(summed)))
        return value

    def stored(self, value):
        """A value as a tensor."""
        if isinstance(value, Formula):
            if any(extent(axis) > 1 and not _reads(value, axis) for axis in value.axes) or not any(value.axes):
                raise Unsupported("a constant is no tensor of a recipe")
            fresh = [apart(axis, []) for axis in value.axes]
            return self.step(fresh, "{0}", [(value, fresh)])
        if not isinstance(value, Value):
            raise Unsupported("a mask or a place is no tensor of a recipe")
        return value

    def pointwise(self, template, args, shape):
        tensors = [a for a in args if isinstance(a, (Value, Formula, Mask))]
        out = [[] for _ in shape]
        for value in tensors:
            for d, axis in enumerate(value.axes):
                at = d + len(shape) - len(value.axes)
                if extent(axis) > 1:
                    if out[at]:
                        unite(out[at], axis)
                    else:
                        out[at] = axis
        out = [axis if axis or n == 1 else axis_of(n) for axis, n in zip(out, shape)]
        taken, fresh = [], []
        for axis in out:
            fresh.append(apart(axis, taken))
        masks = [a for a in args if isinstance(a, Mask)]
        if masks:
            return self.dropout(template, args, fresh)
        operands = []
        for value in args:
            if isinstance(value, (Value, Formula)):
                shift = len(shape) - len(value.axes)
                operands.append((value, [fresh[d + shift] if extent(axis) > 1 else [] for d, axis in enumerate(value.axes)]))
            else:
                operands.append(value)
        if not any(isinstance(a, Value) for a in args):
            return Formula(fresh, template, operands)
        if not any(fresh) and not tensors:
            raise Unsupported("a constant is no tensor of a recipe")
        # An axis that was only expanded in all operands is no dim of the result either.
        has = [any(_has(a, d + len(a.axes) - len(shape)) for a in tensors) for d in range(len(shape))]
        return self.step([axis for axis, own in zip(fresh, has) if own], template, operands).seen(fresh)

    def dropout(self, template, args, fresh):
        """``x * mask``."""
        other = [a for a in args if not isinstance(a, Mask)]
        if template != "{0} * {1}" or len(other) != 1 or not isinstance(other[0], Value):
            raise Unsupported("a mask of a dropout is used otherwise than as a factor")
        mask, value = next(a for a in args if isinstance(a, Mask)), other[0]
        # Masks number the elements of their own shape.
        if [extent(axis) for axis in mask.axes] != [extent(axis) for axis in value.axes]:
            raise Unsupported("a mask of a dropout is broadcast")
        return self.step(fresh, f"dropout({{0}}, rate: {mask.rate!r}, stream: {mask.stream})", [(value, fresh)])

    def contraction(self, a, b, batches, add=None):
        """`a[…, m, k] * b[…, k, n]`."""
        for one, other in zip(a.axes[:batches], b.axes[:batches]):
            unite(one, other)
        unite(a.axes[-1], b.axes[-2])
        if a.lacks(a.axes[-1]) and b.lacks(b.axes[-2]) and extent(a.axes[-1]) > 1:
            raise Unsupported("a product sums what neither factor has")
        taken = []
        batch = [apart(axis, taken) for axis in a.axes[:batches]]
        rows, columns, depth = apart(a.axes[-2], taken), apart(b.axes[-1], taken), apart(a.axes[-1], taken)
        operands = [(a, [*batch, rows, depth]), (b, [*batch, depth, columns])]
        # A factor may have been expanded: an index that only the other one has is summed by name.
        is_summed = depth and (a.lacks(a.axes[-1]) or b.lacks(b.axes[-2]))
        product = "sum({0} * {1}, over: [OVER])" if is_summed else "{0} * {1}"
        made = [*batch, rows, columns]
        has = [_has(a, d) or _has(b, d) for d in range(batches)] + [_has(a, len(a.axes) - 2), _has(b, len(b.axes) - 1)]
        if add is not None:
            wanted = [*batch, rows, columns]
            axes = []
            for d, axis in enumerate(add.axes):
                at = d + len(wanted) - len(add.axes)
                axes.append(wanted[at] if extent(axis) > 1 else [])
                if extent(axis) > 1:
                    unite(wanted[at], axis)
                    has[at] = has[at] or _has(add, d)
            operands.append((add, axes))
            product += " + {2}"
        # What no factor has is no dim of the result either.
        return self.step([axis for axis, own in zip(made, has) if own], product, operands, [depth]).seen(made)

    def reduction(self, value, dims, keep, function):
        value = self.stored(value)
        rank = len(value.axes)
        dims = sorted(d % rank for d in dims) if dims else list(range(rank))
        lacking = [d for d in dims if value.axes[d] and value.lacks(value.axes[d])]
        times = 1
        for d in lacking:
            times *= extent(value.axes[d])
        taken = []
        fresh = [apart(axis, taken) for axis in value.axes]
        over = [fresh[d] for d in dims if fresh[d] and d not in lacking]
        out = [([] if d in dims else axis) for d, axis in enumerate(fresh) if keep or d not in dims]
        template = f"{function}({{0}}, over: [OVER])" if over else "{0}"
        if times > 1 and function == "sum":
            template = f"{times} * {template}"
        return self.step(out, template, [(value, fresh)], over)

    def along(self, value, dim, template, others=(), keeps=True, out=None):
        """A step that walks one axis as a whole."""
        value = self.stored(value)
        taken = []
        fresh = [apart(axis, taken) for axis in value.axes]
        for other in others:
            for one, two in zip(value.axes, other.axes):
                unite(one, two)
        dim %= len(fresh)
        over = fresh[dim]
        if not over:
            raise Unsupported("an axis of size 1 is normalized")
        made = fresh if keeps else [[] if d == dim else axis for d, axis in enumerate(fresh) if out or d != dim]
        return self.step(made, template, [(v, fresh) for v in (value, *others)], [over])

    # Text.

    def index_names(self, labels_in_order):
        """The recipe's index of each label of an operation: that of its size, others for further labels of the same size."""
        names, used = {}, {}
        for leaf in labels_in_order:
            if leaf.label in names:
                continue
            root = leaf.size.root()
            self.sizes.setdefault(id(root), (f"d{len(self.sizes)}", root))
            base = self.sizes[id(root)][0]
            nth = used.get(base, 0)
            used[base] = nth + 1
            name = base if nth == 0 else f"{base}_{nth}"
            self.dims.setdefault(name, root.n if nth == 0 else base)
            names[leaf.label] = name
        return names

    def declared(self, value):
        """The dims of a tensor of the recipe."""
        flat_base = [leaf for axis in value.base for leaf in leaves(axis)]
        names = self.index_names(flat_base)
        return [names[leaf.label] for leaf in flat_base]

    def text(self):
        self.dims, self.sizes = {}, {}
        kinds = {FLOATS[t.dtype] for t in [*(t for _, t, _ in self.inputs), *(t for _, t in self.outputs)] if t.dtype in FLOATS} or {"f32"}
        if len(kinds) > 1:
            raise Unsupported("f32 and f64 are mixed")
        inputs = []
        for value, tensor, _ in self.inputs:
            # What plans are checked with: matrices that keep the magnitude of what they multiply, as those of a model do.
            drawn = ""
            if value.name in self.drawn or (len(tensor.shape) == 2 and tensor.dtype in FLOATS):
                given = self.drawn.get(value.name, 2 / max(1, *tensor.shape[-2:]) ** 0.5)
                low, high = given if isinstance(given, tuple) else (-given, given)
                drawn = f", range: [{low:.3g}, {high:.3g}]"
            elif tensor.dtype is torch.bool:
                drawn = ", range: [0, 1]"
            inputs.append(f"  {value.name}: {{dims: [{', '.join(self.declared(value))}], dtype: {GIVEN[tensor.dtype]}{drawn}}}")
        steps = []
        for value, template, operands, summed in self.steps:
            out = [leaf for axis in value.base for leaf in leaves(axis)]
            over = [leaf for axis in summed for leaf in leaves(axis)]
            names = self.index_names([*out, *over])
            texts = [self.operand(o, names) if isinstance(o, tuple) else number(o) for o in operands]
            body = template.format(*texts).replace("OVER", ", ".join(names[leaf.label] for leaf in over))
            steps.append(f"  - \"{value.name}[{','.join(names[leaf.label] for leaf in out)}] = {body}\"")
        outputs = []
        for value, _ in self.outputs:
            if value.name.startswith("y") and value.name not in outputs:
                outputs.append(value.name)
        if not outputs:
            raise Unsupported("nothing is computed")
        dims = ", ".join(f"{name}: {self.size(name, size)}" for name, size in self.dims.items())
        return "\n".join([
            f"model: {self.name}", f"dims: {{{dims}}}", f"dtype: {kinds.pop()}", "inputs:", *inputs, "steps:", *steps,
            f"outputs: [{', '.join(outputs)}]", "",
        ])  # fmt: skip

    def size(self, name, size):
        """The size of a dim as the recipe declares it: a number, a number that stays the same in smaller programs, or an expression."""
        roots = {own: root for own, root in self.sizes.values()}
        root, seen = roots.get(name), set()
        if root is None or size != root.n:
            return size
        if root.is_constant:
            return f'"{size}"'
        at = root
        while at.derived is not None and id(at) not in seen:
            seen.add(id(at))
            at = at.derived[0].root()
        source = root.derived and self.sizes.get(id(root.derived[0].root()))
        # Sizes that are made of one another in a circle are numbers.
        return root.derived[1].format(source[0]) if source and id(at) not in seen else size

    def operand(self, operand, names):
        value, axes = operand
        if isinstance(value, Formula):
            own = {}
            for mine, its in zip(value.axes, axes):
                for leaf, other in zip(leaves(mine), leaves(its)):
                    own[leaf.label] = names[other.label]
            texts = []
            for o in value.operands:
                if isinstance(o, Position):
                    texts.append(total(terms(o.axis, own)))
                else:
                    texts.append(self.operand(o, own) if isinstance(o, tuple) else number(o))
            text = value.template.format(*texts)
            return text if text.isidentifier() else f"({text})"
        index, computed = {}, {}
        for own, op in zip(value.axes, axes):
            if isinstance(op, (Place, Row)):
                for leaf in leaves(own):
                    computed[leaf.label] = op
                continue
            for mine, its in zip(leaves(own), leaves(op)):
                # An axis that was only expanded has no index.
                index[mine.label] = names.get(its.label)
        subscripts, fill = [], None
        for leaf in (leaf for axis in value.base for leaf in leaves(axis)):
            op = computed.get(leaf.label)
            if isinstance(op, Row):
                subscripts.append(self.operand((op.value, op.axes), names))
            elif isinstance(op, Place):
                subscripts.append(_place(op, names))
                fill = op.fill if op.fill is not None else fill
            else:
                subscripts.append(index[leaf.label])
        otherwise = f" else {number(fill)}" if fill is not None else ""
        return f"{value.name}[{','.join(subscripts)}{otherwise}]" if subscripts else value.name


def _has(value, d):
    """Whether a value depends on its d-th axis, if there is one."""
    return d >= 0 and extent(value.axes[d]) > 1 and not value.lacks(value.axes[d])


def _reads(formula, axis):
    """Whether a formula depends on one of its axes."""
    labels = {leaf.label for leaf in leaves(axis)}
    for o in formula.operands:
        if isinstance(o, Position) and labels & {leaf.label for leaf in leaves(o.axis)}:
            return True
        if isinstance(o, tuple):
            inner, axes = o
            if any(labels & {leaf.label for leaf in leaves(its)} and _reads(inner, own) for own, its in zip(inner.axes, axes)):
                return True
    return False


def _place(place, names):
    def multiples(of):
        return [(times * stride, name) for times, axis in of for stride, name in terms(axis, names)]

    found, behind = multiples(place.terms), multiples(place.behind)
    if place.divisor == 1:
        found, behind = found + behind, []
    text = total(found, place.offset)
    if place.divisor != 1:
        text = f"floor(({text})/{place.divisor})"
        return f"{text}+{total(behind)}".replace("+-", "-") if behind else text
    # A plain index would be one that runs over the whole axis.
    return text + "+0" if place.fill is None and len(found) == 1 and found[0][0] == 1 and not place.offset else text
