"""Dropout's masks in graphs of PyTorch: those of Memlet's recipes, as functions of a seed alone.

A call of a model draws one seed from PyTorch's default generator, so ``torch.manual_seed`` decides about it. The n-th dropout of the model
has the mask ``(seed, stream, step)``, whose elements are numbered row by row; forward and backward ask for the same mask, and nobody stores
it. ``memlet::mask`` computes it with NumPy where a dropout is not part of a plan, bit for bit as plans do.
"""

import numpy as np
import torch

_LIBRARY = torch.library.Library("memlet", "DEF")
_LIBRARY.define("seed() -> Tensor")
_LIBRARY.define("mask(Tensor seed, SymInt[] shape, float rate, int stream, int step, ScalarType dtype) -> Tensor")

SEED = torch.ops.memlet.seed.default
MASK = torch.ops.memlet.mask.default

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (0x9E3779B9, 0xBB67AE85)
_LOW, _UPPER = np.uint64(0xFFFFFFFF), np.uint64(32)
_WHOLE = (1 << 64) - 1


def stream_name(stream):
    """What recipes call the masks of a dropout: ``dropout(x, rate: 0.1, stream: 3)``."""
    return f"stream:{stream}"


def key(seed, name):
    """The key of a stream: the seed mixed with the hash (FNV-1a) of the stream's name."""
    hashed = 0xCBF29CE484222325
    for byte in name.encode():
        hashed = ((hashed ^ byte) * 0x100000001B3) & _WHOLE
    mixed = ((seed ^ hashed) + 0x9E3779B97F4A7C15) & _WHOLE
    mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _WHOLE
    mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _WHOLE
    mixed ^= mixed >> 31
    return mixed & 0xFFFFFFFF, mixed >> 32


def lanes(seed, name, step, count):
    """The 16 random bits of each of the first elements: Philox 4x32-10 (Salmon et al., SC 2011), eight elements a block."""
    blocks = np.arange((count + 7) // 8, dtype=np.uint64)
    c = [blocks & _LOW, blocks >> _UPPER, np.full_like(blocks, step & 0xFFFFFFFF), np.full_like(blocks, step >> 32)]
    k = key(seed, name)
    for _ in range(10):
        a, b = _MULTIPLIERS[0] * c[0], _MULTIPLIERS[1] * c[2]
        c = [(b >> _UPPER) ^ c[1] ^ np.uint64(k[0]), b & _LOW, (a >> _UPPER) ^ c[3] ^ np.uint64(k[1]), a & _LOW]
        k = [(own + more) & 0xFFFFFFFF for own, more in zip(k, _WEYL)]
    halves = [half for word in c for half in (word & np.uint64(0xFFFF), word >> np.uint64(16))]
    return np.stack(halves, 1).reshape(-1)[:count].astype(np.uint16)


def mask(seed, shape, rate, stream, step, dtype=torch.float32):
    """The factors of a dropout: 0, or 1 / (1 - rate) with the rate rounded to a multiple of 2⁻¹⁶."""
    dropped = min(max(round(rate * 65536), 0), 65536)
    if dropped == 65536:
        return torch.zeros(*shape, dtype=dtype)
    kept = lanes(int(seed), stream_name(stream), step, int(np.prod(shape))) >= dropped
    return torch.from_numpy(kept.reshape(tuple(shape))).to(dtype) * (65536 / (65536 - dropped))


def _seed():
    return torch.randint(0, 2**63 - 1, ())


_LIBRARY.impl("seed", _seed, "CompositeExplicitAutograd")
_LIBRARY.impl("mask", mask, "CPU")


@torch.library.register_fake("memlet::seed", lib=_LIBRARY)
def _(*_):
    return torch.empty((), dtype=torch.int64)


@torch.library.register_fake("memlet::mask", lib=_LIBRARY)
def _(seed, shape, rate, stream, step, dtype):
    return torch.empty(shape, dtype=dtype)
