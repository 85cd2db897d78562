"""The complete list of names allowed in a ``.pth`` pickle, and the functions they call."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from feedmill.errors import DataError
from feedmill.formats.pth.archive import bad
from feedmill.formats.pth.pickled import AllowedGlobal, hashable
from feedmill.formats.pth.tensors import DTYPES, STORAGES, TORCH, Spec, checked, numpy_dtype, torch_module

_KINDS = "biufc"


class NumpyArray:
    """A NumPy array that is being unpickled: created empty, its state is set later."""

    __slots__ = ()


class StorageClass(AllowedGlobal):
    """A storage class; its `value` in the table is the object itself."""

    __slots__ = ("dtype",)

    def __init__(self, name: str, dtype: str) -> None:
        super().__init__(name, None)
        self.dtype = dtype


def table(make: Callable[[Spec], Any], to: str) -> dict[str, AllowedGlobal]:
    """Return the table ``"module name"`` -> allowed global.

    Args:
        make: returns a tensor for a `Spec`.
        to: ``numpy`` or ``torch``.
    """

    def rebuild(storage: Any, offset: Any, shape: Any, strides: Any, *_more: Any) -> Any:
        metadata = _more[2] if len(_more) > 2 else None
        return _signed(make(checked(storage, offset, tuple(shape), tuple(strides))), metadata)

    def rebuild_typed(storage: Any, offset: Any, shape: Any, strides: Any, *_more: Any) -> Any:
        # (requires_grad, hooks, dtype, metadata): the dtype as its name
        dtype = _dtype_name(_more[2])
        metadata = _more[3] if len(_more) > 3 else None
        return _signed(make(checked(storage, offset, tuple(shape), tuple(strides), dtype)), metadata)

    makers: dict[str, Callable[..., Any]] = {
        "torch._utils _rebuild_tensor": rebuild,
        "torch._utils _rebuild_tensor_v2": rebuild,
        "torch._utils _rebuild_tensor_v3": rebuild_typed,
        "torch._utils _rebuild_parameter": lambda tensor, *_: tensor,
        "torch Size": lambda sizes=(): tuple(sizes),
        "torch device": lambda kind, number=None: kind if number is None else f"{kind}:{number}",
        "collections OrderedDict": _ordered,
        "builtins set": _set,
        "__builtin__ set": _set,
        "builtins complex": complex,
        "__builtin__ complex": complex,
        "builtins bytes": lambda data=b"": _bytes(data),
        "__builtin__ bytes": lambda data=b"": _bytes(data),
        "_codecs encode": _encoded,
        "numpy dtype": _numpy_dtype,
    }
    for package in ("numpy.core", "numpy._core"):
        makers[f"{package}.multiarray scalar"] = _scalar
        makers[f"{package}.multiarray _reconstruct"] = lambda *_: NumpyArray()
    names = {name: AllowedGlobal(name, function) for name, function in makers.items()}
    names["numpy ndarray"] = AllowedGlobal("numpy ndarray", None)
    return names | {**_classes(), **_dtypes(to)}


@lru_cache(maxsize=1)
def _classes() -> dict[str, AllowedGlobal]:
    out: dict[str, AllowedGlobal] = {}
    for name, dtype in STORAGES.items():
        for module in ("torch", "torch.storage"):
            out[f"{module} {name}"] = StorageClass(f"{module} {name}", dtype)
    return out


@lru_cache(maxsize=2)
def _dtypes(to: str) -> dict[str, AllowedGlobal]:
    """Return torch's dtypes as values: torch's objects with ``to="torch"``, else their names (NumPy lacks some)."""
    torch = torch_module() if to == TORCH else None
    return {
        f"torch {name}": AllowedGlobal(name, None, name if torch is None else getattr(torch, name))
        for name in DTYPES
        if torch is None or hasattr(torch, name)
    }


def _dtype_name(dtype: Any) -> str:
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise bad(f"a tensor has the unknown dtype {name:.40}")
    return name


def _signed(tensor: Any, metadata: Any) -> Any:
    """Return the conjugated or negated view that the tensor's metadata declares."""
    if not metadata or tensor is None:
        return tensor
    unknown = set(metadata) - {"conj", "neg"}
    if unknown:
        raise bad(f"a tensor has the unknown property {sorted(map(str, unknown))[0]!r:.40}")
    if metadata.get("conj"):
        tensor = tensor.conj().resolve_conj() if hasattr(tensor, "resolve_conj") else tensor.conj()
    return -tensor if metadata.get("neg") else tensor


def _ordered(items: Any = ()) -> OrderedDict[Any, Any]:
    return OrderedDict((hashable(key), value) for key, value in items)


def _set(items: Any = ()) -> set[Any]:
    return set(map(hashable, items))


def _bytes(data: Any) -> bytes:
    if not isinstance(data, bytes | list | tuple):  # `bytes(number)` would allocate that many zeros
        raise TypeError
    return bytes(data)


def _encoded(text: Any, encoding: Any) -> bytes:
    if type(text) is not str or encoding not in ("latin1", "latin-1"):
        raise TypeError
    return text.encode("latin-1")


def _numpy_dtype(name: Any, *_flags: Any) -> np.dtype[Any]:
    if type(name) is not str or len(name) > 4:
        raise TypeError
    dtype = np.dtype(name)
    if dtype.kind not in _KINDS:
        raise bad(f"it has a NumPy array of the unsupported type {name!r}")
    return dtype


def _scalar(dtype: Any, data: Any) -> Any:
    if not isinstance(dtype, np.dtype) or type(data) is not bytes or len(data) != dtype.itemsize:
        raise TypeError
    return np.frombuffer(data, dtype)[0]


def build(value: Any, state: Any) -> Any:
    """Apply the opcode BUILD to (value, state). Raises `TypeError` or `DataError`."""
    if isinstance(value, np.dtype):  # (version, byte order, ...): a plain dtype has nothing else
        order = state[1] if isinstance(state, tuple) and len(state) > 1 else None
        if order not in ("<", ">", "|", "="):
            raise TypeError
        return value.newbyteorder(order)
    if isinstance(value, NumpyArray):
        _, shape, dtype, fortran, data = state
        if not isinstance(dtype, np.dtype) or type(data) is not bytes or not isinstance(shape, tuple):
            raise TypeError
        return np.frombuffer(data, dtype).reshape(shape, order="F" if fortran else "C")
    if type(value) is OrderedDict and isinstance(state, dict) and set(state) <= {"_metadata"}:
        vars(value).update(state)  # a model's state has its layers' versions there
        return value
    raise DataError(
        f"its pickle sets the state of a {type(value).__name__}, which is not plain data",
        kind="unsafe-pickle",
        fix="Loading it may run code, so it is not read.",
    )


__all__ = ["StorageClass", "build", "numpy_dtype", "table"]
