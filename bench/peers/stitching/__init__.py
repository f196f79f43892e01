"""The workloads of FusionStitching (Long, Yang, Lin, arXiv:1911.11576, Tables 1 to 3) and its Figure 1, as JAX computes them.

Each workload is one function: a whole training step with its optimizer, or a whole inference call. Its tensors have the names and dims
of the recipe of the same name, so that one file of inputs serves both. The draws of random numbers (noise, sampled negatives) are inputs.
"""
from dataclasses import dataclass, field
from typing import Callable

import numpy as np


@dataclass
class Workload:
    """`step` takes all tensors by name and gives results by name; those that it updates are given and results under one name.

    `joined` says which tensors recipes hold in parts: a name, and for each of its parts the recipe's name, how many rows it has and the
    shape there. States of an optimizer are held as their parameters are.
    """

    tensors: dict
    step: Callable
    updated: list = field(default_factory=list)
    joined: dict = field(default_factory=dict)

    def as_recipe(self, tensors):
        """Tensors under the recipe's names, in its shapes."""
        found = {}
        for name, value in tensors.items():
            is_state = name not in self.joined and name[-2:] in ("_m", "_v")
            base, state = (name[:-2], name[-2:]) if is_state else (name, "")
            row = 0
            for part, rows, shape in self.joined.get(base, []):
                found[part + state] = np.ascontiguousarray(value[row : row + rows].reshape(shape))
                row += rows
            if base not in self.joined:
                found[name] = value
        return found


def draws():
    return np.random.default_rng(0)


def normal(random, *shape, scale=None):
    """A weight: normal numbers, divided by the root of how many are summed."""
    scale = scale if scale is not None else (shape[0] ** -0.5 if len(shape) > 1 else 0.1)
    return (random.standard_normal(shape) * scale).astype(np.float32)


def zeros(*shape):
    return np.zeros(shape, np.float32)


def all_workloads():
    """Workloads by name, in the paper's order; each is a function that draws its tensors."""
    from . import applications, recurrent, small

    return {
        "nmt": applications.nmt,
        "multi-interests": applications.multi_interests,
        "speech": recurrent.speech,
        "dialog": recurrent.dialog,
        "logistic": small.logistic,
        "word2vec": small.word2vec,
        "bi-rnn": recurrent.bi_rnn,
        "dyn-rnn": recurrent.dyn_rnn,
        "perceptron": small.perceptron,
        "var-encoder": small.var_encoder,
        "figure-1": small.figure_1,
    }
