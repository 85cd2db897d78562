"""``pack_encoded_data``: Modalities' packing configuration, carried out by Feedmill's tokenizing job."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from feedmill.compat.modalities.config import check_spelling, count_of, section, text_of
from feedmill.errors import ConfigError
from feedmill.jobs.policy import RAISE, OnError
from feedmill.storage import join_url, open_store, split_url

if TYPE_CHECKING:
    from feedmill.tokens.tokenize import TokenizeReport
    from feedmill.tokens.tokenizer import Tokenizer

SETTINGS = ("src_path", "dst_path", "index_path", "jq_pattern", "num_cpus", "eod_token")
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
    """Tokenize and pack as a configuration says; None if the target is there and the policy is ``skip``.

    Args:
        config: the resolved configuration.
        where: its path, for errors.
        policy: ``error``, ``skip`` or ``override``: what an existing target means.
        template_source: see `feedmill.tokens.tokenizer.load_tokenizer`.
        on_error: ``raise`` or ``skip``: what a document without tokens does.
        allow_empty: write the file even if it has no documents.

    Raises:
        ConfigError: a setting is missing or means something that is not done here.
    """
    from feedmill.tokens.tokenize import tokenize

    settings = section(config, "settings", where)
    check_spelling(settings, (*SETTINGS, *QUEUES), "settings", where)
    source = text_of(settings, "src_path", where)
    given = settings.get("dst_path")
    target = beside(source, ".pbin") if given is None else str(given)
    if not target.endswith(".pbin"):
        raise ConfigError(f"'dst_path' is {target!r}", file=where, fix="Let it end in .pbin.")
    pattern, eod = text_of(settings, "jq_pattern", where), text_of(settings, "eod_token", where)
    for key in QUEUES:
        count_of(settings, key, where)
    workers = count_of(settings, "num_cpus", where) if settings.get("num_cpus") is not None else None
    if existing(target, policy):
        return None
    _check_index(source, settings.get("index_path"), where)
    tokenizer = load(config, where, template_source)
    return tokenize(
        [source],
        {"pbin": target},
        tokenizer=tokenizer,
        text=pattern,
        eos=eod,
        on_error=on_error,
        allow_empty=allow_empty,
        workers=workers,
        overwrite=policy == "override",
        progress=progress,
    )


def beside(path: str, suffix: str) -> str:
    """A file's path or URL with another suffix. Raises `ConfigError` for ``.`` and the like, which name no file."""
    folder, name = split_url(path)
    if not name.strip("."):
        raise ConfigError("this is a folder, a file was expected", file=path, fix="Check the path.")
    return join_url(folder, str(PurePosixPath(name).with_suffix(suffix)))


def existing(target: str, policy: str) -> bool:
    """Return whether a target is there and shall be left alone."""
    folder, name = split_url(target)
    return policy == "skip" and open_store(folder).exists(name)


def load(config: dict[str, Any], where: str, template_source: Any = "auto") -> Tokenizer:
    """Return the tokenizer of a configuration. Raises `ConfigError`, and as `load_tokenizer` does."""
    from feedmill.tokens.tokenizer import load_tokenizer

    entry = section(config, "tokenizer", where)
    variant, options = entry.get("variant_key"), section(config, "tokenizer.config", where)
    if variant == "pretrained_sp_tokenizer":
        return load_tokenizer(text_of(options, "tokenizer_model_file", where), "sentencepiece")
    if variant != "pretrained_hf_tokenizer":
        raise ConfigError(
            f"there is no tokenizer variant {variant!r}",
            file=where,
            fix="Known are pretrained_hf_tokenizer and pretrained_sp_tokenizer.",
        )
    for key in ("truncation", "padding"):
        if options.get(key):
            raise ConfigError(
                f"the tokenizer's {key!r} is on: it would change what the documents hold",
                file=where,
                kind="not-done",
                fix="Set it to false; 'feedmill filter --max-length' leaves long documents out.",
            )
    name = text_of(options, "pretrained_model_name_or_path", where)
    tokenizer = load_tokenizer(name, template_source=template_source)
    if tokenizer.backend == "sentencepiece":
        raise ConfigError(
            "this is a SentencePiece model without a tokenizer.json: the original converts it when it loads it",
            file=str(tokenizer.path),
            kind="no-tokenizer",
            fix="Convert it once, with AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER), or name it as"
            " pretrained_sp_tokenizer.",
        )
    special = tokenizer.special_tokens()
    for role, token in (options.get("special_tokens") or {}).items():
        if str(token) not in special:
            raise ConfigError(
                f"'special_tokens' makes {token!r} the {role}, and it is no special token of the tokenizer",
                file=where,
                kind="unknown-token",
                fix="Add it to the tokenizer's own files as a special token.",
            )
    return tokenizer


def _check_index(source: str, index: Any, where: str) -> None:
    """Lines are found without an index here; one that is there has to be of this file, and of all of its lines."""
    folder, name = split_url(source)
    store = open_store(folder)
    path = str(PurePosixPath(name).with_suffix(".idx"))
    if index is not None:
        index_folder, path = split_url(str(index))
        if open_store(index_folder).locate(path) != store.locate(path):
            return  # an index elsewhere names lines by their bytes only: there is nothing to compare it with
    if not store.exists(path):
        return
    from feedmill.formats.tokens.raw_index import load_raw_index

    starts, lengths = load_raw_index(store, path, name)
    size = store.stat(name).size
    covered = int(lengths.sum()) + len(lengths)
    if covered not in (size, size + 1):
        raise ConfigError(
            f"the index leaves out lines of the file ({len(starts)} lines of {covered} bytes in {size})",
            file=store.locate(path),
            kind="stale-index",
            fix=f"All lines of a file are packed: write the wanted ones to a file of their own, and delete this index"
            f" (named by {where}).",
        )
