#!/usr/bin/env bash
# jax 0.10.2 on a CPU: average pooling of bf16 is right up to windows of 256 elements and then tends to nothing.
#
# `lax.reduce_window` with `lax.add`, what average pooling of JAX's libraries is made of, adds up in the type of its operand, one element
# after the other: a sum of bf16 that has reached 256 grows no more by anything below 2. The mean of a 56x56 picture of values around 0.5
# comes out as 0.08, that of ones over 17x17 as 0.89. `jnp.mean` of the same elements adds up in f32 and is right to the last bit, and so
# is a convolution with ones, so a network is wrong in its pooling alone, eager and under jit. In f16 the same begins beyond 2048 ones.
# Who takes JAX as the reference of a pooling in bf16 has to widen the operand first.
#
# Output seen:
#   mean of a 56x56 window around 0.5: window 0.0815, jnp.mean 0.5039, in f32 0.5023
#   ones: 16x16 1.0, 17x17 0.8906, 32x32 0.25; under jit 0.25; by a convolution 1.0; f16 56x56 0.6528
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q jax==0.10.2 jaxlib==0.10.2 numpy==2.4.6
cat > "$folder/run.py" <<'PY'
import jax, jax.numpy as jnp, numpy as np
from jax import lax

def pooled(x, size):
    sums = lax.reduce_window(x, jnp.array(0, x.dtype), lax.add, (size, size), (size, size), "VALID")
    return sums / (size * size)

def first(x):
    return float(jnp.ravel(x)[0])

picture = jnp.array(np.random.default_rng(0).uniform(0, 1, (112, 112)), jnp.bfloat16)
corner = picture[:56, :56]
window, mean, wide = first(pooled(picture, 56)), float(corner.mean()), float(corner.astype(jnp.float32).mean())
print(f"mean of a 56x56 window around 0.5: window {window:.4f}, jnp.mean {mean:.4f}, in f32 {wide:.4f}")

ones = {size: first(pooled(jnp.ones((size, size), jnp.bfloat16), size)) for size in (16, 17, 32)}
jitted = first(jax.jit(lambda x: pooled(x, 32))(jnp.ones((64, 64), jnp.bfloat16)))
kernel = jnp.ones((1, 1, 32, 32), jnp.bfloat16)
convolved = first(lax.conv_general_dilated(kernel, kernel, (1, 1), "VALID")) / 1024
half = first(pooled(jnp.ones((56, 56), jnp.float16), 56))
listed = ", ".join(f"{size}x{size} {round(mean, 4)}" for size, mean in ones.items())
print(f"ones: {listed}; under jit {jitted}; by a convolution {convolved}; f16 56x56 {half:.4f}")

assert abs(wide - 0.5) < 0.02 and abs(mean - wide) < 0.004 and window < 0.1
assert ones[16] == 1 and abs(ones[17] - 256 / 289) < 0.01 and ones[32] == jitted == 0.25
assert convolved == 1 and abs(half - 2048 / 3136) < 0.001
PY
"$folder/venv/bin/python" "$folder/run.py"
