"""The `Dataset` contract, and the `Sample` that every format returns.

A dataset is opened through an index with the location of each sample; no sample is read before it is requested. A
format implements `read_raw`, `locate`, `find` and `__len__`; this module has the rest, once for all formats.

The formats room handles bytes only. `feedmill.samples` adds their meaning (decoders, sample types) through two
functions: a *decoder* that a sample calls for one part, and a *view* that turns raw samples into what `read` returns.

`Opened` is how a dataset was opened: what turns the bytes of its samples into what users get, and opens it again.

`TokenReader` and `CountedOnRead` are what datasets of tokens have beyond the contract, `Episodic` those of episodes.

Hints for names of torch and of Hugging Face datasets that people try on a dataset out of habit.
"""

from __future__ import annotations

import contextlib
import operator
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Generic,
    Protocol,
    Self,
    SupportsIndex,
    TypeVar,
    overload,
    runtime_checkable,
)

import numpy as np
import numpy.typing as npt

from feedmill.errors import ConfigError, DataError, FeedmillError, Hinted, NotFound, shortened
from feedmill.formats.batches import Batch, Fields, Want
from feedmill.formats.costs import INDEXED, LOSS_TOKENS, checked_costs
from feedmill.formats.offsets import Extents
from feedmill.formats.sample import Decode, Sample, Source, split_name
from feedmill.notebooks import Showable
from feedmill.provided import provided

HINTS: Mapping[str, str] = {
    **dict.fromkeys(("take", "head", "limit"), "Use dataset[:n] for samples, dataset.select(range(n)) for a dataset."),
    "skip": "Use dataset[n:] for samples, dataset.select(slice(n, None)) for a dataset.",
    "tail": "Use dataset[-n:].",
    "sample": "Use dataset.select(indices).",
    **dict.fromkeys(
        ("shuffle", "repeat", "set_epoch"),
        "A plan has the order and the epochs: fm.Plan.over(dataset, shuffle='global', seed=0, epochs=1).",
    ),
    **dict.fromkeys(
        ("column_names", "columns", "features", "schema", "dtypes"),
        "dataset[0] shows the parts of a sample; dataset.to_arrow().schema has their names and types.",
    ),
    **dict.fromkeys(("num_rows", "shape", "size"), "Use len(dataset)."),
    **dict.fromkeys(
        ("train_test_split", "random_split"),
        "Use 'feedmill prepare --split-ratio', dataset.select(indices), or 'subset' in a recipe.",
    ),
    **dict.fromkeys(
        ("with_format", "set_format", "with_transform", "set_transform"),
        "Use fm.Loader(..., output='torch'), dataset.to_torch(), to_arrow(), to_polars() or to_pandas().",
    ),
    **dict.fromkeys(("batch", "iter", "dataloader", "to_iterable_dataset"), "Use fm.Loader(dataset, batch_size)."),
    **dict.fromkeys(
        (
            "rename_column",
            "rename_columns",
            "remove_columns",
            "select_columns",
            "add_column",
            "cast",
            "cast_column",
        ),
        "Use dataset.map(function), which returns other samples.",
    ),
    "tokenize": "Use fm.open(path, tokenize='tokenizer.json'), or fm.tokenize for files of tokens.",
    "sort": "Use dataset.select(indices) with the order that you want.",
    "unique": "Use dataset.to_polars() or dataset.to_pandas().",
    "to_list": "Use list(dataset).",
    **dict.fromkeys(
        ("save_to_disk", "push_to_hub", "to_parquet", "to_json", "to_csv", "save"),
        "Use fm.write(path, dataset), or fm.convert(path, output, to=format) for another format.",
    ),
    **dict.fromkeys(
        ("shard", "n_shards", "num_shards"),
        "A loader gives each rank its part; the shards' bounds are dataset.shard_bounds.",
    ),
    **dict.fromkeys(("interleave", "concatenate", "concat"), "Use fm.Plan.over([a, b], weights=[1, 2]), or a recipe."),
    **dict.fromkeys(("info", "stats", "statistics", "summary"), "Use dataset.describe(), or fm.info(path)."),
    **dict.fromkeys(
        ("preview", "report", "display", "visualize", "plot"), "Use dataset.show(), or fm.report(dataset)."
    ),
    **dict.fromkeys(("train", "test", "validation"), "Use fm.open(path, split=name); dataset.splits has the names."),
    "keys": "Use dataset.describe() for its facts, and dataset[i].key for the key of a sample.",
}
"""Attribute of a dataset elsewhere -> a sentence."""


