"""Extents of row groups: what pyarrow says column by column, and an error where the footer is damaged."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from feedmill.formats.columns import ParquetFile
from feedmill.formats.tables import footer as parquet_footer
from feedmill.formats.tables.unreadable import read_footer
from feedmill.storage import LocalStore

pyarrow = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def as_pyarrow_says(path: Path) -> list[list[int]]:
    metadata = pq.ParquetFile(path).metadata
    out = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        columns = [group.column(n) for n in range(group.num_columns)]
        starts = [min(c.data_page_offset, c.dictionary_page_offset or c.data_page_offset) for c in columns]
        end = max(start + c.total_compressed_size for start, c in zip(starts, columns, strict=True))
        out.append([min(starts), end - min(starts)])
    return out


@pytest.mark.parametrize("columns", [1, 3, 40])
@pytest.mark.parametrize("options", [{}, {"use_dictionary": False, "compression": "none"}, {"write_page_index": True}])
def test_as_pyarrow_says(columns: int, options: dict[str, object], tmp_path: Path) -> None:
    rows = {f"c{n}": [f"text {k % 7}" if n % 2 else k for k in range(500)] for n in range(columns)}
    table = pyarrow.table(
        {**rows, "list": [[k, k + 1] for k in range(500)], "struct": [{"a": {"b": k}} for k in range(500)]}
    )
    pq.write_table(table, tmp_path / "x.parquet", row_group_size=120, **options)
    file = ParquetFile(LocalStore(tmp_path), "x.parquet")
    assert file.extents.tolist() == as_pyarrow_says(tmp_path / "x.parquet") and len(file.extents) == 5


def test_a_damaged_footer_is_refused(tmp_path: Path) -> None:
    pq.write_table(pyarrow.table({"a": list(range(99)), "b": ["x"] * 99}), tmp_path / "x.parquet", row_group_size=20)
    footer = read_footer(LocalStore(tmp_path), "x.parquet")
    whole, dice = parquet_footer.extents(footer), random.Random(5)
    assert whole.shape == (5, 2)
    refused = 0
    for _ in range(2000):
        damaged = bytearray(footer)
        for _ in range(dice.randint(1, 4)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        try:
            parquet_footer.extents(bytes(damaged[: dice.randint(1, len(damaged))]))
        except ValueError:
            refused += 1
    assert refused > 500
    for deep in (b"\x1c" * 999, b"\x19\x1c" * 999, b"\x19\xfc" + b"\xff" * 9, b"\x16" + b"\x80" * 99, b""):
        with pytest.raises(ValueError, match="footer"):
            parquet_footer.extents(deep)


def test_sizes_of_levels_that_are_damaged_end_no_process(tmp_path: Path) -> None:
    """pyarrow throws where it is asked for such a column, and nobody catches that."""
    pq.write_table(pyarrow.table({"list": [[1, 2], [3], []] * 50, "text": ["x"] * 150}), tmp_path / "x.parquet")
    data = (tmp_path / "x.parquet").read_bytes()
    dice, opened = random.Random(2), 0
    length = int.from_bytes(data[-8:-4], "little")
    for number in range(300):
        damaged = bytearray(data)
        damaged[len(data) - 8 - dice.randrange(1, length)] ^= 1 << dice.randrange(8)
        (tmp_path / f"{number}.parquet").write_bytes(damaged)
        try:
            file = ParquetFile(LocalStore(tmp_path), f"{number}.parquet")
            file.extents, file.read(0)
        except Exception:
            continue
        opened += 1
    assert opened
