"""Near-duplicates by meaning: documents or images with similar embeddings, as `feedmill.curation.embed` wrote them.

1. *reading*: The ids and lengths of the documents of a file, and whether they are those that were embedded.
2. *centers*: K-means of a sample of all vectors: one unit.
3. *assigning*: The rows of a file, ordered by cluster.
4. *comparing*: Clusters, several a unit. A document is kept unless a kept one before it in its cluster is similar; or,
   with ``connected``, unless pairs connect it to one before it.
5. *writing*: Attributes, in the form of `feedmill.curation.near.finish`; of images also a skip list of each dataset.

Pairs in two clusters are not found. With up to `EXACT` documents there is one cluster. In memory of a unit are the ids
and labels of a file, or one block of a cluster and as many of its vectors as `room` allows. Vectors in an object store
are copied to the machine that reads them: those of a file, or, for centers and clusters, all.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import orjson

from feedmill.curation.attribute_set import digest_ids, fingerprint
from feedmill.curation.embed import current_vectors, keys_of, place_of, read_vectors
from feedmill.curation.image_files import ImageFile, data_of_images
from feedmill.curation.near.finish import Finished, marked_row
from feedmill.curation.near.kmeans import SAMPLE, centers_of, connect, cover, nearest, unit
from feedmill.curation.near.labels import EXAMPLES, LARGEST
from feedmill.curation.near.options import NearReport
from feedmill.curation.near.parallel import go_on, map_units
from feedmill.curation.options import CONNECTED, LONGEST, Neardedupe
from feedmill.documents.file import DocumentFile
from feedmill.documents.lines import read_blocks
from feedmill.documents.rows import parse_documents
from feedmill.errors import ConfigError
from feedmill.formats.arrays import Arrays, read_arrays, write_arrays
from feedmill.formats.documents import write_lines
from feedmill.formats.signatures import read_marker, write_marker
from feedmill.jobs.engine import Where
from feedmill.jobs.progress import Progress
from feedmill.storage import Store, open_store, split_url
from feedmill.storage.cache.copies import WORK, held_copy

EXACT = 10_000
"""Number of documents up to which all pairs are compared."""
GROUP = 1 << 15
"""Approximate number of documents of the clusters that a unit compares."""
_SEED = 5


class Source(NamedTuple):
    """A file of documents or images, the number of its first one, its vectors and their length; the keys of samples
    beside these, or empty."""

    file: DocumentFile
    first: int
    rows: int
    ids: str
    vectors: str
    dimension: int
    keys: str


@dataclass(frozen=True)
class Job:
    """What all units know.

    Attributes:
        sources: the files, in order.
        folder: of the units' files.
        clusters: number of clusters.
        threshold: similarity of duplicates.
        connected: mark all but one of those that pairs connect, instead of those similar to a kept one.
        longest: prefer the longest document instead of the first.
        name, documents_folder: of the attribute set, and of the folder of documents.
        room: memory of a unit in bytes.
    """

    sources: tuple[Source, ...]
    folder: str
    clusters: int
    threshold: float
    connected: bool
    longest: bool
    name: str
    documents_folder: str
    room: int

    @property
    def store(self) -> Store:
        """The store of the units' files."""
        return open_store(self.folder)

    @property
    def rule(self) -> str:
        """What decides about the documents of a cluster, for names of files."""
        return f"{'connected-' * self.connected}{self.threshold!r}"

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.sources[-1].first + self.sources[-1].rows

    @property
    def firsts(self) -> npt.NDArray[np.int64]:
        """Number of the first document of each file."""
        return np.array([source.first for source in self.sources], np.int64)

    def rows(self, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return vectors of length 1 by the numbers of their documents."""
        which = np.searchsorted(self.firsts, numbers, "right") - 1
        out = np.empty((len(numbers), self.dimension), np.float32)
        for number in np.unique(which).tolist():
            own = which == number
            out[own] = read_vectors(self.sources[number].vectors)[numbers[own] - self.sources[number].first]
        return unit(out)

    @property
    def dimension(self) -> int:
        """Numbers of a vector."""
        return max(source.dimension for source in self.sources)

    @contextlib.contextmanager
    def here(self, *numbers: int) -> Iterator[Job]:
        """Yield the job with the vectors of some files, or of all, on this machine: copies, if these are in a store."""
        with contextlib.ExitStack() as stack:
            sources = list(self.sources)
            for number in numbers or range(len(sources)):
                folder, name = split_url(sources[number].vectors)
                held = stack.enter_context(held_copy(open_store(folder or "."), name, kind=WORK))
                sources[number] = sources[number]._replace(vectors=str(held.path))
            yield replace(self, sources=tuple(sources))


class Unit(NamedTuple):
    """Unit of a stage: the number of a file, or of a group of clusters from `low` to `high`."""

    job: Job
    number: int
    low: int = 0
    high: int = 0

    def __str__(self) -> str:
        return f"unit {self.number}"


def sources_of_vectors(files: list[DocumentFile], embeddings: str, folder: str) -> tuple[tuple[Source, ...], Any]:
    """Return the files with their vectors, and what identifies these."""
    sources, first, models, hashes = list[Source](), 0, dict[str, str](), list[str]()
    for file in files:
        root, path = place_of(file, embeddings, documents=folder)
        found = current_vectors(file, root, path)
        models.setdefault(orjson.dumps(found.options.get("model"), option=orjson.OPT_SORT_KEYS).decode(), file.name)
        if len(models) > 1:
            one, other = list(models.values())[:2]
            raise ConfigError(
                f"the embeddings of this file and of {one} are of different models or settings",
                file=other,
                kind="settings-differ",
                fix="Embed all documents with one model: feedmill documents embed --overwrite.",
            )
        store, ids, dimension = open_store(root), str(found.options.get("ids")), int(found.options.get("dimension", 0))
        keys = store.locate(keys_of(path)) if isinstance(file, ImageFile) else ""
        sources.append(Source(file, first, found.rows, ids, store.locate(path), dimension, keys))
        first += found.rows
        hashes.append(found.output.xxh3)
    return tuple(sources), hashes


def compare_vectors(
    sources: tuple[Source, ...], options: Neardedupe, folder: str, run: str, room: int, report: NearReport
) -> list[Finished]:
    """Write the attributes of each file, and fill the report of clusters.

    Args:
        sources: Of `sources_of_vectors`.
        folder: Of the units' files: a later run takes them.
        run: What identifies the result.
        room: Memory of a unit in bytes.
    """
    documents = sources[-1].first + sources[-1].rows
    wanted = options.clusters or (1 if documents <= EXACT else round(documents**0.5))
    clusters = max(1, min(wanted, documents))
    rules = (options.similar, options.removal == CONNECTED, options.keep == LONGEST)
    job = Job(sources, folder, clusters, *rules, options.name, options.documents_folder, room)

    def stage(function: Any, units: list[Unit], word: str, last: bool = False) -> list[Any]:
        with Progress(word, len(units), "units", options.progress) as bar:
            where = Where(word, fingerprint(run, word), job.store, last=last)
            return list(map_units(function, units, options.workers, bar, where))

    by_file = [Unit(job, number) for number in range(len(sources))]
    read = stage(read_file, by_file, "reading")
    stage(find_centers, [Unit(job, 0)], "clustering")
    counts: npt.NDArray[np.int64] = np.stack(stage(assign, by_file, "assigning")).sum(axis=0)
    groups = _groups(counts)
    compared = stage(compare, [Unit(job, n, *group) for n, group in enumerate(groups)], "comparing")
    by_file = [Unit(job, number, 0, len(groups)) for number in range(len(sources))]
    results = [
        replace(one, read=hash_) for one, (hash_, _) in zip(stage(finish, by_file, "writing", True), read, strict=True)
    ]
    _report(job, len(groups), report)
    report.added, report.empty, report.candidates = documents, sum(empty for _, empty in read), sum(compared)
    for store, path, rows in skip_lists(job.sources, options.name):
        removed = [
            {
                "source": file.label,
                "index": file.start + row - source.first,
                "key": orjson.loads(key),
                "data": data_of_images(file),
            }
            for source, file in rows
            for row, key in _removed(job, source, len(groups))
        ]
        store.write_bytes(path, b"".join([orjson.dumps(one) + b"\n" for one in removed]))
        report.skip_lists.append(store.locate(path))
    return results


def skip_lists(
    files: Iterable[Source | DocumentFile], name: str
) -> list[tuple[Store, str, list[tuple[Any, ImageFile]]]]:
    """Return store and path of the list of removed samples of each dataset of images, with its files."""
    found: dict[tuple[str, str], list[tuple[Any, ImageFile]]] = {}
    for each in files:
        file = each.file if isinstance(each, Source) else each
        if isinstance(file, ImageFile):
            found.setdefault((file.folder, file.skip_list(name)), []).append((each, file))
    return [(open_store(folder or "."), path, of) for (folder, path), of in found.items()]


def _removed(job: Job, source: Source, groups: int) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers of the removed rows of a file, and their ids as JSON."""
    members = _marks(job, groups, source.first, source.first + source.rows)[0]
    yield from zip(members.tolist(), _ids_of(job, members), strict=True)


def _groups(counts: npt.NDArray[np.int64]) -> list[tuple[int, int]]:
    """Return the bounds of groups of neighboring clusters with about `GROUP` documents, or one cluster with more."""
    found, low, held = [], 0, 0
    for at, count in enumerate(counts.tolist()):
        if at > low and held + count > GROUP:
            found.append((low, at))
            low, held = at, 0
        held += count
    return [*found, (low, len(counts))]


def read_file(task: Unit) -> tuple[str, int]:
    """Write the ids and lengths of a file's documents, unless an earlier run did.

    The array file has ``ids`` uint8[bytes] and ``id_ends``, ``lengths`` int64[rows], and ``used`` uint8[rows]: whether
    the vector is not zero. Return the hash of the documents, and the number of zeros.

    Raises:
        ConfigError: The documents are not those that were embedded, or a vector has no finite numbers.
    """
    job, source = task.job, task.job.sources[task.number]
    path, marker = f"ids-{task.number:05d}", f"ids-{task.number:05d}.json"
    if (known := read_marker(job.store, marker)) is not None:
        return str(known["read"]), int(known["empty"])
    ids, lengths, read, line = list[bytes](), list[int](), list[str](), 1
    if source.keys:
        ids, read = read_keys(source.keys), [source.file.version]
        lengths = [1] * len(ids)
    for block in read_blocks(source.file, fields=("id", "text"), hashed=read.append) if not source.keys else ():
        own, rows = parse_documents(bytes(block), source.file.name, line)
        ids, lengths, line = ids + own, lengths + [len(row.text) for row in rows], line + len(own)
        go_on()
    used = np.empty(len(ids), np.uint8)
    with job.here(task.number) as here:
        vectors = read_vectors(here.sources[task.number].vectors)
        if digest_ids(ids).hexdigest() != source.ids or len(vectors) != len(ids):
            raise _other_documents(source.file)
        for low in range(0, len(ids), _step(job)):
            some = vectors[low : low + _step(job)]
            if not np.isfinite(some).all():
                what = "an embedding is not finite"
                raise ConfigError(what, file=source.vectors, kind="bad-index", fix="Embed again.")
            used[low : low + _step(job)] = some.any(axis=1)
    arrays: Arrays = {
        "ids": np.frombuffer(b"".join(ids), np.uint8),
        "id_ends": np.cumsum([len(one) for one in ids], dtype=np.int64),
        "lengths": np.array(lengths, np.int64),
        "used": used,
    }
    write_arrays(job.store, path, arrays)
    empty = int((used == 0).sum())
    write_marker(job.store, marker, {"read": read[0], "empty": empty})
    return read[0], empty


def read_keys(path: str) -> list[bytes]:
    """Return the keys of samples, as JSON. Raises NotFound."""
    folder, name = split_url(path)
    return open_store(folder).read(name).splitlines()


def _other_documents(file: DocumentFile) -> ConfigError:
    return ConfigError(
        f"the embeddings are of other {'images' if isinstance(file, ImageFile) else 'documents'} than the file has",
        file=file.name,
        kind="changed",
        fix="Run 'feedmill documents embed' again.",
    )


def _step(job: Job) -> int:
    return max(1, job.room // (64 * max(1, job.dimension)))


def find_centers(task: Unit) -> int:
    """Write the centers of the clusters, unless an earlier run did. Return their number.

    They are float32[clusters, d], stored as ``centers`` uint32.
    """
    job, path = task.job, "centers"
    if not job.store.exists(path):
        order = np.random.default_rng(_SEED).permutation(job.documents)
        order = order[: max(SAMPLE * job.clusters, 1)] if job.clusters > 1 else order[:1]
        with job.here() as here:
            sample = here.rows(np.sort(order))[np.argsort(np.argsort(order))]
        used = np.flatnonzero(sample.any(axis=1))
        found = centers_of(sample[used], min(job.clusters, max(1, len(used)))) if job.clusters > 1 else sample[:1]
        write_arrays(job.store, path, {"centers": np.ascontiguousarray(found).view(np.uint32)})
    return len(read_arrays(job.store, path)["centers"])


def assign(task: Unit) -> npt.NDArray[np.int64]:
    """Write the rows of a file by cluster, unless an earlier run did. Return the number of each cluster's documents.

    The array file has ``order`` int64[rows with a vector], and ``starts`` int64[clusters + 1]: the rows of cluster k
    are ``order[starts[k]:starts[k + 1]]``, ascending.
    """
    job = task.job
    path = f"clusters-{task.number:05d}"
    if not job.store.exists(path):
        centers = read_arrays(job.store, "centers")["centers"].view(np.float32)
        used = np.flatnonzero(_ids(job.folder, task.number)["used"])
        labels = np.zeros(len(used), np.int64)
        with job.here(task.number) as here:
            vectors = read_vectors(here.sources[task.number].vectors)
            for low in range(0, len(used) if len(centers) > 1 else 0, _step(job)):
                go_on()
                labels[low : low + _step(job)] = nearest(unit(vectors[used[low : low + _step(job)]]), centers)
        starts = np.zeros(job.clusters + 1, np.int64)
        np.cumsum(np.bincount(labels, minlength=job.clusters), out=starts[1:])
        write_arrays(job.store, path, {"order": used[np.argsort(labels, kind="stable")], "starts": starts})
    return np.diff(read_arrays(job.store, path)["starts"])


@lru_cache(64)
def _ids(folder: str, number: int) -> Arrays:
    return read_arrays(open_store(folder), f"ids-{number:05d}")


def compare(task: Unit) -> int:
    """Write what is removed of some clusters, unless an earlier run did. Return the number of compared pairs.

    The array file has ``members`` int64[m], ascending, the numbers of removed documents, ``kept`` int64[m], their
    witnesses, and ``similarity`` uint64[m], the bits of float64.
    """
    job = task.job
    path = _marks_name(job, task.number)
    if not job.store.exists(path):
        with job.here() as here:
            _compare(here, task, path)
    return int(read_arrays(job.store, path)["pairs"][0])


def _compare(job: Job, task: Unit, path: str) -> None:
    files = [read_arrays(job.store, f"clusters-{number:05d}") for number in range(len(job.sources))]
    members, kept, similarity, pairs = [np.empty(0, np.int64)], [np.empty(0, np.int64)], [np.empty(0)], 0
    for cluster in range(task.low, task.high):
        own = [
            arrays["order"][arrays["starts"][cluster] : arrays["starts"][cluster + 1]] + source.first
            for arrays, source in zip(files, job.sources, strict=True)
        ]
        numbers = np.concatenate(own)
        if job.longest:
            numbers = numbers[np.argsort(-_lengths(job, numbers), kind="stable")]
        if len(numbers) > 1:
            find = connect if job.connected else cover
            witness, values, count = find(len(numbers), _rows(job, numbers), job.threshold, go_on)
            removed = np.flatnonzero(witness != np.arange(len(numbers)))
            members.append(numbers[removed])
            kept.append(numbers[witness[removed]])
            similarity.append(values[removed])
            pairs += count
    found = np.concatenate(members)
    order = np.argsort(found)
    arrays = {
        "members": found[order],
        "kept": np.concatenate(kept)[order],
        "similarity": np.concatenate(similarity)[order].view(np.uint64),
        "pairs": np.array([pairs], np.int64),
    }
    write_arrays(job.store, path, arrays)


def _marks_name(job: Job, number: int) -> str:
    return f"marks-{job.rule}-{number:05d}"


def _rows(job: Job, numbers: npt.NDArray[np.int64]) -> Any:
    """Return a function from places in a cluster to vectors: those in memory, if there is room for all."""
    if 4 * len(numbers) * job.dimension <= job.room // 2:
        whole = np.concatenate(
            [job.rows(numbers[low : low + _step(job)]) for low in range(0, len(numbers), _step(job))]
        )
        return whole.__getitem__
    return lambda places: job.rows(numbers[places])


def _lengths(job: Job, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    which = np.searchsorted(job.firsts, numbers, "right") - 1
    out = np.empty(len(numbers), np.int64)
    for number in np.unique(which).tolist():
        own = which == number
        out[own] = _ids(job.folder, number)["lengths"][numbers[own] - job.sources[number].first]
    return out


def _ids_of(job: Job, numbers: npt.NDArray[np.int64]) -> list[bytes]:
    """Return the ids of documents, as JSON."""
    which, found = np.searchsorted(job.firsts, numbers, "right") - 1, list[bytes]()
    for number, file in zip(numbers.tolist(), which.tolist(), strict=True):
        arrays, row = _ids(job.folder, file), number - job.sources[file].first
        low = int(arrays["id_ends"][row - 1]) if row else 0
        found.append(arrays["ids"][low : int(arrays["id_ends"][row])].tobytes())
    return found


def _marks(job: Job, groups: int, first: int, end: int) -> tuple[npt.NDArray[Any], ...]:
    """Return the removed documents from `first` to `end`, their witnesses and similarities; and the kept ones there."""
    members, kept, similarity, keeping = [], [], [], []
    for number in range(groups):
        arrays = read_arrays(job.store, _marks_name(job, number))
        low, high = np.searchsorted(arrays["members"], [first, end]).tolist()
        members.append(arrays["members"][low:high])
        kept.append(arrays["kept"][low:high])
        similarity.append(arrays["similarity"][low:high].view(np.float64))
        covering = arrays["kept"]
        keeping.append(np.unique(covering[(covering >= first) & (covering < end)]))
    order = np.argsort(np.concatenate(members))
    removed = (np.concatenate(members)[order], np.concatenate(kept)[order], np.concatenate(similarity)[order])
    return *removed, np.sort(np.concatenate(keeping))


def finish(task: Unit) -> Finished:
    """Write the attributes of a file, unless this run wrote them before it was interrupted."""
    job, source = task.job, task.job.sources[task.number]
    store, out = source.file.store(), source.file.attributes(job.name, job.documents_folder)
    marker = f"done-{job.rule}-{task.number:05d}.json"
    known = read_marker(job.store, marker)
    if known is not None and store.exists(out) and store.stat(out).size == known["size"]:
        return Finished(**known)
    members, kept, similarity, keeping = _marks(job, task.high, source.first, source.first + source.rows)
    arrays, written = _ids(job.folder, task.number), list[str]()
    raw, ends = arrays["ids"].tobytes(), arrays["id_ends"].tolist()
    ids = [raw[low:high] for low, high in zip([0, *ends], ends, strict=False)]
    lengths, empty = arrays["lengths"], b'{"attributes":{' + orjson.dumps(job.name) + b':[]},"id":'
    rows = [empty + one + b"}" for one in ids]
    for number in (keeping - source.first).tolist():
        rows[number] = marked_row(job.name, ids[number], int(lengths[number]), number + source.first)
    originals = _ids_of(job, kept)
    places = (members - source.first).tolist()
    for at, root, original, value in zip(places, kept.tolist(), originals, similarity.tolist(), strict=True):
        rows[at] = marked_row(job.name, ids[at], int(lengths[at]), root, original, value)
    with write_lines(store, out, hashed=written.append, gather=True) as append:
        for low in range(0, len(rows), 1 << 14):
            append(b"".join([part for row in rows[low : low + (1 << 14)] for part in (row, b"\n")]))
    of = dict[str, int]()
    for number in (np.searchsorted(job.firsts, kept, "right") - 1).tolist():
        name = job.sources[number].file.name
        of[name] = of.get(name, 0) + 1
    lowest = float(similarity.min()) if len(similarity) else None
    uncovered = int((similarity < job.threshold).sum())
    found = (len(members), of, lowest, uncovered, store.stat(out).size, written[0])
    done = Finished(source.rows, source.ids, *found, read="")
    write_marker(job.store, marker, {name: getattr(done, name) for name in Finished.__slots__})
    return done


def _report(job: Job, groups: int, report: NearReport) -> None:
    marks = [read_arrays(job.store, _marks_name(job, number)) for number in range(groups)]
    members = np.concatenate([np.empty(0, np.int64), *(one["members"] for one in marks)])
    kept = np.concatenate([np.empty(0, np.int64), *(one["kept"] for one in marks)])
    heads, counts = np.unique(kept, return_counts=True)
    sizes, times = np.unique(counts + 1, return_counts=True)
    report.clusters = len(heads)
    report.sizes = {str(size): int(count) for size, count in zip(sizes.tolist(), times.tolist(), strict=True)}
    for at in np.lexsort((heads, -counts))[:LARGEST].tolist():
        head = int(heads[at])
        file = int(np.searchsorted(job.firsts, head, "right") - 1)
        what = "sample" if job.sources[file].keys else "line"
        place = {"file": job.sources[file].file.name, what: head - job.sources[file].first + 1}
        some = np.sort(members[kept == head])[:EXAMPLES]
        report.largest.append(
            {
                "cluster": head,
                "documents": int(counts[at]) + 1,
                "kept": {"id": orjson.loads(_ids_of(job, np.array([head]))[0]), **place},
                "duplicates": [orjson.loads(one) for one in _ids_of(job, some)],
            }
        )
