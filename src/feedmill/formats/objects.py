"""JSON: its values, and files of formats that hold one object."""

from __future__ import annotations

from typing import Any

import msgspec

from feedmill.errors import DataError
from feedmill.storage import Store


def decode_json(data: bytes) -> Any:
    """Parse JSON as Python's `json` module does, several times faster.

    msgspec parses standard JSON, with exact integers of any size. Other input that `json` accepts (NaN, Infinity, lone
    surrogates, UTF-16) is parsed by `json`. Raises `ValueError` or `RecursionError`.
    """
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        import json

        return json.loads(data)


def read_object(store: Store, path: str, *, kind: str, fix: str) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        NotFound: the file does not exist.
        DataError: it is not JSON, or no object; with this `kind` and `fix`. Or it is too large (`Store.read_small`).
    """
    try:
        content = msgspec.json.decode(store.read_small(path))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise invalid_file(store, path, str(error), kind=kind, fix=fix) from None
    if not isinstance(content, dict):
        raise invalid_file(store, path, "it is not a JSON object", kind=kind, fix=fix)
    return content


def invalid_file(store: Store, path: str, why: str, *, kind: str, fix: str) -> DataError:
    """Return the error for a file that is not what its format promises."""
    return DataError(f"invalid file ({why})", file=store.locate(path), kind=kind, fix=fix)
