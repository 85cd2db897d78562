"""Read and check media, and write them as the shards of a prepared dataset.

Each shard is a unit of work of `feedmill.writing.write.make_shards`. A sample whose media do not decode is left out by
the process that reads it; the reasons are found again from the keys that are missing in the finished shards, so that an
interrupted import reports them, too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, ClassVar, Protocol

import orjson

from feedmill.errors import FeedmillError, MissingExtra
from feedmill.formats.documents import DOCUMENTS
from feedmill.formats.orientation import orientation_of_mp4
from feedmill.importing.annotations import completed
from feedmill.importing.documents import LEFT_OUT, empty, write_left_out
from feedmill.importing.encodings import decode, encoding_of
from feedmill.importing.kinds import DOCUMENTS as TEXTS
from feedmill.importing.kinds import IMAGE, MODALITIES, VIDEO, divide
from feedmill.importing.layouts import Group, Part, Planned, Samples, groups_of, name_others
from feedmill.importing.recognition import CAPTION_SUFFIXES, DETECTION, PARTS
from feedmill.importing.report import ImportReport
from feedmill.importing.rows import reason_of
from feedmill.importing.scanning import Files, read_file
from feedmill.jobs.dry_run import active
from feedmill.jobs.memory import uncollected
from feedmill.jobs.threads import ordered_map
from feedmill.samples.description import describe_type
from feedmill.samples.encode import Encoder
from feedmill.samples.imageheader import image_header, orientation_in
from feedmill.samples.media import kind_of_header, probe
from feedmill.storage import LocalStore, Store, open_store
from feedmill.storage.reasons import HEAD, instead_of_data
from feedmill.writing.destination import Destination
from feedmill.writing.encoding import Encoded, Encoding, Taker
from feedmill.writing.shard import PATTERN, Layout, Shard
from feedmill.writing.write import finish_shards, make_shards

MODULES = ("feedmill.writing.write", __name__)
"""What workers import."""


class Reads(Protocol):
    """How the parts of samples are read; see `Reader`, and `feedmill.importing.episodes.EpisodeReader`."""

    requests: ClassVar[int]

    @property
    def roots(self) -> tuple[str, ...]: ...

    def name(self, files: Files, planned: Planned) -> str: ...

    def sample(self, stores: Sequence[Store], planned: Planned) -> list[tuple[str, Any]]: ...


@dataclass(frozen=True, slots=True)
class Reader:
    """How the parts of samples are read and checked.

    Attributes:
        roots: folders of the files.
        encoding: of captions without a byte order mark.
        check: whether media are checked; parts of any kind are not.
        decode: whether images, audio and video are decoded in full.
        annotated: whether the part ``json`` has objects, which are completed by the image.
    """

    requests: ClassVar[int] = 32
    """Files of a remote source that are requested at once."""

    roots: tuple[str, ...]
    encoding: str
    check: bool
    decode: bool
    annotated: bool = False

    def name(self, files: Files, planned: Planned) -> str:
        """Return the name of a sample for reports: the path of its media."""
        first = planned.parts[0]
        if not first.path:  # a conversation of text alone
            return planned.key
        return files.prefixes[first.root] + first.path

    def sample(self, stores: Sequence[Store], planned: Planned) -> list[tuple[str, Any]]:
        """Return the names and contents of a sample's parts. Raises `Unusable`, `FeedmillError`."""
        parts: list[tuple[str, bytes]] = []
        check = self.check
        for part in planned.parts:
            name, size, root, path, content = part
            data = read_file(stores[root], path, size) if content is None else content
            parts.append((name, _checked(self, part, data) if check else data))
        if self.annotated:
            made = completed(parts[1][1], parts[0][1])
            if isinstance(made, str):
                raise Unusable(made)
            parts[1] = ("json", made)
        return parts


class Unusable(Exception):
    """Raised for a sample that is left out; the message is the reason."""


def read_sample(reader: Reads, stores: Sequence[Store], planned: Planned) -> list[tuple[str, Any]] | str:
    """Return the names and contents of a sample's parts, or the reason why it cannot be used."""
    try:
        return reader.sample(stores, planned)
    except Unusable as error:
        return str(error)
    except MissingExtra:
        raise
    except FeedmillError as error:
        return reason_of(error)


