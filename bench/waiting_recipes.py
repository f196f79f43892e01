"""Writes the recipes that bench/waiting.sh times and that are not shipped: many equal parts, each written out.

usage: waiting_recipes.py FOLDER
"""

import pathlib
import sys


def recipe(name, about, dims, inputs, parameters, steps, train):
    """A recipe as text; tensors are given as (name, dims) and steps as lines."""
    size = ", ".join(f"{dim}: {value}" for dim, value in dims)
    lines = [f"model: {name}", f"about: {about}", f"dims: {{{size}}}", "dtype: f32", "inputs:"]
    lines += [f"  {tensor}: [{', '.join(on)}]" for tensor, on in inputs]
    lines += ["parameters:"] + [f"  {tensor}: [{', '.join(on)}]" for tensor, on in parameters]
    lines += ["steps:"] + [f'  - "{step}"' for step in steps] + [f"train: {{upstream: {train}}}"]
    return "\n".join(lines) + "\n"


def encoder(layers):
    """Layers of the BERT encoder with dropout, on a small input."""
    each = [
        ("wq", "phi"), ("bq", "ph"), ("wk", "phi"), ("bk", "ph"), ("wv", "phi"), ("bv", "ph"), ("wo", "phi"), ("bo", "i"), ("g1", "i"),
        ("s1", "i"), ("w1", "ui"), ("b1", "u"), ("w2", "iu"), ("b2", "i"), ("g2", "i"), ("s2", "i"),
    ]
    parameters, steps = [], []
    for n in range(layers):
        parameters += [(f"{name}_{n}", dims) for name, dims in each]
        x = f"x{n}"
        steps += [
            f"qq_{n}[p,h,b,j] = wq_{n}[p,h,i] * {x}[i,b,j] + bq_{n}[p,h]",
            f"kk_{n}[p,h,b,k] = wk_{n}[p,h,i] * {x}[i,b,k] + bk_{n}[p,h]",
            f"vv_{n}[p,h,b,k] = wv_{n}[p,h,i] * {x}[i,b,k] + bv_{n}[p,h]",
            f"beta_{n}[h,b,j,k] = (1 / sqrt(size(p))) * kk_{n}[p,h,b,k] * qq_{n}[p,h,b,j]",
            f"alpha_{n}[h,b,j,k] = dropout(softmax(beta_{n}, over: k), rate: 0.1)",
            f"gamma_{n}[p,h,b,j] = vv_{n}[p,h,b,k] * alpha_{n}[h,b,j,k]",
            f"attn_{n}[i,b,j] = wo_{n}[p,h,i] * gamma_{n}[p,h,b,j] + bo_{n}[i]",
            f"res1_{n}[i,b,j] = {x}[i,b,j] + dropout(attn_{n}[i,b,j], rate: 0.1)",
            f"norm_{n}[i,b,j] = layernorm(res1_{n}[i,b,j], over: i, scale: g1_{n}[i], shift: s1_{n}[i], eps: 1e-5)",
            f"ff1_{n}[u,b,j] = dropout(relu(w1_{n}[u,i] * norm_{n}[i,b,j] + b1_{n}[u]), rate: 0.1)",
            f"ff2_{n}[i,b,j] = w2_{n}[i,u] * ff1_{n}[u,b,j] + b2_{n}[i]",
            f"res2_{n}[i,b,j] = norm_{n}[i,b,j] + dropout(ff2_{n}[i,b,j], rate: 0.1)",
            f"x{n + 1}[i,b,j] = layernorm(res2_{n}[i,b,j], over: i, scale: g2_{n}[i], shift: s2_{n}[i], eps: 1e-5)",
        ]
    dims = [("b", 1), ("j", 32), ("k", "j"), ("h", 4), ("p", 16), ("i", 64), ("u", 128)]
    about = f"{layers} encoder layers, each written out"
    return recipe(f"encoder_{layers}", about, dims, [("x0", "ibj")], parameters, steps, f"x{layers}")


