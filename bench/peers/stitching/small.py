"""Five small training steps, with the shapes of the examples that the paper takes, and the paper's Figure 1."""
import jax
import jax.numpy as jnp
import numpy as np

from . import Workload, draws, normal, zeros
from .optimizers import adam, rmsprop, sgd, with_states


def classes(labels, count):
    return (labels[..., None] == jnp.arange(count)).astype(jnp.float32)


def logistic():
    """784 to 10, batch 100: softmax, the mean of the labels' negative logarithms, gradient descent of 0.01."""
    random = draws()
    parameters = {"w": normal(random, 784, 10), "c": zeros(10)}
    x, label = random.random((100, 784), dtype=np.float32), random.integers(0, 10, 100).astype(np.int32)

    def loss(p, t):
        likely = jax.nn.softmax(t["x"] @ p["w"] + p["c"])
        return -jnp.mean(jnp.sum(classes(t["label"], 10) * jnp.log(likely), 1))

    def step(t):
        p = {n: t[n] for n in parameters}
        value, gradients = jax.value_and_grad(loss)(p, t)
        return sgd(p, gradients, 0.01) | {"loss": value}

    return Workload(parameters | {"x": x, "label": label}, step, list(parameters))


def perceptron():
    """784, 256, 256, 10 with ReLU, batch 100, cross entropy, Adam."""
    random, widths = draws(), [784, 256, 256, 10]
    parameters = {}
    for k, (narrow, wide) in enumerate(zip(widths, widths[1:]), 1):
        parameters |= {f"w{k}": normal(random, narrow, wide), f"c{k}": zeros(wide)}
    states = with_states(parameters, "m", "v") | {"adam_t": np.float32(0)}
    x, label = random.random((100, 784), dtype=np.float32), random.integers(0, 10, 100).astype(np.int32)

    def loss(p, t):
        h = jax.nn.relu(t["x"] @ p["w1"] + p["c1"])
        h = jax.nn.relu(h @ p["w2"] + p["c2"])
        s = jax.nn.log_softmax(h @ p["w3"] + p["c3"])
        return -jnp.mean(jnp.sum(classes(t["label"], 10) * s, 1))

    def step(t):
        p = {n: t[n] for n in parameters}
        value, gradients = jax.value_and_grad(loss)(p, t)
        return adam(p, gradients, t) | {"loss": value}

    return Workload(parameters | states | {"x": x, "label": label}, step, list(parameters | states))


def var_encoder():
    """A variational autoencoder, 784, 512, 2, 512, 784 with tanh, batch 64: Bernoulli likelihood and divergence, RMSProp; the noise is
    an input."""
    random, (i, u, z, b) = draws(), (784, 512, 2, 64)
    parameters = {}
    for name, shape in (("e", (i, u)), ("m", (u, z)), ("s", (u, z)), ("d", (z, u)), ("o", (u, i))):
        parameters |= {f"w{name}": normal(random, *shape), f"c{name}": zeros(shape[1])}
    states = with_states(parameters, "v")
    x, noise = random.random((b, i), dtype=np.float32), random.standard_normal((b, z)).astype(np.float32)

    def loss(p, t):
        x = t["x"]
        h = jnp.tanh(x @ p["we"] + p["ce"])
        middle, spread = h @ p["wm"] + p["cm"], h @ p["ws"] + p["cs"]
        code = middle + jnp.exp(spread / 2) * t["noise"]
        y = jax.nn.sigmoid(jnp.tanh(code @ p["wd"] + p["cd"]) @ p["wo"] + p["co"])
        likelihood = jnp.sum(x * jnp.log(1e-10 + y) + (1 - x) * jnp.log(1e-10 + 1 - y), 1)
        divergence = -0.5 * jnp.sum(1 + spread - middle**2 - jnp.exp(spread), 1)
        return jnp.mean(divergence - likelihood)

    def step(t):
        p = {n: t[n] for n in parameters}
        value, gradients = jax.value_and_grad(loss)(p, t)
        return rmsprop(p, gradients, t) | {"loss": value}

    return Workload(parameters | states | {"x": x, "noise": noise}, step, list(parameters | states))


def word2vec():
    """Skip-gram with a noise-contrastive loss: 50,000 words, 200 wide, batch 128, 64 sampled words, gradient descent of 0.1 on the rows
    that are read."""
    random, (words, wide, b, k) = draws(), (50000, 200, 128, 64)
    parameters = {"e": normal(random, words, wide, scale=1.0), "w": normal(random, words, wide, scale=0.05), "c": zeros(words)}

    def ranks(n):
        # Words by rank, as often as Zipf's law has them.
        return np.minimum(words - 1, np.exp(random.random(n) * np.log(words + 1)).astype(np.int64) - 1).clip(0).astype(np.int32)

    x, y, sampled = ranks(b), ranks(b), ranks(k)

    def chance(word):
        word = word.astype(jnp.float32)
        return jnp.log(jnp.log((word + 2.0) / (word + 1.0)) / np.log(words + 1.0) * k)

    def miss(score, truth):
        return jnp.maximum(score, 0) - score * truth + jnp.log1p(jnp.exp(-jnp.abs(score)))

    def loss(rows, y, sampled):
        ex, wy, ws, cy, cs = rows
        right = jnp.sum(ex * wy, 1) + cy - chance(y)
        wrong = ex @ ws.T + cs - chance(sampled)
        return jnp.mean(miss(right, 1.0) + jnp.sum(miss(wrong, 0.0), 1))

    def step(t):
        x, y, s = t["x"], t["y"], t["sampled"]
        rows = (t["e"][x], t["w"][y], t["w"][s], t["c"][y], t["c"][s])
        value, (ex, wy, ws, cy, cs) = jax.value_and_grad(loss)(rows, y, s)
        return {
            "e": t["e"].at[x].add(-0.1 * ex),
            "w": t["w"].at[y].add(-0.1 * wy).at[s].add(-0.1 * ws),
            "c": t["c"].at[y].add(-0.1 * cy).at[s].add(-0.1 * cs),
            "loss": value,
        }

    return Workload(parameters | {"x": x, "y": y, "sampled": sampled}, step, list(parameters))


def figure_1():
    """The paper's Figure 1 at a batch of 2048: two batched products, two reductions and nine elementwise operators, of which scores of
    94 x 94 never need to be in memory."""
    random, (n, l, k) = draws(), (2048, 94, 2)
    a, b, v = (random.standard_normal(shape).astype(np.float32) for shape in ((n, l, k), (n, k, l), (n, l, k)))
    m = random.standard_normal((l, l)).astype(np.float32)

    def step(t):
        scores = jnp.maximum((t["a"] @ t["b"]) * np.float32(0.5), -30.0) + t["m"]
        most = jnp.max(scores, -1)
        e = jnp.exp(scores - most[..., None])
        total = jnp.sum(e, -1)
        log = jnp.log(total)
        return {"divide": (e @ t["v"]) / total[..., None], "log_1": log, "multiply_2": most * total, "subtract": most - log}

    return Workload({"a": a, "b": b, "v": v, "m": m}, step)
