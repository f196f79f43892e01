"""JAX as a peer: the step under jax.jit.

    jax_worker.py THREADS VARIANT PRECISION

VARIANT is jax, with the default random numbers (threefry), or jax-rbg, with those that are cheapest. PRECISION is highest,
or bf16: x and the f32 weights are cast to bf16 in every step, softmax and normalization compute in f32; or bf16-native: they
are held in bf16, and so are the gradients.

The step is one compiled function. Forward and backward alone are two further functions, timed after it: their sum is not
the step, because what passes between them must be stored.
"""
import os
import sys
import time

THREADS, VARIANT, NARROW, NATIVE = int(sys.argv[1]), sys.argv[2], sys.argv[3].startswith("bf16"), sys.argv[3] == "bf16-native"
# XLA takes as many threads as the process may use processors; this must come before JAX is imported.
if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:THREADS])
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp
import numpy as np

import session


def layer(model, dropout):
    """The function (key, x, parameters) → y. Rates and epsilons are the recipe's."""
    h, p = model["heads"], model["size"]
    rates = model["rates"] if dropout else {name: 0.0 for name in model["rates"]}

    cast = (lambda t: t.astype(jnp.bfloat16)) if NARROW else (lambda t: t)
    wide = (lambda t: t.astype(jnp.float32)) if NARROW else (lambda t: t)

    def drop(t, key, rate):
        return jnp.where(jax.random.bernoulli(key, 1 - rate, t.shape), t / (1 - rate), 0) if rate else t

    def attention(x, key, wqkv, bqkv, wo, bo):
        b, j, _ = x.shape
        q, k, v = (t.reshape(b, j, h, p) for t in jnp.split(x @ wqkv.T + bqkv, 3, -1))
        a = cast(jax.nn.softmax(wide(jnp.einsum("bjhp,bkhp->bhjk", q, k)) * p ** -0.5, -1))
        o = jnp.einsum("bhjk,bkhp->bjhp", drop(a, key, rates["attention"]), v)
        return o.reshape(b, j, h * p) @ wo.T + bo

    def norm(t, scale, shift, eps):
        t, scale, shift = wide(t), wide(scale), wide(shift)
        centred = t - t.mean(-1, keepdims=True)
        return cast(centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + eps) * scale + shift)

    if model["family"] == "attention":
        return lambda key, x, parameters: attention(cast(x), key, *map(cast, parameters))
    act = {"relu": jax.nn.relu, "gelu": lambda t: jax.nn.gelu(t, approximate=False)}[model["activation"]]
    first, second = model["eps"]

    def encoder(key, x, parameters):
        x, parameters = cast(x), tuple(map(cast, parameters))
        g1, s1, w1, b1, w2, b2, g2, s2 = parameters[4:]
        keys = jax.random.split(key, 4)
        n = norm(x + drop(attention(x, keys[0], *parameters[:4]), keys[1], rates["attended"]), g1, s1, first)
        f = drop(act(n @ w1.T + b1), keys[2], rates["hidden"]) @ w2.T + b2
        return norm(n + drop(f, keys[3], rates["fed"]), g2, s2, second)

    return encoder


class Prepared:
    def __init__(self, model, variant, dropout):
        function = layer(model, dropout)
        self.key = jax.random.key(1, impl="rbg" if variant == "jax-rbg" else "threefry2x32")
        self.number = 0

        def forward(key, number, x, parameters):
            key = jax.random.fold_in(key, number)
            return jax.vjp(lambda x, parameters: function(key, x, parameters), x, parameters)

        def step(key, number, x, parameters, upstream):
            y, pull = forward(key, number, x, parameters)
            return y, pull(upstream)

        self.step, self.forward = jax.jit(step), jax.jit(forward)
        self.backward = jax.jit(lambda pull, upstream: pull(upstream))


class Peer:
    def __init__(self, variant, model, tensors):
        self.variant, self.model = variant, model
        self.names = session.parameters(model)
        held = jnp.bfloat16 if NATIVE else jnp.float32
        self.x, self.upstream = jnp.asarray(tensors["x"], held), jnp.asarray(tensors["dy"], jnp.bfloat16 if NARROW else jnp.float32)
        self.parameters = tuple(jnp.asarray(tensors[n], held) for n in self.names)
        self.versions = {"jax": jax.__version__, "threads": THREADS}

    def prepare(self, dropout):
        return Prepared(self.model, self.variant, dropout)

    def results(self, of):
        y, (dx, gradients) = jax.block_until_ready(of.step(of.key, 0, self.x, self.parameters, self.upstream))
        wide = lambda t: np.asarray(t, np.float32)
        return wide(y), {"x": wide(dx)} | {n: wide(g) for n, g in zip(self.names, gradients)}

    def step(self, of):
        of.number += 1
        begin = time.perf_counter()
        both = jax.block_until_ready(of.step(of.key, of.number, self.x, self.parameters, self.upstream))
        step = time.perf_counter() - begin
        del both
        begin = time.perf_counter()
        y, pull = jax.block_until_ready(of.forward(of.key, of.number, self.x, self.parameters))
        between = time.perf_counter()
        gradients = jax.block_until_ready(of.backward(pull, self.upstream))
        end = time.perf_counter()
        del y, pull, gradients
        return between - begin, end - between, step


if __name__ == "__main__":
    session.serve(lambda model, tensors: Peer(VARIANT, model, tensors))
