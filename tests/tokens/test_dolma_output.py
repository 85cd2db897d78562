from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from feedmill.documents.find import find_documents
from feedmill.formats.tokens.base import Form
from feedmill.jobs.engine import StageUnfinished
from feedmill.jobs.parts import PartEngine
from feedmill.storage import Store
from feedmill.tokens import outputs
from feedmill.tokens.dolma_output import GroupedOptions, GroupedReport, tokenize_grouped
from helpers.tokenizer_data import EOS, loaded, tokenizer_file, write_lines

GROUPS = 3


def run(folder: Path, sources: list[Path], **options: int) -> GroupedReport:
    settings = GroupedOptions(eos=loaded().require(EOS), workers=GROUPS, limit=300, unit_bytes=200, **options)
    return tokenize_grouped(find_documents(sources).files, str(folder), tokenizer_file("tok1k"), settings)


def written(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in (".npy", ".gz")}


@pytest.fixture
def sources(tmp_path: Path) -> list[Path]:
    rows = [[{"id": f"{n}-{m}", "text": f"text {m} " * (m % 7 + 1)} for m in range(10 + 9 * n)] for n in range(5)]
    return [write_lines(tmp_path / f"in/{n}.jsonl", group) for n, group in enumerate(rows)]


def test_a_file_that_is_named_twice_is_there_twice(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [{"id": str(n), "text": f"text {n}"} for n in range(30)])
    out = tmp_path / "out"
    options = GroupedOptions(eos=loaded().require(EOS), unit_bytes=200)
    report = tokenize_grouped(find_documents([source, source]).files, str(out), tokenizer_file("tok1k"), options)
    stored = sum(np.fromfile(path, "<u2").size for path in out.glob("*.npy"))
    assert (report.documents, report.tokens) == (60, stored)


def test_parts_of_a_job_array_write_groups(sources: list[Path], tmp_path: Path) -> None:
    calm = run(tmp_path / "calm", sources)
    stages = []
    for part in (2, 1, 2, 1):
        with PartEngine(part, 2), pytest.raises(StageUnfinished) as caught:
            run(tmp_path / "out", sources)
        stages.append((caught.value.stage, caught.value.finished))
    assert stages == [("tokenizing", 1), ("writing", 1), ("writing", 2), ("writing", 2)]
    assert len({path.name.split("-")[1] for path in (tmp_path / "out").glob("*.npy")}) == GROUPS
    with PartEngine(finish=True):
        report = run(tmp_path / "out", sources)
    assert (report.documents, report.tokens, report.parts) == (calm.documents, calm.tokens, calm.parts)
    assert written(tmp_path / "out") == written(tmp_path / "calm") and len(calm.parts) > GROUPS
    assert not list((tmp_path / "out").glob(".*"))


def test_finished_files_are_not_written_again(
    sources: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "calm", sources)
    write, paths, done = outputs.write_documents, list[str](), list[str]()

    def stops(store: Store, path: str, form: Form) -> object:
        paths.append(path)
        if len(paths) == 5 and not done:
            raise KeyboardInterrupt
        return write(store, path, form)

    monkeypatch.setattr(outputs, "write_documents", stops)
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path / "out", sources)
    (tmp_path / "out" / paths[1]).unlink()  # a user's doing
    done += paths[:4]
    paths.clear()
    run(tmp_path / "out", sources)
    calm = [path.name for path in sorted((tmp_path / "calm").glob("*.npy"))]
    assert paths == [path for path in calm if path == done[1] or path not in done]
    assert len({path.split("-")[1] for path in paths}) == GROUPS and written(tmp_path / "out") == written(
        tmp_path / "calm"
    )
