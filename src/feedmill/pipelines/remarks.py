"""Lines for display of a step: warnings of its verb's report, and what the verb left out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from feedmill.errors import FeedmillError

_SHOWN = 5


def failures(report: Any) -> list[str]:
    """Return lines about what failed: a verb with such a report has exit status 4.

    Args:
        report: plain data, as with ``--json``.
    """
    found = _mapping(report)
    errors = [f"error: {_error(item)}" for item in found.get("failed") or ()]
    return [*errors, *_skipped(found.get("dropped"), "line", found.get("bad") or ())]


def remarks(report: Any) -> list[str]:
    """Return lines about other inputs that were skipped or left out, and the warnings and notes."""
    found = _mapping(report)
    lines = [f"warning: {text}" for text in found.get("warnings") or ()]
    lines += [f"warning: no files match {pattern}" for pattern in found.get("missing") or ()]
    lines += [f"note: {text}" for text in found.get("notes") or ()]
    lines += _left_out(found.get("left_out"))
    lines += [f"broken: {_error(item)}" for item in found.get("broken") or ()]
    noun = "sample" if "examples" in found else "document"
    lines += _skipped(found.get("skipped"), noun, found.get("skipped_examples") or found.get("examples") or ())
    if files := found.get("skipped_files"):
        lines += _skipped(files, "file", [{"reason": name} for name in found.get("skipped_files_examples") or ()])
    return lines


def _mapping(report: Any) -> Mapping[str, Any]:
    return report if isinstance(report, Mapping) else {}


def _error(item: Any) -> str:
    """Return the message of an error that is given as plain data."""
    if not isinstance(item, Mapping) or "what" not in item:
        return str(item)
    fields = {name: item[name] for name in ("file", "offset", "record", "fix") if name in item}
    return str(FeedmillError(str(item["what"]), **fields))


def _left_out(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for reason, count in value.items():
            names = count.get("examples") if isinstance(count, Mapping) else ()
            number = count["count"] if isinstance(count, Mapping) else count
            if number:
                yield f"left out: {number:,} x {reason}" + (f" ({', '.join(map(str, names))})" if names else "")
    elif isinstance(value, Sequence):
        yield from (f"left out: {_error(item)}" for item in value)
    elif value:
        yield f"left out: {value:,} pairs that were not compared"


def _skipped(number: Any, noun: str, examples: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield lines about a number of skipped inputs. Of verbs whose `skipped` has another meaning it is no number."""
    if not isinstance(number, int) or isinstance(number, bool) or not number:
        return
    yield f"skipped: {number:,} {noun}{'' if number == 1 else 's'}"
    for item in examples[:_SHOWN]:
        where = " ".join([*map(str, filter(None, [item.get("file"), item.get("key")])), *_at(item)])
        yield f"skipped: {where}{': ' if where else ''}{item.get('reason')}"
    if number > _SHOWN:
        yield f"skipped: and {number - min(_SHOWN, len(examples)):,} more"


def _at(item: Mapping[str, Any]) -> Iterator[str]:
    yield from (f"{name} {item[name]}" for name in ("line", "index") if item.get(name) is not None)
