"""Recognize what files are: documents, or media of one modality in one of several layouts.

    documents        there are no media files
    metadata         media, and a file `metadata.jsonl`, `.csv` or `.parquet` with the column `file_name`
    captions         media with a caption of the same name beside them: `x.jpg` and `x.txt`
    annotations      images, and annotations of COCO, YOLO or Pascal VOC, see `annotations.py`
    classes          media in one folder for each class: `cat/1.jpg`, or `train/cat/1.jpg`
    plain            other media
    episodes         a LeRobot dataset: a folder with `meta/info.json`

An import makes one dataset. Where files of two kinds are about as frequent, the user chooses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import get_args

from feedmill.errors import ConfigError, did_you_mean
from feedmill.formats.hub_splits import WORDS
from feedmill.formats.lerobot.meta import INFO
from feedmill.formats.unread_files import is_about
from feedmill.importing import kinds
from feedmill.importing.annotations import find_annotations
from feedmill.importing.annotations.base import COCO, Annotations
from feedmill.importing.annotations.voc import is_picture_of_masks
from feedmill.importing.kinds import Name, divide, unsupported
from feedmill.importing.options import Type
from feedmill.importing.scanning import File, Files
from feedmill.jobs.reports import LeftOut
from feedmill.storage import open_store

_OLD = "meta_data/info.json"
"""The description of version 1."""
BESIDE = "beside a LeRobot dataset"


def lerobot_folders(files: Files) -> list[tuple[int, str]]:
    """Return root and folder of each LeRobot dataset among the files.

    Raises:
        ConfigError: there is a dataset of version 1, whose layout is another one.
    """
    found = []
    for file in files.files:
        if not file.path.endswith("info.json"):
            continue
        for place in (INFO, _OLD):
            if (file.path == place or file.path.endswith(f"/{place}")) and _is_description(files, file):
                if place == _OLD:
                    raise ConfigError(
                        "this is a LeRobot dataset of version 1, which is not read",
                        file=files.name(file),
                        kind="unsupported",
                        fix="Convert it to version 2 or 3 with LeRobot's own scripts, or leave it out with --exclude.",
                    )
                found.append((file.root, file.path[: -len(place)].rstrip("/")))
    return found


def _is_description(files: Files, file: File) -> bool:
    return b'"codebase_version"' in open_store(files.roots[file.root]).read(file.path)


def leave_out_others(files: Files, folders: list[tuple[int, str]], left: LeftOut, *, refuse: bool) -> None:
    """Add the files outside of LeRobot datasets to `left`.

    Args:
        refuse: raise `ConfigError` if one of them could be imported.
    """
    known = set(folders)
    for file in files.files:
        folder = file.path
        inside = (file.root, "") in known
        while not inside and "/" in folder:
            folder = folder.rpartition("/")[0]
            inside = (file.root, folder) in known
        if inside:
            continue
        if refuse and kinds.divide(file.path).kind and not is_about(file.path):
            raise ConfigError(
                f"the files are of several kinds: {len(folders):,} LeRobot dataset{'s' * (len(folders) > 1)}, and"
                f" {files.name(file)!r} outside of them",
                file=files.roots[file.root],
                kind="mixed-formats",
                fix="Choose with --type episodes or --type media, or with --include or --exclude PATTERN.",
            )
        left.add(BESIDE, files.name(file))


TYPES: tuple[Type, ...] = get_args(Type)
AUTO, DOCUMENTS, CAPTIONING, CLASSIFICATION, DETECTION, MEDIA, EPISODES, PARTS = TYPES
CAPTION_SUFFIXES = ("txt", "caption", "text")
_BESIDE = frozenset((*CAPTION_SUFFIXES, "json", "cls"))
_TABLES = ("jsonl", "csv", "parquet")
_ROWS = (*kinds.TABLES, kinds.JSON)
_METADATA = tuple(f"{stem}.{end}" for stem in ("metadata", "captions") for end in _TABLES)
_AS_METADATA = "name it as a source too"
_NONE: list[tuple[str, File]] = []
_FEW = 10
"""Files of another kind are left out if there are at least this many times more of the main kind."""
SPLITS = {word: {"validation": "val"}.get(split, split) for split, words in WORDS.items() for word in words}


@dataclass(slots=True)
class Recognized:
    """The files of an import, by their roles.

    Attributes:
        type: one of `TYPES`, but not ``auto``.
        modality: of media; empty for documents and parts.
        documents: files of documents; for ``parts``, all files.
        media: media files of the modality.
        beside: path with prefix, without suffix -> files that may belong to the media of that name.
        metadata: metadata files and tables that the user named.
        annotations: of COCO, YOLO or VOC.
        datasets: root and folder of each LeRobot dataset.
        top: folder around the files, with its slash, such as that of an unpacked archive; empty if there is none.
        splits: whether the first folder below it is the split; files that are in none have no split.
        kinds: number of files of documents by kind; empty for others.
        notes: what was recognized, for the report.
    """

    type: str
    modality: str = ""
    documents: list[File] = field(default_factory=list)
    media: list[tuple[File, Name]] = field(default_factory=list)
    beside: dict[str, list[tuple[str, File]]] = field(default_factory=dict)
    metadata: list[File] = field(default_factory=list)
    annotations: Annotations | None = None
    datasets: list[tuple[int, str]] = field(default_factory=list)
    top: str = ""
    splits: bool = False
    kinds: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)


def recognize(files: Files, wanted: str, left: LeftOut, *, named: bool = False) -> Recognized:
    """Return the roles of all files; those without a role are added to `left`.

    Args:
        named: whether the user chose the files with patterns, so that README files are documents, too.

    Raises:
        ConfigError: the type is unknown, does not fit, or there are several kinds to choose from.
    """
    if wanted not in TYPES:
        raise ConfigError(
            f"unknown type {wanted!r}{did_you_mean(wanted, list(TYPES))}",
            kind="bad-option",
            fix=f"Use one of {', '.join(TYPES)}.",
        )
    if wanted == PARTS:
        found = Recognized(PARTS, documents=list(files.files))
        _find_splits(files, found, files.files, wanted)
        return found
    if wanted in (AUTO, EPISODES) and (datasets := lerobot_folders(files)):
        leave_out_others(files, datasets, left, refuse=wanted == AUTO)
        return Recognized(EPISODES, datasets=datasets)
    if wanted == EPISODES:
        raise ConfigError(
            "there is no LeRobot dataset for the type 'episodes'",
            file=files.roots[0] if files.roots else None,
            kind="bad-media",
            fix="Give the folder that has meta/info.json, or a folder above it.",
        )
    divided = [(file, divide(files.prefixes[file.root] + file.path)) for file in files.files]
    counts = Counter(name.kind for _, name in divided)
    media = {kind: counts[kind] for kind in kinds.MODALITIES if counts[kind]}
    if wanted == DOCUMENTS or (wanted == AUTO and not (media and _are_media(divided))):
        return _documents(files, divided, named, left)
    if not media:
        raise ConfigError(
            f"there are no images, audio or video files for the type {wanted!r}",
            file=files.roots[0] if files.roots else None,
            kind="bad-media",
            fix="Remove --type, or use --type documents.",
        )
    return _media(files, divided, media, wanted, left)


def tables_about_media(files: Files, wanted: str) -> list[File]:
    """Return the tables among the sources themselves, if the other files are media: they are about these.

    Raises:
        ConfigError: tables were named to be about media, and there are none.
    """
    if not files.typed and not files.tables:
        return []
    divided = [(file, divide(files.prefixes[file.root] + file.path)) for file in files.files]
    tables = [file for file, name in divided if (file.root, file.path) in files.typed and name.kind in _ROWS]
    others = [(file, name) for file, name in divided if file not in tables and file not in files.tables]
    has_media = any(name.kind in kinds.MODALITIES for _, name in others)
    are_media = has_media and (
        _are_media(others) if wanted == AUTO else wanted in (CAPTIONING, CLASSIFICATION, DETECTION)
    )
    if files.tables and not are_media:
        why = f"--type is {wanted!r}" if wanted != AUTO else "these are documents" if others else "there are none"
        raise ConfigError(
            f"--captions is for images, audio and video, and {why}",
            file=files.name(files.tables[0]),
            kind="bad-option",
            fix="Leave it out, or name the folder of the media.",
        )
    return [file for file in tables if file not in files.tables] if are_media else []


def _are_media(divided: Sequence[tuple[File, Name]]) -> bool:
    """Return whether media are more than a few beside documents, not counting the files beside them."""
    stems = [name.stem for _, name in divided if name.kind in kinds.MODALITIES]
    media = len(stems)
    if media * _FEW > len(divided) - media:  # for others of any kind
        return True
    of_media = set(stems)
    texts = sum(name.kind in kinds.DOCUMENTS and name.stem not in of_media for _, name in divided)
    return media * _FEW > texts


def _documents(files: Files, divided: Sequence[tuple[File, Name]], named: bool, left: LeftOut) -> Recognized:
    found = Recognized(DOCUMENTS)
    about = [file for file, name in divided if "/" not in file.path and name.kind == kinds.TEXT and is_about(file.path)]
    alone = bool(about) and len(about) == sum(name.kind in kinds.DOCUMENTS for _, name in divided)
    skipped = set() if alone or named else set(about)
    counts = found.kinds
    for file, name in divided:
        if skipped and file in skipped:
            left.add("a file about the data, such as README (use --include to import it)", files.name(file))
        elif name.kind in kinds.DOCUMENTS:
            found.documents.append(file)
            counts[name.kind] += 1
        else:
            reason = f"{name.kind} beside documents" if name.kind else unsupported(file.path)
            left.add(reason, files.name(file))
    found.notes += counted_kinds(counts)
    return found


def counted_kinds(counts: Counter[str]) -> list[str]:
    """Return a line for each kind of documents, with the number of their files."""
    return [
        f"{counts[kind]:,} file{'s' if counts[kind] > 1 else ''} of {kinds.NAMES[kind]}"
        for kind in kinds.DOCUMENTS
        if counts[kind]
    ]


def _media(
    files: Files, named: Sequence[tuple[File, Name]], media: dict[str, int], wanted: str, left: LeftOut
) -> Recognized:
    modality = max(media, key=lambda kind: media[kind])
    found = Recognized(wanted, modality)
    found.media = [(file, name) for file, name in named if name.kind == modality]
    if _annotated(files, named, found, wanted, left):
        return found
    found.metadata = [
        file
        for file, (_, suffix, _) in named
        if suffix in _TABLES and file.path.rpartition("/")[2].lower() in _METADATA and file not in files.tables
    ]
    found.metadata += files.tables
    stems = {name.stem for _, name in found.media}
    names: set[str] | None = None  # for `x.jpg.txt`
    rest: list[tuple[File, Name]] = []
    metadata = set(found.metadata)
    for file, name in named:
        stem, suffix, kind = name
        if kind == modality or (metadata and file in metadata):
            continue
        if suffix in _BESIDE:
            is_beside = stem in stems
            if not is_beside:
                names = {files.name(one) for one, _ in found.media} if names is None else names
                is_beside = stem in names
            if is_beside:
                found.beside.setdefault(stem, []).append((suffix, file))
                continue
        rest.append((file, name))
    _rest(files, found, rest, wanted, left)
    _find_splits(files, found, [file for file, _ in found.media], wanted)
    if wanted == AUTO:
        found.type = _layout(files, found)
    return found


def _annotated(files: Files, named: Sequence[tuple[File, Name]], found: Recognized, wanted: str, left: LeftOut) -> bool:
    """Return whether there are annotations of boxes; other files beside the images are then added to `left`.

    Raises:
        ConfigError: there are none, and `wanted` needs them; or there are other tables about the images, too.
    """
    usable = found.modality == kinds.IMAGE and wanted in (AUTO, CAPTIONING, DETECTION)
    annotations = find_annotations(files, named, files.tables) if usable else None
    if annotations is None or (wanted == CAPTIONING and annotations.kind != COCO):
        if wanted == DETECTION:
            raise ConfigError(
                f"there are no annotations of COCO, YOLO or Pascal VOC for the type {wanted!r}",
                file=files.roots[0],
                kind="bad-media",
                fix="Name the file or folder of the annotations, too.",
            )
        return False
    used = annotations.files
    if other := next((file for file in files.tables if file not in used), None):
        raise ConfigError(
            f"there are annotations of {annotations.kind} ({files.name(next(iter(used)))!r}), and this table",
            file=files.name(other),
            kind="mixed-formats",
            fix="Import the images with one of them.",
        )
    found.annotations = annotations
    pictures = {file for file, _ in found.media if is_picture_of_masks(annotations, file.path)}
    for file in sorted(pictures - used):
        left.add("pictures of the masks of classes, not of objects", files.name(file))
    found.media = [(file, name) for file, name in found.media if file not in pictures]
    known = used | pictures | {file for file, _ in found.media}
    _rest(files, found, [(file, name) for file, name in named if file not in known], DETECTION, left)
    return True


def _rest(
    files: Files,
    found: Recognized,
    rest: Sequence[tuple[File, Name]],
    wanted: str,
    left: LeftOut,
) -> None:
    """Report the files that are not of the modality. Raises `ConfigError` if there are many of another kind."""
    orphans: list[File] = []
    others: dict[str, list[File]] = {}
    has_captions = any(suffix in CAPTION_SUFFIXES for of in found.beside.values() for suffix, _ in of)
    for file, name in rest:
        if name.suffix in CAPTION_SUFFIXES and has_captions and not (is_about(file.path)):
            orphans.append(file)
        elif name.kind in kinds.MODALITIES:
            others.setdefault(f"{name.kind} files", []).append(file)
        elif name.kind:
            others.setdefault("documents", []).append(file)
        else:
            left.add(unsupported(file.path), files.name(file))
    most = max((len(group) for group in others.values()), default=0)
    if wanted == AUTO and most * _FEW > len(found.media):
        shown = ", ".join(f"{len(group):,} {kind} ({files.name(group[0])!r})" for kind, group in others.items())
        table = next((files.name(file) for file in others.get("documents", ()) if _is_table(file)), None)
        about = "" if table is None else f"If {table!r} describes the {found.modality} files, {_AS_METADATA}. "
        raise ConfigError(
            f"the files are of several kinds: {len(found.media):,} {found.modality} files"
            f" ({files.name(found.media[0][0])!r}), {shown}",
            file=files.roots[0],
            kind="mixed-formats",
            fix=f"{about}Choose with --type documents or --type media, or with --include or --exclude PATTERN.",
        )
    for file in orphans:
        left.add(f"a caption without {_a(found.modality)} file", files.name(file))
    for kind, group in others.items():
        for file in group:
            more = f" (if it describes them, {_AS_METADATA})" if _is_table(file) else ""
            left.add(f"{kind.removesuffix('s')} beside {found.modality} files{more}", files.name(file))


def _is_table(file: File) -> bool:
    return divide(file.path).kind in kinds.TABLES


def _layout(files: Files, found: Recognized) -> str:
    """Return the type of media for the layout of the files. Raises `ConfigError` if captions are rare."""
    if found.metadata:
        return AUTO  # the columns decide
    with_captions = {
        stem
        for stem, of in found.beside.items()
        if of[0][0] in CAPTION_SUFFIXES or any(suffix in CAPTION_SUFFIXES for suffix, _ in of[1:])
    }
    media = found.media if with_captions else ()
    others = [file for file, name in media if name.stem not in with_captions]
    captioned = len(media) - len(others) + sum(files.name(file) in with_captions for file in others)
    if captioned:
        if 2 * captioned < len(found.media):
            raise ConfigError(
                f"only {captioned:,} of {len(found.media):,} {found.modality} files have a caption beside them",
                file=files.roots[0],
                kind="loses-content",
                fix="Import these with --type captioning, or all files without captions with --type media.",
            )
        return CAPTIONING
    classes = [class_of(files, found, file) for file, _ in found.media]
    others = [file for (file, _), name in zip(found.media, classes, strict=True) if name is None]
    if len({*classes} - {None}) < 2 or 2 * len(others) > len(found.media):
        return MEDIA
    if _is_few(others, found.media):
        return CLASSIFICATION  # the others are left out
    found.notes.append(
        f"warning: no classes: {len(others):,} of {len(found.media):,} {found.modality} files are in no class folder"
        f" ({files.name(others[0])!r}); --type classification leaves them out"
    )
    return MEDIA


def beside(files: Files, found: Recognized, file: File, name: Name) -> list[tuple[str, File]]:
    """Return the files beside a media file, with their suffixes: `x.txt` or `x.jpg.txt` for `x.jpg`."""
    own = found.beside.get(name.stem, _NONE)
    more = found.beside.get(files.prefixes[file.root] + file.path, _NONE)
    return [*own, *more] if more else own


def captions(others: Sequence[tuple[str, File]]) -> list[File]:
    """Return the captions of the files beside a media file; the first one is used."""
    own = [(suffix, one) for suffix, one in others if suffix in CAPTION_SUFFIXES]
    if len(own) > 1:
        own.sort(key=lambda one: CAPTION_SUFFIXES.index(one[0]))
    return [one for _, one in own]


def split_of(files: Files, found: Recognized, file: File) -> str | None:
    """Return the split that the first folder of a file names: train, val or test; None if it names none."""
    first, slash, _ = _below(files, found, file).partition("/")
    return SPLITS.get(first.lower()) if slash else None


def class_of(files: Files, found: Recognized, file: File) -> str | None:
    """Return the class of a media file: its folder, directly below the source or the split; None if there is none."""
    folders = _below(files, found, file).split("/")[:-1]
    if found.splits:
        folders = folders[1:] if split_of(files, found, file) else []
    elif files.prefixes[file.root]:
        folders = folders[1:] or folders  # several sources: one for each class, or with classes below
    return folders[0] if len(folders) == 1 else None


def _below(files: Files, found: Recognized, file: File) -> str:
    """Return the path of a file below the folder around all; empty if it is not in it."""
    name = files.name(file)
    return name.removeprefix(found.top) if name.startswith(found.top) else ""


def _find_splits(files: Files, found: Recognized, of: Sequence[File], wanted: str) -> None:
    """Set the folder around the files, and whether the folders below it are splits.

    Raises:
        ConfigError: most files are in several splits, but too many to leave them out are not.
    """
    found.top = _top(files, of)
    named = [split_of(files, found, file) for file in of]
    outside = [file for file, split in zip(of, named, strict=True) if split is None]
    splits = sorted({split for split in named if split is not None})
    if not splits:
        return
    one = len(splits) == 1  # a folder `train` beside others may be a class
    if _is_few(outside, of) and not (one and any("/" in _below(files, found, file) for file in outside)):
        found.splits = True
        return
    why = (
        f"{len(of) - len(outside):,} of {len(of):,} {f'{found.modality} files'.lstrip()} are in folders of splits"
        f" ({', '.join(splits)}), the others are not ({files.name(outside[0])!r})"
    )
    if wanted == AUTO and not one and 2 * len(outside) < len(of):
        raise ConfigError(
            why,
            file=files.roots[0],
            kind="mixed-formats",
            fix="Leave the others out with --exclude PATTERN, or import all without splits with --type media.",
        )
    found.notes.append(f"warning: no splits: {why}")


def _top(files: Files, of: Sequence[File]) -> str:
    """Return the only folder, if nearly all files are in folders below it, and it is not a split; empty otherwise."""
    if len(files.prefixes) > 1:
        return ""
    top, paths = "", [file.path for file in of]
    while True:
        heads = {path[: path.find("/")] for path in paths if "/" in path}
        paths = [path.partition("/")[2] for path in paths]
        outside = [path for path in paths if "/" not in path]
        if len(heads) != 1 or not _is_few(outside, of) or not SPLITS.keys().isdisjoint(map(str.lower, heads)):
            return top
        top += f"{heads.pop()}/"


def _is_few(others: Sequence[object], of: Sequence[object]) -> bool:
    return len(others) * _FEW <= len(of)


def _a(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"
