"""Kernels: functions that were compiled when the package was built, and that run without the GIL.

A kernel is written in the subset of Python that ``tools/kernels/translate.py`` describes, over arrays and numbers. With
types (`feedmill.kernels.interface`) it can be called from Python; without, only by other kernels, for any types:

    @kernel("u8[:], out i64[:] -> i64")
    def count(data, found): ...

A kernel allocates nothing: its callers give it arrays for its results and for scratch space. It checks no index, so its
callers must check what they do not know. After a change of a kernel, run ``make``, or
``python tools/kernels/build.py``.

There is one library for each level of processor: ``x86_64`` for every 64-bit PC, ``x86_64_v3`` for those with AVX2,
``aarch64``. The environment variable ``FEEDMILL_CPU`` names one of them; results are the same with each.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import sys
from collections.abc import Callable
from functools import cache, wraps
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError
from feedmill.kernels.interface import (
    COMPILER,
    FOLDER,
    NUMBERS,
    Argument,
    Signature,
    fingerprint,
    machine,
    parse,
    symbol,
)

Array = npt.NDArray[Any]
_Call = Callable[[tuple[Any, ...]], int | None]
_SCALARS = {"i64": ((int, bool, np.int64), "q"), "u64": ((int, np.uint64), "Q"), "f64": ((float, int, np.float64), "d")}
_CONTIGUOUS, _WRITABLE = 0x1, 0x400  # as in numpy's C interface
_REFUSED = NotImplemented
_FASTCALL = 0x80  # METH_FASTCALL of Python's C interface
_FUNCTIONS = (
    "PyLong_AsLongLong", "PyLong_AsUnsignedLongLong", "PyFloat_AsDouble", "PyNumber_Index", "PyErr_Occurred",
    "PyLong_FromLongLong", "PyEval_SaveThread", "PyErr_Clear", "PyEval_RestoreThread", "Py_IncRef", "Py_DecRef",
    "PyBytes_FromStringAndSize", "PyUnicode_DecodeUTF8", "PyList_New", "PyList_SetItem",
)  # fmt: skip
"""What ``calls.c`` uses of that interface, in the order in which it expects them."""
_CALL, _OBJECTS = "feedmill_call", "feedmill_objects"


_HEAD = object.__basicsize__
_at = ctypes.c_size_t.from_address


def address_field(array: npt.NDArray[Any]) -> int:
    """Return the first field after the head of an array, which is its address, as numpy's C interface promises.

    ``__array_interface__`` builds a dictionary with a description of the type, which takes 2 to 4 us. A kernel call
    asks once for each array, so a batch of tokens spent a tenth of its time there.
    """
    return _at(id(array) + _HEAD).value


def _address_property(array: npt.NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _chosen_address() -> Callable[[npt.NDArray[Any]], int]:
    """Return the fast function if its results are right in this interpreter, else the property."""
    if sys.implementation.name != "cpython":  # an id is an address only there
        return _address_property
    flat = np.zeros(64, np.uint8)
    own: npt.NDArray[Any] = flat.view(type("Own", (np.ndarray,), {}))
    arrays: tuple[npt.NDArray[Any], ...] = (flat, flat[3:], flat.reshape(8, 8)[1:, ::2], np.zeros((2, 3)), own)
    same = all(address_field(array) == _address_property(array) for array in arrays)
    return address_field if same else _address_property


address_of = _chosen_address()
"""Return the address of the first element of an array. The array must be kept alive while the address is used."""


@overload
def kernel(function: Callable[..., Any], /) -> Kernel: ...
@overload
def kernel(*types: str, inline: bool = True) -> Callable[[Callable[..., Any]], Kernel]: ...
def kernel(*given: Any, inline: bool = True) -> Any:  # noqa: ARG001 - the compiler reads it
    """Declare a kernel: ``@kernel``, or ``@kernel("u8[:] -> i64")`` with the types that Python calls it with.

    Args:
        given: the function, or the types; see `feedmill.kernels.interface`.
        inline: False for a function whose loop is vectorized only by itself.
    """
    return Kernel(given[0]) if given and callable(given[0]) else lambda function: Kernel(function, *given)


def intrinsic(types: str, body: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:  # noqa: ARG001 - the compiler reads both
    """Declare a function of kernels by its types and its body in C, where an array has the address ``.p``."""

    def declare(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def refuse(*_: Any) -> None:
            raise TypeError(f"{function.__name__} can be called in kernels only")

        return refuse

    return declare


class Kernel:
    """A compiled function.

    Attributes:
        function: the Python function. Its numbers are Python's and NumPy's, not those of kernels.
        types: what it can be called with, as declared.
    """

    def __init__(self, function: Callable[..., Any], *types: str) -> None:
        self.function, self.types = function, types
        self.__doc__, self.__name__, self.__module__ = function.__doc__, function.__name__, function.__module__
        self._calls: dict[tuple[Any, ...], _Call] = {}
        self._quick: Callable[..., Any] = self._first

    def __call__(self, *args: Any) -> Any:
        """Call the kernel. Inputs that are not contiguous in C order are copied.

        Raises:
            TypeError: the arguments are not of the declared types, or an array that the kernel writes to is read-only
                or not contiguous.
            OverflowError: an integer does not fit in 64 bits.
        """
        result = self._quick(*args)
        if result is not _REFUSED:
            return result
        kinds = tuple([_kind(arg) for arg in args])
        call = self._calls.get(kinds)
        if call is None:
            call = self._calls[kinds] = self._find(args)
        return call(args)

    def _first(self, *args: Any) -> Any:
        """Make the function that takes arguments in C, and call it."""
        found, signatures = self._library(), parse(*self.types)
        make = _maker(found) if signatures else None
        if make is None:
            self._quick = lambda *_: _REFUSED
        else:
            table = [len(signatures), len(signatures[0].arguments), int(signatures[0].returns)]
            for number, signature in enumerate(signatures):
                table.append(_address(getattr(found, symbol(self.__module__, self.__name__, number))))
                table += [word for one in signature.arguments for word in _rule(one)]
            self._quick = make(np.array(table, np.int64))
        return self._quick(*args)

    def _library(self) -> ctypes.CDLL:
        return library()

    def _find(self, args: tuple[Any, ...]) -> _Call:
        """Return the compiled function for arguments of these types."""
        signatures = parse(*self.types)
        for number, signature in enumerate(signatures):
            if len(args) == len(signature.arguments) and all(map(_takes, signature.arguments, args)):
                function = getattr(self._library(), symbol(self.__module__, self.__name__, number))
                strided = [type(arg) is np.ndarray and not arg.flags.c_contiguous for arg in args]
                return _contiguous(_call(function, signature), strided)
        names = self.function.__code__.co_varnames
        if not signatures or len(args) != len(signatures[0].arguments):
            raise TypeError(f"{self.__name__} takes {len(signatures[0].arguments) if signatures else 'no'} arguments")
        for number, arg in enumerate(args):
            wanted = [signature.arguments[number] for signature in signatures]
            if not any(_takes(one, arg) for one in wanted):
                takes = " or ".join(dict.fromkeys(map(str, wanted)))
                raise TypeError(f"{self.__name__} takes {takes} as {names[number]}, not {_described(arg)}")
        raise TypeError(f"{self.__name__} takes no such combination of types: {', '.join(map(_described, args))}")


# --- arguments taken in C (tools/kernels/calls.c) ---------------------------------------------------------------------


class _Method(ctypes.Structure):
    """PyMethodDef of Python's C interface."""

    _fields_ = (("name", ctypes.c_char_p), ("call", ctypes.c_void_p), ("flags", ctypes.c_int), ("doc", ctypes.c_char_p))


