"""Follow rows through the lineages of files: back to the raw rows, and forth to all outputs that hold them."""

from __future__ import annotations

import contextlib
from collections import defaultdict, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec

from feedmill.documents.batch import BadDocument
from feedmill.documents.file import LINES, DocumentFile, kind_of, places
from feedmill.documents.find import find_documents
from feedmill.documents.lineage.shards import is_shard, read_samples
from feedmill.documents.lineage.sidecar import Lineage, read_lineage
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import REFUSED
from feedmill.documents.seeking import SeekRows
from feedmill.documents.textpath import load_json
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.documents import one_a_line, rows_of
from feedmill.jobs.threads import ordered_map
from feedmill.storage import open_store, split_url
from feedmill.structs import decoder_of

_WHOLE = "filter"
"""The verb that reads each input for one output only, so that a row that is not in it was dropped."""


class _Id(msgspec.Struct, gc=False):
    id: Any = None


_decode, _decode_lines = decoder_of(_Id).decode, decoder_of(_Id).decode_lines


class Row(NamedTuple):
    """A row of a file, from 0: a line, a row of columns, or a document or sequence of token files."""

    path: str
    row: int


@dataclass(frozen=True)
class Origin:
    """A row with what it was made from.

    Attributes:
        path, row: see `Row`.
        verb: the verb that wrote the file; empty for a raw file.
        parents: the rows that it was made from: one, or the documents of a sequence; none for a raw row.
    """

    path: str
    row: int
    verb: str = ""
    parents: list[Origin] = field(default_factory=list)

    @property
    def raw(self) -> list[Row]:
        """The raw rows, in order."""
        if not self.parents:
            return [Row(self.path, self.row)]
        return [row for parent in self.parents for row in parent.raw]

    @property
    def chain(self) -> list[Origin]:
        """The rows from this one to the raw one; of a sequence, through its first document."""
        return [self, *(self.parents[0].chain if self.parents else [])]


class Lineages:
    """The lineages of files, each read once.

    Attributes:
        place: the unique name of the location of a file.
    """

    def __init__(self) -> None:
        self.place = places()
        self.of = lru_cache(maxsize=1024)(self._of)

    def _of(self, path: str) -> Lineage | None:
        """Return the lineage of a file; None for a raw file. Raises DataError if an input has changed since."""
        lineage = read_lineage(path)
        for url, known in zip(lineage.inputs, lineage.header.inputs, strict=True) if lineage is not None else ():
            folder, name = split_url(url)
            store = open_store(folder)
            if store.exists(name) and store.stat(name).size != known.size:
                raise DataError(
                    f"it has changed since {path} was made from it: {store.stat(name).size:,} bytes, then"
                    f" {known.size:,}",
                    file=url,
                    kind="changed",
                    fix="Restore it, or make the outputs again.",
                )
        return lineage

    def follow(self, path: str, row: int) -> Origin:
        """Return a row with the rows that it was made from, back to the raw ones. Raises NotFound, DataError."""
        lineage = self.of(path)
        if lineage is None:
            return Origin(path, row)
        parents = [self.follow(lineage.inputs[file], number) for file, number in lineage.origins(row)]
        return Origin(path, row, lineage.header.verb, parents)


@dataclass(frozen=True)
class OutputRows:
    """Rows of one output that were made from a row.

    Attributes:
        output: path or URL of the output.
        verb: the verb that wrote it.
        rows: the rows that hold it, from 0; empty if it was dropped.
        source: the row from which they were made.
    """

    output: str
    verb: str
    rows: list[int]
    source: Row


