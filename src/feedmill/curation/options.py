"""Options of the verbs that curate documents."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Annotated, Literal

from feedmill.jobs.options import (
    AllowEmpty,
    AllowStale,
    Arg,
    DryRunnable,
    Flag,
    Ids,
    Opt,
    Paths,
    Processes,
    WithProgress,
)
from feedmill.jobs.policy import METAVAR, RAISE, OnError

Keep = Literal["first", "longest"]
Documents = Annotated[Paths, Arg("DOCUMENTS...", "Files, folders or patterns, each with a folder documents/.")]


@dataclass(frozen=True)
class Stat(Processes, AllowStale, Ids, AllowEmpty, WithProgress):
    """Count documents and attributes, and show how lengths and scores are distributed.

    Counts, means, minima and maxima are exact; quantiles are within 0.1 % for any size of the data.
    """

    patterns: Annotated[
        Paths, Arg("INPUT...", "Files or folders of documents or attributes: 'd/attributes/**/*.gz'; or URLs.")
    ]
    _: KW_ONLY
    attributes: Annotated[str | None, Opt("REGEX", "Only attributes whose names match.", "-a")] = None
    on_error: Annotated[OnError, Opt(METAVAR, "Stop at an invalid file, or skip and report it.")] = RAISE


@dataclass(frozen=True)
class Neardedupe(Ids, AllowEmpty, DryRunnable, Processes, WithProgress):
    """Write attributes that mark near-duplicates: all but one document of each cluster. 'filter' then removes them."""

    documents: Documents
    _: KW_ONLY
    name: Annotated[str, Opt("NAME", "Name of the attribute set.")] = "dup_near"
    threshold: Annotated[float, Opt("T", "Jaccard similarity at or above which documents are duplicates.")] = 0.8
    ngram: Annotated[int, Opt("N", "Words per shingle.")] = 5
    keep: Annotated[Keep, Opt("first|longest", "Which document of a cluster to keep.")] = "first"
    keep_case: Annotated[bool, Flag("Compare case-sensitively.")] = False
    keep_punctuation: Annotated[bool, Flag("Keep punctuation: split words at white space only.")] = False
    bands: Annotated[int, Opt("B", "Number of bands; default: chosen for the threshold.")] = 0
    rows: Annotated[int, Opt("R", "Hashes per band; requires --bands.")] = 0
    signatures: Annotated[
        str | None, Opt("DIR", "Folder of signatures: compare with those in it, and add the new ones.")
    ] = None
