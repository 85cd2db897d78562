"""The split file of a prepared folder: which shards each split has, and which shards and samples none has."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from feedmill.errors import ConfigError, NotFound
from feedmill.formats.braces import expand
from feedmill.formats.energon.database import META
from feedmill.storage import Store


@dataclass(slots=True)
class Splits:
    """The content of a split file, patterns expanded.

    Attributes:
        parts: split name -> shard paths in order.
        shards_out: shards excluded from every split.
        samples_out: (shard, key) of excluded samples.
    """

    parts: dict[str, list[str]] = field(default_factory=dict)
    shards_out: set[str] = field(default_factory=set)
    samples_out: list[tuple[str, str]] = field(default_factory=list)

    def shards(self, split: str) -> list[str]:
        """Return the shards of one split, without excluded ones."""
        return [shard for shard in self.parts[split] if shard not in self.shards_out]


def meta_file(store: Store, name: str) -> str:
    """Return the path of a file in ``.nv-meta``. Raises `NotFound`, which names the existing files."""
    path = f"{META}/{name}"
    if not store.exists(path):
        have = sorted(e.path.removeprefix(f"{META}/") for e in store.files(META, suffixes=(".yaml", ".yml", ".json")))
        raise NotFound(
            "there is no such file",
            file=store.locate(path),
            kind="not-found",
            fix=f"The folder has: {', '.join(h for h in have if not h.startswith(('.', 'feedmill.'))) or 'none'}.",
        )
    return path


_PART = re.compile(rb"  ([A-Za-z]\w*):(?: \[\]\n|\n((?:  - [A-Za-z_][\w./{}-]*\.tar\n)+))")
_WRITTEN = re.compile(rb"split_parts:\n((?:%s)+)exclude: \[\]\n" % _PART.pattern)


def _as_written(data: bytes) -> dict[str, Any] | None:
    """Return the content of a split file as `prepare` writes it, without the package for YAML; None for any other."""
    found = _WRITTEN.fullmatch(data)
    if found is None:
        return None
    listed = _PART.findall(found[1])
    parts = {name.decode(): [line[4:].decode() for line in shards.splitlines()] for name, shards in listed}
    return {"split_parts": parts} if len(parts) == len(listed) else None


def read_splits(store: Store, name: str | None = None) -> Splits | None:
    """Read the split file `name` (default ``split.yaml``, else ``split.json``); None if there is none."""
    if name is None:
        name = next((n for n in ("split.yaml", "split.json") if store.exists(f"{META}/{n}")), None)
        if name is None:
            return None
        path = f"{META}/{name}"
    else:
        path = meta_file(store, name)
    where = store.locate(path)
    data = store.read(path)
    content: Any = _as_written(data)
    if content is None:
        from feedmill.formats import yamls

        content = yamls.read_config(data, where, last_counts=True).value  # as Energon, whose users append
    if not isinstance(content, dict) or not isinstance(content.get("split_parts"), dict):
        raise ConfigError("'split_parts' is missing", file=where, fix="Write a split file with 'feedmill prepare'.")
    unknown = set(content) - {"split_parts", "exclude"}
    if unknown:
        raise ConfigError(f"unknown entry {sorted(unknown)[0]!r}: expected split_parts and exclude", file=where)
    out = Splits()
    for split, patterns in content["split_parts"].items():
        out.parts[str(split)] = [shard for pattern in _strings(patterns, where) for shard in expand(pattern)]
    for entry in (e for pattern in _strings(content.get("exclude"), where) for e in expand(pattern)):
        shard, marker, key = entry.partition(".tar/")
        if marker:
            out.samples_out.append((f"{shard}.tar", key))
        else:
            out.shards_out.add(entry)
    return out


def _strings(value: Any, where: str) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list):
        raise ConfigError(f"expected a list of patterns, found {value!r}", file=where)
    return [str(item) for item in value]
