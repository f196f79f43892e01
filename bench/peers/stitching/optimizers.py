"""Updates of parameters, with states under the names that recipes give them."""
import jax.numpy as jnp


def with_states(parameters, *kinds):
    """The states of all parameters, all zeros: `w_m` for the kind `m` of `w`."""
    return {f"{name}_{kind}": value * 0 for kind in kinds for name, value in parameters.items()}


def sgd(parameters, gradients, rate):
    return {name: value - rate * gradients[name] for name, value in parameters.items()}


def momentum(parameters, gradients, tensors, rate, decay):
    states = {f"{name}_m": decay * tensors[f"{name}_m"] + gradients[name] for name in parameters}
    return {name: value - rate * states[f"{name}_m"] for name, value in parameters.items()} | states


def rmsprop(parameters, gradients, tensors, rate=1e-3, decay=0.9, eps=1e-10):
    states = {f"{n}_v": decay * tensors[f"{n}_v"] + (1 - decay) * gradients[n] ** 2 for n in parameters}
    return {n: p - rate * gradients[n] / jnp.sqrt(states[f"{n}_v"] + eps) for n, p in parameters.items()} | states


def adam(parameters, gradients, tensors, rate=1e-3, beta1=0.9, beta2=0.999, eps=1e-8):
    t = tensors["adam_t"] + 1
    m = {n: beta1 * tensors[f"{n}_m"] + (1 - beta1) * gradients[n] for n in parameters}
    v = {n: beta2 * tensors[f"{n}_v"] + (1 - beta2) * gradients[n] ** 2 for n in parameters}
    corrected = rate * jnp.sqrt(1 - beta2**t) / (1 - beta1**t)
    found = {n: p - corrected * m[n] / (jnp.sqrt(v[n]) + eps) for n, p in parameters.items()}
    return found | {f"{n}_m": m[n] for n in m} | {f"{n}_v": v[n] for n in v} | {"adam_t": t}


def clipped(gradients, most):
    """Gradients whose norm over all of them is at most this."""
    norm = jnp.sqrt(sum(jnp.sum(g * g) for g in gradients.values()))
    return {n: g * jnp.minimum(1.0, most / (norm + 1e-12)) for n, g in gradients.items()}
