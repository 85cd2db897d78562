"""Options of the verbs that curate documents."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, fields, replace
from math import isnan
from typing import Annotated, Any, Literal, get_args

from feedmill.documents.warc import HTML
from feedmill.errors import ConfigError
from feedmill.jobs.options import (
    AllowEmpty,
    AllowStale,
    Arg,
    Budget,
    DryRunnable,
    Flag,
    Ids,
    Inner,
    Opt,
    Options,
    Path,
    Paths,
    Processes,
    PythonOnly,
    WithProgress,
)
from feedmill.jobs.policy import METAVAR, RAISE, OnError, on_error_policy

LinearizerName = Literal["resiliparse", "trafilatura"]
By = Literal["documents", "paragraphs", "ngrams", "substrings"]
DOCUMENTS: By = "documents"
PARAGRAPHS: By = "paragraphs"
NGRAMS: By = "ngrams"
SUBSTRINGS: By = "substrings"
UNITS: dict[str, dict[str, Any]] = {
    DOCUMENTS: {"key": "$.text"},
    PARAGRAPHS: {"separator": "\n"},
    NGRAMS: {"separator": "\n", "ngram": 13, "stride": 1, "threshold": 0.5},
    SUBSTRINGS: {"length": 200, "tokenizer": None},
}
"""For each unit of `Dedupe` the options that have an effect for it only, with their defaults."""
UNSET: Any = None
"""Default of an option that depends on another option."""
Keep = Literal["first", "longest"]
FIRST: Keep = "first"
LONGEST: Keep = "longest"
Shingled = Literal["words", "characters", "embeddings"]
EMBEDDINGS: Shingled = "embeddings"
Removal = Literal["covered", "connected"]
COVERED: Removal = "covered"
CONNECTED: Removal = "connected"
Vectors = Literal["npy", "parquet"]
NPY: Vectors = "npy"
PARQUET: Vectors = "parquet"
MOST = 1 << 31
"""Lengths and numbers of words must be below this."""
LONGEST_SUBSTRING = 1 << 20
"""Maximum length of the substrings that are compared, in bytes."""
TOKEN = 4
"""Bytes of a token where tokens are compared."""
FALSE_POSITIVES = 1e-6
"""Default rate of false positives of a Bloom filter."""
TOKENS = 50
"""Default length of the substrings that are compared, in tokens."""
Documents = Annotated[Paths, Arg("DOCUMENTS...", "Files, folders or patterns, each with a folder documents/.")]
DocumentsFolder = Annotated[str, Inner("Name of the folder of documents.")]


class Stat(Processes, AllowStale, Ids, AllowEmpty, WithProgress):
    """Count documents and attributes, and show how lengths and scores are distributed.

    Counts, means, minima and maxima are exact; quantiles are within 0.1 % for any size of the data. For a recipe
    (.yaml) of robot episodes, compute the statistics of what it trains on, and write them beside it.
    """

    patterns: Annotated[
        Paths,
        Arg("INPUT...", "Files or folders of documents or attributes: 'd/attributes/**/*.gz'; or URLs; or a recipe."),
    ]
    _: KW_ONLY
    attributes: Annotated[str | None, Opt("REGEX", "Only attributes whose names match.", "-a")] = None
    on_error: Annotated[OnError, Opt(METAVAR, "Stop at an invalid file, or skip and report it.")] = RAISE


Modules = Annotated[
    Sequence[str], Opt("MODULE", "Python file or module with your own taggers; its code is run.", "--tagger-modules -m")
]


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


class Tag(Processes, DryRunnable, Ids, AllowEmpty, WithProgress):
    """Compute attributes of documents: scored spans, in files beside the documents, row by row.

    Run it again after a kill or after adding files: results that are up to date are kept.
    """

    documents: Annotated[Paths, Arg("DOCUMENTS...", "Patterns of files or folders; quote them: 'd/documents/**/*.gz'.")]
    taggers: Annotated[
        Sequence[str],
        Opt("NAME", "Tagger of the texts, NAME=PATH, or a model: [NAME=]model:PATH; repeatable.", "--tagger -t"),
    ]
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


class Embed(DryRunnable, Processes, Ids, AllowEmpty, WithProgress):
    """Make a vector of each document or image with a local model, in files beside the data, row by row.

    Run it again after a kill or after adding files: vectors that are up to date are kept.
    """

    documents: Annotated[
        Paths,
        Arg(
            "DATA...",
            "Files, folders or patterns of documents; with a model of images, datasets whose samples have one.",
            more="In Python one path, or several.",
        ),
    ]
    _: KW_ONLY
    model: Annotated[
        str,
        Opt("PATH", "Folder or file of the model, as in `tag -t model:PATH`; with settings: PATH,tokens=256."),
    ]
    name: Annotated[str | None, Opt("NAME", "Name of the embeddings; default: that of the model.")] = None
    output: Annotated[
        Path | None, Opt("DIR", "Folder to write into; default: embeddings/NAME beside the data.", "--output -o")
    ] = None
    to: Annotated[Vectors, Opt("npy|parquet", "Form of the files.")] = NPY
    image: Annotated[str | None, Opt("PART", "Images: the part to embed; default: the only image.")] = None
    split: Annotated[str | None, Opt("NAME", "Images: the split to read; default: all samples.")] = None
    on_error: Annotated[OnError, Opt(METAVAR, "Images: stop at a broken one, or count it and write zeros.")] = RAISE
    overwrite: Annotated[bool, Flag("Process up-to-date files, too.")] = False
    documents_folder: DocumentsFolder = "documents"

    def __post_init__(self) -> None:
        if self.name is not None:
            _check_name(self.name)
        if self.to not in get_args(Vectors):
            raise _bad(f"unknown form of vectors --to {self.to}", "Use npy or parquet.")
        on_error_policy(self.on_error)


def _unescaped(text: str) -> str:
    """Return a separator as a shell can give it."""
    return text.replace("\\n", "\n").replace("\\t", "\t")


class Dedupe(Ids, AllowEmpty, DryRunnable, Budget, Processes, WithProgress):
    """Write attributes that mark duplicates: all but the first in input order. 'filter' then removes them."""

    documents: Documents
    by: Annotated[By, Opt("UNIT", "documents, paragraphs, ngrams or substrings.")] = DOCUMENTS
    _: KW_ONLY
    name: Annotated[str, Opt("NAME", "Name of the attribute set; default: dup_UNIT.")] = UNSET
    key: Annotated[str, Opt("PATH", "JSONPath of the value to compare; default: $.text.")] = UNSET
    separator: Annotated[str, Opt("TEXT", "Separator of paragraphs; default: \\n.", parse=_unescaped)] = UNSET
    ngram: Annotated[int, Opt("N", "Words per n-gram; default: 13.", min=1)] = UNSET
    stride: Annotated[int, Opt("N", "Words between the starts of n-grams; default: 1.", min=1)] = UNSET
    threshold: Annotated[
        float,
        Opt("T", "Share of duplicate n-grams at or above which to mark; default: 0.5.", min=0, max=1),
    ] = UNSET
    length: Annotated[
        int,
        Opt(
            "N",
            "Length of the shortest repeated substring: bytes of UTF-8, default: 200; with --tokenizer tokens, 50.",
            min=1,
        ),
    ] = UNSET
    tokenizer: Annotated[
        Path | None, Opt("PATH", "Compare the tokens of this tokenizer in substrings, not bytes.", "-t")
    ] = None
    every_copy: Annotated[bool, Flag("Mark the first occurrence of a substring, too.")] = False
    min_length: Annotated[int, Opt("N", "Ignore shorter texts.", min=0)] = 0
    min_words: Annotated[int, Opt("N", "Ignore texts with fewer words.", min=0)] = 0
    keep_empty: Annotated[bool, Flag("Also compare blank texts.")] = False
    against: Annotated[Sequence[str], Opt("DOCUMENTS", "Mark only text that occurs in these documents.")] = ()
    bloom: Annotated[str | None, Opt("FILE", "Use a Bloom filter in Dolma's format.")] = None
    items: Annotated[int, Opt("N", "Capacity of a new filter, in keys.", min=0)] = 0
    false_positives: Annotated[float | None, Opt("SHARE", "False-positive rate of a new filter; default: 1e-06.")] = (
        None
    )
    read_only: Annotated[bool, Flag("Do not add keys to the filter.")] = False
    attribute: Annotated[str, Inner("Key of the spans in each row; default: the name.")] = UNSET
    skip_short: Annotated[bool, Inner("Skip paragraphs with fewer than two n-grams, else compared as a whole.")] = False
    partitions: Annotated[int, Inner("Machines that share a Bloom filter; each looks up keys with its remainder.")] = 1
    partition: Annotated[int, Inner("The remainder of this one.")] = 0
    dolma: Annotated[bool, Inner("Count characters and n-grams as `feedmill.kernels.text.paragraphs` says.")] = False
    bloom_size: Annotated[int, Inner("Bytes of a new filter; 0: by `items` and `false_positives`.")] = 0
    file_partition: Annotated[bool, Inner("Partition the files as well as the keys.")] = False
    defects: Annotated[
        bool,
        Inner(
            "Reproduce known defects of Dolma 1.2.1: with `min_words`, find nothing; a new filter has thousands of"
            " hashes; a repeated run looks up what the filter has seen."
        ),
    ] = False
    tokenized: Annotated[str | None, Inner("Hash, backend and versions of the tokenizer.")] = None
    documents_folder: DocumentsFolder = "documents"

    def __post_init__(self) -> None:
        if self.by not in UNITS:
            raise _bad(f"unknown unit --by {self.by}", "Use documents, paragraphs, ngrams or substrings.")
        if self.name is not None:
            _check_name(self.name, self.attribute or self.name)
        if self.separator == "":
            raise _bad("the paragraph separator is empty", "Omit it to separate paragraphs by newlines.")
        if self.against == []:  # a pattern of a program that found nothing; without the option it is ()
            raise _bad("--against names no documents", "Name documents, or omit it to compare them with each other.")
        for text in (self.key, self.separator):
            if text is not None and not _is_text(text):
                raise _bad(f"{text!r} is not valid UTF-8", "Use keys and separators in UTF-8.")
        numbers = (self.ngram or 0, self.stride or 0, self.min_length, self.min_words)
        if min(numbers) < 0:
            raise _bad("lengths and numbers of words cannot be negative", "Use 0 or more.")
        if max(numbers) >= MOST:
            raise _bad(f"{max(numbers)} is too large for a length or a number of words", f"Use less than {MOST}.")
        unit, longest = (
            ("bytes", LONGEST_SUBSTRING) if self.tokenizer is None else ("tokens", LONGEST_SUBSTRING // TOKEN)
        )
        if self.length is not None and not 1 <= self.length <= longest:
            raise _bad(f"a length of {self.length:,} {unit} is out of range", f"Use 1 to {longest:,}.")
        if self.threshold is not None and isnan(self.threshold):
            raise _bad("a threshold of nan is not a number", "Use a share from 0 to 1.")
        if not 0 <= self.partition < self.partitions:
            raise _bad(f"partition {self.partition} is out of range for {self.partitions} partitions", "Count from 0.")

    def settled(self) -> Dedupe:
        """Return the options of tasks: with all defaults, and without the inputs."""
        given = {name: value for name, value in vars(self).items() if value is not None}
        name = self.name or f"dup_{self.by}"
        length = {} if self.tokenizer is None else {"length": TOKENS}
        defaults = {**UNITS[DOCUMENTS], **UNITS[NGRAMS], **UNITS[SUBSTRINGS], **length, "name": name, "attribute": name}
        given = {**defaults, "false_positives": FALSE_POSITIVES, **given}
        if self.by != NGRAMS:
            given["ngram"] = 0  # paragraphs are compared as a whole
        return Dedupe(**{**given, "documents": (), "against": ()})

    @property
    def fields(self) -> tuple[str, ...] | None:
        """Fields of documents to read, or None for all."""
        return ("id", "text") if self.key == "$.text" else None

    def as_dict(self) -> dict[str, Any]:
        """Return what decides the spans, as plain data; of `settled` options."""
        of_filter = ("bloom", "items", "false_positives", "read_only", "bloom_size", "file_partition")
        facts = self.deciding("documents", "against", *of_filter)
        unit = facts.pop("by")
        facts["unit"] = PARAGRAPHS if unit == NGRAMS else unit
        tokenized = facts.pop("tokenized")  # wherever its file is
        del facts["tokenizer"]
        if tokenized is not None:
            facts["tokenizer"] = tokenized
        if unit != SUBSTRINGS:
            del facts["length"], facts["every_copy"]
        facts["skip_empty"] = not facts.pop("keep_empty")
        return facts


def _check_name(name: str, attribute: str = "") -> None:
    from feedmill.storage.base import refuse_non_utf8

    refuse_non_utf8(name, attribute)
    if not name or "/" in name or name.startswith("."):
        raise _bad(f"{name!r} is not a valid name of an attribute set", "Use a plain name.")


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _bad(what: str, fix: str) -> ConfigError:
    return ConfigError(what, kind="bad-option", fix=fix)


def _thresholds(text: str) -> float | tuple[float, ...]:
    """Return the number, or the numbers with commas between."""
    try:
        numbers = tuple(map(float, text.split(",")))
    except ValueError:
        fix = "Write a number such as 0.8, or several such as 0.7,0.8."
        raise ConfigError(f"--threshold {text} is not a number", kind="bad-option", fix=fix) from None
    return numbers if len(numbers) > 1 else numbers[0]


class Neardedupe(Ids, AllowEmpty, DryRunnable, Budget, Processes, WithProgress):
    """Write attributes that mark near-duplicates of documents that are kept. 'filter' then removes them."""

    documents: Documents
    _: KW_ONLY
    name: Annotated[str, Opt("NAME", "Name of the attribute set; default: dup_near, of embeddings dup_meaning.")] = (
        UNSET
    )
    threshold: Annotated[
        float | Sequence[float],
        Opt(
            "T",
            "Similarity from which documents are duplicates; default: 0.8 (Jaccard), for embeddings 0.95 (cosine)."
            " T,T,... writes a set for each.",
            text=str,
            parse=_thresholds,
        ),
    ] = UNSET
    by: Annotated[Shingled, Opt("UNIT", "Compare shingles of words or characters, or embeddings.")] = "words"
    embeddings: Annotated[
        str | None, Opt("NAME|DIR", "Embeddings that `documents embed` wrote: their name, or a folder with a slash.")
    ] = None
    clusters: Annotated[
        int, Opt("K", "Clusters in which embeddings are compared; default: the root of the number of documents.", min=0)
    ] = 0
    ngram: Annotated[int, Opt("N", "Words or characters per shingle.")] = 5
    keep: Annotated[Keep, Opt("first|longest", "Which document of a cluster to keep.")] = FIRST
    removal: Annotated[
        Removal,
        Opt(
            "covered|connected",
            "Mark documents similar to a kept one; or all but one of those that pairs connect, similar or not.",
        ),
    ] = COVERED
    keep_case: Annotated[bool, Flag("Compare case-sensitively.")] = False
    keep_punctuation: Annotated[bool, Flag("Keep punctuation: split words at white space only.")] = False
    bands: Annotated[int, Opt("B", "Number of bands; default: chosen for the threshold.")] = 0
    rows: Annotated[int, Opt("R", "Hashes per band; requires --bands.")] = 0
    signatures: Annotated[
        str | None, Opt("DIR", "Folder of signatures: compare with those in it, and add the new ones.")
    ] = None
    documents_folder: DocumentsFolder = "documents"

    def __post_init__(self) -> None:
        if self.name is UNSET:  # one of its own: what both ways mark stays apart
            vars(self)["name"] = "dup_meaning" if self.by == EMBEDDINGS else "dup_near"
        _check_name(self.name)
        if self.threshold is UNSET:
            vars(self)["threshold"] = 0.95 if self.by == EMBEDDINGS else 0.8
        self._check_embeddings()
        for threshold in self.thresholds:
            if not 0 < threshold <= 1:
                raise _bad(f"the threshold must be above 0 and up to 1, not {threshold}", "Change the threshold.")
        if not 1 <= self.ngram <= 1000:
            raise _bad(f"a shingle must have 1 to 1000 {self.by}, not {self.ngram}", "Use 1 to 1000.")
        if self.by not in get_args(Shingled):
            raise _bad(f"unknown unit --by {self.by}", "Use words, characters or embeddings.")
        if (self.bands == 0) != (self.rows == 0) or self.bands < 0 or self.rows < 0:
            raise _bad(f"{self.bands} bands of {self.rows} rows are invalid", "Set both or neither, each to 1 or more.")
        if self.bands * self.rows > 1 << 14:
            raise _bad(f"{self.bands} bands of {self.rows} rows are too many", "Use up to 16,384 hashes in total.")
        if self.keep not in (FIRST, LONGEST):
            raise _bad(f"unknown document to keep of a cluster: {self.keep!r}", "Use 'first' or 'longest'.")
        if self.removal not in (COVERED, CONNECTED):
            raise _bad(f"unknown rule of removal: {self.removal!r}", "Use 'covered' or 'connected'.")

    def _check_embeddings(self) -> None:
        """Raise `ConfigError` for options that have no effect on what is compared."""
        if self.by != EMBEDDINGS:
            if self.embeddings is not None or self.clusters:
                name = "embeddings" if self.embeddings is not None else "clusters"
                raise _bad(f"--{name} requires --by embeddings", "Add it, or remove the option.")
            return
        if self.embeddings is None:
            raise _bad(
                "--by embeddings requires --embeddings", "Make them with 'documents embed', and give their name."
            )
        shingles = {"ngram": 5, "keep_case": False, "keep_punctuation": False, "bands": 0, "rows": 0}
        for name, default in {**shingles, "signatures": None}.items():
            if getattr(self, name) != default:
                option = name.replace("_", "-")
                raise _bad(f"--{option} cannot be combined with --by embeddings", "Remove one of them.")

    @property
    def thresholds(self) -> Sequence[float]:
        """All thresholds, in the order in which they were given."""
        return self.threshold if isinstance(self.threshold, Sequence) else [self.threshold]

    @property
    def similar(self) -> float:
        """The threshold, or the lowest one."""
        return min(self.thresholds)

    @property
    def shape(self) -> tuple[int, int]:
        """Number of bands, and of rows in a band."""
        from feedmill.curation.near.options import chosen_bands

        return (self.bands, self.rows) if self.bands else chosen_bands(self.similar)

    def settled(self) -> list[Neardedupe]:
        """Return the options of tasks for each threshold, without the inputs.

        Several have the same bands and rows, those of the lowest threshold, and sets of their own, such as
        ``dup_near_0_7``.

        Raises:
            ConfigError: A threshold occurs twice.
        """
        every, one = self.thresholds, replace(self, documents=(), threshold=self.similar)
        if len(every) == 1:
            return [one]
        if len(set(every)) < len(every):
            raise _bad("a threshold is given twice", "Give different ones.")
        bands, rows = (0, 0) if self.by == EMBEDDINGS else self.shape
        names = [f"{self.name}_{threshold:g}".replace(".", "_") for threshold in every]
        return [
            replace(one, name=name, threshold=threshold, bands=bands, rows=rows)
            for name, threshold in zip(names, every, strict=True)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return what decides the marks, as plain data."""
        facts = self.deciding("documents", "signatures")
        if facts["by"] == "words":
            del facts["by"]
        if self.by != EMBEDDINGS:
            del facts["embeddings"], facts["clusters"]
        facts["lower"], facts["punctuation"] = not facts.pop("keep_case"), not facts.pop("keep_punctuation")
        return facts

    def signature(self) -> dict[str, Any]:
        """Return the options that signatures and decisions depend on. Runs that share a folder must agree on them."""
        bands, rows = self.shape
        facts = {**self.as_dict(), "bands": bands, "rows": rows}
        return {name: value for name, value in facts.items() if name not in ("name", "documents_folder")}


