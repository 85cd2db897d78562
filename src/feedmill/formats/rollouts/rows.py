"""Answers as rows: what they must have, and how they become a Parquet file.

    group        text or integer   the instance of a prompt that all answers of the group were sampled for
    reward       number            finite
    version      integer           the policy that made the answer, counted from 0
    token_ids    integers          of prompt and answer, int32
    loss_mask    booleans          which of them are trained on; as many as `token_ids`
    logprobs     numbers           of each under the policy that made the answer (0 where not sampled); as many
    messages, prompt, completion   text, or messages

A row needs the first three, and `token_ids` or text. Other columns are kept. Text and scalars are stored as such, lists
of one type as lists; what has mappings in it, such as messages, as JSON text, because columns of structs would give
every message the keys of all others. The rows of a group are stored side by side, and row groups end where groups end.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xxhash

from feedmill.errors import DataError
from feedmill.formats.columns import load_pyarrow
from feedmill.formats.rollouts.numbered import seal

FACTS = b"feedmill.rollouts"
"""Key of the facts in a file's metadata."""
_SEAL = re.compile(rb"feedmill-xxh3:([0-9a-f]{32})")
"""Hash of the footer in its metadata, computed with zeros in its place: checksums of pages do not cover the footer."""
VERSION = 1
TEXTS = ("messages", "prompt", "completion")
_PER_TOKEN = {"token_ids": np.int32, "loss_mask": np.bool_, "logprobs": np.float32}
_GROUP_BYTES = 1 << 20
"""Size in memory from which a row group ends with the next group of answers."""


def bad(what: str, fix: str, row: int | None = None) -> DataError:
    """Return the error for an answer that cannot be appended."""
    record = None if row is None else f"answer {row}"
    return DataError(what, record=record, kind="bad-rollout", fix=fix)


def table_of(rows: Sequence[Mapping[str, Any]], group_size: int | None) -> tuple[Any, dict[str, Any]]:
    """Return answers as a `pyarrow.Table` with the rows of each group side by side, and its facts.

    Raises:
        DataError: of kind ``bad-rollout``, for the first answer that lacks something or contradicts itself, or a group
            that has not `group_size` answers.
    """
    pa = load_pyarrow("Rollouts")
    if not rows:
        raise bad("there is nothing to append: no answers were given", "Append whole groups of answers.")
    for number, row in enumerate(rows):
        _check(number, row)
    names = list(dict.fromkeys(name for row in rows for name in row))
    for name in ("token_ids", "loss_mask", "logprobs"):
        lacking = [number for number, row in enumerate(rows) if row.get(name) is None]
        if name in names and 0 < len(lacking) < len(rows):
            raise bad(f"it has no {name!r}, which other answers have", "Give it to all answers or none.", lacking[0])
        if len(lacking) == len(rows) and name in names:
            names.remove(name)
    members: dict[str, list[int]] = {}
    for number, row in enumerate(rows):
        members.setdefault(str(row["group"]), []).append(number)
    if group_size is not None:
        for name, numbers in members.items():
            if len(numbers) != group_size:
                raise bad(
                    f"the group {name!r} has {len(numbers)} answers, expected {group_size}",
                    "Append a group once all its answers are there.",
                    numbers[0],
                )
    order = [number for numbers in members.values() for number in numbers]
    table = pa.table({name: _column(pa, name, [rows[number].get(name) for number in order], order) for name in names})
    sizes = [len(numbers) for numbers in members.values()]
    return table, facts_of(table, list(members), sizes)


def _check(number: int, row: Mapping[str, Any]) -> None:
    """Raise `DataError` for an answer that lacks a column or contradicts itself."""
    for name in ("group", "reward", "version"):
        if row.get(name) is None:
            fix = f"Give each answer a {name!r}; it has {', '.join(map(repr, row)) or 'no columns'}."
            raise bad(f"it has no {name!r}", fix, number)
    group, reward, version = row["group"], row["reward"], row["version"]
    if isinstance(group, bool) or not isinstance(group, str | int | np.integer) or group == "":
        raise bad(f"the group is {group!r}, expected text or an integer", "Name the group.", number)
    if isinstance(version, bool) or not isinstance(version, int | np.integer) or not 0 <= version < 1 << 62:
        raise bad(f"the version is {version!r}, expected an integer from 0", "Number the policies from 0.", number)
    if not isinstance(reward, int | float | np.number) or not math.isfinite(reward):
        fix = "Leave out answers that were not scored, with their groups."
        raise bad(f"the reward is {reward!r}, expected a finite number", fix, number)
    ids = row.get("token_ids")
    if ids is None and all(row.get(name) is None for name in TEXTS):
        raise bad("it has neither 'token_ids' nor text", f"Give it one of token_ids, {', '.join(TEXTS)}.", number)
    for name in ("loss_mask", "logprobs"):
        values = row.get(name)
        if values is not None and (ids is None or len(values) != len(ids)):
            have = "none" if ids is None else f"{len(ids):,}"
            fix = "Give one value for each token, False and 0.0 for those that were not sampled."
            raise bad(f"{len(values):,} values of {name!r}, but {have} of 'token_ids'", fix, number)


