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

A plan opens the lengths of a whole dataset in each process and at each resume. They are kept once more, with the media
and patches of each sample, in one file ``lengths/<hash>``; see `_brief_file`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson
import xxhash

from feedmill._version import __version__
from feedmill.documents.batch import BadDocument
from feedmill.documents.textpath import load_json
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound, StorageError, refuse_empty
from feedmill.formats.arrays import read_arrays, write_arrays
from feedmill.formats.base import CountedOnRead, Dataset
from feedmill.formats.format import TRAIN_OR_ALL
from feedmill.formats.kept import KeptArrays
from feedmill.formats.mediatable import KINDS, MediaTable
from feedmill.formats.offsets import hash_words
from feedmill.jobs.engine import Policy, Where, current, in_units
from feedmill.jobs.options import verb
from feedmill.jobs.parts import kept_results
from feedmill.jobs.progress import Progress
from feedmill.jobs.reports import VerbReport
from feedmill.jobs.resources import available_cores
from feedmill.jobs.run import run
from feedmill.samples.counted import CountedDataset, Refused, SampleLengths
from feedmill.samples.open import open as open_dataset
from feedmill.samples.token_rules.processor import ProcessorRules, read_rules
from feedmill.samples.token_rules.rule import UNKNOWN
from feedmill.storage import LocalStore
from feedmill.storage.cache.chunks import disk_cache
from feedmill.storage.folders import cache_folder
from feedmill.storage.locks import FileLock
from feedmill.storage.staging import make_folder
from feedmill.tokens.chat.forms import EACH, form_of
from feedmill.tokens.chat.reader import NAMED_TEMPLATES, ChatReader, ChatSpec, special_tokens
from feedmill.tokens.options import Lengths
from feedmill.tokens.realprocessor import RealProcessor, tokenizer_of
from feedmill.tokens.tokenizer import Tokenizer

logger = logging.getLogger("feedmill")

FOLDER = "lengths"
PART = 1 << 14
"""Samples of one part."""
_VERSION = 2
_AT_ONCE = 256
_NAMED = 5
"""Samples that the report names for each reason."""
_NO_TEXT = "text: "
Text = tuple[str | None, str]
"""The text of a sample, or None and why it has none."""


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
        split: Its split; None: all of it.
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
    split: str | None
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
    job = _job(open_dataset(path, split=TRAIN_OR_ALL if options.split is None else options.split, raw=True), options)
    with job:
        parts, found, refused = job.collected(options.progress)
        chosen = _to_check(found, job.table, options.check_samples) if options.check_samples else []
        misses = job.compare(chosen, found, options.progress) if chosen else []
    counted = found[found >= 0]
    return LengthsReport(
        path=path,
        split=job.dataset.split,
        processor=job.name,
        folder=str(parts.store.root),
        measured=options.measure,
        samples=len(job.dataset),
        counted=len(counted),
        reused=parts.reused,
        tokens=int(counted.sum(dtype=np.int64)),
        shortest=int(counted.min()),
        median=int(np.median(counted)),
        longest=int(counted.max()),
        longest_key=job.dataset.locate(int(found.argmax())).key,
        refused=refused,
        left_out=job.left_out,
        defaults={} if job.rules is None else dict(job.rules.defaults),
        checked=len(chosen),
        misses=misses,
        seconds=time.monotonic() - begun,
    )


def lengths_by(dataset: Dataset, processor: str | os.PathLike[str], **options: Any) -> CountedDataset:
    """Return a dataset with the tokens of its samples; see `Dataset.lengths_by`."""
    if dataset.lengths is not None or isinstance(dataset, CountedOnRead):
        raise ConfigError(
            f"lengths are counted for samples: the format {dataset.format} has tokens already",
            file=dataset.url,
            kind="unsupported",
            fix="Remove 'lengths'.",
        )
    given = Lengths(dataset.url, processor=processor, **options)
    again = partial(_counts, options=given)
    return CountedDataset(dataset, again(dataset), again)


def _counts(dataset: Dataset, options: Lengths) -> SampleLengths:
    """Return the lengths of the samples, from the cache folder as far as they are there."""
    brief = _brief_file(dataset, options)
    known = None if brief is None else _brief(brief, dataset, options)
    if known is not None:
        return known
    with _job(dataset, options) as job:
        # Every worker process of a loader does this: what is there already is not worth a line.
        _, found, refused = job.collected(options.progress if job.lacks_parts else False)
    counts = SampleLengths(found, refused, np.diff(job.table.offsets), job.identity, job.vision)
    if brief is not None:
        _write_brief(brief, counts)
    return counts


