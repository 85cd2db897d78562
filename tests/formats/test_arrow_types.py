"""Every type of Arrow, nested anywhere, in every container, has pyarrow's value; other tests have what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

from feedmill.formats.arrowtypes.reading import Columns, values
from feedmill.samples.open import open as open_dataset
from helpers.arrow_matrix import Column, columns

SAMPLED = 60
"""About how many columns of each depth the default run reads as arrays, and twice as many from containers."""


def plain(value: Any) -> Any:
    """A value that can be compared: arrays as lists, NaN as text; int and bool differ."""
    if isinstance(value, np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value))
    return "NaN" if value != value else (type(value).__name__, value)


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_values_of_arrays_and_of_their_slices(depth: int) -> None:
    found = columns(depth, limit=SAMPLED)
    assert len(found) >= 40
    for column in found:
        for low, high in ((0, None), (1, None), (2, 4), (0, 0)):
            got = values(column.array[low:high])
            assert plain(got) == plain(column.values[low:high]), f"{column.name} [{low}:{high}]"
        table = pa.table({"c": column.array})
        rows = Columns(table.schema, plain=True).documents(table)
        assert plain([row["c"] for row in rows]) == plain(column.values), f"{column.name}, documents"
        assert not any(isinstance(row["c"], np.ndarray) for row in rows)


def test_the_expected_values_are_those_of_pyarrow() -> None:
    """What the matrix says is checked too, where the table says nothing else than pyarrow."""
    for column in [*columns(0), *columns(1)]:
        if not any(word in column.name for word in ("[ns", "tensor")):
            assert plain(column.array.to_pylist()) == plain(column.values), column.name


def test_rows_with_nulls_alone() -> None:
    for column in [*columns(0), *columns(1, limit=SAMPLED)]:
        try:
            nulls = pa.nulls(3, column.array.type)
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid):
            continue
        assert values(nulls) == [None] * 3, column.name


# Containers


def ipc(kind: str, **options: Any) -> Callable[[pa.Table, Path], Path]:
    def write(table: pa.Table, folder: Path) -> Path:
        path = folder / "x.arrow"
        make = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with make(str(path), table.schema, options=pa.ipc.IpcWriteOptions(**options)) as out:
            for batch in table.to_batches(max_chunksize=4):
                out.write_batch(batch)
        return path

    return write


def zstd(table: pa.Table, folder: Path) -> Path:
    feather.write_feather(table, str(folder / "x.arrow"), compression="zstd", chunksize=4)
    return folder / "x.arrow"


def parquet(**options: Any) -> Callable[[pa.Table, Path], Path]:
    def write(table: pa.Table, folder: Path) -> Path:
        pq.write_table(table, folder / "x.parquet", row_group_size=4, **options)
        return folder / "x.parquet"

    return write


def read_back(path: Path) -> pa.Table:
    if path.suffix == ".parquet":
        return pq.ParquetFile(path).read()
    source = pa.memory_map(str(path))
    try:
        return pa.ipc.open_file(source).read_all()
    except pa.ArrowInvalid:
        return pa.ipc.open_stream(pa.memory_map(str(path))).read_all()


CONTAINERS = {
    "file": (ipc("file"), 0),
    "stream": (ipc("stream"), 0),
    "lz4": (ipc("file", compression="lz4"), 0),
    "zstd": (zstd, 0),
    "sliced": (ipc("file"), 1),
    "parquet-1.0": (parquet(version="1.0"), 0),
    "parquet-2.4": (parquet(version="2.4", compression="zstd"), 0),
    "parquet-2.6": (parquet(version="2.6"), 0),
    "parquet-pages": (parquet(data_page_version="2.0", use_dictionary=False), 1),
}
"""Name -> writer, and how many rows are cut off before writing."""


Write = Callable[[pa.Table, Path], Path]


def survives(back: Any, array: Any) -> bool:
    """Whether pyarrow itself has the same values after reading what it wrote: not of dictionaries of dictionaries."""
    try:
        return bool(plain(back.to_pylist()) == plain(array.to_pylist()))
    except ValueError:  # times that need nanoseconds
        return bool(back.equals(pa.chunked_array([array])))


def writable(found: Sequence[Column], write: Write, cut: int, folder: Path) -> Iterator[Column]:
    """Yield the columns that pyarrow writes and reads back as they were; others are no business of a reader."""
    for column in found:
        array = column.array[cut:]
        try:
            back = read_back(write(pa.table({"c": array}), folder)).column(0)
            back.validate(full=True)
            if survives(back, array):
                yield Column(column.name, array, column.values[cut:])
        except (pa.ArrowException, OSError, NotImplementedError):
            continue


def cells(container: str, found: Sequence[Column], folder: Path) -> int:
    """Check the columns, several in a file, and return how many were checked."""
    write, cut = CONTAINERS[container]
    known = sorted(writable(found, write, cut, folder), key=lambda column: len(column.values))
    for _, columns_of in groupby(known, key=lambda column: len(column.values)):
        group = list(columns_of)
        table = pa.table([column.array for column in group], names=names_of(group))
        check_group(container, write(table, folder), group)
    return len(known)


def names_of(group: Sequence[Column]) -> list[str]:
    return [f"{number} {column.name}" for number, column in enumerate(group)]


def check_group(container: str, path: Path, group: Sequence[Column]) -> None:
    dataset = open_dataset(path)
    count = len(group[0].values)
    assert len(dataset) == count
    order = list(range(count))[::-1]
    one = [dataset[row] for row in range(count)]
    turned = dict(zip(order, dataset.read(order), strict=True))
    for row, sample in enumerate(dataset):
        for name, column in zip(names_of(group), group, strict=True):
            expected = plain(column.values[row])
            where = f"{container}, {column.name}, row {row}"
            assert plain(one[row][name]) == expected, where
            assert plain(turned[row][name]) == expected, where
            assert plain(sample[name]) == expected, where
            assert isinstance(sample.raw(name), bytes), where
    chosen = dataset.select(order)
    for name, column in zip(names_of(group), group, strict=True):
        assert plain([sample[name] for sample in chosen]) == plain(column.values[::-1]), f"{container}, {column.name}"
    table = chosen.to_arrow()
    for name, column in zip(names_of(group), group, strict=True):
        assert plain(values(table.column(name))) == plain(column.values[::-1]), f"{container}, {column.name}, to_arrow"


@pytest.mark.parametrize("container", CONTAINERS)
def test_cells_of_the_matrix(container: str, tmp_path: Path) -> None:
    found = [*columns(0), *columns(1, limit=SAMPLED * 2), *columns(2, limit=SAMPLED * 2)]
    part = found[list(CONTAINERS).index(container) :: len(CONTAINERS)]
    assert cells(container, part, tmp_path) >= 10


@pytest.mark.slow
@pytest.mark.parametrize("container", CONTAINERS)
def test_all_cells_of_the_matrix(container: str, tmp_path: Path) -> None:
    assert cells(container, columns(0), tmp_path) >= 40
    assert cells(container, columns(1), tmp_path) >= 300
    assert cells(container, columns(2, limit=1000), tmp_path) >= 100