class _Fields(ctypes.Structure):
    """What follows the head of a numpy array, up to its flags, as numpy's C interface promises."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("dimensions", ctypes.c_int), ("shape", ctypes.POINTER(ctypes.c_ssize_t)),
        ("strides", ctypes.c_void_p), ("base", ctypes.c_void_p), ("dtype", ctypes.c_void_p), ("flags", ctypes.c_int),
    )  # fmt: skip


def _address(function: Any) -> int:
    return ctypes.cast(function, ctypes.c_void_p).value or 0


@cache
def _as_expected() -> bool:
    """Return whether arrays of this interpreter are laid out as the C code reads them."""
    if address_of is not address_field or ctypes.sizeof(ctypes.c_void_p) != 8:
        return False
    flat, head = np.zeros(64, np.uint8), object.__basicsize__
    flat.flags.writeable = False
    for array in (flat, flat[3:], np.zeros((2, 3)), np.zeros((4, 5, 6), np.uint16)[:, ::2], np.zeros((0, 2), bool)):
        fields = _Fields.from_address(id(array) + head)
        found = (fields.dimensions, tuple(fields.shape[: array.ndim]), fields.dtype, fields.flags)
        if found != (array.ndim, array.shape, id(array.dtype), array.flags.num):
            return False
        if ctypes.c_size_t.from_address(id(array) + head - 8).value != id(type(array)):
            return False
    return True


@cache
def _maker(found: ctypes.CDLL) -> Callable[..., Callable[..., Any]] | None:
    """Return what makes a function of a table of a kernel's types; None for interpreters of which this is not known."""
    if not _as_expected():
        return None
    given = [_address(getattr(ctypes.pythonapi, name)) for name in _FUNCTIONS]
    given += [id(None), id(_REFUSED), id(np.ndarray), object.__basicsize__]
    found.feedmill_python((ctypes.c_void_p * len(given))(*given))
    methods = {name: _Method(b"kernel", _address(getattr(found, name)), _FASTCALL, None) for name in (_CALL, _OBJECTS)}
    prototype = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.py_object, ctypes.c_void_p)
    new = prototype(("PyCFunction_NewEx", ctypes.pythonapi))

    def make(table: Array, name: str = _CALL) -> Callable[..., Any]:
        function: Callable[..., Any] = new(ctypes.addressof(methods[name]), table, None)
        return function

    return make