class DedupeOrNear(Dedupe, Neardedupe):  # type: ignore[misc]  # their methods are not called on it
    """Write attributes that mark duplicates and near-duplicates of documents. 'filter' then removes them.

    Without --near, all copies but the first: documents, paragraphs, n-grams or substrings; with it, documents that are
    similar to one that is kept.
    """

    documents: Documents
    by: Annotated[
        Literal["documents", "paragraphs", "ngrams", "substrings", "words", "characters", "embeddings"],
        Opt(
            "UNIT",
            "Compare documents (default), paragraphs, ngrams or substrings; with --near, shingles of words (default) or"
            " characters, or embeddings.",
        ),
    ] = UNSET  # type: ignore[assignment]  # this and others have the values of both
    _: KW_ONLY
    near: Annotated[bool, Flag("Mark near-duplicates: MinHash, exact Jaccard similarity, clusters.")] = False
    name: Annotated[
        str | None, Opt("NAME", "Name of the attribute set; default: dup_ and the unit, dup_near or dup_meaning.")
    ] = None  # type: ignore[assignment]
    ngram: Annotated[
        int, Opt("N", "Words per n-gram; default: 13. With --near: words or characters per shingle; default: 5.", min=1)
    ] = UNSET
    threshold: Annotated[
        float | Sequence[float],
        Opt(
            "T",
            "Share of duplicate n-grams from which to mark; default: 0.5. With --near: similarity from which documents"
            " are duplicates; default: 0.8 (Jaccard), for embeddings 0.95 (cosine). T,T,... writes a set for each.",
            text=str,
            parse=_thresholds,
        ),
    ] = UNSET  # type: ignore[assignment]

    def __post_init__(self) -> None:
        """Check nothing: the options of the one or the other do."""

    def chosen(self) -> Dedupe | Neardedupe:
        """Return the options of one way of comparing.

        Raises:
            ConfigError: An option is one of the other way, or its value is invalid.
        """
        exact, near = _options_of(Dedupe), _options_of(Neardedupe)
        mine, other = (near, exact) if self.near else (exact, near)
        given = {f.name: value for f in fields(self) if (value := getattr(self, f.name)) is not f.default}
        for name, value in given.items():
            if name in other and name not in mine and value != other[name]:
                option, how = name.replace("_", "-"), "cannot be combined with" if self.near else "requires"
                raise _bad(f"--{option} {how} --near", "Remove one of them." if self.near else "Add --near.")
        if self.by is not None and self.by not in get_args(Shingled if self.near else By):
            if self.near:
                fix = "Use words, characters or embeddings."
                raise _bad(f"--near --by {self.by}: a shingle has words or characters", fix)
            if self.by in get_args(Shingled):
                raise _bad(f"--by {self.by} requires --near", "Add --near.")
        if not self.near and isinstance(self.threshold, Sequence):
            raise _bad("several thresholds require --near", "Give one, or add --near.")
        kind = Neardedupe if self.near else Dedupe
        return kind(**{name: value for name, value in given.items() if name in mine})


