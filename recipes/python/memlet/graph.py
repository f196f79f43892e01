"""A graph of aten operators as a recipe."""

import operator

import torch

from .indices import Unsupported, apart, axis_of, extent, leaves, reshaped, unite

aten = torch.ops.aten
FLOATS = {torch.float32: "f32", torch.float64: "f64"}
WHOLE = {torch.int64: "i64", torch.int32: "i32"}


class Value:
    """A tensor: that of a name in the recipe, whose dims are ``base``, seen with ``axes``."""

    def __init__(self, name, base, axes):
        self.name, self.base, self.axes = name, base, axes

    def seen(self, axes):
        return Value(self.name, self.base, axes)


def number(value):
    """A number of Python as a recipe has it."""
    if value != value:
        raise Unsupported("a constant is NaN")
    if value in (float("inf"), float("-inf")):
        return "inf" if value > 0 else "-inf"
    text = repr(float(value)) if not isinstance(value, int) else str(value)
    return f"({text})" if value < 0 else text


#: Operators of one or several tensors, point by point: `{0}` is the first operand, tensor or number.
POINTWISE = {
    aten.neg.default: "-{0}",
    aten.exp.default: "exp({0})",
    aten.log.default: "log({0})",
    aten.sqrt.default: "sqrt({0})",
    aten.rsqrt.default: "rsqrt({0})",
    aten.abs.default: "abs({0})",
    aten.sin.default: "sin({0})",
    aten.cos.default: "cos({0})",
    aten.erf.default: "erf({0})",
    aten.tanh.default: "tanh({0})",
    aten.sigmoid.default: "sigmoid({0})",
    aten.relu.default: "relu({0})",
    aten.silu.default: "silu({0})",
    aten.reciprocal.default: "1 / {0}",
    aten.clone.default: "{0}",
    aten.add.Tensor: "{0} + {1}",
    aten.add.Scalar: "{0} + {1}",
    aten.sub.Tensor: "{0} - {1}",
    aten.sub.Scalar: "{0} - {1}",
    aten.mul.Tensor: "{0} * {1}",
    aten.mul.Scalar: "{0} * {1}",
    aten.div.Tensor: "{0} / {1}",
    aten.div.Scalar: "{0} / {1}",
    aten.maximum.default: "max({0}, {1})",
    aten.minimum.default: "min({0}, {1})",
    aten.pow.Tensor_Scalar: "pow({0}, {1})",
    aten.threshold_backward.default: "where({1} > {2}, {0}, 0)",
    aten.tanh_backward.default: "{0} * (1 - {1} * {1})",
    aten.sigmoid_backward.default: "{0} * {1} * (1 - {1})",
}
VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.permute.default, aten.transpose.int, aten.t.default,
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default, aten.alias.default, aten.detach.default,
}  # fmt: skip
OTHERS = {
    aten.mm.default, aten.addmm.default, aten.bmm.default, aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default,
    aten.amax.default, aten._softmax.default, aten._softmax_backward_data.default, aten.gelu.default, aten.native_layer_norm.default,
    aten.embedding.default,
}  # fmt: skip


