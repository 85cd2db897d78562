"""Damage: bytes flipped, cut, spliced, lengths edited, and edits that keep the outer structure whole."""

from __future__ import annotations

import gzip
import json
import random
import struct
from collections.abc import Callable
from typing import Any

import yaml
from backports import zstd

ODD_NUMBERS = [0, 1, -1, 2, 127, 128, 255, 256, 65_535, 65_536, 2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**63 - 1, 2**63]
ODD_VALUES: list[Any] = [
    None, True, 0, -1, 1.5, 1e308, float("nan"), 2**31, 2**63, 2**64, 10**400, "", "x", "\0", "ü" * 300, "../../etc/passwd",
    "/etc/passwd", "pipe:touch ran", "{0..9999999}", "{a,{b,{c,d}}}" * 3, "${x}", "*", "..", ".", "~", "s3://b/x", "1e9999",
    "[" * 50, "$..*", "\ud800", [], {}, [[]], [None], {"": ""}, {"a": {"a": {"a": {}}}}, [0] * 1000, "[0" * 300, "9" * 5000,
]  # fmt: skip
TOKENS = [
    b"\0", b"\xff", b"\xff" * 8, b"\x80" * 16, b"{", b"[" * 3000, b'{"a":' * 3000, b"\n", b"\r\n", b",", b'"', b"\\", b"\\ud800",
    b"NaN", b"-Infinity", b"1e999", b"9" * 5000, b"&a [*a, *a]", b"*a", b"!!python/object/apply:os.system [touch ran]", b"--- ",
    b"? ", b": ", b"- ", b"<<: *a", b"PK\x03\x04", b"PK\x05\x06", b"\x1f\x8b\x08", b"\x28\xb5\x2f\xfd", b"\x93NUMPY\x01\x00",
    b"ustar\x0000", b"ustar  \0", b"ARROW1", b"PAR1", b"SQLite format 3\0", b"cos\nsystem\n(S'touch ran'\ntR.", b"\x80\x02",
    b"../", b"/etc/passwd", b"GNU.sparse.realsize=99999999999\n", b"MMIDIDX\0\0", b"{'descr': '|O', 'fortran_order': False, ",
]  # fmt: skip


def mutated(data: bytes, name: str, rng: random.Random) -> bytes:
    """The bytes of a file of this name, damaged once to four times."""
    special = [change for ends, change in _BY_NAME if name.endswith(ends)]
    if special and rng.random() < 0.55:
        try:
            return rng.choice(special)(data, rng)
        except (
            ValueError,
            TypeError,
            OSError,
            EOFError,
            RecursionError,
            OverflowError,
            yaml.YAMLError,
            zstd.ZstdError,
            LookupError,
        ):
            pass  # it is no longer of its kind
    return _bytes(data, rng)


def _bytes(data: bytes, rng: random.Random) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        rng.choice(_CHANGES)(out, rng)
    return bytes(out)


def _place(out: bytearray, rng: random.Random) -> int:
    """Heads and tails are where lengths stand."""
    size = len(out)
    if size < 2:
        return 0
    near = min(size, 96)
    return rng.choice((rng.randrange(size), rng.randrange(near), size - 1 - rng.randrange(near)))


def _flip(out: bytearray, rng: random.Random) -> None:
    if out:
        out[_place(out, rng)] ^= 1 << rng.randrange(8)


def _byte(out: bytearray, rng: random.Random) -> None:
    if out:
        out[_place(out, rng)] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))


def _cut(out: bytearray, rng: random.Random) -> None:
    del out[_place(out, rng) :]


def _remove(out: bytearray, rng: random.Random) -> None:
    at = _place(out, rng)
    del out[at : at + rng.choice((1, 2, 4, 8, 64, 512))]


def _repeat(out: bytearray, rng: random.Random) -> None:
    at, size = _place(out, rng), rng.choice((1, 4, 16, 128, 512))
    out[at:at] = out[at : at + size] * rng.choice((1, 2, 50))


def _splice(out: bytearray, rng: random.Random) -> None:
    at, source, size = _place(out, rng), _place(out, rng), rng.choice((1, 4, 8, 32, 512))
    out[at : at + size] = out[source : source + size]


def _length(out: bytearray, rng: random.Random) -> None:
    number, size = rng.choice(ODD_NUMBERS), rng.choice((1, 2, 4, 8))
    at = _place(out, rng) // size * size
    whole = (number % (1 << 8 * size)).to_bytes(size, rng.choice(("little", "big")))
    out[at : at + size] = whole


def _near(out: bytearray, rng: random.Random) -> None:
    """A little-endian number somewhat more or less than it was."""
    size = rng.choice((2, 4, 8))
    at = _place(out, rng)
    if at + size <= len(out):
        number = int.from_bytes(out[at : at + size], "little") + rng.choice((-2, -1, 1, 2, 16, 1 << 12, 1 << 20))
        out[at : at + size] = (number % (1 << 8 * size)).to_bytes(size, "little")


def _token(out: bytearray, rng: random.Random) -> None:
    at, token = _place(out, rng), rng.choice(TOKENS)
    out[at : at + rng.choice((0, len(token)))] = token


def _digits(out: bytearray, rng: random.Random) -> None:
    """A number in text, or in octal, is another one."""
    places = [i for i, byte in enumerate(out) if 0x30 <= byte <= 0x39]
    if places:
        at = rng.choice(places)
        out[at : at + 1] = rng.choice((b"9", b"0", b"-", b"7", b"99999999", b"1.5", b"e"))


