"""Errors with file and record, what was expected and found, and how to fix it.

Every error that Feedmill raises intentionally is a `FeedmillError`. The command line prints it as one message without a
traceback; `check` collects the same objects as findings. `kind` is a short stable word that programs can match on:
`KINDS` lists them all.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from functools import wraps
from operator import index
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

DEBUG = "FEEDMILL_DEBUG"
"""Environment variable: with 1, errors keep the frames of this package, and verbs print the traceback."""

IN_WORKER = "in a worker process:"
"""Beginning of the note with the frames of a worker process."""

_Error = TypeVar("_Error", bound=BaseException)
Function = TypeVar("Function", bound=Callable[..., Any])


class FeedmillError(Exception):
    """Base class of the errors that Feedmill raises.

    Args:
        what: what is wrong, with what was expected and what was found.
        file: path or URL of the affected file.
        offset: byte offset in that file.
        record: affected key, member or line.
        fix: what to do about it, as a sentence.
        kind: a short stable word for programs, one of `KINDS`.
    """

    default_kind = "error"

    def __init__(
        self,
        what: str,
        *,
        file: str | None = None,
        offset: int | None = None,
        record: str | None = None,
        fix: str | None = None,
        kind: str | None = None,
    ) -> None:
        self.what = what
        self.file = None if file is None else os.fspath(file)
        self.offset = offset
        self.record = record
        self.fix = fix
        self.kind = kind or self.default_kind
        super().__init__(what)

    def __str__(self) -> str:
        where = [self.file] if self.file else []
        if self.record is not None:
            where.append(f"{self.record!r}")
        if self.offset is not None:
            where.append(f"at byte {self.offset}")
        head = " ".join(part for part in where if part)
        text = f"{head}: {self.what}" if head else self.what
        return f"{text.rstrip('.')}. {self.fix}" if self.fix else text

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions with keyword arguments do not pickle by default, and workers send these to the main process.
        notes = {"__notes__": list(self.__notes__)} if hasattr(self, "__notes__") else None
        return _rebuild, (type(self), self.what, self.as_dict()), notes

    def as_dict(self) -> dict[str, Any]:
        """Return the error as plain data, for ``--json``; absent fields are skipped."""
        fields = {"kind": self.kind, "file": self.file, "offset": self.offset, "record": self.record}
        return {k: v for k, v in {**fields, "what": self.what, "fix": self.fix}.items() if v is not None}


def defect_of(error: BaseException) -> FeedmillError:
    """Return an unexpected exception as an error of kind ``defect``, with where it occurred and where to report it."""
    where, trace = "", error.__traceback__
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.partition(".")[0] == "feedmill":
            where = f" in {module}, line {trace.tb_lineno}"
        trace = trace.tb_next
    text = " ".join(str(error).split())[:300]
    return FeedmillError(
        f"this is a defect of Feedmill ({type(error).__name__}{where}{': ' if text else ''}{text})",
        kind="defect",
        fix="Report it in the issue tracker of the project, with the command and, if possible, the file that it read."
        " FEEDMILL_DEBUG=1 shows the traceback.",
    )


def debugging() -> bool:
    """Return whether errors show the code of this package."""
    return os.environ.get(DEBUG) == "1"


def shortened(error: _Error) -> _Error:
    """Return an error without the frames of this package, which say nothing about a mistake in a user's function.

    Its causes keep the frames of other code, such as the user's transform; causes without any that are an error of this
    package too are removed. An exception that is no `FeedmillError` is only changed if a function of the user raised
    it. With `DEBUG`, nothing changes.
    """
    if debugging():
        return error
    if isinstance(error, FeedmillError) or any(note.startswith(IN_WORKER) for note in getattr(error, "__notes__", ())):
        error.__traceback__ = None  # a note has the frames of the worker
    else:
        frames = _foreign_frames(error.__traceback__)
        if frames is None or not _is_of_user(frames):
            return error
        error.__traceback__ = frames
    above: BaseException = error
    for _ in range(_MOST_CAUSES):
        cause = above.__cause__ or (None if above.__suppress_context__ else above.__context__)
        if cause is None:
            break
        cause.__traceback__ = _foreign_frames(cause.__traceback__)
        if cause.__traceback__ is None and isinstance(cause, FeedmillError):
            above.__cause__ = cause.__cause__  # also hides the context
        else:
            above = cause
    return error


_MOST_CAUSES = 50


def _is_of_user(trace: TracebackType | None) -> bool:
    """Return whether a frame is neither of Python nor of an installed package."""
    from sysconfig import get_paths

    installed = tuple(get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    while trace is not None:
        if not trace.tb_frame.f_code.co_filename.startswith((*installed, "<frozen")):
            return True
        trace = trace.tb_next
    return False


def _foreign_frames(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without the frames of this package."""
    own, kept = __name__.partition(".")[0], []
    while trace is not None:
        module = trace.tb_frame.f_globals.get("__name__", "")
        if module.partition(".")[0] != own and not module.startswith("concurrent.futures"):
            kept.append(trace)
        trace = trace.tb_next
    rest: TracebackType | None = None
    for each in reversed(kept):
        rest = TracebackType(rest, each.tb_frame, each.tb_lasti, each.tb_lineno)
    return rest