def write_samples(
    out: str,
    files: Files,
    samples: Samples,
    identity: Mapping[str, Any],
    report: ImportReport,
    reader: Reads,
    *,
    max_shard_samples: int,
    most: int,
    overwrite: bool,
    workers: int | None,
    progress: bool,
) -> None:
    """Write all samples, and complete the report.

    Args:
        most: maximum size of a shard in bytes.

    Raises:
        ConfigError: the output exists.
        DataError: no sample could be used.
    """
    layout = Layout(PATTERN, max_shard_samples, most)
    target = Destination(
        out,
        layout,
        job={**identity},
        description=describe_type(samples.sample_type, samples.field_map),
        overwrite=overwrite,
    )
    groups: list[Group] = []
    splits: dict[str, Sequence[int]] = {}
    for split, whole in samples.splits.items():
        first = len(groups)
        groups += groups_of(whole, max_shard_samples, most)
        splits[split] = range(first, len(groups))
    with closing(target):
        if (dry := active()) is not None:
            target.plan(dry, {layout.shard(number): None for number in range(len(groups))})
            return
        report.reused, report.splits = len(target.done), {}  # counted again as samples are written
        sizes = [group.size for group in groups]
        options: dict[str, Any] = {"preload": MODULES, "workers": workers, "progress": progress}
        made = make_shards(target, groups, partial(read_shard, reader), sizes=sizes, **options)
        _name_dropped(report, files, samples, reader, zip(groups, made, strict=True))
        for split, numbers in splits.items():
            count = sum(len(shard.scan.keys) for n in numbers if (shard := made[n]))
            report.splits |= {split: count} if numbers else {}
        if not any(made):
            target.drop()
            raise empty(report)
        _say_turned(report, [shard for shard in made if shard is not None])
        write_left_out(target.store, report.left_out)
        if not report.left_out:
            target.home.delete(LEFT_OUT)
        kept = {split: numbers for split, numbers in splits.items() if any(made[n] for n in numbers)}
        done = finish_shards(target, made, kept)
    report.samples, report.outputs, report.bytes = done.samples, done.shards, done.bytes


def _name_dropped(
    report: ImportReport, files: Files, samples: Samples, reader: Reads, made: Iterable[tuple[Group, Shard | None]]
) -> None:
    """Add to the report why samples were left out: those whose keys are missing in the shard of their group."""
    stores = [open_store(root) for root in reader.roots]
    dropped: set[str] = set()
    for group, shard in made:
        keys = set() if shard is None else set(shard.scan.keys)
        for planned in group if len(keys) < len(group) else ():
            if planned.key not in keys:
                report.left_out.add(_reason(reader, stores, planned), reader.name(files, planned))
                dropped.add(planned.key)
    name_others(report.left_out, files, samples, dropped)


def read_shard(reader: Reads, samples: Sequence[Planned]) -> Iterator[Encoded]:
    """Yield the samples of a shard, ready to be written, without those that cannot be used."""
    stores = [open_store(root) for root in reader.roots]
    read = partial(read_sample, reader, stores)
    encoding = Encoding(Encoder(), Taker())
    remote = not all(isinstance(store, LocalStore) for store in stores)
    workers = reader.requests if remote else 0
    with uncollected(), closing(ordered_map(read, samples, workers=workers, in_flight=2 * reader.requests)) as results:
        for planned, parts in zip(samples, results, strict=True):
            if not isinstance(parts, str):
                yield encoding.of(planned.key, parts)._replace(turned=sum(map(_is_turned, parts)))


def _is_turned(part: tuple[str, Any]) -> bool:
    """Return whether an image, or a video in MP4 or QuickTime, states an orientation."""
    name, data = part
    kind = _kind(name.rpartition(".")[2])
    if kind == IMAGE and isinstance(data, bytes):
        return orientation_in(data) != 1
    return kind == VIDEO and isinstance(data, bytes) and orientation_of_mp4(data) != 1