def explain_to_torch(types: set[type]) -> None:
    """Let torch's `default_collate` name what to use instead for samples that it cannot make a batch of."""
    torch_collate = sys.modules.get("torch.utils.data._utils.collate")
    known = getattr(torch_collate, "default_collate_fn_map", None)
    if known is None:
        return
    for kind in types:
        if not issubclass(kind, Mapping | Sequence) and kind.__module__.partition(".")[0] == "feedmill":
            known.setdefault(kind, _cannot_collate)


def _cannot_collate(batch: list[Any], **_: Any) -> Any:
    raise TypeError(
        f"torch's default_collate makes no batch of a {type(batch[0]).__name__}: use DataLoader(dataset.to_torch()),"
        " whose samples are dicts, fm.Loader(dataset, batch_size, output='torch'), or plan.as_dataset()"
    )


if TYPE_CHECKING:
    from typing_extensions import TypeVar as WithDefault

    from feedmill.formats.mediatable import MediaTable

    Read = WithDefault("Read", default=Any, covariant=True)
else:
    Read = TypeVar("Read", covariant=True)  # without a default before Python 3.13
Made = TypeVar("Made")

View = Callable[[list[Sample]], list[Any]]
"""Raw samples -> what the user gets, one for one and in order."""


@dataclass(frozen=True, slots=True)
class Order:
    """Order for training that a dataset's description asks for.

    Attributes:
        shuffles: False for the stored order.
        passes: passes over the data in one loop, -1 for draws with replacement; None for what the caller says.
        parallel, sequence: as in a shuffle of shards; None for what the recipe says.
    """

    shuffles: bool = True
    passes: int | None = None
    parallel: int | None = None
    sequence: int | None = None


@dataclass(frozen=True, slots=True)
class Opened:
    """The settings with which a dataset was opened, except its location.

    Attributes:
        view: converts raw samples; None returns them unchanged.
        decode: decodes parts; None leaves them as bytes.
        subflavors: data attached to every sample, by the dataset's description or by a recipe.
        about: facts from the dataset's description, for `describe`.
        aux: name -> URL of data that samples refer to, as a metadataset gives them.
        order: what the dataset's description says of the order.
        reopen: opens the dataset again, so that another process gets its own instance instead of a copy.
    """

    view: View | None = None
    decode: Decode | None = None
    subflavors: Mapping[str, Any] | None = None
    about: Mapping[str, Any] = field(default_factory=dict)
    aux: Mapping[str, str] = field(default_factory=dict)
    order: Order = Order()
    reopen: Callable[[], Dataset] | None = None


def changed(reopen: Callable[[], Dataset], changes: Mapping[str, Any]) -> Dataset:
    """Return a dataset opened again with other settings."""
    return reopen().opened_as(**changes)


def reopened(reopen: Callable[[], Dataset], fingerprint: str) -> Dataset:
    """Return a dataset opened again. Raises `DataError` if its data is not what it was."""
    dataset = reopen()
    if dataset.fingerprint() != fingerprint:
        raise DataError(
            "the dataset has changed since it was opened in the main process",
            file=dataset.url,
            kind="changed",
            fix="Open the dataset again in a new run.",
        )
    return dataset


Indices = npt.NDArray[np.int64] | Sequence[int]