class Descent:
    """Files and all that they were made from.

    Args:
        outputs: the files to begin with.

    Attributes:
        lineages: the lineages of all files.
        files: the lineage of each file by the unique name of its location, outputs before their inputs.
        raw: the files without a lineage.
    """

    def __init__(self, outputs: Iterable[str], lineages: Lineages | None = None) -> None:
        self.lineages = lineages or Lineages()
        self.files: dict[str, Lineage | None] = {}
        self._made: dict[str, list[tuple[str, int]]] = defaultdict(list)
        level = list(dict.fromkeys(map(self.lineages.place, outputs)))
        while level:
            remote = any("://" in path for path in level)  # in an object store each lineage is a request
            read = ordered_map(self.lineages.of, level, workers=16 if remote else 0, in_flight=64)
            inputs = dict[str, None]()
            for path, lineage in zip(level, read, strict=True):
                self.files[path] = lineage
                for number, url in enumerate(lineage.inputs if lineage is not None else ()):
                    place = self.lineages.place(url)
                    self._made[place].append((path, number))
                    inputs[place] = None
            level = [path for path in inputs if path not in self.files]
        self.raw = [path for path, lineage in self.files.items() if lineage is None]

    def named(self, name: str) -> list[str]:
        """Return the files with this path, or that end with it."""
        place = self.lineages.place(name)
        return [place] if place in self.files else [path for path in self.files if path.endswith(f"/{name}")]

    def made_from(self, path: str, row: int) -> Iterator[OutputRows]:
        """Yield what became of a row in each output, nearest first.

        The rows of an input can be divided among several files (numbered files, parts of a split). Those without the
        row are not reported if another one has it.
        """
        queue = deque([Row(self.lineages.place(path), row)])
        done = set()
        while queue:
            source = queue.popleft()
            if source in done:
                continue
            done.add(source)
            made = []
            for output, number in self._made.get(source.path, ()):
                lineage = self.files[output]
                assert lineage is not None
                made.append(OutputRows(output, lineage.header.verb, lineage.found(number, source.row), source))
            held = {one.verb for one in made if one.rows and one.verb != _WHOLE}
            for one in made:
                if one.rows or one.verb not in held:
                    yield one
                queue.extend(Row(one.output, row) for row in one.rows)


def read_raw(path: str, rows: Collection[int]) -> dict[int, bytes]:
    """Return rows of a file as they are stored, without line ends: rows of columns and samples of shards as JSON.

    Bytes that are no text are replaced by how many they are.

    Raises:
        NotFound: the file, or a row, does not exist.
    """
    wanted, found, first = set(rows), dict[int, bytes](), 0
    if wanted and is_shard(path):
        return read_samples(path, sorted(wanted))
    if wanted and kind_of(path) == LINES:
        found, first = SeekRows(_file_of(path)).read(wanted)
    else:
        for block in blocks_of(path) if wanted else ():
            lines = rows_of(block)
            found.update({row: lines[row - first] for row in wanted if first <= row < first + len(lines)})
            first += len(lines)
            if len(found) == len(wanted):
                return found
    if len(found) < len(wanted):
        raise NotFound(
            f"it has {first:,} lines", file=path, record=f"line {min(wanted - set(found)) + 1:,}", kind="no-such-sample"
        )
    return found


def find_ids(paths: Sequence[str], ids: Collection[str]) -> dict[str, list[Row]]:
    """Return where documents with these ids are in files of documents; nothing for ids that are in none."""
    wanted, found = set(ids), defaultdict[str, list[Row]](list)
    for path in paths if wanted else ():
        first = 0
        for block in blocks_of(path, fields=("id",)):
            values = _ids_of(block)
            for row, value in enumerate(values, first):
                if value is not None and (word := str(value)) in wanted:
                    found[word].append(Row(path, row))
            first += len(values)
    return dict(found)


def _ids_of(block: bytes) -> list[Any]:
    """Return the id of each of these whole lines."""
    try:
        rows = _decode_lines(block)
        if one_a_line(block, len(rows)):
            return [row.id for row in rows]
    except REFUSED:
        pass  # parsed one by one: not all JSON that `tokenize` accepts is strict
    return list(map(id_of, rows_of(block)))


def id_of(line: bytes) -> Any:
    """Return the id of a document in any line that `tokenize` accepts; None if it has none or is no document."""
    with contextlib.suppress(*REFUSED):
        return _decode(line).id
    try:
        document = load_json(line)
        value = document.get("id") if isinstance(document, dict) else None
        str(value).encode()
    except (BadDocument, UnicodeEncodeError):
        return None
    return value


def blocks_of(path: str, *, fields: Sequence[str] | None = None) -> Iterator[bytes]:
    """Yield the documents of a file as lines, block by block; see `feedmill.documents.lines.read_blocks`.

    Args:
        path: the file.
        fields: the fields to read, if the file has columns; None for all.

    Raises:
        ConfigError: its name is not that of documents. A lineage that came with data must not make others be read.
    """
    return read_blocks(_file_of(path), fields=fields, shown=True)


def _file_of(path: str) -> DocumentFile:
    if kind_of(path) is None:
        raise ConfigError("the lineage names a file that is not documents", file=path, kind="no-documents")
    (file,) = find_documents([path]).files
    return file
