"""Interpreter for pickles of `torch.save` that can create data and nothing else.

Source of the opcodes: the comments of CPython's ``pickletools``. Opcodes that are not in `_STEPS` are rejected, and so
is every global that is not in the caller's table. Only functions of this package create values.
"""

from __future__ import annotations

import pickletools
import struct
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

from feedmill.errors import DataError
from feedmill.formats.pth.archive import bad

Maker = Callable[..., Any]

DEEPEST = 100
LARGEST = 1 << 24
COPIED = 1 << 20
"""Maximum number of items copied beyond the bytes of the pickle, which may reference and copy one list many times."""
_LEAVES = (str, int, float, complex, bool, bytes, type(None))
_SIZED = (str, bytes, tuple, list, dict, set)
_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}
_U16, _U32, _I32, _U64, _F64 = (struct.Struct(f) for f in ("<H", "<I", "<i", "<Q", ">d"))


class AllowedGlobal:
    """An allowed global of the pickle, with the function to call for it."""

    __slots__ = ("make", "name", "value")

    def __init__(self, name: str, make: Maker | None, value: Any = None) -> None:
        self.name, self.make, self.value = name, make, value


class _Mark:
    __slots__ = ()


_MARK = _Mark()


class Machine:
    """The state of interpreting one pickle.

    Args:
        names: ``"module name"`` -> allowed global.
        persistent: returns the value of a persistent id.
        build: returns the value that BUILD creates from (value, state), or raises.
    """

    def __init__(
        self,
        data: bytes,
        start: int,
        stop: int,
        names: Mapping[str, AllowedGlobal],
        persistent: Callable[[Any], Any],
        build: Callable[[Any, Any], Any],
    ) -> None:
        self.data, self.at, self.stop, self.begin = data, start, stop, start
        self.names, self.persistent, self.build_value = names, persistent, build
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.left = stop - start + COPIED

    def run(self) -> Any:
        """Return the pickled value and set `at` to its end. Raises `DataError`."""
        data, steps = self.data, _STEPS
        while self.at < self.stop:
            code = data[self.at]
            here = self.at
            self.at += 1
            if code == 0x2E:  # STOP
                if len(self.stack) != 1:
                    raise bad("its pickle does not end with exactly one value")
                return self.stack.pop()
            step = steps.get(code)
            if step is None:
                raise self.refused(code, here)
            try:
                step(self)
            except (IndexError, KeyError, TypeError, ValueError, OverflowError, struct.error) as error:
                raise bad(
                    f"the opcode {_NAMES.get(code)} at byte {here - self.begin} of its pickle is invalid"
                    f" ({type(error).__name__})"
                ) from None
        raise bad("its pickle is truncated")

    def refused(self, code: int, here: int) -> DataError:
        """Return the error for an opcode at an offset."""
        name = _NAMES.get(code, f"0x{code:02x}")
        return DataError(
            f"its pickle has the opcode {name} at byte {here - self.begin}, which tensors and plain data do not need",
            kind="unsafe-pickle",
            fix="Loading it may run code. If you trust it, load it with torch and save plain tensors.",
        )

    def take(self, count: int) -> bytes:
        """Return the next bytes of an opcode's argument."""
        found = self.data[self.at : self.at + count]
        self.at += count
        if self.at > self.stop:
            raise bad("its pickle is truncated")
        return found

    def line(self) -> str:
        """Return an argument that ends at a newline."""
        end = self.data.find(b"\n", self.at, self.stop)
        if end < 0:
            raise bad("its pickle is truncated")
        found = self.data[self.at : end].decode("utf-8", "replace")
        self.at = end + 1
        return found

    def marked(self) -> list[Any]:
        """Return the values above the last mark."""
        stack = self.stack
        at = len(stack) - 1
        while stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise IndexError
        found = stack[at + 1 :]
        del stack[at:]
        return found

    def pop(self) -> Any:
        """Return the value on top of the stack. Raises if it is a mark."""
        found = self.stack.pop()
        if found is _MARK:
            raise ValueError
        return found

    def named(self, module: str, name: str) -> None:
        """Push an allowed global. Raises `DataError` for other names; nothing is imported."""
        found = self.names.get(f"{module} {name}")
        if found is None:
            raise DataError(
                f"its pickle names {module}.{name}, which is neither a tensor nor plain data"[:300],
                kind="unsafe-pickle",
                fix="Loading it may run code. If you trust it, load it with torch and save plain tensors.",
            )
        self.stack.append(found if found.value is None else found.value)

    def reduce(self) -> None:
        """Call an allowed global with its arguments. Raises `DataError` for any other callable."""
        arguments, called = self.pop(), self.pop()
        if not isinstance(called, AllowedGlobal) or called.make is None or not isinstance(arguments, tuple):
            raise DataError(
                f"its pickle calls {getattr(called, 'name', type(called).__name__)}, which does not create data",
                kind="unsafe-pickle",
                fix="Loading it may run code, so it is not read.",
            )
        self.left -= sum(len(argument) for argument in arguments if isinstance(argument, _SIZED))
        if self.left < 0:
            raise DataError(
                "its pickle copies the same value many times",
                kind="expands-too-far",
                fix="The file may be malicious. Save it again with torch.save.",
            )
        self.stack.append(called.make(*arguments))

    def put(self, number: int) -> None:
        """Store the value on top of the stack under a number of the memo."""
        self.memo[number] = self.stack[-1]

    def set_items(self, items: list[Any]) -> None:
        """Set keys and values, in turns, on the dict on top of the stack. Raises `TypeError` for other types."""
        target = self.stack[-1]
        if type(target) not in (dict, OrderedDict) or len(items) % 2:
            raise TypeError
        for key, value in zip(items[::2], items[1::2], strict=True):
            target[hashable(key)] = value

    def extend(self, items: list[Any]) -> None:
        """Append to the list on top of the stack. Raises `TypeError` for other types."""
        target = self.stack[-1]
        if type(target) is not list:
            raise TypeError
        target.extend(items)

    def add(self, items: list[Any]) -> None:
        """Add to the set on top of the stack. Raises `TypeError` for other types."""
        target = self.stack[-1]
        if type(target) is not set:
            raise TypeError
        target.update(map(hashable, items))

    def build(self) -> None:
        """Set the state on top of the stack on the value below it."""
        state = self.pop()
        self.stack[-1] = self.build_value(self.stack[-1], state)


