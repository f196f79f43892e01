#!/usr/bin/env bash
# torch 2.15.0: a module that reads a buffer through a function and then changes it in place has another gradient under `torch.compile`
# than without: backward computes the function again from the buffer as it is by then. Nothing warns.
#
# Eager mode saves the function's value. The partitioner of AOTAutograd (aot_eager and inductor) would rather save the input that the value
# is made of, and takes the buffer for one that stays as it is; forward writes the new value into it. Where the buffer itself is what
# autograd saves, as in `x * buffer`, both modes raise an error, so one expects to be told. Modules with running statistics, moving averages
# of weights or quantization scales change buffers in forward.
#
# Output seen:
#   no compile: y 1.6487, dy/dx 1.6487
#   eager: y 1.6487, dy/dx 1.6487
#   aot_eager: y 1.6487, dy/dx 2.7183
#   inductor: y 1.6487, dy/dx 2.7183
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.15.0 numpy==2.4.6 setuptools==84.2.1
cat > "$folder/run.py" <<'PY'
import torch

torch.set_num_threads(1)


class Scaled(torch.nn.Module):
    """Multiplies by a function of a buffer, which it then doubles."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.full((4,), 0.5))

    def forward(self, x):
        y = x * torch.exp(self.scale)
        self.scale.mul_(2)
        return y


def values(backend):
    torch._dynamo.reset()
    module, x = Scaled(), torch.ones(4, requires_grad=True)
    y = (module if backend is None else torch.compile(module, backend=backend))(x)
    y.sum().backward()
    return y[0].item(), x.grad[0].item()


found = {}
for backend in [None, "eager", "aot_eager", "inductor"]:
    y, dx = found[backend] = values(backend)
    print(f"{backend or 'no compile'}: y {y:.4f}, dy/dx {dx:.4f}")
assert all(abs(y - 1.6487) < 1e-3 for y, _ in found.values())
assert all(abs(found[name][1] - 1.6487) < 1e-3 for name in [None, "eager"]), "eager mode has changed"
assert all(abs(found[name][1] - 2.7183) < 1e-3 for name in ["aot_eager", "inductor"]), "compiled gradients have changed"
PY
"$folder/venv/bin/python" "$folder/run.py"
