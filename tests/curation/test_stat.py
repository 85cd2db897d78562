from __future__ import annotations

import gzip
import json
import statistics
from pathlib import Path
from typing import Any

import pytest

from feedmill.curation.stat import MOST_SOURCES, OTHERS, Stats, stat
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.formats.documents import write_rows
from feedmill.storage import open_store
from helpers.document_datasets import DEEP
from helpers.dolma_golden import DOLMA


def write(path: Path, rows: list[Any]) -> Path:
    lines = [row if isinstance(row, bytes) else json.dumps(row, ensure_ascii=False).encode() for row in rows]
    with write_rows(open_store(path.parent), path.name) as append:
        append(lines)
    return path


def rows_of(pattern: str) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for path in sorted(DOLMA.glob(pattern))
        for line in gzip.decompress(path.read_bytes()).decode().split("\n")
        if line
    ]


def test_documents_by_hand() -> None:
    documents = rows_of("data/documents/**/*.gz")
    report = stat([str(DOLMA / "data/documents")], workers=1)
    texts = [row["text"] for row in documents]
    assert (report.stats.documents, report.files) == (len(texts), 4)
    for name, want in (
        ("characters", [len(text) for text in texts]),
        ("bytes", [len(text.encode()) for text in texts]),
        ("words", [len(text.split()) for text in texts]),
    ):
        found = getattr(report.stats, name)
        assert (found.total, found.low, found.high) == (sum(want), min(want), max(want))
        assert found.quantiles([0.5]) == [statistics.median_low(want)]
    sources = [row.get("source", "") for row in documents]
    assert report.stats.sources == {source: sources.count(source) for source in set(sources)}


def test_attributes_by_hand() -> None:
    rows = rows_of("data/attributes/exp-1/**/*.gz")
    report = stat([str(DOLMA / "data/attributes/exp-1/**/*.gz")], workers=1)
    names = {name for row in rows for name in row["attributes"]}
    assert set(report.stats.attributes) == names
    for name in names:
        values = [row["attributes"][name] for row in rows if name in row["attributes"]]
        spans = [span for value in values for span in value]
        found = report.stats.attributes[name]
        assert (found.rows, found.spans, found.empty) == (len(values), len(spans), values.count([]))
        assert found.score.count == found.length.count == len(spans)
        assert found.length.total == sum(end - start for start, end, _ in spans)
        assert found.score.total == pytest.approx(sum(score for _, _, score in spans))
        assert found.score.high == max((score for _, _, score in spans), default=0)


def test_a_large_file_is_cut_over_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.curation.measure._SMALL", 0)
    monkeypatch.setattr("feedmill.jobs.run.LARGE", 1000)
    rows: list[Any] = [
        {"id": str(n), "text": f"word {n} " * (n % 50), "source": f"s{n % 1500}", "attributes": {"a": [[0, n, n / 7]]}}
        for n in range(12000)
    ]
    write(tmp_path / "small.jsonl", rows[:5])
    write(tmp_path / "large.jsonl.gz", rows)
    found = []
    for processes in (1, 3):
        report = stat([str(tmp_path)], workers=processes).as_dict(9)
        found.append({**report, "seconds": 0})
    assert found[0] == found[1] and found[0]["rows"] == 12005
    write(tmp_path / "large.jsonl.gz", [*rows[:9000], b"{}", *rows])
    for processes in (1, 3):
        with pytest.raises(DataError, match="line 9001"):
            stat([str(tmp_path)], workers=processes)
        assert len(stat([str(tmp_path)], workers=processes, on_error="skip").failed) == 1


def test_processes_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feedmill.curation.measure._SMALL", 0)
    found = []
    for processes in (1, 3):
        report = stat([str(DOLMA / "data/documents"), str(DOLMA / "data/attributes")], workers=processes)
        found.append({**report.as_dict(bins=10), "seconds": 0})
    assert found[0] == found[1]


