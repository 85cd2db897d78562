"""The class `Rollouts`: groups of answers that any number of processes append and read at once.

Answers as rows: what they must have, and how they become a Parquet file.

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
import os
import re
import threading
import uuid
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import xxhash

from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound, StorageError
from feedmill.formats.columns import ParquetFile, load_pyarrow
from feedmill.formats.costs import text_hashes
from feedmill.formats.offsets import Int64s
from feedmill.formats.rollouts.numbered import BLOCK, Numbered, seal, unseal
from feedmill.formats.tables.unreadable import read_footer, unreadable
from feedmill.storage import Store, open_store

COMMITS, SUFFIX = "commits", ".parquet"
_OPEN = 64
"""Maximum number of commits that stay open."""
_TRIES = 100


@dataclass(frozen=True, slots=True)
class Commit:
    """What `Rollouts.append` did.

    Attributes:
        number: number of the commit.
        groups, answers: what it holds.
        is_new: False if it was there before, under the same id.
    """

    number: int
    groups: int
    answers: int
    is_new: bool


class _Grown:
    """An array that grows at its end."""

    def __init__(self, kind: npt.DTypeLike) -> None:
        self._all, self._count = np.zeros(1024, kind), 0

    @property
    def array(self) -> npt.NDArray[Any]:
        return self._all[: self._count]

    def add(self, values: Any) -> None:
        count = self._count + len(values)
        if count > len(self._all):
            self._all = np.concatenate([self.array, np.zeros(count, self._all.dtype)])  # at least doubles
        self._all[self._count : count] = values
        self._count = count


class Rollouts:
    """Groups of answers in a folder or bucket that only grows. Groups are numbered in the order of their commits.

    ``Rollouts("runs/rollouts").append([{"group": "q1", "reward": 1.0, "version": 0, "token_ids": [5, 6]}, ...])``

    Args:
        path: folder or URL; it need not exist.

    Attributes:
        commits: number of commits that this object has seen; see `refresh`.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = os.fspath(path)
        self.store = open_store(self.path)
        self._files = Numbered(self.store, COMMITS, SUFFIX, sealed_facts)
        self._lock = threading.RLock()
        self.commits = 0
        self.group_size: int | None = None
        self._first = _Grown(np.int64)  # of each commit: its first group
        self._ids = _Grown(np.uint64)  # of each commit: hash of its id
        self._sizes, self._versions, self._names = _Grown(np.int64), _Grown(np.int64), _Grown(np.uint64)
        self._numbers: dict[tuple[str, str], _Grown] = {}
        self._open: OrderedDict[int, ParquetFile] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of groups."""
        return len(self._sizes.array)

    def __repr__(self) -> str:
        return f"<Rollouts: {self.path}, {len(self):,} groups in {self.commits:,} commits>"

    @property
    def sizes(self) -> Int64s:
        """Return the number of answers of each group, int64[groups]."""
        return self._sizes.array

    @property
    def versions(self) -> Int64s:
        """Return the version of the policy that made each group, of its oldest answer, int64[groups]."""
        return self._versions.array

    def numbers(self, column: str, of: str = "mean") -> npt.NDArray[np.float64] | None:
        """Return the ``mean`` or ``spread`` (standard deviation) of a column by group, NaN where it has none.

        None if no group has such a column.
        """
        found = self._numbers.get((of, column))
        if found is None:
            return None
        found.add(np.full(len(self) - len(found.array), np.nan))
        return found.array

    def columns(self) -> list[str]:
        """Return the names of the columns that `numbers` knows."""
        return sorted({column for _, column in self._numbers})

    def about(self) -> dict[str, Any]:
        """Return facts: numbers of commits and groups, the declared group size, and the first and last version."""
        self.refresh()
        versions = [int(self.versions.min()), int(self.versions.max())]
        return {"commits": self.commits, "groups": len(self), "group_size": self.group_size, "versions": versions}

    def first_group(self, commit: int) -> int:
        """Return the number of a commit's first group; that of the next one if it is the number after the last."""
        return int(self._first.array[commit]) if commit < self.commits else len(self)

    def place(self, groups: Int64s) -> Int64s:
        """Return commit and number in it of each group, int64[n, 2]."""
        commits = np.searchsorted(self._first.array, groups, "right") - 1
        return np.stack([commits, groups - self._first.array[commits]], 1)

    def refresh(self) -> int:
        """See the commits that were added; return the number of commits.

        Raises:
            DataError: a commit is missing or damaged.
        """
        with self._lock:
            for facts in self._files.new():
                self._add(facts)
            return self.commits

    def _add(self, facts: Mapping[str, Any]) -> None:
        if facts["v"] != 1:
            raise DataError(
                f"the commit has version {facts['v']}, this release reads version 1",
                file=self.locate(self.commits),
                kind="unsupported",
                fix="Read it with the release that wrote it.",
            )
        before = len(self)
        self._first.add([before])
        self._ids.add(text_hashes([facts["id"]]))
        self._sizes.add(facts["sizes"])
        self._versions.add(facts["versions"])
        self._names.add(_hashes(facts))
        for of in ("mean", "spread"):
            for name, values in facts[of].items():
                grown = self._numbers.setdefault((of, name), _Grown(np.float64))
                grown.add(np.full(before - len(grown.array), np.nan))
                grown.add(np.array(values, np.float64))  # None is NaN
        if not self.commits:
            self.group_size = facts["group_size"]
        self.commits += 1

    def path_of(self, commit: int) -> str:
        """Return the path of a commit in the store."""
        return self._files.path(commit)

    def locate(self, commit: int) -> str:
        """Return the full path or URL of a commit."""
        return self.store.locate(self.path_of(commit))

    def facts(self, commit: int) -> dict[str, Any]:
        """Return the facts of a commit, read from its file. Raises `DataError`."""
        path = self._files.path(commit)
        return unseal(sealed_facts(self.store, path), self.store.locate(path))

    def append(
        self, rows: Sequence[Mapping[str, Any]], *, id: str | None = None, group_size: int | None = None
    ) -> Commit:
        """Add whole groups of answers as one commit, all of them or none.

        Args:
            rows: answers as mappings; `feedmill.formats.rollouts.commits` has their columns.
            id: name of the commit. If there is one with this name, nothing is added, so that a process that was killed
                before it knew whether it had committed repeats the call.
            group_size: answers of each group from the first commit on; None for any.

        Returns:
            The commit.

        Raises:
            DataError: of kind ``bad-rollout``: an answer lacks a column or contradicts itself, or a group is there
                already, with the same version.
            StorageError: it cannot be written.
            ConfigError: the rollouts have another group size, or the id is that of other groups.
        """
        with self._lock:
            self.refresh()
            if self.commits and group_size not in (None, self.group_size):
                raise ConfigError(
                    f"groups of {group_size} answers, but the first commit declares {self.group_size or 'any number'}",
                    file=self.path,
                    kind="bad-option",
                    fix="Append groups of that size, or begin other rollouts.",
                )
            size = self.group_size if self.commits else group_size
            table, facts = table_of(rows, size)
            facts |= {"id": uuid.uuid4().hex if id is None else id, "group_size": size}
            data = parquet_of(table, facts)
            failed: StorageError | None = None
            for _ in range(_TRIES):
                seen = self.refresh()
                if (same := self._of_id(facts)) is not None:
                    return Commit(same, len(facts["groups"]), len(table), is_new=False)
                if failed is not None:
                    raise failed
                if self.commits and self.group_size != size:  # another process was first, with another size
                    return self.append(rows, id=id, group_size=group_size)
                self._refuse_repeated(facts)
                try:
                    if self._files.publish(seen, data):
                        self.refresh()
                        return Commit(seen, len(facts["groups"]), len(table), is_new=True)
                except StorageError as error:
                    failed = error  # the answer may be lost: look once more whether it is there
            raise StorageError(
                f"no number was free in {_TRIES} tries", file=self.path, kind="busy", fix="Write with fewer processes."
            )

    def _of_id(self, facts: Mapping[str, Any]) -> int | None:
        """Return the commit with the id of these facts. Raises `ConfigError` if it has other groups."""
        for commit in np.flatnonzero(self._ids.array == text_hashes([facts["id"]])).tolist():
            found = self.facts(commit)
            if found["id"] == facts["id"]:
                if any(found[name] != facts[name] for name in ("groups", "sizes", "versions")):
                    raise ConfigError(
                        f"the id {facts['id']!r} is that of commit {commit}, which has other groups",
                        file=self.locate(commit),
                        kind="bad-option",
                        fix="Give each commit its own id.",
                    )
                return commit
        return None

    def _refuse_repeated(self, facts: Mapping[str, Any]) -> None:
        """Raise `DataError` if a group of these facts is there already, with the same version."""
        for group in np.flatnonzero(np.isin(self._names.array, _hashes(facts))).tolist():
            commit, number = self.place(np.array([group]))[0].tolist()
            found = self.facts(commit)
            name, version = found["groups"][number], found["versions"][number]
            if (name, version) in zip(facts["groups"], facts["versions"], strict=True):
                raise bad(
                    f"the group {name!r} of version {version} is in commit {commit} already",
                    "Append a group once, with all its answers; the same prompt again has another version or name.",
                )

    def find(self, name: str) -> list[int]:
        """Return the numbers of the groups with a name, one for each version that has one."""
        hashes = text_hashes(f"{version}:{name}" for version in np.unique(self.versions).tolist())
        found = np.flatnonzero(np.isin(self._names.array, hashes)).tolist()
        return [group for group in found if self.names([group])[0] == name]

    def names(self, groups: Sequence[int]) -> list[str]:
        """Return the names of groups."""
        return [self.facts(commit)["groups"][number] for commit, number in self.place(self._known(groups)).tolist()]

    def _known(self, groups: Sequence[int] | Int64s) -> Int64s:
        """Return numbers of groups as an array. Raises `NotFound` if there is no such group."""
        found = np.asarray(groups, np.int64)
        wrong = found[(found < 0) | (found >= len(self))]
        if len(wrong):
            what, fix = f"there is no group {wrong[0]}: {len(self):,} are known", "See new commits with refresh()."
            raise NotFound(what, file=self.path, fix=fix)
        return found

    def read(self, groups: Sequence[int] | Int64s) -> list[Any]:
        """Return the answers of groups, a `pyarrow.Table` for each, in the given order.

        Raises:
            DataError: a commit is damaged.
        """
        tables: dict[int, Any] = {}
        places = self.place(self._known(groups))
        for commit in np.unique(places[:, 0]).tolist():
            rows = np.flatnonzero(places[:, 0] == commit)
            first = self.first_group(commit)
            ends = np.cumsum(self.sizes[first : self.first_group(commit + 1)])
            file = self._commit(commit, int(ends[-1]))
            blocks: dict[int, Any] = {}
            for row in rows.tolist():
                number = int(places[row, 1])
                end, size = int(ends[number]), int(self.sizes[first + number])
                block = int(np.searchsorted(file.ends, end))
                if block not in blocks:
                    blocks[block] = _table(file, block)
                begin = int(file.ends[block - 1]) if block else 0
                tables[row] = blocks[block].slice(end - size - begin, size)
        return [tables[row] for row in range(len(places))]

    def _commit(self, commit: int, answers: int) -> ParquetFile:
        """Return an open commit. Raises `DataError` if it does not have this number of answers."""
        with self._lock:
            file = self._open.get(commit)
            if file is None:
                sealed_facts(self.store, self.path_of(commit))  # its facts may be from a copy: raises if it is damaged
                file = self._open[commit] = ParquetFile(self.store, self.path_of(commit))
                if len(self._open) > _OPEN:
                    self._open.popitem(last=False)
            self._open.move_to_end(commit)
        if len(file) != answers:
            raise DataError(
                f"the commit has {len(file):,} answers, its facts say {answers:,}",
                file=self.locate(commit),
                kind="wrong-count",
                fix="Restore the file from a copy; it was never changed after it was written.",
            )
        return file

    def verify(self) -> Iterator[FeedmillError]:
        """Yield what is wrong: commits that are missing or damaged, and facts that differ from the answers."""
        files = Numbered(self.store, COMMITS, SUFFIX, sealed_facts)
        try:
            end = files.last()
        except FeedmillError as error:
            yield error
            return
        kept: list[dict[str, Any]] | None = None
        for commit in range(end):
            if commit % BLOCK == 0:
                kept = files.summary(commit // BLOCK)
            where = self.locate(commit)
            try:
                facts = self.facts(commit)
                file = ParquetFile(self.store, self._files.path(commit))
                table = load_pyarrow().concat_tables([_table(file, block) for block in range(len(file.ends))])
                again, groups = facts_of(table, facts["groups"], facts["sizes"]), table["group"].to_pylist()
            except FeedmillError as error:
                yield error
                continue
            names = [name for name, size in zip(facts["groups"], facts["sizes"], strict=True) for _ in range(size)]
            if groups != names or any(facts[name] != value for name, value in again.items()):
                yield _differs(
                    "the facts of the commit differ from its answers", where, "Restore the file from a copy."
                )
            if kept is not None and kept[commit % BLOCK] != facts:
                copy = self.store.locate(files.summary_path(commit // BLOCK))
                yield _differs(
                    f"the facts of {where} differ from their copy", copy, "Delete the copy; it is made again."
                )


def _table(file: ParquetFile, block: int) -> Any:
    """Return a row group as a `pyarrow.Table`."""
    pa = load_pyarrow()
    found = file.read(block)[0]
    return found if isinstance(found, pa.Table) else pa.Table.from_batches([found])


def _differs(what: str, file: str, fix: str) -> DataError:
    return DataError(what, file=file, kind="wrong-count", fix=fix)


def _hashes(facts: Mapping[str, Any]) -> npt.NDArray[np.uint64]:
    pairs = zip(facts["versions"], facts["groups"], strict=True)
    return text_hashes(f"{version}:{name}" for version, name in pairs)


def sealed_facts(store: Store, path: str) -> bytes:
    """Return the facts of a commit as they stand in its metadata. Raises `NotFound`, `DataError`, `StorageError`."""
    pa = load_pyarrow("Rollouts")
    import pyarrow.parquet as pq

    try:
        footer = read_footer(store, path)
        if FACTS not in footer:
            raise KeyError(FACTS)
        if not is_sealed(footer):
            raise ValueError
        whole = b"PAR1%s%sPAR1" % (footer, len(footer).to_bytes(4, "little"))
        return bytes(pq.read_metadata(pa.BufferReader(whole)).metadata[FACTS])
    except (NotFound, StorageError):
        raise
    except (KeyError, TypeError):
        what, fix = (
            "this Parquet file is no commit of rollouts",
            "Move it elsewhere; 'feedmill edit append' adds its answers.",
        )
        raise DataError(what, file=store.locate(path), kind="other-format", fix=fix) from None
    except ValueError:  # its length, or its hash
        what, fix = (
            "the footer of the commit is damaged",
            "Restore the file; it was never changed after it was written.",
        )
        raise DataError(what, file=store.locate(path), kind="bad-data", fix=fix) from None
    except Exception as error:  # pyarrow has errors of many kinds
        raise unreadable(store, path, "parquet", error) from None


def is_rollouts(store: Store) -> bool:
    """Return whether a folder has rollouts: whether its first commit is there."""
    return store.exists(f"{COMMITS}/{0:08d}{SUFFIX}")


FACTS = b"feedmill.rollouts"
"""Key of the facts in a file's metadata."""
_SEAL = re.compile(rb"feedmill-xxh3:([0-9a-f]{32})")
"""Hash of the footer in its metadata, computed with zeros in its place: checksums of pages do not cover the footer.

See findings/pyarrow_footer_without_checksum.sh."""
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
