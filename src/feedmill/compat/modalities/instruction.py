"""Implement ``prepare_instruction_tuning_data``: chat template, splits, raw index and packing.

Files are named as in the original. H is the first seven hex digits of the configuration's SHA-256::

    <dst folder>/<src stem>_H/
        <dst stem>_<split>.H.jsonl    the lines of a split with their texts; .idx and .pbin beside it
        pbin_config_<split>.H.yaml    its packing configuration
        instruction_chat_template_config.H.yaml
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from feedmill.compat.modalities.config import load_config, section, tell_notes, text_of
from feedmill.compat.modalities.packing import pack
from feedmill.compat.modalities.settings import INSTRUCTION
from feedmill.errors import ConfigError
from feedmill.storage import Store, join_url, open_store, split_url
from feedmill.tokens.instruct import Chat, prepare_chats
from feedmill.tokens.verbs.index import index

PARTS = ("train", "val", "test")
_SECTIONS = ("settings", "instruction_data_transformation", "settings.split_config", "settings.split_config.splitting")


@dataclass(frozen=True)
class Prepared:
    """The files of one split: its name, the file and number of its lines, and the packed tokens (None if empty)."""

    part: str
    path: str
    lines: int
    packed: str | None


def prepare(path: str, *, progress: bool | None = None) -> list[Prepared]:
    """Prepare instruction-tuning data with a configuration file. Existing files are replaced, as in the original.

    Raises:
        ConfigError: the configuration is invalid.
        DataError: a line is not a conversation.
    """
    folder, name = split_url(path)
    text = open_store(folder).read(name)
    digest = hashlib.sha256(text).hexdigest()[:7]
    config = load_config(path, text)
    settings = section(config, "settings", path)
    tell_notes(INSTRUCTION, dict(_named(config)), path)
    source = text_of(settings, "src_path", path)
    target_folder, target_name = split_url(text_of(settings, "dst_path", path))
    target = PurePosixPath(target_name)
    source_folder, source_name = split_url(source)
    out = join_url(target_folder, f"{PurePosixPath(source).stem}_{digest}")
    store = open_store(out)
    weights = _weights(settings.get("split_config"), path)
    seed = _seed(settings.get("split_config"), path)
    names = {part: f"{target.stem}_{part}.{digest}" for part, weight in weights.items() if weight}
    targets = {part: (store, base + target.suffix) for part, base in names.items()}
    store.write_bytes(f"instruction_chat_template_config.{digest}.yaml", text)
    counts = prepare_chats((open_store(source_folder), source_name), targets, _chat(config, path), weights, seed)
    found = []
    for part, lines in counts.items():
        packed = (
            _pack_part(store, names[part], target.suffix, part, digest, settings, path, progress) if lines else None
        )
        found.append(Prepared(part, store.locate(targets[part][1]), lines, packed))
    return found


def _named(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each setting of a configuration by its dotted name."""
    for key, value in config.items():
        name = f"{prefix}{key}"
        if name in _SECTIONS and isinstance(value, Mapping):
            yield from _named(value, f"{name}.")
        else:
            yield name, value


def _pack_part(
    store: Store, base: str, suffix: str, part: str, digest: str, settings: Any, where: str, progress: bool | None
) -> str:
    """Index and pack the lines of one split, and return the packed file."""
    lines, raw_index, packed = (store.locate(base + end) for end in (suffix, ".idx", ".pbin"))
    index(lines, raw_index, overwrite=True, progress=progress)
    given = text_of(settings, "pbin_creation_config_file_path", where)
    folder, name = split_url(given)
    copy = f"pbin_config_{part}.{digest}.yaml"
    config = load_config(store.locate(copy), open_store(folder).read(name))
    section(config, "settings", given).update(src_path=lines, index_path=raw_index, dst_path=packed)
    store.write_bytes(copy, yaml.dump(config, allow_unicode=True).encode())
    pack(config, store.locate(copy), policy="override", progress=progress)
    return packed


def _chat(config: dict[str, Any], where: str) -> Chat:
    roles = section(config, "instruction_data_transformation.role_mapping", where)
    return Chat(
        text_of(section(config, "settings", where), "messages_key", where),
        {str(old): str(new) for old, new in roles.items()},
        text_of(config, "jinja2_chat_template", where),
        section(config, "chat_template_data", where),
    )


def _weights(split: Any, where: str) -> dict[str, int]:
    """Return the percentage of each split; all of it is ``train`` if no split is configured."""
    if split is None:
        return {"train": 100, "val": 0, "test": 0}
    parts = split.get("splitting") if isinstance(split, dict) else None
    if not isinstance(parts, dict) or set(parts) != set(PARTS):
        raise ConfigError("'split_config.splitting' must name train, val and test", file=where, fix="Name all three.")
    if any(type(value) is not int or value < 0 for value in parts.values()) or sum(parts.values()) != 100:
        raise ConfigError(
            f"the splits {', '.join(f'{name} {value}' for name, value in parts.items())} do not add up to 100",
            file=where,
            kind="bad-option",
            fix="Set non-negative whole percentages.",
        )
    return {part: parts[part] for part in PARTS}


def _seed(split: Any, where: str) -> int:
    seed = 0 if split is None else split.get("seed")
    if type(seed) is not int:
        raise ConfigError(f"'split_config.seed' must be a whole number, found {seed!r}", file=where, fix="Set one.")
    return seed
