"""Size, format and mode from the headers of JPEG, PNG and plain WebP files.

Only what is certain is answered: the file must have its end in place and nothing that makes Pillow see another format
or mode (multi-picture JPEGs, extended WebP). For everything else the answer is None, and Pillow is asked.

Sources: ITU-T T.81 (JPEG markers), the PNG specification (chunks), RFC 6386 and the WebP container specification.
"""

from __future__ import annotations

import struct

Header = tuple[int, int, str, str]
"""Width, height, Pillow's format and mode."""

_JPEG_MODES = {1: "L", 3: "RGB", 4: "CMYK"}
_JPEG_FRAMES = frozenset(range(0xC0, 0xD0)) - {0xC4, 0xC8, 0xCC}
_PNG_MODES = {
    0: {1: "1", 2: "L", 4: "L", 8: "L", 16: "I;16"},
    2: {8: "RGB", 16: "RGB"},
    3: {1: "P", 2: "P", 4: "P", 8: "P"},
    4: {8: "LA", 16: "RGBA"},
    6: {8: "RGBA", 16: "RGBA"},
}


def image_header(data: bytes) -> Header | None:
    """The header's content, or None where it takes Pillow to tell."""
    try:
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png(data)
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data)
    except (struct.error, IndexError):
        pass
    return None


def _jpeg(data: bytes) -> Header | None:
    if not data.endswith(b"\xff\xd9"):
        return None
    offset = 2
    while data[offset] == 0xFF:
        marker = data[offset + 1]
        (length,) = struct.unpack_from(">H", data, offset + 2)
        if marker in _JPEG_FRAMES:
            bits, height, width, components = struct.unpack_from(">BHHB", data, offset + 4)
            if bits != 8 or not width or not height or components not in _JPEG_MODES:
                return None
            return width, height, "JPEG", _JPEG_MODES[components]
        # APP2 may announce further pictures, which makes the format MPO; 0xFF is padding, 0xD0-0xDA have no place here.
        if (marker == 0xE2 and data.startswith(b"MPF\0", offset + 4)) or marker == 0xFF or 0xD0 <= marker <= 0xDA:
            return None
        offset += 2 + length
    return None


def _png(data: bytes) -> Header | None:
    length, kind, width, height, depth, colour = struct.unpack_from(">I4sIIBB", data, 8)
    if kind != b"IHDR" or length != 13 or not width or not height:
        return None
    mode = _PNG_MODES.get(colour, {}).get(depth)
    offset, pixels = 8, False
    while offset < len(data):
        length, kind = struct.unpack_from(">I4s", data, offset)
        offset += 12 + length
        pixels = pixels or kind == b"IDAT"
        if kind == b"IEND":
            return (width, height, "PNG", mode) if mode and pixels and offset <= len(data) else None
    return None


def _webp(data: bytes) -> Header | None:
    size, kind, length = struct.unpack_from("<I4x4sI", data, 4)
    if size + 8 > len(data) or length + 12 > size:
        return None
    if kind == b"VP8 " and data[23:26] == b"\x9d\x01\x2a":
        width, height = struct.unpack_from("<HH", data, 26)
        return width & 0x3FFF, height & 0x3FFF, "WEBP", "RGB"
    if kind == b"VP8L" and data[20] == 0x2F:
        (bits,) = struct.unpack_from("<I", data, 21)
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, "WEBP", "RGBA" if bits >> 28 & 1 else "RGB"
    return None
