"""Read the documents of a unit in batches: texts, their rows, and the reasons why other documents have no text.

Memory is bounded by the batch, or by the largest document. A truncated or corrupt file (gzip, Parquet) is an error
under every policy for bad documents, because the policy applies to documents, not to files.

Divide files of documents into units of work: byte ranges of lines, ranges of row groups, or whole files.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, pairwise

from feedmill.documents.batch import BadDocument, Batch, Record, RowReader
from feedmill.documents.file import DocumentFile, Unit
from feedmill.documents.textpath import TextReader, checked
from feedmill.documents.typed import TypedReader
from feedmill.errors import ConfigError, DataError
from feedmill.formats.documents import read_lines, rows_of

Reader = TextReader | TypedReader | RowReader
BLOCK = 1 << 20
_TAIL = 1 << 16  # bytes read at once to finish the last line of a range


def read_documents(unit: Unit, reader: Reader) -> Generator[Batch, None, None]:
    """Yield the documents of a unit. Raises DataError if the file itself is corrupt or has changed."""
    try:
        yield from _read(unit, reader)
    finally:
        if isinstance(reader, RowReader):
            reader.close()
    now = unit.file.store().stat(unit.file.path)
    if now.version != unit.file.version:
        raise DataError(
            "the file has changed while it was read",
            file=unit.file.url,
            kind="changed",
            fix="Run the same command again when no process writes to the file.",
        )


def _read(unit: Unit, reader: Reader) -> Iterator[Batch]:
    if unit.file.kind == "lines":
        yield from _parsed(_blocks(unit), reader)
    elif isinstance(reader, TypedReader):
        raise ConfigError("fields of declared types are supported only in JSON lines", file=unit.file.url)
    elif unit.file.kind == "text":
        if isinstance(reader, RowReader):
            fix = "Use JSON Lines, Parquet or Arrow files."
            raise ConfigError("a text file has no rows", file=unit.file.url, kind="unsupported", fix=fix)
        yield _whole(unit.file, reader)
    else:
        from feedmill.documents.columns import read_columns  # imports much that lines do not need

        yield from read_columns(unit, reader)


def _parsed(blocks: Iterator[bytes | memoryview], reader: Reader) -> Iterator[Batch]:
    row = 0
    for block in blocks:
        found = reader.read(block)
        if found is not None:
            count = len(found.texts)
            yield Batch(found.texts, list(range(row, row + count)), fields=found.fields, lines=count)
            row += count
            continue
        lines = rows_of(bytes(block))
        numbers = [number for number, line in enumerate(lines, row) if line and not line.isspace()]
        filled = lines if len(numbers) == len(lines) else [lines[number - row] for number in numbers]
        if isinstance(reader, RowReader):
            yield from batches_of(zip(numbers, reader.records(filled), strict=True), row, row + len(lines))
        else:
            batch = Batch(lines=len(lines), blank=len(lines) - len(filled))
            for number, record in zip(numbers, map(reader.record, filled), strict=True):
                batch.add(number, record)
            yield batch
        row += len(lines)


def batches_of(records: Iterable[tuple[int, Record]], row: int, end: int) -> Iterator[Batch]:
    """Yield the documents of rows ``[row, end)``, given with the row of each; rows without a document are blank.

    A batch ends with an invalid document: a run that stops there does not wait for those that follow.
    """
    batch, count = Batch(), 0
    for number, record in records:
        batch.add(number, record)
        count += 1
        if record.text is None and record.reason:
            batch.lines, batch.blank = number + 1 - row, number + 1 - row - count
            yield batch
            batch, count, row = Batch(), 0, number + 1
    batch.lines, batch.blank = end - row, end - row - count
    yield batch


def _blocks(unit: Unit) -> Iterator[bytes | memoryview]:
    """Yield the whole lines of a unit, about a megabyte at a time; a block is valid until the next one is read."""
    file = unit.file
    store = file.store()
    if file.packed:
        return read_lines(store, file.path)
    return ranged_lines(partial(store.read_into, file.path), unit.begin, unit.end, file.size)


def ranged_lines(
    fill: Callable[[int, memoryview], None], begin: int, end: int, size: int
) -> Iterator[bytes | memoryview]:
    """Yield the lines that begin in ``[begin, end)`` of a file of `size` bytes, in blocks of whole lines.

    Consecutive ranges of a file yield each line exactly once, in order; only the file's last line may lack its line
    end. A block is valid until the next one is read.

    Args:
        fill: Fills a buffer with the bytes at an offset.
        begin, end: The range in bytes.
        size: Size of the file in bytes.
    """
    at = max(begin - 1, 0)  # the byte before `begin` shows whether a line begins there
    buffer = bytearray(min(2 * BLOCK, max(size - at, 0)))
    kept = 0  # bytes of an unfinished line at the beginning of the buffer
    skipping = begin > 0
    while at < size and (at < end or kept or skipping):
        past_end = at >= end
        wanted = min(size - at, _TAIL) if past_end else min(end - at, BLOCK)
        if kept + wanted > len(buffer):
            buffer = buffer + bytearray(len(buffer))
        fill(at, memoryview(buffer)[kept : kept + wanted])
        at += wanted
        filled, first = kept + wanted, 0
        if skipping:
            first = buffer.find(b"\n", 0, filled) + 1
            if not first:
                if at >= end:  # no line begins in the range
                    return
                continue
            skipping = False
        # Past the end, only the last line remains to finish.
        last = (buffer.find if past_end else buffer.rfind)(b"\n", max(first, kept), filled) + 1
        if last:
            yield memoryview(buffer)[first:last]
        if past_end and last:
            return
        last = last or first
        kept = filled - last
        if last:
            buffer[:kept] = buffer[last:filled]
    if kept:
        yield memoryview(buffer)[:kept]


def _whole(file: DocumentFile, reader: TextReader) -> Batch:
    batch = Batch(lines=1)
    data = file.store().read(file.path)
    try:
        batch.add(0, Record(checked(data.decode("utf-8-sig")), "", (None,) * len(reader.fields)))
    except UnicodeDecodeError as error:
        batch.bad.append((0, f"it is not valid UTF-8 (byte {error.start})"))
    except BadDocument as error:
        batch.bad.append((0, str(error)))
    return batch


UNIT_BYTES = 8 << 20
_MOST = 1024  # files in one unit of work


def together(units: Iterable[Unit], unit_bytes: int = UNIT_BYTES) -> Iterator[tuple[Unit, ...]]:
    """Group units of small whole files with their neighbors, in order. Parts of a file are not grouped.

    For small files, the overhead of a unit would take longer than reading it.
    """
    group: list[Unit] = []
    room = 0
    for unit, following in pairwise(chain(units, [None])):
        if unit is None:
            return
        whole = unit.begin == 0 and (following is None or following.begin == 0)
        if group and (not whole or unit.bytes > room or len(group) == _MOST):
            yield tuple(group)
            group = []
        if not whole:
            yield (unit,)
            continue
        room = (room if group else unit_bytes) - unit.bytes
        group.append(unit)
    if group:
        yield tuple(group)


def cut(files: Sequence[DocumentFile], unit_bytes: int = UNIT_BYTES) -> Iterator[Unit]:
    """Yield the units of files, in order. Raises the errors of opening a Parquet file."""
    for file in files:
        if file.kind == "lines" and not file.packed:
            for begin in range(0, file.size, unit_bytes):
                end = min(begin + unit_bytes, file.size)
                yield Unit(file, begin, end, end - begin)
        elif file.kind == "parquet":
            from feedmill.documents.columns import row_groups  # imports much that lines do not need

            for begin, end, size in row_groups(file, unit_bytes):
                yield Unit(file, begin, end, size)
        else:
            yield Unit(file, 0, file.size, file.size)
