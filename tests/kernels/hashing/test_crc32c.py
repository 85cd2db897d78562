"""CRC-32C: the published check values, and the compiled loop against plain Python."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from feedmill.kernels.hashing.crc32c import crc32c
from oracles.crc32c import crc32c as crc32c_plain


def test_published_values() -> None:
    assert crc32c(b"123456789") == crc32c_plain(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA and crc32c(b"\xff" * 32) == 0x62A8AB43  # RFC 3720, B.4


@given(st.binary(max_size=400))
def test_compiled_and_plain_are_equal(data: bytes) -> None:
    assert crc32c(data) == crc32c_plain(data)
