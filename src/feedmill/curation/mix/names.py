"""Check that the attributes named by a stream's rules exist. A rule with a misspelled name would keep every document.

A name exists if any row of the stream has it. Some attributes are written for some documents only, so a name also
exists if the attribute set can have it according to its options (deduplication) or taggers (`tag`). Usually the first
rows have all names and no more rows are read. For a name that does not exist, all rows are read.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import islice
from shlex import quote
from typing import Any, NamedTuple

import msgspec

from feedmill.curation import records
from feedmill.curation.attribute_set import read_manifest
from feedmill.curation.mix.attributes import expressions
from feedmill.curation.mix.config import JQ, Stream
from feedmill.curation.mix.limits import Limit, resolved
from feedmill.curation.spans import attribute_name
from feedmill.documents.expressions import named_below
from feedmill.documents.file import DocumentFile
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import REFUSED
from feedmill.errors import ConfigError, NotFound, suggestion
from feedmill.formats.documents import ATTRIBUTES, read_lines, rows_of
from feedmill.jobs.progress import Progress
from feedmill.jobs.run import run
from feedmill.structs import decoder_of

_OPEN = ("language", "models", "licenses", "urls", "token_repetitions")
"""Modules of taggers whose kinds depend on a model or on the texts."""


class Sought(NamedTuple):
    """File of documents to search, its attribute sets, and the names to find."""

    file: DocumentFile
    sets: tuple[str, ...]
    input: str | None
    names: frozenset[str]
    blocks: int | None = None


class Seen(NamedTuple):
    """Names of attributes that rows have, and the sets whose rows have none."""

    names: frozenset[str]
    bare: frozenset[str]


def named(stream: Stream) -> dict[str, str]:
    """Return the attributes that the rules of a stream name, each with the first expression that names it."""
    files: dict[str, str] = {}
    for text, syntax in expressions(stream):
        for name in named_below(text, ATTRIBUTES, jq=syntax == JQ):
            files.setdefault(name, text)
    for text in stream.keep:
        files.setdefault(Limit.parse(text).key, text)
    return files


def with_whole_names(stream: Stream, files: Sequence[DocumentFile]) -> Stream:
    """Return the stream with the whole names of attributes in its short rules.

    They are found in the first rows of the first file, and in the records of its attribute sets.

    Raises:
        ConfigError: a rule could mean several attributes.
    """
    if not stream.keep or not files:
        return stream
    names = set(look(_sought(stream, files[0], frozenset({""}), blocks=1)).names)
    for attribute in stream.attributes:
        says = declared(files[0], attribute)
        names |= says.names if says is not None else set()
    return replace(stream, keep=resolved(stream.keep, names, stream.name))


def sets_beside(files: Sequence[DocumentFile]) -> dict[str, set[str]]:
    """Return the attribute sets beside documents: name -> paths or URLs of its files."""
    known: dict[str, set[str]] = {}
    for store in {file.folder: file.store() for file in files}.values():
        with contextlib.suppress(NotFound):
            for entry in store.files(ATTRIBUTES):
                if entry.path.count("/") > 1:
                    known.setdefault(entry.path.split("/")[1], set()).add(store.locate(entry.path))
    return known


def sets_with(
    rules: Sequence[str], files: Sequence[DocumentFile], known: Mapping[str, set[str]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the attribute sets beside the files that short rules need, and the sets that have to be computed first.

    For each tagger it is the set that is named like it, as `tag` does by default, or else each set that has one of the
    attributes according to its record, or else those without a record. If there is none, or a run that was killed left
    the files of some documents only, it must be computed.

    Args:
        known: see `sets_beside`.
    """
    records_of = {name: declared(files[0], name) for name in known}
    found, missing = set[str](), dict[str, None]()
    for key in (Limit.parse(rule).key for rule in rules):
        tagger = key.partition("__")[0]
        end, own = f"__{key}", {tagger} & set(known)
        sure = {name for name, says in records_of.items() if says and any(one.endswith(end) for one in says.names)}
        fits = own or sure or {name for name, says in records_of.items() if says is None}
        if not fits or (
            own and any(file.store().locate(file.attributes(tagger)) not in known[tagger] for file in files)
        ):
            missing[tagger] = None
        found |= fits
    return tuple(sorted(found)), tuple(missing)


