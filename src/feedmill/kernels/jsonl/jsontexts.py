"""Fast extraction of the texts of JSON lines, unescaped."""

from __future__ import annotations

import json

import numpy as np

_LEAST = len('{"":"x"}')  # length of the shortest line, without the name


class TextTaker:
    """Extractor of the texts from blocks of lines.

    Args:
        name: key of the text in each object.
    """

    def __init__(self, name: str) -> None:
        self._key = np.frombuffer(json.dumps(name, ensure_ascii=False).encode(errors="surrogatepass")[1:-1], np.uint8)
        self._out, self._ends = np.empty(0, np.uint8), np.empty(0, np.int64)

    def take(self, block: bytes | memoryview) -> list[str] | None:
        """Return the texts of whole lines, none of them empty; None if any line is not plain.

        A line is plain if it is an object by RFC 8259 that has the key exactly once, with a string, nests at most 65
        deep, has no escaped top-level keys, and has no escaped NUL in the text. Other lines may be valid or invalid.

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
