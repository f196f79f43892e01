"""What each operator of PyTorch becomes in a recipe, and which stay with PyTorch."""

import operator

import torch

from . import batch_norm, convolutions, parts, pooling
from .graph import GIVEN, aten, number
from .indices import Unsupported, extent, reshaped
from .masks import MASK
from .values import Formula, Mask, Position, new_axis

#: Operators of one or several tensors, point by point: `{0}` is the first operand, tensor or number.
POINTWISE = {
    aten.neg.default: "-{0}",
    aten.exp.default: "exp({0})",
    aten.log.default: "log({0})",
    aten.log1p.default: "log1p({0})",
    aten.sqrt.default: "sqrt({0})",
    aten.rsqrt.default: "rsqrt({0})",
    aten.abs.default: "abs({0})",
    aten.sign.default: "where({0} > 0, 1, where({0} < 0, (-1), 0))",
    aten.sin.default: "sin({0})",
    aten.cos.default: "cos({0})",
    aten.tan.default: "sin({0}) / cos({0})",
    aten.asin.default: "asin({0})",
    aten.acos.default: "acos({0})",
    aten.atan.default: "atan({0})",
    aten.log2.default: "1.4426950408889634 * log({0})",
    aten.log10.default: "0.4342944819032518 * log({0})",
    aten.erf.default: "erf({0})",
    aten.floor.default: "floor({0})",
    aten.ceil.default: "-floor(-{0})",
    aten.trunc.default: "where({0} < 0, -floor(-{0}), floor({0}))",
    aten.tanh.default: "tanh({0})",
    aten.sigmoid.default: "sigmoid({0})",
    aten.relu.default: "relu({0})",
    aten.silu.default: "silu({0})",
    aten.reciprocal.default: "1 / {0}",
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
    aten.pow.Tensor_Tensor: "pow({0}, {1})",
    aten.threshold_backward.default: "where({1} > {2}, {0}, 0)",
    aten.tanh_backward.default: "{0} * (1 - {1} * {1})",
    aten.sigmoid_backward.default: "{0} * {1} * (1 - {1})",
    aten.where.self: "where({0}, {1}, {2})",
    aten.masked_fill.Scalar: "where({1}, {2}, {0})",
    aten.hardtanh.default: "min(max({0}, {1}), {2})",
    aten.leaky_relu.default: "where({0} > 0, {0}, {1} * {0})",
    aten.logical_not.default: "{0} == 0",
    aten.bitwise_not.default: "{0} == 0",
    aten.logical_and.default: "{0} * {1}",
    aten.bitwise_and.Tensor: "{0} * {1}",
    aten.logical_or.default: "max({0}, {1})",
    aten.bitwise_or.Tensor: "max({0}, {1})",
}
for _name, _sign in {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    for _form in ("Tensor", "Scalar"):
        POINTWISE[getattr(getattr(aten, _name), _form)] = "{0} " + _sign + " {1}"

#: Operators on truth values, which other types would give another meaning.
OF_TRUTH = {aten.bitwise_not.default, aten.bitwise_and.Tensor, aten.bitwise_or.Tensor, aten.logical_and.default, aten.logical_or.default}
#: Defaults of operands that a graph leaves out.
DEFAULTS = {aten.hardtanh.default: (-1.0, 1.0), aten.leaky_relu.default: (0.01,)}
#: Views and copies: the same elements.
VIEWS = {
    aten.view.default, aten._unsafe_view.default, aten.reshape.default, aten.permute.default, aten.transpose.int, aten.t.default,
    aten.unsqueeze.default, aten.squeeze.dim, aten.squeeze.dims, aten.expand.default, aten.alias.default, aten.detach.default,
    aten.clone.default, aten.lift_fresh_copy.default,
}  # fmt: skip
#: Constants and numbers of indices.
CONSTANTS = {aten.arange.start_step, aten.full.default, aten.full_like.default, aten.scalar_tensor.default}


def is_of_indices(node):
    """Whether a value is made of indices and constants alone."""
    known = node.meta.get("memlet_of_indices")
    if known is None:
        point_by_point = node.op == "call_function" and (node.target in POINTWISE or node.target in VIEWS or node.target in CONSTANTS)
        known = node.target is aten.full_like.default or point_by_point and all(is_of_indices(n) for n in node.all_input_nodes)
        node.meta["memlet_of_indices"] = known
    return known


def reason_against(node):
    """Why an operator stays with PyTorch; ``None`` if a recipe says it."""
    if node.op != "call_function":
        return None if node.op in ("placeholder", "output") else f"{node.op} has no recipe"
    if "memlet_refused" in node.meta:
        return node.meta["memlet_refused"]
    if node.target is operator.getitem:
        return reason_against(node.args[0])
    if node.target not in LOWERED:
        return f"no recipe for {node.target}"
    tensors = [n.meta["val"] for n in node.all_input_nodes if isinstance(n.meta.get("val"), torch.Tensor)]
    value = node.meta.get("val")
    made = [v for v in (value if isinstance(value, (tuple, list)) else [value]) if isinstance(v, torch.Tensor)]
    # Statistics that are given are returned as tensors without elements, which nobody reads.
    for tensor in tensors + (made[:1] if node.target is aten._native_batch_norm_legit_no_training.default else made):
        if tensor.dtype not in GIVEN:
            return f"{tensor.dtype} is not supported"
        if tensor.device.type != "cpu":
            return f"a tensor lies on {tensor.device}"
        if any(not isinstance(n, int) for n in tensor.shape) or 0 in tensor.shape:
            return "a size is not known or 0"
    if node.target in OF_TRUTH and any(t.dtype is not torch.bool for t in tensors):
        return f"{node.target} of numbers"
    makes = made[0].dtype if made and node.target is not aten.max_pool2d_with_indices.default else torch.float32
    if makes in (torch.int64, torch.int32) and not is_of_indices(node):
        counts = node.target in (aten.sum.default, aten.sum.dim_IntList, aten._to_copy.default) and tensors[0].dtype is torch.bool
        if node.target not in VIEWS and not counts:
            return "whole numbers are computed"
    return parts.reason_against(node) or pooling.reason_against(node)


def lowered(recipe, node):
    """The value of an operator."""
    args = [recipe.of(a) for a in node.args]
    if node.target is operator.getitem:
        return args[0][args[1]]
    value = node.meta["val"]
    return LOWERED[node.target](recipe, node, args, tuple(value.shape) if isinstance(value, torch.Tensor) else None)


def _view(recipe, node, args, shape):
    value, target = args[0], node.target
    if isinstance(value, Mask):
        raise Unsupported("a view of a mask")
    axes = list(value.axes)
    if target in (aten.clone.default, aten.alias.default, aten.detach.default, aten.lift_fresh_copy.default):
        return value
    if target is aten.permute.default:
        return value.seen([axes[d] for d in args[1]])
    if target is aten.transpose.int:
        axes[args[1]], axes[args[2]] = axes[args[2]], axes[args[1]]
        return value.seen(axes)
    if target is aten.t.default:
        return value.seen(axes[::-1])
    if target is aten.expand.default:
        axes = [[]] * (len(shape) - len(axes)) + axes
        return value.seen([axis if extent(axis) == n else new_axis(n) for axis, n in zip(axes, shape)])
    return value.seen(reshaped(axes, shape))


def _pointwise(recipe, node, args, shape):
    template = POINTWISE[node.target]
    alpha = node.kwargs.get("alpha", 1)
    if alpha != 1:
        template = template.replace("{1}", f"{number(alpha)} * {{1}}")
    args = args + list(DEFAULTS.get(node.target, ()))[len(args) - 1 :]
    return recipe.pointwise(template, args, shape)


def _constant(recipe, node, args, shape):
    if node.target is aten.arange.start_step:
        start, step = args[0], args[2] if len(args) > 2 else 1
        axis = new_axis(shape[0])
        return Formula([axis], f"{start} + {step} * ({{0}})" if (start, step) != (0, 1) else "{0}", [Position(axis)])
    value = args[0] if node.target is aten.scalar_tensor.default else args[1]
    return Formula([new_axis(n) for n in shape], "{0}", [value])


def _converted(recipe, node, args, shape):
    return recipe.pointwise("{0} != 0", args[:1], shape) if node.meta["val"].dtype is torch.bool else args[0]


def _clamp(recipe, node, args, shape):
    low, high = [*args[1:], None, None][:2]
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    bounds = [b for b in (low, high) if b is not None]
    template = "{0}" if low is None else "max({0}, {1})"
    if high is not None:
        template = f"min({template}, {{{len(bounds)}}})"
    return recipe.pointwise(template, [args[0], *bounds], shape)


def _addmm(recipe, node, args, shape):
    if node.kwargs.get("beta", 1) != 1 or node.kwargs.get("alpha", 1) != 1:
        raise Unsupported("addmm with factors")
    return recipe.contraction(args[1], args[2], 0, args[0])


def _reduction(recipe, node, args, shape):
    function = {
        aten.sum.dim_IntList: "sum", aten.sum.default: "sum", aten.mean.dim: "mean", aten.mean.default: "mean", aten.amax.default: "max",
        aten.amin.default: "min", aten.any.dim: "max", aten.any.default: "max", aten.all.default: "min", aten.all.dim: "min",
        aten.logsumexp.default: "logsumexp",
    }[node.target]  # fmt: skip
    dims = args[1] if len(args) > 1 and args[1] is not None else []
    return recipe.reduction(args[0], [dims] if isinstance(dims, int) else dims, len(args) > 2 and args[2], function)


def _variance(recipe, node, args, shape):
    x, dims = recipe.stored(args[0]), args[1] if len(args) > 1 and args[1] else list(range(len(args[0].axes)))
    rank, count = tuple(extent(axis) for axis in x.axes), 1
    for d in dims:
        count *= rank[d]
    correction = node.kwargs.get("correction")
    count -= 1 if correction is None else correction
    if count <= 0:
        raise Unsupported("a variance of too few values")
    off = recipe.pointwise("{0} - {1}", [x, recipe.reduction(x, dims, True, "mean")], rank)
    summed = recipe.reduction(recipe.pointwise("{0} * {0}", [off], rank), dims, node.kwargs.get("keepdim", False), "sum")
    return recipe.pointwise("{0} / {1}", [summed, count], shape)


def _softmax_gradient(recipe, node, args, shape):
    return recipe.along(args[0], args[2], "{1} * ({0} - sum({0} * {1}, over: [OVER]))", [recipe.stored(args[1])])


def _gelu(recipe, node, args, shape):
    form = ", form: tanh" if node.kwargs.get("approximate") == "tanh" else ""
    return recipe.pointwise(f"gelu({{0}}{form})", args[:1], shape)


def _layer_norm(recipe, node, args, shape):
    """Result, mean and reciprocal deviation."""
    x, of, weight, bias, eps = args
    dims = list(range(len(x.axes) - len(of), len(x.axes)))
    rank = tuple(extent(axis) for axis in x.axes)
    mean = recipe.reduction(x, dims, True, "mean")
    apart_from_mean = recipe.pointwise("{0} - {1}", [x, mean], rank)
    squares = recipe.pointwise("{0} * {0}", [apart_from_mean], rank)
    variance = recipe.reduction(squares, dims, True, "mean")
    deviation = recipe.pointwise(f"rsqrt({{0}} + {eps!r})", [variance], tuple(extent(axis) for axis in variance.axes))
    scaled = [apart_from_mean, deviation, *[v for v in (weight, bias) if v is not None]]
    template = "{0} * {1}" + (" * {2}" if weight is not None else "")
    if bias is not None:
        template += " + {3}" if weight is not None else " + {2}"
    return recipe.pointwise(template, scaled, rank), mean, deviation


def _mask(recipe, node, args, shape):
    _, _, rate, stream, step, _ = args
    if recipe.mask_step not in (None, step):
        raise Unsupported("masks of several steps meet in one recipe")
    recipe.mask_step = step
    return Mask([new_axis(n) for n in shape], rate, stream)


LOWERED = {
    **dict.fromkeys(VIEWS, _view),
    **dict.fromkeys(POINTWISE, _pointwise),
    **dict.fromkeys(CONSTANTS, _constant),
    **dict.fromkeys(
        (aten.sum.dim_IntList, aten.sum.default, aten.mean.dim, aten.mean.default, aten.amax.default, aten.amin.default, aten.any.dim,
         aten.any.default, aten.all.default, aten.all.dim, aten.logsumexp.default), _reduction),
    aten._to_copy.default: _converted,
    aten.var.correction: _variance,
    aten.clamp.default: _clamp,
    aten.mm.default: lambda recipe, node, args, shape: recipe.contraction(args[0], args[1], 0),
    aten.bmm.default: lambda recipe, node, args, shape: recipe.contraction(args[0], args[1], 1),
    aten.addmm.default: _addmm,
    aten._softmax.default: lambda recipe, node, args, shape: recipe.along(args[0], args[1], "softmax({0}, over: OVER)"),
    aten._softmax_backward_data.default: _softmax_gradient,
    aten.gelu.default: _gelu,
    aten.native_layer_norm.default: _layer_norm,
    MASK: _mask,
    **parts.LOWERED,
    **convolutions.LOWERED,
    **pooling.LOWERED,
    **batch_norm.LOWERED,
}  # fmt: skip
