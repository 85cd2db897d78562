"""Numbers in the headers of a tar, and the errors of headers and members that are damaged."""

from __future__ import annotations

from feedmill.errors import DataError

BLOCK = 512
_DIGITS = 20  # of numbers up to 2^64


def number(field_: bytes, position: int) -> int:
    """Return a numeric field: octal text, or base 256 where the first bit is set (GNU, for files above 8 GiB)."""
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
    """Return the error for a block that should be a tar header and is not."""
    return DataError(
        "this is not a tar header (its checksum or its numbers are wrong)",
        offset=position,
        record=record,
        kind="bad-header",
        fix="The shard is damaged from here on: restore it from its origin, or run 'feedmill repair' to"
        " keep the samples before this point.",
    )


def cut_header(position: int, found: int) -> DataError:
    """Return the error for a header that the archive ends in."""
    return DataError(
        f"the archive is cut short inside a header (expected {BLOCK} bytes, found {found})",
        offset=position,
        kind="truncated-header",
        fix="The shard was truncated: restore it, or run 'feedmill repair' to drop the incomplete tail.",
    )


def cut_member(position: int, name: str, size: int, found: int) -> DataError:
    """Return the error for a member that the archive ends in: `size` bytes were to come, `found` are there."""
    return DataError(
        f"the archive is cut short inside this member (expected {size} bytes, found {max(0, found)})",
        offset=position,
        record=name,
        kind="truncated-member",
        fix="The shard was truncated: restore it, or run 'feedmill repair' to drop the incomplete sample.",
    )
