"""What becomes of a graph before it is divided: attention and losses in the form that recipes know, dropouts as masks of a seed.

A model's functions are traced by Dynamo and taken apart by AOTAutograd. Attention is written out before that, so that its gradient is made
of the same operators; dropouts are found in the joint graph of forward and backward, so that both read one mask.
"""

import math
import operator

import torch
from torch._decomp import core_aten_decompositions

from .graph import aten
from .masks import MASK, SEED
from .operators import LOWERED


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """``scaled_dot_product_attention``; a query all of whose keys are masked gets 0, as there."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    if enable_gqa and key.shape[-3] != query.shape[-3]:
        times = query.shape[-3] // key.shape[-3]
        key, value = key.repeat_interleave(times, -3), value.repeat_interleave(times, -3)
    score = (query @ key.transpose(-2, -1)) * scale
    if is_causal:
        rows, columns = score.shape[-2:]
        keeps = torch.arange(columns, device=query.device) <= torch.arange(rows, device=query.device)[:, None]
        score = torch.where(keeps, score, float("-inf"))
    if attn_mask is None:
        weight = torch.softmax(score, -1)
    elif attn_mask.dtype is torch.bool:
        weight = torch.where(attn_mask.any(-1, keepdim=True), torch.softmax(torch.where(attn_mask, score, float("-inf")), -1), 0.0)
    else:
        hidden = attn_mask == float("-inf")
        score = torch.where(hidden, float("-inf"), score + attn_mask)
        weight = torch.where(hidden.all(-1, keepdim=True), 0.0, torch.softmax(score, -1))
    if dropout_p > 0:
        weight = torch.nn.functional.dropout(weight, dropout_p, True)
    return weight @ value


def cross_entropy(scores, labels, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean", label_smoothing=0.0):
    """``cross_entropy`` of the scores themselves: no logarithms of all probabilities are made or saved."""
    plain = weight is None and size_average is None and reduce is None and label_smoothing == 0.0
    if not plain or scores.dim() != 2 or labels.dtype is not torch.int64 or labels.dim() != 1:
        return _CROSS_ENTROPY(scores, labels, weight, size_average, ignore_index, reduce, reduction, label_smoothing)
    picked = torch.nn.functional.nll_loss(scores, labels, ignore_index=ignore_index, reduction=reduction)
    counts = labels != ignore_index
    totals = torch.where(counts, torch.logsumexp(scores, 1), 0.0)
    if reduction == "none":
        return picked + totals
    return picked + totals.sum() / (counts.sum() if reduction == "mean" else 1)


_CROSS_ENTROPY = torch.nn.functional.cross_entropy
_WRITTEN_OUT = {torch.nn.functional.scaled_dot_product_attention: attention, torch.nn.functional.cross_entropy: cross_entropy}


def write_out(module):
    """Replaces attention and losses in a graph of Dynamo's by what they are made of."""
    for graph in (m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule)):
        for node in graph.nodes:
            if node.op == "call_function":
                node.target = _WRITTEN_OUT.get(node.target, node.target)
    module.recompile()


def _log_softmax(x, dim, half_to_float):
    return x - torch.logsumexp(x, dim, keepdim=True)


def _log_softmax_gradient(gradient, output, dim, dtype):
    return gradient - torch.exp(output) * gradient.sum(dim, keepdim=True)


def _adaptive_average(x, size):
    if tuple(size) != (1, 1):
        return NotImplemented
    return x.mean((-2, -1), keepdim=True)


def decompositions():
    """For AOTAutograd: what recipes say stays whole."""
    kept = {*LOWERED, aten.native_dropout.default, aten.native_dropout_backward.default}
    found = {op: of for op, of in core_aten_decompositions().items() if op not in kept}
    found[aten._log_softmax.default] = _log_softmax
    found[aten._log_softmax_backward_data.default] = _log_softmax_gradient
    found[aten._adaptive_avg_pool2d.default] = _adaptive_average
    return found


def dropouts_as_masks(module):
    """Makes dropouts products with masks of one seed; returns the masks in order. Their numbers are settled later (``layers.settle``)."""
    graph = module.graph
    drawn = [n for n in graph.nodes if n.op == "call_function" and n.target is aten.native_dropout.default and n.args[2] is not False]
    if not drawn:
        return []
    mode = drawn[0].args[0].meta["val"].fake_mode
    first = next(n for n in graph.nodes if n.op == "call_function")
    with graph.inserting_before(first):
        seed = graph.call_function(SEED)
    with mode:
        seed.meta["val"] = torch.empty((), dtype=torch.int64)
    masks = []
    for number, node in enumerate(drawn):
        x, rate = node.args[0], node.args[1]
        like = x.meta["val"]
        with graph.inserting_before(node):
            mask = graph.call_function(MASK, (seed, list(like.shape), rate, number, 0, like.dtype))
            kept = graph.call_function(aten.mul.Tensor, (x, mask))
        with mode:
            mask.meta["val"] = torch.empty(like.shape, dtype=like.dtype)
        kept.meta.update(val=like, memlet_masked=True)
        masks.append(mask)
        for user in list(node.users):
            if user.target is operator.getitem and user.args[1] == 0:
                user.replace_all_uses_with(kept)
            elif user.target is operator.getitem:
                _read_mask(graph, user, mask, mode)
    graph.eliminate_dead_code()
    module.recompile()
    return masks


def _read_mask(graph, was, mask, mode):
    """Lets what reads the truth values of a mask read its factors."""
    for user in list(was.users):
        if user.target is aten.native_dropout_backward.default:
            with graph.inserting_before(user):
                product = graph.call_function(aten.mul.Tensor, (user.args[0], mask))
            product.meta.update(val=user.meta["val"], memlet_masked=True)
            user.replace_all_uses_with(product)
    if any(user.target is not aten.native_dropout_backward.default for user in was.users):
        with graph.inserting_before(was):
            kept = graph.call_function(aten.ne.Scalar, (mask, 0))
        kept.meta["val"] = was.meta["val"]
        was.replace_all_uses_with(kept, delete_user_cb=lambda user: user.target is not aten.native_dropout_backward.default)
