"""The verb ``lengths``: how many tokens each sample of text and media has for a model, from the index and the texts.

The text of each sample is rendered and counted once, with the smallest text of each medium in place of its placeholder;
media add what their sizes do (`feedmill.samples.token_rules`). No medium is decoded. The lengths are kept in
``$FEEDMILL_CACHE_DIR/lengths/<hash>/``. The hash is of all that determines them: the dataset and its media table, the
tokenizer, the template, the processor's files and options, and the rules with their versions. Part `i` of the folder is
``0000000i``, an array file (`feedmill.formats.arrays`) of samples ``i * PART`` to ``(i + 1) * PART``:

    lengths  int32[n]   tokens; -1 for samples without a length
    why      int32[n]   number of the reason; -1 for samples with a length
    reasons  uint8[m]   the reasons, as a JSON list
    digest   uint8[16]  xxh3-128 of the three

A part is published when it is whole, so a killed run loses only parts in progress. A damaged part is counted again.
Parts are the units of engines. Those of a job array leave their results in the folder of ``--work`` for the run that
finishes, which publishes them.
"""

from __future__ import annotations

import functools
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill.documents.batch import BadDocument
from feedmill.documents.textpath import load_json
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound, StorageError, refuse_empty
from feedmill.formats.arrays import read_arrays, write_arrays
from feedmill.formats.base import Dataset
from feedmill.formats.mediatable import KINDS, MediaTable
from feedmill.formats.offsets import hash_words
from feedmill.jobs.cores import available_cores
from feedmill.jobs.engine import Policy, Where, current
from feedmill.jobs.options import verb
from feedmill.jobs.progress import Progress
from feedmill.jobs.reports import VerbReport
from feedmill.jobs.results import kept_results
from feedmill.jobs.run import run
from feedmill.samples.open import open as open_dataset
from feedmill.samples.token_rules.processor import ProcessorRules, read_rules
from feedmill.samples.token_rules.rule import UNKNOWN
from feedmill.storage import LocalStore
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.folders import cache_folder
from feedmill.tokens.chat.forms import form_of
from feedmill.tokens.chat.reader import ChatReader, ChatSpec, special_tokens
from feedmill.tokens.options import Lengths
from feedmill.tokens.realprocessor import RealProcessor
from feedmill.tokens.tokenizer import Tokenizer, load_tokenizer

logger = logging.getLogger("feedmill")

FOLDER = "lengths"
PART = 1 << 14
"""Samples of one part."""
_VERSION = 1
_AT_ONCE = 256
_NAMED = 5
"""Samples that the report names for each reason."""
_NO_TEXT = "text: "
Text = tuple[str | None, str]
"""The text of a sample, or None and why it has none."""


class Refused(NamedTuple):
    """Samples without a length, for one reason.

    Attributes:
        keys: of the first of them.
    """

    reason: str
    samples: int
    keys: list[str]


class Miss(NamedTuple):
    """A sample whose predicted length is not that of the processor.

    Attributes:
        real: tokens that the processor makes; None if it raises an error.
        error: that error.
    """

    key: str
    sample: int
    predicted: int
    real: int | None
    error: str = ""


@dataclass(frozen=True, slots=True)
class LengthsReport(VerbReport):
    """Report of the lengths of the samples of a dataset.

    Attributes:
        path: The dataset.
        processor: Class of the processor.
        folder: Folder of the lengths.
        measured: Whether the processor itself was run on all samples.
        samples: Samples of the dataset; `counted`: those that have a length.
        reused: Samples that an earlier run had counted.
        tokens: Sum of all lengths; `shortest`, `median` and `longest`: of the samples.
        longest_key: Key of the longest sample.
        refused: Samples without a length by reason, the most frequent first.
        left_out: Parts with media that were not chosen -> number of media.
        defaults: Parameters that the processor's files lack -> the values that were used.
        checked: Samples that were compared with the processor itself, and `misses` among them.
    """

    path: str
    processor: str
    folder: str
    measured: bool
    samples: int
    counted: int
    reused: int
    tokens: int
    shortest: int
    median: int
    longest: int
    longest_key: str
    refused: list[Refused]
    left_out: dict[str, int]
    defaults: dict[str, Any]
    checked: int
    misses: list[Miss]
    seconds: float

    @property
    def lengths(self) -> npt.NDArray[np.int32]:
        """Return the tokens of each sample, int32[samples]; -1 for those without a length.

        Raises:
            NotFound: The lengths were removed from the cache folder.
        """
        store = LocalStore(self.folder)
        parts = [_read(store, number, size) for number, size in _parts(self.samples)]
        whole = [part.lengths for part in parts if part is not None]
        if len(whole) != len(parts):
            raise NotFound(
                "the lengths are not in the cache folder any more", file=self.folder, fix="Count them again."
            )
        return np.concatenate(whole)


