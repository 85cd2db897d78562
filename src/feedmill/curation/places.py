"""Where the attributes of each document file are to lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from feedmill.curation.inputs import Input, attribute_root, common_folder, find_inputs, places
from feedmill.curation.registry import Choice
from feedmill.curation.spans import attribute_name
from feedmill.errors import ConfigError, NotFound
from feedmill.storage import LocalStore, join_url, open_store
from feedmill.storage.base import refuse_odd_names


class Output(NamedTuple):
    """One attribute file: below which folder, where there, which experiment's, by which taggers."""

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
    missing: list[str] | None,
) -> Iterator[tuple[Input, tuple[Output, ...]]]:
    """Each file with its outputs, once. Patterns without files are put into `missing`, if there is such a list.

    Args:
        destination: a folder for each pattern, or one for all.

    Raises:
        ConfigError: two files would share an output, or there is no place for one.
        NotFound: a pattern has no files.
    """
    if not documents:
        raise ConfigError("no documents are named", fix="Give patterns such as 'data/documents/**/*.jsonl.gz'.")
    roots = _roots(documents, destination, exact)
    if experiment and any(part in ("", ".", "..") for part in experiment.split("/")):
        raise ConfigError(f"{experiment!r} cannot be the name of an attribute set", fix="Give a plain name.")
    refuse_odd_names(experiment or "", *(root or "" for root in roots))
    groups = [(experiment, tuple(choices))] if experiment else [(choice.name, (choice,)) for choice in choices]
    for name, members in groups:
        for member in members:
            attribute_name(name, member.name, "")
    seen: dict[str, str] = {}
    place = places()
    for pattern, root in zip(documents, roots, strict=True):
        try:
            files = find_inputs([pattern])
        except NotFound:
            if missing is None:
                raise
            missing.append(pattern)
            continue
        refuse_odd_names(*(file.path for file in files))
        common = common_folder(files) if exact else None
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
            f"there are {len(documents)} patterns of documents and {len(destination)} destinations",
            fix="Give one destination for each pattern, or none.",
        )
    return [*destination]


def _place(file: Input, root: str | None, name: str, common: str | None, experiment: str | None) -> tuple[str, str]:
    """The folder of an attribute set, and the path in it of a file's attributes.

    Args:
        root: the destination, if one was given.
        common: the deepest folder that all files of the pattern lie in, to lose it as Dolma does.
    """
    if root is not None:
        return root.rstrip("/") + ("" if experiment else f"/{name}"), file.relative
    if common is None:
        folder, rest = attribute_root(file.path, name)
        return _unlinked(folder, name), rest
    folder, rest = attribute_root(f"{file.base}/x", name)
    _unlinked(folder, name)
    below = rest.rpartition("/")[0]
    return folder, f"{below}/{file.path[len(common) + 1 :]}".lstrip("/")


def _unlinked(folder: str, name: str) -> str:
    """The folder of an attribute set, which lies in the dataset. Raises `StorageError` where links lead to it."""
    store = open_store(folder.removesuffix(f"attributes/{name}") or ".")
    if isinstance(store, LocalStore):
        store.below(f"attributes/{name}")
    return folder


def refuse_inputs(work: Sequence[tuple[Input, Sequence[Output]]]) -> None:
    """Raises `ConfigError` where the attributes of a file would be written over documents."""
    place = places()
    inputs = {place(file.path): file for file, _ in work}
    for file, outputs in work:
        for output in outputs:
            over = inputs.get(place(join_url(output.root, output.path)))
            if over is not None:
                raise ConfigError(
                    f"the attributes of this file would be written over the documents {over.path}",
                    file=file.path,
                    kind="input-is-output",
                    fix="Give another destination.",
                )


def _is_new(output: Output, file: Input, seen: dict[str, str], place: Callable[[str], str]) -> bool:
    """Whether no file has this output yet. Raises `ConfigError` where another file has."""
    where = place(join_url(output.root, output.path))
    before = seen.get(where)
    if before is None:
        seen[where] = file.path
        return True
    if place(before) != place(file.path):
        raise ConfigError(
            f"this file and {before} have the same place for their attributes, {output.root}/{output.path}",
            file=file.path,
            fix="Give them destinations of their own.",
        )
    return False
