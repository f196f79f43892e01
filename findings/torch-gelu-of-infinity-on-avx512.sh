#!/usr/bin/env bash
# torch 2.15.0 on a CPU: `gelu` of +infinity depends on the processor, on how many elements stand beside it, on their type, and on the
# compiler.
#
# One element of f32 or bf16 gives +inf, which is the limit. Two elements and more go to oneDNN, whose AVX-512 code gives NaN for each
# of them; held to AVX2, it gives +inf. f64 and f16 give +inf for every count, and so do `torch.compile` and f32 with oneDNN switched
# off. Finite values overflow early in the same code: gelu(3e38) is inf. A check of kernels against eager PyTorch that holds infinities
# must use f64, or it passes on one machine and fails on the next. Without AVX-512 there is nothing to see, and the script says so.
#
# Output seen (the second time with ONEDNN_MAX_CPU_ISA=AVX2):
#   f32 1:inf 2:nan 16:nan | bf16 1:inf 2:nan 16:nan | f64 1:inf 2:inf 16:inf | f16 1:inf 2:inf 16:inf
#   f32 without oneDNN inf, compiled inf | gelu(3e38) of 16 elements inf, without oneDNN 3e+38
#   f32 1:inf 2:inf 16:inf | bf16 1:inf 2:inf 16:inf | f64 1:inf 2:inf 16:inf | f16 1:inf 2:inf 16:inf
#   f32 without oneDNN inf, compiled inf | gelu(3e38) of 16 elements 3e+38, without oneDNN 3e+38
set -euo pipefail
if ! grep -qw avx512bw /proc/cpuinfo; then
    echo "this processor has no AVX-512: nothing to see"
    exit 0
fi
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q torch==2.15.0 numpy==2.4.6 setuptools==84.2.1
cat > "$folder/run.py" <<'PY'
import math, os, torch
gelu = torch.nn.functional.gelu
first = lambda dtype, n, value=math.inf: gelu(torch.full((n,), value, dtype=dtype))[0].item()
kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "f64": torch.float64, "f16": torch.float16}
found = {name: [first(dtype, n) for n in (1, 2, 16)] for name, dtype in kinds.items()}
compiled = torch.compile(lambda x: gelu(x))(torch.full((16,), math.inf))[0].item()
large = first(torch.float32, 16, 3e38)
with torch.backends.mkldnn.flags(enabled=False):
    plain, plain_large = first(torch.float32, 16), first(torch.float32, 16, 3e38)
print(" | ".join(f"{name} 1:{a} 2:{b} 16:{c}" for name, (a, b, c) in found.items()))
print(f"f32 without oneDNN {plain}, compiled {compiled} | gelu(3e38) of 16 elements {large:.0e}, without oneDNN {plain_large:.0e}")
avx2 = os.environ.get("ONEDNN_MAX_CPU_ISA") == "AVX2"
for name in ("f32", "bf16"):
    one, two, many = found[name]
    assert one == math.inf and (two == many == math.inf if avx2 else math.isnan(two) and math.isnan(many)), name
assert found["f64"] == found["f16"] == [math.inf] * 3
assert plain == compiled == math.inf and abs(plain_large / 3e38 - 1) < 1e-6 and (large == math.inf) != avx2
PY
export TORCHINDUCTOR_CACHE_DIR="$folder/cache"
"$folder/venv/bin/python" -W ignore "$folder/run.py"
ONEDNN_MAX_CPU_ISA=AVX2 "$folder/venv/bin/python" -W ignore "$folder/run.py"