def _rule(one: Argument) -> tuple[int, int, int, int]:
    """Return a Rule of the C code."""
    if one.dimensions:
        flags = _CONTIGUOUS | (_WRITABLE if one.out else 0)
        return one.dimensions, id(np.dtype(NUMBERS[one.number])), flags, 0
    types = _SCALARS[one.number][0]
    first, second, third = (id(types[min(k, len(types) - 1)]) for k in range(3))
    return -1 - list(_SCALARS).index(one.number), first, second, third


# --- objects of memory ------------------------------------------------------------------------------------------------


def bytes_at(addresses: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> list[bytes]:
    """Return copies of pieces of memory; the loop is in C, which takes a third of the time of slices of a view.

    Args:
        addresses, lengths: int64[n]; nothing checks them. Bytes at address 0 are not initialized: the caller must fill
            them before it shares them.
    """
    return _made_of(addresses, lengths, text=False)


def texts_at(addresses: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> list[str]:
    """Return the same as text in UTF-8, with "surrogateescape" for other bytes."""
    return _made_of(addresses, lengths, text=True)


def _made_of(addresses: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64], *, text: bool) -> list[Any]:
    found: list[Any] = _in_c(text)(addresses, lengths)
    if found is _REFUSED:  # not contiguous, or not known how to take in C
        pieces = zip(addresses.tolist(), lengths.tolist(), strict=True)
        found = [_text_at(*piece, b"surrogateescape") if text else _bytes_at(*piece) for piece in pieces]
    return found


@cache
def _in_c(text: bool) -> Callable[..., Any]:
    make, one = _maker(library()), _rule(Argument("i64", 1))
    return (lambda *_: _REFUSED) if make is None else make(np.array([1, 2, text, 0, *one, *one], np.int64), _OBJECTS)


_bytes_at, _text_at = ctypes.pythonapi.PyBytes_FromStringAndSize, ctypes.pythonapi.PyUnicode_DecodeUTF8
_bytes_at.restype = _text_at.restype = ctypes.py_object
_bytes_at.argtypes = [ctypes.c_void_p, ctypes.c_ssize_t]
_text_at.argtypes = [*_bytes_at.argtypes, ctypes.c_char_p]


# --- arguments taken in Python: those to copy, those to refuse, and all of other interpreters -------------------------


def _kind(arg: Any) -> Any:
    """Return a cheap key for the type of an argument."""
    if type(arg) is np.ndarray:
        return arg.dtype, arg.ndim, arg.flags.num & (_CONTIGUOUS | _WRITABLE)
    return type(arg)


def _takes(one: Argument, arg: Any) -> bool:
    if not one.dimensions:
        return type(arg) in _SCALARS[one.number][0]
    if type(arg) is not np.ndarray or arg.dtype != NUMBERS[one.number] or arg.ndim != one.dimensions:
        return False
    return not one.out or bool(arg.flags.c_contiguous and arg.flags.writeable)


def _described(arg: Any) -> str:
    if type(arg) is not np.ndarray:
        return type(arg).__name__
    flaws = "" if arg.flags.c_contiguous else ", not contiguous"
    return f"an array of {arg.dtype}, {arg.ndim} dimensions{flaws}{'' if arg.flags.writeable else ', read-only'}"


def _contiguous(call: _Call, strided: list[bool]) -> _Call:
    """Return a call that copies strided arrays, which are inputs."""
    if not any(strided):
        return call
    return lambda args: call(
        tuple(np.ascontiguousarray(arg) if one else arg for arg, one in zip(args, strided, strict=True))
    )


def _call(function: Any, signature: Signature) -> _Call:
    function.argtypes, function.restype = (ctypes.c_char_p,), ctypes.c_int64
    words = ("Q" + "q" * one.dimensions if one.dimensions else _SCALARS[one.number][1] for one in signature.arguments)
    pack, of, returns = struct.Struct("=" + "".join(words)).pack, address_of, signature.returns

    def call(args: tuple[Any, ...]) -> int | None:
        found: list[Any] = []
        for arg in args:
            if type(arg) is np.ndarray:
                found.append(of(arg))
                found += arg.shape
            else:
                found.append(arg)
        try:
            given = pack(*found)
        except struct.error:
            raise OverflowError(f"kernels take numbers of 64 bits, not {[x for x in args if type(x) is int]}") from None
        result: int = function(given)
        return result if returns else None

    return call


# --- the library ------------------------------------------------------------------------------------------------------


@cache
def library() -> ctypes.CDLL:
    """Return the library for this processor, loaded by the first kernel that is called.

    Raises:
        ConfigError: there is none, or it was compiled from other sources than those of this checkout.
    """
    chosen = os.environ.get("FEEDMILL_CPU")
    found = _loaded(chosen or machine())
    if not chosen and hasattr(found, "feedmill_has_v3") and found.feedmill_has_v3():
        found = _loaded("x86_64_v3")
    return found


def _loaded(level: str) -> ctypes.CDLL:
    path, checkout = os.path.join(FOLDER, f"kernels.{level}.so"), os.path.exists(COMPILER)
    again = "Run `make`, or `python tools/kernels/build.py`." if checkout else "Install feedmill again."
    if not os.path.exists(path):
        levels = sorted(name.split(".")[1] for name in os.listdir(FOLDER) if re.fullmatch(r"kernels\..*\.so", name))
        fix = f"Set FEEDMILL_CPU to one of {', '.join(levels)}, or to nothing." if levels else again
        raise ConfigError(f"there are no compiled kernels for the processor level {level!r}", fix=fix)
    found = ctypes.CDLL(path)  # releases the GIL during calls
    if checkout and (ctypes.c_char * 32).in_dll(found, "feedmill_sources").value != fingerprint().encode():
        raise ConfigError("the compiled kernels are older than their sources", file=path, fix=again)
    return found
