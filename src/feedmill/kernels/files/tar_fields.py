"""Parse numbers in the headers of a tar, and create the errors for corrupt headers and members."""

from __future__ import annotations

from feedmill.errors import DataError

BLOCK = 512
_DIGITS = 20  # of numbers up to 2^64


def number(field_: bytes, position: int) -> int:
    """Return a numeric field: octal text, or base 256 if the first bit is set (GNU, for files above 8 GiB)."""
    if field_[0] in (0o200, 0o377):
        value = int.from_bytes(field_[1:], "big")
        if field_[0] == 0o377:
            value -= 256 ** (len(field_) - 1)
    else:
        text = field_.split(b"\0", 1)[0].strip()
        try:
            value = int(text, 8) if text else 0
        except ValueError:
            raise bad_header(position) from None
    if value < 0:
        raise bad_header(position)
    return value


def decimal(text: bytes, position: int) -> int:
    """Return a number of a PAX header or of the map of a sparse file."""
    if not text.isdigit() or len(text) > _DIGITS:
        raise bad_header(position)
    return int(text)


def bad_header(position: int, record: str | None = None) -> DataError:
    """Return the error for a block that is not a tar header."""
    return DataError(
        "invalid tar header (its checksum or its numbers are wrong)",
        offset=position,
        record=record,
        kind="bad-header",
        fix="The shard is corrupt from here on: restore it, or run 'feedmill repair' to"
        " keep the samples before this point.",
    )


def cut_header(position: int, found: int) -> DataError:
    """Return the error for an archive that ends inside a header."""
    return DataError(
        f"the archive is truncated inside a header (expected {BLOCK} bytes, found {found})",
        offset=position,
        kind="truncated-header",
        fix="The shard was truncated: restore it, or run 'feedmill repair' to drop the incomplete tail.",
    )


def cut_member(position: int, name: str, size: int, found: int) -> DataError:
    """Return the error for an archive that ends inside a member: expected `size` bytes, found `found`."""
    return DataError(
        f"the archive is truncated inside this member (expected {size} bytes, found {max(0, found)})",
        offset=position,
        record=name,
        kind="truncated-member",
        fix="The shard was truncated: restore it, or run 'feedmill repair' to drop the incomplete sample.",
    )
