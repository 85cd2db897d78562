"""Results of verbs that only report: the parts of a job array leave theirs for the run that finishes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from feedmill.errors import ConfigError
from feedmill.jobs.engine import current
from feedmill.jobs.work import Work
from feedmill.storage import open_store


@contextlib.contextmanager
def kept_results(verb: str, key: str) -> Iterator[Work | None]:
    """Return the work of a report on the parts of a job array; None on other engines, where results come back.

    Args:
        verb: its name.
        key: identifies the report: its inputs and options.

    Raises:
        ConfigError: there is no folder for it.
        StorageError: another process is using it (kind ``busy``).
    """
    engine = current()
    if engine is None or engine.name != "part":
        yield None
        return
    folder = engine.work
    if not folder:
        raise ConfigError(
            f"{verb} has no output: its parts need a place for their results",
            kind="missing-option",
            fix="Add --work, with a folder or URL that all machines reach.",
        )
    with Work(open_store(folder), f"{verb}-{key}") as work:
        work.begin({"verb": verb, "key": key})
        yield work
        work.finish()
