"""Dolma's call that runs taggers."""

from __future__ import annotations

from collections.abc import Sequence

from feedmill.compat.dolma.core.paths import join_path, make_relative, partition_path, split_glob, split_path
from feedmill.curation.tag import TagReport, tag
from feedmill.jobs.policy import RAISE, SKIP
from feedmill.storage import join_url

__all__ = ["create_and_run_tagger"]


def _make_paths_from_substitution(paths: Sequence[str], find: str, replace: str) -> list[str]:
    """Return the folders of patterns before their wildcards, with one part of each replaced."""
    return [
        join_path(protocol, [replace if part == find else part for part in parts])
        for protocol, parts in map(_folder, paths)
    ]


def _make_paths_from_prefix(paths: Sequence[str], prefix: str) -> list[str]:
    """Return the folders of patterns before their wildcards, moved from the folder that all have in common."""
    folders = [join_path(*_folder(path)) for path in paths]
    base, below = make_relative([f"{folder}/*" for folder in folders])
    return [join_path(None, prefix, *split_path(rest)[1][:-1]) for rest in below] if base else list(folders)


def _folder(path: str) -> tuple[str, tuple[str, ...]]:
    protocol, before, _ = partition_path(path)
    return protocol, before if split_glob(path)[1] else before[:-1]


def create_and_run_tagger(
    documents: Sequence[str],
    taggers: Sequence[str],
    taggers_modules: Sequence[str] | None = None,
    experiment: str | None = None,
    destination: str | Sequence[str] | None = None,
    metadata: str | Sequence[str] | None = None,  # noqa: ARG001 - the records are beside the attributes
    debug: bool = False,
    seed: int = 0,  # noqa: ARG001 - nothing is random
    ignore_existing: bool = False,
    skip_on_failure: bool = False,
    retries_on_error: int = 0,  # noqa: ARG001 - reads are retried by the stores
    num_processes: int = 1,
    profile_enable: bool = False,  # noqa: ARG001 - use an external profiler
    profile_output: str | None = None,  # noqa: ARG001
    profile_steps: int | None = None,  # noqa: ARG001
    profile_sort_key: str = "tottime",  # noqa: ARG001
    profile_lines: int = 100,  # noqa: ARG001
) -> TagReport:
    """Compute the attributes of documents with `feedmill.curation.tag.tag`, and return its report.

    Args:
        destination: a folder in which the attribute set gets a folder, or the folder of the set for each pattern.
        metadata, seed, retries_on_error: accepted without effect, as are the options of Dolma's profiler.
        debug: use only this process.
    """
    output: list[str] | None
    if isinstance(destination, str):
        output = [join_url(destination, experiment) if experiment else destination] * len(documents)
    else:
        output = None if destination is None else list(destination)
    return tag(
        documents,
        taggers,
        name=experiment,
        output=output,
        tagger_modules=taggers_modules or (),
        workers=1 if debug else num_processes,
        overwrite=ignore_existing,
        on_error=SKIP if skip_on_failure else RAISE,
        allow_empty=True,
    )