def check_names(stream: Stream, files: Sequence[DocumentFile], workers: int | None, progress: bool | None) -> list[str]:
    """Check that the attributes named by a stream exist.

    Returns:
        Names that no row has, but that a set can have.

    Raises:
        ConfigError: A name does not exist (kind ``no-such-attribute``).
    """
    wanted = named(stream)
    missing = frozenset(wanted) - look(_sought(stream, files[0], frozenset(wanted), blocks=1)).names
    if not missing:
        return []
    sets = {attribute: declared(files[0], attribute) for attribute in stream.attributes}
    possible = {name for name in missing if any(said is not None and said.has(name) for said in sets.values())}
    seen, bare = set[str](), {name for name, says in sets.items() if says is None}
    if missing - possible:
        with Progress("looking for attributes", len(files), "files", progress) as bar:
            for looked in run(look, [_sought(stream, file, missing) for file in files], workers=workers, progress=bar):
                seen |= looked.names
                bare &= looked.bare
    unknown = [name for name in wanted if name in missing - possible - seen and not _sparse(name, seen)]
    if unknown and not bare:  # a set without record and attributes can be one of duplicates that found none
        for keys in sets.values():
            seen |= keys.names if keys is not None else frozenset()
        ends = {*seen, *(rest for name in seen if (rest := name.partition("__")[2]))}
        near = {name: suggestion(name, sorted(ends), most=3, cutoff=0.75) for name in unknown}
        # Documents with attributes of their own may lack one: filters written for Dolma test for that.
        short = {Limit.parse(text).key for text in stream.keep}
        for name in unknown:
            if stream.attributes or near[name] or name in short:
                tagger = _tagger(name)
                if tagger is not None and not any(f"{tagger}__" in name for name in seen):
                    raise _untagged(stream, [_tagger(other) for other in unknown], name, wanted[name])
                raise _unknown(stream, name, wanted[name], near[name], seen)
    return sorted(missing - seen)


def _sought(stream: Stream, file: DocumentFile, names: frozenset[str], blocks: int | None = None) -> Sought:
    return Sought(file, stream.attributes, stream.input_compression, names, blocks)


def look(sought: Sought) -> Seen:
    """Return the names of attributes in a file of documents and in its attribute sets. Runs in a worker process.

    The search stops when all names are found.
    """
    store, names, bare = sought.file.store(), set[str](), set[str]()
    paths = {name: sought.file.attributes(name) for name in sought.sets}
    for name, path in [*paths.items(), ("", sought.file.path)]:
        if name and not store.exists(path):
            bare.add(name)
            continue
        here: set[str] = set()
        blocks = (
            read_lines(store, path, json=True)
            if name
            else read_blocks(sought.file, fields=("attributes",), packed=sought.input)
        )
        for lines in islice(blocks, sought.blocks):
            for keys in _names(lines):
                here.update(keys)
            if sought.names <= names | here:
                return Seen(frozenset(names | here), frozenset())
        names |= here
        if name and not here:
            bare.add(name)
    return Seen(frozenset(names), frozenset(bare))


class _Row(msgspec.Struct, gc=False):
    attributes: dict[str, msgspec.Raw] | None = None


_decode = decoder_of(_Row).decode


def _names(lines: bytes) -> Iterator[dict[str, Any]]:
    for row in rows_of(lines):
        try:
            if attributes := _decode(row).attributes:
                yield attributes
        except REFUSED:
            continue  # reported when the row is merged


class Declared(NamedTuple):
    """Attributes that a set can have: their names, and prefixes of names that depend on the texts."""

    names: frozenset[str]
    heads: tuple[str, ...] = ()

    def has(self, name: str) -> bool:
        """Return whether the set can have an attribute of this name."""
        return name in self.names or name.startswith(self.heads)


