"""Kernels that start without numba: compiled once, then machine code from a cache, called directly.

Importing numba and its first call take a third of a second in each worker, which is long for a short command. A
`kernel` is a function that numba compiles if its machine code is not cached. Cached code is loaded by LLVM alone and
called through `ctypes`, without the GIL. A kernel takes arrays and numbers and returns None or an int64.
It must not allocate, so that it does not need numba's runtime (numba rejects it otherwise). A kernel may call other
kernels.

What must allocate is declared by `njit`: numba compiles, caches and calls it, and is imported for its first call. Such
functions may call kernels and each other. So a module declares both beside its other functions, and imports nothing.

The cache has one file for each combination of function, argument types, processor and state of the kernels' sources, in
a folder of `feedmill.kernels.codecache`: a line of JSON, then an object file. An incomplete file is written again.
Calls follow numba's calling convention, unchanged since 2014: a pointer for the result, one for an exception, then for
each array its owners (none), counts, address, shape and strides.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from feedmill._version import __version__
from feedmill.kernels import addresses, codecache

Array = npt.NDArray[Any]
PATIENCE = 60.0
"""Total seconds that this process waits for other processes that compile."""
_POLL = 0.02
_waited = 0.0
_SUFFIX = ".kernel"
_loading, _making = threading.RLock(), threading.RLock()
_Call = Callable[[tuple[Any, ...]], int | None]


def kernel(function: Callable[..., Any]) -> Kernel:
    """Compile a function when it is first called; see the module docstring."""
    return Kernel(function)


def njit(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    """Compile a function with numba's own ``njit`` and these options when it is first called; see `codecache.njit`."""
    return lambda function: Jitted(function, options)


class Lazy:
    """An object for compiled code, created when numba first resolves it."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make
        self._made: Any = None

    @property
    def made(self) -> Any:
        """The object itself, created on first use."""
        if self._made is None:
            with _making:
                self._made = self._make() if self._made is None else self._made
        return self._made

    @property
    def _numba_type_(self) -> Any:
        from numba.core.registry import cpu_target

        made, context = self.made, cpu_target.typing_context
        context.refresh()  # registers an object created just now
        return context.resolve_value_type(made)


class Jitted(Lazy):
    """A function that numba compiles and calls.

    Attributes:
        py_func, targetoptions: the Python function and the options, by which numba inlines it.
    """

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        super().__init__(lambda: codecache.njit(function, **options))
        self.py_func, self.targetoptions = function, options
        self.__doc__, self.__name__, self.__module__ = function.__doc__, function.__name__, function.__module__

    def __call__(self, *args: Any) -> Any:
        """Call the function; numba is imported for the first call."""
        return self.made(*args)


class Kernel(Lazy):
    """A compiled function.

    Attributes:
        py_func: the Python function, for debugging.
        loading: whether another thread is loading code for it, for which a call would wait.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(lambda: _dispatcher(function))
        self.py_func = function
        self.__doc__, self.__name__, self.__module__ = function.__doc__, function.__name__, function.__module__
        self._calls: dict[tuple[Any, ...], _Call] = {}
        self.loading = False

    def __call__(self, *args: Any) -> Any:
        """Call the kernel.

        Raises:
            TypeError: an argument is neither an array nor a number.
            OverflowError: an `int` does not fit in 64 bits.
        """
        kinds = tuple([_kind(arg) for arg in args])
        call = self._calls.get(kinds)
        if call is None:
            self.loading = True
            try:
                with _loading:
                    call = self._calls[kinds] = _load(self, kinds)
            finally:
                self.loading = False
        return call(args)

    @property
    def loaded(self) -> bool:
        """Whether this process has called it before, so that a call loads no code."""
        return bool(self._calls)

    @property
    def ready(self) -> bool:
        """Whether machine code exists for at least one combination of argument types."""
        if self._calls:
            return True
        pattern = f"{_name(self)}-*-{_processor()}-{_sources()}{_SUFFIX}"
        return any(_read(path) is not None for folder in codecache.folders() for path in folder.glob(pattern))


