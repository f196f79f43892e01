"""Whether the results of a plan are those of PyTorch in f64, at full size, dropout off.

    gpu_check.py encoder|attention INPUTS.safetensors --draw b=8,j=512,h=16,p=64,i=1024,u=4096
    gpu_check.py encoder|attention INPUTS.safetensors --results RESULTS.safetensors [--dtype bf16] [--narrow] [--device cuda]
    gpu_check.py encoder INPUTS.safetensors --lie pytorch ...    # bert-large-pytorch.yaml, bert-large-encoder.yaml without

The first writes tensors for `memlet run --inputs`; the second compares what a plan made of them (`--outputs --no-dropout`), prints
one line of JSON, and ends with code 3 if a result is further off than its bound. Both in the recipe's names and dim order.

The error of a result is the Euclidean norm of the difference ÷ that of the result; of `d_bk` ÷ that of `d_bq`, for a softmax does not
change with what is added to all its scores, and the gradient by a bias of the keys is nothing but rounding. In f32 the bound is
1e-4: n roundings of u add up to about √n·u, and the longest chain sums some
10⁴ terms. In bf16 each of about 30 operators stores a result with an independent error of u/√3 at most, u = 2⁻⁸: √30·u = 2%; where
rectifiers stand, values within that of zero fall on the other side, which turns a share of 0.8·2% of a gradient's terms on or off:
√0.016 = 13% for gradients.
"""
import argparse
import json
import sys

import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

EPS = 1e-5
ATTENTION = {
    "x": "ibj", "wq": "phi", "bq": "ph", "wk": "phi", "bk": "ph", "wv": "phi", "bv": "ph", "wo": "phi", "bo": "i", "d_y": "ibj",
}
# What lies otherwise in bert-large-pytorch.yaml.
PYTORCH = {"x": "bji", "wq": "hpi", "bq": "hp", "wk": "hpi", "bk": "hp", "wv": "hpi", "bv": "hp", "wo": "ihp", "d_y": "bji"}
ENCODER = ATTENTION | {"g1": "i", "s1": "i", "w1": "ui", "b1": "u", "w2": "iu", "b2": "i", "g2": "i", "s2": "i"}


def dims(model, lie):
    """The order of dims of every tensor that a recipe is given."""
    paper = ENCODER if model == "encoder" else ATTENTION
    return paper | PYTORCH if lie == "pytorch" else paper


def turned(tensor, own, wanted):
    """A tensor with dims `own` in the order `wanted`."""
    return tensor.permute([own.index(d) for d in wanted])


def draw(model, sizes, lie):
    """Numbers between -1 and 1, weights divided by the root of their largest size."""
    random = torch.Generator().manual_seed(1)
    found = {}
    for name, order in dims(model, lie).items():
        shape = [sizes[d] for d in order]
        tensor = torch.rand(shape, generator=random) * 2 - 1
        found[name] = tensor / max(shape) ** 0.5 if name.startswith("w") else tensor
    return found


def attention(t):
    """y[b,j,i] of x[i,b,j] (and its names for queries, keys and values) as the recipes say."""
    q = torch.einsum("phi,ibj->bhjp", t["wq"], t["x"]) + t["bq"].T[None, :, None, :]
    k = torch.einsum("phi,ibk->bhkp", t["wk"], t["x"]) + t["bk"].T[None, :, None, :]
    v = torch.einsum("phi,ibk->bhkp", t["wv"], t["x"]) + t["bv"].T[None, :, None, :]
    a = torch.softmax(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, -1)
    return torch.einsum("phi,bhjp->bji", t["wo"], a @ v) + t["bo"]


def encoder(t):
    x, i = t["x"].permute(1, 2, 0), t["x"].shape[:1]
    n = F.layer_norm(x + attention(t), i, t["g1"], t["s1"], EPS)
    f = F.linear(torch.relu(F.linear(n, t["w1"], t["b1"])), t["w2"], t["b2"])
    return F.layer_norm(n + f, i, t["g2"], t["s2"], EPS)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["encoder", "attention"])
    parser.add_argument("inputs")
    parser.add_argument("--draw")
    parser.add_argument("--results")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--narrow", action="store_true", help="weights are stored in --dtype too")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--lie", choices=["paper", "pytorch"], default="paper", help="how the recipe's tensors lie")
    args = parser.parse_args()
    if args.draw:
        sizes = {name: int(value) for name, value in (part.split("=") for part in args.draw.split(","))}
        save_file(draw(args.model, sizes, args.lie), args.inputs)
        return 0
    # What is stored in bf16 is rounded to it on the way in: weights only if they are narrow, biases and scales never.
    rounded = lambda n: n in ("x", "d_y") or args.narrow and n.startswith("w")
    stored = lambda n, t: t.bfloat16() if args.dtype == "bf16" and rounded(n) else t
    given = {n: stored(n, t).to(args.device, torch.float64) for n, t in load_file(args.inputs).items()}
    upstream = given.pop("d_y")
    leaves = {n: t.requires_grad_() for n, t in given.items()}
    own, paper = dims(args.model, args.lie), dims(args.model, "paper")
    taken = {n: turned(t, own[n], paper[n]) for n, t in leaves.items()}
    y = turned((encoder if args.model == "encoder" else attention)(taken), "bji", own["x"])
    gradients = torch.autograd.grad(y, list(leaves.values()), upstream)
    want = {"y": y.detach()} | {"d_" + n: g for n, g in zip(leaves, gradients)}
    got = {n: t.to(args.device, torch.float64) for n, t in load_file(args.results).items()}
    narrow = args.dtype != "f32"
    measure = {name: "d_bq" if name == "d_bk" else name for name in want}
    errors, bounds, missing = {}, {}, sorted(set(want) - set(got))
    for name in sorted(set(want) & set(got)):
        errors[name] = float((got[name] - want[name]).norm() / want[measure[name]].norm())
        kinked = args.model == "encoder" and name != "y"
        bounds[name] = (0.13 if kinked else 0.02) if narrow else (1e-3 if kinked else 1e-4)
    wrong = [n for n, e in errors.items() if not e <= bounds[n]]
    found = {"check": args.model, "dtype": args.dtype, "against": f"PyTorch {torch.__version__} in f64, dropout off"}
    print(json.dumps(found | {"errors": errors, "bounds": bounds, "wrong": wrong, "missing": missing}))
    return 3 if wrong or missing else 0


if __name__ == "__main__":
    sys.exit(main())