class Dataset(Hinted, Showable, ABC, Generic[Read]):
    """One dataset in one format: random access in bulk, by number or by key.

    Safe to read from several threads. `len` and all indices exclude samples that the split excludes.

    Type checkers know the type of its samples if it is declared:
    ``ds: fm.Dataset[fm.samples.CaptioningSample] = fm.open("coco")``.

    Attributes:
        format: the format's short name.
        url: path or URL.
        split: name of the opened split, or None if the format has none.
        notes: messages about how it was opened, which `open` logs beside `remarks`.
        opened: how it was opened; `view`, `decode`, `subflavors`, `about` and `aux` are shorthands for its fields.
    """

    hints = HINTS
    format: ClassVar[str]
    url: str
    split: str | None = None
    _opened: Opened = Opened()
    _named: Mapping[str, int] | Callable[[], Mapping[str, int]] = MappingProxyType({})
    notes: Sequence[str] = ()

    def __new__(cls, *_: Any, **__: Any) -> Self:
        """Return a dataset of a format. Raises `TypeError` for the contract itself."""
        if cls is Dataset:
            raise TypeError("fm.Dataset is the type of all datasets. Use fm.open(path).")
        return super().__new__(cls)

    def __repr__(self) -> str:
        split = "" if self.split is None else f", split {self.split}"
        return f"<{self.format} dataset {self.url!r}: {len(self):,} samples{split}>"

    @property
    def opened(self) -> Opened:
        """Return how the dataset was opened."""
        return self._opened

    @property
    def view(self) -> View | None:
        """Converter of raw samples; None returns them unchanged."""
        return self._opened.view

    @property
    def decode(self) -> Decode | None:
        """Decoder of parts; None leaves them as bytes."""
        return self._opened.decode

    @property
    def subflavors(self) -> Mapping[str, Any] | None:
        """Data attached to every sample, or None."""
        return self._opened.subflavors

    @property
    def about(self) -> Mapping[str, Any]:
        """Facts from the dataset's description, for `describe`."""
        return self._opened.about

    @property
    def aux(self) -> Mapping[str, str]:
        """Name -> URL of data that samples refer to."""
        return self._opened.aux

    def opened_as(self, **changes: Any) -> Self:
        """Return a dataset of the same data that was opened with other settings; this one is not changed.

        Args:
            changes: fields of `Opened`.
        """
        reopen = self._opened.reopen
        if reopen is not None:
            changes = {"reopen": partial(changed, reopen, changes), **changes}
        other = object.__new__(type(self))  # copy.copy would pickle, which opens the data again
        other.__dict__.update(self.__dict__)
        other._opened = replace(self._opened, **changes)
        return other

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        reopen = self._opened.reopen
        return super().__reduce_ex__(protocol) if reopen is None else (reopened, (reopen, self.fingerprint()))

    def __getstate__(self) -> dict[str, Any]:
        # Another process computes costs itself if it needs them.
        return {name: value for name, value in self.__dict__.items() if name != "_costs"}

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def read_raw(self, indices: Indices) -> list[Sample]:
        """Return samples in the order of `indices`, int64 in ``[0, len)``; parts are decoded on access.

        Raises `DataError` if the bytes do not match the index.
        """

    @property
    def is_remote(self) -> bool:
        """Return whether samples are read from a store that is not local."""
        store = getattr(self, "store", None)
        return store is not None and not store.is_local

    @property
    def shuffle_block(self) -> int | None:
        """Return how many consecutive samples the block shuffle keeps together if it is not given; None: 256."""
        return None

    def load_ahead(self) -> None:
        """Load the indices of all remote files, unless they are very many, so that no later batch waits for its own."""

    def copy_indices(self) -> None:
        """Copy the remote indices that look-ups open by path to this machine's cache; `find` then need not wait for
        them. Raises as `find` does."""

    def extents(self, indices: Indices) -> Sequence[Extents]:  # noqa: ARG002
        """Return the byte ranges that reading samples will ask remote stores for; a hint for reading ahead.

        Only the index is read. Empty if all files are local, or if the format cannot tell.

        Args:
            indices: int64[n] in ``[0, len)``.
        """
        return ()

    @abstractmethod
    def locate(self, index: int) -> Source:
        """Return the file, offset, length and key of one sample."""

    @abstractmethod
    def find(self, key: str) -> int:
        """Return the index of the sample with this key. Raises `NotFound`."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a short hash of the dataset's content: the same data in the same order has the same fingerprint.

        Cheap: computed from the index (shards, counts, hashes) or, if that has no hashes, from some blocks of each file
        (`feedmill.formats.content`), which are read on the first call.
        """

    def fingerprint_of_first(self, count: int) -> str | None:  # noqa: ARG002
        """Return the `fingerprint` of the dataset when it held only its first `count` samples; None if unknown.

        This distinguishes a dataset that only grew from one that changed. Cheap, like `fingerprint`.
        """
        return None

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """Return plain facts: format, path, split, samples, shards, bytes, whether indexed, splits, and `about`."""

    @property
    def splits(self) -> Mapping[str, int]:
        """Return the number of samples per split name; empty without splits.

        If the format has none, the folder's card or the names of its files tell, see `feedmill.formats.hub_splits`.
        """
        if callable(self._named):
            self._named = self._named()
        return self._named

    @property
    def remarks(self) -> Sequence[str]:
        """Return messages about files that hold more than is read, such as concatenated tars; `open` logs them."""
        return ()

    def verify(self) -> Sequence[FeedmillError]:
        """Return problems with the data that opening it does not detect, as far as the format can check."""
        return ()

    @property
    def lengths(self) -> npt.NDArray[np.int64] | None:
        """Return tokens per sample, int64[len]; None if the index does not have them."""
        return None

    def media_table(self) -> MediaTable:
        """Return the sizes of the media of all samples from the index, without reading samples.

        Sizes that the index does not have are unknown in it, see `MediaTable.unknown`.

        Raises:
            ConfigError: the dataset has no index of media; the message names the command that makes one.
            DataError: the index is damaged.
        """
        raise ConfigError(
            "the dataset has no media metadata: sizes of media are in the index of prepared shards",
            file=self.url,
            kind="no-costs",
            fix=self._media_advice(),
        )

    def _media_advice(self) -> str:
        """Return how to make an index of media."""
        return (
            f"Write shards with 'feedmill convert {self.url} SHARDS --to webdataset', and run"
            " 'feedmill edit prepare-media SHARDS --media-by-header' on them."
        )

    def media_version(self) -> str | None:
        """Return a text that changes when `media_table` does, beside the fingerprint; None if only the table tells."""
        return None

    def costs(self, by: str) -> npt.NDArray[np.int64] | None:
        """Return the cost of each sample from the index, without reading samples.

        The array is read-only and cached for later calls. It does not contain samples that the split excludes.

        Args:
            by: ``tokens``, ``loss_tokens`` (those that contribute to the loss, which reads loss masks), ``bytes`` (of
                the sample as stored), ``pixels``, ``frames`` (both summed over the sample's images and videos), or the
                name of a numeric field, see `feedmill.formats.costs`.

        Returns:
            int64[len], 0 or more; None if the index does not know this cost.

        Raises:
            DataError: the index is damaged, or the cost of a sample is missing, NaN or negative; the sample is named.
            ConfigError: a field's values are too small to be rounded to whole numbers.
        """
        known: dict[str, npt.NDArray[np.int64]] = self.__dict__.setdefault("_costs", {})
        if by not in known:  # two threads may both compute them, with the same result
            values = self.lengths if by == "tokens" else None
            values = self._find_costs(by) if values is None else values
            if values is None:
                return None
            known[by] = checked_costs(values, by, file=self.url, count=len(self))
        return known[by]

    def _find_costs(self, by: str) -> npt.NDArray[np.int64] | None:  # noqa: ARG002
        """Return costs other than `lengths`; a format whose index has costs overrides this."""
        return None

    def values(self, by: str, *, texts: bool = False) -> npt.NDArray[Any] | None:
        """Return a number of each sample from the index, as it is stored: orders and groups are made of these.

        Args:
            by: as for `costs`; numbers of a field may be negative and fractions.
            texts: also accept a field of texts, whose values are their hashes (xxh3-64): equal texts have equal hashes.

        Returns:
            int64, float64 or uint64 (hashes), [len]; None if the index does not know them.

        Raises:
            DataError: as `costs`, and if the value of a sample is missing or NaN; the sample is named.
        """
        return self.costs(by) if by in INDEXED else self._find_values(by, texts=texts)

    def _find_values(self, by: str, *, texts: bool) -> npt.NDArray[Any] | None:  # noqa: ARG002
        """Return values of a field; a format whose index has fields overrides this, see `formats.costs`."""
        return None

    def total(self, by: str, start: int = 0, stop: int | None = None) -> int | None:
        """Return the sum of the `costs`, or `lengths`, of samples ``[start, stop)``; None if they are unknown.

        A dataset that has sums in its index overrides this, to do without those of each sample. Raises as `costs`.
        """
        costs = self.lengths if by == "tokens" else self.costs(by)
        return None if costs is None else int(costs[start:stop].sum(dtype=np.int64))

    @property
    def cost_fields(self) -> Sequence[str]:
        """Return the names of the numeric fields that `costs` accepts."""
        return ()

    def costs_advice(self, by: str) -> str:
        """Return a sentence that explains how to make an unavailable cost available to `costs`."""
        if by == "tokens":
            return f"Run 'feedmill tokenize {self.url}' to write token files, which index the length of each document."
        if by == LOSS_TOKENS:
            return (
                "They are known of token files, whose loss masks are counted, and of samples with a numeric field"
                f" {LOSS_TOKENS!r}."
            )
        return f"The index of the format {self.format!r} does not have it."

    def read(self, indices: Indices) -> list[Read]:
        """Return samples in bulk, converted by this dataset's view (`Sample`, or the declared sample type)."""
        if len(indices) != 1:
            return self._viewed(self.read_raw(indices))
        index = int(indices[0])
        if not 0 <= index < len(self):
            raise IndexError(f"{self.url}: sample {index} of {len(self)}")
        return self._viewed([self._read_one(index)])

    def _read_one(self, index: int) -> Sample:
        """Return the one sample of `read_raw` for an index in ``[0, len)``; a format overrides it to be faster."""
        return self.read_raw([index])[0]

    def _viewed(self, raw: list[Sample]) -> list[Any]:
        for sample in raw:
            sample.home = self
        view = self._opened.view
        return raw if view is None else view(raw)

    def read_batch(self, indices: Indices, want: Want) -> Batch | None:
        """Return the data of `read` as a batch or its parts, without creating a sample, or one of its type, for each.

        Args:
            indices: as for `read`.
            want: the forms that the caller accepts.

        Returns:
            None if this dataset has no faster way than `read`. Raises as `read` does.
        """
        columns = getattr(self.view, "columns", None) if want == "fields" else None
        if columns is None:
            return None
        wanted = np.asarray(indices, np.int64)
        order = np.argsort(wanted, kind="stable")  # neighbors are read together
        raw: list[Any] = [None] * len(order)
        for place, sample in zip(order.tolist(), self.read_raw(wanted[order]), strict=True):
            sample.home = self
            raw[place] = sample
        fields: Fields | None = columns(raw)
        return fields

    @property
    def row_files(self) -> Sequence[str]:
        """Return paths or URLs of the files whose rows the samples are; none if no file has its samples as rows."""
        return ()

    def stored_rows(self, indices: Indices) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the file of each sample, as its number in `row_files`, and its row there from 0; int64[n] both.

        Rows are lines, rows of columns, or samples of a shard, and count those that the split excludes.
        """
        raise NotImplementedError(self.format)  # a format without `row_files` is not asked

    @property
    def shard_bounds(self) -> npt.NDArray[np.int64]:
        """Return the number of each shard's first sample, then the total number of samples, int64[shards + 1].

        A dataset that is not stored in shards is one shard.
        """
        return np.array([0, len(self)], np.int64)

    @property
    def stored_length(self) -> int:
        """Return the number of samples of the split with those that it excludes, by which Energon counts subsets."""
        return len(self)

    def kept_before(self, stored: int) -> int:
        """Return how many of the first `stored` samples of the split it does not exclude."""
        return stored

    def samples_of_row(self, file: int, row: int) -> list[int]:  # noqa: ARG002
        """Return the samples that are a row of a file of `row_files`; none if the split excludes it."""
        return []

    def locate_part(self, name: str) -> Source:
        """Return the location of one part, by its file name; its `index` is that name. Raises `NotFound`."""
        source = self.locate(self.find(split_name(name)[0]))
        return replace(source, index=name, names=(name,))

    def get_many(self, names: Sequence[str]) -> list[bytes]:
        """Return the bytes of many parts by file name. Raises `NotFound`."""
        return [self.get(name) for name in names]

    def get(self, name: str) -> bytes:
        """Return the bytes of one part by its file name, e.g. ``"000012.jpg"``. Raises `NotFound`."""
        key, part = split_name(name)
        return self.read_raw([self.find(key)])[0].raw(part)

    def map(self, function: Callable[[Read], Made]) -> Dataset[Made]:
        """Return a view of this dataset whose samples are results of a function. Nothing is read until then.

        Positions, keys and locations are unchanged, and so is the fingerprint: a run can resume with another function.

        Args:
            function: called with each sample, from several threads at once. To a ``dict`` that it returns, ``__key__``
                is added. For loaders with processes it must be defined at the top of a module.

        Raises:
            ConfigError: the samples are documents of tokens.
        """
        return provided("mapped")(self, function)  # type: ignore[no-any-return]

    def filter(self, function: Callable[[Read], Any], *, progress: bool = True) -> Dataset[Read]:
        """Return a view of the samples for which a function is true. Every sample is read once, now.

        Args:
            function: called with each sample, from several threads at once. It is not needed later.
            progress: show a progress bar.

        Raises:
            DataError: the function failed; the error names the sample.
            EmptyResult: it is true for no sample.
        """
        with _user_frames():
            return provided("filtered")(self, function, progress=progress)  # type: ignore[no-any-return]

    def select(self, indices: Indices | slice | npt.NDArray[np.bool_]) -> Dataset[Read]:
        """Return a view of some samples, in the given order.

        Args:
            indices: numbers of samples (negative ones from the end), a slice, or a mask bool[len].

        Raises:
            IndexError: there is no such sample.
            ConfigError, EmptyResult: the selection is invalid or empty.
        """
        return provided("selected")(self, indices)  # type: ignore[no-any-return]

    def lengths_by(self, processor: Any, **options: Any) -> Dataset[Read]:
        """Return a view of this dataset whose samples have lengths: the tokens that a model's processor makes of them.

        They are counted as `feedmill tokens lengths` does, and kept in its cache folder: text once, media by their
        sizes in the index. Packing uses them.

        Args:
            processor: folder of the checkpoint: its processor and its tokenizer.json.
            options: as of `feedmill.tokens.lengths`: messages, text, chat_template, chat_template_args, processor_args,
                media, measure, progress.

        Raises:
            ConfigError, NotFound, EmptyResult: as `feedmill.tokens.lengths` does; or the samples are tokens already.
        """
        return provided("lengths_by")(self, processor, **options)  # type: ignore[no-any-return]

    def to_arrow(self, names: Sequence[str] | None = None) -> Any:
        """Return all samples as a `pyarrow.Table`: ``__key__``, and a column for each part, decoded.

        Images, audio and video are bytes as stored. Samples that are one JSON object have a column for each of its
        keys, and tables their own columns.

        Args:
            names: the columns to keep; default: all.

        Raises:
            MissingExtra: pyarrow is not installed.
            NotFound: there is no such column.
            ConfigError: the values of a column have no common type.
        """
        return provided("to_arrow")(self, names)

    def to_polars(self, names: Sequence[str] | None = None) -> Any:
        """Return all samples as a `polars.DataFrame`; see `to_arrow`."""
        return provided("to_polars")(self, names)

    def to_pandas(self, names: Sequence[str] | None = None) -> Any:
        """Return all samples as a `pandas.DataFrame`; see `to_arrow`."""
        return provided("to_pandas")(self, names)

    def to_torch(self, transform: Callable[[Any], Any] | None = None) -> Any:
        """Return a map-style dataset for torch's `DataLoader`: the samples in stored order, read when asked for.

        Args:
            transform: called with each sample; default: ``__key__`` and the decoded parts as a ``dict``.

        Raises:
            MissingExtra: torch is not installed.
        """
        return provided("to_torch")(self, transform)

    @overload
    def __getitem__(self, index: int | str) -> Read: ...

    @overload
    def __getitem__(self, index: slice | Sequence[int] | npt.NDArray[Any]) -> list[Read]: ...

    def __getitem__(self, index: int | str | slice | Sequence[int] | npt.NDArray[Any]) -> Read | list[Read]:
        with _user_frames():
            return self._indexed(index)

    def _indexed(self, index: int | str | slice | Sequence[int] | npt.NDArray[Any]) -> Read | list[Read]:
        if isinstance(index, str):
            return self._by_key(index)
        if isinstance(index, slice):
            return self.read(range(*index.indices(len(self))))
        if isinstance(index, Sequence | np.ndarray):  # not a text: those are keys
            numbers = np.asarray(index)
            if numbers.dtype == bool:
                return self.select(numbers).read(range(int(numbers.sum())))
            return self.read([self._checked(each) for each in index])  # type: ignore[arg-type]  # no text is here
        return self.read([self._checked(index)])[0]

    def _by_key(self, key: str) -> Read:
        """Return a sample by its key. A `NotFound` says what else has this name: a split, or a part of each sample."""
        try:
            return self._read_key(key)
        except NotFound as error:
            if key in self.splits:
                error.fix = f"It is a split: fm.open(path, split={key!r})."
            elif len(self):
                with contextlib.suppress(FeedmillError):
                    first: Any = self.read([0])[0]
                    if key in getattr(first, "__dataclass_fields__", first if isinstance(first, Mapping) else ()):
                        error.fix = f"Each sample has a part of this name: dataset.to_arrow([{key!r}]) reads them all."
            raise

    def _read_key(self, key: str) -> Read:
        return self.read([self.find(key)])[0]

    def __add__(self, other: object) -> Any:
        """Raise TypeError: datasets are joined by a plan."""
        raise TypeError("datasets are not added: use fm.Plan.over([a, b], weights=[1, 2]), or 'concat' in a recipe")

    def __getitems__(self, indices: Sequence[int]) -> list[Read]:
        """Return samples by number, for a torch `DataLoader`, which asks for those of a batch together."""
        samples = self.read([self._checked(index) for index in indices])
        explain_to_torch({type(sample) for sample in samples})
        return samples

    def __iter__(self) -> Iterator[Read]:
        for start in range(0, len(self), 256):
            with _user_frames():
                block = self.read(range(start, min(start + 256, len(self))))
            yield from block

    def _inside(self, indices: Indices) -> npt.NDArray[np.int64]:
        """Return numbers of samples, int64[n]. Raises `IndexError` for one that is negative or too large."""
        return numbers_inside(indices, len(self), self.url)

    def _checked(self, index: SupportsIndex) -> int:
        count = len(self)
        index = operator.index(index)
        if not -count <= index < count:
            raise IndexError(f"{self.url}: sample {index} of {count}")
        return index % count if count else index


class _user_frames:  # as a function; a generator would add frames, and takes longer
    """Remove the frames of this package from the error of a user's function in `Dataset.map` or `filter`."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: Any, error: BaseException | None, __: Any) -> None:
        if isinstance(error, DataError) and error.kind == "function-failed":
            raise shortened(error)