def hashable(key: Any) -> Any:
    """Return a dict key if it is plain or a flat tuple (hashing a deep one could exhaust the C stack).

    Raises `TypeError` otherwise.
    """
    if isinstance(key, _LEAVES) or (type(key) is tuple and all(isinstance(part, _LEAVES) for part in key)):
        return key
    raise TypeError


def _push(make: Callable[[Machine], Any]) -> Callable[[Machine], None]:
    return lambda m: m.stack.append(make(m))


def _tuple(count: int) -> Callable[[Machine], None]:
    def step(m: Machine) -> None:
        items = [m.pop() for _ in range(count)]
        m.stack.append(tuple(reversed(items)))

    return step


def _text(size: struct.Struct | None) -> Callable[[Machine], Any]:
    def read(m: Machine) -> str:
        length = m.take(1)[0] if size is None else size.unpack(m.take(size.size))[0]
        return m.take(length).decode("utf-8", "surrogatepass")

    return read


def _bytes(size: struct.Struct | None) -> Callable[[Machine], Any]:
    return lambda m: m.take(m.take(1)[0] if size is None else size.unpack(m.take(size.size))[0])


def _global(m: Machine) -> None:
    module = m.line()
    m.named(module, m.line())


def _stack_global(m: Machine) -> None:
    name, module = m.pop(), m.pop()
    if type(name) is not str or type(module) is not str:
        raise TypeError
    m.named(module, name)


def _protocol(m: Machine) -> None:
    if not 2 <= m.take(1)[0] <= 5:
        raise bad("its pickle is of a protocol other than 2 to 5")


def _frame(m: Machine) -> None:
    if _U64.unpack(m.take(8))[0] > m.stop - m.at:
        raise bad("its pickle is truncated")


def _duplicate(m: Machine) -> None:
    m.stack.append(m.stack[-1])