class Hinted:
    """Answers names of other libraries with what to use here: an AttributeError, so that `hasattr` is False.

    Attributes:
        hints: attribute -> a sentence.
    """

    __slots__ = ()
    hints: ClassVar[Mapping[str, str]] = {}

    if not TYPE_CHECKING:  # checkers would accept every name

        def __getattr__(self, name: str) -> Any:
            hint = type(self).hints.get(name)
            if hint is None:
                return object.__getattribute__(self, name)  # raises the error of the class, or that of a property
            raise AttributeError(f"a {type(self).__name__} has no attribute {name!r}. {hint}", name=name, obj=self)


def _rebuild(cls: type[FeedmillError], what: str, fields: dict[str, Any]) -> FeedmillError:
    error = cls.__new__(cls)
    FeedmillError.__init__(error, what, **{k: v for k, v in fields.items() if k != "what"})
    return error


PATTERN_ERRORS = (re.error, ValueError, OverflowError, RecursionError)
"""What `re.compile` raises for patterns of users: huge repetitions and deep nesting are no `re.error`."""
_MOST_DIGITS = 18
"""Digits of a number in a text; all numbers of 64 bits but the last few have them. Python refuses more than 4,300."""


def whole(text: str, what: str) -> int:
    """Return the whole number in a text, such as ``-12``.

    Args:
        what: what it is, for the message.

    Raises:
        ConfigError: it is not one, or has more than 18 digits.
    """
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise ConfigError(f"{what} is {text[:40]!r}, which is not a whole number", kind="bad-option")
    if len(digits.lstrip("0")) > _MOST_DIGITS:
        raise ConfigError(f"{what} has {len(digits)} digits: at most {_MOST_DIGITS} are supported", kind="bad-option")
    return int(text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` if a known name is similar, otherwise an empty string.

    >>> did_you_mean("Wieght", ["weight", "path"])
    " (did you mean 'weight'?)"
    >>> did_you_mean("score", ["source", "metadata.score"]), did_you_mean("code", ["topic=code", "topic=web"])
    (" (did you mean 'metadata.score'?)", " (did you mean 'topic=code'?)")
    """
    near = _similar(name, known, 1, 0.6)
    return f" (did you mean {near}?)" if near else ""


def suggesting(**others: str) -> Callable[[Function], Function]:
    """Let a function suggest a parameter for an unknown one: a similar name, or what `others` says of it.

    Its errors show the caller's frames, and not those of this package.
    """

    def decorate(function: Function) -> Function:
        code = function.__code__
        parameters = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
        known = [name for name in parameters if name not in ("self", "cls")]

        @wraps(function)
        def call(*arguments: Any, **named: Any) -> Any:
            unknown = next((name for name in named if name not in known), None)
            if unknown is not None:
                hint = f": {others[unknown]}" if unknown in others else did_you_mean(unknown, known)
                hint = hint or f": it has {', '.join(known)}."
                name = function.__qualname__.removesuffix(".__init__")
                raise TypeError(f"{name} has no parameter {unknown!r}{hint}")
            try:
                return function(*arguments, **named)
            except FeedmillError as error:
                raise shortened(error)  # noqa: B904 - its own cause stays

        return call  # type: ignore[return-value]

    return decorate


def integer(name: str, value: Any) -> int:
    """Return an integer of any type, such as NumPy's, as an int, because states are JSON. Raises ConfigError."""
    try:
        return index(value)
    except TypeError:
        raise ConfigError(f"{name}={value!r} is not a whole number", fix="Give a whole number.") from None


def suggestion(name: str, known: Iterable[str], otherwise: str = "", *, most: int = 1, cutoff: float = 0.6) -> str:
    """Return ``Did you mean 'x'?`` as the fix of an error, or `otherwise` if no known name is similar.

    Args:
        most: number of names that may be suggested, the most similar first.
        cutoff: how similar a name must be, from 0 to 1, as in `difflib.get_close_matches`.
    """
    near = _similar(name, known, most, cutoff)
    return f"Did you mean {near}?" if near else otherwise


def misspelled(given: Collection[Any], known: Iterable[str], cutoff: float = 0.8) -> tuple[Any, str] | None:
    """Return the first unknown key that looks like a known one that is not given, with its `suggestion`.

    It is for files that may have keys of other programs, which are ignored.
    """
    known = list(known)
    missing = [name for name in known if name not in given]
    hints = ((key, suggestion(str(key), missing, cutoff=cutoff)) for key in given if key not in known)
    return next(((key, hint) for key, hint in hints if hint), None)


_PARTS = re.compile(r"\.(?![.\d])|=|__")
"""What divides the parts of the names of columns and cells; not the dots of bins, such as ``0.2..0.5``."""


def _similar(name: str, known: Iterable[str], most: int, cutoff: float) -> str:
    from difflib import get_close_matches  # only needed for errors

    lowered = {word.lower(): word for word in known}
    ends = [word for low, word in lowered.items() if _PARTS.split(low)[-1] == name.lower() != low]
    if ends:  # 'score' of 'metadata.score', 'code' of 'topic=code'
        return " or ".join(map(repr, ends[:most])) if len(ends) <= most else ""
    return " or ".join(repr(lowered[near]) for near in get_close_matches(name.lower(), lowered, most, cutoff))


class DataError(FeedmillError):
    """The bytes are not what the format promises."""

    default_kind = "bad-data"


class ConfigError(FeedmillError):
    """A recipe, configuration file or argument is invalid, or asks for something that does not exist."""

    default_kind = "bad-config"


class NotFound(FeedmillError, LookupError):
    """A file, key, split or part does not exist."""

    default_kind = "not-found"


class StorageError(FeedmillError):
    """Reading or writing failed: permission, full disk, network."""

    default_kind = "storage"


class TrustError(FeedmillError):
    """The data would run code, and the user has not allowed that."""

    default_kind = "untrusted-code"


class MissingExtra(FeedmillError, ImportError):
    """An optional dependency is missing; the message has the command that installs it."""

    default_kind = "missing-extra"

    def __init__(self, what: str, extra: str = "", **fields: Any) -> None:
        if extra:
            fields.setdefault("fix", f"Install it with: pip install 'feedmill[{extra}]' (in a clone: '.[{extra}]')")
        super().__init__(what, **fields)


class EmptyResult(FeedmillError):
    """A run has nothing to write, and the user has not allowed an empty result; raised by `refuse_empty`."""

    default_kind = "empty-result"


def refuse_empty(
    kept: int,
    read: int,
    noun: str = "document",
    *,
    file: str | None = None,
    skipped: Mapping[str, int] | None = None,
    fix: str = "",
    allow: bool | None = False,
) -> None:
    """Raise `EmptyResult` if a run keeps nothing: the common rule of all verbs that write a dataset.

    Call it before the output is published.

    Args:
        kept: number of records kept.
        read: number of records in the inputs.
        noun: singular noun for a record.
        file: path or URL of the output.
        skipped: reason -> number of dropped records; the five most frequent reasons are listed.
        fix: what to do about it, as a sentence.
        allow: accept an empty result (``allow_empty``, on the command line ``--allow-empty``); None for functions
            without this option, whose error does not mention it.

    >>> refuse_empty(0, 3, skipped={"the text is null": 3})
    Traceback (most recent call last):
    feedmill.errors.EmptyResult: the result would be empty: 0 of 3 documents kept (3: the text is null). Pass \
--allow-empty if this is intended.
    """
    if kept or allow:
        return
    if read:
        reasons = sorted((skipped or {}).items(), key=lambda item: -item[1])
        listed = "; ".join(f"{count:,}: {reason}" for reason, count in reasons[:5])
        listed += f"; and {len(reasons) - 5:,} more reasons" if len(reasons) > 5 else ""
        found = f"0 of {read:,} {noun}{'' if read == 1 else 's'} kept" + (f" ({listed})" if listed else "")
    else:
        found = f"the inputs hold no {noun}s"
    raise EmptyResult(
        f"the result would be empty: {found}",
        file=file,
        fix=(fix if allow is None else f"{fix} Pass --allow-empty if this is intended.").strip(),
    )


KINDS: dict[str, dict[str, str]] = {
    "Options and configuration": {
        "ambiguous": "The input can be read in several ways. Pass the option that is named, or a narrower path.",
        "bad-config": "A configuration file is invalid. Correct it at the line shown.",
        "bad-expression": "An expression of jq or JSONPath is invalid or unsupported. Correct it where shown.",
        "bad-field-map": "The field map of a dataset does not fit its type or its parts. Correct it.",
        "bad-option": "An option or argument has an invalid value, or contradicts another. Correct it.",
        "bad-pattern": "A wildcard or regular expression is invalid, or matches nothing or too much. Correct it.",
        "empty-result": "Nothing would be written. Check the inputs and filters, or pass `--allow-empty`.",
        "exists": "The output exists already. Choose another one, or pass the option that overwrites it.",
        "input-is-output": "An output is also an input, or lies in one. Choose another output.",
        "listed-twice": "A file is given twice, or lies in a folder that is given too. Remove one of them.",
        "loses-content": "The result would lack a part of the input. Allow it with the option named.",
        "missing-option": "A required option or argument is missing. Pass it.",
        "name-clash": "Two inputs would become one output, or two things have one name. Rename one of them.",
        "no-conversion": "The target format cannot store this. Choose another format, or leave the part out.",
        "not-found": "There is no such file, folder or name. Check the path.",
        "unknown-format": "The data has no known format, or there is no such format. Check the path or the name.",
        "unknown-option": "There is no option or setting of this name. Check the spelling.",
        "unsupported": "The data or the call is valid, but Feedmill does not support it. See the message.",
    },
    "Damaged and unexpected data": {
        "bad-compression": "A compressed file is damaged. Restore it.",
        "bad-costs": "The lengths or costs of samples are invalid. Write the index again, or choose another cost.",
        "bad-data": "The bytes are not what the format promises. Restore the file, or write it again.",
        "bad-document": "A document, or a row about it, is not as expected. Fix the row that is named, or skip it.",
        "bad-encoding": "A text is not valid in its encoding. Pass the encoding, or fix the text.",
        "bad-header": "A header is damaged, or a file has an invalid one. Restore the file, or run `repair`.",
        "bad-index": "An index, a manifest or other metadata is damaged or missing. Run `prepare`, or write it again.",
        "bad-line": "A line is not valid JSON or CSV. Correct it, or run `repair`.",
        "bad-log": "A log has nothing that can be shown. Check that a training run wrote it.",
        "bad-mask": "A loss mask, or a marker of answers, does not fit its tokens. Check the option or the data.",
        "bad-media": "An image, a sound or a video does not decode, or lacks what is asked. Fix or exclude the sample.",
        "bad-name": "A name of a file, a key or a part cannot be stored or used. Rename it.",
        "bad-part": "A part of a sample does not decode. Fix or exclude the sample.",
        "bad-pickle": "A pickle or a `.pth` file is malformed, or holds other data than expected. Write it again.",
        "bad-rollout": "An answer of rollouts lacks something, or contradicts itself or another. Correct it.",
        "bad-statistics": "Statistics for normalization are missing or do not fit the data. Compute them again.",
        "changed": "A file is not the one that was read before. Run the command again, or restore the file.",
        "compressed-shard": "A compressed tar has no random access. Decompress it, or use `convert`.",
        "data-after-end": "A tar has data after its end, which tar readers do not see. Split it, or write it again.",
        "duplicate-key": "Two samples have the same key. Rename one of them.",
        "duplicate-part": "A sample or a table has two parts or columns of one name. Rename one of them.",
        "empty-file": "A file has no content. Restore or delete it.",
        "expands-too-far": "A value would need much more memory than its stored bytes. Do not trust the file.",
        "hash-mismatch": "The content differs from its stored hash. Restore the file, or make the index again.",
        "misaligned-attributes": "Attributes and documents do not correspond. Run `tag` again.",
        "missing-field": "A sample lacks a part or a field. Fix or exclude the sample, or correct the field map.",
        "missing-shard": "A file of the dataset is missing. Restore it, or make the index again.",
        "mixed-formats": "The input has files of several formats. Select those of one with a pattern or an option.",
        "no-column": "A table lacks a column, or it has no usable values. Name another one.",
        "no-documents": "There are no documents. Check the path and the suffixes of the files.",
        "no-end-marker": "A tar has no end-of-archive marker and may be truncated. Compare it with the original.",
        "no-parts": "A sample has no part that can be used. Check the selected fields.",
        "no-samples": "A shard or an input has no samples. Delete it, or skip it.",
        "no-times": "The frames of a video have no times. Read all its frames, or write it again.",
        "no-video": "A file has no video stream. Ask for its sound only, or exclude it.",
        "not-prepared": "The dataset or file has no index. Run `prepare`, or the command that is named.",
        "other-columns": "Files that must be alike have different columns, types or lengths. Write them alike.",
        "other-compression": "A file is compressed in another way than its name says. Rename it.",
        "other-format": "A file is whole, but not what its name or use says. Rename it, or pass another one.",
        "settings-differ": "Files that belong together were made with different settings. Make them again.",
        "split-samples": "The parts of a sample are not adjacent in its tar. Run `convert --regroup`.",
        "stale-attributes": "Attributes belong to an older text of the documents. Run `tag` again.",
        "stale-index": "The data differs from its index. Run `prepare` again, or restore the data.",
        "stray-members": "A tar has files that a system or archiver added. Run `convert`, which leaves them out.",
        "too-large": "A size or a number exceeds a limit of the format, the memory or Feedmill. Use less at once.",
        "truncated": "A file ends too early, or its writer did not finish. Restore or write it again, or run `repair`.",
        "unknown-exclude": "`split.yaml` excludes a sample that its shard does not have. Correct `split.yaml`.",
        "unknown-shard": "`split.yaml` names a shard that the index does not have. Correct it, or run `prepare`.",
        "unreadable-value": "A value of a table has no equal in Python. Leave the column out, or change its type.",
        "verification-failed": "A result differs from its source. Nothing was published; report it.",
        "wrong-count": "A file has another number of samples or bytes than was recorded. Restore or write it again.",
    },
    "Looking up": {
        "no-such-attribute": "There is no attribute of this name for the documents. Check the name, or run the tagger.",
        "no-such-sample": "There is no sample, document, position or step of this name or number. Check it.",
        "no-such-source": "The recipe has no source of this name. Check the name.",
        "no-such-split": "The dataset has no split of this name. Choose one of those listed.",
        "no-such-tagger": "There is no tagger of this name. Check the name, or pass the module that defines it.",
        "other-split": "The sample exists, but not in the split that is open. Open another split.",
    },
    "Recipes, plans and loading": {
        "bad-batch": "The samples of a batch, or its values, do not fit together. Fix the transform or the settings.",
        "bad-hook": "A function of yours returned something else than expected. Correct it.",
        "bad-plan": "A plan does not fit its sources or its use. Make it from a recipe.",
        "bad-recipe": "A recipe, or the same settings in Python, is invalid. Correct what is named.",
        "bad-skip": "A list of positions to skip is invalid or does not fit the plan. Correct the list.",
        "bad-state": "A saved state is damaged, or belongs to something else. Load the state of this run.",
        "empty-source": "A source has no samples or documents to draw from. Remove it, or check its filters.",
        "endless": "A plan without an end is used where an end is needed. Set a number of samples or epochs.",
        "function-failed": "A function of yours, or the decoding of a sample, raised an error. See its cause.",
        "no-cooker": "No cooker fits a dataset, or one lacks its auxiliary data. Add it to the task encoder.",
        "no-costs": "The lengths or costs of samples are unknown. Prepare the source, or choose another cost.",
        "no-substitute": "No sample can replace one that failed. Fix the data; most of the source is unusable.",
        "plan-changed": "The recipe differs from the one of the saved state. See the message for what may change.",
        "too-few-samples": "There are fewer samples than one step, row or window needs. Add data, or use less at once.",
        "too-many-repeats": "A source would be repeated more often than `max_repeats`. Lower its weight, or add data.",
        "too-short": "A text has fewer tokens than a sample needs. It is skipped.",
        "uneven-end": "The last step is too small for all ranks. Drop it, or change the batch size.",
        "unguarded-main": "The main program starts workers when it is imported. Guard it as the message shows.",
        "wrong-process": "An object is used in a process or thread that cannot use it. Make it there.",
    },
    "Tokens": {
        "bad-processor": "The files of a processor are invalid. Give the folder of the checkpoint's own processor.",
        "bad-template": "A chat template is missing, invalid, or does not take a variable. Pass another template.",
        "bad-token-size": "The size of a token is unknown, invalid or mixed. Pass `--token-size`.",
        "bad-tokenizer": "A file is not a tokenizer that can be read. Check the path and the file.",
        "lost-tokenizer": "The tokenizer that made the tokens is not where it was. Pass its new path.",
        "mixed-tokenizers": "Tokens of different tokenizers would be mixed. Use tokens of one tokenizer.",
        "no-lineage": "It is not recorded which documents a file was made from. Write it again with Feedmill.",
        "bad-lineage": "The record of the documents that a file was made from is damaged. Write the file again.",
        "no-processor": "A folder has no files of a processor. Give the folder of the checkpoint.",
        "no-tokenizer": "No tokenizer was found. Pass its path.",
        "no-tokens": "Token files were expected. Run `tokenize`, or name the column of tokens.",
        "token-too-large": "A token id does not fit the size of a token or the vocabulary. Use a larger token size.",
        "undecided-template": "Programs read a setting of the tokenizer differently. Pass the option that decides.",
        "unknown-token": "The tokenizer lacks a token, or it is not special. Name one that it has.",
        "unsupported-tokenizer": "A tokenizer cannot do what is asked. Use another backend or another tokenizer.",
    },
    "Storage": {
        "bad-cache": "The disk cache cannot be used, or is too small. Check its folder and its size.",
        "bad-credentials": "Credentials were rejected. Check them.",
        "bad-profile": "A storage profile is missing or invalid. Correct its configuration.",
        "bad-url": "A path or URL is malformed or of an unsupported scheme. Correct it.",
        "busy": "Another process or object is using this. Wait for it, or end it.",
        "clock-skew": "The clock of this machine is wrong. Set it.",
        "dangling-link": "The target of a link does not exist. Restore it, or remove the link.",
        "expired-token": "The session token has expired. Log in again.",
        "no-bucket": "There is no such bucket. Check the URL.",
        "no-connection": "The server cannot be reached. Check the network, then run the command again.",
        "no-credentials": "No credentials were found. Set those that the message names.",
        "not-a-file": "A link, a folder or a device is where a regular file is needed. Use a regular file.",
        "storage": "Reading or writing failed. Run the command again; see the message for the cause.",
        "timeout": "The server did not answer in time. Run the command again.",
        "wrong-region": "The bucket is in another region. Set the region.",
    },
    "Runs and processes": {
        "bad-job": "The journal of an interrupted run is damaged. Remove what the message names.",
        "demo": "The demo did not give what it promises. Report it.",
        "defect": "Feedmill has a bug. Report it.",
        "error": "Any other error. See the message.",
        "memory": "There is not enough memory to read a file. Use smaller pieces, or a larger machine.",
        "missing-extra": "An optional package is missing. Install it with the command shown.",
        "mount-failed": "The dataset cannot be mounted. Check FUSE and the mount point.",
        "no-cluster": "There is no usable Ray cluster at the address. Check the cluster and its nodes.",
        "no-resources": "No machine has the cores, memory, GPUs or labels that a unit needs. Declare less, or add one.",
        "not-portable": "A function cannot be sent to other processes. Define it at the top of a module.",
        "too-many-bad": "More samples failed than the limit allows. Fix them, or raise the limit.",
        "unfinished-job": "Another run that writes here was not finished. Finish it, or remove its work.",
        "worker-died": "A worker process was killed, or took too long. Check the memory, then run it again.",
        "worker-error": "A worker process raised an unexpected error. See the message.",
    },
    "Code in data": {
        "bad-model": "A model file of a tagger is missing or cannot be loaded. Pass a local file.",
        "bad-module": "A module with taggers is missing or fails. Check its path and its error.",
        "unsafe-name": "A name in the data leads out of its folder, or would run a command. Correct the data.",
        "unsafe-pickle": "A pickle would run code. Do not load it; write plain tensors.",
        "untrusted-code": "The data would run code. Pass `--trust` if you trust it.",
    },
    "Browser": {
        "bad-address": "A parameter of a page, or the address of a cluster, is invalid. Correct it.",
        "no-page": "There is no page or view at this address. Go back to the front page.",
        "no-port": "The server cannot listen on this port. Choose another one.",
        "read-only": "The server cannot write this. Start it with `--edit`, on the machine that has the recipe.",
    },
}
"""The kinds of errors by subject: what each means, and what to do about it. docs/internals/errors.md is made from it.

A kind is what a program would branch on; the message says the rest. Storage errors of the operating system have its
names as kinds, such as ``enospc`` and ``eacces``. Failures of samples have the class of the exception, if a function of
the user raised one.
"""
