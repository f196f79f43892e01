#!/usr/bin/env python3
"""Make the training runs that `recipes/tests/recipes/training.rs` compares `memlet train` with.

    python bench/peers/training_vectors.py recipes/tests/data

needs numpy and safetensors; the files are committed, so that only who changes this script needs them.

Each file holds, in float64, the data (`data.NAME`, samples first), the parameters before the first step (`before.NAME`), the loss of every
step (`loss`) and the parameters and the state after the last one (`after.NAME`). Everything is NumPy: gradients are written by hand, and
`check` compares them with central differences before a file is written.
"""
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

STEPS = 20


def batches(data, size):
    """Samples in their order, from the beginning where they end."""
    count = len(next(iter(data.values())))
    for step in range(STEPS):
        rows = [(step * size + n) % count for n in range(size)]
        yield {name: values[rows] for name, values in data.items()}


def log_softmax(score):
    score = score - score.max(-1, keepdims=True)
    return score - np.log(np.exp(score).sum(-1, keepdims=True))


def cross_entropy(score, label):
    """The mean loss of rows, and its gradient by the scores."""
    rows, log = np.arange(len(label)), log_softmax(score)
    gradient = np.exp(log)
    gradient[rows, label] -= 1
    return -log[rows, label].mean(), gradient / len(label)


def perceptron(p, batch):
    """Two layers with a ReLU between them."""
    x, label = batch["x"], batch["label"]
    hidden = x @ p["w1"].T + p["c1"]
    act = np.maximum(hidden, 0)
    loss, d = cross_entropy(act @ p["w2"].T + p["c2"], label)
    back = (d @ p["w2"]) * (hidden > 0)
    return loss, {"w1": back.T @ x, "c1": back.sum(0), "w2": d.T @ act, "c2": d.sum(0)}


def words(p, batch):
    """An embedding, a recurrent layer, and a class by its last state."""
    tokens, label = batch["tokens"], batch["label"]
    times = tokens.shape[1]
    x = p["e"][tokens]
    states = [np.zeros((len(label), p["wh"].shape[1]))]
    for t in range(times):
        states.append(np.tanh(x[:, t] @ p["wx"] + states[-1] @ p["wh"] + p["c"]))
    loss, d = cross_entropy(states[-1] @ p["wo"] + p["co"], label)
    g = {name: np.zeros_like(values) for name, values in p.items()}
    g["wo"], g["co"] = states[-1].T @ d, d.sum(0)
    back = d @ p["wo"].T
    for t in reversed(range(times)):
        back = back * (1 - states[t + 1] ** 2)
        g["wx"] += x[:, t].T @ back
        g["wh"] += states[t].T @ back
        g["c"] += back.sum(0)
        np.add.at(g["e"], tokens[:, t], back @ p["wx"].T)
        back = back @ p["wh"].T
    return loss, g


def momentum(p, g, state, step):
    """As the recipe's language writes it out; the rate rises over 4 steps and falls as half a cosine."""
    peak, warmup, end = 0.2, 4, 0.02
    part = min((step - warmup) / (STEPS - warmup), 1)
    rate = peak * (step + 1) / warmup if step < warmup else end + (peak - end) * 0.5 * (1 + np.cos(np.pi * part))
    for name in p:
        state[f"{name}_m"] = 0.9 * state.get(f"{name}_m", 0) + g[name]
        p[name] = p[name] - rate * state[f"{name}_m"]


def adam(p, g, state, step):
    """Kingma and Ba, end of section 2."""
    t, beta1, beta2, eps = step + 1, 0.9, 0.999, 1e-8
    rate = 0.05 * np.sqrt(1 - beta2**t) / (1 - beta1**t)
    state["adam_t"] = np.array(float(t))
    for name in p:
        m = state[f"{name}_m"] = beta1 * state.get(f"{name}_m", 0) + (1 - beta1) * g[name]
        v = state[f"{name}_v"] = beta2 * state.get(f"{name}_v", 0) + (1 - beta2) * g[name] ** 2
        p[name] = p[name] - rate * m / (np.sqrt(v) + eps)


def check(model, p, batch):
    """Compares gradients with central differences."""
    _, gradients = model(p, batch)
    for name, values in p.items():
        for at in [tuple(n // 2 for n in values.shape), tuple(n - 1 for n in values.shape)]:
            losses = []
            for sign in (1, -1):
                moved = {**p, name: values.copy()}
                moved[name][at] += sign * 1e-6
                losses.append(model(moved, batch)[0])
            difference = (losses[0] - losses[1]) / 2e-6
            assert abs(difference - gradients[name][at]) < 1e-8, (name, at, difference, gradients[name][at])


def write(path, model, update, data, p, batch):
    check(model, p, next(batches(data, batch)))
    tensors = {f"data.{name}": values for name, values in data.items()}
    tensors |= {f"before.{name}": values for name, values in p.items()}
    p, state, losses = dict(p), {}, []
    for step, part in enumerate(batches(data, batch)):
        loss, gradients = model(p, part)
        losses.append(loss)
        update(p, gradients, state, step)
    tensors |= {f"after.{name}": values for name, values in (p | state).items()} | {"loss": np.array(losses)}
    assert losses[-1] < 0.7 * losses[0], losses
    save_file({name: np.ascontiguousarray(values) for name, values in tensors.items()}, path, {"numpy": np.__version__})


def main(folder):
    rng = np.random.default_rng(7)
    draw = lambda *shape: rng.normal(0, 0.5, shape)
    # 22 samples and batches of 8: the last batches of an epoch take samples of the next one, too.
    x = rng.normal(0, 1, (22, 5))
    data = {"x": x, "label": (x @ rng.normal(0, 1, (5, 3))).argmax(-1).astype(np.int32)}
    write(folder / "train-perceptron.safetensors", perceptron, momentum, data, {"w1": draw(6, 5), "c1": draw(6), "w2": draw(3, 6), "c2": draw(3)}, 8)
    tokens = rng.integers(0, 9, (14, 4)).astype(np.int32)
    data = {"tokens": tokens, "label": (tokens[:, -1] % 3).astype(np.int32)}
    p = {"e": draw(9, 4), "wx": draw(4, 6), "wh": draw(6, 6), "c": draw(6), "wo": draw(6, 3), "co": draw(3)}
    write(folder / "train-words.safetensors", words, adam, data, p, 4)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