def _brief_file(dataset: Dataset, options: Lengths) -> KeptArrays | None:
    """Return what is kept of the lengths of a whole dataset; None if its name cannot be known in short.

    Ranks and their workers open a plan at the same time, and again at each resume. The name needs no table of media,
    which takes a minute of processor time for 10^7 of them, and no process that renders.
    """
    version = dataset.media_version()
    folder = Path(options.processor)
    if version is None or options.measure or not folder.is_dir():
        return None
    rules = read_rules(os.fspath(folder), options.processor_args)
    beside = (*folder.iterdir(), *(folder / NAMED_TEMPLATES).glob("*"))
    files = sorted(path for path in beside if path.suffix in (".json", ".jinja") and path.is_file())
    if options.chat_template is not None and Path(options.chat_template).is_file():
        files.append(Path(options.chat_template))
    digest, dated = xxhash.xxh3_128(), False
    for path in files:
        if path.name.endswith(".index.json"):
            continue  # of weights
        data = path.read_bytes()
        dated |= b"strftime_now" in data
        digest.update(f"{path.name} {len(data)}\0".encode())
        digest.update(data)
    named = {name: getattr(options, name) for name in ("messages", "text", "chat_template_args", "media")}
    words = (
        f"whole {_VERSION} {__version__}",
        dataset.fingerprint(),
        f"{dataset.split} {len(dataset)} {version}",
        digest.hexdigest(),
        f"{rules.digest} {rules.identity}",
        f"{named} {options.chat_template}",
        date.today().isoformat() if dated else "",
    )
    return KeptArrays(
        f"{FOLDER}/{hash_words(words)}",
        "lengths of samples cannot be read and are put together again",
        "lengths of samples cannot be kept in short",
    )


def _brief(kept: KeptArrays, dataset: Dataset, options: Lengths) -> SampleLengths | None:
    """Return the lengths of a whole dataset from one file; None if it is not there, or damaged."""
    arrays = kept.read()
    if arrays is None or arrays["tokens"].shape != (len(dataset),):
        return None
    about = orjson.loads(arrays["about"].tobytes())
    refused = [Refused(*each) for each in about["refused"]]

    def look() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        if "patches" in arrays:
            return arrays["patches"], arrays["squares"]
        with _job(dataset, options) as job:
            return job.vision()

    return SampleLengths(arrays["tokens"], refused, arrays["media"].astype(np.int64), about["identity"], look)


def _write_brief(kept: KeptArrays, counts: SampleLengths) -> None:
    arrays = {
        "tokens": counts.tokens.astype("<i4", copy=False),
        "media": counts.media.astype("<i4"),
        "about": np.frombuffer(
            orjson.dumps({"refused": list(map(list, counts.refused)), "identity": counts.identity}), np.uint8
        ),
    }
    with contextlib.suppress(ConfigError):  # raised again if patches are asked for
        patches, squares = counts.vision
        arrays |= {"patches": patches.astype("<i8", copy=False), "squares": squares.astype("<i8", copy=False)}
    kept.write(arrays)