def _say_turned(report: ImportReport, shards: Sequence[Shard]) -> None:
    """Complete the report with the number of media that state an orientation."""
    report.turned = sum(shard.turned for shard in shards)
    if report.turned:
        kinds = Counter(_kind(part.rpartition(".")[2]) for shard in shards for part in shard.scan.parts)
        nouns = " and ".join(f"{kind}s" for kind in (IMAGE, VIDEO) if kinds[kind])
        counts = f"{report.turned:,} of {kinds[IMAGE] + kinds[VIDEO]:,} {nouns}"
        report.recognized.append(
            f"warning: {counts} have an orientation: they are stored as they are, and turned upright when they are"
            " decoded (orientation: stored gives the stored pixels)"
        )
        if report.type == DETECTION:
            report.recognized.append(
                "warning: boxes of these images are turned with them. They refer to the size that the annotations"
                " state; if it does not tell, to the upright image in YOLO, and to the stored one in COCO and VOC"
            )


def _reason(reader: Reads, stores: Sequence[Store], planned: Planned) -> str:
    """Return why a sample was left out."""
    found = read_sample(reader, stores, planned)
    return found if isinstance(found, str) else "it could not be read, but can be now (import again)"


def _checked(reader: Reader, part: Part, data: bytes) -> bytes:
    """Return the content of a part. Raises `Unusable`."""
    kind = _kind(part.name)
    if kind in MODALITIES:
        why = _fault(part.path, kind, data, reader.decode)
        if why is not None:
            raise Unusable(why)
    elif part.name in CAPTION_SUFFIXES:
        return _caption(data, reader.encoding)
    elif part.name == "cls":
        if not data.strip().removeprefix(b"-").isdigit():
            raise Unusable("the class beside it is not a number")
    elif kind in TEXTS and part.content is None:
        try:
            orjson.loads(data)
        except orjson.JSONDecodeError:
            raise Unusable("the JSON beside it is invalid") from None
    return data


@cache
def _kind(part: str) -> str:
    return divide(f"x.{part}").kind


def _caption(data: bytes, encoding: str) -> bytes:
    try:
        text = decode(data, encoding_of((data,), encoding), "")
    except FeedmillError as error:
        raise Unusable(f"its caption is {error.what}") from None
    if not text.strip():
        raise Unusable("an empty caption")
    return text.encode()


def caption_encodings(reader: Reader, samples: Samples) -> Counter[str]:
    """Return the number of captions for each encoding that they are read with."""
    stores = [open_store(root) for root in reader.roots]
    captions = [
        part
        for group in samples.splits.values()
        for planned in group
        for part in planned.parts[1:]
        if part.name in CAPTION_SUFFIXES and part.content is None
    ]

    def used(part: Part) -> str:
        try:
            return encoding_of((read_file(stores[part.root], part.path, part.size),), reader.encoding)
        except FeedmillError:
            return ""  # reported when the sample is read

    found = Counter(ordered_map(used, captions, workers=reader.requests, in_flight=2 * reader.requests))
    del found[""]
    return Counter({name.removesuffix("-sig"): count for name, count in found.items()})


def _fault(path: str, kind: str, data: bytes, in_full: bool) -> str | None:
    """Return why media cannot be used; None if they can.

    Headers of complete images are read without decoding. Uncertain files are opened by Pillow or PyAV.
    """
    if kind == IMAGE:
        if not in_full and image_header(data) is not None:
            return None
    elif not in_full and kind_of_header(data) == "av":
        return None
    if not data:
        return "an empty file"
    try:
        if kind == IMAGE and in_full:
            from feedmill.samples.images import decode_image

            decode_image(data, "rgb8")
        else:
            probe(path, data, "image" if kind == IMAGE else "av")
    except MissingExtra:
        if in_full:
            raise
        expected = "image" if kind == IMAGE else "av"
        return None if kind_of_header(data) == expected else f"not {_A[kind]} (its first bytes are of another kind)"
    except Exception:  # each codec raises its own error classes
        return f"{_A[kind]} that does not decode{instead_of_data(data[:HEAD])}"
    return None


_A = {IMAGE: "an image", "audio": "an audio file", "video": "a video"}


def refuse_documents(out: str) -> None:
    """Raise `ConfigError` if the output has documents, which shards do not replace."""
    from feedmill.errors import ConfigError

    try:
        first = next(open_store(out).files(DOCUMENTS), None)
    except LookupError:
        return
    if first is not None:
        raise ConfigError(
            f"the output has documents, such as {first.path!r}", file=out, kind="exists", fix="Use another folder."
        )


__all__ = ["PARTS", "Reader", "read_shard", "refuse_documents", "write_samples"]
