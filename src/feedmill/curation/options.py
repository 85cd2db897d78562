"""Options of the verbs that curate documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from feedmill.documents.warc import HTML
from feedmill.jobs.options import (
    AllowEmpty,
    AllowStale,
    Arg,
    DryRunnable,
    Flag,
    Ids,
    Opt,
    Path,
    Paths,
    Processes,
    PythonOnly,
    WithProgress,
)
from feedmill.jobs.policy import METAVAR, RAISE, OnError

if TYPE_CHECKING:
    from feedmill.curation.dedupe.job import BloomOptions
    from feedmill.curation.dedupe.options import DedupeOptions

LinearizerName = Literal["resiliparse", "trafilatura"]
By = Literal["documents", "paragraphs", "ngrams", "substrings"]
Keep = Literal["first", "longest"]
Removal = Literal["covered", "connected"]
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


Modules = Annotated[
    Sequence[str], Opt("MODULE", "Python file or module with your own taggers; its code is run.", "--tagger-modules -m")
]


@dataclass(frozen=True)
class Extract(DryRunnable, Processes, AllowEmpty, WithProgress):
    """Make documents from the pages of web archives: decode them, extract their text, tag them.

    Run it again after a kill or with more archives: documents that are up to date are kept. What it leaves out is
    reported with the reason.
    """

    archives: Annotated[
        Path | Iterable[Path],
        Arg("ARCHIVE...", "WARC files (.warc, .warc.gz, .warc.zst, .wet.gz), folders, URLs."),
    ]
    output: Annotated[Path, Opt("DIR", "Folder to write documents/ into.", "--output -o")]
    _: KW_ONLY
    linearizer: Annotated[LinearizerName, Opt("NAME", "HTML to text: resiliparse or trafilatura.")] = "resiliparse"
    taggers: Annotated[
        Sequence[str],
        Opt(
            "NAME",
            "Tagger of the texts, or NAME=PATH; repeatable.",
            "--tagger -t",
            more="Each writes an attribute set, see `feedmill.tag`.",
        ),
    ] = ()
    html_taggers: Annotated[
        Sequence[str],
        Opt(
            "NAME",
            "Tagger of the HTML, such as cc_re; repeatable.",
            "--html-tagger",
            more="They run before the text is extracted, and see ``metadata.html`` and no text.",
        ),
    ] = ()
    only_tagged: Annotated[bool, Flag("Leave out pages in which the HTML taggers find nothing.")] = False
    tagger_modules: Modules = ()
    source: Annotated[str, Opt("NAME", "The source of the documents.")] = "web"
    status: Annotated[Sequence[int], Opt("CODE", "HTTP status of pages to read; repeatable; default: 200.")] = (200,)
    mime: Annotated[
        Sequence[str],
        Opt(
            "TYPE",
            "Type of pages to read; repeatable; default: HTML and XHTML.",
            more="The plain text of ``.wet`` files is always read.",
        ),
    ] = HTML
    max_page_size: Annotated[int | str, Opt("SIZE", "Leave out larger pages.")] = "16MB"
    page_timeout: Annotated[float, Opt("SECONDS", "Leave out pages that take longer.")] = 20.0
    keep_html: Annotated[bool, Flag("Keep the HTML in metadata.html.")] = False
    overwrite: Annotated[bool, Flag("Extract up-to-date archives, too.")] = False


@dataclass(frozen=True)
class Tag(Processes, DryRunnable, Ids, AllowEmpty, WithProgress):
    """Compute attributes of documents: scored spans, in files beside the documents, row by row.

    Run it again after a kill or after adding files: results that are up to date are kept.
    """

    documents: Annotated[Paths, Arg("DOCUMENTS...", "Patterns of files or folders; quote them: 'd/documents/**/*.gz'.")]
    taggers: Annotated[Sequence[str], Opt("NAME", "Tagger of the texts, or NAME=PATH; repeatable.", "--tagger -t")]
    _: KW_ONLY
    name: Annotated[str | None, Opt("NAME", "Name of the attribute set; default: one set per tagger.")] = None
    output: Annotated[
        Sequence[str] | None,
        Opt("DIR", "Folder for each pattern; default: attributes/NAME beside documents/.", "--output -o"),
    ] = None
    tagger_modules: Modules = ()
    overwrite: Annotated[bool, Flag("Process up-to-date files, too.")] = False
    on_error: Annotated[OnError, Opt(METAVAR, "Stop at an invalid file, or finish the others first.")] = RAISE
    exact: Annotated[bool, PythonOnly("Reproduce Dolma's known defects, see docs/migration/dolma.md.")] = False


def _unescaped(text: str) -> str:
    """Return a separator as a shell can give it."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


