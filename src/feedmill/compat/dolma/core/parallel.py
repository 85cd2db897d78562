"""Dolma's base class of programs that process files one by one, on processes of `feedmill.jobs.run`."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from itertools import chain
from typing import Any, NamedTuple, Protocol, TypeVar

from feedmill.compat.dolma.core.paths import add_suffix, glob_path, make_relative, mkdir_p, parent
from feedmill.errors import FeedmillError
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.storage import open_store, split_url

__all__ = ["BaseParallelProcessor", "DolmaRetryableFailure", "QueueType"]

DONE = ".done.txt"
Self = TypeVar("Self", bound="BaseParallelProcessor")


class DolmaRetryableFailure(FeedmillError):
    """Raised by ``process_single`` to be called again."""


class QueueType(Protocol):
    """What ``process_single`` puts counts into."""

    def put(self, item: tuple[int, ...] | None) -> None:
        """Add counts, in the order of the arguments of ``increment_progressbar``."""


class _Counts:
    """Queue that adds up what is put into it."""

    def __init__(self) -> None:
        self.total: list[int] = []

    def put(self, item: tuple[int, ...] | None) -> None:
        for k, count in enumerate(item or ()):
            self.total[k : k + 1] = [(self.total[k] if k < len(self.total) else 0) + count]


class _File(NamedTuple):
    """A file to process: its class, paths and arguments."""

    processor: type[BaseParallelProcessor]
    source: str
    destination: str
    metadata: str
    kwargs: dict[str, Any]

    def __str__(self) -> str:
        return self.source


class BaseParallelProcessor:
    """Base class of programs that make one file of each file. Override `process_single` and `increment_progressbar`.

    Files are found below `source_prefix` (a file, folder or pattern). Each is written to the same place below
    `destination_prefix`; a marker below `metadata_prefix` says that it is done, and later runs skip it.

    Args:
        source_prefix, destination_prefix, metadata_prefix: one of each, or lists of equal length.
        num_processes: number of processes.
        debug: process the files in this process.
        ignore_existing: process finished files again.
        include_paths, exclude_paths: process only these paths, or not these.
        files_regex_pattern: process only paths in which this regular expression is found.
        retries_on_error: how often to call again after a `DolmaRetryableFailure`.
        process_single_kwargs: arguments of `process_single`, for all sources or for each.
        seed, pbar_timeout: accepted without effect: files are processed in the order of their paths.

    Raises:
        ValueError: the lists differ in length or are empty, or a destination has wildcards.
        AttributeError: the arguments of `increment_progressbar` are not as Dolma requires.
    """

    def __init__(
        self,
        source_prefix: str | Sequence[str],
        destination_prefix: str | Sequence[str],
        metadata_prefix: str | Sequence[str],
        num_processes: int = 1,
        debug: bool = False,
        seed: int = 0,
        pbar_timeout: float = 1e-3,
        ignore_existing: bool = False,
        include_paths: Iterable[str] | None = None,
        exclude_paths: Iterable[str] | None = None,
        files_regex_pattern: str | None = None,
        retries_on_error: int = 0,
        process_single_kwargs: Mapping[str, Any] | Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        self.src_prefixes, self.dst_prefixes, self.meta_prefixes = (
            [given] if isinstance(given, str) else list(given)
            for given in (source_prefix, destination_prefix, metadata_prefix)
        )
        self.num_processes, self.debug, self.seed, self.pbar_timeout = num_processes, debug, seed, pbar_timeout
        self.ignore_existing, self.retries_on_error = ignore_existing, retries_on_error
        self.include_paths = None if include_paths is None else set(include_paths)
        self.exclude_paths = None if exclude_paths is None else set(exclude_paths)
        self.files_regex_pattern = re.compile(files_regex_pattern) if files_regex_pattern else None
        more = process_single_kwargs or {}
        self.process_single_kwargs = [more] * len(self.src_prefixes) if isinstance(more, Mapping) else list(more)
        self._check()

    def _check(self) -> None:
        lists = (self.src_prefixes, self.dst_prefixes, self.meta_prefixes, self.process_single_kwargs)
        if not self.src_prefixes or len({len(one) for one in lists}) > 1:
            raise ValueError("give at least one source, and as many destinations, metadata folders and arguments")
        if any("*" in path for path in chain(self.dst_prefixes, self.meta_prefixes)):
            raise ValueError("destinations and metadata folders must not have wildcards")
        queue, *units = inspect.signature(self.increment_progressbar).parameters.values()
        if queue.name != "queue" or queue.kind != queue.POSITIONAL_ONLY:
            raise AttributeError("the first argument of increment_progressbar must be positional-only, named 'queue'")
        if any(unit.kind == unit.VAR_KEYWORD or unit.default != 0 for unit in units):
            raise AttributeError("the other arguments of increment_progressbar must have the default 0, without **")

    @classmethod
    def process_single(cls, source_path: str, destination_path: str, queue: QueueType, **kwargs: Any) -> None:
        """Make the destination of one source. Override this."""
        raise NotImplementedError

    @classmethod
    def increment_progressbar(cls, queue: QueueType, /, **kwargs: int) -> dict[str, int]:
        """Count units of work. Override it with the units as arguments whose default is 0, and call this one."""
        queue.put(tuple(kwargs.values()))
        return kwargs

    def __add__(self: Self, other: Self) -> Self:
        """Return a processor of the files of both."""
        if type(self) is not type(other):
            raise TypeError(f"cannot add {type(self)} and {type(other)}")
        patterns = [one.files_regex_pattern.pattern for one in (self, other) if one.files_regex_pattern]
        return type(self)(
            source_prefix=self.src_prefixes + other.src_prefixes,
            destination_prefix=self.dst_prefixes + other.dst_prefixes,
            metadata_prefix=self.meta_prefixes + other.meta_prefixes,
            num_processes=max(self.num_processes, other.num_processes),
            debug=self.debug or other.debug,
            ignore_existing=self.ignore_existing or other.ignore_existing,
            include_paths={*(self.include_paths or ()), *(other.include_paths or ())} or None,
            exclude_paths={*(self.exclude_paths or ()), *(other.exclude_paths or ())} or None,
            files_regex_pattern="|".join(f"({pattern})" for pattern in patterns) or None,
            retries_on_error=max(self.retries_on_error, other.retries_on_error),
            process_single_kwargs=self.process_single_kwargs + other.process_single_kwargs,
        )

    def __call__(self, **process_single_kwargs: Any) -> None:
        """Process all files that are not done.

        Raises:
            ValueError: a source has no files.
            FeedmillError: a file failed more often than `retries_on_error`.
        """
        files = self._files({"retries_on_error": self.retries_on_error, **process_single_kwargs})
        workers = 1 if self.debug else self.num_processes
        with Progress("processing", len(files), "files") as bar:
            totals = _Counts()
            for counts in run(_process, files, workers=workers, progress=bar):
                totals.put(counts)

    def _files(self, more: dict[str, Any]) -> list[_File]:
        files = []
        every = zip(self.src_prefixes, self.dst_prefixes, self.meta_prefixes, self.process_single_kwargs, strict=True)
        for source, destination, metadata, kwargs in every:
            paths = sorted(glob_path(source))
            if not paths:
                raise ValueError(f"no files match {source}")
            base, names = make_relative(paths) if len(paths) > 1 else (parent(paths[0]), [paths[0].rpartition("/")[2]])
            for name in names:
                marker = add_suffix(metadata, name) + DONE
                if self._wants(name) and (self.ignore_existing or not _exists(marker)):
                    target = add_suffix(destination, name)
                    files.append(_File(type(self), add_suffix(base, name), target, marker, {**kwargs, **more}))
        return files

    def _wants(self, path: str) -> bool:
        if self.include_paths is not None and path not in self.include_paths:
            return False
        if self.exclude_paths is not None and path in self.exclude_paths:
            return False
        return self.files_regex_pattern is None or self.files_regex_pattern.search(path) is not None


def _exists(path: str) -> bool:
    folder, name = split_url(path)
    return open_store(folder).exists(name)


def _process(file: _File) -> tuple[int, ...]:
    """Process one file, write its marker, and return the sums of what was put into the queue."""
    mkdir_p(parent(file.destination))
    queue = _Counts()
    left = int(file.kwargs.get("retries_on_error", 0))
    while True:
        try:
            file.processor.process_single(file.source, file.destination, queue, **file.kwargs)
            break
        except DolmaRetryableFailure as error:
            if not left:
                raise FeedmillError(f"processing failed: {error}", file=file.source) from error
            left -= 1
    folder, name = split_url(file.metadata)
    open_store(folder).write_bytes(name, datetime.now().astimezone().isoformat().encode())
    return tuple(queue.total)
