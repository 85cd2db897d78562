"""Check whether blocks of JSON rows can be decoded as lines: each line is one row, and no number is ``-0``.

`feedmill.formats.documents.one_a_line` explains why checking both ends of lines is sufficient.
"""

from __future__ import annotations

import numpy as np


def plain_rows(lines: bytes) -> int:
    """Return the number of rows of whole lines, if they are JSON.

    Returns -1 if a line does not begin with ``{`` and end with ``}``, or has a ``-0`` that may be a number.

    >>> plain_rows(b'{"a":1}\\n{"a":-0.5}\\n'), plain_rows(b'{"a":-0}\\n'), plain_rows(b'{"a":\\n1}\\n')
    (2, -1, -1)
    """
    from feedmill.kernels.jsonl.plainrows_compiled import count_rows

    return int(count_rows(np.frombuffer(lines, np.uint8)))
