"""Embed documents, or images of samples: a vector of each, row by row, in files beside the data.

The vectors of ``x/documents/a.jsonl.gz`` are ``x/embeddings/<name>/a.jsonl.gz.npy``, float32[rows, d], or ``.parquet``
with the columns ``id`` (JSON) and ``embedding``. The record of a file (`feedmill.curation.records`) has the hashes of
its documents and of the model, and a digest of the ids: which document each row is of.

With a model that reads images, the data are datasets. The vectors of ``x/photos/0.tar`` are
``x/embeddings/<name>/photos/0.tar.npy``; beside these are the keys of the samples as JSON lines, ``0.tar.keys.jsonl``.
A sample without a usable image has zeros, and the record names it.

The unit of work is a file; a large file is split into blocks, whose vectors do not depend on the number of processes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, NoReturn, Protocol

import numpy as np
import numpy.typing as npt

from feedmill._version import __version__
from feedmill.curation import records
from feedmill.curation.attribute_set import digest_ids
from feedmill.curation.dry_run import read_first
from feedmill.curation.image_files import ImageFile, find_images, has_images, read_images
from feedmill.curation.models.files import Named, find_model, name_of, parse
from feedmill.curation.models.tagger import add_counts, is_on_gpu, load
from feedmill.curation.options import NPY, PARQUET, Embed
from feedmill.curation.records import Records
from feedmill.documents.file import DocumentFile
from feedmill.documents.find import find_in_datasets
from feedmill.documents.lines import Block, blocks, read_blocks
from feedmill.documents.rows import parse_documents
from feedmill.errors import ConfigError, FeedmillError, MissingExtra, NotFound, refuse_empty
from feedmill.formats.documents import ATTRIBUTES
from feedmill.jobs.dry_run import DryRun, JobReport, perform
from feedmill.jobs.engine import Policy, Where, key_of
from feedmill.jobs.options import verb
from feedmill.jobs.policy import skips
from feedmill.jobs.progress import Progress
from feedmill.jobs.reports import LeftOut
from feedmill.jobs.run import run, run_cut
from feedmill.storage import join_url, open_store, paths_of
from feedmill.storage.hashed import hash_file

EMBEDDINGS = "embeddings"
Vectors = npt.NDArray[np.float32]
_PRELOAD = ("feedmill.curation.embed", "feedmill.curation.models.texts")


class EmbedTask(NamedTuple):
    """Task of one file, as sent to processes: its output is `path` below `root`."""

    input: DocumentFile
    root: str
    path: str
    model: Named
    options: dict[str, Any]
    to: str
    overwrite: bool
    skip: bool

    def __str__(self) -> str:
        return str(self.input)

    @property
    def fingerprint(self) -> str:
        """What the vectors depend on, except the documents."""
        return records.fingerprint({**self.options, "feedmill": __version__})


class Done(NamedTuple):
    """The result of a file: rows and length of its vectors, stored bytes of its data, what the model read, and the
    samples without a usable image by reason."""

    rows: int
    dimension: int
    bytes: int
    made: bool
    counts: dict[str, int]
    left_out: dict[str, list[str]]


@dataclass
class EmbedReport(JobReport):
    """The result of a run.

    Attributes:
        name: that of the embeddings.
        files, reused: number of files, and number of those that were up to date.
        rows, dimension: number of vectors, and of the numbers in each.
        outputs: folders of the vectors.
        model: what the model read in this run, see `feedmill.curation.models.texts.Counts`; of images, their number.
        left_out: samples whose vectors are zeros, as they have no usable image.
        warnings: what the user should know.
    """

    name: str
    files: int = 0
    reused: int = 0
    rows: int = 0
    dimension: int = 0
    seconds: float = 0.0
    outputs: list[str] = field(default_factory=list)
    model: dict[str, int] = field(default_factory=dict)
    left_out: LeftOut = field(default_factory=LeftOut)
    warnings: list[str] = field(default_factory=list)


@verb(Embed)
def embed(options: Embed) -> EmbedReport:
    """Return the numbers of files and vectors, and the folders of the vectors.

    Raises:
        ConfigError: an option or the model is invalid; nothing has been written.
        NotFound: the model or documents do not exist.
        MissingExtra: a package is not installed.
        EmptyResult: there are no documents or samples.
        DataError: of kind ``bad-document``, with file and line, or of an image, with file and sample; the vectors of
            that file are not written.
    """
    begin = time.perf_counter()
    named = parse(options.model)
    found = find_model(named.path)
    on_gpu = is_on_gpu(load(found, named.settings, vectors=True))  # reports what is missing before the work begins
    if options.to == PARQUET:
        _pyarrow()
    report = EmbedReport(options.name or name_of(named.path))
    facts: dict[str, Any] = {"model": {**found.hashes(), "settings": named.settings.deciding()}, "to": options.to}
    folder = options.documents_folder
    files: Sequence[DocumentFile]
    if found.reads_images:
        files = images = _image_files(options, report)
        facts |= {"image": images[0].part, "split": options.split} if images else {}
    else:
        _refuse_options_of_images(options)
        files = find_in_datasets(
            paths_of(options.documents), report.warnings, folder, allow_missing=options.allow_empty, id=options.id
        )
    facts |= {} if options.id is None else {"id": options.id}
    to = None if options.output is None else str(options.output)
    places = [place_of(file, to or report.name, options.to, folder) for file in files]
    _refuse_clashes(files, places)
    tasks = [
        EmbedTask(file, *place, named, facts, options.to, options.overwrite, skips(options.on_error))
        for file, place in zip(files, places, strict=True)
    ]
    report.files, report.outputs = len(files), sorted({root for root, _ in places})
    refuse = partial(refuse_empty, file=", ".join(report.outputs), allow=options.allow_empty)

    def plan(dry: DryRun) -> None:
        todo = [task for task in tasks if task.overwrite or current_record(task) is None]
        report.reused = len(tasks) - len(todo)
        for task in todo:
            dry.writes(open_store(task.root), task.path)
            if _has_keys(task):
                dry.writes(open_store(task.root), keys_of(task.path))
        rows = read_first(dry, [task.input for task in todo])
        for task in todo:
            if isinstance(task.input, ImageFile):
                list(read_images(task.input, task.input.start, task.input.start + 1, task.skip))
        if rows is not None and not report.reused:
            refuse(rows, rows)

    def execute() -> None:
        sizes = [task.input.size for task in tasks]
        key = key_of(*(task.fingerprint + task.path for task in tasks))
        workers = 1 if on_gpu and options.workers is None else options.workers
        with Progress.of_files("embedding", sizes, options.progress) as bar:
            where = Where("embedding", key, Records(tasks[0].root).folder)
            for done in run_cut(embed_file, tasks, sizes, workers=workers, progress=bar, preload=_PRELOAD, where=where):
                report.reused += not done.made
                report.rows += done.rows
                report.dimension = max(report.dimension, done.dimension)
                add_counts(report.model, done.counts)
                report.left_out.merge({reason: len(keys) for reason, keys in done.left_out.items()}, done.left_out)
        report.seconds = time.perf_counter() - begin
        refuse(report.rows, report.rows)

    perform(plan, execute)
    return report


def _image_files(options: Embed, report: EmbedReport) -> list[ImageFile]:
    if options.id is not None:
        raise ConfigError("--id is for documents: samples have keys", kind="bad-option", fix="Leave it out.")
    files = find_images(paths_of(options.documents), options.split, options.image, report.warnings)
    if len({file.part for file in files}) > 1:
        what = f"the datasets have images in different parts: {', '.join(sorted({file.part for file in files}))}"
        raise ConfigError(what, kind="bad-option", fix="Embed them in several runs.")
    if not files:
        refuse_empty(0, 0, file=", ".join(paths_of(options.documents)), allow=options.allow_empty)
    return files


def _refuse_options_of_images(options: Embed) -> None:
    for name in ("image", "split"):
        if getattr(options, name) is not None:
            _refuse_option(f"--{name}")
    if skips(options.on_error):
        _refuse_option("--on-error skip")


def _refuse_option(option: str) -> NoReturn:
    what = f"{option} is for images, and the model reads texts"
    raise ConfigError(what, kind="bad-option", fix="Leave it out.")


def keys_of(path: str) -> str:
    """Return the path of the keys of samples beside their vectors."""
    return f"{path.removesuffix(f'.{NPY}')}.keys.jsonl"


def _has_keys(task: EmbedTask) -> bool:
    return isinstance(task.input, ImageFile) and task.to == NPY


def place_of(file: DocumentFile, name: str, to: str = NPY, documents: str = "documents") -> tuple[str, str]:
    """Return the folder of the vectors of a file, and their path below it.

    Args:
        name: of the embeddings, or a folder if it has a slash.
    """
    below = file.path
    if not isinstance(file, ImageFile):
        below = file.attributes("x", documents).removeprefix(f"{ATTRIBUTES}/x/")
    below = f"{below}.{to}"
    if "/" in name:
        return name.rstrip("/"), below
    return join_url(file.folder or ".", f"{EMBEDDINGS}/{name}"), below


def _refuse_clashes(files: Sequence[DocumentFile], places: Sequence[tuple[str, str]]) -> None:
    seen: dict[tuple[str, str], DocumentFile] = {}
    for file, place in zip(files, places, strict=True):
        if (other := seen.setdefault(place, file)) is not file:
            raise ConfigError(
                f"this file and {other.name} would share the file {place[0]}/{place[1]}",
                file=file.name,
                fix="Embed them in several runs, with an output each.",
            )


def current_record(task: EmbedTask) -> records.Record | None:
    """Return the record of the vectors of a file if they are there and what this task would write."""
    record = records.read_record(task.root, task.path)
    if record is None or record.fingerprint != task.fingerprint:
        return None
    store = open_store(task.root)
    same = records.unchanged(store, task.path, record.output)
    same = same and (not _has_keys(task) or store.exists(keys_of(task.path)))
    if not task.skip and record.options.get("left_out"):
        return None  # the run is to stop there
    return record if same and _is_of(record, task.input) else None


def _is_of(record: records.Record, file: DocumentFile) -> bool:
    """Return whether the data of a file are those that were embedded."""
    if isinstance(file, ImageFile):
        return record.input.version == file.version
    return records.unchanged(file.store(), file.path, record.input)


def find_embedded(
    paths: Sequence[str], embeddings: str, warnings: list[str], documents: str, **options: Any
) -> list[DocumentFile]:
    """Return the files of documents, or those of datasets whose images were embedded.

    Args:
        options: as of `feedmill.documents.find.find_in_datasets`, for documents.

    Raises:
        ConfigError, NotFound: there are none.
    """
    if not all(has_images(path, documents) for path in paths):
        return find_in_datasets(paths, warnings, documents, **options)
    files: list[DocumentFile] = []
    for path in paths:
        every: Sequence[ImageFile] = find_images([path], None, None, warnings, probe=False)
        found = (records.read_record(*place_of(file, embeddings)) for file in every)
        split = next((one.options.get("split") for one in found if one is not None), None)
        files += every if split is None else find_images([path], split, None, warnings, probe=False)
    return files


def current_vectors(file: DocumentFile, root: str, path: str) -> records.Record:
    """Return the record of the vectors of a file.

    Raises:
        NotFound: there are none.
        ConfigError: they are in another form, or the documents or the vectors have changed since.
    """
    record, store = records.read_record(root, path), open_store(root)
    if record is None or not store.exists(path):
        fix = "Make them with 'feedmill documents embed'."
        raise NotFound(f"the file has no embeddings {join_url(root, path)}", file=file.name, fix=fix)
    same = records.unchanged(store, path, record.output)
    if not same or not _is_of(record, file):
        data = "images" if isinstance(file, ImageFile) else "documents"
        raise ConfigError(
            f"the {data if same else 'embeddings'} have changed since they were embedded",
            file=file.name,
            kind="changed",
            fix="Run 'feedmill documents embed' again.",
        )
    return record


def embed_file(task: EmbedTask, workers: int = 1) -> Done:
    """Embed the data of a file unless its vectors are up to date, in this process or split over this many."""
    if not task.overwrite and (record := current_record(task)) is not None:
        dimension, left = int(record.options.get("dimension", 0)), record.options.get("left_out", {})
        return Done(record.rows, dimension, task.input.size, False, {}, left)
    file, store = task.input, open_store(task.root)
    counts, ids, rows, dimension = dict[str, int](), digest_ids([]), 0, 0
    left, keys = dict[str, list[str]](), list[bytes]()
    place = Records(task.root).place
    with (
        place.lock(task.path, "these vectors", file=store.locate(task.path)),
        ExitStack() as stack,
    ):
        read = list[str]()
        if isinstance(file, ImageFile):
            before = records.FileState(file.size, file.version, "", file.name)
            read.append("")
            pieces: Iterable[Any] = _ranges(file, task.model)
        else:
            before = records.state(file.store(), file.path, "", file.name)  # before reading, to detect changes
            lines = stack.enter_context(closing(read_blocks(file, fields=("id", "text"), hashed=read.append)))
            pieces = blocks(lines)
        with store.build(task.path) as path:
            with _writer(task.to, path) as write:
                work = _Work(file, task.model, task.skip)
                for made in stack.enter_context(closing(_embedded(work, pieces, workers))):
                    write(made.ids, made.vectors)
                    digest_ids(made.ids, ids)
                    keys += made.ids if _has_keys(task) else ()
                    rows, dimension = rows + len(made.ids), max(dimension, made.vectors.shape[1])
                    add_counts(counts, made.counts)
                    for reason, names in made.left_out.items():
                        left.setdefault(reason, []).extend(names)
            written = hash_file(str(path))
            if _has_keys(task):
                store.write_bytes(keys_of(task.path), b"".join([key + b"\n" for key in keys]))
        before.xxh3 = read[0]
        after = records.state(store, task.path, written)
        options = {**task.options, "ids": ids.hexdigest(), "dimension": dimension}
        options |= {"left_out": left} if left else {}
        record = records.Record(task.fingerprint, options, __version__, rows, before, after)
        records.write_record(task.root, task.path, record)
    return Done(rows, dimension, file.size, True, counts, left)


class _Work(NamedTuple):
    """Embedding of all blocks of a file: the file, the model, and whether broken images are skipped."""

    file: DocumentFile
    model: Named
    skip: bool


class _Range(NamedTuple):
    """Numbers of samples."""

    start: int
    stop: int

    def __repr__(self) -> str:
        return f"the samples from {self.start} on"


class _Made(NamedTuple):
    """Ids of a block as JSON, its vectors float32[n, d], what the model read, and keys without an image by reason."""

    ids: list[bytes]
    vectors: Vectors
    counts: dict[str, int]
    left_out: dict[str, list[str]]


def _ranges(file: ImageFile, named: Named) -> Iterator[_Range]:
    step = _model(named, find_model(named.path).state()).block
    for start in range(file.start, file.stop, step):
        yield _Range(start, min(start + step, file.stop))


def _embedded(work: _Work, blocks: Iterable[Any], workers: int) -> Generator[_Made, None, None]:
    embed_block = _embed_images if isinstance(work.file, ImageFile) else _embed_block
    return run(embed_block, blocks, workers=workers, preload=_PRELOAD, policy=Policy(shared=work))


def _embed_block(work: _Work, block: Block) -> _Made:
    ids, rows = parse_documents(block.lines, work.file.name, block.line)
    model = _model(work.model, find_model(work.model.path).state())
    vectors = model.vectors([row.text for row in rows])
    return _Made(ids, vectors, asdict(model.counts.taken()), {})


_REASONS = {"missing-field": "no image", "bad-part": "image does not decode", "bad-media": "not an image"}
"""Kind of an error -> what is wrong with the image of a sample; others are not readable."""


def _embed_images(work: _Work, block: _Range) -> _Made:
    assert isinstance(work.file, ImageFile)
    model = _model(work.model, find_model(work.model.path).state())
    ids, images, left = list[bytes](), list[Any](), dict[str, list[str]]()
    for key, pixels in read_images(work.file, block.start, block.stop, work.skip):
        ids.append(json.dumps(key, ensure_ascii=False).encode("utf-8", "surrogateescape"))
        if isinstance(pixels, FeedmillError):
            left.setdefault(_REASONS.get(pixels.kind, "sample cannot be read"), []).append(key)
        images.append(None if isinstance(pixels, FeedmillError) else model.prepare(pixels))
    count = sum(image is not None for image in images)
    return _Made(ids, model.vectors(images), {"images": count}, left)


@lru_cache(4)
def _model(named: Named, state: Any) -> Any:  # noqa: ARG001 - tells a file that changed from what is remembered
    """Return a model, which is loaded once per process."""
    return load(find_model(named.path), named.settings, vectors=True)


class _Write(Protocol):
    def __call__(self, ids: Sequence[bytes], vectors: Vectors) -> None:
        """Add rows."""


@contextmanager
def _writer(to: str, path: Path) -> Iterator[_Write]:
    """Open a file of vectors."""
    with open(path, "wb") as out:
        if to == NPY:
            writer: Any = _Npy(out)
            yield writer.add
            writer.close()
        else:
            writer = _Parquet(out)
            yield writer.add
            writer.close()


class _Npy:
    """Writes rows as NumPy's format; the number of rows is known at the end."""

    def __init__(self, out: BinaryIO) -> None:
        self.out, self.rows, self.dimension = out, 0, 0
        self.size = self._head()

    def _head(self) -> int:
        head = {"descr": "<f4", "fortran_order": False, "shape": (self.rows, self.dimension)}
        np.lib.format.write_array_header_1_0(self.out, head)
        return self.out.tell()

    def add(self, ids: Sequence[bytes], vectors: Vectors) -> None:  # noqa: ARG002 - a `_Write`
        self.out.write(np.ascontiguousarray(vectors, "<f4").data)
        self.rows, self.dimension = self.rows + len(vectors), vectors.shape[1]

    def close(self) -> None:
        self.out.seek(0)
        assert self._head() == self.size  # padded to 128 bytes for any shape