def reason_against(node):
    """Why an operator stays with PyTorch; ``None`` if a recipe says it."""
    if node.op != "call_function":
        return None if node.op in ("placeholder", "output") else f"{node.op} has no recipe"
    if node.target is operator.getitem:
        return reason_against(node.args[0])
    if node.target not in POINTWISE and node.target not in VIEWS and node.target not in OTHERS:
        return f"no recipe for {node.target}"
    tensors = [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    value = node.meta.get("val")
    made = [v for v in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(v, torch.Tensor)]
    for tensor in [n.meta["val"] for n in tensors] + made:
        whole = node.target is aten.embedding.default and tensor.dtype in WHOLE
        if tensor.dtype not in FLOATS and not whole:
            return f"{tensor.dtype} is not supported"
        if tensor.device.type != "cpu":
            return f"a tensor lies on {tensor.device}"
        if any(not isinstance(n, int) for n in tensor.shape) or 0 in tensor.shape:
            return "a size is not known or 0"
    return None


class Recipe:
    """Makes a recipe of a graph whose operators are all supported."""

    def __init__(self, graph, name):
        self.name, self.lines, self.inputs, self.env = name, [], [], {}
        self.steps = []
        outputs = []
        for node in graph.nodes:
            if node.op == "placeholder":
                tensor = node.meta["val"]
                axes = [axis_of(n) for n in tensor.shape]
                value = Value(f"x{len(self.inputs)}", list(axes), axes)
                self.inputs.append((value, tensor))
                self.env[node] = value
            elif node.op == "output":
                outputs = list(node.args[0]) if isinstance(node.args[0], (tuple, list)) else [node.args[0]]
            elif node.op == "call_function":
                self.env[node] = self.call(node)
        self.outputs = [(self.env[node], node.meta["val"]) for node in outputs]

    def of(self, argument):
        return self.env[argument] if isinstance(argument, torch.fx.Node) else argument

    def step(self, out_axes, template, operands, summed=()):
        """A step: its result's axes, and operands with the op's axes that theirs stand for."""
        value = Value(f"y{len(self.steps)}", list(out_axes), list(out_axes))
        self.steps.append((value, template, operands, list(summed)))
        return value

    def call(self, node):
        target, args = node.target, [self.of(a) for a in node.args]
        if target is operator.getitem:
            return args[0][args[1]]
        shape = tuple(node.meta["val"].shape) if isinstance(node.meta["val"], torch.Tensor) else None
        if target in VIEWS:
            return self.view(target, args, shape)
        if target in POINTWISE:
            template = POINTWISE[target]
            alpha = node.kwargs.get("alpha", 1)
            if alpha != 1:
                template = template.replace("{1}", f"{number(alpha)} * {{1}}")
            return self.pointwise(template, args, shape)
        return self.other(target, args, node)

    def view(self, target, args, shape):
        value = args[0]
        axes = list(value.axes)
        if target in (aten.permute.default,):
            return value.seen([axes[d] for d in args[1]])
        if target is aten.transpose.int:
            axes[args[1]], axes[args[2]] = axes[args[2]], axes[args[1]]
            return value.seen(axes)
        if target is aten.t.default:
            return value.seen(axes[::-1])
        if target is aten.expand.default:
            axes = [[]] * (len(shape) - len(axes)) + axes
            return value.seen([axis if extent(axis) == n else axis_of(n) for axis, n in zip(axes, shape)])
        return value.seen(reshaped(axes, shape))

    def pointwise(self, template, args, shape):
        tensors = [a for a in args if isinstance(a, Value)]
        out = [[] for _ in shape]
        for value in tensors:
            for d, axis in enumerate(value.axes):
                at = d + len(shape) - len(value.axes)
                if extent(axis) > 1:
                    if out[at]:
                        unite(out[at], axis)
                    else:
                        out[at] = axis
        taken, fresh = [], []
        for axis in out:
            fresh.append(apart(axis, taken))
        operands = []
        for value in args:
            if isinstance(value, Value):
                shift = len(shape) - len(value.axes)
                operands.append((value, [fresh[d + shift] if extent(axis) > 1 else [] for d, axis in enumerate(value.axes)]))
            else:
                operands.append(value)
        return self.step(fresh, template, operands)

    def contraction(self, a, b, batches, add=None):
        """`a[…, m, k] * b[…, k, n]`."""
        for one, other in zip(a.axes[:batches], b.axes[:batches]):
            unite(one, other)
        unite(a.axes[-1], b.axes[-2])
        taken = []
        batch = [apart(axis, taken) for axis in a.axes[:batches]]
        rows, columns, depth = apart(a.axes[-2], taken), apart(b.axes[-1], taken), apart(a.axes[-1], taken)
        operands = [(a, [*batch, rows, depth]), (b, [*batch, depth, columns])]
        product = "{0} * {1}"
        if not depth:
            # A depth of 1 sums nothing.
            product = "{0} * {1}"
        if add is not None:
            axes = [[]] * (batches + 2 - len(add.axes)) + [None] * len(add.axes)
            wanted = [*batch, rows, columns]
            for d, axis in enumerate(add.axes):
                at = d + len(wanted) - len(add.axes)
                axes[at] = wanted[at] if extent(axis) > 1 else []
                if extent(axis) > 1:
                    unite(wanted[at], axis)
            operands.append((add, axes[len(wanted) - len(add.axes) :]))
            product += " + {2}"
        return self.step([*batch, rows, columns], product, operands, [depth])

    def reduction(self, value, dims, keep, function):
        rank = len(value.axes)
        dims = sorted(d % rank for d in dims) if dims else list(range(rank))
        taken = []
        fresh = [apart(axis, taken) for axis in value.axes]
        over = [fresh[d] for d in dims if fresh[d]]
        out = [([] if d in dims else axis) for d, axis in enumerate(fresh) if keep or d not in dims]
        template = f"{function}({{0}}, over: [OVER])" if over else "{0}"
        return self.step(out, template, [(value, fresh)], over)

    def along(self, value, dim, template, others=()):
        """A step that walks one axis as a whole."""
        taken = []
        fresh = [apart(axis, taken) for axis in value.axes]
        for other in others:
            for one, two in zip(value.axes, other.axes):
                unite(one, two)
        over = fresh[dim % len(fresh)]
        if not over:
            raise Unsupported("an axis of size 1 is normalized")
        return self.step(fresh, template, [(v, fresh) for v in (value, *others)], [over])

    def other(self, target, args, node):
        if target is aten.mm.default:
            return self.contraction(args[0], args[1], 0)
        if target is aten.bmm.default:
            return self.contraction(args[0], args[1], 1)
        if target is aten.addmm.default:
            if node.kwargs.get("beta", 1) != 1 or node.kwargs.get("alpha", 1) != 1:
                raise Unsupported("addmm with factors")
            return self.contraction(args[1], args[2], 0, args[0])
        if target in (aten.sum.dim_IntList, aten.mean.dim, aten.amax.default):
            function = {aten.sum.dim_IntList: "sum", aten.mean.dim: "mean"}.get(target, "max")
            return self.reduction(args[0], args[1] if len(args) > 1 else [], len(args) > 2 and args[2], function)
        if target in (aten.sum.default, aten.mean.default):
            return self.reduction(args[0], [], False, "sum" if target is aten.sum.default else "mean")
        if target is aten._softmax.default:
            return self.along(args[0], args[1], "softmax({0}, over: OVER)")
        if target is aten._softmax_backward_data.default:
            return self.along(args[0], args[2], "{1} * ({0} - sum({0} * {1}, over: [OVER]))", [args[1]])
        if target is aten.gelu.default:
            form = ", form: tanh" if node.kwargs.get("approximate") == "tanh" else ""
            return self.pointwise(f"gelu({{0}}{form})", args[:1], tuple(node.meta["val"].shape))
        if target is aten.native_layer_norm.default:
            return self.layer_norm(*args)
        if target is aten.embedding.default:
            raise Unsupported("embedding is not yet written as a recipe")
        raise Unsupported(f"no recipe for {target}")

    def layer_norm(self, x, shape, weight, bias, eps):
        """Result, mean and reciprocal deviation."""
        kept = len(x.axes) - len(shape)
        dims = list(range(kept, len(x.axes)))
        rank = tuple(extent(axis) for axis in x.axes)
        mean = self.reduction(x, dims, True, "mean")
        apart_from_mean = self.pointwise("{0} - {1}", [x, mean], rank)
        squares = self.pointwise("{0} * {0}", [apart_from_mean], rank)
        variance = self.reduction(squares, dims, True, "mean")
        deviation = self.pointwise(f"rsqrt({{0}} + {eps!r})", [variance], tuple(extent(axis) for axis in variance.axes))
        scaled = [apart_from_mean, deviation, *[v for v in (weight, bias) if v is not None]]
        template = "{0} * {1}" + (" * {2}" if weight is not None else "")
        if bias is not None:
            template += " + {3}" if weight is not None else " + {2}"
        return self.pointwise(template, scaled, rank), mean, deviation

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
        flat = [leaf for axis in value.base for leaf in leaves(axis)]
        names = self.index_names(flat)
        return [names[leaf.label] for leaf in flat]

    def text(self):
        self.dims, self.sizes = {}, {}
        inputs = []
        for value, tensor in self.inputs:
            kind = {**FLOATS, **WHOLE}[tensor.dtype]
            # What plans are checked with: matrices that keep the magnitude of what they multiply, as those of a model do.
            most = 2 / max(tensor.shape) ** 0.5 if len(tensor.shape) == 2 and tensor.dtype in FLOATS else None
            drawn = f", range: [{-most:.3g}, {most:.3g}]" if most else ""
            inputs.append(f"  {value.name}: {{dims: [{', '.join(self.declared(value))}], dtype: {kind}{drawn}}}")
        kinds = {FLOATS[t.dtype] for _, t in self.outputs} or {"f32"}
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
        dims = ", ".join(f"{name}: {size}" for name, size in self.dims.items())
        if len(kinds) > 1:
            raise Unsupported("f32 and f64 are mixed")
        return "\n".join([
            f"model: {self.name}", f"dims: {{{dims}}}", f"dtype: {kinds.pop()}", "inputs:", *inputs, "steps:", *steps,
            f"outputs: [{', '.join(outputs)}]", "",
        ])  # fmt: skip

    def operand(self, operand, names):
        value, axes = operand
        index = {}
        for own, op in zip(value.axes, axes):
            for mine, its in zip(leaves(own), leaves(op)):
                index[mine.label] = names[its.label]
        subscripts = [index[leaf.label] for axis in value.base for leaf in leaves(axis)]
        return f"{value.name}[{','.join(subscripts)}]" if subscripts else value.name