@verb(Lengths)
def lengths(options: Lengths) -> LengthsReport:
    """Return a report; its `lengths` are the tokens of each sample. A second run reuses what the first has counted.

    Raises:
        NotFound: The folder has no configuration of a processor, or no tokenizer.
        ConfigError: The processor has no rule, the dataset has no media metadata, or an option or the template is
            invalid.
        EmptyResult: No sample has a length.
        MissingExtra: tokenizers or jinja2 is not installed; or transformers, to run the processor itself.
    """
    begun = time.monotonic()
    path = os.fspath(options.path)
    if options.text is not None and (options.chat_template is not None or options.chat_template_args):
        raise ConfigError(
            "--chat-template is for conversations, and --text names a part of plain text",
            kind="bad-option",
            fix="Pass one of them.",
        )
    if options.measure and options.check is not None:
        raise ConfigError(
            "--check compares rules with the processor, and --measure uses no rules",
            kind="bad-option",
            fix="Pass one of them.",
        )
    dataset = _opened(options)
    table, left_out = _chosen(dataset.media_table(), options.media, path)
    counter = _Counter(dataset, options)
    made = counter.rules
    try:
        if made is not None:
            _refuse_other_tokens(made, table, counter.tokenizer)
        job = _Job(counter, table, options)
        store, parts, reused = job.all_parts(options.progress)
        found = np.concatenate([np.empty(0, np.int32), *(part.lengths for part in parts)])
        counted = found[found >= 0]
        refused = _refused(parts, dataset)
        refuse_empty(
            len(counted),
            len(dataset),
            "sample",
            file=path,
            skipped={each.reason: each.samples for each in refused},
            fix="Choose the text with --messages or --text, the media with --media, and check the chat template.",
            allow=None,
        )
        chosen = _to_check(found, table, options.check) if options.check else []
        misses = job.compare(chosen, found, options.progress) if chosen else []
    finally:
        counter.close()
    real = counter.real
    return LengthsReport(
        path=path,
        processor=made.name if made is not None else real.name if real is not None else "",
        folder=str(store.root),
        measured=options.measure,
        samples=len(dataset),
        counted=len(counted),
        reused=reused,
        tokens=int(counted.sum(dtype=np.int64)),
        shortest=int(counted.min()),
        median=int(np.median(counted)),
        longest=int(counted.max()),
        longest_key=dataset.locate(int(found.argmax())).key,
        refused=refused,
        left_out=left_out,
        defaults={} if made is None else dict(made.defaults),
        checked=len(chosen),
        misses=misses,
        seconds=time.monotonic() - begun,
    )


def _opened(options: Lengths) -> Dataset:
    return open_dataset(os.fspath(options.path), split=options.split, raw=True)


def _chosen(table: MediaTable, asked: Sequence[str] | None, path: str) -> tuple[MediaTable, dict[str, int]]:
    """Return the media of the chosen parts, and how many others the other parts have."""
    if not asked:
        return table, {}
    if unknown := [name for name in asked if name not in table.parts]:
        raise ConfigError(
            f"no sample has media in the part {unknown[0]!r}: parts with media are {', '.join(table.parts) or 'none'}",
            file=path,
            kind="bad-option",
            fix="Correct --media.",
        )
    keep = np.isin(table.part, [number for number, name in enumerate(table.parts) if name in asked])
    others = np.bincount(table.part[~keep], minlength=len(table.parts)).tolist()
    return table.where(keep), {name: count for name, count in zip(table.parts, others, strict=True) if count}


def _tokenizer(folder: str) -> Tokenizer:
    if not os.path.isfile(os.path.join(folder, "tokenizer.json")):
        raise NotFound(
            "the folder has no tokenizer.json, with which the processor's texts are counted",
            file=folder,
            kind="no-tokenizer",
            fix="Give the folder of the checkpoint, or save the processor again with its save_pretrained.",
        )
    return load_tokenizer(os.path.join(folder, "tokenizer.json"), "hf")


