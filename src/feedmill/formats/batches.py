"""Results of `Dataset.read_batch`: a batch or its components, without a `Sample` object for each sample."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from feedmill.formats.sample import Decode, Source


class Shifted(NamedTuple):
    """A wish for inputs and targets of rows of tokens, made in the pass that reads the tokens.

    A dataset that fulfils it returns `Columns` with `INPUTS` and `TARGETS`, int64[n, width - 1], instead of the tokens,
    the loss mask and the keys. Offsets of documents and numbers of tokens are then those of the inputs. Any dataset can
    return plain `Columns` instead.

    Attributes:
        key: the field of the tokens.
        ignore: value of targets that the loss mask excludes.
        borders: whether first tokens of documents are ignored, too, if the rows locate their documents.
    """

    key: str
    ignore: int
    borders: bool


INPUTS, TARGETS = "__inputs__", "__targets__"

Want = Literal["columns", "parts", "fields"] | Shifted
"""What the caller of `read_batch` can use: `Columns`; `Columns` or `Parts`; `Fields`; or `Columns` with targets."""

Columns = dict[str, Any]
"""The samples collated: a column for each field."""


class Fields(NamedTuple):
    """Samples of one type, field by field.

    Attributes:
        type: the sample type.
        values: for each field, a list, or the result of a decoder that takes all samples at once.
    """

    type: type[Any]
    values: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Parts:
    """The undecoded parts of n samples that all have the same ones.

    Attributes:
        keys: keys of the samples.
        views: part name -> its n values; names in stored order. With a decoder, values may be views of memory that is
            reused when the last of them is released; without, they are bytes.
        decode: decodes one part; None leaves it as bytes.
        source: returns the source of a sample, by its number among the n.
    """

    keys: Sequence[str]
    views: Mapping[str, Sequence[memoryview | bytes]]
    decode: Decode | None
    source: Callable[[int], Source]

    def cut(self, begin: int, end: int) -> Parts:
        """Return the samples ``[begin, end)``."""
        views = {name: found[begin:end] for name, found in self.views.items()}
        return Parts(self.keys[begin:end], views, self.decode, lambda number: self.source(begin + number))


Batch = Columns | Parts | Fields
