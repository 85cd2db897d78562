"""Blocks of JSON rows that a decoder of lines may be given: a row ends where a line does, and no ``-0`` is a number.

Why the ends of rows are enough: see `feedmill.formats.documents.one_a_line`.
"""

from __future__ import annotations

import numpy as np


def plain_rows(lines: bytes) -> int:
    """How many rows of whole lines there are, if they are JSON; -1 where a line does not begin with ``{`` and end with
    ``}``, or has a ``-0`` where a number might be.

    >>> plain_rows(b'{"a":1}\\n{"a":-0.5}\\n'), plain_rows(b'{"a":-0}\\n'), plain_rows(b'{"a":\\n1}\\n')
    (2, -1, -1)
    """
    from feedmill.kernels.jsonl.plainrows_compiled import count_rows

    return int(count_rows(np.frombuffer(lines, np.uint8)))
