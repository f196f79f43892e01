"""Peers on a GPU: an encoder layer of BERT-large, forward, backward and together, in milliseconds.

    gpu_worker.py VARIANT[,VARIANT...] --at 8,512 [--at 96,128] [--seconds 3] [--until 60] [--device cuda]
                  [--sizes i=1024,h=16,p=64,u=4096]

Times each variant at each batch and length, in that order, all in one process, and begins none when it has run for `--until` seconds.
Prints one JSON object a line: {"variant", "batch", "length", "forward_ms", "backward_ms", "step_ms", "samples", "versions"}, or
{"variant", ..., "error"}. On a GPU PyTorch's times are those of its events, each sample a run of many steps that are put under way
without waiting, so that the CPU is not what is timed; JAX's are wall times of the same.

VARIANT is one of
    eager, sdpa               PyTorch; scaled_dot_product_attention with the backend that PyTorch chooses
    flash, cudnn              the same with flash attention or cuDNN's alone
    graph-eager, graph-sdpa, graph-cudnn
                              the same captured as one CUDA graph, which takes the CPU's time away
    compile, compile-cudnn    torch.compile(mode="max-autotune"), which captures CUDA graphs itself
    jax                       jax.jit
and ends in -autocast for f32 weights that are cast to bf16 in every step (what Memlet's bf16 plan does), else weights, gradients
and activations are all bf16. Dropout is 0.1 wherever the recipe has it.
"""
import argparse
import gc
import json
import statistics
import sys
import time

VARIANTS = ["eager", "sdpa", "flash", "cudnn", "graph-eager", "graph-sdpa", "graph-cudnn", "compile", "compile-cudnn", "jax"]
RATE = 0.1
EPS = 1e-5
# Steps of one sample, and samples at least.
STEPS = 20
LEAST = 5

SHAPES = {
    "wqkv": "3hp,i", "bqkv": "3hp", "wo": "i,hp", "bo": "i", "g1": "i", "s1": "i",
    "w1": "u,i", "b1": "u", "w2": "i,u", "b2": "i", "g2": "i", "s2": "i",
}


def shape(text, sizes):
    def extent(part):
        product = 1
        for letter in part:
            product *= int(letter) if letter.isdigit() else sizes[letter]
        return product
    return [extent(part) for part in text.split(",")]


def drawn(sizes, batch, length):
    """Weights, input and upstream gradient in float32, weights divided by the root of their largest size."""
    import numpy as np
    random = np.random.default_rng(1)
    tensors = {n: random.uniform(-1, 1, shape(s, sizes)).astype("float32") for n, s in SHAPES.items()}
    for tensor in tensors.values():
        if tensor.ndim > 1:
            tensor /= max(tensor.shape) ** 0.5
    for name in ("x", "dy"):
        tensors[name] = random.uniform(-1, 1, (batch, length, sizes["i"])).astype("float32")
    return tensors


def torch_layer(sizes, attention):
    import torch
    import torch.nn.functional as F
    h, p = sizes["h"], sizes["p"]

    def layer(x, wqkv, bqkv, wo, bo, g1, s1, w1, b1, w2, b2, g2, s2):
        b, j, i = x.shape
        q, k, v = (t.view(b, j, h, p).transpose(1, 2) for t in F.linear(x, wqkv, bqkv).chunk(3, -1))
        if attention == "eager":
            o = F.dropout(torch.softmax(q @ k.transpose(-1, -2) * p ** -0.5, -1), RATE) @ v
        else:
            o = F.scaled_dot_product_attention(q, k, v, dropout_p=RATE)
        o = F.linear(o.transpose(1, 2).reshape(b, j, h * p), wo, bo)
        n = F.layer_norm(x + F.dropout(o, RATE), (i,), g1, s1, EPS)
        f = F.linear(F.dropout(F.relu(F.linear(n, w1, b1)), RATE), w2, b2)
        return F.layer_norm(n + F.dropout(f, RATE), (i,), g2, s2, EPS)

    return layer


