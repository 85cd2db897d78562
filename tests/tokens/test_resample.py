"""Sampling Dolma's token files by rate: what is taken, how it is distributed, and that rows keep their origins."""

from __future__ import annotations

import csv
import gzip
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.tokens.dolma import write_dolma
from feedmill.storage import LocalStore
from feedmill.tokens.verbs.resample import Source, resample

Row = tuple[str, str, str, bytes]


def write(folder: Path, name: str, documents: int, size: int = 4) -> None:
    chance = np.random.default_rng([*name.encode(), documents])
    lengths = chance.integers(0, 9, documents)
    folder.mkdir(parents=True, exist_ok=True)
    with write_dolma(LocalStore(folder), f"{name}.npy", f"<u{size}") as writer:
        tokens = chance.integers(0, 60_000, lengths.sum()).astype(f"<u{size}")
        writer.add(tokens, lengths, origins=[(f'{name}, "{k}"', f"{name}.gz", k + 1) for k in range(documents)])


def rows(folder: Path, size: int = 4) -> list[list[Row]]:
    """The documents of each file: id, src, loc and tokens."""
    found = []
    for path in sorted(folder.rglob("*.npy")):
        tokens = np.fromfile(path, f"<u{size}")
        with gzip.open(path.with_suffix(".csv.gz"), "rt", newline="") as file:
            table = list(csv.reader(file))
        assert int(table[-1][1]) == len(tokens)
        found.append([(i, s, n, tokens[int(a) : int(b)].tobytes()) for a, b, i, s, n in table])
    return found


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    for k in range(6):
        write(tmp_path / "wiki" / "ab"[k % 2], f"w{k}", 3 + k)
    for k in range(4):
        write(tmp_path / "books", f"b{k}", 5)
    return tmp_path


def test_rates_count_files_and_rows_keep_their_origins(sources: Path) -> None:
    out = sources / "out"
    given = [Source(str(sources / "wiki") + "/*", 2.5), Source(str(sources / "books"), 0.5)]
    report = resample(given, out, max_num_files=4)
    assert [(taken.files, taken.taken) for taken in report.sources] == [(6, 15), (4, 2)]
    written = [row for file in rows(out) for row in file]
    before = {row: file[0][1] for folder in ("wiki", "books") for file in rows(sources / folder) for row in file}
    assert set(written) <= set(before)
    times = Counter(src for src in {id(f): f[0][1] for f in rows(out)}.values())
    assert len(times) <= 4
    files = Counter(row[1] for file in rows(out) for row in file if row[2] == "1")
    assert sorted(n for src, n in files.items() if src[0] == "w") == [2, 2, 2, 3, 3, 3]
    assert [n for src, n in files.items() if src[0] == "b"] == [1, 1]
    assert report.documents == len(written) and sorted(os.listdir(out))[0] == "000000.csv.gz"


def test_a_file_is_in_an_output_once_at_most(sources: Path) -> None:
    resample([Source(str(sources / "books"), 3)], sources / "out", max_num_files=3)
    assert [sorted({row[1] for row in file}) for file in rows(sources / "out")] == [[f"b{k}.gz" for k in range(4)]] * 3
    assert all(len(file) == 20 for file in rows(sources / "out"))
    with pytest.raises(ConfigError, match="taken 3 times, but there are only 2"):
        resample([Source(str(sources / "books"), 3)], sources / "other", max_num_files=2)


def test_outputs_by_size_hold_every_file_before_repetitions(sources: Path) -> None:
    sizes = [path.stat().st_size for path in sorted((sources / "books").glob("*.npy"))]
    resample([Source(str(sources / "books"), 2)], sources / "out", max_size_bytes=sum(sizes[:2]))
    files = [[src for _, src, n, _ in file if n == "1"] for file in rows(sources / "out")]
    flat = [src for file in files for src in file]
    assert sorted(flat[:4]) == sorted(flat[4:]) == [f"b{k}.gz" for k in range(4)]
    assert all(path.stat().st_size <= max(sum(sizes[:2]), *sizes) for path in (sources / "out").glob("*.npy"))


@given(st.integers(0, 3))
def test_a_seed_decides_the_draws(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    work = tmp_path_factory.mktemp("seeds")
    for k in range(5):
        write(work / "in", f"f{k}", 2)
    for name, one in (("a", seed), ("b", seed), ("c", seed + 1)):
        resample([Source(str(work / "in"), 0.4)], work / name, max_num_files=2, seed=one)
    assert rows(work / "a") == rows(work / "b")
    assert sum(map(len, rows(work / "a"))) == 4


def test_a_run_is_repeated_only_if_asked(sources: Path) -> None:
    def run(**more: object) -> None:
        resample([Source(str(sources / "books"), 1)], sources / "out", max_num_files=2, **more)  # type: ignore[arg-type]

    run()
    before = rows(sources / "out")
    with pytest.raises(ConfigError, match="exists"):
        run()
    run(overwrite=True)
    assert rows(sources / "out") == before


def test_token_sizes_are_kept_and_not_mixed(sources: Path) -> None:
    write(sources / "small", "s0", 4, size=2)
    resample([Source(str(sources / "small"), 1)], sources / "out", max_num_files=1)
    assert rows(sources / "out", 2) == rows(sources / "small", 2)
    with pytest.raises(ConfigError, match="bytes per token"):
        resample([Source(str(sources / name), 1) for name in ("small", "books")], sources / "mixed", max_num_files=1)


@pytest.mark.parametrize(
    ("rate", "limits", "message"),
    [
        (1, {}, "exactly one"),
        (1, {"max_num_files": 1, "max_size_bytes": 1}, "exactly one"),
        (1, {"max_num_files": 0}, "at least 1"),
        (0, {"max_num_files": 1}, "not positive"),
        (float("nan"), {"max_num_files": 1}, "not positive"),
    ],
)
def test_invalid_options(sources: Path, rate: float, limits: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        resample([Source(str(sources / "books"), rate)], sources / "out", **limits)  # type: ignore[arg-type]


def test_missing_and_damaged_sources(sources: Path) -> None:
    (sources / "none").mkdir()
    with pytest.raises(NotFound, match=r"no '\.npy' files"):
        resample([Source(str(sources / "none"), 1)], sources / "out", max_num_files=1)
    (sources / "books/b0.npy").write_bytes(b"123")
    with pytest.raises(DataError, match="do not match"):
        resample([Source(str(sources / "books"), 1)], sources / "out", max_num_files=1)
    assert not list((sources / "out").glob("*.npy"))
