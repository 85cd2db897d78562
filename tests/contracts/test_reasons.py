"""The reason follows the cause: no whole file is called damaged, and every damaged one is refused or reported.

Both by rule, over every format: files of rare kinds that are whole (`helpers.rare`), and these damaged in many ways.
The default run takes a sample of each format, the same one each time.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import feedmill as fm
from feedmill.errors import FeedmillError
from feedmill.indexing.check import check
from feedmill.samples.decode import Decoder
from helpers.rare import Whole, archives, parts, rows, tokens
from helpers.rare.damage import Damaged, damaged

SOURCE = Path(fm.__file__).parent
BLAME = re.compile(r"(?i)cop(y|ied) .*\b(again|incomplete)|corrupt|damaged|truncat|broken|malicious|at fault|a defect")
MAKERS = (
    archives.npz,
    archives.tars,
    rows.jsonl,
    rows.documents,
    rows.mds,
    tokens.megatron,
    tokens.flat,
    tokens.pbin,
    tokens.ds,
    tokens.dolma,
    tokens.litdata,
    parts.images,
    parts.audio,
    parts.videos,
    parts.checkpoints,
    parts.arrays,
)
SAMPLED = 6
"""Of how many cases of a maker the default run takes one."""

pytestmark = pytest.mark.filterwarnings("ignore:Reading `.npy` or `.npz` file required additional header parsing")


def made(maker: Any) -> list[Whole]:
    return list(maker())


def cases() -> Iterator[Any]:
    for maker in MAKERS:
        for sampled in (True, False):
            marks = () if sampled else (pytest.mark.slow,)
            yield pytest.param(maker, sampled, marks=marks, id=f"{maker.__name__}{'' if sampled else '-all'}")


def taken(maker: Any, sampled: bool) -> list[Whole]:
    """All cases, or one of `SAMPLED` by its name; that of the refused kinds are all in the sample."""
    found = made(maker)
    if not sampled:
        return found
    return [case for case in found if case.rows is None or zlib.crc32(case.name.encode()) % SAMPLED == 0]


def values(case: Whole, path: Path) -> Any:
    """What is read."""
    if case.read == "part":
        return Decoder()(path.name, path.read_bytes())
    if case.read == "documents":
        return rows.read_documents(path)
    if case.name.startswith("tar/"):
        return [{name: sample.raw(name) for name in sample} for sample in fm.open(path, raw=True)]
    dataset = fm.open(path, seq_len=4) if case.read == "windows" else fm.open(path)
    names = ("input_ids",) if case.name.split("/")[0] in TOKENS else None
    return [{name: sample[name] for name in names or sample} for sample in dataset]


TOKENS = ("megatron", "npy", "llm.c", "pbin", "ds", "dolma", "litdata")


def same(found: Any, expected: Any) -> bool:
    if callable(expected):
        return bool(expected(found))
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(same(found[key], expected[key]) for key in expected)
    if isinstance(found, np.ndarray) or isinstance(expected, np.ndarray):
        return bool(np.array_equal(np.asarray(found), np.asarray(expected)))
    if isinstance(expected, list):
        return len(found) == len(expected) and all(map(same, found, expected))
    return bool(found == expected)


def findings(path: Path) -> list[FeedmillError]:
    try:
        return list(check(path, read_samples=True, progress=False).findings)
    except FeedmillError as error:
        return [error]


def faults(case: Whole, folder: Path) -> Iterator[str]:
    """What is wrong with how a whole file is read."""
    path = case.write(folder)
    refused = None
    try:
        found = values(case, path)
    except FeedmillError as error:
        refused = error
        if error.kind not in case.refused:
            yield f"refused as {error.kind}: {error}"
        if BLAME.search(str(error).replace(str(folder), "")):
            yield f"blamed: {error}"
    else:
        if case.rows is None or not same(found, case.rows):
            yield f"read as {str(found)[:200]}"
    if case.read != "open" or not case.check:  # `check` of windows needs an index of documents
        return
    said = findings(path)
    if bool(said) != (refused is not None) or any(each.kind not in case.refused for each in said):
        yield f"check says {[(each.kind, str(each)[:200]) for each in said]}"


@pytest.mark.parametrize(("maker", "sampled"), list(cases()))
def test_no_whole_file_is_called_damaged(maker: Any, sampled: bool, tmp_path: Path) -> None:
    wrong = []
    for number, case in enumerate(taken(maker, sampled)):
        folder = tmp_path / str(number)
        folder.mkdir()
        wrong += [f"{case.name}: {fault}" for fault in faults(case, folder)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_there_are_enough_whole_files() -> None:
    names = [case.name for maker in MAKERS for case in made(maker)]
    assert len(names) == len(set(names)) >= 200
    assert {name.split("/")[0] for name in names} == {"npz", "tar", "jsonl", "documents", "mds", "part", *TOKENS}


OF_WHOLE = (
    "no-samples",
    "other-compression",
    "other-format",
    "other-columns",
    "unsupported",
    "untrusted-code",
)
"""Kinds that are said of whole files."""
HARMLESS = 5
"""Damaged files that read as if they were whole: a decompressor does not look at every bit, such as the last one's."""


