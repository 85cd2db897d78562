"""``manifest.jsonl``: the shards of a dataset and how many samples each has."""

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
"""Names with ``.tar``, and without."""

_PEEK = 4096


class Row(NamedTuple):
    """One line: the shard's name as written, and its samples."""

    shard: str
    samples: int


def looks_like_manifest(store: Store, path: str) -> bool:
    """Return whether the first line of a file is one of a manifest."""
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
        NotFound: there is no such file.
        ConfigError: a line is not of a manifest, or its name would lead elsewhere; names the line.
    """
    rows = []
    for result in each_row(store, path):
        if isinstance(result, ConfigError):
            raise result
        rows.append(result)
    return rows


def each_row(store: Store, path: str) -> Iterator[Row | ConfigError]:
    """Yield the lines, each as a row or as what is wrong with it."""
    text = store.read(path)
    if not text.strip():
        yield bad_manifest("it has no line", store.locate(path))
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
        kind="bad-manifest",
        fix='Each line is {"shard": "name", "num_sequences": samples}, and no line is empty; '
        "'feedmill vla manifest' writes one from the shards.",
    )


def shard_path(shard: str, where: str) -> str:
    """The shard's path in the manifest's folder, with ``.tar``. Raises `ConfigError` for names that lead elsewhere."""
    if "::" in shard or "pipe:" in shard or "|" in shard:
        raise ConfigError(
            f"the shard {shard[:60]!r} would run a command, and names must not run programs",
            file=where,
            kind="runs-command",
            fix="Give the path of a tar, relative to the manifest.",
        )
    parts = shard.split("/")
    if "://" in shard or shard.startswith(("/", "~")) or ".." in parts or "\0" in shard or "\\" in shard:
        raise ConfigError(
            f"the shard {shard[:60]!r} is not in the manifest's folder",
            file=where,
            kind="path-escapes",
            fix="Give a path relative to the manifest, without '..'.",
        )
    path = "/".join(part for part in parts if part not in ("", "."))
    if path.rpartition("/")[2] in ("", SUFFIX):
        raise bad_manifest(f"the shard {shard[:60]!r} has no name", where)
    return path if path.endswith(SUFFIX) else path + SUFFIX


def manifest_text(rows: Sequence[Row], form: str = DOCUMENTED) -> bytes:
    """Return the text of a manifest.

    Args:
        form: ``documented`` writes names with ``.tar``, ``code`` without.
    """
    if form not in FORMS:
        raise ConfigError(f"invalid form {form!r}", fix=f"Use {' or '.join(FORMS)}.")
    lines = []
    for shard, samples in rows:
        name = shard.removesuffix(SUFFIX)
        if name.endswith(SUFFIX) and form == CODE:
            raise ConfigError(
                f"the shard {shard!r} cannot be named without '.tar': another would be meant",
                fix=f"Rename it, or use the form {DOCUMENTED}.",
            )
        name += SUFFIX if form == DOCUMENTED else ""
        quoted = orjson.dumps(name).decode()
        lines.append(f'{{"shard": {quoted}, "num_sequences": {samples}}}\n')
    return "".join(lines).encode()


def missing_shard(store: Store, manifest: str, number: int, path: str) -> DataError:
    """Return the error for a shard that is listed and not there."""
    return DataError(
        f"the shard {path!r} is listed here, but the file is missing",
        file=f"{store.locate(manifest)}:{number}",
        kind="missing-shard",
        fix="Restore it, or write the manifest again with 'feedmill vla manifest'.",
    )


def wrong_count(store: Store, manifest: str, number: int, path: str, said: int, found: int) -> DataError:
    """Return the error for a count that is not the shard's."""
    return DataError(
        f"num_sequences is {said}, but the shard {path!r} has {found} samples",
        file=f"{store.locate(manifest)}:{number}",
        kind="wrong-count",
        fix="The shard is truncated, or the manifest is for other shards. Restore it, or write the manifest again with"
        " 'feedmill vla manifest'.",
    )


def mark(store: Store) -> str | None:
    """Return the manifest of a folder."""
    return MANIFEST if looks_like_manifest(store, MANIFEST) else None
