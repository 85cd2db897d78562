"""Several threads that read a class for the first time at once."""

from __future__ import annotations

import sys

import pytest

from helpers import warm

CLASSES = """
from __future__ import annotations
import msgspec
from typing import NamedTuple

class Pair(NamedTuple):
    a: int
    b: str

class Inner(msgspec.Struct):
    x: int = 0
    pair: Pair | None = None

class Row(msgspec.Struct):
    id: str
    inner: Inner | None = None
    pairs: list[Pair] = []
    text: str = ""
"""
PROGRAM = """
import sys, threading, types
import msgspec
from feedmill.structs import convert_as, decode_as, decoder_of, unpack_as

plain = {"id": "a", "inner": {"x": 4, "pair": [1, "b"]}, "pairs": [[1, "c"]], "text": "z"}
json, packed = msgspec.json.encode(plain), msgspec.msgpack.encode(plain)
reads = {
    "decode_as": lambda kind: decode_as(json, kind),
    "unpack_as": lambda kind: unpack_as(packed, kind),
    "convert_as": lambda kind: convert_as(plain, kind),
    "decoder_of": lambda kind: decoder_of(kind).decode(json),
}
name, times = sys.argv[1], int(sys.argv[2])
sys.setswitchinterval(1e-6)
for number in range(times):
    module = sys.modules[f"m{number}"] = types.ModuleType(f"m{number}")
    exec(CLASSES, module.__dict__)
    found, together = [], threading.Barrier(4)

    def work():
        together.wait()
        found.append(reads[name](module.Row))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    row = module.Row("a", module.Inner(4, module.Pair(1, "b")), [module.Pair(1, "c")], "z")
    assert found == [row] * 4, found
"""


@pytest.mark.parametrize("name", ["decode_as", "unpack_as", "convert_as", "decoder_of"])
def test_threads_may_read_a_class_first(name: str) -> None:
    program = f"CLASSES = {CLASSES!r}\n" + PROGRAM
    done = warm.run([sys.executable, "-c", program, name, "50"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
