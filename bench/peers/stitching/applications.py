"""Translation by a transformer, and a recommender of several interests."""
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import Workload, draws, normal, zeros
from .optimizers import adam, with_states
from .recurrent import layernorm


def nmt():
    """Inference: an encoder of 24 words, then 16 greedy steps of a decoder with caches of keys and values. Four layers each, 256 wide, 8
    heads, feed-forward of 1024, 4096 words, batch 8."""
    random, (i, h, u, words, b, sources, times, layers) = draws(), (256, 8, 1024, 4096, 8, 24, 16, 4)
    p = i // h

    def norm(name):
        return {f"{name}_g": np.ones(i, np.float32), f"{name}_s": zeros(i)}

    def attention(name):
        return {f"{name}_{kind}": normal(random, i, i) for kind in "qkvo"}

    def forward(name):
        return {f"{name}_w1": normal(random, i, u), f"{name}_c1": zeros(u), f"{name}_w2": normal(random, u, i), f"{name}_c2": zeros(i)}

    parameters = {}
    for n in range(layers):
        parameters |= norm(f"e{n}_n1") | attention(f"e{n}_a") | norm(f"e{n}_n2") | forward(f"e{n}")
    for n in range(layers):
        parameters |= norm(f"d{n}_n1") | attention(f"d{n}_a") | norm(f"d{n}_n2") | attention(f"d{n}_x") | norm(f"d{n}_n3") | forward(f"d{n}")
    place = normal(random, 64, i, scale=0.1)
    parameters |= {"e": normal(random, words, i, scale=0.06)} | norm("ne") | norm("nd") | {"place": place}
    source = random.integers(1, words, (b, sources)).astype(np.int32)
    length = random.integers(sources // 2, sources + 1, b).astype(np.int32)
    root, scale = np.float32(i**0.5), np.float32(p**-0.5)

    def heads(x):
        return x.reshape(x.shape[:-1] + (h, p))

    def step(t):
        def normed(name, x):
            return layernorm(x, t[f"{name}_g"], t[f"{name}_s"])

        def fed(name, x):
            return jax.nn.relu(x @ t[f"{name}_w1"] + t[f"{name}_c1"]) @ t[f"{name}_w2"] + t[f"{name}_c2"]

        mask = jnp.where(jnp.arange(sources)[None, :] < t["length"][:, None], 0.0, -1e9)
        x = t["e"][t["source"]] * root + t["place"][:sources]
        for n in range(layers):
            y = normed(f"e{n}_n1", x)
            q, k, v = (heads(y @ t[f"e{n}_a_{kind}"]) for kind in "qkv")
            a = jax.nn.softmax(jnp.einsum("bshp,bthp->bhst", q, k) * scale + mask[:, None, None, :])
            x = x + jnp.einsum("bhst,bthp->bshp", a, v).reshape(b, sources, i) @ t[f"e{n}_a_o"]
            x = x + fed(f"e{n}", normed(f"e{n}_n2", x))
        x = normed("ne", x)
        crossed = [(heads(x @ t[f"d{n}_x_k"]), heads(x @ t[f"d{n}_x_v"])) for n in range(layers)]
        empty = jnp.zeros((b, times, h, p), x.dtype)

        def one(carried, time):
            word, caches = carried
            x = t["e"][word] * root + t["place"][time]
            past, after = jnp.where(jnp.arange(times) <= time, 0.0, -1e9), []
            for n, ((keys, values), (xk, xv)) in enumerate(zip(caches, crossed)):
                y = normed(f"d{n}_n1", x)
                q, k, v = (heads(y @ t[f"d{n}_a_{kind}"]) for kind in "qkv")
                keys = lax.dynamic_update_slice(keys, k[:, None], (0, time, 0, 0))
                values = lax.dynamic_update_slice(values, v[:, None], (0, time, 0, 0))
                after.append((keys, values))
                a = jax.nn.softmax(jnp.einsum("bhp,bthp->bht", q, keys) * scale + past)
                x = x + jnp.einsum("bht,bthp->bhp", a, values).reshape(b, i) @ t[f"d{n}_a_o"]
                q = heads(normed(f"d{n}_n2", x) @ t[f"d{n}_x_q"])
                a = jax.nn.softmax(jnp.einsum("bhp,bshp->bhs", q, xk) * scale + mask[:, None, :])
                x = x + jnp.einsum("bhs,bshp->bhp", a, xv).reshape(b, i) @ t[f"d{n}_x_o"]
                x = x + fed(f"d{n}", normed(f"d{n}_n3", x))
            log = jax.nn.log_softmax(normed("nd", x) @ t["e"].T)
            word = jnp.argmax(log, -1).astype(jnp.int32)
            return (word, after), (word, jnp.max(log, -1))

        start = (jnp.zeros(b, jnp.int32), [(empty, empty)] * layers)
        found, score = lax.scan(one, start, jnp.arange(times))[1]
        return {"word": found, "score": jnp.sum(score, 0)}

    # The recipe counts layers from 1, and its heads are dims of their own.
    joined = {}
    for name in parameters:
        layer = re.fullmatch(r"([ed])(\d)_(?:n(\d)_(.)|([ax])_(.)|(.)(\d))", name)
        if layer is None:
            continue
        part, n, norm_n, norm_kind, attention_kind, weight, kind, number = layer.groups()
        if norm_n:
            own = f"{norm_kind}{norm_n}"
        elif weight:
            own = ("w" if attention_kind == "a" else "x") + weight
        else:
            own = f"{kind}{number}"
        shape = parameters[name].shape if not weight else (h, p, i) if weight == "o" else (i, h, p)
        joined[name] = [(f"{'enc' if part == 'e' else 'dec'}_{int(n) + 1}_{own}", len(parameters[name]), shape)]
    return Workload(parameters | {"source": source, "length": length}, step, joined=joined)


def multi_interests():
    """Training: 94 clicks embedded 32 wide, 8 heads of 4, capsules of 4 interests by 3 routings, attention by the label, a sampled softmax
    of 128, batch 256, Adam; 20,000 items, of which the rows that are read are updated by gradient descent of 0.01."""
    random, (items, i, h, l, k, b, sampled) = draws(), (20000, 32, 8, 94, 4, 256, 128)
    p = i // h
    e = normal(random, items, i, scale=0.1)
    parameters = {f"w{kind}": normal(random, i, i) for kind in "qkvo"} | {"bias": normal(random, l, l, scale=0.1)}
    parameters |= {"scale": np.ones(i, np.float32), "shift": zeros(i), "ws": normal(random, i, i)}
    parameters |= {"w1": normal(random, i, 64), "c1": zeros(64), "w2": normal(random, 64, i), "c2": zeros(i)}
    states = with_states(parameters, "m", "v") | {"adam_t": np.float32(0)}
    clicked = random.integers(0, items, (b, l)).astype(np.int32)
    length = random.integers(8, l + 1, b).astype(np.int32)
    target, others = random.integers(0, items, b).astype(np.int32), random.integers(0, items, sampled).astype(np.int32)
    route = random.standard_normal((b, k, l)).astype(np.float32)

    def squashed(x):
        square = jnp.sum(x * x, -1, keepdims=True)
        return square / (1 + square) * x * lax.rsqrt(square + 1e-8)

    def loss(w, x, own, other, t):
        live = jnp.arange(l)[None, :] < t["length"][:, None]
        q, key, v = ((x @ w[f"w{kind}"]).reshape(b, l, h, p) for kind in "qkv")
        score = jnp.einsum("blhp,bmhp->bhlm", q, key) * np.float32(p**-0.5) + w["bias"]
        a = jax.nn.softmax(jnp.where(live[:, None, None, :], score, -1e9))
        y = x + jnp.einsum("bhlm,bmhp->blhp", a, v).reshape(b, l, i) @ w["wo"]
        seen = layernorm(y, w["scale"], w["shift"]) @ w["ws"]
        fixed, logits = lax.stop_gradient(seen), t["route"]
        for turn in range(3):
            c = jax.nn.softmax(jnp.where(live[:, None, :], logits, -1e9))
            capsules = squashed(jnp.einsum("bkl,bld->bkd", c, seen if turn == 2 else fixed))
            if turn < 2:
                logits = logits + jnp.einsum("bkd,bld->bkl", capsules, fixed)
        capsules = jax.nn.relu(capsules @ w["w1"] + w["c1"]) @ w["w2"] + w["c2"]
        a = jax.nn.softmax(jnp.square(jnp.einsum("bkd,bd->bk", capsules, own)))
        user = jnp.einsum("bk,bkd->bd", a, capsules)
        scores = jnp.concatenate([jnp.sum(user * own, -1, keepdims=True), user @ other.T], -1)
        return -jnp.mean(jax.nn.log_softmax(scores)[:, 0])

    def step(t):
        w = {n: t[n] for n in parameters}
        rows = (t["e"][t["clicked"]], t["e"][t["target"]], t["e"][t["others"]])
        value, (gradients, dx, down, dother) = jax.value_and_grad(loss, argnums=(0, 1, 2, 3))(w, *rows, t)
        e = t["e"].at[t["clicked"]].add(-0.01 * dx).at[t["target"]].add(-0.01 * down).at[t["others"]].add(-0.01 * dother)
        return adam(w, gradients, t) | {"e": e, "loss": value}

    given = {"clicked": clicked, "length": length, "target": target, "others": others, "route": route}
    joined = {f"w{kind}": [(f"w{kind}", i, (i, h, p))] for kind in "qkv"} | {"wo": [("wo", i, (h, p, i))]}
    return Workload({"e": e} | parameters | states | given, step, ["e", *parameters, *states], joined)
