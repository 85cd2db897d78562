"""The images of a dataset's samples, file by file, as `feedmill.curation.embed` reads them.

A dataset of any format is opened as `feedmill.open` does. Its files are its shards; samples that are rows of no file
are one. Paths are below the folder that the dataset lies in: those of ``data/photos`` are ``photos/0.tar``, ....
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from feedmill.documents.file import DocumentFile
from feedmill.errors import ConfigError, DataError, FeedmillError, MissingExtra, NotFound, StorageError
from feedmill.formats.base import Dataset
from feedmill.formats.content import content_of_files
from feedmill.formats.documents import ATTRIBUTES
from feedmill.formats.format import TOKENS
from feedmill.formats.offsets import hash_words
from feedmill.formats.sample import Sample, split_name
from feedmill.formats.sniff import open_raw, sniff
from feedmill.planning.recipes.skip import data_of
from feedmill.samples.decode import Decoder, codec_of
from feedmill.storage import is_local_folder, open_store, split_url

IMAGES = "images"
"""The kind of these files."""
_PROBED = 16
"""Samples that are looked at to find the part with an image."""


@dataclass(frozen=True, slots=True)
class ImageFile(DocumentFile):
    """Samples of a dataset that lie in one file; `version` is a hash of the file's content and of which samples.

    Attributes:
        dataset, split: what is opened.
        part: name of the part that is an image.
        start, stop: numbers of the samples.
    """

    dataset: str = ""
    split: str | None = None
    part: str = ""
    start: int = 0
    stop: int = 0

    def attributes(self, name: str, documents: str = "") -> str:  # noqa: ARG002
        """Return the path of the samples' attributes below the same folder."""
        return f"{ATTRIBUTES}/{name}/{self.path}.jsonl.gz"

    @property
    def label(self) -> str:
        """Name of the dataset."""
        return split_name(_placed(self.dataset)[1])[0]

    def skip_list(self, name: str) -> str:
        """Return the path of the list of the dataset's samples that an attribute set removes."""
        return f"{ATTRIBUTES}/{name}/{self.label}.skip.jsonl"

    @property
    def identity(self) -> list[Any]:
        """Values that identify the images, for fingerprints."""
        return [self.name, self.version, self.part]


def has_images(url: str, documents: str) -> bool:
    """Return whether this is a dataset of samples, and not documents."""
    if documents in url.split("/"):
        return False
    try:
        if is_local_folder(url) and open_store(url).is_folder(documents):
            return False
        return sniff(url).format.family not in TOKENS
    except FeedmillError:
        return False


def find_images(
    urls: Sequence[str], split: str | None, part: str | None, warnings: list[str], probe: bool = True
) -> list[ImageFile]:
    """Return the files of datasets that have samples.

    Args:
        split: the split to read; None for all samples.
        part: name of the part with the image; None for the only one that is an image.
        warnings: receives what opening the datasets remarked.
        probe: look for the part; otherwise it is `part`, or empty.

    Raises:
        NotFound: there is no dataset, split or part.
        ConfigError: samples have no image, or several; or it is a dataset of tokens.
    """
    found: list[ImageFile] = []
    for url in urls:
        if sniff(url).format.family in TOKENS:
            raise ConfigError("documents of tokens have no images", file=url, kind="other-format", fix="Pass samples.")
        dataset = open_raw(url, split=split)[0]
        warnings += [*dataset.notes, *dataset.remarks]
        found += _files_of(dataset, url, split, _part_of(dataset, part) if probe else part or "")
    return found


def _files_of(dataset: Dataset, url: str, split: str | None, part: str) -> Iterator[ImageFile]:
    folder, name = _placed(url)
    paths, numbers, top = dataset.row_files, np.arange(len(dataset)), f"{open_store(folder or '.').locate('')}/"
    for start, stop in pairwise(dataset.shard_bounds.tolist()):
        if start == stop:
            continue
        path, size, words = name, stop - start, [dataset.fingerprint(), str(start), str(stop)]
        if paths:
            files, rows = dataset.stored_rows(numbers[start:stop])
            own = [paths[k] for k in np.unique(files).tolist()]
            words, size = [np.diff(rows, prepend=0).tobytes().hex()], 0
            for below, inner in map(split_url, own):
                size += open_store(below).stat(inner).size
                words.append(content_of_files(open_store(below), [inner]))
            if len(own) == 1:
                path = own[0].removeprefix(top) if own[0].startswith(top) else f"{name}/{split_url(own[0])[1]}"
        of = {"dataset": url, "split": split, "part": part, "start": start, "stop": stop}
        yield ImageFile(folder, path, IMAGES, size, hash_words(words), **of)


