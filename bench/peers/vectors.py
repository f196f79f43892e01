#!/usr/bin/env python3
"""Make the vectors that `recipes/tests/recipes/pytorch.rs` checks the operators against.

    python bench/peers/vectors.py recipes/tests/data [name …]

needs torch, numpy and safetensors; the files are committed, so that only who changes this script needs them.

Each file holds, in float64 and in the recipe's names and dim order, the inputs and parameters, the upstream gradient
`d_<output>`, every output and the gradient `d_<name>` of every input and parameter. What is computed is PyTorch's own:
modules and `torch.nn.functional`, autograd for the gradients, dropout off. The metadata say which sizes were taken and
which PyTorch made the file.
"""
import json
import sys
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file

# Sizes that differ from each other, so that no transposition goes unnoticed; nn.MultiheadAttention wants i = h·p.
LAYER = {"b": 2, "j": 5, "h": 3, "p": 4, "i": 12, "u": 10}

ATTENTION = {"wq": "phi", "bq": "ph", "wk": "phi", "bk": "ph", "wv": "phi", "bv": "ph", "wo": "phi", "bo": "i"}
ATTENTION_AS_PYTORCH = {"wq": "hpi", "bq": "hp", "wk": "hpi", "bk": "hp", "wv": "hpi", "bv": "hp", "wo": "ihp", "bo": "i"}
FEED_FORWARD = {"w1": "ui", "b1": "u", "w2": "iu", "b2": "i"}
NORMS = {"g1": "i", "s1": "i", "g2": "i", "s2": "i"}


def projection(weight):
    """[p,h,i] as the weight [h·p, i] of a linear layer that makes heads."""
    return weight.permute(1, 0, 2).flatten(0, 1)


def heads(bias):
    """[p,h] as the bias [h·p] of a linear layer that makes heads."""
    return bias.T.flatten()


def joining(weight):
    """[p,h,i] as the weight [i, h·p] of a linear layer that joins heads."""
    return weight.permute(2, 1, 0).flatten(1, 2)


def attention_state(t, prefix=""):
    """Parameters of nn.MultiheadAttention."""
    return {
        prefix + "in_proj_weight": torch.cat([projection(t[n]) for n in ("wq", "wk", "wv")]),
        prefix + "in_proj_bias": torch.cat([heads(t[n]) for n in ("bq", "bk", "bv")]),
        prefix + "out_proj.weight": joining(t["wo"]),
        prefix + "out_proj.bias": t["bo"],
    }


def mha(t, sizes):
    module = torch.nn.MultiheadAttention(sizes["i"], sizes["h"], dropout=0.0, batch_first=True, dtype=torch.float64)
    x = t["x"].permute(1, 2, 0)
    y, _ = torch.func.functional_call(module, attention_state(t), (x, x, x), {"need_weights": False})
    return {"y": y.permute(2, 0, 1)}


def encoder(activation, eps):
    def run(t, sizes):
        module = torch.nn.TransformerEncoderLayer(
            sizes["i"], sizes["h"], sizes["u"], dropout=0.0, activation=activation, layer_norm_eps=eps, batch_first=True,
            dtype=torch.float64)
        state = attention_state(t, "self_attn.") | {
            "linear1.weight": t["w1"], "linear1.bias": t["b1"], "linear2.weight": t["w2"], "linear2.bias": t["b2"],
            "norm1.weight": t["g1"], "norm1.bias": t["s1"], "norm2.weight": t["g2"], "norm2.bias": t["s2"]}
        y = torch.func.functional_call(module, state, (t["x"].permute(1, 2, 0),))
        return {"y": y.permute(2, 0, 1)}
    return run


def as_pytorch(run):
    """The same of tensors that lie as in PyTorch: x[b,j,i], wq[h,p,i], bq[h,p], wo[i,h,p]."""
    def turned(t, sizes):
        own = dict(t) | {"x": t["x"].permute(2, 0, 1), "wo": t["wo"].permute(2, 1, 0)}
        own |= {n: t[n].permute(1, 0, 2) for n in ("wq", "wk", "wv")} | {n: t[n].T for n in ("bq", "bk", "bv")}
        return {"y": run(own, sizes)["y"].permute(1, 2, 0)}
    return turned