def _dispatcher(function: Callable[..., Any]) -> Any:
    import numba

    return numba.njit(nogil=True, no_cpython_wrapper=True, no_cfunc_wrapper=True, _nrt=False)(function)


# --- arguments --------------------------------------------------------------------------------------------------------


def _kind(arg: Any) -> Any:
    """Return a cheap key for the type of an argument."""
    if type(arg) is np.ndarray:
        return arg.dtype, arg.ndim, arg.flags.num & _FLAGS
    return type(arg)


_CONTIGUOUS, _ALIGNED, _WRITABLE = 0x1, 0x100, 0x400  # as in numpy's C interface
_FLAGS = _CONTIGUOUS | _ALIGNED | _WRITABLE
_HALF = 1 << 63
_NUMBERS: dict[type, str] = {
    int: "int64", bool: "int64", float: "float64", np.bool_: "int64",
    np.int64: "int64", np.uint64: "uint64", np.float64: "float64",
}  # fmt: skip


class _Type(NamedTuple):
    """The type of a number, or of an array (with `dimensions` and the flags)."""

    element: str
    dimensions: int = -1
    contiguous: bool = True
    writable: bool = True
    aligned: bool = True


def _type(kind: Any) -> _Type:
    if isinstance(kind, tuple):
        dtype, dimensions, flags = kind
        if not dtype.isnative:
            raise TypeError(f"kernels take arrays in native byte order, not {dtype}")
        return _Type(dtype.name, dimensions, *(bool(flags & flag) for flag in (_CONTIGUOUS, _WRITABLE, _ALIGNED)))
    if kind not in _NUMBERS:
        raise TypeError(f"kernels take arrays and numbers, not {kind}")
    return _Type(_NUMBERS[kind])


def _flat(args: tuple[Any, ...]) -> list[Any]:
    """Return the arguments as numba's convention passes them."""
    found: list[Any] = []
    for arg in args:
        if type(arg) is np.ndarray:
            found += (None, None, arg.size, arg.itemsize, addresses.of(arg), *arg.shape, *arg.strides)
        elif type(arg) is int and not -_HALF <= arg < _HALF:
            raise OverflowError(f"kernels take numbers of 64 bits, not {arg}")  # ctypes would truncate it
        else:
            found.append(int(arg) if isinstance(arg, np.integer | np.bool_) else arg)
    return found


def _c_types(types: list[_Type]) -> list[Any]:
    pointer, whole = ctypes.c_void_p, ctypes.c_int64
    found: list[Any] = []
    for one in types:
        if one.dimensions < 0:
            found.append({"int64": whole, "uint64": ctypes.c_uint64, "float64": ctypes.c_double}[one.element])
        else:
            found += [pointer, pointer, whole, whole, pointer, *[whole] * (2 * one.dimensions)]
    return found


# --- compiling and loading -----------------------------------------------------------------------------------------


def _load(one: Kernel, kinds: tuple[Any, ...]) -> _Call:
    types = [_type(kind) for kind in kinds]
    stem = f"{_name(one)}-{_hash(types)}-{_processor()}"
    head, code = _cached(stem) or _made(one, types, stem)
    pointer = ctypes.c_void_p
    function = ctypes.CFUNCTYPE(ctypes.c_int32, pointer, pointer, *_c_types(types))(_link(head["symbol"], code))
    gives = head["gives"]

    def call(args: tuple[Any, ...]) -> int | None:
        result, error = ctypes.c_int64(), ctypes.c_void_p()
        status = function(ctypes.addressof(result), ctypes.addressof(error), *_flat(args))
        if status not in (0, -2):  # -2: the kernel returned None
            raise ArithmeticError(f"the kernel {one.__module__}.{one.__name__} failed ({status})")
        return result.value if gives else None

    return call


def _made(one: Kernel, types: list[_Type], stem: str) -> tuple[dict[str, Any], bytes]:
    """Compile a kernel that is not cached: one process compiles while others wait up to `PATIENCE` seconds."""
    global _waited
    with closing(codecache.Turn()) as turn:
        while not turn.mine() and _waited < PATIENCE:
            time.sleep(_POLL)
            _waited += _POLL
            if (found := _cached(stem)) is not None:
                return found
        found = _cached(stem)
        if found is None:
            found = _compile(one, types)
            _keep(stem, *found)
        return found


