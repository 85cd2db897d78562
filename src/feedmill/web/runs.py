"""Pipelines, and what `feedmill run` recorded of them."""

from __future__ import annotations

from dataclasses import dataclass

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.yamls import read_config
from feedmill.pipelines.history import Manifest, manifest_of, read_manifest
from feedmill.pipelines.pipeline import Pipeline, read_pipeline
from feedmill.storage import open_store, split_url

MANIFEST = ".run.json"
"""The end of a manifest's name. It can be opened without its pipeline, to look at an older run."""
_MOST_BYTES = 64 << 20  # of a file that could be a pipeline


@dataclass(frozen=True, slots=True)
class Run:
    """A pipeline and its last run.

    Attributes:
        url: what was given: the pipeline, or the manifest.
        manifest_url: path or URL of the manifest.
        pipeline: the description; None if only the manifest was given.
        manifest: what the last run recorded; None if nothing has run.
    """

    url: str
    manifest_url: str
    pipeline: Pipeline | None
    manifest: Manifest | None


def is_pipeline(path: str) -> bool:
    """Return whether a file is a pipeline or the manifest of one. Raises `StorageError` if it cannot be read."""
    folder, name = split_url(path)
    if not name.endswith((".yaml", ".yml", ".json")):
        return False
    try:
        store = open_store(folder)
        if store.stat(name).size > _MOST_BYTES:
            return False
        value = read_config(store.read(name), path).value
    except (ConfigError, NotFound):  # not one that does not answer: what opens the data next would wait as long
        return False
    return isinstance(value, dict) and isinstance(value.get("steps"), list)


def read_run(path: str) -> Run:
    """Read a pipeline with the manifest beside it, or a manifest alone.

    Raises:
        NotFound: there is no such file.
        ConfigError: the pipeline is invalid.
        DataError: the manifest is corrupt.
    """
    if path.endswith(MANIFEST):
        return Run(path, path, None, read_manifest(path))
    pipeline = read_pipeline(path)
    store, name = manifest_of(path)
    url = store.locate(name)
    try:
        return Run(path, url, pipeline, read_manifest(url))
    except NotFound:
        return Run(path, url, pipeline, None)
