"""Parse rows of documents: only the required fields, with line numbers in errors."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import orjson

from feedmill.errors import DataError
from feedmill.formats.documents import json_fault, one_a_line, rows_of
from feedmill.structs import decoder_of

_MINUS, _ZERO = b"-0"
_DIGITS = re.compile(rb"\d{19}")
_BEHIND_NUMBERS = frozenset((b"", b",", b"]", b"}", b" ", b"\t", b"\r", b"\n"))
_MAY_FOLLOW = np.array([bytes([code]) in _BEHIND_NUMBERS for code in range(256)])
BLANKS = "\t\n\x0b\x0c\r \x85\xa0\u1680\u2028\u2029\u202f\u205f\u3000" + "".join(map(chr, range(0x2000, 0x200B)))
"""White space as defined by Unicode, which differs slightly from Python's."""


class TextRow(msgspec.Struct):
    """Document with its id as JSON, and its text."""

    text: str
    id: msgspec.Raw = msgspec.Raw(b"")


class IdRow(msgspec.Struct):
    """Row of any kind with its id as JSON."""

    id: msgspec.Raw = msgspec.Raw(b"")


REFUSED = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""Errors that msgspec raises for rows; RecursionError if a row is nested too deeply."""

_text, _texts = decoder_of(TextRow).decode, decoder_of(TextRow).decode_lines
_id = decoder_of(IdRow).decode
_encoder = msgspec.json.Encoder(order="sorted")


def parse_texts(lines: bytes, file: str, first: int) -> list[TextRow]:
    """Return the id and text of each of these whole lines.

    Args:
        lines: Whole lines.
        file: Name of the file in errors.
        first: Line of the first row, counted from 1.

    Raises:
        DataError: Of kind ``bad-document``, for the first row that is not a JSON object with a string ``text``.
    """
    try:
        parsed: list[TextRow] = _texts(lines)
        if one_a_line(lines, len(parsed)):
            return parsed
    except REFUSED:
        pass  # parsing rows one by one finds the invalid one
    return _parse(rows_of(lines), _text, file, first)


def parse_documents(lines: bytes, file: str, first: int) -> tuple[list[bytes], list[TextRow]]:
    """Return the ids of documents as compact JSON, and the parsed rows of `parse_texts`.

    Raises:
        DataError: Of kind ``bad-document``, for the first row that is not a document with an id.
    """
    rows = parse_texts(lines, file, first)
    ids = ids_of(rows, file, first)
    if not all(ids):
        raise bad_row(b"-", "the row has no 'id'", file, first + ids.index(b""))
    return ids, rows


def parse_ids(rows: Sequence[bytes], file: str, first: int) -> list[bytes]:
    """Return the id of each row as compact JSON; empty if it has none. Raises the errors of `parse_texts`."""
    return ids_of(_parse(rows, _id, file, first), file, first)


def ids_of(rows: Sequence[TextRow | IdRow], file: str, first: int) -> list[bytes]:
    """Return the ids of parsed rows like `parse_ids`; parsing rows does not validate ids.

    Raises:
        DataError: Of kind ``bad-document``, for the first id that is not valid JSON.
    """
    try:
        ids = [id_bytes(row.id) for row in rows]
        b"".join(ids).decode()
        return ids
    except (UnicodeError, orjson.JSONDecodeError):
        for line, row in enumerate(rows, first):
            try:
                id_bytes(row.id).decode()
            except (UnicodeError, orjson.JSONDecodeError) as error:
                raise bad_row(bytes(row.id), f"the id is not valid JSON ({error})", file, line) from None
        raise


def _parse(rows: Sequence[bytes], decode: Callable[[bytes], Any], file: str, first: int) -> list[Any]:
    # One by one: parsed together, an object over two lines and two objects on one line could cancel out unnoticed.
    found: list[Any] = []
    try:
        for row in rows:
            found.append(decode(row))
    except REFUSED as error:
        raise bad_row(rows[len(found)], str(error), file, first + len(found)) from None
    return found


FIXES = {
    "id": "Add an 'id' to each document: a text or number that is unique in its source, such as 'file.jsonl:12'."
    " Or choose another field with --id, or generate ids with --id auto.",
    "text": "Put the text of each document into the field 'text', and remove lines without text.",
}
"""Required field -> the fix if it is missing."""


_FAULTS = {
    "Object missing required field `id`": "id",
    "the row has no 'id'": "id",
    "Object missing required field `text`": "text",
}


def missing_field(fault: str) -> str:
    """Return the required field that a document lacks, by the parser's message; empty for another fault."""
    return _FAULTS.get(fault, "")


def bad_row(row: bytes, why: str, file: str, line: int) -> DataError:
    """Return the error for an invalid row."""
    why = json_fault(row, why)
    if missing := missing_field(why):
        why = f"the document has no {missing!r}"
    return DataError(
        why if why[:2].isupper() else why[:1].lower() + why[1:],  # keep the capitals of "JSON is malformed"
        file=file,
        record=f"line {line}",
        kind="bad-document",
        fix=FIXES.get(missing, "Fix or remove the line; each line is one JSON object with at least 'id' and 'text'."),
    )