def _options_of(declared: type[Options]) -> dict[str, Any]:
    """Return the names of options, with their defaults."""
    return {field.name: field.default for field in fields(declared)}


ROLES = ("question", "choices", "answer", "id")
"""Parts of a question of a benchmark."""


def parse_fields(text: str) -> dict[str, str]:
    """Return the fields in ``question=q,answer=a``."""
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

    def __post_init__(self) -> None:
        _check_name(self.name)
        if not 0.5 < self.threshold <= 1:
            raise _bad(f"the threshold must be above 0.5 and up to 1, not {self.threshold}", "Change the threshold.")
        if not 3 <= self.ngram <= 50:
            raise _bad(f"an n-gram must have 3 to 50 words, not {self.ngram}", "Use 3 to 50.")
        if not 0 < self.common <= 1:
            raise _bad(f"the share of common n-grams must be above 0 and up to 1, not {self.common}", "Change it.")
        for role in self.fields or ():
            if role not in ROLES:
                raise _bad(f"unknown part of a question {role!r}", f"Use {', '.join(ROLES)}.")

    def as_dict(self) -> dict[str, Any]:
        """Return what decides the marks, as plain data."""
        facts = {name: getattr(self, name) for name in ("name", "threshold", "ngram", "common")}
        return {**facts, "fields": dict(self.fields or {}), "documents_folder": "documents"}