def test_documents_with_attributes_numbers_and_a_choice(tmp_path: Path) -> None:
    write(
        tmp_path / "a.jsonl.zst",
        [
            {"id": 1, "text": "a b", "attributes": {"toxicity": 0.5, "spans": [[0, 1, 1.0], [1, 3, 0]]}},
            {"id": 2, "attributes": {"toxicity": 1, "spans": [], "other": []}},
        ],
    )
    stats = stat([str(tmp_path / "a.jsonl.zst")], attributes="^(tox|sp)").stats
    assert (stats.rows, stats.documents, sorted(stats.attributes)) == (2, 1, ["spans", "toxicity"])
    toxicity, spans = stats.attributes["toxicity"], stats.attributes["spans"]
    assert (toxicity.rows, toxicity.numbers, toxicity.spans, toxicity.score.total) == (2, 2, 0, 1.5)
    assert (spans.rows, spans.empty, spans.spans, spans.length.total) == (2, 1, 2, 3)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"", "blank"),
        (b'{"id": 1, "text": "\\ud800"}', "lone surrogate"),
        (b'{"id": 1, "text": "a', "not a row"),
        (b'{"text": "a"}', "id"),
        (b'{"id": 1}', "neither 'text' nor"),
        (b'{"id": 1, "attributes": {"x": "high"}}', "attribute 'x'"),
        (b'{"id": 1, "attributes": {"x": [[1, 2]]}}', "attribute 'x'"),
        (b'{"id": 1, "attributes": {"x": [[5, 2, 0.5]]}}', "from 5 to 2"),
        (b'{"id": 1, "attributes": {"x": [[-5, 2, 0.5]]}}', "from -5 to 2"),
        (b'{"id": 1, "text": "\xff"}', "not a row"),
        (b'{"id": 1, "attributes": {"x": [[0, 9223372036854775808, 1]]}}', "from 0 to 9223372036854775808"),
        (b'{"id": 1, "attributes": {"x": [[0, 1%b, 0.5]]}}' % (b"0" * 400), "too large"),
        (b'{"id": 1, "attributes": {"x": 1%b}}' % (b"0" * 400), "too large"),
        (b'{"id": 1, "text": "a", "x": %b%b}' % (b"[" * DEEP, b"]" * DEEP), "nested too deeply"),
    ],
)
def test_bad_rows(line: bytes, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good = {"id": 1, "text": "x", "attributes": {"x": [[0, 1, 0.5]]}}
    bad = write(tmp_path / "bad.jsonl", [good, {"id": 0, "text": "y"}, good, line, good])
    write(tmp_path / "good.jsonl", [good])
    with pytest.raises(DataError, match=message) as caught:
        stat([str(tmp_path / "*.jsonl")], workers=1)
    assert caught.value.file == str(bad) and caught.value.record == "line 4"
    monkeypatch.setattr("feedmill.curation.measure._SMALL", 0)
    report = stat([str(tmp_path / "*.jsonl")], on_error="skip")
    assert (report.files, report.stats.rows, len(report.failed)) == (1, 1, 1)


def test_numbers_as_far_apart_as_can_be(tmp_path: Path) -> None:
    spans = [[0, 1, -1.7e308], [0, 1, 1.7e308], [0, 1, 1.7e308]]
    write(tmp_path / "x.jsonl", [{"id": 1, "attributes": {"x": spans}}])
    score = stat([str(tmp_path)], workers=1).as_dict(bins=4)["histograms"]["x score"]
    assert score["counts"] == [1, 0, 0, 2] and score["edges"][2] == 0


def test_cut_files(tmp_path: Path) -> None:
    data = gzip.compress(b'{"id": 1, "text": "words"}\n' * 10_000)
    (tmp_path / "a.jsonl.gz").write_bytes(data[:-50])
    with pytest.raises(DataError, match=r"a\.jsonl\.gz"):
        stat([str(tmp_path)], workers=1)


def test_options(tmp_path: Path) -> None:
    write(tmp_path / "a.jsonl", [{"id": 1, "text": "x"}])
    with pytest.raises(NotFound):
        stat([str(tmp_path / "*.gz")])
    with pytest.raises(ConfigError, match="regular expression"):
        stat([str(tmp_path)], attributes="(")
    with pytest.raises(ConfigError, match="policy"):
        stat([str(tmp_path)], on_error="ignore")


def test_many_sources_are_bounded() -> None:
    stats = Stats()
    for number in range(2 * MOST_SOURCES):
        stats._count(str(number), 1)
    assert len(stats.sources) == MOST_SOURCES + 1 and stats.sources[OTHERS] == MOST_SOURCES


def test_object_stores(s3_bucket: str) -> None:
    data = gzip.compress(b'{"id": 1, "text": "a b"}\n{"id": 2, "attributes": {"x": [[0, 1, 2.0]]}}\n')
    open_store(s3_bucket).write_bytes("documents/a/0.jsonl.gz", data)
    report = stat([f"{s3_bucket}/documents/**/*.gz"], workers=1)
    assert report.stats.documents == 1 and report.stats.attributes["x"].score.total == 2
