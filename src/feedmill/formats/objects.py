"""Files of formats that hold one JSON object."""

from __future__ import annotations

from typing import Any

import orjson

from feedmill.errors import DataError
from feedmill.storage import Store


def read_object(store: Store, path: str, *, kind: str, fix: str) -> dict[str, Any]:
    """Return the JSON object in a file.

    Raises:
        NotFound: the file does not exist.
        DataError: it is not JSON, or no object; with this `kind` and `fix`.
    """
    try:
        found = orjson.loads(store.read(path))
    except orjson.JSONDecodeError as error:
        raise invalid_file(store, path, str(error), kind=kind, fix=fix) from None
    if not isinstance(found, dict):
        raise invalid_file(store, path, "it is not a JSON object", kind=kind, fix=fix)
    return found


def invalid_file(store: Store, path: str, why: str, *, kind: str, fix: str) -> DataError:
    """Return the error for a file that is not what its format promises."""
    return DataError(f"invalid file ({why})", file=store.locate(path), kind=kind, fix=fix)
