#!/usr/bin/env bash
# torch 2.15.0 on a CPU: `torch.compile` makes long f32 sums two hundred times less accurate than eager PyTorch does.
#
# Eager `sum` and `mean` add up in cascades: 4 Mi times 0.1 is off by 3e-7. Inductor's loop keeps one accumulator for each vector
# lane, so each adds up hundreds of thousands of terms in order: 6e-5, for a whole sum, a mean and long rows alike. `torch.dot` with
# ones, which goes to a BLAS, is off by more than 1e-3 in eager mode. A tolerance taken from an eager reference is too tight for a
# compiled model, and "sum" in a table of errors must name who added.
#
# Output seen:
#   sum eager 3.0e-07 compiled 6.5e-05 | mean eager 3.0e-07 compiled 6.5e-05 | rows eager 1.5e-07 compiled 6.5e-05 | dot 2.5e-03
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.15.0 numpy==2.4.6 setuptools==84.2.1
cat > "$folder/run.py" <<'PY'
import torch
torch.set_num_threads(1)
n = 4 << 20
x, tenth = torch.full((n,), 0.1), float(torch.tensor(0.1))
off = lambda found, exact: abs(found.item() / exact - 1)
def both(of, x, exact):
    return off(of(x), exact), off(torch.compile(of, dynamic=False)(x), exact)
found = {
    "sum": both(lambda x: x.sum(), x, n * tenth),
    "mean": both(lambda x: x.mean(), x, tenth),
    "rows": both(lambda x: x.sum(1)[0], x.reshape(2, -1), n // 2 * tenth),
}
dot = off(torch.dot(x, torch.ones(n)), n * tenth)
print(" | ".join(f"{name} eager {eager:.1e} compiled {compiled:.1e}" for name, (eager, compiled) in found.items()), f"| dot {dot:.1e}")
for name, (eager, compiled) in found.items():
    assert eager < 1e-6, name
    assert compiled > 20 * max(eager, 1e-7), name
assert dot > 1e-4
PY
TORCHINDUCTOR_CACHE_DIR="$folder/cache" "$folder/venv/bin/python" "$folder/run.py"
