"""Write the attributes of a file from the decisions of the dumps. The documents are not read again."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.curation.attribute_set import fingerprint
from feedmill.curation.near.join import shared_sizes
from feedmill.curation.near.view import Ints, View, open_view
from feedmill.documents.file import DocumentFile
from feedmill.formats.arrays import Arrays
from feedmill.formats.documents import write_lines
from feedmill.formats.signatures import read_marker, write_marker


@dataclass(frozen=True, slots=True)
class FinishTask:
    """File of documents to write attributes for.

    `first` is the number of its first document, in the dump `dump`. `read` is the hash of its stored bytes. `key`
    identifies the content of the dumps. Duplicates below `threshold` are counted. `room` is the memory of the task.
    """

    file: DocumentFile
    name: str
    documents_folder: str
    folder: str
    dumps: int
    key: str
    dump: int
    first: int
    rows: int
    ids: str
    read: str
    threshold: float
    room: int

    @property
    def out(self) -> str:
        """Path of the attribute file below the dataset's root."""
        return self.file.attributes(self.name, self.documents_folder)


@dataclass(frozen=True, slots=True)
class Finished:
    """Result of a file: rows, the digest of their ids, and duplicates; size and hash of the attribute file.

    `of` is the number of duplicates of documents in each file, `lowest` their lowest similarity, and `uncovered` the
    number of those below the threshold. `read` is the hash of the documents.
    """

    rows: int
    ids: str
    duplicates: int
    of: dict[str, int]
    lowest: float | None
    uncovered: int
    size: int
    xxh3: str
    read: str


def finish(task: FinishTask) -> Finished:
    """Write the attributes of a file, unless this run wrote them before it was interrupted."""
    view, store = open_view(task.folder, task.dumps, None, task.room, task.key), task.file.store()
    marker = f"done/{fingerprint(store.locate(task.out))}.json"
    dump = view.plans[task.dump]["print"]
    finished = read_marker(view.store, marker)
    if finished is not None and finished.pop("dump") == dump and finished.pop("documents") == task.file.version:
        done = Finished(**finished)
        if done.ids == task.ids and store.exists(task.out) and store.stat(task.out).size == done.size:
            return done
    written, files, lowest, uncovered = list[str](), dict[str, int](), None, 0
    with write_lines(store, task.out, hashed=written.append, gather=True) as append:
        for first, arrays in _segments(view, task):
            rows, kept, similarities = _rows(view, task, first, arrays)
            append(b"".join([part for row in rows for part in (row, b"\n")]))
            for name, count in view.files(kept).items():
                files[name] = files.get(name, 0) + count
            uncovered += int(np.count_nonzero(similarities < task.threshold))
            lowest = min([*similarities.tolist(), *([] if lowest is None else [lowest])], default=None)
    found_in = (sum(files.values()), files, lowest, uncovered)
    done = Finished(task.rows, task.ids, *found_in, store.stat(task.out).size, written[0], task.read)
    fields = {name: getattr(done, name) for name in Finished.__slots__}
    write_marker(view.store, marker, {"dump": dump, "documents": task.file.version, **fields})
    return done


def _segments(view: View, task: FinishTask) -> Iterator[tuple[int, Arrays]]:
    end = task.first + task.rows
    for first, arrays in view.segments(task.first):
        if first >= end:
            return
        yield first, arrays


def _rows(
    view: View, task: FinishTask, first: int, arrays: Arrays
) -> tuple[list[bytes], Ints, npt.NDArray[np.float64]]:
    """Return the attribute rows of a segment; the kept document and the similarity to it of each duplicate."""
    count = len(arrays["ends"])
    raw, ends = arrays["ids"].tobytes(), arrays["id_ends"].tolist()
    ids = [raw[low:high] for low, high in zip([0, *ends], ends, strict=False)]
    name = orjson.dumps(task.name)
    empty = b'{"attributes":{' + name + b':[]},"id":'
    rows = [empty + one + b"}" for one in ids]
    numbers = np.arange(first, first + count)
    roots, kept, members = view.decisions(numbers)
    clusters = np.flatnonzero(members)
    marked = kept[clusters] != numbers[clusters]
    removed, covering = numbers[clusters[marked]], kept[clusters[marked]]
    inside, either = shared_sizes(view, np.stack([removed, covering], axis=1))
    similarities = inside / either
    originals = iter(zip(view.ids(covering), similarities.tolist(), strict=True))
    lengths = arrays["lengths"][clusters].tolist()
    for at, root, length, duplicate in zip(
        clusters.tolist(), roots[clusters].tolist(), lengths, marked.tolist(), strict=True
    ):
        of = next(originals) if duplicate else (None, 0.0)
        rows[at] = marked_row(task.name, ids[at], length, root, *of)
    return rows, covering, similarities


def marked_row(
    name: str, id: bytes, length: int, root: int, original: bytes | None = None, similarity: float = 0.0
) -> bytes:
    """Return the attributes of a document of a cluster: of one that is kept, or of a duplicate of `original`.

    Args:
        name: Of the attribute set.
        id, original: Ids as JSON.
        length: Characters of the text.
        root: Number of the cluster.
    """
    whole, cluster = b"[[0,%d,1]]" % length, orjson.dumps(f"{name}_cluster")
    spans = b"[]" if original is None else whole
    of = b"" if original is None else b'"duplicate_of":%b,' % original
    near = b"" if original is None else b',"similarity":%b' % orjson.dumps(similarity)
    return b'{"attributes":{%b:%b,%b:[[0,%d,%d]]},%b"id":%b%b}' % (
        orjson.dumps(name), spans, cluster, length, root, of, id, near,
    )  # fmt: skip


def sources_of(files: Sequence[DocumentFile], results: Sequence[Finished]) -> list[dict[str, Any]]:
    """Return `NearReport.sources`."""
    sources: dict[str, dict[str, Any]] = {}
    for file, result in zip(files, results, strict=True):
        folder = posixpath.dirname(file.name)
        source = sources.setdefault(folder, {"folder": folder, "documents": 0, "duplicates": 0, "of": {}})
        source["documents"] += result.rows
        source["duplicates"] += result.duplicates
        for name, count in result.of.items():
            of = posixpath.dirname(name)
            source["of"][of] = source["of"].get(of, 0) + count
    for source in sources.values():
        source["of"] = dict(sorted(source["of"].items(), key=lambda item: (-item[1], item[0])))
    return sorted(sources.values(), key=lambda source: (-source["duplicates"], source["folder"]))
