"""Read size, format, mode and orientation from the headers of JPEG, PNG, GIF, BMP, TIFF and plain WebP files.

A result is returned only if it is certain: the file must be complete, and must not have features that make Pillow
report another format or mode (multi-picture JPEGs, extended WebP, rare kinds of BMP and TIFF). For everything else the
result is None, and the caller uses Pillow.

Sources: ITU-T T.81 (JPEG markers), the PNG specification (chunks), RFC 6386 and the WebP container specification,
the GIF89a specification, Microsoft's bitmap headers, TIFF 6.0.
"""

from __future__ import annotations

import io
import struct
from typing import Any

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
_TIFF_MODES = {
    # photometric interpretation, bits per sample, extra samples
    (1, (8,), ()): "L",
    (2, (8, 8, 8), ()): "RGB",
    (2, (8, 8, 8, 8), (2,)): "RGBA",
    (3, (8,), ()): "P",
    (5, (8, 8, 8, 8), ()): "CMYK",
}
_TIFF_TYPES = {1: "B", 3: "H", 4: "I"}
_MOST_STRIPS = 1 << 16
_segment = struct.Struct(">BBH").unpack_from
"""Start byte, marker and length of a segment of a JPEG."""


def image_header(data: bytes) -> Header | None:
    """Return the header's content, or None if only Pillow can determine it."""
    return _header(data)[0]


def header_and_orientation(data: bytes) -> tuple[Header, int] | None:
    """Return what `image_header` and `orientation_in` return, or None; the segments of a JPEG are walked once."""
    header, begin = _header(data)
    return None if header is None else (header, orientation_in(data, begin))


def _header(data: bytes) -> tuple[Header | None, int]:
    """Return the header's content, and the offset in a JPEG before which no segment states an orientation."""
    try:
        if data.startswith(b"\xff\xd8\xff"):
            return _jpeg(data)
        if data.startswith(b"\x89PNG\r\n\x1a\n"):
            return _png(data), 0
        if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
            return _webp(data), 0
        if data.startswith((b"GIF87a", b"GIF89a")):
            return _gif(data), 0
        if data.startswith(b"BM"):
            return _bmp(data), 0
        if data.startswith((b"II*\0", b"MM\0*")):
            return _tiff(data), 0
    except (struct.error, IndexError):
        pass
    return None, 0


def orientation_in(data: bytes | memoryview, begin: int = 2) -> int:
    """Return the orientation of an image file by EXIF or XMP, see `feedmill.formats.orientation`.

    It is 1 if the file states none or an invalid one, or if Pillow is not installed. A JPEG is read from the segment at
    `begin` on.
    """
    try:
        is_jpeg = bytes(data[:3]) == b"\xff\xd8\xff"
        found = _jpeg_orientation(data, begin) if is_jpeg else None if may_be_turned(data) else 1
        if found is not None:
            return found
        from PIL import Image

        with Image.open(io.BytesIO(data)) as image:
            return stated_orientation(image)
    except Exception:  # whoever decodes the image gives a better error
        return 1


def stated_orientation(image: Any) -> int:
    """Return the orientation of an open Pillow image by EXIF or XMP; 1 if it states none, or an invalid one."""
    try:
        found = image.getexif().get(0x0112, 1)
    except Exception:  # damaged metadata of a good image
        return 1
    return found if isinstance(found, int) and 1 <= found <= 8 else 1


