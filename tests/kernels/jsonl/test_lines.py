"""The line index against a plain loop."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.kernels.jsonl import lines
from helpers.durations import examples

LINE = st.sampled_from(
    [b"{}", b'{"a":1}', b"", b"  ", b"\t", b' {"a": 2} ', b'{"x": "\xc3\xa9"}\r', b"[1]", b"{", b"}"]
)


def plain(data: bytes) -> tuple[list[int], list[int]]:
    starts, bad, at = [], [], 0
    for line in data.splitlines(keepends=True) if b"\r" not in data else data.split(b"\n"):
        text = line.strip()
        if text:
            starts.append(at)
            if not (text[:1] == b"{" and text[-1:] == b"}" and len(text) > 1):
                bad.append(at)
        at += len(line) + (b"\r" in data)
    if starts:
        starts[0] = 0
    return [*starts, len(data)], bad


@settings(max_examples=examples(200), deadline=None)
@given(st.lists(LINE, max_size=20), st.booleans(), st.integers(1, 9))
def test_index_equals_a_plain_loop(parts: list[bytes], final: bool, step: int) -> None:
    data = b"\n".join(parts) + (b"\n" if final else b"")
    if not data:
        return
    before, lines.STEP = lines.STEP, step
    try:
        found = lines.index_lines(np.frombuffer(data, np.uint8))
    finally:
        lines.STEP = before
    starts, bad = plain(data)
    assert found.starts.tolist() == starts
    assert found.bad.tolist() == bad
