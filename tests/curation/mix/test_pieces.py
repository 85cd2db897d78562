"""One large output by several processes: the same bytes, counts and lineage as by one, and the same errors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.job import mix
from feedmill.curation.mix.shard import _Lines
from feedmill.errors import DataError

LINES = st.lists(st.binary(max_size=6).map(lambda line: line.replace(b"\n", b"") + b"\n"), max_size=12)


@given(LINES, st.lists(st.integers(1, 5), max_size=12), st.booleans(), st.integers(1, 20))
def test_lines_are_taken_whatever_the_chunks(rows: list[bytes], counts: list[int], ended: bool, size: int) -> None:
    if rows and not ended and rows[-1] != b"\n":
        rows = [*rows[:-1], rows[-1][:-1]]
    data, cut, chunks = b"".join(rows), 0, []
    while cut < len(data):  # whole lines, of at least this size
        end = data.find(b"\n", min(cut + size, len(data)) - 1) + 1 or len(data)
        chunks.append(data[cut:end])
        cut = end
    lines = _Lines(iter(chunks))
    for count in [*counts, 100]:
        assert lines.take(count) == b"".join(rows[:count])
        rows = rows[count:]


def write(root: Path, *, broken: int | None = None) -> dict[str, Any]:
    """Write two files of about two megabytes, one without an end of line, and two attribute sets."""
    for name in ("documents", "attributes/a", "attributes/b"):
        (root / name).mkdir(parents=True)
    for file in range(2):
        rows = range(4_000)
        texts = [f"Text {k} of {file}. " + "word " * (100 if k % 7 else 3) for k in rows]
        documents = [{"id": f"{file}-{k}", "text": texts[k], "source": "s", "metadata": {"n": k}} for k in rows]
        a = [{"id": f"{file}-{k}", "attributes": {"a": [[0, 4, (k % 10) / 10]]}} for k in rows]
        b = [{"id": f"{file}-{k}", "attributes": {"b": [[5, 6, 1.0]] * (k % 3)}} for k in rows]
        if broken is not None and file == 1:
            documents[broken] = {"id": f"1-{broken}", "text": 5, "source": "s", "metadata": {}}
        for name, table in (("documents", documents), ("attributes/a", a), ("attributes/b", b)):
            text = "\n".join(map(json.dumps, table)) + ("\n" if file else "")
            (root / name / f"{file}.jsonl").write_text(text)
    return {
        "name": "s",
        "documents": [f"{root}/documents/*"],
        "attributes": ["a", "b"],
        "filter": {"include": [], "exclude": ["$.attributes[?(@.a[0][2] > 0.7)]"]},
        "span_replacement": [{"span": "$.attributes.b", "min_score": 0.5, "replacement": "|||"}],
    }


def run(stream: dict[str, Any], out: Path, workers: int, **more: Any) -> tuple[dict[str, Any], dict[str, bytes]]:
    report = mix(read_config({"streams": [{**stream, "output": {"path": str(out / "out")}, **more}]}), workers=workers)
    found = {path.name: path.read_bytes() for path in sorted(out.rglob("*")) if path.is_file()}
    return report.streams[0].counts.as_dict(), {
        name: data.replace(str(out).encode(), b"") for name, data in found.items() if not name.endswith("json")
    }


@pytest.mark.parametrize("more", [pytest.param({}, marks=pytest.mark.slow), {"rate": 1.5}])
def test_several_processes_write_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, Any]
) -> None:
    stream = write(tmp_path / "in")
    counts, files = run(stream, tmp_path / "one", 1, **more)
    monkeypatch.setattr("feedmill.jobs.run.LARGE", 0)
    monkeypatch.setattr("feedmill.curation.mix.job.available_cores", lambda: 4)
    assert run(stream, tmp_path / "two", 2, **more) == (counts, files)
    assert counts["read"] == 8_000 and 0 < counts["kept"] < 8_000 and counts["replaced"]


def test_the_first_invalid_row_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = write(tmp_path / "in", broken=3_900)
    monkeypatch.setattr("feedmill.jobs.run.LARGE", 0)
    with pytest.raises(DataError, match=r"1\.jsonl 'line 3901'"):
        run(stream, tmp_path / "out", 2)
    assert not list((tmp_path / "out").rglob("*.gz"))
