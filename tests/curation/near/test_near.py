"""Near-duplicates: beside brute force, on any number of processes, in any order, one dump after another."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.near import adding, covering, graph, join, keys, sketch, stars
from feedmill.curation.near.options import NearReport, chosen_bands, found_share
from feedmill.errors import ConfigError
from feedmill.jobs import memory
from feedmill.jobs.engine import StageUnfinished
from feedmill.jobs.parts import PartEngine
from helpers.durations import slow_but
from helpers.near_copies import (
    brute_force,
    clusters,
    covered,
    make_chains,
    make_texts,
    marked,
    read_attributes,
    write_documents,
)

SURE = {"bands": 150, "rows": 1}
"""Bands with which a pair of similar documents is missed once in 10^90 times."""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def find(*patterns: str, signatures: str | None = None, workers: int = 1, **options: Any) -> NearReport:
    options = {"signatures": signatures, "workers": workers, "progress": False, **options}
    return dedupe(patterns or ["documents"], near=True, **options)


def outputs(root: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted((root / "attributes").rglob("*.jsonl*"))}


def split(texts: list[str], parts: int) -> dict[str, list[str]]:
    size = -(-len(texts) // parts)
    return {f"{n}.jsonl": texts[n * size : (n + 1) * size] for n in range(parts)}


def connect_by_range(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name, value in (
        (stars, "EDGES", 3),
        (adding, "NODES", 40),
        (graph, "CHUNK", 10),
        (adding, "NODES", 40),
        (covering, "NODES", 30),
    ):
        monkeypatch.setattr(module, name, value)


@pytest.mark.parametrize("seed", slow_but(range(6), 0))
@pytest.mark.parametrize("threshold", [0.5, 0.8, 1.0])
def test_the_clusters_are_those_of_brute_force(folder: Path, seed: int, threshold: float) -> None:
    texts = make_texts(150, seed)
    write_documents(folder, split(texts, 3))
    report = find(threshold=threshold, removal="connected", **SURE)
    ids = [f"{name.partition('.')[0]}/{n}" for name, part in split(texts, 3).items() for n in range(1, len(part) + 1)]
    wanted = brute_force(texts, threshold)
    assert clusters(folder) == {first: [ids[i] for i in members] for first, members in wanted.items()}
    assert marked(folder) == [ids[i] for i in sorted(i for members in wanted.values() for i in members[1:])]
    assert report.clusters == len(wanted) and report.duplicates == sum(len(m) - 1 for m in wanted.values())
    assert list(read_attributes(folder)) == ids
    assert sum(int(size) * times for size, times in report.sizes.items()) == sum(map(len, wanted.values()))


def test_the_default_bands_miss_little_and_mark_nothing_wrongly(folder: Path) -> None:
    texts = make_texts(600, 9, words=(20, 80))
    write_documents(folder, {"a.jsonl": texts})
    report = find(removal="connected")
    wanted = {f"a/{i + 1}" for members in brute_force(texts, 0.8).values() for i in members[1:]}
    found = set(marked(folder))
    assert found <= wanted and len(found) >= 0.95 * len(wanted) > 80
    rows = [row for row in read_attributes(folder).values() if "duplicate_of" in row]
    low = sum(row["similarity"] < 0.8 for row in rows)
    assert (report.uncovered, report.lowest) == (low, min(row["similarity"] for row in rows)) and low > 0
    assert f"{low:,} of {report.duplicates:,} marked documents are less similar than 0.8" in report.warnings[-1]
    few = find()
    assert (few.uncovered, few.warnings) == (0, []) and set(marked(folder)) <= found
    near = covered(texts, 0.8)
    assert len(set(marked(folder)) ^ {f"a/{i + 1}" for i in near}) <= 0.05 * len(near)


def witnesses(root: Path) -> dict[str, str]:
    return {key: row["duplicate_of"] for key, row in read_attributes(root).items() if "duplicate_of" in row}


@pytest.mark.parametrize(
    ("keep", "seed"), slow_but(product(["first", "longest"], range(40)), ("first", 1), ("longest", 0))
)
def test_each_removed_document_has_the_first_kept_one_that_is_similar(
    folder: Path, seed: int, keep: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if seed % 2:
        connect_by_range(monkeypatch)
    texts, threshold = make_chains(150, seed), (0.4, 0.6, 0.8)[seed % 3]
    write_documents(folder, {"a.jsonl": texts})
    report = find(threshold=threshold, keep=keep, **SURE)
    order = sorted(range(150), key=lambda i: -len(texts[i])) if keep == "longest" else None
    wanted = covered(texts, threshold, order)
    assert witnesses(folder) == {f"a/{j + 1}": f"a/{i + 1}" for j, i in wanted.items()}
    assert set(marked(folder)) == set(witnesses(folder)) and len(wanted) > 50
    rows = read_attributes(folder)
    similarities = [rows[key]["similarity"] for key in witnesses(folder)]
    assert report.lowest == min(similarities) >= threshold and report.uncovered == 0
    groups = clusters(folder)
    assert report.clusters == len(groups) == len(set(wanted.values()))
    assert groups == {
        i: sorted([f"a/{i + 1}", *(f"a/{j + 1}" for j, of in wanted.items() if of == i)], key=lambda k: int(k[2:]))
        for i in sorted(set(wanted.values()))
    }
    assert report.sizes == {
        str(size): sum(len(members) == size for members in groups.values())
        for size in sorted({len(members) for members in groups.values()})
    }
    for one in report.largest:
        members = groups[one["cluster"]]
        assert one["documents"] == len(members) and one["kept"]["id"] in members
        assert set(one["duplicates"]) < set(members) - {one["kept"]["id"]} or len(members) <= 4


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_dumps_one_after_another_give_what_one_run_gives(
    folder: Path, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = split(make_chains(200, seed), 4)
    write_documents(folder, parts)
    find()
    wanted = outputs(folder)
    os.rename("attributes", "at-once")
    done: dict[str, bytes] = {}
    for number, name in enumerate(parts):
        with pytest.MonkeyPatch.context() as patch:
            if number % 2:
                connect_by_range(patch)
            find(f"documents/{name}", signatures="s")
        now = outputs(folder)
        assert {path: now[path] for path in done} == done, "what was decided before has changed"
        done = now
    assert set(done) == set(wanted)
    for path, data in wanted.items():
        before, after = ([json.loads(line) for line in one.splitlines()] for one in (data, done[path]))
        for row, other in zip(before, after, strict=True):
            if "duplicate_of" in row or row["attributes"].get("dup_near_cluster") is None:
                assert row == other
            else:  # kept: a later dump does not write again that it covers documents
                assert other["attributes"].pop("dup_near_cluster", None) in (
                    None,
                    row["attributes"]["dup_near_cluster"],
                )
                assert other["attributes"]["dup_near"] == []


def test_folders_and_whose_duplicates_they_have(folder: Path) -> None:
    page, other = (" ".join(f"{c}{n}" for n in range(60)) for c in "ab")
    write_documents(folder, {"news/0.jsonl": [page, other, "alone"], "web/0.jsonl": [page + " x", other, page, "new"]})
    report = find(**SURE)
    assert report.sources == [
        {"folder": "documents/web", "documents": 4, "duplicates": 3, "of": {"documents/news": 3}},
        {"folder": "documents/news", "documents": 3, "duplicates": 0, "of": {}},
    ]


@pytest.mark.parametrize("processes", [3, *(pytest.param(count, marks=pytest.mark.slow) for count in (2, 6))])
def test_any_number_of_processes_and_any_memory_give_the_same(
    folder: Path, processes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_documents(folder, {f"{n}/x.jsonl.gz": make_texts(60, n // 2) for n in range(5)})
    one = find(workers=1)
    before = outputs(folder)
    os.rename("attributes", "before")
    several = find(workers=processes)
    assert outputs(folder) == before and several.as_dict() == one.as_dict()
    os.rename("attributes", "again")
    for module, name, value in (
        (sketch, "SEGMENT", 1000), (join, "RANGE", 50), (join, "ROOM", 10), (join, "HELD", 300), (join, "BATCH", 3),
        (keys, "GROUP", 38),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr("feedmill.formats.documents.BLOCK", 700)
    connect_by_range(monkeypatch)
    small = find(workers=1)
    assert outputs(folder) == before
    assert {**small.as_dict(), "left_out": one.left_out} == one.as_dict()


@pytest.mark.parametrize(
    ("removal", "full", "keep"),
    slow_but(
        product(["covered", "connected"], [40, 42], ["first", "longest"]),
        ("covered", 40, "first"),
        ("connected", 40, "longest"),
    ),
)
def test_little_memory_gives_the_same_bytes(
    folder: Path, full: int, keep: str, removal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_documents(folder, split([*make_texts(150, full), *make_chains(60, full)], 3))
    report = find(removal=removal, keep=keep, threshold=0.6)
    before = outputs(folder)
    os.rename("attributes", "before")
    os.rename(".feedmill", "records-before")  # they would be those of equal files
    monkeypatch.setattr(memory, "FULL", 1 << full)
    monkeypatch.setattr("feedmill.formats.documents.BLOCK", 700)
    little = find(removal=removal, keep=keep, threshold=0.6, memory="110MB")
    assert outputs(folder) == before
    assert {**little.as_dict(), "left_out": report.left_out} == report.as_dict()


def test_the_order_of_the_input_says_only_which_is_kept(folder: Path) -> None:
    texts = make_texts(120, 4)
    write_documents(folder, split(texts, 3))
    find(removal="connected", **SURE)
    one = {frozenset(members) for members in clusters(folder).values()}
    find("documents/2.jsonl", "documents/1.jsonl", "documents/0.jsonl", removal="connected", **SURE)
    assert {frozenset(members) for members in clusters(folder).values()} == one
    rows = read_attributes(folder)
    for members in clusters(folder).values():
        order = sorted(members, key=lambda key: (-int(key[0]), int(key.partition("/")[2])))
        assert [key for key in order if rows[key]["attributes"]["dup_near"] == []] == order[:1]
        assert {rows[key]["duplicate_of"] for key in order[1:]} == {order[0]}


def test_short_empty_equal_and_odd_texts(folder: Path) -> None:
    long = " ".join(f"w{n}" for n in range(30_000))
    texts = [
        "",
        " \n!",
        "...",
        "a",
        "A!",
        "a b",
        "a b c d",
        "b a",
        "漢字",
        "漢 字",
        "é",
        "e\u0301",
        long,
        long,
        "",
        "日",
    ]
    write_documents(folder, {"a.jsonl": texts, "empty.jsonl": []})
    report = find()
    assert marked(folder) == ["a/5", "a/10", "a/14"]
    assert report.empty == 4 and report.documents == len(texts) and report.files == 2
    row = read_attributes(folder)["a/14"]
    assert row == {
        "attributes": {"dup_near": [[0, len(long), 1]], "dup_near_cluster": [[0, len(long), 12]]},
        "duplicate_of": "a/13",
        "id": "a/14",
        "similarity": 1.0,
    }
    assert (folder / "attributes/dup_near/empty.jsonl").read_bytes() == b""


def test_words_are_compared_as_asked(folder: Path) -> None:
    write_documents(folder, {"a.jsonl": ["One, two: three!", "one two three", "One two three", "one, two: three!"]})
    assert find().duplicates == 3
    assert find(keep_case=True).duplicates == 2
    assert find(keep_punctuation=True).duplicates == 2
    assert find(keep_case=True, keep_punctuation=True).duplicates == 0
    assert find(ngram=1, threshold=0.4, keep_case=True, **SURE).duplicates == 3


def test_similarity_of_characters_is_exact(folder: Path) -> None:
    """One letter in each word: nothing in common by words, most by characters."""
    one = "the keeper painted every second staircase of the lighthouse"
    other = "the keeper painted every second staircases of the lighthouses"
    write_documents(folder, {"a.jsonl": [one, other]})
    assert find(ngram=5).duplicates == 0
    sets = [{text[n : n + 4] for n in range(len(text) - 3)} for text in (one.replace(" ", ""), other.replace(" ", ""))]
    assert find(by="characters", ngram=4, threshold=0.8, **SURE).duplicates == 1
    row = json.loads((folder / "attributes/dup_near/a.jsonl").read_text().splitlines()[1])
    assert row["similarity"] == len(sets[0] & sets[1]) / len(sets[0] | sets[1])


def test_signatures_of_words_are_not_those_of_characters(folder: Path) -> None:
    write_documents(folder, {"a.jsonl": ["a page of words"]})
    find(by="characters", signatures="signs")
    with pytest.raises(ConfigError, match="by characters instead of the default"):
        find(signatures="signs")
    with pytest.raises(ConfigError, match="a shingle has words or characters"):
        find(by="lines")


def test_the_longest_is_kept(folder: Path) -> None:
    base = [f"w{n}" for n in range(100)]
    texts = [" ".join(base), " ".join([*base, "x"]), " ".join([*base, "y"]), "alone", " ".join(base[1:])]
    write_documents(folder, {"a.jsonl": texts})
    report = find(keep="longest", **SURE)
    assert marked(folder) == ["a/1", "a/3", "a/5"]
    assert {row.get("duplicate_of") for row in read_attributes(folder).values()} == {"a/2", None}
    assert clusters(folder) == {1: ["a/1", "a/2", "a/3", "a/5"]}
    assert report.largest[0]["kept"] == {"id": "a/2", "file": "documents/a.jsonl", "line": 2}


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 4))])
@pytest.mark.parametrize("keep", ["first", "longest"])
def test_connected_dumps_one_after_another(folder: Path, seed: int, keep: str) -> None:
    parts = split(make_texts(160, seed), 4)
    write_documents(folder / "all", parts)
    whole = find("all/documents", keep=keep, removal="connected", **SURE)
    flags = {key: bool(row["attributes"]["dup_near"]) for key, row in read_attributes(folder / "all").items()}
    heads = {key: c for c, keys in clusters(folder / "all").items() for key in keys}
    write_documents(folder, parts)
    done: dict[str, bytes] = {}
    for number, name in enumerate(parts):
        patterns = [f"documents/{name}"] if number % 2 else [f"documents/{n}.jsonl" for n in range(number + 1)]
        report = find(*patterns, signatures="signatures", keep=keep, removal="connected", **SURE)
        assert report.added == len(parts[name]) and report.known == sum(
            len(parts[f"{n}.jsonl"]) for n in range(number + 1)
        )
        now = outputs(folder)
        assert {path: now[path] for path in done} == done, "what was decided before has changed"
        done = now
    assert len(done) == 4
    rows = read_attributes(folder)
    if keep == "first":  # the first of a cluster of the whole may be kept, and so may heads that were joined later
        assert all(flags[key] for key in marked(folder))
        assert {key for key in flags if flags[key] and key[0] == "3"} == {
            key for key in marked(folder) if key[0] == "3"
        }
    for members in clusters(folder).values():
        kept = [key for key in members if not rows[key]["attributes"]["dup_near"]]
        assert len(kept) <= 1 and len({heads[key] for key in members}) == 1
        assert all(rows[key]["duplicate_of"] in rows for key in members if key not in kept)
    assert len(marked(folder)) <= whole.duplicates


@pytest.mark.parametrize("keep", ["first", "longest"])
def test_clusters_in_several_files(folder: Path, keep: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dumps with one file of clusters and with several, one after another in a folder."""
    parts = split(make_texts(400, 5), 4)
    results = []
    for way in (0, 1):
        write_documents(folder, parts)
        for number, name in enumerate(parts):
            with pytest.MonkeyPatch.context() as patch:
                if way and number != 1:
                    connect_by_range(patch)
                report = find(f"documents/{name}", signatures="s", keep=keep, removal="connected")
            results.append({**report.as_dict(), "signatures": None})
        results.append(outputs(folder))
        files = sorted(path.name for path in (folder / "s/dumps").rglob("clusters*"))
        assert not list((folder / "s").rglob("work")), "unfinished work is left"
        for name in ("s", "attributes"):
            os.rename(name, f"{name}-{way}")
    assert results[:5] == results[5:]
    assert files == sorted(
        ["clusters", *(f"clusters-{n:05d}" for n in range(3))] + [f"clusters-{n:05d}" for n in range(3)] * 2
    )


