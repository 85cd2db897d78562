"""Fast extraction of the texts of JSON lines, unescaped."""

from __future__ import annotations

import json

import numpy as np

_LEAST = len('{"":"x"}')  # the shortest line, without the name


class TextTaker:
    """Extractor of the texts from blocks of lines.

    Args:
        name: the member of each object that holds its text.
    """

    def __init__(self, name: str) -> None:
        self._key = np.frombuffer(json.dumps(name, ensure_ascii=False).encode(errors="surrogatepass")[1:-1], np.uint8)
        self._out, self._ends = np.empty(0, np.uint8), np.empty(0, np.int64)

    def take(self, block: bytes | memoryview) -> list[str] | None:
        """Return the texts of whole lines, all different from the empty one; None if one of the lines is not plain.

        A line is plain where it is an object by RFC 8259 with such a member, a text, once; where nothing nests deeper
        than 65, no name of its own is escaped and the text has no escaped NUL. Nothing is known of the others.

        >>> lines = b'{"id": [1], "text": "a\\\\u00e9\\\\n"}\\n'
        >>> TextTaker("text").take(lines), TextTaker("id").take(lines)
        (['aé\\n'], None)
        """
        from feedmill.kernels.jsonl.jsontexts_compiled import take_texts

        if len(self._out) < len(block) + 64:
            self._out = np.empty(len(block) + 64, np.uint8)
            self._ends = np.empty(len(block) // (_LEAST + len(self._key)) + 1, np.int64)
        rows = take_texts(np.frombuffer(block, np.uint8), self._key, self._out, self._ends)
        if rows < 0:
            return None
        out, ends = self._out.data, self._ends[:rows].tolist()
        try:
            return [str(out[begin:end], "utf-8") for begin, end in zip([0, *ends], ends, strict=False)]
        except UnicodeDecodeError:
            return None
