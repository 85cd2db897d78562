from __future__ import annotations

import json
from typing import Any

import pytest

from feedmill.documents.typed import Typed, TypedReader
from feedmill.errors import ConfigError


@pytest.mark.parametrize(
    ("typed", "document", "text", "key"),
    [
        (Typed(), {"id": "1", "text": " a b\n"}, "a b", "1"),
        (Typed("a.b", "a.c", "int"), {"a": {"b": "x", "c": 5}}, "x", 5),
        (Typed("a.b.c", "a.d.c"), {"a": {"b": {"c": "x"}, "d": {"c": "y"}}}, "x", "y"),
        (Typed("text", "text"), {"text": "x"}, "x", "x"),
        (Typed("text", "n", "null"), {"text": "x", "n": None}, "x", None),
        (Typed("text", None), {"text": "x"}, "x", None),
        (Typed("te-xt", "1"), {"te-xt": "x", "1": "y"}, "x", "y"),
    ],
)
def test_fields(typed: Typed, document: Any, text: str, key: Any) -> None:
    found = TypedReader(typed).record(json.dumps(document).encode())
    assert (found.text, found.fields) == (text, (key,))


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'{"id": "1"}', b'{"id": 1, "text": "x"}', b'{"id": "1", "text": null}', b"\xff"]
)
def test_bad_lines_have_a_reason(line: bytes) -> None:
    found = TypedReader(Typed()).record(line)
    assert found.text is None and found.reason


def test_a_lone_surrogate_is_called_one() -> None:
    assert "lone surrogate" in TypedReader(Typed()).record(b'{"id": "1", "text": "\\ud800"}').reason


def test_blank_texts_are_passed_over() -> None:
    found = TypedReader(Typed()).record('{"id": "1", "text": " \u2003\\n"}'.encode())
    assert found.text is None and not found.reason


@pytest.mark.parametrize(
    "typed", [Typed("a", "a.b"), Typed("a.b", "a"), Typed("a", "a", "int"), Typed("a", "b", "uuid")]
)
def test_refused(typed: Typed) -> None:
    with pytest.raises(ConfigError):
        TypedReader(typed)