def _refuse_other_tokens(made: ProcessorRules, table: MediaTable, tokenizer: Tokenizer) -> None:
    """Raise `ConfigError` if the tokenizer does not have the placeholder of a kind of media that occurs."""
    for code, kind in enumerate(KINDS):
        rule = made.rules.get(kind)
        if rule is not None and (table.kind == code).any() and tokenizer.token_to_id(rule.placeholder) is None:
            raise ConfigError(
                f"the tokenizer has no token {rule.placeholder}, which stands for {kind} in texts of {made.name}",
                file=str(tokenizer.path),
                kind="unknown-token",
                fix="Give the folder of one checkpoint: its processor and its tokenizer.json belong together.",
            )


class _Texts:
    """Texts of samples, as the processor gets them.

    Attributes:
        identity: all that determines them.
    """

    def __init__(self, dataset: Dataset, tokenizer: Tokenizer, options: Lengths) -> None:
        self._dataset, self._part = dataset, options.text if options.text is not None else options.messages
        self._reader: ChatReader | None = None
        self.identity = f"text {self._part}"
        if options.text is None:
            name = None if options.chat_template is None else os.path.abspath(options.chat_template)
            spec = ChatSpec.of(tokenizer, self._form(), name, "none", options.chat_template_args)
            self._reader = ChatReader(spec)
            self.identity = f"messages {self._part} {spec}"

    def _form(self) -> str:
        """Return the form of the first conversation."""
        why = "there are no samples"
        for row, reason in self._rows(range(min(_AT_ONCE, len(self._dataset)))):
            try:
                if row is None:
                    raise BadDocument(reason)
                content = load_json(row)
                if not isinstance(content, dict):
                    raise BadDocument("it is no object with a conversation")
                form = form_of(content)
            except BadDocument as error:
                why = why if why != "there are no samples" else str(error)
                continue
            if form == "preference":
                raise ConfigError(
                    "the samples are pairs of preferences, which have two lengths each",
                    file=self._dataset.url,
                    kind="unsupported",
                    fix="Write each side to a sample of its own.",
                )
            return form
        raise ConfigError(
            f"no conversation in part {self._part!r} of the first samples: {why}",
            file=self._dataset.url,
            kind="bad-document",
            fix="Name the part with --messages, or a part of plain text with --text.",
        )

    def _rows(self, numbers: Sequence[int]) -> Iterator[tuple[bytes | None, str]]:
        for sample in self._dataset.read_raw(numbers):
            if self._part not in sample:
                yield None, f"the sample has no part {self._part!r}"
                continue
            row = bytes(sample.raw(self._part))
            # A part may be the list of messages itself.
            listed = self._reader is not None and row.lstrip()[:1] == b"["
            yield b'{"messages":' + row + b"}" if listed else row, ""

    def of(self, numbers: Sequence[int]) -> list[Text]:
        """Return the text of each sample, with placeholders of its media."""
        rows = list(self._rows(numbers))
        if self._reader is None:
            return [_decoded(row, reason) for row, reason in rows]
        records = iter(self._reader.records([row for row, _ in rows if row is not None]))
        out: list[Text] = []
        for row, reason in rows:
            if row is None:
                out.append((None, reason))
            else:
                record = next(records)
                out.append((record.text, record.reason))
        return out

    def close(self) -> None:
        """End the process that renders."""
        if self._reader is not None:
            self._reader.close()


def _decoded(row: bytes | None, reason: str) -> Text:
    if row is None:
        return None, reason
    try:
        return row.decode(), ""
    except UnicodeDecodeError:
        return None, "it is not UTF-8"


class _Part(NamedTuple):
    """Lengths of consecutive samples, and the number of the reason of each that has none."""

    lengths: npt.NDArray[np.int32]
    why: npt.NDArray[np.int32]
    reasons: list[str]


