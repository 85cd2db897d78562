"""What becomes of the ids of a batch, whatever engine gave them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from feedmill.documents.batch import Batch
from feedmill.tokens.encode import Encoding, encode_batch
from feedmill.tokens.engines import Encoded, Vocabulary
from feedmill.tokens.kinds.model import Model
from feedmill.tokens.tokenizer import Tokenizer

BOS, EOS = 1, 2


class Letters:
    """One id a letter: the digit itself."""

    def encode(self, texts: list[str], template: bool, ordinary: bool) -> Encoded:
        ids = [int(letter) for text in texts for letter in text if letter.isdigit()]
        lengths = [sum(map(str.isdigit, text)) for text in texts]
        return Encoded(np.array(ids, np.uint32), np.array(lengths, np.int64))

    def decode(self, ids: list[int], skip_special: bool) -> str:
        return "".join(map(str, ids))


def tokenizer() -> Tokenizer:
    words = Vocabulary({str(i): i for i in range(10)}, 10, {})
    model = Model("letters", "0", words, "hf", Letters, None)
    return Tokenizer(Letters(), model, name="letters", path=Path("letters"), backend="hf")


@given(
    st.lists(st.text("129x", max_size=6), max_size=5),
    st.sampled_from([None, BOS]),
    st.sampled_from([None, EOS]),
    st.booleans(),
    st.booleans(),
)
def test_bos_and_eos_stand_around_each_document(
    texts: list[str], bos: int | None, eos: int | None, always: bool, keep_empty: bool
) -> None:
    how = Encoding(bos, eos, always, True, False, 8, "<u2", keep_empty=keep_empty)
    batch = Batch(texts, list(range(len(texts))))
    found = encode_batch(tokenizer(), how, batch)
    wanted: list[list[int]] = []
    bad = []
    for row, text in enumerate(texts):
        ids = [int(letter) for letter in text if letter != "x"]
        if 9 in ids or not (ids or keep_empty):
            bad.append(row)
            continue
        if ids:
            first: list[Any] = [bos] if bos and (always or ids[0] != bos) else []
            last: list[Any] = [eos] if eos and (always or ids[-1] != eos) else []
            ids = first + ids + last
        wanted.append(ids)
    assert np.frombuffer(found.data, "<u2").tolist() == [i for ids in wanted for i in ids]
    assert found.lengths.tolist() == [len(ids) for ids in wanted]
    assert sorted(row for row, _ in batch.bad) == bad
    assert (list(range(len(texts))) if found.kept is None else found.kept) == [
        row for row in range(len(texts)) if row not in bad
    ]
