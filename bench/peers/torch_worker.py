"""PyTorch as a peer: eager and SDPA, each also through torch.compile.

    torch_worker.py THREADS VARIANT PRECISION

VARIANT is eager, sdpa, compile or compile-sdpa. PRECISION is for torch.set_float32_matmul_precision, or bf16 for autocast
(weights and x stay f32, and PyTorch decides what runs in bf16), or bf16-native for a model that holds everything in bf16, its
weights and their gradients too.
"""
import sys
import time

import torch
import torch.nn.functional as F

import session
from tensor_bytes import TensorBytes


def layer(model, dropout, sdpa):
    """The function (x, parameters…) → y. Rates and epsilons are the recipe's."""
    h, p = model["heads"], model["size"]
    rates = model["rates"] if dropout else {name: 0.0 for name in model["rates"]}
    drop = lambda t, rate: F.dropout(t, rate) if rate else t

    def attention(x, wqkv, bqkv, wo, bo):
        b, j, _ = x.shape
        q, k, v = (t.view(b, j, h, p).transpose(1, 2) for t in F.linear(x, wqkv, bqkv).chunk(3, -1))
        if sdpa:
            o = F.scaled_dot_product_attention(q, k, v, dropout_p=rates["attention"])
        else:
            o = drop(torch.softmax(q @ k.transpose(-1, -2) * p ** -0.5, -1), rates["attention"]) @ v
        return F.linear(o.transpose(1, 2).reshape(b, j, h * p), wo, bo)

    if model["family"] == "attention":
        return attention
    act = {"relu": F.relu, "gelu": F.gelu}[model["activation"]]
    first, second = model["eps"]

    def encoder(x, wqkv, bqkv, wo, bo, g1, s1, w1, b1, w2, b2, g2, s2):
        i = x.shape[-1:]
        n = F.layer_norm(x + drop(attention(x, wqkv, bqkv, wo, bo), rates["attended"]), i, g1, s1, first)
        f = F.linear(drop(act(F.linear(n, w1, b1)), rates["hidden"]), w2, b2)
        return F.layer_norm(n + drop(f, rates["fed"]), i, g2, s2, second)

    return encoder


class Peer:
    def __init__(self, variant, precision, model, tensors):
        self.variant, self.precision, self.model = variant, precision, model
        self.names = ["x"] + session.parameters(model)
        held = torch.bfloat16 if precision == "bf16-native" else torch.float32
        # A copy is aligned as PyTorch likes it, which a tensor inside a file's bytes need not be.
        self.leaves = [torch.tensor(tensors[n], dtype=held, requires_grad=True) for n in self.names]
        # Attention alone ends in a product, which autocast leaves in bf16; a layer ends in a normalization, in f32.
        narrow = held is torch.bfloat16 or precision == "bf16" and model["family"] == "attention"
        self.upstream = torch.tensor(tensors["dy"], dtype=torch.bfloat16 if narrow else torch.float32)
        self.versions = {"torch": torch.__version__, "threads": torch.get_num_threads(), "cpu": torch.backends.cpu.get_cpu_capability()}

    def prepare(self, dropout):
        plain = layer(self.model, dropout, self.variant.endswith("sdpa"))

        def autocast(*leaves):
            with torch.autocast("cpu", torch.bfloat16):
                return plain(*leaves)

        function = autocast if self.precision == "bf16" else plain
        if not self.variant.startswith("compile"):
            return function
        # Forget what was compiled for other rates: the second compilation would take them for variables.
        torch._dynamo.reset()
        return torch.compile(function)

    def results(self, function):
        y = function(*self.leaves)
        gradients = torch.autograd.grad(y, self.leaves, self.upstream)
        return y.detach().float().numpy(), {n: g.float().numpy() for n, g in zip(self.names, gradients)}

    def memory(self, function):
        """Compiled code allocates without operators: it cannot be watched."""
        given = self.leaves + [self.upstream]
        with TensorBytes(given) as watched:
            before = watched.live
            y = function(*self.leaves)
            gradients = torch.autograd.grad(y, self.leaves, self.upstream)
        del y, gradients
        return before, watched.peak

    def step(self, function):
        begin = time.perf_counter()
        y = function(*self.leaves)
        between = time.perf_counter()
        gradients = torch.autograd.grad(y, self.leaves, self.upstream)
        end = time.perf_counter()
        del y, gradients
        return between - begin, end - between, end - begin


if __name__ == "__main__":
    threads, variant, precision = sys.argv[1:]
    torch.set_num_threads(int(threads))
    torch.set_num_interop_threads(1)
    if not precision.startswith("bf16"):
        torch.set_float32_matmul_precision(precision)
    torch.manual_seed(1)
    session.serve(lambda model, tensors: Peer(variant, precision, model, tensors))