def missed(case: Damaged, folder: Path) -> Iterator[str]:
    """What is wrong with how a damaged file is refused or reported."""
    path = case.write(folder)
    refused = None
    try:
        found = values(case.whole, path)
        if case.whole.read == "part" and hasattr(found, "get_audio"):
            _ = found.get_video() if path.suffix in (".mp4", ".mov") else found.get_audio()
    except FeedmillError as error:
        refused = error
    said = findings(path) if case.whole.read == "open" else []
    if refused is None and not said:
        yield "harmless" if case.whole.rows is not None and same(found, case.whole.rows) else "not noticed"
        return
    if refused is not None and case.whole.read == "open" and not said:
        yield f"check does not report what is refused: {refused}"
    first = refused or said[0]
    if case.plain and first.kind in OF_WHOLE:
        yield f"another reason, {first.kind}: {first}"


@pytest.mark.parametrize("sampled", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_every_damaged_file_is_refused_or_reported(sampled: bool, tmp_path: Path) -> None:
    count, harmless, wrong = 0, list[str](), list[str]()
    for number, case in enumerate(damaged()):
        if sampled and zlib.crc32(case.name.encode()) % SAMPLED:
            continue
        count += 1
        folder = tmp_path / str(number)
        folder.mkdir()
        said = list(missed(case, folder))
        harmless += [case.name] * (said == ["harmless"])
        wrong += [f"{case.name}: {fault}" for fault in said if fault != "harmless"]
    assert not wrong, "\n".join(wrong)
    assert len(harmless) <= HARMLESS, harmless
    assert all("/flip-" in name for name in harmless) and count >= (60 if sampled else 200)


def test_one_place_says_that_a_file_must_be_copied_again() -> None:
    phrase = re.compile(r"[\"' ][Cc]opy (it|them|both|the \w+|all of them)\b[^\"']{0,30}\bagain")
    found = {
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if phrase.search(path.read_text()) and path.name not in ("reasons.py", "unreadable.py")
    }
    assert not found


def test_the_contract_can_fail(tmp_path: Path) -> None:
    """A file that is damaged, or holds something else, is no whole one of the expected rows."""
    whole = next(case for case in archives.npz() if case.name == "npz/dtype-<i4-stored")
    assert list(faults(whole, tmp_path)) == []
    path = tmp_path / "0.npz"

    def cut(folder: Path) -> Path:
        path.write_bytes(path.read_bytes()[:-30])
        return path

    said = list(faults(Whole(whole.name, cut, whole.rows), tmp_path))
    assert any(each.startswith("refused as bad-data") for each in said)
    assert any(each.startswith("blamed") for each in said) and any(each.startswith("check says") for each in said)
    assert any(each.startswith("read as") for each in faults(Whole("npz/x", whole.write, [{"x": 1}]), tmp_path))