def may_be_turned(data: bytes | memoryview) -> bool:
    """Return whether an image file has metadata that may state an orientation, without parsing that."""
    head = bytes(data[:32])
    try:
        if head.startswith(b"\xff\xd8\xff"):
            return _jpeg_orientation(data) != 1
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            return _has_metadata(data)
    except (struct.error, IndexError):
        return False
    if head.startswith(b"RIFF") and head[8:16] == b"WEBPVP8X":
        return bool(head[20:21] and head[20] & 0x0C)
    return head.startswith((b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")) or head[4:8] == b"ftyp"


def _jpeg_orientation(data: bytes | memoryview, offset: int = 2) -> int | None:
    """Return the orientation of a JPEG; None if only Pillow can determine it. Raises for a truncated header."""
    exif, has_xmp = b"", False
    while True:
        start, marker, length = _segment(data, offset)
        if start != 0xFF or marker == 0xDA:
            break
        if marker == 0xFF:
            offset += 1
            continue
        if marker == 0xE1:
            segment = bytes(data[offset + 4 : offset + 2 + length])
            if exif and segment.startswith(b"Exif\0\0"):
                return None  # Pillow joins them
            exif = segment[6:] if segment.startswith(b"Exif\0\0") else exif
            has_xmp |= segment.startswith(b"http") and b"Orientation" in segment
        offset += 2 + length
    found = _exif_orientation(exif) if exif else 0
    if found == 0:
        return None if has_xmp else 1
    return found if found is None or found <= 8 else 1


def _exif_orientation(exif: bytes) -> int | None:
    """Return the orientation in the first directory of EXIF; 0 if it has none, None if it is not as it should be."""
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(exif[:4])
    if order is None:
        return None
    try:
        (at,) = struct.unpack_from(f"{order}I", exif, 4)
        (count,) = struct.unpack_from(f"{order}H", exif, at)
        for place in range(at + 2, at + 2 + 12 * count, 12):
            tag, kind, values, found = struct.unpack_from(f"{order}HHIH", exif, place)
            if tag == 0x0112:
                return found if kind == 3 and values == 1 and found else None
    except struct.error:
        return None
    return 0


def _has_metadata(data: bytes | memoryview) -> bool:
    offset = 8
    while offset < len(data):
        length, kind = struct.unpack_from(">I4s", data, offset)
        if kind in (b"eXIf", b"iTXt", b"tEXt", b"zTXt"):
            return True
        offset += 12 + length
    return False


def _jpeg(data: bytes) -> tuple[Header | None, int]:
    if not data.endswith(b"\xff\xd9"):
        return None, 0
    offset, begin = 2, 0
    while True:
        start, marker, length = _segment(data, offset)
        if start != 0xFF:
            return None, 0
        if marker == 0xE1 and not begin:
            begin = offset
        if marker in _JPEG_FRAMES:
            bits, height, width, components = struct.unpack_from(">BHHB", data, offset + 4)
            if bits != 8 or not width or not height or components not in _JPEG_MODES:
                return None, 0
            return (width, height, "JPEG", _JPEG_MODES[components]), begin or offset
        # APP2 may declare further pictures, which makes the format MPO; 0xFF is padding, 0xD0-0xDA are invalid here.
        if (marker == 0xE2 and data.startswith(b"MPF\0", offset + 4)) or marker == 0xFF or 0xD0 <= marker <= 0xDA:
            return None, 0
        offset += 2 + length


def _png(data: bytes) -> Header | None:
    length, kind, width, height, depth, color = struct.unpack_from(">I4sIIBB", data, 8)
    if kind != b"IHDR" or length != 13 or not width or not height:
        return None
    mode = _PNG_MODES.get(color, {}).get(depth)
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


def _gif(data: bytes) -> Header | None:
    if not data.endswith(b";"):
        return None
    width, height, flags = struct.unpack_from("<HHB", data, 6)
    at, colors = 13, b""
    if flags & 0x80:
        colors = data[at : at + 3 * (2 << (flags & 7))]
        at += len(colors)
    while data[at] == 0x21:  # extensions before the first picture
        at = _after_blocks(data, at + 2)
    left, top, across, down, flags = struct.unpack_from("<HHHHB", data, at + 1)
    if data[at] != 0x2C or not across or not down or left + across > width or top + down > height:
        return None
    at += 10
    if flags & 0x80:
        colors = data[at : at + 3 * (2 << (flags & 7))]
        at += len(colors)
    if _after_blocks(data, at + 1) >= len(data):
        return None
    # Pillow reads a palette of gray levels in order as mode L.
    gray = all(colors[i] == i // 3 for i in range(len(colors)))
    return width, height, "GIF", "L" if gray else "P"


def _after_blocks(data: bytes, at: int) -> int:
    """Return the offset after a chain of sub-blocks. Raises `IndexError` if the chain does not end."""
    while data[at]:
        at += 1 + data[at]
    return at + 1


def _bmp(data: bytes) -> Header | None:
    begin, header, width, height, planes, bits, compression = struct.unpack_from("<IIiiHHI", data, 10)
    if header not in (40, 108, 124) or width <= 0 or not height or planes != 1 or compression or bits not in (8, 24):
        return None
    if begin + (width * bits + 31) // 32 * 4 * abs(height) > len(data):
        return None
    if bits == 24:
        return width, abs(height), "BMP", "RGB"
    (count,) = struct.unpack_from("<I", data, 46)
    colors = data[14 + header : 14 + header + 4 * (count or 256)]
    if count not in (0, 256) or len(colors) < 1024:
        return None
    gray = all(colors[4 * i : 4 * i + 3] == bytes((i, i, i)) for i in range(256))
    return width, abs(height), "BMP", "L" if gray else "P"


def _tiff(data: bytes) -> Header | None:
    order = "<" if data.startswith(b"II") else ">"
    (at,) = struct.unpack_from(f"{order}I", data, 4)
    (count,) = struct.unpack_from(f"{order}H", data, at)
    struct.unpack_from("4x", data, at + 2 + 12 * count)  # raises if the directory is truncated
    tags: dict[int, tuple[int, ...]] = {}
    for place in range(at + 2, at + 2 + 12 * count, 12):
        tag, kind, values = struct.unpack_from(f"{order}HHI", data, place)
        if kind in _TIFF_TYPES and values <= _MOST_STRIPS:
            layout = f"{order}{values}{_TIFF_TYPES[kind]}"
            inside = struct.calcsize(layout) <= 4
            where = place + 8 if inside else struct.unpack_from(f"{order}I", data, place + 8)[0]
            tags[tag] = struct.unpack_from(layout, data, where)
    one = (1,)
    plain = tags.get(266, one) == tags.get(274, one) == one and set(tags.get(339, one)) == {1}
    if not plain or tags.get(259, one)[0] not in (1, 5, 8, 32773) or tags.get(284, one) != one:
        return None  # rotated, signed or float samples, separate planes, or a compression that affects the mode
    mode = _TIFF_MODES.get((tags.get(262, (0,))[0], tags.get(258, one), tags.get(338, ())))
    width, height, starts, sizes = (tags.get(tag, ()) for tag in (256, 257, 273, 279))
    if mode is None or len(width) != 1 or len(height) != 1 or not starts or len(starts) != len(sizes):
        return None
    if max(map(sum, zip(starts, sizes, strict=True))) > len(data) or not width[0] or not height[0]:
        return None
    return width[0], height[0], "TIFF", mode