def _job(dataset: Dataset, options: Lengths) -> _Job:
    """Return what counts the samples of a dataset. Raises as `lengths` does."""
    path = dataset.url
    if options.text is not None and (options.chat_template is not None or options.chat_template_args):
        raise ConfigError(
            "--chat-template is for conversations, and --text names a part of plain text",
            kind="bad-option",
            fix="Pass one of them.",
        )
    if options.measure and options.check_samples is not None:
        raise ConfigError(
            "--check-samples compares rules with the processor, and --measure uses no rules",
            kind="bad-option",
            fix="Pass one of them.",
        )
    table, left_out = _chosen(dataset.media_table(), options.media, path)
    counter = _Counter(dataset, options)
    try:
        if counter.rules is not None:
            _refuse_other_tokens(counter.rules, table, counter.tokenizer)
    except BaseException:
        counter.close()
        raise
    return _Job(counter, table, options, left_out)


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
        identity: all that determines them; `settings`: the same but for the date of today, which some templates write.
    """

    def __init__(self, dataset: Dataset, tokenizer: Tokenizer, options: Lengths) -> None:
        self._dataset, self._part = dataset, options.text if options.text is not None else options.messages
        self._reader: ChatReader | None = None
        self.identity = self.settings = f"text {self._part}"
        if options.text is None:
            name = None if options.chat_template is None else os.fspath(options.chat_template)
            if name is not None and os.path.exists(name):  # else the name of one of the tokenizer's templates
                name = os.path.abspath(name)
            self._refuse_other_samples()
            spec = ChatSpec.of(tokenizer, EACH, name, "none", options.chat_template_args, media=True)
            self._reader = ChatReader(spec)
            self.identity = f"messages {self._part} {spec}"
            self.settings = f"messages {self._part} {replace(spec, today=None)}"

    def _refuse_other_samples(self) -> None:
        """Raise `ConfigError` if none of the first samples has a conversation, before all are read."""
        why = "there are no samples"
        for row, reason in self._rows(range(min(_AT_ONCE, len(self._dataset)))):
            try:
                if row is None:
                    raise BadDocument(reason)
                content = load_json(row)
                if not isinstance(content, dict | list):
                    raise BadDocument("it is not an object with a conversation")
                form = "messages" if isinstance(content, list) else form_of(content)
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
            return
        parts = "" if not len(self._dataset) else f" (the first has {', '.join(self._dataset.read_raw([0])[0])})"
        raise ConfigError(
            f"no conversation in part {self._part!r} of the first samples: {why}{parts}",
            file=self._dataset.url,
            kind="bad-document",
            fix="Name the part with --messages, or a part of plain text with --text.",
        )

    def _rows(self, numbers: Sequence[int]) -> Iterator[tuple[bytes | None, str]]:
        for sample in self._dataset.read_raw(numbers):
            if self._part not in sample:
                yield None, f"the sample has no part {self._part!r}"
                continue
            yield bytes(sample.raw(self._part)), ""

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


class _Parts(NamedTuple):
    """The parts of a dataset, the folder that has them, and how many samples an earlier run had counted."""

    store: LocalStore
    parts: list[_Part]
    reused: int


class _Counter:
    """Counts samples, by rules or with the processor itself.

    Args:
        dataset: with all samples.
        options: of the run.

    Attributes:
        rules: of the processor; None if it is run itself.
        real: the processor itself, if it is needed.
        tokenizer: of the processor.
        words: all that determines counts, besides the dataset.
        identity: the same in short, by what it is, for a plan.
    """

    def __init__(self, dataset: Dataset, options: Lengths) -> None:
        folder = os.fspath(options.processor)
        self.dataset = dataset
        self.rules = None if options.measure else read_rules(folder, options.processor_args)
        self.tokenizer = tokenizer_of(folder)
        self.real = RealProcessor(folder, options.processor_args) if options.measure or options.check_samples else None
        self.texts = _Texts(dataset, self.tokenizer, options)
        self._special = special_tokens(self.tokenizer.path.parent)
        bos = self._special.get("bos_token")
        self._bos = bos if options.text is None and isinstance(bos, str) and bos else None
        around = repr((self.tokenizer.around, self.tokenizer.settings, self._bos))
        rules = "" if self.rules is None else f"{self.rules.digest} {self.rules.identity}"
        measured = self.real.identity if options.measure and self.real is not None else ""
        self.words = (self.tokenizer.hash, around, self.texts.identity, rules, measured)
        files = measured if self.rules is None else self.rules.digest
        name = self.rules.name if self.rules is not None else self.real.name if self.real is not None else ""
        self.identity = {
            "processor": f"{name} {hash_words([files])[:16]}",
            "tokenizer": hash_words([self.tokenizer.hash, around])[:16],
            "texts": hash_words([self.texts.settings])[:16],
            "token rules": "none" if self.rules is None else hash_words([self.rules.identity])[:16],
        }

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
    """The counter of a worker, which makes its own.

    Args:
        dataset: with all samples.
        options: of the run.
        counter: that of this process.
    """

    def __init__(self, dataset: Dataset, options: Lengths, counter: _Counter | None = None) -> None:
        self.dataset, self.options, self._counter = dataset, options, counter

    def __reduce__(self) -> tuple[type[_Remote], tuple[Dataset, Lengths]]:
        return _Remote, (self.dataset, self.options)

    def count(self, item: _Item) -> _Part:
        if self._counter is None:
            self._counter = _Counter(self.dataset, self.options)
        return self._counter.count(item)


def _count_part(remote: _Remote, item: _Item) -> tuple[int, _Part]:
    return item.number, remote.count(item)


class _Job:
    """The parts of a dataset: those that were counted before are read, and the others counted."""

    def __init__(self, counter: _Counter, table: MediaTable, options: Lengths, left_out: dict[str, int]) -> None:
        self.counter, self.table, self.options, self.left_out = counter, table, options, left_out
        self.dataset, self.rules, self.real = counter.dataset, counter.rules, counter.real
        dataset = counter.dataset
        words = (
            str(_VERSION),
            dataset.fingerprint(),
            str(dataset.split),
            str(len(dataset)),
            table.digest,
            *counter.words,
        )
        self._key = hash_words(words)
        self._name = f"{FOLDER}/{self._key}"
        self.identity = counter.identity

    @property
    def name(self) -> str:
        """Return the class of the processor."""
        return self.rules.name if self.rules is not None else self.real.name if self.real is not None else ""

    def __enter__(self) -> _Job:
        return self

    def __exit__(self, *error: object) -> None:
        self.counter.close()

    def vision(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return patches and their squares by sample. Raises `ConfigError` if no rule says them."""
        if self.rules is None:
            raise ConfigError(
                "the patches of a vision tower are not known of lengths that were measured",
                file=self.dataset.url,
                kind="unsupported",
                fix="Limit the 'media' of a row in place of its 'patches', and balance by tokens or attention.",
            )
        return self.rules.vision(self.table)

    def collected(self, progress: bool | None) -> tuple[_Parts, npt.NDArray[np.int32], list[Refused]]:
        """Return the parts, the length of each sample, and those without. Raises `EmptyResult` if no sample has one."""
        parts = self.all_parts(progress)
        found = np.concatenate([np.empty(0, np.int32), *(part.lengths for part in parts.parts)])
        refused = _refused(parts.parts, self.dataset)
        refuse_empty(
            int((found >= 0).sum()),
            len(self.dataset),
            "sample",
            file=self.dataset.url,
            skipped={each.reason: each.samples for each in refused},
            fix="Choose the text with --messages or --text, the media with --media, and check the chat template.",
            allow=None,
        )
        return parts, found, refused

    def all_parts(self, progress: bool | None) -> _Parts:
        """Return the folder, its parts, and how many samples were counted before."""
        cache = disk_cache(cache_folder())
        store = LocalStore(cache_folder() / self._name)
        every = _parts(len(self.dataset))
        parts: dict[int, _Part] = {}

        def read() -> list[int]:
            parts.update({n: part for n, size in every if n not in parts and (part := _read(store, n, size))})
            return [number for number, _ in every if number not in parts]

        def keep(number: int, part: _Part) -> None:
            parts[number] = part
            try:
                _write(store, number, part)
            except (OSError, FeedmillError) as error:
                raise _not_kept(error, store, number) from None
            cache.hold_derived(self._name, written=f"{self._name}/{_file(number)}")

        with Progress("counting tokens", len(self.dataset), "samples", progress) as shown:
            if (todo := read()) or current() is not None:  # a part of a job array ends as one
                with self._alone(store, next(iter(todo), 0)):
                    todo = read()  # another process may have counted them
                    shown.advance(sum(size for number, size in every if number in parts))
                    reused = len(self.dataset) - sum(self._size(number) for number in todo)
                    self._count(todo, shown, keep)
            else:
                reused = len(self.dataset)
                shown.advance(reused)
        cache.hold_derived(self._name)
        return _Parts(store, [parts[number] for number, _ in every], reused)

    def _alone(self, store: LocalStore, number: int) -> contextlib.AbstractContextManager[object]:
        """Return a lock: if several processes need lengths, one counts them and the others wait."""
        if current() is not None:
            return contextlib.nullcontext()  # parts of a job array on one machine count different ones
        try:
            make_folder(os.fspath(store.root))
            return FileLock(Path(store.root) / "count.lock", wait=True)
        except (OSError, StorageError) as error:
            raise _not_kept(error, store, number) from None

    def _count(self, todo: Sequence[int], shown: Progress, keep: Callable[[int, _Part], None]) -> None:
        items = (self._item(number) for number in todo)
        if in_units():
            self._on_engine(todo, shown, keep)
        elif len(todo) < 2 or (self.options.workers or available_cores()) == 1:
            for item in items:
                keep(item.number, self.counter.count(item, partial(shown.advance, 1)))
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
        policy = Policy(shared=_Remote(self.dataset, replace(self.options, check_samples=None), self.counter))
        workers = self.options.workers
        return run(_count_part, items, workers=workers, progress=shown, preload=(__name__,), policy=policy, where=where)

    def _size(self, number: int) -> int:
        return min(PART, len(self.dataset) - number * PART)

    def _item(self, number: int) -> _Item:
        start, stop = number * PART, number * PART + self._size(number)
        return _Item(number, start, stop, self.table.select(np.arange(start, stop)))

    @property
    def lacks_parts(self) -> bool:
        """Return whether samples are not counted yet."""
        store = LocalStore(cache_folder() / self._name)
        return not all(store.exists(_file(number)) for number, _ in _parts(len(self.dataset)))

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


def _not_kept(error: Exception, store: LocalStore, number: int) -> StorageError:
    return StorageError(
        f"the lengths cannot be kept: {error}",
        file=store.locate(_file(number)),
        fix="Set FEEDMILL_CACHE_DIR to a writable folder with enough space.",
    )


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
