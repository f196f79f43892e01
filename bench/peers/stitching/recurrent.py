"""Training steps with recurrences: two classifiers of sequences, a speech recognizer and a dialog generator."""
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from . import Workload, draws, normal, zeros
from .optimizers import adam, clipped, momentum, sgd, with_states
from .small import classes


def lstm_parameters(random, name, inputs, units):
    return {f"{name}_w": normal(random, inputs + units, 4 * units), f"{name}_c": zeros(4 * units)}


def lstm_parts(name, inputs, units):
    """How a recipe holds them: factors of the input and of the state apart, gates as a dim of their own."""
    return {
        f"{name}_w": [(f"{name}_wx", inputs, (inputs, 4, units)), (f"{name}_wh", units, (units, 4, units))],
        f"{name}_c": [(f"{name}_c", 4 * units, (4, units))],
    }


def lstm_cell(p, name, cell, state, x):
    gates = jnp.concatenate([x, state], -1) @ p[f"{name}_w"] + p[f"{name}_c"]
    enter, fresh, keep, leave = jnp.split(gates, 4, -1)
    cell = cell * jax.nn.sigmoid(keep + 1.0) + jax.nn.sigmoid(enter) * jnp.tanh(fresh)
    return cell, jnp.tanh(cell) * jax.nn.sigmoid(leave)