@dataclass(frozen=True)
class Dedupe(Ids, AllowEmpty, DryRunnable, Processes, WithProgress):
    """Write attributes that mark duplicates: all but the first in input order. 'filter' then removes them."""

    documents: Documents
    by: Annotated[
        By | DedupeOptions,
        Opt("UNIT", "documents, paragraphs, ngrams or substrings.", more="Or a `DedupeOptions`, with all options."),
    ] = "documents"
    _: KW_ONLY
    name: Annotated[str | None, Opt("NAME", "Name of the attribute set; default: dup_UNIT.")] = None
    key: Annotated[str | None, Opt("PATH", "JSONPath of the value to compare; default: $.text.")] = None
    separator: Annotated[str | None, Opt("TEXT", "Separator of paragraphs; default: \\n.", parse=_unescaped)] = None
    ngram: Annotated[int | None, Opt("N", "Words per n-gram; default: 13.", min=1)] = None
    stride: Annotated[int | None, Opt("N", "Words between the starts of n-grams; default: 1.", min=1)] = None
    threshold: Annotated[
        float | None,
        Opt("T", "Share of duplicate n-grams at or above which to mark; default: 0.5.", min=0, max=1),
    ] = None
    length: Annotated[
        int | None,
        Opt("BYTES", "Length of the shortest repeated substring, in bytes of UTF-8; default: 200.", min=1),
    ] = None
    every_copy: Annotated[bool, Flag("Mark the first occurrence of a substring, too.")] = False
    min_length: Annotated[int, Opt("N", "Ignore shorter texts.", min=0)] = 0
    min_words: Annotated[int, Opt("N", "Ignore texts with fewer words.", min=0)] = 0
    keep_empty: Annotated[bool, Flag("Also compare blank texts.")] = False
    against: Annotated[Sequence[str], Opt("DOCUMENTS", "Mark only text that occurs in these documents.")] = ()
    bloom: Annotated[str | BloomOptions | None, Opt("FILE", "Use a Bloom filter in Dolma's format.")] = None
    items: Annotated[int, Opt("N", "Capacity of a new filter, in keys.", min=0)] = 0
    false_positives: Annotated[float | None, Opt("SHARE", "False-positive rate of a new filter; default: 1e-06.")] = (
        None
    )
    read_only: Annotated[bool, Flag("Do not add keys to the filter.")] = False


def _thresholds(text: str) -> float | tuple[float, ...]:
    """Return the number, or the numbers with commas between."""
    from feedmill.errors import ConfigError

    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        fix = "Write a number such as 0.8, or several such as 0.7,0.8."
        raise ConfigError(f"--threshold {text} is not a number", kind="bad-option", fix=fix) from None
    return numbers if len(numbers) > 1 else numbers[0]


@dataclass(frozen=True)
class Neardedupe(Ids, AllowEmpty, DryRunnable, Processes, WithProgress):
    """Write attributes that mark near-duplicates of documents that are kept. 'filter' then removes them."""

    documents: Documents
    _: KW_ONLY
    name: Annotated[str, Opt("NAME", "Name of the attribute set.")] = "dup_near"
    threshold: Annotated[
        float | Sequence[float],
        Opt(
            "T",
            "Jaccard similarity from which documents are duplicates; default: 0.8. T,T,... writes a set for each.",
            text=str,
            parse=_thresholds,
        ),
    ] = 0.8
    ngram: Annotated[int, Opt("N", "Words per shingle.")] = 5
    keep: Annotated[Keep, Opt("first|longest", "Which document of a cluster to keep.")] = "first"
    removal: Annotated[
        Removal,
        Opt(
            "covered|connected",
            "Mark documents similar to a kept one; or all but one of those that pairs connect, similar or not.",
        ),
    ] = "covered"
    keep_case: Annotated[bool, Flag("Compare case-sensitively.")] = False
    keep_punctuation: Annotated[bool, Flag("Keep punctuation: split words at white space only.")] = False
    bands: Annotated[int, Opt("B", "Number of bands; default: chosen for the threshold.")] = 0
    rows: Annotated[int, Opt("R", "Hashes per band; requires --bands.")] = 0
    signatures: Annotated[
        str | None, Opt("DIR", "Folder of signatures: compare with those in it, and add the new ones.")
    ] = None


def parse_fields(text: str) -> dict[str, str]:
    """Return the fields in ``question=q,answer=a``."""
    from feedmill.errors import ConfigError

    fields = {}
    for item in text.split(","):
        part, equals, name = item.partition("=")
        if not equals or not part.strip() or not name.strip():
            raise ConfigError(
                f"--fields {text}: {item!r} is not PART=FIELD",
                kind="bad-option",
                fix="Write question=FIELD,choices=FIELD,answer=FIELD.",
            )
        fields[part.strip()] = name.strip()
    return fields


@dataclass(frozen=True)
class Decontaminate(Ids, AllowEmpty, DryRunnable, Processes, WithProgress):
    """Write attributes that mark questions of benchmarks in documents. 'filter' removes documents, or cuts spans.

    A question is found however it is wrapped, punctuated, encoded or marked up, and if some of its words were changed.
    """

    documents: Documents
    _: KW_ONLY
    against: Annotated[
        Paths, Opt("BENCHMARK", "File, folder or pattern of questions: JSONL, Parquet, Arrow; repeatable.")
    ]
    name: Annotated[str, Opt("NAME", "Name of the attribute set.")] = "leaked"
    threshold: Annotated[float, Opt("T", "Share of a question's words, in their order, that is a leak.")] = 0.75
    ngram: Annotated[int, Opt("N", "Words of the n-grams by which questions are looked for.")] = 5
    common: Annotated[float, Opt("SHARE", "Share of documents from which an n-gram is a common phrase.")] = 0.005
    fields: Annotated[
        Mapping[str, str] | None,
        Opt(
            "PART=FIELD",
            "Field of question, choices, answer or id, if none of the usual names; comma-separated.",
            text=str,
            parse=parse_fields,
        ),
    ] = None