class _Counter:
    """Counts samples, by rules or with the processor itself.

    Args:
        dataset: with all samples.
        options: of the run.

    Attributes:
        rules: of the processor; None if it is run itself.
        real: the processor itself, if it is needed.
        tokenizer: of the processor.
        identity: all that determines counts, besides the dataset.
    """

    def __init__(self, dataset: Dataset, options: Lengths) -> None:
        folder = os.fspath(options.processor)
        self.dataset = dataset
        self.rules = None if options.measure else read_rules(folder, options.processor_args)
        self.tokenizer = _tokenizer(folder)
        self.real = RealProcessor(folder, options.processor_args) if options.measure or options.check else None
        self.texts = _Texts(dataset, self.tokenizer, options)
        self._special = special_tokens(self.tokenizer.path.parent)
        bos = self._special.get("bos_token")
        self._bos = bos if options.text is None and isinstance(bos, str) and bos else None
        self.identity = (
            self.tokenizer.hash,
            repr((self.tokenizer.around, self.tokenizer.settings, self._bos)),
            self.texts.identity,
            "" if self.rules is None else f"{self.rules.digest} {self.rules.identity}",
            self.real.identity if options.measure and self.real is not None else "",
        )

    def close(self) -> None:
        self.texts.close()

    def _length(self, text: str, written: str) -> int:
        """Return the tokens of a whole text. A template that writes BOS itself gets no second, as in transformers."""
        assert self.rules is not None
        self.tokenizer.template = not self._written_bos(written)
        return len(self.tokenizer.encode([self.rules.prepared(text, self._special)]).ids)

    def _written_bos(self, text: str) -> bool:
        return self._bos is not None and text.startswith(self._bos)

    def _plain(self, text: str) -> int:
        self.tokenizer.template = False
        return len(self.tokenizer.encode([text]).ids)

    def count(self, item: _Item, step: Callable[[], None] = lambda: None) -> _Part:
        """Return the lengths of consecutive samples; `step` is called after each."""
        without: dict[int, str] = {}
        last = ""

        def texts() -> Iterator[str]:
            nonlocal last
            for start in range(item.start, item.stop, _AT_ONCE):
                batch = range(start, min(start + _AT_ONCE, item.stop))
                for number, (text, reason) in zip(batch, self.texts.of(batch), strict=True):
                    if text is None:
                        without[number - item.start] = _NO_TEXT + reason
                    last = text or ""
                    yield last
                    step()

        if self.rules is not None:
            # A rule counts each text, as it expanded it, before it takes the next.
            length = lambda text: self._length(text, last)  # noqa: E731
            found, refused = self.rules.lengths(texts(), item.table, length, self._plain)
            reason_of = {int(each): reason for reason, rows in reversed(refused.items()) for each in rows}
        else:
            found, reason_of = self._measured(item, texts(), without)
        reason_of |= without  # a text that is not there fits no media, either
        found = found.copy()
        why = np.full(len(found), -1, np.int32)
        reasons: dict[str, int] = {}
        for number, reason in sorted(reason_of.items()):
            found[number] = UNKNOWN
            why[number] = reasons.setdefault(reason, len(reasons))
        return _Part(found, why, list(reasons))

    def _measured(
        self, item: _Item, texts: Iterator[str], without: Mapping[int, str]
    ) -> tuple[npt.NDArray[np.int32], dict[int, str]]:
        out, reason_of = np.full(item.stop - item.start, UNKNOWN, np.int32), {}
        for number, text in enumerate(texts):
            if number in without:
                continue
            try:
                out[number] = self.run_processor(item.start + number, text, item.table, number)
            except DataError as error:
                reason_of[number] = error.what
        return out, reason_of

    def run_processor(self, number: int, text: str, table: MediaTable, row: int) -> int:
        """Return the tokens that the processor makes of a sample. Raises `DataError` if it refuses the sample.

        Args:
            number: of the sample.
            text: of it.
            table: with the media of the sample, which is number `row` there.
        """
        assert self.real is not None
        rows = slice(*table.offsets[row : row + 2].tolist())
        kinds = [KINDS[kind] for kind in table.kind[rows].tolist()]
        names = [table.parts[part] for part in table.part[rows].tolist()]
        (sample,) = self.dataset.read_raw([number])
        media = [(kind, bytes(sample.raw(name))) for kind, name in zip(kinds, names, strict=True)]
        return self.real.count(text, media, special=not self._written_bos(text))


class _Item(NamedTuple):
    """A part: consecutive samples with their media."""

    number: int
    start: int
    stop: int
    table: MediaTable

    def __str__(self) -> str:
        return f"samples {self.start:,} to {self.stop:,}"


class _Remote:
    """The counter of a worker, which opens it from the options.

    Args:
        options: of the run.
        counter: that of this process.
    """

    def __init__(self, options: Lengths, counter: _Counter | None = None) -> None:
        self.options, self._counter = options, counter

    def __reduce__(self) -> tuple[type[_Remote], tuple[Lengths]]:
        return _Remote, (self.options,)

    def count(self, item: _Item) -> _Part:
        if self._counter is None:
            self._counter = _Counter(_opened(self.options), self.options)
        return self._counter.count(item)


