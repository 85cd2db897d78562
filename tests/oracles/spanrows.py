"""Attribute rows of spans in plain Python, see `feedmill.kernels.jsonl.spanrows`."""

from __future__ import annotations

from collections.abc import Sequence


def span_rows(
    ids: Sequence[bytes], bare: Sequence[bool], spans: Sequence[tuple[int, int, int, bytes]], name: bytes
) -> bytes:
    """Return the rows, each with its line end.

    Args:
        ids: id of each row, JSON.
        bare: whether a row without spans has no list of spans.
        spans: (row, start, end, score as JSON), ordered by row.
        name: name of the attribute, JSON.
    """
    lists: list[list[bytes]] = [[] for _ in ids]
    for row, start, end, score in spans:
        lists[row].append(b"[%d,%d,%b]" % (start, end, score))
    out = []
    for one, without, found in zip(ids, bare, lists, strict=True):
        inner = b"" if without and not found else name + b":[" + b",".join(found) + b"]"
        out.append(b'{"attributes":{' + inner + b'},"id":' + one + b"}\n")
    return b"".join(out)
