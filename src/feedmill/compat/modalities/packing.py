"""Implement ``pack_encoded_data``: run Feedmill's tokenize job with Modalities' packing configuration."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from feedmill.compat.modalities.config import count_of, section, tell_notes, tell_others, text_of
from feedmill.compat.modalities.settings import PACKING, TOKENIZER
from feedmill.errors import ConfigError, NotFound
from feedmill.jobs.policy import RAISE, OnError
from feedmill.storage import join_url, open_store, split_url

if TYPE_CHECKING:
    from feedmill.tokens.job import TokenizeReport
    from feedmill.tokens.tokenizer import Tokenizer

QUEUES = ("processing_batch_size", "raw_samples_queue_size", "processed_samples_queue_size")


def pack(
    config: dict[str, Any],
    where: str,
    *,
    policy: str = "error",
    template_source: Any = "auto",
    on_error: OnError = RAISE,
    allow_empty: bool = False,
    progress: bool | None = None,
) -> TokenizeReport | None:
    """Tokenize and pack with a configuration. Return None if the target exists and the policy is ``skip``.

    Args:
        config: the resolved configuration.
        where: its path, for errors.
        policy: what to do if the target exists: ``error``, ``skip`` or ``override``.
        template_source: see `feedmill.tokens.tokenizer.load_tokenizer`.
        on_error: what to do at a document without tokens: ``raise`` or ``skip``.
        allow_empty: whether to write the file even if it has no documents.

    Raises:
        ConfigError: a setting is missing, invalid or unsupported.
    """
    from feedmill.tokens.tokenizer import declare_eos
    from feedmill.tokens.verbs.tokenize import tokenize

    settings = section(config, "settings", where)
    tell_notes(PACKING, settings, where)
    tell_others(config, ("settings", "tokenizer"), where)
    source = text_of(settings, "src_path", where)
    given = settings.get("dst_path")
    target = beside(source, ".pbin") if given is None else str(given)
    if not target.endswith(".pbin"):
        raise ConfigError(f"'dst_path' must end in .pbin, found {target!r}", file=where, fix="Change the suffix.")
    pattern, eod = text_of(settings, "jq_pattern", where), text_of(settings, "eod_token", where)
    for key in QUEUES:
        count_of(settings, key, where)
    workers = count_of(settings, "num_cpus", where) if settings.get("num_cpus") is not None else None
    if existing(target, policy):
        return None
    _check_index(source, settings.get("index_path"), where)
    tokenizer = load(config, where, template_source)
    declare_eos(tokenizer, eod)
    return tokenize(
        [source],
        {"pbin": target},
        tokenizer=tokenizer,
        text=pattern,
        on_error=on_error,
        allow_empty=allow_empty,
        workers=workers,
        overwrite=policy == "override",
        progress=progress,
    )


def beside(path: str, suffix: str) -> str:
    """Return a file's path or URL with another suffix. Raises `ConfigError` for ``.``, ``..`` and an empty name."""
    folder, name = split_url(path)
    if not name.strip("."):
        raise ConfigError("expected a file, found a folder", file=path, fix="Check the path.")
    return join_url(folder, str(PurePosixPath(name).with_suffix(suffix)))


def existing(target: str, policy: str) -> bool:
    """Return whether a target exists and the policy is to skip it."""
    folder, name = split_url(target)
    return policy == "skip" and open_store(folder).exists(name)


def load(config: dict[str, Any], where: str, template_source: Any = "auto") -> Tokenizer:
    """Return the tokenizer of a configuration.

    Raises:
        ConfigError: the configuration is invalid or unsupported. Other errors are those of `load_tokenizer`.
    """
    from feedmill.tokens.tokenizer import load_tokenizer

    entry = section(config, "tokenizer", where)
    variant, options = entry.get("variant_key"), section(config, "tokenizer.config", where)
    if entry.get("component_key", "tokenizer") != "tokenizer":
        raise ConfigError(
            f"'component_key' must be tokenizer, found {entry['component_key']!r}", file=where, fix="Change it."
        )
    tell_notes(TOKENIZER, options, where)
    tell_others(entry, ("component_key", "variant_key", "config"), where, "tokenizer.")
    if variant == "pretrained_sp_tokenizer":
        return load_tokenizer(text_of(options, "tokenizer_model_file", where), "sentencepiece")
    if variant != "pretrained_hf_tokenizer":
        raise ConfigError(
            f"unknown tokenizer variant {variant!r}",
            file=where,
            fix="Use pretrained_hf_tokenizer or pretrained_sp_tokenizer.",
        )
    name = text_of(options, "pretrained_model_name_or_path", where)
    tokenizer = load_tokenizer(name, template_source=template_source)
    if tokenizer.reference != "hf":
        raise ConfigError(
            f"the tokenizer is {tokenizer.kind} without a tokenizer.json, which the original converts when loading",
            file=str(tokenizer.path),
            kind="no-tokenizer",
            fix="Convert it once with AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER), or set"
            " variant_key to pretrained_sp_tokenizer.",
        )
    special = tokenizer.special_tokens()
    for role, token in (options.get("special_tokens") or {}).items():
        if str(token) not in special:
            raise ConfigError(
                f"{role} in 'special_tokens' is {token!r}, which is not a special token of the tokenizer",
                file=where,
                kind="unknown-token",
                fix="Add it as a special token to the tokenizer's own files.",
            )
    return tokenizer


def _check_index(source: str, index: Any, where: str) -> None:
    """Raise `ConfigError` if an index does not cover the whole file: Feedmill packs all lines, without an index.

    Args:
        index: the index of the configuration, wherever it is; None for one beside the file, if there is one.
    """
    folder, name = split_url(source)
    store = open_store(folder)
    beside_it = join_url(folder, str(PurePosixPath(name).with_suffix(".idx")))
    index_folder, path = split_url(beside_it if index is None else str(index))
    near = open_store(index_folder)
    if not near.exists(path):
        if index is None:
            return
        raise NotFound("the index does not exist", file=str(index), fix=f"Check 'index_path' in {where}, or remove it.")
    from feedmill.formats.tokens.raw_index import load_raw_index

    starts, lengths = load_raw_index(near, path, name, store)
    size = store.stat(name).size
    covered = int(lengths.sum()) + len(lengths)
    if covered not in (size, size + 1):
        raise ConfigError(
            f"the index does not cover the file: it has {len(starts)} lines of {covered} bytes, the file {size} bytes",
            file=near.locate(path),
            kind="stale-index",
            fix=f"All lines of a file are packed. Write the lines to pack to another file, and delete this index"
            f" (named in {where}).",
        )
