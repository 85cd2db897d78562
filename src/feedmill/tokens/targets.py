"""What the verbs that rewrite token files write to: the form and the names of their targets, and the job on them, with
its seed and the files that are whole, so that a killed run is finished by the same command."""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
import orjson

from feedmill.errors import ConfigError
from feedmill.formats.offsets import hash_words
from feedmill.formats.tokens.manifest import manifest_path
from feedmill.jobs.work import Work
from feedmill.storage import Store, open_store, split_url
from feedmill.tokens.corpus import Corpus, format_of
from feedmill.tokens.outputs import FORMATS, LINES, Form, main_file

_PART = re.compile(r"\{part(?::0?(\d+))?\}")


def form_for(target: str, corpus: Corpus, *, drop_loss: bool = False) -> Form:
    """How a corpus is stored under a name.

    Args:
        drop_loss: write formats that keep no mask of the tokens to be learned, and lose it.

    Raises:
        ConfigError: the format cannot keep what the corpus has.
    """
    format = format_of(target)
    if (format == LINES) != (corpus.format == LINES):
        raise ConfigError(
            "lines of text are written to '.jsonl' files, and only they are",
            file=target,
            kind="mixed-formats",
            fix="Give the output the ending of the inputs; 'feedmill tokenize' makes tokens of text.",
        )
    if format not in ("pbin", "ds", "megatron", LINES):
        raise ConfigError(
            f"merging and shuffling do not write {format} files",
            file=target,
            kind="unknown-format",
            fix="Name a target that ends in .pbin, .ds, .bin or .jsonl.",
        )
    loss = corpus.has_loss and not drop_loss
    if loss and format != "ds":
        raise ConfigError(
            "this format has no place for the masks of tokens to be learned, which the inputs have",
            file=target,
            kind="no-loss-mask",
            fix="Write '.ds', or add --drop-loss.",
        )
    size = corpus.token_size
    name = corpus.tokenizer.name if corpus.tokenizer is not None and not corpus.name else corpus.name
    return Form(format, max(size, 2) if format in ("ds", "megatron") else size, name or None, loss)


def has_parts(target: str) -> bool:
    """Whether a target stands for several files."""
    return _PART.search(target) is not None


def part_path(target: str, part: int | str) -> str:
    """The path of one part: ``{part}`` is its name, or its number in five digits (``{part:3}``: in three).

    >>> part_path("x_{part}.ds", 7), part_path("{part:03}_x.ds", 7), part_path("x.{part}.ds", "val")
    ('x_00007.ds', '007_x.ds', 'x.val.ds')
    """
    return _PART.sub(lambda m: part if isinstance(part, str) else f"{part:0{int(m[1] or 5)}d}", target)


def higher_parts(target: str, first: int) -> list[str]:
    """The paths of numbered parts that are there, from number `first` up to the first one that is not."""
    found: list[str] = []
    while has_parts(target):
        path = part_path(target, first + len(found))
        folder, name = split_url(path)
        if not open_store(folder).exists(main_file(name)):
            break
        found.append(path)
    return found


def remove_part(path: str, format: str) -> None:
    """Remove one part with its manifest. The file by which it is recognised goes last: a killed run leaves it."""
    folder, name = split_url(path)
    store, main = open_store(folder), main_file(name)
    suffixes = FORMATS[format] if format != LINES else (".jsonl",)
    stem = main.removesuffix(suffixes[0])
    for other in (manifest_path(main), *(stem + suffix for suffix in suffixes[1:]), main):
        store.delete(other)


def need_parts(target: str, why: str) -> None:
    """Raises `ConfigError` where a target of several files does not say where their names differ."""
    if not has_parts(target):
        stem, dot, suffix = target.rpartition(".")
        raise ConfigError(
            f"{why} writes several files, and their names are the same",
            file=target,
            kind="no-part",
            fix=f"Write {{part}} where the part's name or number belongs, e.g. {stem}_{{part}}{dot}{suffix}.",
        )


class WrittenFile(msgspec.Struct, frozen=True):
    """A file that is whole: its path as given, its documents and tokens."""

    path: str
    documents: int
    tokens: int


class TargetJob:
    """One run; made by `job_on`.

    Attributes:
        seed: the one given, or one drawn at the first start.
        drawn: whether it was drawn.
        resumed: whether an earlier run left this job.
    """

    def __init__(self, work: Work, identity: Mapping[str, Any], seed: int | None) -> None:
        self._work, self._identity = work, identity
        self.drawn, self.resumed = seed is None, work.is_of(identity)
        self.seed = secrets.randbits(31) if seed is None else seed
        if self.resumed:
            work.begin(identity)
            self.seed = work.noted.get("seed", self.seed)

    @property
    def done(self) -> dict[str, WrittenFile]:
        """The files that are whole, by path."""
        found = {}
        for path, facts in self._work.units.read().items():
            with contextlib.suppress(msgspec.MsgspecError):
                found[path] = msgspec.json.decode(facts, type=WrittenFile)
        return found

    def begin(self) -> None:
        """From now on files of this job may be there."""
        self._work.begin(self._identity, seed=self.seed)

    def add(self, done: WrittenFile) -> None:
        """One more file is whole."""
        self._work.units.add(done.path, msgspec.json.encode(done))

    def finish(self) -> None:
        """All files are whole."""
        self._work.finish()


@contextlib.contextmanager
def job_on(target: str, words: dict[str, Any], *, seed: int | None, overwrite: bool) -> Iterator[TargetJob]:
    """A block in which one process writes a target; the job that was killed here, or a new one. Nothing is written yet.

    Args:
        target: path or URL of the (first) target, or its pattern.
        words: what decides the bytes, but for a seed that is not given.
        seed: None draws one, once for all runs of this job.
        overwrite: begin a new job in spite of another that was not finished.

    Raises:
        ConfigError: another job that writes here was not finished, or a number has more than 64 bits.
        StorageError: another process writes there (kind ``busy``).
    """
    try:
        text = orjson.dumps({**words, "seed": seed}, default=str, option=orjson.OPT_SORT_KEYS).decode()
    except orjson.JSONEncodeError as error:
        raise ConfigError(f"an option is not valid ({error})", kind="bad-number", fix="Give smaller numbers.") from None
    folder, name = split_url(target)
    identity = {"verb": "rewrite", "job": hash_words([text])}
    with Work(open_store(folder), name) as work:
        work.refuse_other(identity, overwrite=overwrite)
        yield TargetJob(work, identity, seed)


def refuse_existing(targets: Sequence[tuple[Store, str]], overwrite: bool) -> None:
    """Raises `ConfigError` where one of the targets is there already."""
    for store, path in targets:
        if not overwrite and store.exists(path):
            raise ConfigError(
                "it exists already",
                file=store.locate(path),
                kind="exists",
                fix="Name another file, or add --overwrite (Modalities: --file_existence_policy override).",
            )
