"""The sidecar: found again, whole or not there, fixed when damaged, and shared by processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.errors import StorageError
from feedmill.planning.packing import best_fit as packing
from feedmill.planning.packing import segments
from feedmill.planning.packing.options import Packing
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.packing.segments import load
from feedmill.planning.plan import Plan
from helpers.token_dataset import Tokenized

SIZES = np.random.default_rng(0).integers(0, 60, 200)
HOW = Packing(32, buffer=50)


def plan(folder: Path, how: Packing = HOW) -> PackedPlan:
    return PackedPlan(Plan.over(Tokenized("docs", SIZES), epochs=1), how, folder)


def everything(made: PackedPlan) -> np.ndarray:
    spans = made.spans(range(len(made)))
    return np.stack([spans.position, spans.start, spans.length])


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.pack"))


@pytest.fixture
def planned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the buffers that are packed."""
    numbers: list[int] = []
    real = packing.best_fit_decreasing

    def counting(sizes: np.ndarray, *others: Any) -> tuple[np.ndarray, int]:
        numbers.append(len(sizes))
        return real(sizes, *others)

    monkeypatch.setattr(packing, "best_fit_decreasing", counting)
    return numbers


def test_a_second_run_plans_nothing(tmp_path: Path, planned: list[int]) -> None:
    first = everything(plan(tmp_path))
    assert len(planned) == 4 and len(files(tmp_path)) == 4
    assert np.array_equal(everything(plan(tmp_path)), first)
    assert len(planned) == 4
    everything(plan(tmp_path, Packing(32, buffer=50, pad=7, rows=9)))  # what does not decide the packing
    assert len(planned) == 4
    everything(plan(tmp_path, Packing(33, buffer=50)))
    assert len(planned) == 8


def test_windows_of_any_width_share_their_sums(tmp_path: Path) -> None:
    for seq_len in (8, 16, 100):
        everything(plan(tmp_path, Packing(seq_len, "concat", overlap=seq_len == 16)))
    assert len(files(tmp_path)) == 1 and files(tmp_path)[0].stat().st_size < 200


@pytest.mark.parametrize("damage", ["cut", "flip body", "flip head", "empty", "gone", "other", "magic"])
def test_damaged_files_are_planned_again(tmp_path: Path, damage: str) -> None:
    expected = everything(plan(tmp_path))
    second = files(tmp_path)[1]
    good = second.read_bytes()
    flipped = bytearray(good)
    flipped[{"flip head": 60, "magic": 3}.get(damage, len(good) - 2)] ^= 4
    if damage == "gone":
        second.unlink()
    elif damage == "other":
        second.write_bytes(files(tmp_path)[2].read_bytes())
    else:
        second.write_bytes({"cut": good[:-8], "empty": b""}.get(damage, bytes(flipped)))
    assert np.array_equal(everything(plan(tmp_path)), expected)
    assert second.read_bytes() == good


def test_files_that_vanish_under_an_open_plan_come_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segments, "_KEPT_OPEN", 1)
    made = plan(tmp_path)
    expected = everything(made)
    for file in files(tmp_path):
        file.unlink()
    assert np.array_equal(everything(made), expected)


def _die_while_writing(folder: Path, after: int) -> None:
    real, written = segments.publish, []

    def publish(temporary: str, final: str) -> None:
        if len(written) == after:
            os.kill(os.getpid(), signal.SIGKILL)
        written.append(final)
        real(temporary, final)

    segments.publish = publish  # type: ignore[assignment]
    everything(plan(folder))


@pytest.mark.parametrize("after", [0, 2])
def test_a_kill_at_any_moment_does_no_harm(tmp_path: Path, after: int, planned: list[int]) -> None:
    process = multiprocessing.get_context("fork").Process(target=_die_while_writing, args=(tmp_path, after))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL and len(files(tmp_path)) == after
    rest = everything(plan(tmp_path))
    assert len(planned) == 4 - after  # finished buffers are not packed again
    assert np.array_equal(rest, everything(plan(tmp_path / "fresh")))


def _several(folder: Path, results: multiprocessing.Queue) -> None:
    results.put(everything(plan(folder)))


def test_processes_that_ask_at_once_agree(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    results = context.Queue()
    processes = [context.Process(target=_several, args=(tmp_path, results)) for _ in range(4)]
    for process in processes:
        process.start()
    answers = [results.get(timeout=240) for _ in processes]
    for process in processes:
        process.join()
    assert all(np.array_equal(answer, answers[0]) for answer in answers)
    assert len(files(tmp_path)) == 4 and not [f for f in tmp_path.rglob("*") if f.name.endswith("-tmp")]


def test_the_file_is_as_its_page_says(tmp_path: Path) -> None:
    made = plan(tmp_path)
    everything(made)
    data = files(tmp_path)[0].read_bytes()
    assert data[:8] == b"FMPACK01"
    number, documents, first, units, tokens, left_out, wide, narrow = np.frombuffer(data, "<i8", 8, 24).tolist()
    assert (number, documents, first, left_out) == (0, 50, 0, 0) and wide == units + 1
    begins = np.frombuffer(data, "<i8", wide, 88)
    document, piece, length = np.frombuffer(data, "<i4", narrow, 88 + 8 * wide).reshape(3, -1)
    assert begins[0] == 0 and begins[-1] == len(document) and length.sum() == tokens
    spans = made.spans(range(units))
    assert np.array_equal(spans.position, document) and np.array_equal(spans.start, 32 * piece.astype(int))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "packing").write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="FEEDMILL_CACHE_DIR"):
        len(plan(tmp_path))


def test_what_is_no_segment_is_none(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"FMPACK01" + bytes(200))
    assert load(tmp_path / "x") is None and load(tmp_path / "y") is None and load(tmp_path) is None