def _drop(m: Machine) -> None:
    m.stack.pop()


def _one_item(m: Machine) -> None:
    value, key = m.pop(), m.pop()
    m.set_items([key, value])


def _one_more(m: Machine) -> None:
    m.extend([m.pop()])


_STEPS: dict[int, Callable[[Machine], None]] = {
    0x80: _protocol,
    0x95: _frame,
    ord("("): lambda m: m.stack.append(_MARK),
    ord("0"): _drop,
    ord("2"): _duplicate,
    ord("N"): _push(lambda _: None),
    0x88: _push(lambda _: True),
    0x89: _push(lambda _: False),
    ord("J"): _push(lambda m: _I32.unpack(m.take(4))[0]),
    ord("K"): _push(lambda m: m.take(1)[0]),
    ord("M"): _push(lambda m: _U16.unpack(m.take(2))[0]),
    0x8A: _push(lambda m: int.from_bytes(m.take(m.take(1)[0]), "little", signed=True)),
    ord("G"): _push(lambda m: _F64.unpack(m.take(8))[0]),
    ord("X"): _push(_text(_U32)),
    0x8C: _push(_text(None)),
    0x8D: _push(_text(_U64)),
    ord("U"): _push(_text(None)),
    ord("T"): _push(_text(_U32)),
    ord("B"): _push(_bytes(_U32)),
    ord("C"): _push(_bytes(None)),
    0x8E: _push(_bytes(_U64)),
    ord("]"): _push(lambda _: []),
    ord("}"): _push(lambda _: {}),
    ord(")"): _push(lambda _: ()),
    0x8F: _push(lambda _: set()),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("t"): lambda m: m.stack.append(tuple(m.marked())),
    ord("a"): _one_more,
    ord("e"): lambda m: m.extend(m.marked()),
    ord("s"): _one_item,
    ord("u"): lambda m: m.set_items(m.marked()),
    0x90: lambda m: m.add(m.marked()),
    ord("h"): lambda m: m.stack.append(m.memo[m.take(1)[0]]),
    ord("j"): lambda m: m.stack.append(m.memo[_U32.unpack(m.take(4))[0]]),
    ord("q"): lambda m: m.put(m.take(1)[0]),
    ord("r"): lambda m: m.put(_U32.unpack(m.take(4))[0]),
    0x94: lambda m: m.put(len(m.memo)),
    ord("c"): _global,
    0x93: _stack_global,
    ord("R"): Machine.reduce,
    ord("b"): Machine.build,
    ord("Q"): lambda m: m.stack.append(m.persistent(m.pop())),
}


def check_size(value: Any) -> None:
    """Check that a value does not contain itself, is not nested too deeply, and is not too large when expanded.

    A pickle may reference one list many times, and each of those lists too.

    Raises:
        DataError: a check fails, or the value contains something other than data.
    """
    sizes: dict[int, tuple[int, int]] = {}
    open_: set[int] = set()
    stack: list[tuple[Any, bool]] = [(value, False)]
    while stack:
        item, done = stack.pop()
        kind = type(item)
        if kind not in (list, tuple, dict, OrderedDict, set):
            if isinstance(item, AllowedGlobal | _Mark):
                raise bad(f"its value has {getattr(item, 'name', 'a mark')} in it, which is not data")
            continue
        inside = list(item.values()) if kind in (dict, OrderedDict) else list(item)
        if done:
            open_.discard(id(item))
            known = [sizes.get(id(part), (1, 0)) for part in inside]
            total, deep = 1 + sum(size for size, _ in known), 1 + max((depth for _, depth in known), default=0)
            sizes[id(item)] = total, deep
            if total > LARGEST or deep > DEEPEST:
                what = f"{total:,} items" if total > LARGEST else f"{deep} levels"
                raise DataError(
                    f"its value would have {what} when expanded", kind="expands-too-far", fix="Save less data per file."
                )
        elif id(item) in open_:
            raise DataError("its value contains itself", kind="expands-too-far", fix="Save plain data.")
        elif id(item) not in sizes:
            open_.add(id(item))
            stack.append((item, True))
            stack += [(part, False) for part in inside]
