"""Near-duplicates by embeddings: the same marks as comparing all pairs of a cluster one by one, in any memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.embed import embed
from feedmill.curation.near import kmeans, meaning
from feedmill.errors import ConfigError, FeedmillError, NotFound
from feedmill.jobs.parts import PartEngine
from helpers.document_datasets import contents, document, read_json, write_documents

MODEL = str(Path(__file__).parents[2] / "golden/models/static")
pytest.importorskip("tokenizers")
pytest.importorskip("safetensors")
WORDS = [
    "the",
    "a",
    "cat",
    "dog",
    "sat",
    "on",
    "mat",
    "and",
    "it",
    "was",
    "happy",
    "soup",
    "rain",
    "news",
    "of",
    "today",
]


def vectors(count: int, d: int = 24, seed: int = 1) -> np.ndarray:
    """Vectors of which a third are near copies of others, and some equal ones."""
    rng = np.random.default_rng(seed)
    made = rng.standard_normal((count, d))
    for k in range(1, count):
        if rng.random() < 0.4:
            made[k] = made[rng.integers(0, k)] + rng.standard_normal(d) * rng.choice([0, 0.1, 0.25, 0.4])
    return kmeans.unit(made)


def one_by_one(values: np.ndarray, order: Any, threshold: float) -> dict[int, int]:
    """The first kept vector that each removed one is similar to."""
    kept, found = list[int](), dict[int, int]()
    for k in order:
        witness = next((j for j in kept if kmeans.exact(values[[k]], values[[j]])[0] >= threshold), None)
        if witness is None:
            kept.append(k)
        else:
            found[k] = witness
    return found


def joined(values: np.ndarray, order: Any, threshold: float) -> dict[int, int]:
    """The first vector of those that similar pairs connect, for each other one."""
    root = {k: k for k in order}
    for at, k in enumerate(order):
        for j in order[:at]:
            if root[k] != root[j] and kmeans.exact(values[[k]], values[[j]])[0] >= threshold:
                old = {root[k], root[j]}
                first = min(old, key=list(order).index)
                root |= {m: first for m, r in root.items() if r in old}
    return {k: r for k, r in root.items() if k != r}


@pytest.mark.parametrize("threshold", [0.8, 0.95, 1.0 - 1e-9])
def test_connecting_equals_joining_one_by_one(threshold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    values = vectors(120)
    for block, chunk, margin in ((512, 8192, 1e-4), (16, 25, 1e-4), (16, 25, 2.5)):  # all pairs are close, or few
        monkeypatch.setattr(kmeans, "BLOCK", block)
        monkeypatch.setattr(kmeans, "_CHUNK", chunk)
        monkeypatch.setattr(kmeans, "MARGIN", margin)
        witness, similarity, pairs = kmeans.connect(120, values.__getitem__, threshold, lambda: None)
        found = {k: int(w) for k, w in enumerate(witness) if w != k}
        assert found == joined(values, range(120), threshold) and found
        assert all(similarity[k] == kmeans.exact(values[[k]], values[[w]])[0] for k, w in found.items())
        assert pairs == 120 * 119 // 2


@pytest.mark.parametrize("threshold", [0.8, 0.95, 1.0 - 1e-9])
def test_covering_equals_comparing_one_by_one(threshold: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kmeans, "BLOCK", 32)
    monkeypatch.setattr(kmeans, "_CHUNK", 50)
    values = vectors(300)
    witness, similarity, pairs = kmeans.cover(300, values.__getitem__, threshold, lambda: None)
    found = {k: int(w) for k, w in enumerate(witness) if w != k}
    assert found == one_by_one(values, range(300), threshold) and found
    assert all(similarity[k] == kmeans.exact(values[[k]], values[[w]])[0] for k, w in found.items())
    assert 0 < pairs <= 300 * 299 // 2


def test_the_nearest_center_does_not_depend_on_the_block(monkeypatch: pytest.MonkeyPatch) -> None:
    values = vectors(500)
    centers = kmeans.centers_of(values, 20)
    centers[7] = centers[3]  # a tie goes to the first
    whole = kmeans.nearest(values, centers)
    assert 7 not in whole and len(np.unique(whole)) > 10
    wide = values.astype(np.float64) @ centers.astype(np.float64).T
    assert (wide[np.arange(500), whole] >= wide.max(axis=1) - 1e-12).all()
    monkeypatch.setattr(kmeans, "_PRODUCTS", 1)
    assert np.array_equal(kmeans.nearest(values, centers), whole)


def texts(count: int, seed: int) -> list[str]:
    rng = np.random.default_rng(seed)
    return [" ".join(WORDS[k] for k in rng.integers(0, len(WORDS), rng.integers(1, 9))) for _ in range(count)]


@pytest.fixture
def web(tmp_path: Path) -> Path:
    for part in range(3):
        rows = [document(100 * part + k, text) for k, text in enumerate(texts(60, part))]
        rows[7] = document(100 * part + 7, "zzz")
        write_documents(tmp_path / f"web/documents/{part}.jsonl{'.gz' * (part == 1)}", rows)
    embed([f"{tmp_path}/web/documents"], model=MODEL, name="e", progress=False)
    return tmp_path / "web"


def near(web: Path, **options: Any) -> Any:
    given = {"threshold": 0.9, "near": True, "by": "embeddings", "embeddings": "e", "progress": False, **options}
    return dedupe([f"{web}/documents"], **given)


def marks(web: Path, name: str = "dup_meaning") -> list[Any]:
    return [row for path in sorted((web / "attributes" / name).iterdir()) for row in read_json(path)]


@pytest.mark.parametrize(
    ("clusters", "keep", "removal"),
    [(0, "first", "covered"), (5, "first", "covered"), (5, "longest", "covered"), (5, "longest", "connected")],
)
def test_marks_equal_brute_force_within_clusters(
    web: Path, clusters: int, keep: str, removal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(meaning, "GROUP", 40)
    report = near(web, clusters=clusters, keep=keep, removal=removal)
    files = sorted((web / "embeddings/e").iterdir())
    values = kmeans.unit(np.concatenate([np.load(path) for path in files]))
    rows = [row for path in sorted((web / "documents").iterdir()) for row in read_json(path)]
    labels = np.zeros(len(rows), int)
    if clusters:
        order = np.random.default_rng(5).permutation(len(rows))[: kmeans.SAMPLE * clusters]
        sample = values[order]
        labels = kmeans.nearest(values, kmeans.centers_of(sample[sample.any(axis=1)], clusters))
    wanted = dict[int, int]()
    for label in np.unique(labels).tolist():
        own = [k for k in range(len(rows)) if labels[k] == label and values[k].any()]
        own.sort(key=lambda k: (-len(rows[k]["text"]) if keep == "longest" else 0, k))
        wanted |= (joined if removal == "connected" else one_by_one)(values, own, 0.9)
    found = {
        k: next(j for j, other in enumerate(rows) if other["id"] == row["duplicate_of"])
        for k, row in enumerate(marks(web))
        if "duplicate_of" in row
    }
    assert found == wanted and report.duplicates == len(wanted) > 20
    below = 0
    for k, row in enumerate(marks(web)):
        assert row["id"] == rows[k]["id"]
        assert (row["attributes"]["dup_meaning"] == [[0, len(rows[k]["text"]), 1]]) == (k in wanted)
        if k in wanted:
            assert row["similarity"] == kmeans.exact(values[[k]], values[[wanted[k]]])[0]
            below += row["similarity"] < 0.9
            assert row["attributes"]["dup_meaning_cluster"] == [[0, len(rows[k]["text"]), wanted[k]]]
    assert report.uncovered == below and bool(below) == (removal == "connected") == bool(report.warnings)
    assert (report.documents, report.empty, report.clusters) == (180, 3, len(set(wanted.values())))
    assert sum(int(size) * times for size, times in report.sizes.items()) == len(wanted) + report.clusters
    assert report.largest[0]["documents"] == max(map(int, report.sizes))


def test_the_result_does_not_depend_on_workers_or_memory(web: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near(web, clusters=4, workers=1)
    once = contents(web / "attributes/dup_meaning")
    monkeypatch.setattr(meaning, "_step", lambda _: 7)
    monkeypatch.setattr(meaning, "_rows", lambda job, numbers: lambda places: job.rows(numbers[places]))
    near(web, clusters=4, workers=3, name="other")
    assert {
        name: data.replace(b"other", b"dup_meaning") for name, data in contents(web / "attributes/other").items()
    } == once
    assert near(web, clusters=4).skipped


def test_a_killed_run_is_finished(web: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    near(web, clusters=4, name="whole")
    real, calls = meaning.finish, list[int]()

    def killed(task: Any) -> Any:
        calls.append(task.number)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(task)

    monkeypatch.setattr(meaning, "finish", killed)
    with pytest.raises(KeyboardInterrupt):
        near(web, clusters=4, name="part", workers=1)
    monkeypatch.setattr(meaning, "finish", real)
    monkeypatch.setattr(kmeans, "centers_of", None)  # what is finished is not done again
    near(web, clusters=4, name="part", workers=1)
    assert {n: d.replace(b"part", b"whole") for n, d in contents(web / "attributes/part").items()} == contents(
        web / "attributes/whole"
    )
    assert not list((web / "attributes").rglob("*work*"))


def test_thresholds_and_defaults(web: Path) -> None:
    first = near(web, threshold=[0.8, 0.99])
    assert first.name == "dup_meaning_0_8" and first.others[0].duplicates < first.duplicates
    assert near(web, threshold=0.8, name="a").duplicates == first.duplicates
    assert near(web, threshold=None, name="b").duplicates == near(web, threshold=0.95, name="c").duplicates
    with pytest.raises(ConfigError, match="one threshold at a time"), PartEngine(1, 2):
        near(web, threshold=[0.7, 0.9])


def test_what_does_not_fit_is_refused(web: Path, tmp_path: Path) -> None:
    for options, wanted in (
        ({"embeddings": None}, "requires --embeddings"),
        ({"by": "words"}, "requires --by embeddings"),
        ({"ngram": 3}, "--ngram cannot be combined"),
        ({"signatures": "s"}, "--signatures cannot be combined"),
        ({"clusters": -1}, "below 0"),
    ):
        with pytest.raises(ConfigError, match=wanted):
            near(web, **options)
    with pytest.raises(NotFound, match="has no embeddings"):
        near(web, embeddings="none")
    embed([f"{web}/documents/0.jsonl"], model=f"{MODEL},tokens=3", name="e", progress=False)
    with pytest.raises(FeedmillError, match="different models or settings"):
        near(web)
    embed([f"{web}/documents"], model=MODEL, name="e", progress=False)
    write_documents(web / "documents/2.jsonl", [document(9, "other")])
    with pytest.raises(ConfigError, match="have changed since"):
        near(web)


def test_vectors_in_a_folder_of_ones_own_and_equal_documents(tmp_path: Path) -> None:
    write_documents(tmp_path / "documents/0.jsonl", [])
    write_documents(tmp_path / "documents/a.jsonl", [document(k, "the cat") for k in range(1200)])
    embed([f"{tmp_path}/documents"], model=MODEL, output=f"{tmp_path}/v", progress=False)
    report = near(tmp_path, embeddings=f"{tmp_path}/v", clusters=3)
    assert (tmp_path / "attributes/dup_meaning/0.jsonl").read_text() == ""
    assert (report.duplicates, report.clusters, report.lowest) == (1199, 1, pytest.approx(1))
    assert json.loads(json.dumps(report.as_dict()))["sizes"] == {"1200": 1}