def _placed(url: str) -> tuple[str, str]:
    """Return the folder that a dataset lies in, and its name there."""
    url = url.rstrip("/")
    if os.path.basename(url) in ("", ".", ".."):
        url = os.path.abspath(url)
    folder, name = split_url(url)
    return ("" if folder == "." else folder), name


def _codec(name: str, data: bytes) -> Any:  # noqa: ARG001 - a decoder
    return codec_of(name)


def _part_of(dataset: Dataset, part: str | None) -> str:
    """Return the name of the part with an image. Raises ConfigError and NotFound."""
    known, images = dict[str, None](), dict[str, None]()
    probed = dataset.opened_as(decode=_codec)
    for sample in probed.read_raw(np.arange(min(_PROBED, len(dataset)))):
        known.update(dict.fromkeys(sample))
        images.update(dict.fromkeys(name for name in sample if sample[name] == "image"))
    if part is not None and part not in known and known:
        raise NotFound(f"the samples have no part {part!r} (they have: {', '.join(known)})", file=dataset.url,
                       kind="missing-field", fix="Pass another --image.")  # fmt: skip
    if part is not None:
        return part
    if len(images) == 1:
        return next(iter(images))
    if images:
        what = f"the samples have several images: {', '.join(images)}"
        raise ConfigError(what, file=dataset.url, kind="bad-option", fix="Choose one with --image.")
    what = f"the samples have no part that is an image (they have: {', '.join(known) or 'none'})"
    raise ConfigError(
        what, file=dataset.url, kind="missing-field", fix="Choose it with --image, or pass other samples."
    )


@lru_cache(4)
def _opened(url: str, split: str | None, version: str) -> Dataset:  # noqa: ARG001 - of what is there now
    return open_raw(url, split=split)[0].opened_as(decode=Decoder(image="rgb8"))


def data_of_images(file: ImageFile) -> list[Any]:
    """Return what lists of samples to skip say of the data in which numbers of samples count."""
    return data_of(_opened(file.dataset, file.split, file.version))


def read_images(
    file: ImageFile, start: int, stop: int, skip: bool
) -> Iterator[tuple[str, npt.NDArray[np.uint8] | FeedmillError]]:
    """Yield the key of each sample from `start` to `stop`, and its upright pixels, uint8[H, W, 3], or what is wrong.

    Args:
        skip: yield what is wrong with a sample instead of raising it.

    Raises:
        DataError: an image is broken or missing, or is something else; the error has its file and sample.
    """
    dataset = _opened(file.dataset, file.split, file.version)
    for number, sample in _each(dataset, range(start, stop), skip):
        if isinstance(sample, FeedmillError):
            yield f"{number}", sample
            continue
        try:
            pixels = sample[file.part]
            if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 3 or not pixels.size:
                raise DataError("the part is not an image", kind="bad-media", fix="Choose the part with --image.")
        except (MissingExtra, StorageError):
            raise
        except FeedmillError as error:
            if error.file is None:
                error.file, error.record = sample.source.where, f"{sample.key}.{file.part}"
            if not skip:
                more = "To count such samples, and write zeros, add --on-error skip."
                error.fix = f"{error.fix or 'Replace the image.'} {more}"
                raise
            yield sample.key, error
        else:
            yield sample.key, pixels


def _each(dataset: Dataset, numbers: range, skip: bool) -> Iterator[tuple[int, Sample | FeedmillError]]:
    try:
        samples = dataset.read_raw(np.asarray(numbers))
    except StorageError:
        raise
    except FeedmillError as error:
        if not skip or len(numbers) == 1:
            if not skip:
                raise
            yield numbers[0], error
            return
        for number in numbers:
            yield from _each(dataset, range(number, number + 1), skip)
        return
    yield from zip(numbers, samples, strict=True)