def gpt2(t, sizes):
    x = t["x"].permute(1, 2, 0)
    b, j, i = x.shape
    n = F.layer_norm(x, (i,), t["g1"], t["s1"], 1e-5)
    split = lambda w, c: F.linear(n, projection(t[w]), heads(t[c])).view(b, j, sizes["h"], sizes["p"]).transpose(1, 2)
    o = F.scaled_dot_product_attention(split("wq", "bq"), split("wk", "bk"), split("wv", "bv"), is_causal=True)
    x = x + F.linear(o.transpose(1, 2).reshape(b, j, -1), joining(t["wo"]), t["bo"])
    n = F.layer_norm(x, (i,), t["g2"], t["s2"], 1e-5)
    y = x + F.linear(F.gelu(F.linear(n, t["w1"], t["b1"]), approximate="tanh"), t["w2"], t["b2"])
    return {"y": y.permute(2, 0, 1)}


def llama(t, sizes):
    x = t["x"].permute(1, 2, 0)
    b, j, i = x.shape
    head, shared = 2 * sizes["r"], sizes["g"]
    # [c,r,g,m,i] as the weight [g·m·c·r, i] of a linear layer that makes heads, which keys and values have without m.
    made = lambda w: t[w].permute(*range(2, t[w].dim() - 1), 0, 1, -1).flatten(0, -2)
    split = lambda n, w: F.linear(n, made(w)).view(b, j, -1, head).transpose(1, 2)
    plane = torch.arange(sizes["r"], dtype=torch.float64)
    angle = torch.arange(j)[:, None] * 100000.0 ** (-plane / sizes["r"])
    cos, sin = angle.cos().repeat(1, 2), angle.sin().repeat(1, 2)

    def turned(x):
        first, second = x.chunk(2, -1)
        return x * cos + torch.cat([-second, first], -1) * sin

    n = F.rms_norm(x, (i,), t["g1"], 1e-5)
    q, k, v = turned(split(n, "wq")), turned(split(n, "wk")), split(n, "wv")
    assert k.shape[1] == shared and q.shape[1] == shared * sizes["m"]
    o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    x = x + F.linear(o.transpose(1, 2).reshape(b, j, -1), made("wo").T)
    n = F.rms_norm(x, (i,), t["g2"], 1e-5)
    y = x + F.linear(F.silu(F.linear(n, t["w1"])) * F.linear(n, t["w3"]), t["w2"])
    return {"y": y.permute(2, 0, 1)}


def mlp(t, _):
    y = F.linear(F.relu(F.linear(t["x"].T, t["w1"], t["b1"])), t["w2"], t["b2"])
    return {"y": y.T, "loss": F.mse_loss(y, t["target"].T)}


def causal(t, _):
    hidden = torch.ones(t["x"].shape[-2:], dtype=torch.bool).triu(1)
    return {"y": F.softmax(t["x"].masked_fill(hidden, float("-inf")), -1)}


def group(t, _):
    n, g, m, s = t["x"].shape
    y = F.group_norm(t["x"].reshape(n, g * m, s), g, t["scale"].flatten(), t["shift"].flatten(), 1e-5)
    return {"y": y.view(n, g, m, s)}


POINTS = {"n": 4, "c": 3, "s": 5}
CHANNELS = {"scale": "c", "shift": "c"}

