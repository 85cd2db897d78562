"""An error in a function of the user: the user's frames and one sentence, without the loader's own code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.durations import slow_but

PROGRAM = """
import sys
import feedmill as fm

def helper(number):
    return 1 / number

def transform(sample):
    number = sample["json"]["n"]
    return {"n": number if number != 7 else helper(0)}

def collate(samples):
    raise KeyError("field")

class Encoder(fm.TaskEncoder):
    def select_samples_to_pack(self, samples):
        return [samples]
    def pack_selected_samples(self, samples):
        raise ValueError("cannot pack")

HOOKS = {
    "transform": {"transform": transform},
    "collate": {"collate": collate},
    "pack": {"task_encoder": Encoder(), "buffer": 8},
}

if __name__ == "__main__":
    workers = {"0": 0, "2": 2, "processes": fm.Workers(2, processes=True)}[sys.argv[3]]
    plan = fm.Plan.over(sys.argv[1], epochs=1)
    if sys.argv[3:] == ["0"] and sys.argv[2] == "mapped":
        list(map(plan.as_dataset(transform=transform).__getitem__, range(40)))
    for batch in fm.Loader(plan, 4, rank=0, world_size=1, workers=workers, **HOOKS[sys.argv[2]]):
        pass
"""
ERRORS = {
    "transform": ("return 1 / number", "ZeroDivisionError: division by zero", "feedmill.errors.DataError: "),
    "collate": ('raise KeyError("field")', "KeyError: 'field'", "feedmill.errors.DataError: "),
    "pack": ('raise ValueError("cannot pack")', "ValueError: cannot pack", "ValueError: cannot pack"),
    "mapped": ("return 1 / number", "ZeroDivisionError: division by zero", "feedmill.errors.DataError: "),
}


def stderr_of(folder: Path, *words: str, **environment: str) -> str:
    (folder / "data.jsonl").write_text("".join(f'{{"n": {number}}}\n' for number in range(40)))
    (folder / "train.py").write_text(PROGRAM)
    command = [sys.executable, "train.py", "data.jsonl", *words]
    ended: Any = subprocess.run(
        command, cwd=folder, env={**_environment(), **environment}, capture_output=True, text=True
    )
    assert ended.returncode == 1
    return str(ended.stderr)


def _environment() -> dict[str, str]:
    import os

    return {name: value for name, value in os.environ.items() if name != "FEEDMILL_DEBUG"}


KINDS = [(kind, workers) for kind in ("transform", "collate", "pack") for workers in ("0", "2", "processes")]


@pytest.mark.parametrize(
    ("kind", "workers"), slow_but(KINDS, ("transform", "processes"), ("collate", "2"), ("pack", "processes"))
)
def test_an_error_of_a_hook_shows_the_hook_and_not_the_loader(kind: str, workers: str, tmp_path: Path) -> None:
    text = stderr_of(tmp_path, kind, workers)
    code, raised, last = ERRORS[kind]
    lines = text.splitlines()
    assert code in text and raised in text, text
    assert any(line.startswith(last) for line in lines), "the class of the error is the same as ever"
    assert len(lines) <= 22, text
    own = [line for line in lines if "site-packages/feedmill" in line or "src/feedmill" in line]
    assert len(own) <= 1, text
    twice = kind == "pack" and workers == "processes"  # the class of the error, and the note with the frames
    assert text.count(raised) - text.count(f"failed with {raised}") <= 1 + twice, text


def test_an_error_of_a_mapped_dataset_is_as_short(tmp_path: Path) -> None:
    text = stderr_of(tmp_path, "mapped", "0")
    assert "return 1 / number" in text and len(text.splitlines()) <= 22


def test_all_frames_are_shown_for_debugging(tmp_path: Path) -> None:
    text = stderr_of(tmp_path, "transform", "2", FEEDMILL_DEBUG="1")
    assert text.count("feedmill/loading") > 5 and "return 1 / number" in text