class _Parquet:
    """Writes rows with their ids."""

    def __init__(self, out: BinaryIO) -> None:
        self.out, self.pyarrow = out, _pyarrow()
        self.writer: Any = None

    def add(self, ids: Sequence[bytes], vectors: Vectors) -> None:
        pyarrow = self.pyarrow
        import pyarrow.parquet as parquet

        values = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.reshape(-1)), vectors.shape[1])
        texts = pyarrow.array([one.decode() for one in ids], pyarrow.string())
        table = pyarrow.table({"id": texts, "embedding": values})
        if self.writer is None:
            self.writer = parquet.ParquetWriter(self.out, table.schema, compression="zstd", use_dictionary=False)
        self.writer.write_table(table)

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


def _pyarrow() -> Any:
    try:
        import pyarrow
    except ImportError:
        raise MissingExtra("Parquet files need the package pyarrow", "arrow") from None
    return pyarrow


def read_vectors(path: str) -> Vectors:
    """Return the vectors of an .npy file, mapped from the disk, float32[rows, d].

    Raises:
        ConfigError: it is not such a file.
    """
    try:
        found: Vectors = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise ConfigError(f"these are no vectors ({error})", file=path, kind="bad-index", fix="Embed again.") from None
    if found.ndim != 2 or found.dtype != np.float32:
        raise ConfigError("these are no vectors of float32", file=path, kind="bad-index", fix="Embed again.")
    return found
