"""Encodings of text files: as their byte order mark says, else UTF-8, else the one that the user named."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from functools import cache, partial

from feedmill.errors import DataError
from feedmill.importing.scanning import File
from feedmill.storage import Store
from feedmill.storage.codec import compression, unpacked

UTF8 = "utf-8"
NAME_IT = "Name its encoding with --encoding, or leave the file out with --exclude."
_BOMS = ((codecs.BOM_UTF8, "utf-8-sig"), (codecs.BOM_UTF16_LE, "utf-16"), (codecs.BOM_UTF16_BE, "utf-16"))
_MARKS = tuple(mark for mark, _ in _BOMS)
_PIECE = 1 << 20


def decode(data: bytes, encoding: str, name: str) -> str:
    """Return a text; see `encoding_of`. Raises `DataError`."""
    try:
        return data.decode(encoding)
    except UnicodeDecodeError as error:
        raise DataError(
            f"not valid {encoding} (use --encoding)", file=name, offset=error.start, kind="bad-encoding", fix=NAME_IT
        ) from None


def encoding_of(pieces: Iterable[bytes], encoding: str) -> str:
    """Return how a file is encoded: as its byte order mark says, else UTF-8 if it is valid, else `encoding`.

    An encoding whose texts are ASCII bytes with another meaning, such as UTF-16 and ISO-2022-JP, is taken if the two
    texts differ.

    Args:
        pieces: the content; it is read to the end only if `encoding` is not UTF-8.
    """
    found = iter(pieces)
    data = next(found, b"")
    if data.startswith(_MARKS):
        return next(marked for mark, marked in _BOMS if data.startswith(mark))
    if not is_other(encoding):
        return encoding
    first, other = codecs.getincrementaldecoder(UTF8)(), codecs.getincrementaldecoder(encoding)()
    ascii = True
    try:
        while data:
            text = first.decode(data)
            if "\0" in text:
                return encoding
            ascii = ascii and data.isascii()  # other texts are valid UTF-8 only by chance
            if ascii and not _is_same(other, data, text):
                return encoding
            data = next(found, b"")
        first.decode(b"", final=True)
    except UnicodeDecodeError:
        return encoding
    return UTF8


@cache
def is_other(encoding: str) -> bool:
    """Return whether an encoding is not UTF-8."""
    return codecs.lookup(encoding).name != UTF8


def _is_same(decoder: codecs.IncrementalDecoder, data: bytes, text: str) -> bool:
    """Return whether bytes are this text in another encoding too, or no text of it."""
    try:
        return decoder.decode(data) == text
    except UnicodeDecodeError:
        return True


def encoding_of_file(store: Store, file: File, encoding: str) -> str:
    """Return how a file is encoded, reading it piece by piece."""
    with (
        store.local_copy(file.path) as local,
        open(local, "rb") as raw,
        unpacked(raw, compression(file.path.lower()), file=store.locate(file.path)) as stream,
    ):
        return encoding_of(iter(partial(stream.read, _PIECE), b""), encoding)
