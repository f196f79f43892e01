"""A C library of ``memlet build``, called without copies.

Tensors are NumPy arrays, PyTorch tensors, or anything with ``__dlpack__``. What lies as the plan wants it is used in place. Inputs that lie
otherwise are copied into memory of the step's own; parameters that the step writes must lie as the plan wants them.
"""

import ctypes
import json
import os
import sys
import threading
import weakref
from dataclasses import dataclass

import numpy as np

ABI = 1
LINE = 64
NO_DROPOUT = 1
TYPES = {
    "f32": np.float32, "f64": np.float64, "f16": np.float16, "i64": np.int64, "i32": np.int32, "i16": np.int16, "u8": np.uint8,
    # NumPy has no bfloat16: its bits.
    "bf16": np.uint16,
}  # fmt: skip


class MemletError(Exception):
    """What a library or its caller got wrong."""


class _CTensor(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("role", ctypes.c_char_p),
        ("dtype", ctypes.c_char_p),
        ("layout", ctypes.c_char_p),
        ("replaces", ctypes.c_char_p),
        ("initial", ctypes.POINTER(ctypes.c_double)),
        ("element_bytes", ctypes.c_int32),
        ("memory", ctypes.c_int32),
        ("offset", ctypes.c_int64),
        ("rank", ctypes.c_int32),
        ("is_plain", ctypes.c_int32),
        ("dims", ctypes.POINTER(ctypes.c_char_p)),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("steps", ctypes.POINTER(ctypes.c_int64 * 3)),
    ]


class _CMemory(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("bytes", ctypes.c_int64), ("alignment", ctypes.c_int32), ("is_written", ctypes.c_int32)]


@dataclass(frozen=True)
class Tensor:
    """A tensor that a step is given or returns."""

    name: str
    role: str
    dtype: str
    dims: tuple
    shape: tuple
    layout: str
    #: In elements; ``None`` in a layout of blocks, which no strides describe.
    strides: tuple | None
    #: The parameter whose memory holds this value after the step.
    replaces: str | None
    #: The value that a state begins with.
    initial: float | None
    number: int
    memory: int
    offset: int
    element_bytes: int

    @property
    def is_given(self):
        return self.role in ("input", "parameter")


class Packed:
    """Memory that holds one tensor in the plan's layout, whatever that is; ``Step.pack`` makes it."""

    def __init__(self, step, tensor, memory):
        self._step, self.tensor, self.memory = step, tensor, memory

    def numpy(self):
        """A copy in the order of the tensor's dims."""
        found = np.empty(self.tensor.shape, TYPES[self.tensor.dtype])
        self._step._check(self._step._unpack(self.tensor.number, self.memory.ctypes.data, found.ctypes.data))
        return found


def _room(size):
    """Zeroed bytes on a line of memory, with a readable line behind them."""
    whole = np.zeros(size + 2 * LINE, np.uint8)
    start = -whole.ctypes.data % LINE
    return whole[start : start + size]


def _is_readable_behind(end):
    """Whether the line behind an address can be read, as vector code may do: it lies in the same page, or in one that exists."""
    page = (end + LINE - 2) & -_PAGE
    return (end - 1) & -_PAGE == page or _mincore(page, 1, ctypes.create_string_buffer(1)) == 0


_PAGE = os.sysconf("SC_PAGE_SIZE")
_mincore = ctypes.CDLL(None).mincore
_mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]


def load(folder, threads=None, workspace=None):
    """Loads the library in a folder that ``memlet build`` wrote, with a number of threads (by default as many as the plan was chosen for),
    and with a ``Workspace`` if it is to share that with others."""
    return Step(folder, threads, workspace)


class Workspace:
    """Memory for what lies between inputs and results of several steps, as large as that of the largest. Of the steps that share it one
    runs at a time."""

    def __init__(self):
        self.lock, self.memory = threading.Lock(), _room(0)
        self._steps = weakref.WeakSet()

    @property
    def bytes(self):
        return self.memory.nbytes

    def _join(self, step):
        self._steps.add(step)
        with self.lock:
            if step.workspace_bytes > self.bytes:
                self._resize(step.workspace_bytes)

    def fit(self):
        """Gives memory back that none of its steps needs any more."""
        with self.lock:
            size = max((step.workspace_bytes for step in self._steps), default=0)
            if size < self.bytes:
                self._resize(size)

    def _resize(self, size):
        # Freed before it is taken: there may not be memory for both. Steps take the new memory when they run next.
        self.memory = _room(0)
        for step in self._steps:
            step._memory = None
        self.memory = _room(size)


