"""Implement ``feedmill compat dolma warc``: web archives to documents, and the same as a function of Python."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from feedmill.compat.dolma.config import FLAG, REQUIRED, TEXT, TEXTS, WHOLE, Key, accepted, configured
from feedmill.errors import ConfigError, NotFound

if TYPE_CHECKING:
    from feedmill.curation.extract.extract import ExtractReport
    from feedmill.documents.file import DocumentFile

SCHEMA = {
    "documents": Key(TEXTS, [], "patterns of archives"),
    "destination": Key(TEXTS, [], "one folder, or a folder per pattern"),
    "processes": Key(WHOLE, 1, "number of processes; a large archive is divided among them"),
    "ignore_existing": Key(FLAG, False, "write documents again even if they are up to date"),
    "debug": Key(FLAG, False, "use only this process"),
    "source_name": Key(TEXT, REQUIRED, "source of the documents"),
    "linearizer": Key(TEXT, "resiliparse", "resiliparse or trafilatura"),
    "pre.taggers": Key(TEXTS, [], "taggers of the HTML, such as cc_re"),
    "pre.skip": Key(FLAG, False, "leave out pages in which they find nothing"),
    "post.taggers": Key(TEXTS, [], "taggers of the text"),
    "post.skip": Key(FLAG, False, "leave out pages in which they find nothing"),
    "store_html_in_metadata": Key(FLAG, False, "keep the HTML in metadata.html"),
    "work_dir.input": accepted(TEXT, None, "unused"),
    "work_dir.output": accepted(TEXT, None, "records are beside the destination"),
    "dryrun": Key(FLAG, False, "print the configuration and stop"),
}
_MOST = 256 << 20
"""Bytes of the largest record; Dolma reads records of any size into memory."""
_SECONDS = 60.0


def warc(arguments: Sequence[str], file: str | None, exact: bool) -> None:  # noqa: ARG001 - common signature
    """Write documents, as Dolma does."""
    from feedmill.cli.documents import show_extracted

    values = configured(arguments, file, SCHEMA)
    archives = _archives(values["documents"])
    if values["dryrun"]:
        return
    report = create_and_run_warc_pipeline(
        documents=list(archives),
        destination=values["destination"][0] if len(values["destination"]) == 1 else values["destination"],
        source_name=values["source_name"],
        debug=values["debug"],
        ignore_existing=values["ignore_existing"],
        num_processes=values["processes"],
        pre_taggers=values["pre.taggers"],
        linearizer_name=values["linearizer"],
        post_taggers=values["post.taggers"],
        store_html_in_metadata=values["store_html_in_metadata"],
        skip_no_pre_taggers=values["pre.skip"],
        skip_no_post_taggers=values["post.skip"],
    )
    show_extracted(report)
    if not report.documents:
        typer.echo("warning: there are no documents", err=True)


def create_and_run_warc_pipeline(
    documents: str | Sequence[str],
    destination: str | Sequence[str],
    source_name: str,
    metadata: str | Sequence[str] | None = None,  # noqa: ARG001 - records are beside the destination
    debug: bool = False,
    seed: int = 0,  # noqa: ARG001 - nothing is random
    ignore_existing: bool = False,
    skip_on_failure: bool = False,  # noqa: ARG001 - records that cannot be read are left out and reported
    retries_on_error: int = 0,  # noqa: ARG001
    num_processes: int = 1,
    pre_taggers: Sequence[str] | None = None,
    linearizer_name: str = "resiliparse",
    post_taggers: Sequence[str] | None = None,
    store_html_in_metadata: bool = False,
    skip_no_pre_taggers: bool = False,
    skip_no_post_taggers: bool = False,
) -> ExtractReport:
    """Write the documents of web archives with Dolma's arguments, names, and layout of files.

    Args:
        documents: patterns of archives.
        destination: a folder for all patterns, or one for each.
        source_name: the ``source`` of the documents.
        pre_taggers, post_taggers: taggers of the HTML, and of the text.
        skip_no_pre_taggers, skip_no_post_taggers: leave out pages in which these taggers find nothing.

    Raises:
        ConfigError: an option is invalid.
        NotFound: no archive matches any pattern.
        MissingExtra: a package is not installed.
    """
    from datetime import datetime

    from feedmill.curation.extract.dolma import KINDS, DolmaForm, timestamp
    from feedmill.curation.extract.extract import ExtractReport, run_tasks, settings_of
    from feedmill.curation.extract.job import ExtractTask, Output

    patterns = [documents] if isinstance(documents, str) else list(documents)
    folders = [destination] if isinstance(destination, str) else list(destination)
    if len(folders) not in (1, len(patterns)):
        raise ConfigError(
            f"{len(patterns)} patterns of archives but {len(folders)} destinations",
            kind="bad-option",
            fix="Pass one destination, or one per pattern.",
        )
    settings, options = settings_of(
        linearizer_name,
        pre_taggers or (),
        post_taggers or (),
        (),
        _SECONDS,
        dolma=True,
        only_tagged_before=skip_no_pre_taggers,
        only_tagged_after=skip_no_post_taggers,
    )
    options |= {"form": "dolma", "source": source_name, "html": store_html_in_metadata, "largest": _MOST}
    form = DolmaForm(source_name, timestamp(datetime.now()), store_html_in_metadata)
    archives = _archives(patterns)
    groups = [(folders[0], [file for found in archives.values() for file in found])]
    if len(folders) > 1:
        groups = [(folder, archives.get(pattern, [])) for pattern, folder in zip(patterns, folders, strict=True)]
    tasks = [
        ExtractTask(file, (Output(folder, "", path),), form, settings, KINDS, _MOST, options, ignore_existing)
        for folder, files in groups
        for file, path in _placed(files)
    ]
    report = ExtractReport(", ".join(dict.fromkeys(folders)))
    run_tasks(tasks, report, 1 if debug else num_processes, progress=True)
    return report


def _archives(patterns: Sequence[str]) -> dict[str, list[DocumentFile]]:
    """Return pattern -> archives, and warn of patterns without any."""
    from feedmill.documents.warc.find import find_archives

    found = {pattern: find_archives(pattern, allow_missing=True) for pattern in patterns}
    for pattern in (pattern for pattern in patterns if not found[pattern]):
        typer.echo(f"warning: no archives match {pattern}", err=True)
    if not any(found.values()):
        raise NotFound("no archives match any pattern", file=", ".join(patterns), fix="Check the paths.")
    return found


def _placed(files: list[DocumentFile]) -> list[tuple[DocumentFile, str]]:
    """Return the archives with the paths of their outputs: below their deepest common folder, as Dolma places them."""
    from feedmill.curation.tag import common_folder

    if not files:
        return []
    common = common_folder(files)
    return [(file, output_name(file.name[len(common) :].lstrip("/"))) for file in files]


def output_name(path: str) -> str:
    """Return the name that Dolma gives to the documents of an archive.

    >>> output_name("a/CC-0001.warc.gz"), output_name("b.1.warc")
    ('a/CC-0001.jsonl.gz', 'b.1.jsonl.gz')
    """
    if path.endswith(".jsonl.gz"):
        return path
    folder, slash, name = path.rpartition("/")
    base, dot, rest = name.partition(".")
    return f"{folder}{slash}{base}{re.sub(r'[.](gz|warc)', '', dot + rest)}.jsonl.gz"