def lstm(p, name, x):
    """States of all times, for x of [time, batch, input]."""
    start = jnp.zeros((x.shape[1], p[f"{name}_w"].shape[1] // 4), x.dtype)

    def one(carried, x):
        cell, state = lstm_cell(p, name, *carried, x)
        return (cell, state), state

    return lax.scan(one, (start, start), x)[1]


def cross_entropy(scores, labels, count):
    return -jnp.mean(jnp.sum(classes(labels, count) * jax.nn.log_softmax(scores), -1))


def bi_rnn():
    """Rows of 28 as 28 times, an LSTM of 128 each way, the last outputs joined, 10 classes, batch 128, gradient descent of 0.001."""
    random, (times, i, u, b) = draws(), (28, 28, 128, 128)
    parameters = lstm_parameters(random, "f", i, u) | lstm_parameters(random, "b", i, u)
    parameters |= {"w": normal(random, 2 * u, 10), "c": zeros(10)}
    x, label = random.random((b, times, i), dtype=np.float32), random.integers(0, 10, b).astype(np.int32)

    def loss(p, t):
        x = jnp.swapaxes(t["x"], 0, 1)
        forward, backward = lstm(p, "f", x), lstm(p, "b", x[::-1])[::-1]
        return cross_entropy(jnp.concatenate([forward[-1], backward[-1]], -1) @ p["w"] + p["c"], t["label"], 10)

    def step(t):
        p = {n: t[n] for n in parameters}
        value, gradients = jax.value_and_grad(loss)(p, t)
        return sgd(p, gradients, 0.001) | {"loss": value}

    joined = lstm_parts("f", i, u) | lstm_parts("b", i, u) | {"w": [("wf", u, (u, 10)), ("wb", u, (u, 10))]}
    return Workload(parameters | {"x": x, "label": label}, step, list(parameters), joined)


def dyn_rnn():
    """Sequences of at most 20 numbers, an LSTM of 64, the output at the last valid time, 2 classes, batch 128, gradient descent of 0.01."""
    random, (times, u, b) = draws(), (20, 64, 128)
    parameters = lstm_parameters(random, "f", 1, u) | {"w": normal(random, u, 2), "c": zeros(2)}
    x, label = random.random((b, times, 1), dtype=np.float32), random.integers(0, 2, b).astype(np.int32)
    length = random.integers(3, times + 1, b).astype(np.int32)

    def loss(p, t):
        x, start = jnp.swapaxes(t["x"], 0, 1), jnp.zeros((b, u), t["x"].dtype)

        def one(carried, now):
            time, x = now
            cell, state = lstm_cell(p, "f", *carried, x)
            live = (time < t["length"])[:, None]
            return (jnp.where(live, cell, carried[0]), jnp.where(live, state, carried[1])), jnp.where(live, state, 0.0)

        outputs = lax.scan(one, (start, start), (jnp.arange(times), x))[1]
        rows = jnp.swapaxes(outputs, 0, 1).reshape(b * times, u)
        last = rows[jnp.arange(b) * times + t["length"] - 1]
        return cross_entropy(last @ p["w"] + p["c"], t["label"], 2)

    def step(t):
        p = {n: t[n] for n in parameters}
        value, gradients = jax.value_and_grad(loss)(p, t)
        return sgd(p, gradients, 0.01) | {"loss": value}

    joined = lstm_parts("f", 1, u)
    return Workload(parameters | {"x": x, "label": label, "length": length}, step, list(parameters), joined)


def layernorm(x, scale, shift):
    centred = x - jnp.mean(x, -1, keepdims=True)
    return centred * lax.rsqrt(jnp.mean(centred**2, -1, keepdims=True) + 1e-6) * scale + shift


def speech():
    """100 frames of 80, two LSTM layers of 256 with a normalization between them, 48 phones, connectionist temporal classification of 20
    labels, batch 16, gradients clipped by their norm, momentum."""
    random, (times, i, u, b, phones, labels) = draws(), (100, 80, 256, 16, 48, 20)
    parameters = lstm_parameters(random, "a", i, u) | {"scale": np.ones(u, np.float32), "shift": zeros(u)}
    parameters |= lstm_parameters(random, "b", u, u) | {"w": normal(random, u, phones), "c": zeros(phones)}
    states = with_states(parameters, "m")
    x, label = random.standard_normal((b, times, i)).astype(np.float32), random.integers(1, phones, (b, labels)).astype(np.int32)
    length = random.integers(60, times + 1, b).astype(np.int32)
    never, places = -1e9, 2 * labels + 1

    def classification(log, label, length):
        """The mean of the negative logarithms of all alignments' chances; `log` is [time, batch, phone], phone 0 is the blank."""
        joined = jnp.zeros((b, places), jnp.int32).at[:, 1::2].set(label)
        fresh = (joined[:, 2:] != joined[:, :-2]) & (joined[:, 2:] != 0)
        fresh = jnp.concatenate([jnp.zeros((b, 2), bool), fresh], 1)
        emitted = jnp.take_along_axis(log, jnp.broadcast_to(joined, (times, b, places)), -1)
        first = jnp.where(jnp.arange(places) < 2, emitted[0], never)

        def behind(a, by):
            return jnp.pad(a, ((0, 0), (by, 0)), constant_values=never)[:, :places]

        def one(a, now):
            time, emitted = now
            one, two = behind(a, 1), jnp.where(fresh, behind(a, 2), never)
            most = jnp.maximum(jnp.maximum(a, one), two)
            after = most + jnp.log(jnp.exp(a - most) + jnp.exp(one - most) + jnp.exp(two - most)) + emitted
            return jnp.where((time < length)[:, None], after, a), None

        a = lax.scan(one, first, (jnp.arange(1, times), emitted[1:]))[0]
        return -jnp.mean(jnp.logaddexp(a[:, -1], a[:, -2]))

    def loss(p, t):
        h = lstm(p, "b", layernorm(lstm(p, "a", jnp.swapaxes(t["x"], 0, 1)), p["scale"], p["shift"]))
        return classification(jax.nn.log_softmax(h @ p["w"] + p["c"]), t["label"], t["length"])

    def step(t):
        p = {n: t[n] for n in parameters}
        value, gradients = jax.value_and_grad(loss)(p, t)
        return momentum(p, clipped(gradients, 1.0), t, 1e-3, 0.9) | {"loss": value}

    given = {"x": x, "label": label, "length": length}
    joined = lstm_parts("a", i, u) | lstm_parts("b", u, u)
    return Workload(parameters | states | given, step, list(parameters | states), joined)


def gru_parameters(random, name, inputs, units):
    return {
        f"{name}_g": normal(random, inputs + units, 2 * units), f"{name}_gc": np.ones(2 * units, np.float32),
        f"{name}_n": normal(random, inputs + units, units), f"{name}_nc": zeros(units),
    }


def gru_parts(name, inputs, units, split=()):
    """How a recipe holds them; `split` are the parts of an input that is joined of several, by name and width."""
    found = {f"{name}_gc": [(f"{name}_gc", 2 * units, (2, units))]}
    for kind, shape in (("g", (2, units)), ("n", (units,))):
        parts = [(f"{name}_{kind}{part}", wide, (wide, *shape)) for part, wide in (split or [("x", inputs)])]
        found[f"{name}_{kind}"] = parts + [(f"{name}_{kind}h", units, (units, *shape))]
    return found


def gru_cell(p, name, state, x):
    gates = jax.nn.sigmoid(jnp.concatenate([x, state], -1) @ p[f"{name}_g"] + p[f"{name}_gc"])
    reset, keep = jnp.split(gates, 2, -1)
    fresh = jnp.tanh(jnp.concatenate([x, reset * state], -1) @ p[f"{name}_n"] + p[f"{name}_nc"])
    return keep * state + (1 - keep) * fresh


def dialog():
    """A GRU of 256 each way over 24 words, two GRU layers with additive attention over 24 more, 128 wide, 4096 words, batch 32, lengths
    masked, gradients clipped by their norm, Adam."""
    random, (words, i, u, b, sources, times) = draws(), (4096, 128, 256, 32, 24, 24)
    parameters = {"e": normal(random, words, i, scale=0.1)}
    parameters |= gru_parameters(random, "f", i, u) | gru_parameters(random, "b", i, u)
    parameters |= gru_parameters(random, "p", i + 2 * u, u) | gru_parameters(random, "q", u, u)
    parameters |= {
        "start": normal(random, 2 * u, u), "wk": normal(random, 2 * u, u), "wq": normal(random, u, u), "va": normal(random, u),
        "out": normal(random, u, words), "oc": zeros(words),
    }
    states = with_states(parameters, "m", "v") | {"adam_t": np.float32(0)}
    source = random.integers(1, words, (b, sources)).astype(np.int32)
    target = random.integers(1, words, (b, times + 1)).astype(np.int32)
    source_length = random.integers(8, sources + 1, b).astype(np.int32)
    target_length = random.integers(8, times + 1, b).astype(np.int32)

    def encoder(p, name, x, time, length):
        def one(state, now):
            time, x = now
            live = (time < length)[:, None]
            state = jnp.where(live, gru_cell(p, name, state, x), state)
            return state, jnp.where(live, state, 0.0)

        return lax.scan(one, jnp.zeros((b, u), x.dtype), (time, x))

    def loss(p, t):
        x, time = jnp.swapaxes(p["e"][t["source"]], 0, 1), jnp.arange(sources)
        forward, outputs = encoder(p, "f", x, time, t["source_length"])
        backward, others = encoder(p, "b", x[::-1], time[::-1], t["source_length"])
        memory = jnp.swapaxes(jnp.concatenate([outputs, others[::-1]], -1), 0, 1)
        keys = memory @ p["wk"]
        mask = jnp.where(time[None, :] < t["source_length"][:, None], 0.0, -1e9)
        first = jnp.tanh(jnp.concatenate([forward, backward], -1) @ p["start"])
        y = jnp.swapaxes(p["e"][t["target"][:, :-1]], 0, 1)

        def one(carried, y):
            lower, upper, read = carried
            lower = gru_cell(p, "p", lower, jnp.concatenate([y, read], -1))
            upper = gru_cell(p, "q", upper, lower)
            score = jnp.sum(jnp.tanh(keys + (upper @ p["wq"])[:, None, :]) * p["va"], -1) + mask
            read = jnp.einsum("bs,bsd->bd", jax.nn.softmax(score), memory)
            return (lower, upper, read), upper

        outputs = lax.scan(one, (first, first, jnp.zeros((b, 2 * u), first.dtype)), y)[1]
        log = jax.nn.log_softmax(outputs @ p["out"] + p["oc"])
        right = jnp.take_along_axis(log, jnp.swapaxes(t["target"][:, 1:], 0, 1)[..., None], -1)[..., 0]
        live = (jnp.arange(times)[:, None] < t["target_length"][None, :]).astype(log.dtype)
        return -jnp.sum(right * live) / jnp.sum(live)

    def step(t):
        p = {n: t[n] for n in parameters}
        value, gradients = jax.value_and_grad(loss)(p, t)
        return adam(p, clipped(gradients, 5.0), t) | {"loss": value}

    given = {"source": source, "target": target, "source_length": source_length, "target_length": target_length}
    joined = gru_parts("f", i, u) | gru_parts("b", i, u) | gru_parts("q", u, u)
    joined |= gru_parts("p", i + 2 * u, u, [("x", i), ("f", u), ("b", u)])
    joined |= {n: [(f"{n}_f", u, (u, u)), (f"{n}_b", u, (u, u))] for n in ("start", "wk")}
    return Workload(parameters | states | given, step, list(parameters | states), joined)
