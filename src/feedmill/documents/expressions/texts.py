"""Functions of jq that write values as text and read them from it: the formats ``@name``, and dates."""

from __future__ import annotations

import re
from base64 import b64decode, b64encode
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

from feedmill.documents.expressions.registry import need, number, plain
from feedmill.documents.expressions.values import JqError, tojson

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_DATE = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_TSV = str.maketrans({"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"})
_HTML = str.maketrans({"<": "&lt;", ">": "&gt;", "&": "&amp;", "'": "&apos;", '"': "&quot;"})


@plain("tostring")
def _tostring(value: Any) -> str:
    return value if type(value) is str else tojson(value)


def _cells(value: Any, text: Callable[[str], str], separator: str, null: str = "") -> str:
    def cell(item: Any) -> str:
        return null if item is None else text(item) if type(item) is str else tojson(need(item, bool, int, float))

    return separator.join(cell(item) for item in need(value, list))


def _shell(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@plain("@base64d")
def _base64d(value: Any) -> str:
    return b64decode(_tostring(value), validate=True).decode()


plain("@text")(lambda value: _tostring(value))
plain("@json")(lambda value: tojson(value))
plain("@uri")(lambda value: quote(_tostring(value), safe="-_.~"))
plain("@base64")(lambda value: b64encode(_tostring(value).encode()).decode())
plain("@csv")(lambda value: _cells(value, lambda text: '"' + text.replace('"', '""') + '"', ","))
plain("@tsv")(lambda value: _cells(value, lambda text: text.translate(_TSV), "\t"))
plain("@html")(lambda value: _tostring(value).translate(_HTML))
plain("@sh")(lambda value: _cells(value if type(value) is list else [value], _shell, " ", "null"))


@plain("fromdate")
def _fromdate(value: Any) -> Any:
    found = _DATE.fullmatch(need(value, str))
    if not found:
        raise JqError(f"{tojson(value)} is no date: it must be like 2015-03-05T23:51:47Z")
    zone = "+00:00" if found[4] in "Zz" else found[4]
    seconds = (datetime.fromisoformat(f"{found[1]}T{found[2]}{zone}") - _EPOCH) // timedelta(seconds=1)
    return seconds if found[3] is None else seconds + float(found[3])


@plain("todate")
def _todate(value: Any) -> str:
    seconds = need(number(value), int, float)
    whole = int(seconds // 1)
    text = (_EPOCH + timedelta(seconds=whole)).strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    return f"{text}Z" if seconds == whole else f"{text}.{round((seconds - whole) * 1e6):06}000Z"


plain("fromdateiso8601")(lambda value: _fromdate(value))
plain("todateiso8601")(lambda value: _todate(value))