_CHANGES: list[Callable[[bytearray, random.Random], None]] = [
    _flip, _flip, _byte, _byte, _cut, _remove, _repeat, _splice, _length, _length, _near, _token, _token, _digits,
]  # fmt: skip


def _nodes(tree: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a tree."""
    found, todo = [], [tree]
    while todo and len(found) < 10_000:  # what names itself in YAML has no end
        one = todo.pop()
        if isinstance(one, dict | list):
            items = list(one.items() if isinstance(one, dict) else enumerate(one))
            found += [(one, key) for key, _ in items]
            todo += [value for _, value in items]
    return found


def _changed_tree(tree: Any, rng: random.Random) -> Any:
    for _ in range(rng.choice((1, 1, 2, 3))):
        nodes = _nodes(tree)
        if not nodes:
            return rng.choice(ODD_VALUES)
        holder, key = rng.choice(nodes)
        way = rng.random()
        if way < 0.6:
            holder[key] = rng.choice(ODD_VALUES)
        elif way < 0.75:
            del holder[key]
        elif way < 0.85 and isinstance(holder, dict):
            holder[rng.choice(("", "x", f"{key}s", "__class__"))] = holder.pop(key)
        elif way < 0.95:
            other, name = rng.choice(nodes)
            holder[key] = json.loads(json.dumps(other.get(name) if isinstance(other, dict) else other[name]))
        else:
            for _ in range(rng.choice((5, 90, 200, 900))):
                holder[key] = [holder[key]]
    return tree


def _json(data: bytes, rng: random.Random) -> bytes:
    return json.dumps(_changed_tree(json.loads(data), rng)).encode()


def _json_line(data: bytes, rng: random.Random) -> bytes:
    lines = data.split(b"\n")
    at = rng.randrange(max(1, len(lines) - 1))
    lines[at] = _json(lines[at], rng) if rng.random() < 0.7 else _bytes(lines[at], rng)
    return b"\n".join(lines)


def _yaml(data: bytes, rng: random.Random) -> bytes:
    if rng.random() < 0.25:
        lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
        lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 10)]
        bomb = "\n".join(lines).encode()
        return rng.choice((bomb + b"\n" + data, data + b"\n" + bomb, b"[" * 100_000, data + b"\nz: " + b"{a: " * 900))
    return yaml.dump(_changed_tree(yaml.safe_load(data), rng), sort_keys=False, allow_unicode=True).encode(
        "utf-8", "replace"
    )


def _tar(data: bytes, rng: random.Random) -> bytes:
    """Fields of a header changed, and its sum made right."""
    out = bytearray(data)
    heads = [at for at in range(0, len(out) - 511, 512) if out[at + 257 : at + 262] == b"ustar"]
    at = rng.choice(heads)
    begin, size = rng.choice(((0, 100), (100, 8), (108, 8), (124, 12), (136, 12), (156, 1), (157, 100), (257, 8), (345, 155), (386, 97), (483, 12)))  # fmt: skip
    old = bytes(out[at + begin : at + begin + size])
    new = rng.choice((b"%011o" % rng.choice(ODD_NUMBERS), b"\x80" + (rng.choice(ODD_NUMBERS) % 2**64).to_bytes(11, "big"), b"\xff" * size,
                      rng.choice((b"S", b"x", b"g", b"L", b"K", b"5", b"\0", b"1", b"V")), b"../../x.txt", bytes(size), _bytes(old, rng)))  # fmt: skip
    out[at + begin : at + begin + size] = new[:size].ljust(size, b"\0")
    out[at + 148 : at + 156] = b" " * 8
    out[at + 148 : at + 156] = b"%06o\0 " % (sum(out[at : at + 512]) % 0o1000000)
    return bytes(out)


_BOMBS: dict[str, bytes] = {}


def _bomb(kind: str) -> bytes:
    """300 MB of one line."""
    if kind not in _BOMBS:
        text = b'{"id": "a", "text": "' + b"a" * (300 << 20) + b'"}'
        _BOMBS[kind] = gzip.compress(text, 6) if kind == "gz" else zstd.compress(text)
    return _BOMBS[kind]


def _packed(kind: str) -> Callable[[bytes, random.Random], bytes]:
    def change(data: bytes, rng: random.Random) -> bytes:
        if rng.random() < 0.03:
            return _bomb(kind)
        inner = gzip.decompress(data) if kind == "gz" else zstd.decompress(data)
        inner = _json_line(inner, rng) if inner[:1] == b"{" else _bytes(inner, rng)
        return gzip.compress(inner, 1) if kind == "gz" else zstd.compress(inner)

    return change


def _zip(data: bytes, rng: random.Random) -> bytes:
    """Sizes, methods and offsets in the directory of a zip."""
    out = bytearray(data)
    begins = [at for mark in (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06") for at in _all(data, mark)]
    at = rng.choice(begins) + rng.choice((4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30, 42))
    out[at : at + 4] = struct.pack("<I", rng.choice(ODD_NUMBERS) % (1 << 32))
    return bytes(out)


def _all(data: bytes, mark: bytes) -> list[int]:
    found, at = [], data.find(mark)
    while at >= 0:
        found.append(at)
        at = data.find(mark, at + 1)
    return found


_BY_NAME: list[tuple[tuple[str, ...], Callable[[bytes, random.Random], bytes]]] = [
    ((".json", ".manifest", "state"), _json),
    ((".jsonl",), _json_line),
    ((".yaml", ".yml"), _yaml),
    ((".tar",), _tar),
    ((".gz",), _packed("gz")),
    ((".zst", ".zstd"), _packed("zst")),
    ((".npz", ".pth"), _zip),
]
