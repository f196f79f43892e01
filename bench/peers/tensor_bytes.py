"""How many bytes of tensors are alive at once while PyTorch runs.

Every tensor that an operator returns is seen, forward and backward; its storage counts once, however many views it has,
from then until it is freed. What an operator allocates and frees inside itself is not a tensor and is not seen: the figure
is the least that PyTorch needs.
"""
import weakref

from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class TensorBytes(TorchDispatchMode):
    """Counts storages while it is entered: `live` bytes now, `peak` the most so far."""

    def __init__(self, given):
        super().__init__()
        self.live = self.peak = 0
        self.known = {}
        for tensor in given:
            self.see(tensor)

    def see(self, tensor):
        storage = tensor.untyped_storage()
        # A storage keeps its Python object as long as it lives.
        if id(storage) in self.known:
            return
        bytes = storage.nbytes()
        self.known[id(storage)] = weakref.ref(storage, lambda _, key=id(storage): self.gone(key, bytes))
        self.live += bytes
        self.peak = max(self.peak, self.live)

    def gone(self, key, bytes):
        del self.known[key]
        self.live -= bytes

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        found = function(*arguments, **(options or {}))
        for leaf in tree_leaves(found):
            if hasattr(leaf, "untyped_storage"):
                self.see(leaf)
        return found