# File → (function, sizes, inputs, parameters): tensors by their dims.
CASES = {
    "bert-base-encoder": (as_pytorch(encoder("gelu", 1e-12)), LAYER, {"x": "bji"}, ATTENTION_AS_PYTORCH | FEED_FORWARD | NORMS),
    "bert-large-encoder": (encoder("relu", 1e-5), LAYER, {"x": "ibj"}, ATTENTION | FEED_FORWARD | NORMS),
    "mha": (mha, {k: LAYER[k] for k in "bjhpi"}, {"x": "ibj"}, ATTENTION),
    "gpt2-decoder": (gpt2, LAYER, {"x": "ibj"}, ATTENTION | FEED_FORWARD | NORMS),
    "mlp": (mlp, {"b": 7, "i": 5, "u": 6, "o": 3}, {"x": "ib", "target": "ob"}, {"w1": "ui", "b1": "u", "w2": "ou", "b2": "o"}),
    "softmax": (lambda t, _: {"y": F.softmax(t["x"], 1)}, POINTS, {"x": "ncs"}, {}),
    "causal": (causal, {"h": 2, "j": 5}, {"x": "hjj"}, {}),
    "layernorm": (lambda t, _: {"y": F.layer_norm(t["x"], t["x"].shape[1:], t["scale"], t["shift"], 1e-5)}, POINTS, {"x": "ncs"},
                  {"scale": "cs", "shift": "cs"}),
    "batchnorm": (lambda t, _: {"y": F.batch_norm(t["x"], None, None, t["scale"], t["shift"], True, eps=1e-5)}, POINTS,
                  {"x": "ncs"}, CHANNELS),
    "instancenorm": (lambda t, _: {"y": F.instance_norm(t["x"], weight=t["scale"], bias=t["shift"], eps=1e-5)}, POINTS,
                     {"x": "ncs"}, CHANNELS),
    "groupnorm": (group, {"n": 4, "g": 2, "m": 3, "s": 5}, {"x": "ngms"}, {"scale": "gm", "shift": "gm"}),
    "gelu-erf": (lambda t, _: {"y": F.gelu(t["x"])}, POINTS, {"x": "ncs"}, {}),
    "gelu-tanh": (lambda t, _: {"y": F.gelu(t["x"], approximate="tanh")}, POINTS, {"x": "ncs"}, {}),
    "linear": (lambda t, _: {"y": F.linear(t["x"].permute(1, 2, 0), t["w"], t["c"]).permute(2, 0, 1)},
               {"i": 6, "b": 2, "j": 5, "u": 3}, {"x": "ibj"}, {"w": "ui", "c": "u"}),
    "llama-decoder": (llama, {"b": 2, "j": 5, "g": 2, "m": 3, "c": 2, "r": 3, "i": 7, "u": 10}, {"x": "ibj"},
                      {"g1": "i", "wq": "crgmi", "wk": "crgi", "wv": "crgi", "wo": "crgmi", "g2": "i", "w1": "ui", "w3": "ui", "w2": "iu"}),
}
NO_GRADIENT = {"target"}


def vectors(run, sizes, inputs, parameters):
    leaves = {}
    for name, dims in (inputs | parameters).items():
        value = torch.randn([sizes[d] for d in dims], dtype=torch.float64)
        if name in parameters and len(dims) > 1:
            # Weights that keep magnitudes, lest softmax saturates and hides its own gradient.
            value /= max(value.shape) ** 0.5
        leaves[name] = value.requires_grad_(name not in NO_GRADIENT)
    outputs = run(leaves, sizes)
    if "loss" in outputs:
        upstream, extra = None, {}
        target = outputs["loss"]
    else:
        target = outputs["y"]
        upstream = torch.randn_like(target)
        extra = {"d_y": upstream}
    wanted = [n for n, leaf in leaves.items() if leaf.requires_grad]
    gradients = torch.autograd.grad(target, [leaves[n] for n in wanted], upstream)
    found = leaves | outputs | extra | {"d_" + n: g for n, g in zip(wanted, gradients)}
    return {name: value.detach().contiguous() for name, value in found.items()}


def main(folder, only):
    for number, (name, (run, sizes, inputs, parameters)) in enumerate(CASES.items()):
        if only and name not in only:
            continue
        # A new case stands last, so that the others stay as they are.
        torch.manual_seed(number)
        path = Path(folder) / f"{name}.safetensors"
        # The file must not depend on the order of a hash table.
        metadata = {"about": json.dumps({"sizes": sizes, "torch": torch.__version__}, sort_keys=True)}
        save_file(vectors(run, sizes, inputs, parameters), path, metadata)
        print(f"{path}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    main(sys.argv[1], sys.argv[2:])
