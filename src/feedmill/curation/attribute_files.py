"""Find the attribute files of each document file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from feedmill.curation.registry import Choice
from feedmill.curation.spans import attribute_name
from feedmill.documents.file import DocumentFile, as_lines, attribute_root, once, places
from feedmill.documents.find import DocumentFiles, find_documents
from feedmill.errors import ConfigError
from feedmill.storage import LocalStore, join_url, open_store
from feedmill.storage.base import refuse_non_utf8


class Output(NamedTuple):
    """One attribute file: its root folder, its path, its experiment and its taggers."""

    root: str
    path: str
    experiment: str
    taggers: tuple[Choice, ...]


def find_places(
    documents: Sequence[str],
    choices: Sequence[Choice],
    experiment: str | None,
    destination: Sequence[str] | None,
    exact: bool,
    allow_missing: bool,
    id: str | None,
    found: DocumentFiles,
) -> Iterator[tuple[DocumentFile, tuple[Output, ...]]]:
    """Yield each document file once, with its outputs.

    Args:
        destination: One folder per pattern, or one for all.
        id: See `find_documents`.
        found: Receives all files, skipped files, and, with `allow_missing`, the patterns that match no files.

    Raises:
        ConfigError: Two files would share an output, or an output has no folder.
        NotFound: A pattern matches no files.
    """
    if not documents:
        raise ConfigError("no documents given", fix="Pass patterns such as 'data/documents/**/*.jsonl.gz'.")
    roots = _roots(documents, destination, exact)
    if experiment and any(part in ("", ".", "..") for part in experiment.split("/")):
        raise ConfigError(f"{experiment!r} is not a valid name of an attribute set", fix="Use a plain name.")
    refuse_non_utf8(experiment or "", *(root or "" for root in roots))
    groups = [(experiment, tuple(choices))] if experiment else [(choice.name, (choice,)) for choice in choices]
    for name, members in groups:
        for member in members:
            attribute_name(name, member.name, "")
    seen: dict[str, str] = {}
    place = places()
    for pattern, root in zip(documents, roots, strict=True):
        given = find_documents([pattern], exact=exact, allow_missing=allow_missing, id=id)
        files = once(given.files)
        found.files += files
        found.skipped += given.skipped
        found.missing += given.missing
        common = common_folder(files) if exact and files else None
        for file in files:
            all_ = (Output(*_place(file, root, name, common, experiment), name, members) for name, members in groups)
            outputs = tuple(output for output in all_ if _is_new(output, file, seen, place))
            if outputs:
                yield file, outputs


def _roots(documents: Sequence[str], destination: Sequence[str] | None, exact: bool) -> list[str | None]:
    if destination is None:
        return [None] * len(documents)
    if len(destination) == 1 and not exact:
        return [destination[0]] * len(documents)
    if len(destination) != len(documents):
        raise ConfigError(
            f"{len(documents)} patterns of documents but {len(destination)} destinations",
            fix="Pass one destination per pattern, or none.",
        )
    return [*destination]


def _place(
    file: DocumentFile, root: str | None, name: str, common: str | None, experiment: str | None
) -> tuple[str, str]:
    """Return the folder of an attribute set, and the path in it of a file's attributes.

    Args:
        root: The destination, if given.
        common: Deepest common folder of the pattern's files, to remove from the path as Dolma does.
    """
    if root is not None:
        return root.rstrip("/") + ("" if experiment else f"/{name}"), as_lines(file.path, file.kind)
    if common is None:
        folder, rest = attribute_root(as_lines(file.name, file.kind), name)
        return _unlinked(folder, name), rest
    folder, rest = attribute_root(f"{file.folder}/x", name)
    _unlinked(folder, name)
    below = rest.rpartition("/")[0]
    return folder, f"{below}/{file.name[len(common) + 1 :]}".lstrip("/")


def common_folder(files: Iterable[DocumentFile]) -> str:
    """Return the deepest folder that contains all files. Dolma removes it from their paths."""
    folders = [file.name.rpartition("/")[0].split("/") for file in files]
    common = folders[0]
    for other in folders[1:]:
        same = 0
        while same < min(len(common), len(other)) and common[same] == other[same]:
            same += 1
        common = common[:same]
    return "/".join(common)


def _unlinked(folder: str, name: str) -> str:
    """Return `folder`, an attribute set in the dataset. Raises `StorageError` if its path has symbolic links."""
    store = open_store(folder.removesuffix(f"attributes/{name}") or ".")
    if isinstance(store, LocalStore):
        store.below(f"attributes/{name}")
    return folder


def refuse_inputs(work: Sequence[tuple[DocumentFile, Sequence[Output]]]) -> None:
    """Raise `ConfigError` if the attributes of a file would overwrite documents."""
    place = places()
    inputs = {place(file.name): file for file, _ in work}
    for file, outputs in work:
        for output in outputs:
            over = inputs.get(place(join_url(output.root, output.path)))
            if over is not None:
                raise ConfigError(
                    f"the attributes of this file would overwrite the documents {over.name}",
                    file=file.name,
                    kind="input-is-output",
                    fix="Use another destination.",
                )


def _is_new(output: Output, file: DocumentFile, seen: dict[str, str], place: Callable[[str], str]) -> bool:
    """Return whether the output is new. Raises `ConfigError` if another file has the same output."""
    where = place(join_url(output.root, output.path))
    before = seen.get(where)
    if before is None:
        seen[where] = file.name
        return True
    if place(before) != place(file.name):
        raise ConfigError(
            f"this file and {before} would share the attribute file {output.root}/{output.path}",
            file=file.name,
            fix="Pass separate destinations.",
        )
    return False