def gru(times):
    """A gated recurrent unit whose steps are written out; all share their parameters."""
    parameters = [("wz", "ui"), ("uz", "uv"), ("bz", "u"), ("wr", "ui"), ("ur", "uv"), ("br", "u"), ("wn", "ui"), ("un", "uv"),
                  ("bn", "u"), ("cn", "u")]
    steps = []
    for t in range(times):
        steps += [
            f"z{t}[b,u] = sigmoid(wz[u,i] * x{t}[b,i] + uz[u,v] * h{t}[b,v] + bz[u])",
            f"r{t}[b,u] = sigmoid(wr[u,i] * x{t}[b,i] + ur[u,v] * h{t}[b,v] + br[u])",
            f"n{t}[b,u] = tanh(wn[u,i] * x{t}[b,i] + bn[u] + r{t}[b,u] * (un[u,v] * h{t}[b,v] + cn[u]))",
            f"h{t + 1}[b,u] = (1 - z{t}[b,u]) * n{t}[b,u] + z{t}[b,u] * h{t}[b,u]",
        ]
    dims = [("b", 16), ("i", 32), ("u", 64), ("v", "u")]
    inputs = [("h0", "bu")] + [(f"x{t}", "bi") for t in range(times)]
    return recipe(f"gru_{times}", f"a gated recurrent unit of {times} steps, each written out", dims, inputs, parameters, steps, f"h{times}")


def lstm(times):
    """A long short-term memory whose steps are written out; all share their parameters."""
    parameters = [tensor for gate in "ifgo" for tensor in [(f"w{gate}", "uj"), (f"u{gate}", "uv"), (f"b{gate}", "u")]]
    steps = []
    for t in range(times):
        gate = lambda name, function: (
            f"{name}{t}[b,u] = {function}(w{name}[u,j] * x{t}[b,j] + u{name}[u,v] * h{t}[b,v] + b{name}[u])")
        steps += [gate("i", "sigmoid"), gate("f", "sigmoid"), gate("g", "tanh"), gate("o", "sigmoid")]
        steps += [f"c{t + 1}[b,u] = f{t}[b,u] * c{t}[b,u] + i{t}[b,u] * g{t}[b,u]", f"h{t + 1}[b,u] = o{t}[b,u] * tanh(c{t + 1}[b,u])"]
    dims = [("b", 32), ("j", 64), ("u", 128), ("v", "u")]
    inputs = [("h0", "bu"), ("c0", "bu")] + [(f"x{t}", "bj") for t in range(times)]
    return recipe(f"lstm_{times}", f"a long short-term memory of {times} steps, each written out", dims, inputs, parameters, steps, f"h{times}")


def dense(layers):
    """Dense layers in a chain, with parameters of their own."""
    parameters = [tensor for n in range(layers) for tensor in [(f"w{n}", "uv"), (f"c{n}", "u")]]
    steps = []
    for n in range(layers):
        one, other = ("u", "v") if n % 2 == 0 else ("v", "u")
        parameters[2 * n] = (f"w{n}", one + other)
        parameters[2 * n + 1] = (f"c{n}", one)
        steps += [f"h{n + 1}[b,{one}] = relu(w{n}[{one},{other}] * h{n}[b,{other}] + c{n}[{one}])"]
    dims = [("b", 16), ("u", 32), ("v", 48)]
    return recipe(f"dense_{layers}", f"{layers} dense layers in a chain", dims, [("h0", "bv")], parameters, steps, f"h{layers}")


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    made = {"lstm-4": lstm(4)}
    made |= {f"encoder-{n}": encoder(n) for n in [2, 3, 12, 25, 250]}
    made |= {f"gru-{n}": gru(n) for n in [4, 16, 32, 64]}
    made |= {f"dense-{n}": dense(n) for n in [10, 20, 40, 80, 160, 200, 320, 640, 1280]}
    for name, text in made.items():
        (folder / f"{name}.yaml").write_text(text)


if __name__ == "__main__":
    main()
