"""Implement ``merge_datasets``: the pairs of files of a folder, in the order of their names, as one pair."""

from __future__ import annotations

import os

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.tokens.megatron import BIN, IDX
from feedmill.formats.tokens.megatron_merge import Merged, merge_megatron
from feedmill.storage import open_store, split_url


def merge_datasets(folder: str, prefix: str, *, multimodal: bool = False, overwrite: bool = False) -> Merged:
    """Merge the files of a folder.

    Args:
        folder: path or URL; files in its subfolders are not read.
        prefix: path or URL of the output without suffix.
        multimodal: the files have the mode of each sequence.
        overwrite: replace existing files.

    Raises:
        NotFound: there are no files, or one of a pair is missing.
        ConfigError: the output exists or is one of the inputs, or the files differ in type.
    """
    source, (below, name) = open_store(folder), split_url(prefix)
    target = open_store(below)
    names = [entry.path for entry in source.files() if "/" not in entry.path and entry.path.endswith((BIN, IDX))]
    prefixes = sorted({os.path.splitext(path)[0] for path in names})
    for each in prefixes:
        for suffix in (BIN, IDX):
            if each + suffix not in names:
                raise NotFound(
                    f"the {suffix} file of this prefix is missing",
                    file=source.locate(each),
                    kind="not-prepared",
                    fix="Copy both files of the pair into the folder.",
                )
    if not prefixes:
        raise NotFound(
            "the folder has no .bin and .idx files", file=folder, kind="no-documents", fix="Check the path of --input."
        )
    if target.locate(name) in [source.locate(each) for each in prefixes]:
        raise ConfigError(
            "the output is one of the files to merge", file=prefix, kind="exists", fix="Choose another --output-prefix."
        )
    existing = next((name + suffix for suffix in (IDX, BIN) if target.exists(name + suffix)), None)
    if existing == name + BIN:  # without its index: published by a run that was killed, if it is what is merged now
        tokens = sum(source.stat(each + BIN).size for each in prefixes)
        existing = None if target.stat(existing).size == tokens else existing
    if existing and not overwrite:
        raise ConfigError(
            "the output already exists",
            file=target.locate(existing),
            kind="exists",
            fix="Add --overwrite to replace it, or choose another output.",
        )
    return merge_megatron(source, prefixes, target, name, multimodal=multimodal)
