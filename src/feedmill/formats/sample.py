"""The `Sample` that every format returns: a key, a source, and parts that are decoded on access."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

from feedmill.errors import DataError, FeedmillError, NotFound
from feedmill.notebooks import Displayed

Decode = Callable[[str, bytes], Any]
"""(part name, bytes) -> value. Pure; called from several threads at once."""
Located = TypeVar("Located", bound=FeedmillError)


@dataclass(frozen=True, slots=True)
class Source:
    """The location that a sample was read from.

    Attributes:
        dataset: path or URL of the dataset.
        file: path of the file inside the dataset.
        offset: first byte of the sample in that file, its headers included.
        length: bytes from there to its end.
        index: number of the sample in the opened split, counting excluded ones; the file name if a single file was
            read.
        key: the sample's key.
        names: the parts read, as file names, in stored order.
    """

    dataset: str
    file: str
    offset: int
    length: int
    index: int | str
    key: str
    names: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """Return the full path or URL of the file."""
        whole = self.dataset == self.file or self.dataset.endswith(f"/{self.file}")  # the dataset is one file
        return self.dataset if whole else f"{self.dataset.rstrip('/')}/{self.file}"

    @property
    def dataset_path(self) -> str:
        """Energon's name for `dataset`."""
        return self.dataset

    @property
    def shard_name(self) -> str:
        """Energon's name for `file`."""
        return self.file

    @property
    def file_names(self) -> tuple[str, ...]:
        """Energon's name for `names`."""
        return self.names


class Sample(Displayed, Mapping[str, Any]):
    """One sample: a key, a source, and named parts that are decoded on access.

    ``sample["jpg"]`` decodes by the part's extension; ``sample.raw("jpg")`` returns the bytes.

    Attributes:
        key: the sample's name in its dataset.
        subflavors: data attached by the dataset's description.
        home: the `Dataset` whose `read` read it, or None.
    """

    __slots__ = ("_block", "_decode", "_further", "_source", "_spans", "_values", "home", "key", "subflavors")

    def __init__(
        self,
        key: str,
        block: bytes,
        spans: Mapping[str, tuple[int, int] | bytes],
        source: Callable[[], Source],
        decode: Decode | None = None,
        subflavors: Mapping[str, Any] | None = None,
    ) -> None:
        self.key = key
        self.subflavors = subflavors
        self._block = block
        self._spans = spans
        self._source = source
        self._decode = decode
        self._values: dict[str, Any] | None = None
        self._further: tuple[Source, ...] = ()
        self.home: Any = None

    @property
    def source(self) -> Source:
        """Return the source of this sample."""
        return self._source()

    @property
    def sources(self) -> tuple[Source, ...]:
        """Return the sources of this sample and of everything added to it."""
        return (self._source(), *self._further)

    def add_source(self, source: Source) -> None:
        """Add the source of other data that was read for this sample."""
        self._further = (*self._further, source)

    def raw(self, name: str) -> bytes:
        """Return the bytes of one part. Raises `NotFound`."""
        try:
            found = self._spans[name]
        except KeyError:
            raise self._missing(name) from None
        return found if type(found) is bytes else self._block[found[0] : found[1]]

    def __getitem__(self, name: str) -> Any:
        if self._decode is None:
            return self.raw(name)
        values = self._values
        if values is None:
            values = self._values = {}
        if name not in values:
            data = self.raw(name)
            try:
                values[name] = self._decode(name, data)
            except FeedmillError as error:
                raise locate(error, self.source, f"{self.key}.{name}") from error.__cause__
            self._tell(name, values[name])
        return values[name]

    def _tell(self, name: str, value: Any) -> None:
        """Pass the file and the sample to a handle that decodes later, so that its errors name them."""
        came_from = getattr(value, "came_from", None)
        if came_from is not None:
            source = self.source
            came_from(source.where, source.offset, f"{self.key}.{name}")

    def __getstate__(self) -> tuple[None, dict[str, Any]]:
        # A handle duplicates bytes that the sample already has, so it is created again on access.
        slots = [name for kind in type(self).__mro__ for name in getattr(kind, "__slots__", ())]
        state = {name: getattr(self, name) for name in slots}
        values = state["_values"] or {}
        kept = {name: value for name, value in values.items() if not hasattr(value, "came_from")}
        return None, {**state, "_values": kept or None}

    def get(self, name: str, default: Any = None) -> Any:
        """Return one part's value, or `default` if the sample has no such part."""
        # `Mapping.get` catches KeyError, which `NotFound` is not.
        return self[name] if name in self._spans else default

    def undecoded(self, name: str) -> tuple[Decode, memoryview] | None:
        """Return a part's decoder and a view of its bytes; None if it was decoded already or is not decoded."""
        if self._decode is None or name not in self._spans or (self._values is not None and name in self._values):
            return None
        found = self._spans[name]
        whole = found if isinstance(found, bytes) else self._block
        return self._decode, memoryview(whole) if whole is found else memoryview(whole)[found[0] : found[1]]

    def decoded_together(self, name: str, samples: Sequence[Sample]) -> Any:
        """Return the column of a part of samples, of which this is the first, if its decoder decodes all at once.

        None otherwise.
        """
        waiting = [sample.undecoded(name) for sample in samples]
        if waiting[0] is None or any(part is None or part[0] is not waiting[0][0] for part in waiting):
            return None
        together = getattr(waiting[0][0], "together", None)
        return None if together is None else together(name, [part[1] for part in waiting if part is not None])

    def select(self, keep: Callable[[str], bool]) -> Sample:
        """Return this sample with only the parts whose name `keep` accepts; its source names only those."""
        spans = {name: span for name, span in self._spans.items() if keep(name)}
        source = self._source

        def restricted() -> Source:
            full = source()
            return with_names(full, [name for name in full.names if keep(split_name(name)[1])])

        chosen = Sample(self.key, self._block, spans, restricted, self._decode, self.subflavors)
        chosen.home = self.home
        return chosen

    def __iter__(self) -> Iterator[str]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def __contains__(self, name: object) -> bool:
        return name in self._spans

    def __repr__(self) -> str:
        parts = ", ".join(f"{name}: {len(self.raw(name))} B" for name in self._spans)
        return f"Sample({self.key!r}, {parts})"

    if not TYPE_CHECKING:  # a checker would take any name for an attribute

        def __getattr__(self, name: str) -> Any:
            """Raise AttributeError, with the way to a part of this name."""
            about = ": its key is sample.key" if name == "__key__" else ""
            if not name.startswith("_") and name in self:
                about = f": a part is sample[{name!r}]"
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}{about}")

    def _missing(self, name: str) -> NotFound:
        have = ", ".join(sorted(self._spans)) or "none"
        fix = None
        for part in self._spans:
            if part.rpartition(".")[2] == "json" and self._decode is not None:
                with contextlib.suppress(FeedmillError):
                    value = self[part]
                    if isinstance(value, Mapping) and name in value:
                        fix = f"It is a key of {part!r}: sample[{part!r}][{name!r}]."
        error = NotFound(f"the sample has no part {name!r} (it has: {have})", kind="missing-field", fix=fix)
        return locate(error, self.source, self.key)


