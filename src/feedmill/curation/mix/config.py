"""Configuration of document filters: streams, their rules and replacements, and their outputs.

The configuration is Dolma's (``streams``, ``processes``, ``shuffle``) with additions: ``rate`` of a stream (how often
each of its documents is taken), and for all streams ``allow_missing`` (attributes), ``seed``, and ``permute``, which
writes the documents in random order.

The JSON schema is for editors; `read_config` is what checks a configuration.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from feedmill.curation.mix.limits import PRESETS, Limit, preset
from feedmill.documents.expressions import compile_jq, compile_path
from feedmill.errors import ConfigError, suggestion
from feedmill.storage.codec import KINDS

JSONPATH, JQ = "jsonpath", "jq"
MAX_SIZE = 2 * 1024**3


@dataclass(frozen=True, kw_only=True, slots=True)
class Replacement:
    """Replace spans with ``low <= score < high`` by `text`.

    ``{}`` in `text` stands for the replaced characters. A `text` of the form ``$...`` is a jq expression.
    """

    span: str
    low: float | None = None
    high: float | None = None
    text: str = ""
    syntax: str = JSONPATH


@dataclass(frozen=True, kw_only=True, slots=True)
class Stream:
    """One stream: its inputs, rules and output. See docs/filter.md for each field."""

    name: str
    documents: tuple[str, ...]
    output: str
    attributes: tuple[str, ...] = ()
    max_size: int = MAX_SIZE
    discard: tuple[str, ...] = ()
    min_text_length: int = 0
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    keep: tuple[str, ...] = ()
    syntax: str = JSONPATH
    replacements: tuple[Replacement, ...] = ()
    input_compression: str | None = None
    output_compression: str | None = None
    rate: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True)
class FilterConfig:
    """Configuration of all streams, and of the layout of their outputs.

    Args:
        mirror: Write one output per input, under its name (Dolma's ``shuffle: false``).
        permute: Put the files of a stream, and the documents of each output, into random order.
        seed: Seed of the order and of the sampling.
        allow_missing: Attribute files that do not exist count as empty.
        allow_stale: Use attributes that were computed from other documents.
        allow_empty: Accept patterns without files, and streams that keep no documents.
        exact: Do as Dolma does if rows do not line up, and for spans that are empty, inverted or beyond the text.
        dolma_names: Name the last output of each stream as Dolma does.
        workers, dry_run: Defaults for the arguments of `feedmill.curation.mix.job.mix`.
        id: Field that ids are read from; ``auto`` makes ids of file and row for documents without one.
    """

    streams: tuple[Stream, ...]
    mirror: bool = False
    permute: bool = False
    seed: int = 0
    allow_missing: bool = False
    allow_stale: bool = False
    allow_empty: bool = False
    exact: bool = False
    dolma_names: bool = False
    workers: int | None = None
    dry_run: bool = False
    id: str | None = None

    @staticmethod
    def json_schema() -> dict[str, Any]:
        """Return the JSON schema of configurations, for use in editors."""
        return json_schema()


def read_config(tree: Mapping[str, Any], *, dolma: bool = False, exact: bool = False) -> FilterConfig:
    """Return the configuration from plain data.

    Args:
        dolma: Name the last output of each stream as Dolma does, ``.json`` instead of ``.jsonl``.
        exact: See `FilterConfig`.

    Raises:
        ConfigError: A key is unknown, missing or of the wrong type, or an expression is invalid.
    """
    top = _Reader(tree, "")
    streams = tuple(_stream(item, f"streams[{n}]", dolma) for n, item in enumerate(top.items("streams", dict)))
    if not streams:
        raise _bad("the configuration has no streams", "Add at least one to 'streams'.")
    config = FilterConfig(
        streams=streams,
        mirror=not top.value("shuffle", bool, True),
        permute=top.value("permute", bool, False),
        seed=top.value("seed", int, 0),
        allow_missing=top.value("allow_missing", bool, False),
        allow_stale=top.value("allow_stale", bool, False),
        allow_empty=top.value("allow_empty", bool, dolma),
        exact=exact,
        dolma_names=dolma,
        workers=top.value("processes", int, None),
        dry_run=top.value("dryrun", bool, False),
        id=top.value("id", str, None),
    )
    top.end("work_dir")
    if config.workers is not None and config.workers < 1:
        raise _bad(f"'processes' must be 1 or more, not {config.workers}", "Use 1 or more.")
    outputs = [(stream.output.rstrip("/"), "" if config.mirror else stream.name) for stream in streams]
    for n, output in enumerate(outputs):
        if output in outputs[:n]:
            raise _bad(f"two streams write to {'/'.join(output)}", "Use different names or output paths.")
    return config


def _stream(tree: Any, where: str, dolma: bool) -> Stream:
    reader = _Reader(tree, where)
    name = reader.value("name", str)
    output = _Reader(reader.value("output", dict), f"{where}.output")
    filters = _Reader(reader.value("filter", dict, {}) or {}, f"{where}.filter")
    kinds = _Reader(reader.value("compression", dict, {}) or {}, f"{where}.compression")
    include, exclude = filters.items("include", str), filters.items("exclude", str)
    syntax = filters.value("syntax", str, JSONPATH)
    for expression in (*include, *exclude):
        check_expression(expression, syntax, filters.where)
    keep = () if dolma else _keep(filters)
    spans = reader.items("span_replacement", dict)
    replacements = tuple(_replacement(item, f"{where}.span_replacement[{n}]") for n, item in enumerate(spans))
    made = Stream(
        name=name,
        documents=reader.items("documents", str),
        attributes=reader.items("attributes", str),
        output=output.value("path", str),
        max_size=output.value("max_size_in_bytes", int, MAX_SIZE),
        discard=output.items("discard_fields", str),
        min_text_length=output.value("min_text_length", int, 0),
        include=include,
        exclude=exclude,
        keep=keep,
        syntax=syntax,
        replacements=replacements,
        input_compression=_compression(kinds, "input"),
        output_compression=_compression(kinds, "output"),
        rate=float(reader.value("rate", (int, float), 1.0)),
    )
    if not 0 < made.max_size < 1 << 63:
        raise _bad(f"{where}.output.max_size_in_bytes is {made.max_size}", "Use a number of bytes from 1 to 2**63 - 1.")
    if not made.rate >= 0 or made.rate > 1000:
        raise _bad(f"{where}.rate is {made.rate}", "Use a number from 0 to 1000; 1 takes every document once.")
    if "/" in name or not name:
        raise _bad(f"{where}.name {name!r} cannot begin a file name", "Use a plain name.")
    for rest in (reader, output, filters, kinds):
        rest.end()
    if dolma and not replacements and not include and not exclude:
        raise _bad(f"{where}: the stream has neither a filter nor a span_replacement", "Add one.")
    return made


def _keep(filters: _Reader) -> tuple[str, ...]:
    """Return the short rules of a filter, those of its presets first."""
    rules = [rule for name in filters.items("presets", str) for rule in preset(name, filters.at("presets"))]
    own = filters.items("keep", str)
    for n, text in enumerate(own):
        try:
            Limit.parse(text)
        except ConfigError as error:
            raise ConfigError(f"{filters.at('keep')}[{n}]: {error.what}", kind=error.kind, fix=error.fix) from None
    return tuple(dict.fromkeys([*rules, *own]))


def _replacement(tree: Any, where: str) -> Replacement:
    reader = _Reader(tree, where)
    made = Replacement(
        span=reader.value("span", str),
        low=reader.value("min_score", (int, float), None),
        high=reader.value("max_score", (int, float), None),
        text=reader.value("replacement", str, ""),
        syntax=reader.value("syntax", str, JSONPATH),
    )
    reader.end()
    if made.low != made.low or made.high != made.high:
        raise _bad(f"{where}: a score is not a number", "Use numbers.")
    if made.low is None and made.high is None:
        raise _bad(f"{where} has neither min_score nor max_score", "Set at least one.")
    check_expression(made.span, made.syntax, where)
    if made.text.startswith("$"):
        check_expression(made.text[1:], JQ, where)
    return made


def check_expression(text: str, syntax: str, where: str) -> None:
    """Parse an expression. Raises `ConfigError` that names its place in the configuration."""
    if syntax not in (JSONPATH, JQ):
        raise _bad(f"{where}.syntax is {syntax!r}", "Use 'jsonpath' or 'jq'.")
    try:
        (compile_path if syntax == JSONPATH else compile_jq)(text)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error.what}", kind=error.kind, fix=error.fix) from None


def _compression(reader: _Reader, key: str) -> str | None:
    kind: str | None = reader.value(key, str, None)
    if kind is not None and kind not in KINDS:
        raise _bad(f"{reader.where}.{key} is {kind!r}", "Use 'gz', 'zst', or '' for no compression.")
    return kind


_REQUIRED: Any = object()


class _Reader:
    """Reader of a mapping that removes each key it reads, so that `end` can report the unknown ones."""

    def __init__(self, tree: Any, where: str) -> None:
        if not isinstance(tree, Mapping):
            raise _bad(f"{where or 'the configuration'} must be a mapping, found {tree!r}", "See docs/filter.md.")
        self.rest, self.where, self.known = dict(tree), where, list[str]()

    def value(self, key: str, kinds: Any, default: Any = _REQUIRED) -> Any:
        self.known.append(key)
        value = self.rest.pop(key, None)
        if value is None:
            if default is _REQUIRED:
                near = next((str(name) for name in self.rest if suggestion(str(name), [key])), None)
                raise _bad(f"{self.at(key)} is missing", f"Write {key!r} for {near!r}." if near else "Add it.")
            return default
        value = _as_written(value, kinds)
        if not isinstance(value, kinds) or (isinstance(value, bool) and kinds is not bool):
            raise _bad(f"{self.at(key)} is {value!r}, which has the wrong type", "See docs/filter.md.")
        return value

    def items(self, key: str, kind: type) -> tuple[Any, ...]:
        wrong = [str(name) for name in self.rest if suggestion(str(name), [key], cutoff=0.8)]
        if key not in self.rest and wrong:
            raise _bad(f"unknown option {self.at(wrong[0])}", f"Did you mean {key!r}?")
        values = self.value(key, (list, tuple), [])
        for n, value in enumerate(values):
            if not isinstance(value, kind):
                raise _bad(f"{self.at(key)}[{n}] is {value!r}, which has the wrong type", "See docs/filter.md.")
        return tuple(values)

    def at(self, key: str) -> str:
        return f"{self.where}.{key}" if self.where else key

    def end(self, *ignored: str) -> None:
        for key in self.rest:
            if key not in ignored:
                hint = suggestion(str(key), self.known, f"Known: {', '.join(self.known)}.")
                raise _bad(f"unknown option {self.at(str(key))}", hint)


def _as_written(value: Any, kinds: Any) -> Any:
    """Convert a number to a string or a string to a number if the other type is expected, as Dolma does.

    Examples are ``name: 2024`` and ``min_score: 5e-1``, which is a string in YAML because it has no point.
    """
    if kinds is str and isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, str) and kinds in (int, (int, float)):
        for kind in (kinds,) if kinds is int else kinds:
            with contextlib.suppress(ValueError):
                return kind(value)
    return value


def _bad(what: str, fix: str) -> ConfigError:
    return ConfigError(what, kind="bad-config", fix=fix)


_SYNTAXES, _MAX_SIZE = ["jsonpath", "jq"], 2 * 1024**3
_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of what ``feedmill filter CONFIG`` reads."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Feedmill filter configuration",
        **_mapping(
            streams={"type": "array", "minItems": 1, "items": _stream_schema()},
            shuffle=_option(_FLAG, True, "Gather inputs into outputs; false: one output for each input."),
            permute=_option(
                _FLAG, False, "Put the files of a stream and the documents of each output into random order."
            ),
            seed=_option(_whole(), 0, "Seed of permute and rate."),
            id=_option(_TEXT, "id", "Field that ids are read from, or auto."),
            allow_missing=_option(_FLAG, False, "Missing attribute files count as empty."),
            allow_stale=_option(_FLAG, False, "Use attributes that were made from other documents."),
            allow_empty=_option(_FLAG, False, "Accept streams that keep no documents."),
            processes=_whole(1),
            dryrun=_option(_FLAG, False, "Check the configuration and the first documents, and write nothing."),
            work_dir={"description": "Accepted and ignored, as Dolma's configurations have it."},
            required=("streams",),
        ),
    }


def _stream_schema() -> dict[str, Any]:
    return _mapping(
        name=_TEXT | {"pattern": "^[^/]+$", "description": "Outputs are named NAME-0000.jsonl.gz and so on."},
        documents=_list("Files, folders or patterns, in or below a folder named documents."),
        attributes=_list("Attribute sets, beside the documents."),
        rate=_option({"type": "number", "minimum": 0, "maximum": 1000}, 1, "How often each document is used."),
        filter=_mapping(
            include=_list("A document is kept if any of these is true, or if there are none."),
            exclude=_list("A document is dropped if any of these is true."),
            keep=_list("Short rules, 'gopher_v2.word_count >= 50'; a document is dropped if it violates any of them."),
            presets={"type": "array", "items": {"enum": [*PRESETS]}, "description": "Short rules of publications."},
            syntax=_option({"enum": _SYNTAXES}, _SYNTAXES[0], "Language of the expressions."),
        ),
        span_replacement={"type": "array", "items": _replacement_schema()},
        output=_mapping(
            path=_TEXT | {"description": "Output folder."},
            max_size_in_bytes=_option(
                _whole(1), _MAX_SIZE, "Stored bytes of inputs that are gathered into one output."
            ),
            min_text_length=_option(_whole(), 0, "Drop documents whose text has fewer bytes."),
            discard_fields=_list("Fields that are not written."),
            required=("path",),
        ),
        compression=_mapping(input={"enum": [*KINDS, None]}, output={"enum": [*KINDS, None]}),
        required=("name", "output"),
    )


def _replacement_schema() -> dict[str, Any]:
    return _mapping(
        span=_TEXT | {"description": "Path of the attribute whose spans are replaced."},
        min_score={"type": "number"},
        max_score={"type": "number"},
        replacement=_option(_TEXT, "", "Text in place of the span; {} is the span, $... a jq expression."),
        syntax=_option({"enum": _SYNTAXES}, _SYNTAXES[0], "Language of the path."),
        required=("span",),
    ) | {"anyOf": [{"required": ["min_score"]}, {"required": ["max_score"]}]}


def _mapping(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    found: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    return found | ({"required": list(required)} if required else {})


def _list(description: str) -> dict[str, Any]:
    return {"type": "array", "items": _TEXT, "description": description}


def _whole(least: int = 0) -> dict[str, Any]:
    return {"type": "integer", "minimum": least}


def _option(schema: dict[str, Any], default: object, description: str) -> dict[str, Any]:
    return schema | {"default": default, "description": description}