def declared(file: DocumentFile, name: str) -> Declared | None:
    """Return the attributes that a set can have according to its manifest or record, or None if it has neither."""
    store = file.store()
    manifest = read_manifest(store, name)
    options = manifest.get("options") if manifest is not None else None
    if isinstance(options, dict):
        own = options.get("attribute", options.get("name"))
        return Declared(frozenset((str(own), f"{own}_cluster") if "attribute" not in options else (str(own),)))
    path = file.attributes(name).removeprefix(f"{ATTRIBUTES}/{name}/")
    record = records.read_record(store.locate(f"{ATTRIBUTES}/{name}"), path)
    if record is None:
        return None
    names, heads = set[str](), list[str]()
    for tagger in map(str, record.options.get("taggers") or ()):
        head = attribute_name(str(record.options.get("experiment") or ""), tagger, "x")[:-1]
        known = kinds(tagger)
        if known is None:
            heads.append(head)
        names |= {f"{head}{kind}" for kind in known or ()}
    return Declared(frozenset(names), tuple(heads))


def _sparse(attribute: str, seen: set[str]) -> bool:
    """Return whether one of Feedmill's taggers can write this attribute, and rows have other attributes of the tagger.

    This recognizes rare kinds in attribute sets that Dolma wrote, which have no record.
    """
    head, _, kind = attribute.rpartition("__")
    tagger = head.rpartition("__")[2]
    return any(name.startswith(f"{head}__") for name in seen) and kind in (kinds(tagger) or ())


@cache
def kinds(tagger: str) -> tuple[str, ...] | None:
    """Return the kinds of attributes that a tagger writes, as spelled in names, or None if they are unknown."""
    from feedmill.curation import registry
    from feedmill.curation.documents import Batch, RowWithMetadata

    where = registry.known().get(tagger, "")
    if (
        not where.startswith("feedmill.curation.taggers.")
        or where.split(".")[3] in _OPEN
        or registry.needs_file(tagger)
    ):
        return None
    made = registry.create(tagger)
    kinds_of_spans = made.tag(Batch([RowWithMetadata("", "", metadata={})])).kinds
    return tuple(attribute_name("", "x", kind).removeprefix("x__") for kind in kinds_of_spans)


def _tagger(attribute: str) -> str | None:
    """Return the tagger that writes an attribute, by its name."""
    from feedmill.curation import registry

    known = registry.known()
    return next((part for part in attribute.split("__")[:-1] if part in known), None)


@cache
def tag_command(stream: Stream, taggers: Sequence[str] | None = None) -> str:
    """Return the command that runs taggers on the documents of a stream: those that its short rules name by default.

    Empty if they name none.
    """
    chosen = taggers or sorted({tagger for text in stream.keep if (tagger := _tagger(Limit.parse(text).key))})
    named = " ".join(f"-t {tagger}" for tagger in chosen)
    paths = (f'"{path}"' if quote(path) != path else path for path in stream.documents)  # the message has single quotes
    return f"feedmill tag {' '.join(paths)} {named}" if named else ""


def _untagged(stream: Stream, taggers: Sequence[str | None], name: str, expression: str) -> ConfigError:
    """Return the error for attributes of taggers that have not run."""
    missing = tuple(sorted({tagger for tagger in taggers if tagger is not None}))
    which = f"the tagger {missing[0]} has" if len(missing) == 1 else f"the taggers {', '.join(missing)} have"
    return ConfigError(
        f"stream {stream.name}: no row has an attribute {name!r}, named by {expression}, because {which} not run"
        f" (attribute sets: {', '.join(stream.attributes) or 'none is named'})",
        kind="no-such-attribute",
        fix=f"Run '{tag_command(stream, missing)}'."
        f" In a configuration, add {', '.join(map(repr, missing))} to 'attributes' of the stream.",
    )


def _unknown(stream: Stream, name: str, expression: str, hint: str, seen: set[str]) -> ConfigError:
    sets = ", ".join(stream.attributes) or "none is named in 'attributes'"
    if not hint:
        shown = sorted(seen)[:10]
        hint = f"Found: {', '.join(shown)}{', ...' if len(seen) > 10 else ''}." if seen else "No attributes were found."
    return ConfigError(
        f"stream {stream.name}: no row has an attribute {name!r}, named by {expression} (attribute sets: {sets})",
        kind="no-such-attribute",
        fix=f"{hint} If the attribute may be missing everywhere, set 'allow_missing: true'.",
    )