if TYPE_CHECKING:

    class AnySample(Sample, Any):  # type: ignore[misc]
        """A sample of a dataset whose type was not declared: a `Sample`, or one of the types in `feedmill.samples`.

        For type checkers alone: it has the methods of `Sample`, and stands for any type.
        """


def split_name(name: str) -> tuple[str, str]:
    """Return the key and part of a file name, split at the first dot after the last slash."""
    slash = name.rfind("/") + 1
    dot = name.find(".", slash)
    return (name, "") if dot < 0 else (name[:dot], name[dot + 1 :])


def number_of(key: str, count: int) -> int | None:
    """Return the value of a key that is a plain decimal below `count`; None for any other key."""
    if not (key.isascii() and key.isdigit()) or len(key) > len(str(count)):  # Python refuses thousands of digits
        return None
    number = int(key)
    return number if number < count and str(number) == key else None


def locate(error: Located, source: Source, record: str | None = None) -> Located:
    """Return the same error with the location of the sample, unless it already has one."""
    if error.file is None:
        error.file, error.offset = source.where, source.offset
        error.record = record or source.key
    return error


def reraise(error: Exception, source: Source, who: str, *, kind: str, fix: str) -> NoReturn:
    """Raise an error of a user's function with the location of its sample.

    Args:
        who: what failed, for errors that are no `FeedmillError` and become a `DataError`.
    """
    if isinstance(error, FeedmillError):
        raise locate(error, source) from error.__cause__
    raise locate(DataError(f"{who} failed: {type(error).__name__}: {error}", kind=kind, fix=fix), source) from error


def with_names(source: Source, names: Sequence[str]) -> Source:
    """Return the source with `names` as the parts that were read."""
    # `dataclasses.replace` takes three times as long, and this runs for every sample.
    return Source(source.dataset, source.file, source.offset, source.length, source.index, source.key, tuple(names))


def no_such_key(where: str, key: str) -> NotFound:
    """Return the error for an unknown key."""
    return NotFound("there is no sample with this key", file=where, record=key, kind="no-such-sample")