def _count_part(remote: _Remote, item: _Item) -> tuple[int, _Part]:
    return item.number, remote.count(item)


class _Job:
    """The parts of a dataset: those that were counted before are read, and the others counted."""

    def __init__(self, counter: _Counter, table: MediaTable, options: Lengths) -> None:
        self.counter, self.table, self.options = counter, table, options
        self.dataset = dataset = counter.dataset
        words = (
            str(_VERSION),
            dataset.fingerprint(),
            str(dataset.split),
            str(len(dataset)),
            table.digest,
            *counter.identity,
        )
        self._key = hash_words(words)
        self._name = f"{FOLDER}/{self._key}"

    def all_parts(self, progress: bool | None) -> tuple[LocalStore, list[_Part], int]:
        """Return the folder, its parts, and how many samples were counted before."""
        cache = disk_cache(cache_folder())
        store = LocalStore(cache_folder() / self._name)
        every = _parts(len(self.dataset))
        parts = {number: part for number, size in every if (part := _read(store, number, size)) is not None}
        cache.hold_derived(self._name)
        todo = [number for number, _ in every if number not in parts]
        reused = sum(size for number, size in every if number in parts)

        def keep(number: int, part: _Part) -> None:
            parts[number] = part
            try:
                _write(store, number, part)
            except (OSError, FeedmillError) as error:
                raise StorageError(
                    f"the lengths cannot be kept: {error}",
                    file=store.locate(_file(number)),
                    fix="Set FEEDMILL_CACHE_DIR to a writable folder with enough space.",
                ) from None
            cache.hold_derived(self._name, written=f"{self._name}/{_file(number)}")

        with Progress("counting tokens", len(self.dataset), "samples", progress) as shown:
            shown.advance(reused)
            self._count(todo, shown, keep)
        return store, [parts[number] for number, _ in every], reused

    def _count(self, todo: Sequence[int], shown: Progress, keep: Callable[[int, _Part], None]) -> None:
        items = (self._item(number) for number in todo)
        if current() is not None:
            self._on_engine(todo, shown, keep)
        elif len(todo) < 2 or (self.options.workers or available_cores()) == 1:
            for item in items:
                keep(item.number, self.counter.count(item, functools.partial(shown.advance, 1)))
        else:
            shown.of_sizes([self._size(number) for number in todo])
            with closing(self._run(items, shown)) as results:
                for number, part in results:
                    keep(number, part)

    def _on_engine(self, todo: Sequence[int], shown: Progress, keep: Callable[[int, _Part], None]) -> None:
        """Count on an engine. Parts of a job array leave their results for the run that finishes."""
        with kept_results("lengths", self._key) as work:
            units = None if work is None else work.units
            known = {int(name): data for name, data in ({} if units is None else units.read()).items()}
            for number in known.keys() & set(todo):
                keep(number, _decoded_part(known[number]))
                shown.advance(self._size(number))
            left = [number for number in todo if number not in known]

            def record(found: tuple[int, _Part]) -> None:
                if units is not None:
                    units.add(str(found[0]), _encoded_part(found[1]))

            place = None if work is None else work.scratch
            where = Where("counting", self._key, place, numbers=left, record=record, lasting=work is not None)
            shown.of_sizes([self._size(number) for number in left])
            with closing(self._run((self._item(number) for number in left), shown, where)) as results:
                for number, part in results:
                    keep(number, part)

    def _run(self, items: Iterator[_Item], shown: Progress, where: Where | None = None) -> Any:
        # Workers compare nothing, so they need no processor for that.
        policy = Policy(shared=_Remote(replace(self.options, check=None), self.counter))
        workers = self.options.workers
        return run(_count_part, items, workers=workers, progress=shown, preload=(__name__,), policy=policy, where=where)

    def _size(self, number: int) -> int:
        return min(PART, len(self.dataset) - number * PART)

    def _item(self, number: int) -> _Item:
        start, stop = number * PART, number * PART + self._size(number)
        return _Item(number, start, stop, self.table.select(np.arange(start, stop)))

    def compare(self, chosen: Sequence[int], found: npt.NDArray[np.int32], progress: bool | None) -> list[Miss]:
        """Return the chosen samples of which the processor makes another number of tokens than `found`."""
        misses = []
        with Progress("comparing with the processor", len(chosen), "samples", progress) as shown:
            for number in chosen:
                ((text, _),) = self.counter.texts.of([number])
                predicted, error = int(found[number]), ""
                made: int | None = None
                try:
                    made = self.counter.run_processor(number, text or "", self.table, number)
                except DataError as raised:
                    error = raised.what
                if made != predicted:
                    misses.append(Miss(self.dataset.locate(number).key, number, predicted, made, error))
                shown.advance(1)
        return misses


