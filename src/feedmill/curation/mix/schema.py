"""JSON schema of filter configurations, for editors; `read_config` is what checks a configuration."""

from __future__ import annotations

from typing import Any

from feedmill.curation.mix.limits import PRESETS
from feedmill.storage.codec import KINDS

_SYNTAXES, _MAX_SIZE = ["jsonpath", "jq"], 2 * 1024**3
_TEXT, _FLAG = {"type": "string"}, {"type": "boolean"}


def json_schema() -> dict[str, Any]:
    """Return the JSON schema (draft 2020-12) of what ``feedmill filter CONFIG`` reads."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Feedmill filter configuration",
        **_mapping(
            streams={"type": "array", "minItems": 1, "items": _stream()},
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


def _stream() -> dict[str, Any]:
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
        span_replacement={"type": "array", "items": _replacement()},
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


def _replacement() -> dict[str, Any]:
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
