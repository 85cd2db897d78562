"""What is compared of texts to find repeated substrings: their bytes, or their tokens.

A token is compared as four bytes, so what finds equal windows of bytes finds equal windows of tokens. Those that do not
begin with a token are left out. Tokens that stand for what the vocabulary lacks are compared by their text.

A span has the characters of its tokens, by the places that the tokenizer gives them, but for characters of which a
token beside the span has a part.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.curation.dedupe.units import joined
from feedmill.curation.options import TOKEN, Dedupe
from feedmill.errors import ConfigError, DataError, FeedmillError
from feedmill.formats.arrays import Arrays
from feedmill.kernels.bounds import bounds_of
from feedmill.kernels.hashing import windows
from feedmill.provided import provided

Ints = npt.NDArray[np.int64]
Ints32 = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]
UNKNOWN = 1 << 31
"""Bit of the hash of a text that the vocabulary lacks."""


def identified(options: Dedupe) -> Dedupe:
    """Return the options with the identity of their tokenizer, and its path for all processes.

    Raises:
        FeedmillError: See `feedmill.tokens.tokenizer.load_tokenizer`; or the tokenizer does not say where its tokens
            are in a text.
    """
    given = os.fspath(options.tokenizer or "")
    path = os.path.abspath(given) if os.path.exists(given) else given
    _loaded.cache_clear()  # the file may have changed since the last run
    tokenizer = _loaded(path)
    tokenizer.offsets("a")
    return replace(options, tokenizer=path, tokenized=_identity(tokenizer))


@lru_cache(maxsize=2)
def _loaded(path: str) -> Any:
    """Return a tokenizer, without the tokens that its template adds."""
    try:
        tokenizer = provided("load_tokenizer")(path, template_source="file")
    except ConfigError as error:
        if "--tokenizer-pattern" not in (error.fix or ""):
            raise
        raise ConfigError(error.what, file=error.file, kind=error.kind, fix="Use its tokenizer.json.") from None
    tokenizer.template = False
    return tokenizer


def _tokenizer(path: str, identity: str | None) -> Any:
    """Return the tokenizer of a run. Raises `FeedmillError` if it is another one here."""
    tokenizer = _loaded(path)
    if _identity(tokenizer) != identity:  # of an earlier run in this process
        _loaded.cache_clear()
        tokenizer = _loaded(path)
    found = _identity(tokenizer)
    if found != identity:
        raise FeedmillError(
            f"the tokenizer is not the one with which the run began: expected {identity}, found {found}",
            file=path,
            fix="Use the same file and package everywhere, or run the command again.",
        )
    return tokenizer


def _identity(tokenizer: Any) -> str:
    versions = ",".join(f"{name}={number}" for name, number in sorted(tokenizer.versions().items()))
    return f"{tokenizer.hash} {tokenizer.backend} {versions}"


@dataclass(slots=True)
class Texts:
    """Texts of a block as what is compared.

    Attributes:
        texts: The texts.
        file: File name for error messages.
        data: uint8[bytes + 8]: UTF-8, or `TOKEN` bytes for each token.
        ids: The tokens, uint32[tokens].
        offsets: Of each text in it, and of the end of the last one, int64[texts + 1].
        least: Bytes, or tokens, of a window.
        tokenizer: What made the tokens, or None.
    """

    texts: Sequence[str]
    file: str
    data: npt.NDArray[np.uint8]
    offsets: Ints
    least: int
    tokenizer: Any
    ids: npt.NDArray[np.uint32]

    @classmethod
    def of(cls, texts: list[str], options: Dedupe, file: str) -> Texts:
        """Return the bytes or tokens of texts."""
        if options.tokenizer is None:
            return cls(texts, file, *joined(texts), options.length, None, np.empty(0, np.uint32))
        tokenizer = _tokenizer(os.fspath(options.tokenizer), options.tokenized)
        none = (np.empty(0, np.uint32), np.empty(0, np.int64))
        ids, lengths = tokenizer.encode(texts, placed=True) if texts else none
        found = cls(texts, file, np.empty(0, np.uint8), bounds_of(TOKEN * lengths), options.length, tokenizer, ids)
        values = np.append(ids, np.zeros(2, np.uint32)).astype("<u4")
        unknown = np.flatnonzero(ids == tokenizer.unknown) if tokenizer.unknown is not None else np.empty(0, np.int64)
        rows = np.searchsorted(found.offsets, TOKEN * unknown, side="right") - 1
        for row in np.unique(rows).tolist():
            places = found.places(row)
            for at in unknown[rows == row].tolist():
                low, high = places[at - found.offsets[row] // TOKEN].tolist()
                values[at] = UNKNOWN | xxhash.xxh32_intdigest(texts[row][low:high].encode())
        found.data = values.view(np.uint8)
        return found

    def places(self, row: int) -> Ints:
        """Return the characters of each token of a text, int64[tokens, 2].

        Raises:
            DataError: The tokenizer does not say where its tokens are in a text.
        """
        text, (low, high) = self.texts[row], (self.offsets[row : row + 2] // TOKEN).tolist()
        places: Ints | None = self.tokenizer.places(text, self.ids[low:high])
        if places is None:
            raise self._unusable("the tokenizer's engines differ on a text")
        begins, ends = places.T
        if (begins > ends).any() or (np.diff(begins, prepend=0) < 0).any() or ends.max(initial=0) > len(text):
            raise self._unusable("the tokenizer does not say where its tokens are in a text")
        return places

    @property
    def size(self) -> int:
        """Bytes of a unit."""
        return 1 if self.tokenizer is None else TOKEN

    @property
    def length(self) -> int:
        """Bytes of a window."""
        return self.size * self.least

    @property
    def sizes(self) -> Ints:
        """Units of each text."""
        return np.diff(self.offsets) // self.size

    def whole(
        self, rows: Ints32, starts: Ints32, ends: Ints32, hashes: npt.NDArray[np.uint64]
    ) -> tuple[Ints32, Ints32, Ints32, npt.NDArray[np.uint64]]:
        """Return places in units instead of bytes, without those that have no window of whole units."""
        if self.size == 1:
            return rows, starts, ends, hashes
        starts, ends = -(-starts // self.size), ends // self.size
        some = ends - starts >= self.least
        return rows[some], starts[some], ends[some], hashes[some]

    def windows(self, places: Ints32, emitted: Bools) -> tuple[npt.NDArray[np.uint64], Arrays]:
        """Return the hashes of the windows of emitted places, and the characters of places and windows.

        Args:
            places: int32[3, n], the text, and the first and last unit plus one of each place, in order.
            emitted: bool[n].

        Returns:
            Hashes, and ``characters`` int32[n, 3] and ``marks``, as `feedmill.kernels.hashing.windows.hash_windows`
            returns them. For tokens, ``characters`` has the first and last character plus one of the whole place in its
            first and last column, and instead of ``marks`` there are ``firsts`` and ``lasts`` int32[m], the same of
            each window.
        """
        if self.size == 1:
            characters, hashes, marks = windows.hash_windows(self.data, self.offsets, places, emitted, self.length)
            return hashes, {"characters": characters, "marks": marks}
        own = np.stack([places[0], self.size * places[1], self.size * places[2]])
        _, hashes, _ = windows.hash_windows(self.data, self.offsets, own, emitted, self.length)
        counts = np.where(emitted, own[2] - own[1] - self.length + 1, 0)
        inside = np.arange(len(hashes)) - np.repeat(bounds_of(counts)[:-1], counts)
        whole = inside % self.size == 0
        first, last = self._characters(np.unique(places[0]))
        low, high = (first[1][places[0]] + places[at] for at in (1, 2))
        begins = np.repeat(low, counts)[whole] + inside[whole] // self.size
        characters = np.stack([first[0][low], first[0][low], last[high - 1]], axis=1).astype(np.int32)
        spans = {"firsts": first[0][begins], "lasts": last[begins + self.least - 1]}
        return hashes[whole], {"characters": characters, **spans}

    def _characters(self, rows: npt.NDArray[Any]) -> tuple[tuple[Ints32, Ints], Ints32]:
        """Return the first character of each token of some texts, with the number of the first token of each text among
        these; and the last character plus one of each token.
        """
        firsts, lasts = [np.empty(0, np.int32)], [np.empty(0, np.int32)]
        bases, count = np.zeros(len(self.texts), np.int64), 0
        for row in rows.tolist():
            text = self.texts[row]
            begins, ends = self.places(row).T
            before = np.maximum.accumulate(np.append(0, ends))[:-1]
            firsts.append(np.maximum(begins, before).astype(np.int32))
            lasts.append(np.minimum(ends, np.append(begins[1:], len(text))).astype(np.int32))
            bases[row] = count
            count += len(begins)
        return (np.concatenate(firsts), bases), np.concatenate(lasts)

    def _unusable(self, what: str) -> DataError:
        return DataError(
            what, file=self.file, kind="unsupported-tokenizer", fix="Remove --tokenizer, to compare bytes."
        )
