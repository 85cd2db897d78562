"""Errors for files of columns that cannot be read, by their content and by what pyarrow says of them.

Only damage is answered with "copy it again".
"""

from __future__ import annotations

import codecs
import re
from typing import Literal, NamedTuple

from feedmill.errors import DataError, FeedmillError, StorageError
from feedmill.formats.documents import WRITE_LINES, foreign
from feedmill.formats.tables import footer as parquet_footer
from feedmill.storage import Store
from feedmill.storage.base import storage_error

Kind = Literal["parquet", "arrow"]
MAGIC: dict[Kind, bytes] = {"parquet": b"PAR1", "arrow": b"ARROW1"}
"""First and last bytes of Parquet and Arrow files; streams of Arrow have none."""

_AGAIN = "Copy it again."
_REWRITE = "Rewrite it as Parquet, or as an Arrow file."
_ENCRYPTED, _FEATHER = b"PARE", b"FEA1"
_STREAM = b"\xff\xff\xff\xff"
_HEAD = 4096
_MOST_MEMORY = 1 << 42
_EXTENSION = re.compile("storage type|seriali[sz]e|shape dimensions|json parse error|key '[a-z_]+' does not exist")
"""What pyarrow says in lower case of a known extension type that is stored, or described, as it is not by pyarrow."""
_ASKED = re.compile(r"alloc of size (-?\d+)")
_OTHERS = (
    (b"version https://git-lfs", "a pointer of Git LFS", "Get the data with 'git lfs pull'."),
    (b"<!doctype html", "a web page", "The download failed: get the file again."),
    (b"<html", "a web page", "The download failed: get the file again."),
    (b"<?xml", "XML", "If it is an error of an object store, get the file again."),
    (b"orc", "ORC", _REWRITE),
    (b"obj\x01", "Avro", _REWRITE),
    (b"sqlite format 3\0", "an SQLite database", _REWRITE),
    (b"\x89hdf\r\n", "HDF5", _REWRITE),
    (b"{", "JSON", "Rename it so that its name ends with .jsonl."),
    (b"[", "JSON", "Write it as JSON lines, and name it .jsonl."),
)
"""First bytes in lower case, what they begin, and what to do; `foreign` has more."""


class _Reason(NamedTuple):
    what: str
    fix: str
    kind: str


def unreadable(
    store: Store, path: str, form: Kind, error: BaseException, *, offset: int | None = None, record: str | None = None
) -> FeedmillError:
    """Return the error for a file that could not be read, with the cause and what to do about it.

    Args:
        form: what was expected.
        error: the exception of pyarrow, numpy or the operating system; a `FeedmillError` is returned as it is.
        offset, record: the block that was read.
    """
    if isinstance(error, FeedmillError):
        return error
    where, said = store.locate(path), " ".join(str(error).split())[:200]
    if isinstance(error, OSError) and error.errno is not None:
        return storage_error(error, where)
    found = (
        (_memory(said) if isinstance(error, MemoryError) else None)
        or _by_content(store, path, form)
        or _by_message(store, path, form, error, said)
        or _Reason(f"the file cannot be read ({said})", _AGAIN, "bad-data")
    )
    made = StorageError if found.kind == "memory" else DataError
    return made(found.what, file=where, offset=offset, record=record, fix=found.fix, kind=found.kind)


def _memory(said: str) -> _Reason | None:
    asked = _ASKED.search(said)
    if asked is not None and not 0 <= int(asked[1]) < _MOST_MEMORY:
        return None  # a size in the file is damaged
    fix = "Write it with smaller row groups or record batches, or use a machine with more memory."
    return _Reason(f"there is not enough memory to read it ({said})", fix, "memory")


def _by_content(store: Store, path: str, form: Kind) -> _Reason | None:
    """Return the reason if the first and last bytes are not those of the expected format."""
    size = store.stat(path).size
    if not size:
        return _Reason("the file is empty (0 bytes)", _AGAIN, "empty-file")
    head, tail = store.read(path, 0, min(size, _HEAD)), store.read(path, max(0, size - 6), min(size, 6))
    title = form.capitalize()
    if head.startswith(_FEATHER):
        fix = "Rewrite it as version 2: pyarrow.feather.write_feather(pyarrow.feather.read_table(OLD), NEW)."
        return _Reason("the file is Feather version 1, which is unsupported: it has no Arrow data", fix, "unsupported")
    if form == "parquet" and head.startswith(_ENCRYPTED) and tail.endswith(_ENCRYPTED):
        return _encrypted("the file is encrypted")
    if head[: len(MAGIC[form])] == MAGIC[form][: len(head)]:
        if tail.endswith(MAGIC[form]):
            return None
        what = f"the file is truncated: it begins like {title}, but does not end with {MAGIC[form]!r}"
        return _Reason(what, _AGAIN, "bad-data")
    if head[:4] == _STREAM[: len(head)]:
        fix = "Rename it so that its name ends with .arrows."
        return None if form == "arrow" else _Reason("expected Parquet, found a stream of Arrow", fix, "unknown-format")
    begin = head.lstrip(b" \t\r\n\xef\xbb\xbf").lower()
    found = next(((what, fix) for start, what, fix in _OTHERS if begin.startswith(start)), None)
    if found is None:
        found = foreign(head, path)
        if found is None or (found[1] == WRITE_LINES and not _is_utf8(head)):
            return None
        if found[0] == "binary data":
            if form == "arrow" or tail.endswith(MAGIC[form]) or not head.strip(b"\0"):
                return None  # streams have no first bytes of their own; the others begin with damage
            found = found[0], "Give it the suffix of its format, or write it as Parquet."
        elif found[0].startswith("data compressed"):
            found = found[0], "Decompress it."
        elif not found[1].startswith("Rename"):
            found = found[0], "Give it the suffix of its format, or write it again."
    return _Reason(f"expected {title}, found {found[0]}", found[1], "unknown-format")