def _column(pa: Any, name: str, values: list[Any], order: list[int]) -> Any:
    """Return a column as an Arrow array. Raises `DataError` for values of different types."""
    fixed = {"group": pa.string(), "reward": pa.float64(), "version": pa.int64()}
    if name == "group":
        values = [str(value) for value in values]
    if name in _PER_TOKEN:
        return _tokens(pa, name, values, order)
    if any(map(_has_mapping, values)):
        import orjson

        kept = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
        text = pa.array([None if value is None else orjson.dumps(value, option=kept).decode() for value in values])
        text = text.cast(pa.string())
        return pa.ExtensionArray.from_storage(pa.json_(), text) if hasattr(pa, "json_") else text
    try:
        return pa.array(values, fixed.get(name))
    except (pa.ArrowException, OverflowError, TypeError) as error:
        what = " ".join(str(error).split())[:200]
        raise bad(f"the column {name!r} has values of different types ({what})", "Use one type in a column.") from None


def _has_mapping(value: Any) -> bool:
    return isinstance(value, Mapping) or (isinstance(value, list | tuple) and any(map(_has_mapping, value)))


def _tokens(pa: Any, name: str, values: list[Any], order: list[int]) -> Any:
    """Return a column with one value for each token. Raises `DataError` for values that its type cannot have."""
    arrays: list[Any] = []
    kinds = "biuf" if name == "logprobs" else "biu"
    low, high = {"token_ids": (0, 2**31 - 1), "loss_mask": (0, 1), "logprobs": (-3e38, 3e38)}[name]
    for number, value in zip(order, values, strict=True):
        array = np.asarray(value if len(value) else np.zeros(0, _PER_TOKEN[name]))
        if array.ndim != 1 or array.dtype.kind not in kinds:
            fix = "Give a flat list of numbers."
            raise bad(f"{name!r} has values of type {array.dtype} and shape {array.shape}", fix, number)
        wrong = array[~((low <= array) & (array <= high))]  # NaN included
        if len(wrong):
            raise bad(f"{name!r} has the value {wrong[0]}", f"Give numbers from {low} to {high}.", number)
        arrays.append(array.astype(_PER_TOKEN[name]))
    ends = np.cumsum([0, *map(len, arrays)])
    kind = pa.int32() if ends[-1] < 1 << 31 else pa.int64()
    made = pa.ListArray if kind == pa.int32() else pa.LargeListArray
    return made.from_arrays(pa.array(ends, kind), pa.array(np.concatenate(arrays)))


def facts_of(table: Any, groups: list[str], sizes: list[int]) -> dict[str, Any]:
    """Return the groups of a table: names, sizes, versions, and means and deviations of columns of numbers.

    The version of a group is that of its oldest answer. A mean is None if an answer has no value.
    """
    pa = load_pyarrow()
    starts = np.cumsum([0, *sizes[:-1]])
    facts: dict[str, Any] = {"v": VERSION, "groups": groups, "sizes": sizes}
    facts["versions"] = np.minimum.reduceat(table["version"].to_numpy(), starts).tolist()
    facts["mean"], facts["spread"] = {}, {}
    for name in table.schema.names:
        kind = table.schema.field(name).type
        if name == "version" or not (
            pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        ):
            continue
        values = table[name].cast(pa.float64(), safe=False).to_numpy()
        mean = np.add.reduceat(values, starts) / sizes
        spread = np.sqrt(np.add.reduceat((values - np.repeat(mean, sizes)) ** 2, starts) / sizes)
        for where, found in (("mean", mean), ("spread", spread)):
            facts[where][name] = [each if math.isfinite(each) else None for each in found.tolist()]
    return facts


def parquet_of(table: Any, facts: Mapping[str, Any]) -> bytes:
    """Return a Parquet file with checksums of its pages and its footer, and its facts in its metadata."""
    import pyarrow.parquet as pq

    out = io.BytesIO()
    with pq.ParquetWriter(out, table.schema, compression="zstd", write_page_checksum=True) as writer:
        first = row = 0
        for size in facts["sizes"]:
            row += size
            part = table.slice(first, row - first)
            if part.nbytes >= _GROUP_BYTES or row == len(table):
                writer.write_table(part, row_group_size=len(part))
                first = row
        writer.add_key_value_metadata({FACTS: seal(dict(facts)), b"footer": b"feedmill-xxh3:" + b"0" * 32})
    data = out.getvalue()
    begin = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    footer = data[begin:-8]
    at = _sealed_at(footer)
    assert at is not None
    return data[: begin + at] + _hash(footer, at) + data[begin + at + 32 :]


def is_sealed(footer: bytes) -> bool:
    """Return whether a footer is what `parquet_of` has written."""
    at = _sealed_at(footer)
    return at is not None and footer[at : at + 32] == _hash(footer, at)


def _sealed_at(footer: bytes) -> int | None:
    """Return where the hash in a footer is: the last that looks like one, as metadata is in order."""
    found = [match.start(1) for match in _SEAL.finditer(footer)]
    return found[-1] if found else None


def _hash(footer: bytes, at: int) -> bytes:
    return xxhash.xxh3_128_hexdigest(footer[:at] + b"0" * 32 + footer[at + 32 :]).encode()
