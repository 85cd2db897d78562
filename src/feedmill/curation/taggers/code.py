"""Source code: copyright comments, and statistics of lines and characters."""

from __future__ import annotations

import numpy as np

from feedmill.curation.documents import Batch
from feedmill.curation.registry import register
from feedmill.curation.spans import Spans
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.text import characters
from feedmill.kernels.text.lengths import count_pieces

_KINDS = ("copyright_notice", "comment_block", "doc")


@register("code_copyright_comments_v1")
def code_copyright_comments(batch: Batch) -> Spans:
    """Tag the first block comment if it mentions copyright, or else the comment lines at the beginning of the text."""
    return Spans.of_lists(_KINDS, [_comments(text, batch.exact) for text in batch.texts])


def _comments(text: str, exact: bool) -> list[tuple[int, int, int, float]]:
    found: list[tuple[int, int, int, float]] = []
    begin = text.find("/*")
    end = text.find("*/", begin + 2) + 2 if begin >= 0 else 1
    if end > 1:  # there is a comment
        if "copyright" in text[begin:end].lower():
            found.append((0, begin, end, 1.0))
    else:
        end = 0
        for line in text.split("\n"):
            if line and not line.startswith(("//", "#", "--")):
                break
            # Dolma does not count the newlines of lines that are not empty, and counts one past the end of the text.
            end += (len(line) or 1) if exact else len(line) + 1
        end = end if exact else min(end, len(text))
        if end:
            found.append((1, 0, end, 1.0))
    share = 0.0
    if found:
        _, start, end, _ = found[0]
        share = (end - start + exact) / len(text) if text else -1.0
    elif not text:
        share = -1.0
    return [*found, (2, 0, len(text), share)]


@register("code_redpajama_taggers_v1")
def code_redpajama(batch: Batch) -> Spans:
    """Score each document by its line lengths and its shares of letters and digits."""
    table = characters.table()
    pieces = count_pieces(batch.codes, batch.offsets[:-1], batch.offsets[1:], table) + 1
    bits = table[batch.codes]
    alnum, alpha = (np.diff(bounds_of(bits & bit != 0)[batch.offsets]) for bit in (characters.ALNUM, characters.ALPHA))
    lines = [[len(line) for line in text.splitlines()] or [0] for text in batch.texts]
    return Spans.of_documents(
        batch.lengths,
        max_line_length_doc=[max(sizes) for sizes in lines],
        avg_line_length_doc=[sum(sizes) / len(sizes) for sizes in lines],
        alnum_prop_doc=alnum / np.maximum(batch.lengths, 1),
        alpha_token_prop_doc=alpha / pieces,
    )