def of_torch(variant, sizes, args):
    import contextlib
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
    cuda = args.device == "cuda"
    autocast = variant.endswith("-autocast")
    way = variant.removesuffix("-autocast")
    attention = way.split("-")[-1]
    compiled, graphed = way.startswith("compile"), way.startswith("graph")
    backend = {"flash": SDPBackend.FLASH_ATTENTION, "cudnn": SDPBackend.CUDNN_ATTENTION}.get(attention)
    chosen = (lambda: sdpa_kernel(backend)) if backend else contextlib.nullcontext
    cast = (lambda: torch.autocast(args.device, torch.bfloat16)) if autocast else contextlib.nullcontext
    tensors = drawn(sizes, args.batch, args.length)
    stored = torch.float32 if autocast else torch.bfloat16
    put = lambda name: torch.tensor(tensors[name], device=args.device, dtype=stored)
    leaves = [put(n).requires_grad_() for n in ["x", *SHAPES]]
    # A layer ends in a normalization, which autocast computes in f32.
    upstream = put("dy")
    # What is compiled takes PyTorch's own attention: it chooses among all backends, and fuses around it.
    plain = torch_layer(sizes, "eager" if attention == "eager" else "sdpa")
    function = torch.compile(plain, mode="max-autotune") if compiled else plain

    def forward():
        if compiled:
            torch.compiler.cudagraph_mark_step_begin()
        with chosen(), cast():
            return function(*leaves)

    def backward(y):
        return torch.autograd.grad(y, leaves, upstream)

    def step():
        return backward(forward())

    def milliseconds(work, times):
        if not cuda:
            begin = time.perf_counter()
            for _ in range(times):
                work()
            return (time.perf_counter() - begin) * 1e3 / times
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(times):
            work()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / times

    for _ in range(4):
        step()
    y, gradients = forward(), step()
    if not all(bool(t.isfinite().all()) for t in (y, *gradients)):
        raise ValueError("a result is not finite")
    del y, gradients
    parts = {"step": step, "forward": forward}
    if graphed:
        # As PyTorch's manual asks: warmed up on another stream, everything captured at once.
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graphs = {}
        for name, work in parts.items():
            graphs[name] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[name]):
                held = work()
        parts = {name: graph.replay for name, graph in graphs.items()}
    samples = {name: [] for name in parts}
    begin = time.perf_counter()
    while len(samples["step"]) < LEAST or time.perf_counter() - begin < args.seconds:
        for name, work in parts.items():
            samples[name].append(milliseconds(work, args.steps))
    versions = {"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}
    return samples, versions


def of_jax(variant, sizes, args):
    import os
    os.environ["JAX_PLATFORMS"] = "cuda" if args.device == "cuda" else "cpu"
    import jax
    import jax.numpy as jnp
    import numpy as np
    autocast = variant.endswith("-autocast")
    h, p = sizes["h"], sizes["p"]
    narrow = lambda t: t.astype(jnp.bfloat16)
    wide = lambda t: t.astype(jnp.float32)

    def drop(t, key):
        return jnp.where(jax.random.bernoulli(key, 1 - RATE, t.shape), t / (1 - RATE), 0).astype(t.dtype)

    def norm(t, scale, shift):
        t, scale, shift = wide(t), wide(scale), wide(shift)
        centred = t - t.mean(-1, keepdims=True)
        return narrow(centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + EPS) * scale + shift)

    def layer(key, x, parameters):
        wqkv, bqkv, wo, bo, g1, s1, w1, b1, w2, b2, g2, s2 = map(narrow, parameters)
        x = narrow(x)
        b, j, _ = x.shape
        keys = jax.random.split(key, 4)
        q, k, v = (t.reshape(b, j, h, p) for t in jnp.split(x @ wqkv.T + bqkv, 3, -1))
        scores = jnp.einsum("bjhp,bkhp->bhjk", q, k)
        a = narrow(jax.nn.softmax(wide(scores) * p ** -0.5, -1))
        o = jnp.einsum("bhjk,bkhp->bjhp", drop(a, keys[0]), v).reshape(b, j, h * p) @ wo.T + bo
        n = norm(x + drop(o, keys[1]), g1, s1)
        f = drop(jax.nn.relu(n @ w1.T + b1), keys[2]) @ w2.T + b2
        return norm(n + drop(f, keys[3]), g2, s2)

    tensors = drawn(sizes, args.batch, args.length)
    stored = jnp.float32 if autocast else jnp.bfloat16
    x = jnp.asarray(tensors["x"], stored)
    parameters = tuple(jnp.asarray(tensors[n], stored) for n in SHAPES)
    upstream = jnp.asarray(tensors["dy"], jnp.bfloat16)
    key = jax.random.key(1, impl="rbg")

    @jax.jit
    def step(key, number, x, parameters, upstream):
        key = jax.random.fold_in(key, number)
        y, pull = jax.vjp(lambda x, parameters: layer(key, x, parameters), x, parameters)
        return y, pull(upstream)

    @jax.jit
    def forward(key, number, x, parameters):
        return layer(jax.random.fold_in(key, number), x, parameters)

    parts = {
        "step": lambda n: step(key, n, x, parameters, upstream),
        "forward": lambda n: forward(key, n, x, parameters),
    }
    y, (dx, _) = jax.block_until_ready(parts["step"](0))
    if not (bool(jnp.isfinite(y).all()) and bool(jnp.isfinite(dx).all())):
        raise ValueError("a result is not finite")
    samples = {name: [] for name in parts}
    for work in parts.values():
        jax.block_until_ready(work(0))
    begin = time.perf_counter()
    while len(samples["step"]) < LEAST or time.perf_counter() - begin < args.seconds:
        for name, work in parts.items():
            start = time.perf_counter()
            for n in range(args.steps):
                last = work(n)
            jax.block_until_ready(last)
            samples[name].append((time.perf_counter() - start) * 1e3 / args.steps)
    del np
    return samples, {"jax": jax.__version__}


