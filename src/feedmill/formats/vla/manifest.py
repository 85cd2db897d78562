"""Read and write ``manifest.jsonl``: the shards of a dataset and their numbers of samples."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import orjson

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.vla import COMPANIONS
from feedmill.storage import Store

MANIFEST = "manifest.jsonl"
BESIDE = (*COMPANIONS, MANIFEST)
SUFFIX = ".tar"
DOCUMENTED, CODE = "documented", "code"
FORMS = (DOCUMENTED, CODE)
"""Forms of shard names: with ``.tar``, and without."""

_PEEK = 4096


class Row(NamedTuple):
    """One line: the shard's name as written, and its number of samples."""

    shard: str
    samples: int


def looks_like_manifest(store: Store, path: str) -> bool:
    """Return whether the first line of a file is a line of a manifest."""
    try:
        head = store.read(path, 0, min(_PEEK, store.stat(path).size))
    except NotFound:
        return False
    try:
        row = orjson.loads(head.split(b"\n", 1)[0])
    except orjson.JSONDecodeError:
        return False
    return isinstance(row, dict) and {"shard", "num_sequences"} <= set(row)


def read_rows(store: Store, path: str) -> list[Row]:
    """Return the lines of a manifest, in order.

    Raises:
        NotFound: the file does not exist.
        ConfigError: a line is invalid, or its shard is outside the folder; the error names the line.
    """
    rows = []
    for result in each_row(store, path):
        if isinstance(result, ConfigError):
            raise result
        rows.append(result)
    return rows


def each_row(store: Store, path: str) -> Iterator[Row | ConfigError]:
    """Yield a row per line, or the error if the line is invalid."""
    text = store.read_small(path)
    if not text.strip():
        yield bad_manifest("the manifest is empty", store.locate(path))
        return
    for number, line in enumerate(text.removesuffix(b"\n").split(b"\n"), 1):
        where = f"{store.locate(path)}:{number}"
        try:
            yield _row(line, where)
        except ConfigError as error:
            yield error


def _row(line: bytes, where: str) -> Row:
    try:
        row = orjson.loads(line)
        shard, count = row["shard"], row["num_sequences"]
    except (ValueError, TypeError, KeyError):
        shard = count = None
    if not isinstance(shard, str) or not shard or type(count) is not int or not 0 <= count < 2**63:
        raise bad_manifest(f"this is not a line of a manifest: {line[:80].decode('utf-8', 'replace')!r}", where)
    shard_path(shard, where)
    return Row(shard, count)


def bad_manifest(what: str, where: str) -> ConfigError:
    """Return the error for a manifest that is invalid."""
    return ConfigError(
        what,
        file=where,
        kind="bad-index",
        fix='Each line must be {"shard": "name", "num_sequences": samples}, without empty lines. '
        "To write a manifest from the shards, use 'feedmill compat vla manifest'.",
    )


def shard_path(shard: str, where: str) -> str:
    """Return the path of a shard in the manifest's folder, with ``.tar``.

    Raises:
        ConfigError: the name would run a command, or is outside the folder.
    """
    if "::" in shard or "pipe:" in shard or "|" in shard:
        raise ConfigError(
            f"the shard name {shard[:60]!r} would run a command in WebDataset",
            file=where,
            kind="unsafe-name",
            fix="Use the path of a tar, relative to the manifest.",
        )
    parts = shard.split("/")
    if "://" in shard or shard.startswith(("/", "~")) or ".." in parts or "\0" in shard or "\\" in shard:
        raise ConfigError(
            f"the shard {shard[:60]!r} is not in the manifest's folder",
            file=where,
            kind="unsafe-name",
            fix="Use a path relative to the manifest, without '..'.",
        )
    path = "/".join(part for part in parts if part not in ("", "."))
    if path.rpartition("/")[2] in ("", SUFFIX):
        raise bad_manifest(f"the shard path {shard[:60]!r} has no file name", where)
    return path if path.endswith(SUFFIX) else path + SUFFIX


def manifest_text(rows: Sequence[Row], form: str = DOCUMENTED) -> bytes:
    """Return the text of a manifest.

    Args:
        rows: the shards and their numbers of samples.
        form: ``documented`` writes names with ``.tar``, ``code`` without.

    Raises:
        ConfigError: the form is unknown, or a name cannot be written in it.
    """
    if form not in FORMS:
        raise ConfigError(f"invalid form {form!r}", fix=f"Use {' or '.join(FORMS)}.")
    lines = []
    for shard, samples in rows:
        name = shard.removesuffix(SUFFIX)
        if name.endswith(SUFFIX) and form == CODE:
            raise ConfigError(
                f"the shard {shard!r} cannot be written without '.tar': the name would be that of another shard",
                fix=f"Rename it, or use the form {DOCUMENTED}.",
            )
        name += SUFFIX if form == DOCUMENTED else ""
        quoted = orjson.dumps(name).decode()
        lines.append(f'{{"shard": {quoted}, "num_sequences": {samples}}}\n')
    return "".join(lines).encode()


def missing_shard(store: Store, manifest: str, number: int, path: str) -> DataError:
    """Return the error for a listed shard that is missing."""
    return DataError(
        f"the shard {path!r} is listed here, but the file is missing",
        file=f"{store.locate(manifest)}:{number}",
        kind="missing-shard",
        fix="Restore it, or write the manifest again with 'feedmill compat vla manifest'.",
    )


def wrong_count(store: Store, manifest: str, number: int, path: str, expected: int, found: int) -> DataError:
    """Return the error for a count that differs from the shard's."""
    return DataError(
        f"num_sequences is {expected}, but the shard {path!r} has {found} samples",
        file=f"{store.locate(manifest)}:{number}",
        kind="wrong-count",
        fix="The shard is truncated, or the manifest is for other shards. Restore it, or write the manifest again with"
        " 'feedmill compat vla manifest'.",
    )


def mark(store: Store) -> str | None:
    """Return the name of a folder's manifest; None if it has none."""
    return MANIFEST if looks_like_manifest(store, MANIFEST) else None
