"""Errors with file and record, what was expected and found, and how to fix it.

Every error that Feedmill raises intentionally is a `FeedmillError`. The command line prints it as one message without a
traceback; `check` collects the same objects as findings. `kind` is a short stable word that programs can match on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

DEBUG = "FEEDMILL_DEBUG"
"""Environment variable: with 1, errors keep the frames of this package, and verbs print the traceback."""

IN_WORKER = "in a worker process:"
"""Beginning of the note with the frames of a worker process."""

_Error = TypeVar("_Error", bound=BaseException)


class FeedmillError(Exception):
    """Base class of the errors that Feedmill raises.

    Args:
        what: what is wrong, with what was expected and what was found.
        file: path or URL of the affected file.
        offset: byte offset in that file.
        record: affected key, member or line.
        fix: what to do about it, as a sentence.
        kind: a short stable word for programs, e.g. ``"truncated-member"``.
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
        raise ConfigError(f"{what} is {text[:40]!r}, which is not a whole number", kind="bad-number")
    if len(digits.lstrip("0")) > _MOST_DIGITS:
        raise ConfigError(f"{what} has {len(digits)} digits: at most {_MOST_DIGITS} are supported", kind="bad-number")
    return int(text)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` if a known name is similar, otherwise an empty string.

    >>> did_you_mean("Wieght", ["weight", "path"])
    " (did you mean 'weight'?)"
    """
    near = _similar(name, known, 1, 0.6)
    return f" (did you mean {near}?)" if near else ""


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


def _similar(name: str, known: Iterable[str], most: int, cutoff: float) -> str:
    from difflib import get_close_matches  # only needed for errors

    lowered = {word.lower(): word for word in known}
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