def one(variant, args, sizes):
    """One variant at one batch and length; what it holds of the GPU's memory is gone when it returns."""
    found = {"variant": variant, "batch": args.batch, "length": args.length, "sizes": sizes, "device": args.device}
    try:
        of = of_jax if variant.startswith("jax") else of_torch
        samples, versions = of(variant, sizes, args)
        median = {name: statistics.median(s) for name, s in samples.items()}
        found |= {"forward_ms": median["forward"], "backward_ms": median["step"] - median["forward"], "step_ms": median["step"]}
        found |= {"samples": samples, "steps_a_sample": args.steps, "versions": versions}
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"[:500]
    return found


def cleared():
    """Gives back what the last variant held, so that the next one finds the GPU as the first did."""
    gc.collect()
    torch = sys.modules.get("torch")
    if torch is not None:
        # Whoever compiled nothing does not load what compiles, which takes seconds.
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def main():
    begin = time.perf_counter()
    parser = argparse.ArgumentParser()
    parser.add_argument("variants")
    parser.add_argument("--at", action="append", required=True, help="batch,length")
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--until", type=float, default=float("inf"))
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--sizes", default="i=1024,h=16,p=64,u=4096")
    args = parser.parse_args()
    sizes = {name: int(value) for name, value in (part.split("=") for part in args.sizes.split(","))}
    variants = args.variants.split(",")
    unknown = [v for v in variants if v.removesuffix("-autocast") not in VARIANTS]
    if unknown:
        parser.error(f"there is no variant {', '.join(unknown)}; there are {', '.join(VARIANTS)}, each also with -autocast")
    failed = False
    for variant in variants:
        for at in args.at:
            args.batch, args.length = map(int, at.split(","))
            if time.perf_counter() - begin < args.until:
                found = one(variant, args, sizes)
                cleared()
            else:
                found = {"variant": variant, "batch": args.batch, "length": args.length, "error": "no time was left"}
            failed |= "error" in found
            print(json.dumps(found), flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
