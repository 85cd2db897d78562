"""What a step reads beside its inputs: what its options name, and attributes and embeddings beside documents.

A step whose tokenizer, model, benchmark or attributes have changed is no longer up to date, whether its inputs list
them or not.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from feedmill.documents.file import DocumentFile
from feedmill.errors import FeedmillError
from feedmill.pipelines.files import Files, files_of
from feedmill.pipelines.pipeline import Step
from feedmill.storage import join_url


def also_read(step: Step) -> Files:
    """Return the files that a step reads beside its inputs, as far as they exist."""
    arguments, found = step.arguments(), Files()
    for name, places_of in {**_READS, **({"inputs": _filtered} if step.verb == "filter" else {})}.items():
        if arguments.get(name) is not None:
            with contextlib.suppress(FeedmillError):  # the verb raises it again
                for place in places_of(arguments[name], arguments):
                    if "://" in place or os.path.exists(place) or "*" in place:  # and is no name in another place
                        found.update(files_of([place]))
    return found


def _paths(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    for one in [value] if isinstance(value, str | os.PathLike) else value:
        if isinstance(one, str | os.PathLike):
            yield os.fspath(one)


def _taggers(value: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    from feedmill.curation.registry import Choice

    for text in _paths(value, arguments):
        with contextlib.suppress(FeedmillError):  # of a module, which has no file of its own
            if (file := Choice.parse(text).file) is not None:
                yield file


def _model(value: Any, _: Mapping[str, Any]) -> Iterator[str]:
    from feedmill.curation.models.files import parse

    yield parse(value)[0]


def _embeddings(value: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    from feedmill.curation.embed import find_embedded, place_of

    folder = arguments.get("documents_folder") or "documents"
    for file in find_embedded(list(_paths(arguments["documents"], arguments)), value, [], folder):
        yield join_url(*place_of(file, value, documents=folder))


def _filtered(value: Any, arguments: Mapping[str, Any]) -> Iterator[str]:
    """Yield what the streams of a configuration read, or the documents that presets are for."""
    from feedmill.documents.find import find_in_datasets
    from feedmill.filtering import configured, of_presets

    if presets := arguments.get("preset"):
        found = of_presets(list(_paths(value, arguments)), presets, arguments.get("id"))
        yield from _with_attributes(found.files, found.sets)
    elif arguments.get("output") is None:
        config = configured(value)
        for stream in config.streams:
            files = find_in_datasets(stream.documents, [], exact=config.exact, allow_missing=True, id=config.id)
            yield from _with_attributes(files, stream.attributes)


def _with_attributes(files: Iterable[DocumentFile], sets: Iterable[str]) -> Iterator[str]:
    for file in files:
        yield file.name
        for name in sets:
            yield replace(file, path=file.attributes(name)).name


_READS: dict[str, Callable[[Any, Mapping[str, Any]], Iterator[str]]] = {
    "tokenizer": _paths,
    "chat_template": _paths,
    "against": _paths,
    "tagger_modules": _paths,
    "taggers": _taggers,
    "html_taggers": _taggers,
    "model": _model,
    "embeddings": _embeddings,
}
"""Options of verbs that name what they read, each with a function from its value and all arguments to places."""