#: The file that each library was when this process loaded it: the system gives the same library again under the same path.
_FILES = {}


def _loaded(path):
    """The library in a file, unless the file is another one than this process has loaded from there."""
    status = os.stat(path)
    file = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
    if _FILES.setdefault(path, file) != file:
        raise MemletError(f"{path} was built anew since this process loaded it: build into another folder, or start again")
    return ctypes.CDLL(path)


class Step:
    """A step of a plan. Calls of one step follow one another; steps are independent of each other, unless they share a workspace."""

    def __init__(self, folder, threads=None, workspace=None):
        self._context = None
        folder = os.fspath(folder)
        try:
            with open(os.path.join(folder, "library.json"), encoding="utf-8") as file:
                about = json.load(file)
        except OSError as error:
            raise MemletError(f"{folder}: there is no library.json; `memlet build PLAN --out {folder}` writes one") from error
        if about["abi"] != ABI:
            raise MemletError(f"{folder}: the library has interface {about['abi']}, this package knows {ABI}; build it again")
        path = os.path.join(folder, about["library"])
        if not os.path.exists(path):
            raise MemletError(f"{path} does not exist: compile it with cmake in {folder}, or run `memlet build` where there is a C compiler")
        self._library, self.name = _loaded(os.path.abspath(path)), about["name"]
        self._declare()
        self.tensors = [self._tensor(n) for n in range(self._function("tensor_count")())]
        self._by_name = {tensor.name: tensor for tensor in self.tensors}
        self._memories = [self._memory_at(n).contents for n in range(self._function("memory_count")())]
        most = self._function("most_threads")()
        self.threads = threads if threads is not None else min(about["threads"], most)
        #: Of the memory that a context has for what lies between its inputs and results.
        self.workspace_bytes = self._function("workspace_bytes")(self.threads)
        #: The workspace that it shares, unless it keeps something there from one call to the next.
        self.workspace = workspace if about.get("workspace") == "scratch" else None
        self._memory = None
        if self.workspace is not None:
            self.workspace._join(self)
        self._create()
        self._pointers = (ctypes.c_void_p * len(self._memories))()
        # Tensors that are parts of one memory are copied into it; all others are used where they lie.
        given = [t.memory for t in self.tensors if t.is_given]
        self._shared = {memory for memory in given if given.count(memory) > 1}
        self._own = {memory: _room(self._memories[memory].bytes) for memory in self._shared}
        self._given = [t for t in self.tensors if t.is_given]
        self._results = [t for t in self.tensors if not t.is_given]
        self._written = {n for n, memory in enumerate(self._memories) if memory.is_written}
        #: What was given last, by tensor: the object, and its address where that cannot change.
        self._last = {}

    def _function(self, name):
        return getattr(self._library, f"{self.name}_{name}")

    def _declare(self):
        pointer, number = ctypes.c_void_p, ctypes.c_int32
        for name, result, arguments in [
            ("strerror", ctypes.c_char_p, [ctypes.c_int]),
            ("tensor_at", ctypes.POINTER(_CTensor), [number]),
            ("memory_at", ctypes.POINTER(_CMemory), [number]),
            ("create", ctypes.c_int, [ctypes.POINTER(pointer), number, pointer, ctypes.c_size_t]),
            ("destroy", None, [pointer]),
            ("step", ctypes.c_int, [pointer, pointer, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_uint32]),
            ("refresh", ctypes.c_int, [pointer]),
            ("workspace_bytes", ctypes.c_size_t, [number]),
            ("pack", ctypes.c_int, [number, pointer, pointer]),
            ("unpack", ctypes.c_int, [number, pointer, pointer]),
        ]:
            function = self._function(name)
            function.restype, function.argtypes = result, arguments
        self._memory_at, self._step = self._function("memory_at"), self._function("step")
        self._pack, self._unpack = self._function("pack"), self._function("unpack")

    def _tensor(self, number):
        found = self._function("tensor_at")(number).contents
        rank = range(found.rank)
        steps = [tuple(found.steps[d]) for d in rank]
        return Tensor(
            name=found.name.decode(),
            role=found.role.decode(),
            dtype=found.dtype.decode(),
            dims=tuple(found.dims[d].decode() for d in rank),
            shape=tuple(found.shape[d] for d in rank),
            layout=found.layout.decode(),
            strides=tuple(across for _, across, _ in steps) if found.is_plain else None,
            replaces=found.replaces.decode() if found.replaces else None,
            initial=found.initial[0] if found.initial else None,
            number=number,
            memory=found.memory,
            offset=found.offset,
            element_bytes=found.element_bytes,
        )

    def _create(self):
        self._memory = self.workspace.memory if self.workspace is not None else None
        at, size = (None, 0) if self._memory is None else (self._memory.ctypes.data, self._memory.nbytes)
        context = ctypes.c_void_p()
        self._check(self._function("create")(ctypes.byref(context), self.threads, at, size))
        self._context = context

    def _run(self, pointers, seed, step, flags):
        if self.workspace is None:
            self._check(self._step(self._context, pointers, seed, step, flags))
            return
        with self.workspace.lock:
            if self._memory is not self.workspace.memory:
                # The workspace has grown since.
                self._function("destroy")(self._context)
                self._context = None
                self._create()
            self._check(self._step(self._context, pointers, seed, step, flags))

    def _check(self, error):
        if error:
            raise MemletError(f"{self.name}: {self._function('strerror')(error).decode()}")

    def __del__(self):
        if getattr(self, "_context", None):
            self._function("destroy")(self._context)

    def tensor(self, name):
        """The tensor of this name."""
        if name not in self._by_name:
            raise MemletError(f"{self.name} has no tensor `{name}`; it has {', '.join(self._by_name)}")
        return self._by_name[name]

    def empty(self, name):
        """A zeroed NumPy array that lies as the plan wants this tensor."""
        tensor = self.tensor(name)
        if tensor.strides is None:
            raise MemletError(f"`{name}` lies in blocks ({tensor.layout}), which are no strided array; use pack")
        return self._strided(tensor, _room(self._memories[tensor.memory].bytes))

    def pack(self, name, values=None):
        """Memory with a tensor in the plan's layout, filled with values (else zeros, or the value that a state begins with)."""
        tensor = self.tensor(name)
        if tensor.memory in self._shared:
            raise MemletError(f"`{name}` shares its memory with other tensors, which are copied into it; give the array itself")
        memory = _room(self._memories[tensor.memory].bytes)
        if values is None:
            values = np.full(tensor.shape, tensor.initial or 0.0, TYPES[tensor.dtype])
        self._copy(tensor, values, memory)
        return Packed(self, tensor, memory)

    def refresh(self):
        """Says that parameters have changed, where what a step computes of them alone is kept."""
        self._check(self._function("refresh")(self._context))

    def _strided(self, tensor, memory):
        strides = tuple(s * tensor.element_bytes for s in tensor.strides)
        return np.ndarray(tensor.shape, TYPES[tensor.dtype], memory.data, tensor.offset, strides)

    def _copy(self, tensor, values, memory):
        """Copies values into a memory, in the plan's layout."""
        array = _host(values, tensor)
        if array.shape != tensor.shape:
            raise MemletError(f"`{tensor.name}` has the shape {array.shape}, {self.name} wants {tensor.shape}")
        array = np.ascontiguousarray(array, TYPES[tensor.dtype])
        self._check(self._pack(tensor.number, array.ctypes.data, memory.ctypes.data))

    def _address(self, tensor, given):
        """Where a tensor lies, if it lies as the plan wants it; else where a copy of it lies."""
        last = self._last.get(tensor.name)
        torch_tensor = hasattr(given, "data_ptr")
        if last is not None and (last[0]() if torch_tensor else last[0]) is given:
            # PyTorch's tensors may have got other memory, or another shape.
            if not torch_tensor:
                if last[2] is not None:
                    self._copy(tensor, given, last[2])
                return last[1]
            if last[2] is None and last[3] == (given.data_ptr(), given.stride()):
                return last[1]
        if isinstance(given, Packed):
            if given.tensor.number != tensor.number or given._step is not self:
                raise MemletError(f"`{tensor.name}` was packed as `{given.tensor.name}` of another step")
            address, copied, state = given.memory.ctypes.data, None, None
        else:
            if torch_tensor:
                is_alike = tuple(given.shape) == tensor.shape and _torch_type(given) == tensor.dtype and given.device.type == "cpu"
                address, strides, state = given.data_ptr(), given.stride(), (given.data_ptr(), given.stride())
            else:
                array = given if isinstance(given, np.ndarray) else np.from_dlpack(given)
                is_alike = array.shape == tensor.shape and array.dtype == TYPES[tensor.dtype]
                address, strides, state = array.ctypes.data, tuple(s // tensor.element_bytes for s in array.strides), None
            lies = is_alike and tensor.strides is not None and tensor.memory not in self._shared and tensor.offset == 0
            lies = lies and all(n == 1 or own == want for n, own, want in zip(tensor.shape, strides, tensor.strides))
            lies = lies and address % max(4, tensor.element_bytes) == 0
            lies = lies and _is_readable_behind(address + self._memories[tensor.memory].bytes)
            copied = None
            if not lies:
                if tensor.memory in self._written and tensor.memory not in self._shared:
                    raise MemletError(
                        f"`{tensor.name}` is updated in place, so it must lie as the plan wants it: {tensor.dtype}, shape {tensor.shape}, "
                        f"layout {tensor.layout}; make it with pack(\"{tensor.name}\", values)"
                    )
                copied = self._own.get(tensor.memory)
                if copied is None:
                    copied = self._own[tensor.memory] = _room(self._memories[tensor.memory].bytes)
                self._copy(tensor, given, copied)
                address = copied.ctypes.data
        is_fixed = copied is None and not torch_tensor
        # PyTorch frees what nobody reads any more.
        self._last[tensor.name] = (weakref.ref(given) if torch_tensor else given, address, copied, state, is_fixed)
        return address

    def _placed(self, tensors, out):
        """Puts the addresses of all memories into place. Returns the results, whose values are not there yet, and what is to be copied into
        results behind which no memory can be read, as a step may do that uses a result's memory before the result is there."""
        pointers, lasts = self._pointers, self._last
        some, late = None, ()
        for tensor in self._given:
            try:
                given = tensors[tensor.name]
            except KeyError:
                raise MemletError(f"`{tensor.name}` was not given; {self.name} needs {', '.join(t.name for t in self._given)}") from None
            last = lasts.get(tensor.name)
            # The array of the last call, where it lies: its address is in place.
            if last is None or last[0] is not given or not last[4]:
                pointers[tensor.memory] = self._address(tensor, given)
            if some is None and hasattr(given, "data_ptr"):
                some = given
        if len(tensors) != len(self._given):
            unknown = [name for name in tensors if name not in self._by_name or not self._by_name[name].is_given]
            raise MemletError(f"{self.name} is not given {', '.join(unknown)}")
        results = {}
        for tensor in self._results:
            if tensor.replaces is not None:
                continue
            if out is not None and tensor.name in out:
                result = out[tensor.name]
                address = self._result(tensor, result)
                if not _is_readable_behind(address + self._memories[tensor.memory].bytes):
                    memory = _room(self._memories[tensor.memory].bytes)
                    address, late = memory.ctypes.data, [*late, (self._strided(tensor, memory), result)]
            else:
                result, address = self._new(tensor, some)
            pointers[tensor.memory] = address
            results[tensor.name] = result
        return results, late

    def __call__(self, seed=1, step=0, dropout=True, out=None, **tensors):
        """Runs a step on tensors by name. Returns results by name: those of ``out``, or new ones; next values of parameters lie where the
        parameters do, and are not among them."""
        results, late = self._placed(tensors, out)
        self._run(self._pointers, seed, step, 0 if dropout else NO_DROPOUT)
        for made, result in late:
            _copy_into(result, made)
        return {name: value.numpy() if isinstance(value, Packed) else value for name, value in results.items()}

    def bind(self, out=None, **tensors):
        """A step on these tensors and no others, which must keep their memory: its calls look at none of them."""
        return Bound(self, tensors, *self._placed(tensors, out))

    def _result(self, tensor, given):
        """Where a result is to be written."""
        shape, strides, kind = _described(given, tensor)
        if shape != tensor.shape or kind != tensor.dtype or tensor.strides is None:
            raise MemletError(f"out[\"{tensor.name}\"] must be {tensor.dtype} of the shape {tensor.shape} in the layout {tensor.layout}")
        if any(n != 1 and own != want for n, own, want in zip(shape, strides, tensor.strides)):
            raise MemletError(f"out[\"{tensor.name}\"] must have the strides {tensor.strides}; empty(\"{tensor.name}\") has them")
        return given.data_ptr() if hasattr(given, "data_ptr") else given.ctypes.data

    def _new(self, tensor, like):
        if tensor.strides is None:
            memory = _room(self._memories[tensor.memory].bytes)
            return Packed(self, tensor, memory), memory.ctypes.data
        if like is not None:
            torch = sys.modules["torch"]
            # With a line behind it: a step may use a result's memory before the result is there.
            elements = (self._memories[tensor.memory].bytes + LINE) // tensor.element_bytes
            whole = torch.empty(elements, dtype=getattr(torch, _TORCH[tensor.dtype]))
            made = torch.empty(0, dtype=whole.dtype).set_(whole.untyped_storage(), 0, tensor.shape, tensor.strides)
            return made, made.data_ptr()
        made = self._strided(tensor, _room(self._memories[tensor.memory].bytes))
        return made, made.ctypes.data


class Bound:
    """A step on fixed tensors: a call gives seed and number of the step. Results are written into ``results``."""

    def __init__(self, step, tensors, results, late):
        self._step, self._keeps, self.results, self._late = step, tensors, results, late
        self._pointers = (ctypes.c_void_p * len(step._memories))(*step._pointers)

    def __call__(self, seed=1, step=0, dropout=True):
        self._step._run(self._pointers, seed, step, 0 if dropout else NO_DROPOUT)
        for made, result in self._late:
            _copy_into(result, made)
        return self.results


def _copy_into(result, made):
    """Copies a NumPy array into a result of the caller's."""
    if not hasattr(result, "data_ptr"):
        result[...] = made
        return
    torch = sys.modules["torch"]
    values = torch.from_numpy(made.view(np.int16) if result.dtype is torch.bfloat16 else made)
    result.copy_(values.view(torch.bfloat16) if result.dtype is torch.bfloat16 else values)


_TORCH = {
    "f32": "float32", "f64": "float64", "f16": "float16", "bf16": "bfloat16", "i64": "int64", "i32": "int32", "i16": "int16", "u8": "uint8",
}  # fmt: skip
_OF_TORCH = {}


def _torch_type(tensor):
    if not _OF_TORCH:
        torch = sys.modules["torch"]
        _OF_TORCH.update({getattr(torch, theirs): ours for ours, theirs in _TORCH.items()})
    return _OF_TORCH.get(tensor.dtype)


def _host(values, tensor):
    """Values as a NumPy array; bfloat16 as its bits."""
    if hasattr(values, "data_ptr"):
        values = values.detach()
        if tensor.dtype == "bf16":
            torch = sys.modules["torch"]
            values = values.to(torch.bfloat16).contiguous().view(torch.int16)
            return values.numpy().view(np.uint16)
        return values.numpy()
    return values if isinstance(values, np.ndarray) else np.asarray(values) if not hasattr(values, "__dlpack__") else np.from_dlpack(values)


def _described(given, tensor):
    if hasattr(given, "data_ptr"):
        return tuple(given.shape), given.stride(), _torch_type(given)
    kind = tensor.dtype if given.dtype == TYPES[tensor.dtype] else None
    return given.shape, tuple(s // given.itemsize for s in given.strides), kind