def _to_check(found: npt.NDArray[np.int32], table: MediaTable, most: int) -> list[int]:
    """Return at most `most` samples, extremes first.

    Extremes: the longest and shortest, the most media, the thinnest, the largest and the smallest picture, the most
    frames and the longest sound. Half of the samples are these; the others are drawn, always the same.
    """
    able = np.flatnonzero(found >= 0)
    width, height = (np.maximum(side, 1) for side in table.upright)
    ranks: list[npt.NDArray[Any]] = [-found.astype(np.int64), found, -np.diff(table.offsets)]
    thin = np.maximum(width, height) / np.minimum(width, height)
    for each in (thin, width * height, -width * height, table.frames, table.samples):
        worst = np.full(len(found), -np.inf)
        np.maximum.at(worst, table.sample, each.astype(np.float64))
        ranks.append(-worst)
    count = min(most, len(able))
    orders = np.stack([able[np.argsort(rank[able], kind="stable")[:count]] for rank in ranks], axis=1)
    extremes = list(dict.fromkeys(orders.reshape(-1).tolist()))[: -(-count // 2)]
    others = np.setdiff1d(able, extremes)
    drawn = np.random.default_rng(0).permutation(others)[: count - len(extremes)]
    return [*extremes, *drawn.tolist()]


def _refused(parts: Sequence[_Part], dataset: Dataset) -> list[Refused]:
    counts: dict[str, int] = {}
    first: dict[str, list[int]] = {}
    for number, part in enumerate(parts):
        for code, reason in enumerate(part.reasons):
            rows = np.flatnonzero(part.why == code)
            counts[reason] = counts.get(reason, 0) + len(rows)
            first.setdefault(reason, []).extend((rows[:_NAMED] + number * PART).tolist())
    return [
        Refused(reason, counts[reason], [dataset.locate(each).key for each in first[reason][:_NAMED]])
        for reason in sorted(counts, key=lambda reason: -counts[reason])
    ]


def _parts(samples: int) -> list[tuple[int, int]]:
    """Return the number of each part, and how many samples it has."""
    return [(number, min(PART, samples - number * PART)) for number in range(-(-samples // PART))]


def _file(number: int) -> str:
    return f"{number:08d}"


def _read(store: LocalStore, number: int, size: int) -> _Part | None:
    """Return a part; None if it is not there, or damaged."""
    name = _file(number)
    try:
        if not store.exists(name):
            return None
        arrays = read_arrays(store, name)
        part = _Part(arrays["lengths"], arrays["why"], orjson.loads(arrays["reasons"].tobytes()))
        whole = part.lengths.shape == part.why.shape == (size,) and arrays["digest"].tobytes() == _digest(part)
    except (FeedmillError, KeyError, ValueError, OSError) as error:
        logger.warning("lengths of samples cannot be read and are counted again: %s", error)
        return None
    if not whole:
        logger.warning("lengths of samples are damaged and are counted again: %s", store.locate(name))
        return None
    return part


def _write(store: LocalStore, number: int, part: _Part) -> None:
    arrays = {
        "lengths": part.lengths.astype("<i4", copy=False),
        "why": part.why.astype("<i4", copy=False),
        "reasons": np.frombuffer(orjson.dumps(part.reasons), np.uint8),
        "digest": np.frombuffer(_digest(part), np.uint8),
    }
    write_arrays(store, _file(number), arrays)


def _encoded_part(part: _Part) -> bytes:
    return orjson.dumps([part.lengths.tolist(), part.why.tolist(), part.reasons])


def _decoded_part(data: bytes) -> _Part:
    lengths, why, reasons = orjson.loads(data)
    return _Part(np.array(lengths, np.int32), np.array(why, np.int32), reasons)


def _digest(part: _Part) -> bytes:
    digest = xxhash.xxh3_128(np.ascontiguousarray(part.lengths, "<i4").data)
    digest.update(np.ascontiguousarray(part.why, "<i4").data)
    digest.update(orjson.dumps(part.reasons))
    return digest.digest()