def _is_utf8(head: bytes) -> bool:
    try:
        return bool(codecs.getincrementaldecoder("utf-8")().decode(head))
    except UnicodeDecodeError:
        return False


def _by_message(store: Store, path: str, form: Kind, error: BaseException, said: str) -> _Reason | None:
    words = said.lower()
    encrypted, files = _unusual(store, path) if form == "parquet" else ([], [])
    if "crypt" in words and form == "parquet":
        names = ", ".join(map(repr, encrypted))
        return _encrypted(f"these columns are encrypted: {names}" if names else "the file is encrypted")
    if files:
        what = f"it is a summary of other files ({len(files):,}), such as {files[0]!r}, and has no rows itself"
        return _Reason(what, "Open the other files, or their folder.", "unsupported")
    if isinstance(error, NotImplementedError):
        if "codec" in words:
            fix = "Write it again with another codec, such as zstd."
            return _Reason(f"this pyarrow cannot decompress it ({said})", fix, "unsupported")
        fix = "Cast the column to a type that pyarrow reads, such as 64-bit integers, and write the file again."
        return _Reason(f"pyarrow does not support a type in it ({said})", fix, "unsupported")
    if _EXTENSION.search(words):
        fix = "Write the column as its writer's plain type: text, bytes, numbers or lists."
        return _Reason(f"pyarrow does not take an extension type as it is stored in it ({said})", fix, "unsupported")
    if form == "parquet" and "expected all lists to be of size" in words:
        fix = "Write the column as lists of any size."
        return _Reason(f"pyarrow does not read its lists of a fixed size ({said})", fix, "unsupported")
    if form == "arrow" and "buffer_index out of range" in words and _has_dictionaries(store, path):
        fix = "If a column was a dictionary of dictionaries, write it with plain values; otherwise copy the file again."
        return _Reason(f"a dictionary in it does not have the values that its type says ({said})", fix, "bad-data")
    if words.endswith("tensor"):  # instead of a schema
        fix = "Write it as a .npy file, or as a table."
        return _Reason(f"expected a table, found another kind of Arrow data ({said})", fix, "unsupported")
    if "utf8" in words or "utf-8" in words:
        fix = "If its writer stored bytes as text, write them as a binary column; otherwise copy the file again."
        return _Reason(f"text in it is not UTF-8 ({said})", fix, "bad-data")
    return None


def _has_dictionaries(store: Store, path: str) -> bool:
    """Return whether a file of Arrow has dictionaries: written with dictionaries as values, they lose their types."""
    import pyarrow as pa

    opener = pa.ipc.open_file if store.read(path, 0, 6) == MAGIC["arrow"] else pa.ipc.open_stream
    with store.local_copy(path) as local, pa.OSFile(str(local)) as file:
        try:
            return "dictionary<" in str(opener(file).schema)
        except (pa.ArrowException, OSError):
            return False


def _unusual(store: Store, path: str) -> tuple[list[str], list[str]]:
    """Return the encrypted columns of a Parquet file, and the other files that hold its columns, as far as known."""
    try:
        return parquet_footer.unusual(read_footer(store, path))
    except (ValueError, DataError):
        return [], []


def _encrypted(what: str) -> _Reason:
    return _Reason(what, "Read it with its keys, and write it again without encryption.", "unsupported")


def read_footer(store: Store, path: str) -> bytes:
    """Return the ``FileMetaData`` of a Parquet file. Raises `ValueError`, `StorageError`."""
    size = store.stat(path).size
    length = int.from_bytes(store.read(path, size - 8, 4), "little")
    if length > size - 8:
        raise ValueError(f"its footer has {length} bytes, the file has {size}")
    return store.read(path, size - 8 - length, length)