def id_bytes(raw: msgspec.Raw) -> bytes:
    """Return an id as canonical compact JSON: equal ids have equal bytes."""
    plain = bytes(raw)
    if (plain[:1] == b'"' and b"\\" not in plain) or not plain:
        return plain
    return dump(load(plain))


def load(row: bytes, checked: bool = False) -> Any:
    """Parse a JSON value with numbers as Dolma reads them: integers beyond 64 bits and ``-0`` are floats.

    Args:
        row: The JSON value.
        checked: Whether the row is known to have no ``-0``.

    Raises:
        orjson.JSONDecodeError: The row is not valid JSON.
    """
    # orjson itself converts integers beyond 64 bits to floats.
    if not checked and has_negative_zero(row):
        import json

        orjson.loads(row)  # the standard library accepts more than JSON
        try:
            return json.loads(row, parse_int=_integer)
        except RecursionError:
            raise orjson.JSONDecodeError("it is nested too deeply", "", 0) from None
    return orjson.loads(row)


def has_negative_zero(row: bytes) -> bool:
    """Return whether the row may have the number ``-0``. A ``-0`` in a text can be a false positive."""
    at = row.find(b"-0")
    while at >= 0:
        if row[at + 2 : at + 3] in _BEHIND_NUMBERS:
            return True
        at = row.find(b"-0", at + 2)
    return False


def negative_zeros(lines: bytes) -> frozenset[int]:
    """Return the numbers, from 0, of the rows with line ends for which `has_negative_zero` is true."""
    # Two passes over the bytes are several times faster than searching.
    data = np.frombuffer(lines, np.uint8)
    found = data[:-1] == _MINUS
    found &= data[1:] == _ZERO
    places = np.flatnonzero(found)
    if not len(places):
        return frozenset()
    behind = data[np.minimum(places + 2, len(data) - 1)]
    hits = places[_MAY_FOLLOW[behind] | (places + 2 == len(data))].tolist()
    rows, before, row = set(), 0, 0
    for at in hits:
        row += lines.count(b"\n", before, at)
        before = at
        rows.add(row)
    return frozenset(rows)


def large_integers(lines: bytes) -> dict[int, str]:
    """Find rows with an integer beyond 64 bits, which parsing converts to a float.

    Returns:
        Number of the row, from 0 -> one such integer of the row.
    """
    data = np.frombuffer(lines, np.uint8)
    # In a run of 19 digits, at least two consecutive samples of every ninth byte are digits, and so are those between.
    sampled = (data[::9] - np.uint8(48)) < 10
    places = np.flatnonzero(sampled[:-1] & sampled[1:]) * 9
    for between in (4, 2, 6, 1, 3, 5, 7, 8):
        places = places[(data[places + between] - np.uint8(48)) < 10]
    by_place: dict[int, str] = {}
    row, before, end = 0, 0, 0
    for at in places.tolist():
        if at < end:  # in a row that was already searched
            continue
        row += lines.count(b"\n", before, at)
        before = at
        begin, end = lines.rfind(b"\n", 0, at) + 1, lines.find(b"\n", at)
        end = end if end >= 0 else len(lines)
        if not _DIGITS.search(lines, begin, end):
            continue
        if large := _large_integer(lines[begin:end]):
            by_place[row] = large
    return by_place


def _large_integer(row: bytes) -> str:
    """Return an integer of a row that has more than 64 bits, or an empty string."""
    import json

    found: list[str] = []

    def note(digits: str) -> int:
        if len(digits) > 21 or not -(1 << 63) <= int(digits) < 1 << 64:
            found.append(digits)
        return 0

    with contextlib.suppress(ValueError, RecursionError):  # invalid JSON is reported when the row is parsed
        json.loads(row, parse_int=note)
    return found[0] if found else ""


def is_blank(text: str) -> bool:
    """Return whether a text is empty or has only white space."""
    return not text[:1].strip(BLANKS) and not text.strip(BLANKS)


def _integer(digits: str) -> int | float:
    value = int(digits)
    if (value == 0 and digits[0] == "-") or not -(1 << 63) <= value < 1 << 64:
        return float(digits)
    return value


def shown_bytes(data: bytes) -> str:
    """Return bytes as text if they are text, and otherwise how many they are.

    >>> shown_bytes(b"text"), shown_bytes(b"\\xff\\xd8")
    ('text', '(2 bytes)')
    """
    try:
        return data.decode()
    except UnicodeDecodeError:
        return f"({len(data):,} bytes)"


def dump(value: Any) -> bytes:
    """Serialize a JSON value as Dolma does: keys sorted at every level, no spaces, minimal escapes."""
    return _encoder.encode(value)


def dump_lines(values: Sequence[Any]) -> bytes:
    """Serialize values as `dump` does, each with a line end."""
    return _encoder.encode_lines(values)