def _compile(one: Kernel, types: list[_Type]) -> tuple[dict[str, Any], bytes]:
    """Return the header and the machine code for these argument types."""
    import llvmlite.binding as llvm
    import numba

    def numba_type(kind: _Type) -> Any:
        element = getattr(numba.types, kind.element if kind.element != "bool" else "boolean")
        if kind.dimensions < 0:
            return element
        layout = "C" if kind.contiguous else "A"
        return numba.types.Array(element, kind.dimensions, layout, readonly=not kind.writable, aligned=kind.aligned)

    signature = tuple(numba_type(kind) for kind in types)
    one.made.compile(signature)
    compiled = one.made.overloads[signature]
    given = compiled.signature.return_type
    if given not in (numba.types.none, numba.types.int64):
        raise TypeError(f"the kernel {one.__name__} returns {given}; kernels must return None or an int64")
    code = _machine().emit_object(llvm.parse_assembly(one.made.inspect_llvm(signature)))
    return {"symbol": compiled.fndesc.llvm_func_name, "gives": given != numba.types.none}, code


@cache
def _machine() -> Any:
    import llvmlite.binding as llvm

    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    return llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, reloc="default", codemodel="jitdefault", jit=True
    )


_linked: list[Any] = []
"""References that keep the machine code in memory."""


def _link(symbol: str, code: bytes) -> int:
    """Load an object file and return the address of one of its functions."""
    import llvmlite.binding as llvm

    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _linked.append(engine)
    return int(engine.get_function_address(symbol))


# --- the cache -----------------------------------------------------------------------------------------------------


def _name(one: Kernel) -> str:
    return f"{one.__module__.rpartition('.')[2]}.{one.__name__}"


def _hash(value: Any) -> str:
    return hashlib.blake2b(repr(value).encode(), digest_size=6).hexdigest()


@cache
def _processor() -> str:
    import llvmlite
    import llvmlite.binding as llvm

    return _hash((llvmlite.__version__, llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()))


@cache
def _sources() -> str:
    """Return a hash of the state of all kernel sources, since kernels call one another.

    It includes the release, for reproducible builds, where all files have the same time. Times are whole seconds, as
    in the layers of container images, so that kernels that were compiled in an image remain usable.
    """
    found = []
    for folder, below, names in os.walk(Path(__file__).parent):
        below[:] = [name for name in below if name != "__pycache__"]
        for name in names:
            about = os.stat(os.path.join(folder, name))
            found.append((os.path.basename(folder), name, about.st_size, int(about.st_mtime)))
    return _hash((__version__, sorted(found)))


def _cached(stem: str) -> tuple[dict[str, Any], bytes] | None:
    """Return a kernel from the first folder that has it; None if none has."""
    for folder in codecache.folders():
        found = _read(folder / f"{stem}-{_sources()}{_SUFFIX}")
        if found is not None:
            return found
    return None


def _read(path: Path) -> tuple[dict[str, Any], bytes] | None:
    """Return a cached kernel; None if it is missing, incomplete or not trusted."""
    try:
        line, _, code = codecache.read(path).partition(b"\n")
        head = json.loads(line)
        whole = head["size"] == len(code) and head["hash"] == hashlib.blake2b(code, digest_size=16).hexdigest()
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return (head, code) if whole else None


def _keep(stem: str, head: dict[str, Any], code: bytes) -> None:
    """Cache a kernel in the first folder that works, and remove versions from older sources."""
    name = f"{stem}-{_sources()}{_SUFFIX}"
    line = json.dumps({**head, "size": len(code), "hash": hashlib.blake2b(code, digest_size=16).hexdigest()})
    for folder in filter(codecache.writable, codecache.folders()):
        beside = folder / f"{name}.{secrets.token_hex(4)}"
        try:
            codecache.write(beside, line.encode() + b"\n" + code)
            beside.replace(folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                beside.unlink()
            continue
        for old in folder.glob(f"{stem}-*"):
            if old.name != name:
                with contextlib.suppress(OSError):
                    old.unlink()
        return
