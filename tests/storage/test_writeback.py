"""Files that are on their way to the disk while they are being written."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.storage import open_store, staging
from feedmill.storage.staging import WriteBehind
from feedmill.tokens.outputs import plan_outputs, write_documents


def test_the_system_is_asked_for_each_step_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(staging, "start_writing", lambda _, offset, size: asked.append((offset, size)))
    monkeypatch.setattr(staging, "STEP", 100)
    with WriteBehind(tmp_path / "x", "w") as f:
        for size in (60, 60, 99, 1, 250, 30):
            assert f.write(bytes(size)) == size
    assert asked == [(0, 120), (120, 100), (220, 250)]
    assert (tmp_path / "x").stat().st_size == 500


@pytest.mark.parametrize("there", [True, False])
def test_a_large_file_is_what_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, there: bool) -> None:
    monkeypatch.setattr(staging, "STEP", 1 << 16)
    if not there:
        monkeypatch.setattr(staging, "_sync_file_range", lambda: None)
    data = bytes(range(256)) * 4000
    with open_store(str(tmp_path)).write("x") as f:
        f.write(b"head")
        f.write(data)
        f.seek(0)
        f.write(b"HEAD")
        f.seek(0, io.SEEK_END)
        f.write(b"tail")
    assert (tmp_path / "x").read_bytes() == b"HEAD" + data + b"tail"


@pytest.mark.parametrize("format", ["pbin", "ds", "megatron", "dolma"])
def test_tokens_are_stored_while_they_are_written(format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    monkeypatch.setattr(staging, "start_writing", lambda _, offset, size: asked.append(size))
    monkeypatch.setattr(staging, "STEP", 1 << 16)
    options: dict[str, Any] = {"vocab_size": 60000, "base_vocab_size": 60000, "largest": 0, "token_size": None}
    (out,) = plan_outputs(str(tmp_path / "x"), [format], **options)
    with write_documents(out.store, out.path, out.form("", loss=False)) as writer:
        for _ in range(4):
            writer.add(np.zeros(50_000, out.dtype), np.asarray([50_000]), None)
    assert 300_000 < sum(asked) <= sum(path.stat().st_size for path in tmp_path.iterdir())


def test_linux_offers_the_call(tmp_path: Path) -> None:
    call = staging._sync_file_range()
    if call is None:
        pytest.skip("this system has no sync_file_range")
    with WriteBehind(tmp_path / "x", "w") as f:
        f.write(b"x" * 5000)
        assert call(f.fileno(), 0, 5000, 2) == 0