def test_a_task_reads_only_the_keys_of_its_range(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With several ranges, the keys of all documents are read once to order them, and once by all tasks together."""
    write_documents(folder, split(make_texts(90, 7), 3))
    monkeypatch.setattr(join, "RANGE", 20)
    monkeypatch.setattr(keys, "GROUP", 27)
    monkeypatch.setattr(join.View, "segments", None)
    monkeypatch.setattr("feedmill.curation.near.finish._segments", lambda view, task: iter(()))
    read = list[int]()
    of = join.read_ordered

    def counted(*arguments: Any) -> Any:
        columns, documents, digests = of(*arguments)
        assert len(columns) == 1 + arguments[1] > 2
        read.extend(map(len, columns))
        return columns, documents, digests

    monkeypatch.setattr(join, "read_ordered", counted)
    report = find()
    assert sum(read) == (report.documents - report.empty) * chosen_bands(0.8)[0] and max(read) < 20


def test_copies_are_found_without_their_signatures(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose documents are alike, or copies, reads no segment: all of them have some of its documents."""
    texts = [" ".join(f"w{number}x{word}" for word in range(12)) for number in range(60)]
    write_documents(folder, split([*texts, *texts[::2]], 3))
    monkeypatch.setattr(join, "RANGE", 20)
    monkeypatch.setattr(keys, "GROUP", 27)
    compare = adding._compare

    def compared(*arguments: Any) -> Any:
        with monkeypatch.context() as patched:
            for name in ("digests", "columns", "sizes", "sets"):
                patched.setattr(join.View, name, _none_of(getattr(join.View, name)))
            return compare(*arguments)

    monkeypatch.setattr(adding, "_compare", compared)
    assert find().duplicates == 30


def _none_of(read: Any) -> Any:
    def reads_none(view: Any, numbers: Any, *arguments: Any) -> Any:
        assert not len(numbers)
        return read(view, numbers, *arguments)

    return reads_none


@pytest.mark.parametrize("removal", ["covered", "connected"])
def test_parts_work_by_range(folder: Path, removal: str, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(folder, split(make_chains(120, 6), 3))
    find(removal=removal, keep="longest")
    wanted = outputs(folder)
    os.rename("attributes", "before")
    os.rename(".feedmill", "records-before")  # they would be those of equal files
    connect_by_range(monkeypatch)
    monkeypatch.setattr(join, "RANGE", 50)
    monkeypatch.setattr(keys, "GROUP", 38)
    stages = set()
    for part in (1, 2) * 12:
        with pytest.raises(StageUnfinished) as caught, PartEngine(part, 2):
            find(removal=removal, keep="longest")
        stages.add(caught.value.stage)
    last = {"connecting"} if removal == "connected" else {"ranking", "sorting", "settling", "checking", "deciding"}
    assert stages >= {"reading", "ordering", "comparing", *last}
    with PartEngine(finish=True):
        find(removal=removal, keep="longest")
    assert outputs(folder) == wanted
    assert sorted(os.listdir(".feedmill/mix-attributes/dup_near")) == ["manifest.json"], "work is left"


def test_a_dump_that_joins_two_earlier_clusters_changes_neither(folder: Path) -> None:
    left, right = [f"a{n}" for n in range(40)], [f"b{n}" for n in range(40)]
    write_documents(folder, {"0.jsonl": [" ".join(left), " ".join(right)]})
    find(signatures="s", threshold=0.4, removal="connected", **SURE)
    write_documents(folder, {"1.jsonl": [" ".join(right + left), " ".join(right)]})
    find(signatures="s", threshold=0.4, removal="connected", **SURE)
    assert marked(folder) == ["1/1", "1/2"]
    assert [row.get("duplicate_of") for row in read_attributes(folder).values()] == [None, None, "0/1", "0/1"]


def test_earlier_documents_are_neither_read_nor_needed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = make_texts(90, 2)
    write_documents(folder / "old", {"a.jsonl": texts[:60]})
    find("old/documents", signatures="s")
    (folder / "old/documents/a.jsonl").unlink()
    write_documents(folder / "new", {"a.jsonl": texts[60:]})
    read: list[str] = []
    of = sketch.read_blocks
    monkeypatch.setattr(sketch, "read_blocks", lambda file, **kw: read.append(file.path) or of(file, **kw))
    report = find("new/documents", signatures="s")
    assert read == ["documents/a.jsonl"] and report.known == 90
    assert {row.get("duplicate_of") for row in read_attributes(folder / "new").values()} - {None}
    os.remove(folder / "new/attributes/dup_near/a.jsonl")
    again = find("new/documents", signatures="s")
    assert len(read) == 1 and again.added == 0 and again.duplicates == report.duplicates
    other = find("new/documents", signatures="s", name="other")
    assert len(read) == 1 and other.duplicates == report.duplicates and len(marked(folder / "new", "other")) > 0


def test_a_second_run_has_nothing_to_do(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_documents(folder, {"a.jsonl": make_texts(50, 1)})
    first = find()
    monkeypatch.setattr("feedmill.curation.near.job.open_dumps", None)
    second = find()
    assert second.skipped and {**second.as_dict(), "skipped": False} == first.as_dict()
    manifest = json.loads((folder / ".feedmill/mix-attributes/dup_near/manifest.json").read_bytes())
    assert manifest["files"]["a.jsonl"]["rows"] == 50 and manifest["files"]["a.jsonl"]["flagged"] == first.duplicates
    assert sorted(os.listdir(".feedmill/mix-attributes/dup_near")) == ["manifest.json"], "work is left"


def test_a_moved_file_is_told_of(folder: Path) -> None:
    write_documents(folder / "a", {"x.jsonl": make_texts(20, 1, copies=0)})
    find("a/documents", signatures="s")
    os.rename("a", "b")
    report = find("b/documents", signatures="s")
    assert report.duplicates == 20 and "has the documents of" in report.warnings[0]


def test_a_file_counts_once_however_it_is_named(folder: Path) -> None:
    write_documents(folder, {"x.jsonl": make_texts(20, 1, copies=0)})
    report = find("documents", "./documents/x.jsonl", str(folder / "documents/*"))
    assert (report.files, report.duplicates) == (1, 0)


def test_pairs_that_are_left_out_are_told_of(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = [f"w{n}" for n in range(30)]
    write_documents(folder, {"a.jsonl": [" ".join([*base, f"x{n}"]) for n in range(400)]})
    report = find(threshold=0.99, ngram=1, bands=1, rows=1)
    assert report.left_out > 0 and "were not compared" in report.warnings[0] and report.duplicates == 0


def test_chosen_bands() -> None:
    for threshold in (0.05, 0.3, 0.5, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0):
        bands, rows = chosen_bands(threshold)
        assert bands * rows <= 128 and found_share(threshold, bands, rows) >= 0.98
    assert found_share(0.85, *chosen_bands(0.8)) > 0.995
    assert adding.MOST_DOCUMENTS == 1 << 32
