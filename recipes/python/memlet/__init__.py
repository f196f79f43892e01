"""Plans of Memlet in Python.

``memlet.load(folder)`` loads a C library that ``memlet build`` made. ``memlet.compile(module, example)`` and
``torch.compile(model, backend="memlet")`` make plans of PyTorch programs.
"""

from .library import Bound, MemletError, Packed, Step, Tensor, Workspace, load

__all__ = ["Bound", "MemletError", "Packed", "Step", "Tensor", "Workspace", "compile", "load"]


def compile(module, example, **options):
    """Compiles a PyTorch module for inputs like those of ``example`` (a tuple of tensors); see ``memlet.torch_backend``."""
    from . import torch_backend

    return torch_backend.compile(module, example, **options)