def numbers_inside(indices: npt.ArrayLike, count: int, url: str, noun: str = "sample") -> npt.NDArray[np.int64]:
    """Return the numbers as int64[n]. Raises `IndexError` for one that is negative or not below `count`."""
    wanted = np.asarray(indices, np.int64)
    if len(wanted) and int(wanted.view(np.uint64).max()) >= count:  # negative numbers are large there
        bad = int(wanted[(wanted < 0) | (wanted >= count)][0])
        raise IndexError(f"{url}: {noun} {bad} of {count}")
    return wanted


@runtime_checkable
class TokenReader(Protocol):
    """The methods of a token dataset beyond the `Dataset` contract: reading spans of documents in bulk."""

    def read_tokens(
        self, indices: npt.NDArray[np.int64], starts: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]
    ) -> Sequence[npt.NDArray[np.integer[Any]]]:
        """Return tokens ``[start, start + length)`` of each document, in the given order; int64[n] all three."""


@runtime_checkable
class CountedOnRead(Protocol):
    """The method of a dataset that knows how many tokens a sample has only when it reads it; its `lengths` are None."""

    def lengths_of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the tokens of samples, int64[n]. They depend on nothing but the fingerprint."""


@runtime_checkable
class Episodic(Protocol):
    """The methods of a dataset of episodes, whose samples are frames at a rate."""

    @property
    def fps(self) -> float | None:
        """Frames a second; None if the data do not say."""

    def episodes_of(self, indices: Indices) -> npt.NDArray[np.int64]:
        """Return the number of each sample's episode in the dataset, int64[n]."""
