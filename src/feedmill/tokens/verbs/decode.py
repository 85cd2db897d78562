"""Decode documents of token files to text."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.formats.tokens.base import TokenDataset
from feedmill.formats.tokens.manifest import TokenizerFacts, TokenManifest, read_manifest
from feedmill.jobs.options import verb
from feedmill.storage import open_store, split_url
from feedmill.tokens.kinds.model import is_hub_name
from feedmill.tokens.options import Decode
from feedmill.tokens.tokenizer import Backend, Tokenizer, load_tokenizer


@dataclass(frozen=True, slots=True)
class Decoded:
    """One document: its number, number of tokens and text, and whether the text is truncated."""

    document: int
    tokens: int
    text: str
    cut: bool = False
    ids: list[int] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain data, for ``--json``."""
        return {"document": self.document, "tokens": self.tokens, "text": self.text, "cut": self.cut, "ids": self.ids}


@verb(Decode)
def decode(options: Decode) -> list[Decoded]:
    """Return the texts, by default of the first documents.

    Raises:
        FeedmillError: there is no such document; or as `open_tokens` and `tokenizer_for`.
    """
    path = os.fspath(options.path)
    dataset, manifest = open_tokens(path)
    model = tokenizer_for(manifest, options.tokenizer, path, options.tokenizer_backend)
    numbers = list(range(min(options.first, len(dataset)))) if options.document is None else list(options.document)
    limit = options.max_tokens or None
    how = {"skip_special": options.skip_special, "ids": options.ids}
    return list(decode_documents(dataset, model, numbers, limit=limit, **how))


def open_tokens(url: str) -> tuple[TokenDataset, TokenManifest | None]:
    """Open token files of any format by path(``.pbin``, ``.ds``, ``.idx``, ``.bin`` or ``.npy``) and their manifest.

    Raises:
        ConfigError: the path is a dataset without tokens.
        NotFound, DataError: as opening the format does.
    """
    folder, name = split_url(url)
    store = open_store(folder)
    if name.endswith(".ds"):
        from feedmill.formats.tokens.ds import open_ds

        return open_ds(store, name, url), read_manifest(store, name)
    if name.endswith((".idx", ".bin")):
        from feedmill.formats.tokens.megatron import open_megatron

        return open_megatron(store, name, url), read_manifest(store, name)
    if name.endswith(".npy"):
        from feedmill.formats.tokens.dolma import open_dolma

        return open_dolma(store, name, url), read_manifest(store, name)
    from feedmill.formats.sniff import open_raw

    dataset = open_raw(url)[0]
    if not isinstance(dataset, TokenDataset):
        raise ConfigError(f"expected token files, found the format {dataset.format}", file=url, kind="no-tokens")
    return dataset, read_manifest(dataset.store, dataset.shards[0].path) if dataset.shards else None


def tokenizer_for(
    manifest: TokenManifest | None, given: str | None, where: str, backend: Backend = "auto"
) -> Tokenizer:
    """Return the tokenizer of token files: the one given, else the one that their manifest names.

    The latter is looked for where it was when the files were written, relative to them; by its name, as it was given,
    in the working directory and the Hugging Face cache; and beside the files.

    Args:
        where: path or URL of the token files.

    Raises:
        ConfigError: neither exists, or the files were made with another tokenizer.
        NotFound: the tokenizer is not on this machine; the message says where it was looked for.
    """
    facts = manifest.tokenizer if manifest is not None else None
    if given is None and facts is None:
        raise ConfigError(
            "the tokenizer of these tokens is unknown: no manifest records it",
            file=where,
            kind="no-tokenizer",
            fix="Pass it with --tokenizer.",
        )
    loaded = facts.settings if facts is not None else {}
    source, pattern = loaded.get("template_source", "file"), loaded.get("pattern")
    problem: FeedmillError | None = None
    places = [given] if given is not None else _places(facts, where)  # type: ignore[arg-type]
    for name in places:
        try:
            found = load_tokenizer(name, backend, template_source=source, pattern=pattern)
        except NotFound as error:
            problem = error if given is not None else problem
            continue
        except FeedmillError as error:
            problem = problem or error
            continue
        if facts is None or not facts.hash or facts.hash == found.hash:
            return found
        problem = problem or ConfigError(
            f"the tokens were made by another tokenizer: {facts.name} with hash {facts.hash[:8]}, not"
            f" {found.hash[:8]} ({name})",
            file=where,
            kind="mixed-tokenizers",
            fix="Pass the tokenizer that made them with --tokenizer.",
        )
    name = facts.name if facts is not None else ""
    raise problem or NotFound(
        f"the tokenizer {name!r} of these tokens was not found: it was looked for as {' and as '.join(places)}"
        + (", and in the Hugging Face cache" if is_hub_name(name) else ""),
        file=where,
        kind="lost-tokenizer",
        fix="Pass it with --tokenizer of 'feedmill tokens decode' or 'feedmill serve', or put it beside the tokens.",
    )


def _places(facts: TokenizerFacts, where: str) -> list[str]:
    """Return the paths and names under which the tokenizer of token files may be found, the best first."""
    places = [facts.path, facts.name]
    if "://" not in where:
        folder = where if os.path.isdir(where) else os.path.dirname(where)
        places.append(os.path.join(folder, os.path.basename(facts.name.rstrip("/"))))
    first = {os.path.abspath(place): place for place in reversed(places) if place}
    return [place for place in places if place and first[os.path.abspath(place)] == place]


def decode_documents(
    dataset: TokenDataset,
    tokenizer: Tokenizer,
    documents: list[int],
    *,
    limit: int | None = None,
    skip_special: bool = False,
    ids: bool = False,
) -> Iterator[Decoded]:
    """Decode documents by number.

    Args:
        limit: decode at most this many tokens of each.
        skip_special: skip special tokens.
        ids: also return the token ids.

    Raises:
        FeedmillError: there is no such document.
    """
    for number in documents:
        if not 0 <= number < len(dataset):
            raise FeedmillError(
                f"there is no document {number}", file=dataset.url, kind="no-such-sample", fix=f"It has {len(dataset)}."
            )
        length = int(dataset.lengths[number])
        take = length if limit is None else min(length, limit)
        found = dataset.read_tokens(*(np.asarray([n], np.int64) for n in (number, 0, take)))[0]
        text = tokenizer.decode(found, skip_special=skip_special)
        yield Decoded(number, length, text, take < length, found.tolist() if ids else None)
