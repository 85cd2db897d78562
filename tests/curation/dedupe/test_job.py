"""Deduplication beside a model in plain Python, on any number of processes, and with bad input."""

import gzip
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import feedmill as fm
from feedmill.curation.dedupe import exact, job, segments
from feedmill.curation.options import DOCUMENTS, NGRAMS, PARAGRAPHS, Dedupe
from feedmill.errors import ConfigError, DataError, FeedmillError, StorageError
from feedmill.jobs import memory
from feedmill.kernels.text.paragraphs import CHARACTERS
from feedmill.storage.locks import FileLock
from helpers import warm
from helpers.document_datasets import DEEP
from helpers.document_folders import attributes, texts, write_documents, write_lines
from helpers.durations import examples
from helpers.kills import command, contents, kill_everywhere, moments
from oracles.paragraphs import pieces, windows, words

FILES = [texts(23), texts(17, seed=1), [], texts(5)]
KINDS = {
    "documents": {"by": DOCUMENTS},
    "long documents": {"by": DOCUMENTS, "keep_empty": True, "min_length": 9, "min_words": 3},
    "paragraphs": {"by": PARAGRAPHS, "keep_empty": True},
    "some paragraphs": {"by": PARAGRAPHS, "min_length": 6, "min_words": 2},
    "ngrams": {"by": NGRAMS, "keep_empty": True, "ngram": 3, "stride": 2, "threshold": 0.4},
    "ngrams, no short ones": {"by": NGRAMS, "keep_empty": True, "ngram": 2, "stride": 0, "skip_short": True},
}


def options(kind, **more):
    return Dedupe(**{"documents": (), "name": "dup", **KINDS[kind], **more})


def find_duplicates(documents, chosen, bloom=None, **more):
    return job.find_duplicates(replace(chosen, documents=documents, **(bloom or {}), **more))


def blank(text):
    return not text.strip()


def model(files, chosen, known=()):
    """The spans of each document, by the description of the options."""
    seen, chosen = set(), chosen.settled()
    for text in known:
        look_up(text, chosen, seen, True)
    return [[look_up(text, chosen, seen, not known) for text in members] for members in files]


def look_up(text, chosen, seen, insert):
    spans = []
    if chosen.by == DOCUMENTS:
        units = [(0, len(text), text)]
    else:
        units = pieces(text, chosen.separator, CHARACTERS)
    for start, end, part in units:
        size = len(part.encode()) if chosen.by == DOCUMENTS else len(part)
        if size < chosen.min_length or (blank(part) and not chosen.keep_empty) or len(words(part)) < chosen.min_words:
            continue
        keys = [(part,)]
        if chosen.ngram:
            keys = [tuple(one) for one in windows(part, chosen.ngram, chosen.stride, CHARACTERS)]
            if len(keys) < 2 and not chosen.skip_short:
                keys = [(part,)]
        found = 0
        for key in keys:
            found += key in seen
            if insert:
                seen.add(key)
        if keys and found and found / len(keys) >= chosen.threshold:
            spans.append([start, end, round(found / len(keys), 4)])
    return spans


def found_in(root, name="dup"):
    return [
        [[[s, e, round(score, 4)] for s, e, score in row["attributes"].get(name, [])] for row in rows]
        for rows in attributes(root, name)
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_as_the_model(tmp_path, kind):
    write_documents(tmp_path, *FILES)
    report = find_duplicates([f"{tmp_path}/documents"], options(kind), workers=1)
    wanted = model(FILES, options(kind))
    assert found_in(tmp_path) == wanted
    assert report.rows == sum(map(len, FILES)) and report.files == len(FILES)
    assert report.units == sum(len(spans) for rows in wanted for spans in rows)
    assert report.documents == sum(bool(spans) for rows in wanted for spans in rows) > 0


@pytest.mark.parametrize("kind", KINDS)
def test_as_the_model_in_pieces(tmp_path, kind, monkeypatch):
    """Many segments and ranges give what one gives."""
    monkeypatch.setattr(segments, "SEGMENT", 1)
    monkeypatch.setattr(exact, "RANGE", 5)
    monkeypatch.setattr("feedmill.formats.documents.BLOCK", 100)
    write_documents(tmp_path, *FILES)
    find_duplicates([f"{tmp_path}/documents"], options(kind), workers=1)
    assert found_in(tmp_path) == model(FILES, options(kind))


TINY = "from feedmill.jobs import memory; memory.FULL = 1 << 50\n"
"""Program after which a segment has one block, and a range one part."""


@settings(max_examples=examples(10), deadline=None)
@given(
    st.lists(st.lists(st.text("ab \né", max_size=8), max_size=30), min_size=1, max_size=3),
    st.sampled_from(list(KINDS)),
    st.integers(40, 50),
    st.integers(80, 800),
)
def test_any_memory_gives_the_same_bytes(tmp_path_factory, files, kind, full, block):
    root = tmp_path_factory.mktemp("any")
    results = []
    for name in ("all", "little"):
        write_documents(root / name, *files)
        with pytest.MonkeyPatch.context() as patch:
            if name == "little":
                patch.setattr(memory, "FULL", 1 << full)
                patch.setattr("feedmill.formats.documents.BLOCK", block)
            find_duplicates([f"{root}/{name}/documents/*"], options(kind), workers=1, memory="1GB", allow_empty=True)
        results.append(contents(root / name))
    assert results[0] == results[1]


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.lists(st.text("ab \né", max_size=8), max_size=6), min_size=1, max_size=3),
    st.sampled_from(list(KINDS)),
)
def test_any_texts_as_the_model(tmp_path_factory, files, kind):
    root = tmp_path_factory.mktemp("any")
    write_documents(root, *files)
    find_duplicates([f"{root}/documents/*"], options(kind), workers=1, allow_empty=True)
    assert found_in(root) == model(files, options(kind))


@pytest.mark.parametrize("kind", ["documents", "paragraphs", "ngrams"])
@pytest.mark.parametrize("filtered", [False, True])
def test_any_number_of_processes(tmp_path, kind, filtered):
    results = []
    for processes in (1, 2, 3):
        root = tmp_path / str(processes)
        write_documents(root, *FILES)
        bloom = {"bloom": f"{root}/filter.bin", "items": 1000, "false_positives": 1e-6} if filtered else None
        find_duplicates([f"{root}/documents"], options(kind), bloom=bloom, workers=processes)
        results.append(contents(root))
        assert found_in(root) == model(FILES, options(kind))
    assert results[0] == results[1] == results[2]
    assert ("filter.bin" in results[0]) == filtered


@pytest.mark.parametrize(("kind", "place"), [("documents", "test/documents"), ("ngrams", "held")])
def test_only_what_occurs_elsewhere(tmp_path, kind, place):
    """Decontamination: the documents are looked up, not compared with each other. They may be in any folder."""
    known = FILES[0][3:9]
    write_documents(tmp_path / "test", known)
    (tmp_path / "test/documents").rename(tmp_path / place)
    write_documents(tmp_path / "train", *FILES)
    report = find_duplicates([f"{tmp_path}/train/documents"], options(kind), against=[f"{tmp_path}/{place}"])
    assert found_in(tmp_path / "train") == model(FILES, options(kind), known)
    assert report.documents and not (tmp_path / "test/attributes").exists()


def test_a_filter_that_is_only_read(tmp_path):
    """The same by Dolma's means: fill a filter, then look up in it."""
    known = FILES[0][3:9]
    write_documents(tmp_path / "test", known)
    write_documents(tmp_path / "train", *FILES)
    bloom = {"bloom": f"{tmp_path}/f.bin", "items": 1000, "false_positives": 1e-9}
    find_duplicates([f"{tmp_path}/test/documents"], options("documents"), bloom=bloom)
    before = (tmp_path / "f.bin").read_bytes()
    read_only = {"bloom": f"{tmp_path}/f.bin", "read_only": True}
    find_duplicates([f"{tmp_path}/train/documents"], options("documents"), bloom=read_only)
    assert found_in(tmp_path / "train") == model(FILES, options("documents"), known)
    assert (tmp_path / "f.bin").read_bytes() == before


@pytest.mark.parametrize("filtered", [False, True])
def test_a_rerun_does_nothing_and_a_change_is_noticed(tmp_path, filtered):
    write_documents(tmp_path, *FILES)
    bloom = {"bloom": f"{tmp_path}/f.bin", "items": 1000, "false_positives": 1e-6} if filtered else None
    run = lambda **more: find_duplicates([f"{tmp_path}/documents"], options("documents", **more), bloom=bloom)  # noqa: E731
    first = run()
    before = contents(tmp_path)
    again = run()
    assert again.skipped and not first.skipped and contents(tmp_path) == before
    assert (again.rows, again.documents, again.units) == (first.rows, first.documents, first.units)
    assert not (tmp_path / "attributes/dup/.feedmill-work").exists()
    if not filtered:
        write_documents(tmp_path, FILES[1], FILES[0])
        assert not run().skipped
        assert found_in(tmp_path)[:2] == model([FILES[1], FILES[0]], options("documents"))
        assert not run(min_length=9).skipped


def test_manifest(tmp_path):
    write_documents(tmp_path, *FILES)
    find_duplicates([f"{tmp_path}/documents"], options("paragraphs"))
    manifest = json.loads((tmp_path / ".feedmill/mix-attributes/dup/manifest.json").read_text())
    entry = manifest["files"]["part-0.jsonl.gz"]
    assert manifest["verb"] == "dedupe" and manifest["options"]["unit"] == "paragraphs"
    assert entry["rows"] == len(FILES[0]) and entry["documents"]["path"] == "documents/part-0.jsonl.gz"
    assert entry["size"] == (tmp_path / "attributes/dup/part-0.jsonl.gz").stat().st_size


def row(**more):
    return json.dumps({"id": "x", "text": "a text", **more})


BAD = {
    "broken": ([row(), '{"id": "y", "tex'], r"part-0\.jsonl.*line 2"),
    "blank": ([row(), "", row()], r"line 2.*blank"),
    "no id": (['{"text": "a"}'], r"line 1.*id"),
    "no text": (['{"id": "a"}'], r"line 1.*text"),
    "null text": (['{"id": "a", "text": null}'], r"line 1"),
    "a list": (["[1]"], r"line 1"),
    "lone surrogate": ([row(), '{"id": "a", "text": "\\ud800"}'], r"line 2.*lone surrogate"),
    "nested": ([row(), f'{{"id": "a", "text": "", "x": {"[" * DEEP}{"]" * DEEP}}}'], r"line 2.*too deeply"),
}


@pytest.mark.parametrize("kind", ["documents", "paragraphs"])
@pytest.mark.parametrize("filtered", [False, True])
@pytest.mark.parametrize("name", BAD)
def test_bad_rows(tmp_path, name, kind, filtered):
    rows, message = BAD[name]
    write_lines(tmp_path / "documents/part-0.jsonl", rows)
    bloom = {"bloom": f"{tmp_path}/f.bin", "items": 1000, "false_positives": 1e-6} if filtered else None
    with pytest.raises(DataError, match=message) as caught:
        find_duplicates([f"{tmp_path}/documents"], options(kind), bloom=bloom, workers=1)
    assert caught.value.kind == "bad-document"
    assert not list(tmp_path.glob("attributes/dup/*.jsonl")) and not (tmp_path / "f.bin").exists()


@pytest.mark.parametrize("value", ["true", "null", "[]"])
def test_bad_keys(tmp_path, value):
    write_lines(tmp_path / "documents/a.jsonl", [row(url="u"), f'{{"id": 1, "text": "t", "url": {value}}}'])
    with pytest.raises(DataError, match=r"line 2.*\$\.url") as caught:
        find_duplicates([f"{tmp_path}/documents"], options("documents", key="$.url"), workers=1)
    assert caught.value.kind == "bad-document"


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
def test_truncated_input(tmp_path, suffix):
    from backports import zstd

    write_documents(tmp_path, texts(50), suffix=".jsonl")
    plain = (tmp_path / "documents/part-0.jsonl").read_bytes()
    (tmp_path / "documents/part-0.jsonl").unlink()
    packed = gzip.compress(plain) if suffix == ".gz" else zstd.compress(plain)
    (tmp_path / f"documents/part-0.jsonl{suffix}").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match="truncated") as caught:
        find_duplicates([f"{tmp_path}/documents"], options("documents"), workers=1)
    assert caught.value.kind == "bad-compression"
    assert not list(tmp_path.glob("attributes/dup/*.jsonl*"))


@pytest.mark.parametrize(
    ("documents", "more", "message"),
    [
        (["{}/nothing/documents/*"], {}, "no files match"),
        (["{}/attributes/*"], {}, "no folder 'documents'"),
        (["{}/*/documents/*"], {}, "no files match"),
        (["{}/documents"], {"partitions": 2, "partition": 1}, "partitions"),
    ],
)
def test_bad_options(tmp_path, documents, more, message):
    write_documents(tmp_path, *FILES)
    (tmp_path / "attributes").mkdir()
    (tmp_path / "attributes/a.jsonl").write_text("{}")
    with pytest.raises(FeedmillError, match=message):
        find_duplicates([one.format(tmp_path) for one in documents], options("documents", **more))


@pytest.mark.parametrize(
    "more",
    [
        {"by": "lines"}, {"separator": ""}, {"name": "a/b"}, {"ngram": -1}, {"partitions": 2, "partition": 2},
        {"min_words": 1 << 31}, {"min_length": 1 << 63}, {"ngram": 1 << 64}, {"stride": 1 << 63},
        {"separator": "\udcff"}, {"key": "$.\udcff"},
    ],
)  # fmt: skip
def test_impossible_options(more):
    with pytest.raises(ConfigError) as caught:
        options("documents", **more)
    assert caught.value.kind == "bad-option"


def test_a_stale_temporary_file_changes_nothing(tmp_path):
    """Dolma skips a file for ever once a .tmp lies beside it."""
    write_documents(tmp_path, *FILES)
    stale = tmp_path / "attributes/dup/part-0.jsonl.gz.tmp"
    stale.parent.mkdir(parents=True)
    stale.write_bytes(b"stale")
    find_duplicates([f"{tmp_path}/documents"], options("documents"))
    assert found_in(tmp_path) == model(FILES, options("documents"))


def test_finished_files_are_kept_where_another_is_bad(tmp_path):
    write_documents(tmp_path, *FILES)
    bad = tmp_path / "documents/part-9.jsonl.gz"
    write_lines(bad, ["{"])
    larger = [one for one in bad.parent.iterdir() if one.stat().st_size > bad.stat().st_size]  # those before it
    with pytest.raises(FeedmillError, match="line 1"):
        find_duplicates([f"{tmp_path}/documents"], options("documents"), workers=1)
    work = tmp_path / "attributes/dup/.feedmill-work"
    assert len(set(work.glob("*.json")) - {work / "job.json"}) == len(larger) > 1
    write_lines(tmp_path / "documents/part-9.jsonl.gz", [row()])
    find_duplicates([f"{tmp_path}/documents"], options("documents"), workers=1)
    assert found_in(tmp_path)[: len(FILES)] == model(FILES, options("documents"))


def make(root):
    write_documents(root, *FILES[:2])


PARAGRAPHS_BY_FILTER = ("--by", "paragraphs", "--bloom", "filter.bin", "--items", "1000")


@pytest.mark.parametrize("words", [("--by", "ngrams", "--ngram", "3"), PARAGRAPHS_BY_FILTER], ids=["exact", "filter"])
@moments(3, least=5)
def test_killed_before_any_file_is_in_place(tmp_path, words, moments, least):
    words = ["dedupe", "documents", "--name", "dup", "--workers", 1, *words]
    assert kill_everywhere(words, make, tmp_path, moments) >= least


@moments(9, least=15)
def test_killed_in_a_spill(tmp_path, moments, least):
    words = ["dedupe", "documents", "--name", "dup", "--workers", 1, "--by", "paragraphs", "--memory", "1GB"]
    assert kill_everywhere(words, make, tmp_path, moments, first=TINY) >= least


@pytest.mark.slow
@pytest.mark.parametrize("words", [("--by", "ngrams", "--ngram", "3"), PARAGRAPHS_BY_FILTER], ids=["exact", "filter"])
def test_killed_at_fifty_moments(tmp_path, words):
    from helpers.kills import kill_at_random

    words = ["dedupe", "documents", "--name", "dup", "--workers", 2, *words]
    assert kill_at_random(words, make_many, tmp_path, 50) > 5


def make_many(root):
    write_documents(root, *[texts(400, seed=n) for n in range(6)])


def test_command_line(tmp_path):
    write_documents(tmp_path, *FILES)
    done = warm.run(command("dedupe", "documents", "--json"), cwd=tmp_path, capture_output=True, text=True)
    report = json.loads(done.stdout)
    assert done.returncode == 0 and report["rows"] == sum(map(len, FILES)) and report["name"] == "dup_documents"
    assert Path(tmp_path / "attributes/dup_documents/part-0.jsonl.gz").exists()
    done = warm.run(command("dedupe", "documents", "--by", "lines"), cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 1 and "unknown unit --by lines" in done.stderr and "Traceback" not in done.stderr


@pytest.mark.parametrize("processes", [1, 2])
def test_a_bad_row_far_down_is_named_with_a_filter_too(tmp_path, processes):
    rows = [json.dumps({"id": str(n), "text": "a\n" * 40_000}) for n in range(60)]
    write_lines(tmp_path / "documents/0.jsonl", [*rows, '{"id": "bad"}', *rows])
    bloom = {"bloom": f"{tmp_path}/bloom.bin", "items": 1000, "false_positives": 0.01}
    chosen = Dedupe((), PARAGRAPHS, name="d", attribute="dup", keep_empty=True)
    with pytest.raises(DataError) as caught:
        find_duplicates([f"{tmp_path}/documents/*"], chosen, bloom=bloom, workers=processes)
    assert caught.value.record == "line 61"


@pytest.mark.parametrize("bloom", [None, "seen.bin"])
def test_a_file_is_compared_once_however_its_data_set_is_spelled(tmp_path, bloom, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_documents(tmp_path / "d", FILES[0])
    (tmp_path / "link").symlink_to("d")
    settings = None if bloom is None else {"bloom": bloom, "items": 100, "false_positives": 1e-6}
    chosen = options("paragraphs")
    one = find_duplicates(["d/documents"], chosen, bloom=settings, workers=1)
    before = attributes(tmp_path / "d", "dup")
    (tmp_path / "seen.bin").unlink(missing_ok=True)
    roots = ["d", "./d", str(tmp_path / "d"), f"file://{tmp_path}/d", "link"]
    many = find_duplicates([f"{root}/documents/*" for root in roots], chosen, bloom=settings, workers=1)
    assert (many.files, many.rows, many.units) == (1, one.rows, one.units)
    assert attributes(tmp_path / "d", "dup") == before


@pytest.mark.parametrize("bloom", [None, "seen.bin"])
def test_two_runs_do_not_get_into_each_others_way(tmp_path, bloom, monkeypatch):
    monkeypatch.setattr("feedmill.storage.local._PATIENCE", 0.1)
    write_documents(tmp_path, FILES[0])
    lock = tmp_path / (f"{bloom}.feedmill-lock" if bloom else "attributes/dup/.feedmill-work/lock")
    lock.parent.mkdir(parents=True, exist_ok=True)
    settings = {"bloom": f"{tmp_path}/{bloom}", "items": 100, "false_positives": 1e-6} if bloom else None
    with FileLock(lock):
        # Locks are held by descriptors, so this process is refused as any other.
        with pytest.raises(StorageError, match="another process is writing") as caught:
            find_duplicates([f"{tmp_path}/documents"], options("paragraphs"), bloom=settings, workers=1)
        assert caught.value.kind == "busy" and not (tmp_path / "attributes/dup/part-0.jsonl.gz").exists()
    find_duplicates([f"{tmp_path}/documents"], options("paragraphs"), bloom=settings, workers=1)
    assert (tmp_path / "attributes/dup/part-0.jsonl.gz").exists() and not lock.exists()


def test_looking_up_only_needs_no_lock(tmp_path, monkeypatch):
    monkeypatch.setattr("feedmill.storage.local._PATIENCE", 0.1)
    write_documents(tmp_path, FILES[0])
    filled = {"bloom": f"{tmp_path}/seen.bin", "items": 100, "false_positives": 1e-6}
    find_duplicates([f"{tmp_path}/documents"], options("paragraphs"), bloom=filled, workers=1)
    (tmp_path / "seen.bin.feedmill-next").write_bytes(b"of a run that is at work")
    with FileLock(tmp_path / "seen.bin.feedmill-lock"):
        chosen = options("paragraphs", name="again")
        looked = find_duplicates([f"{tmp_path}/documents"], chosen, bloom={**filled, "read_only": True}, workers=1)
    assert looked.units and (tmp_path / "seen.bin.feedmill-next").exists()


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"workers": -3}])
def test_no_processes_are_refused(tmp_path, wrong):
    write_documents(tmp_path, FILES[0])
    settings = {"bloom": f"{tmp_path}/seen.bin", "items": 100, "false_positives": 1e-6}
    with pytest.raises(ConfigError, match="number of workers"):
        find_duplicates([f"{tmp_path}/documents"], options("paragraphs"), bloom=settings, **wrong)


@pytest.mark.parametrize("size", [{"bloom_size": 1 << 62}, {"items": 1 << 60, "false_positives": 1e-6}])
def test_a_filter_beyond_memory_is_refused(tmp_path, size):
    write_documents(tmp_path, FILES[0])
    settings = {"bloom": f"{tmp_path}/seen.bin", "items": 10, **size}
    with pytest.raises(ConfigError, match="does not fit"):
        find_duplicates([f"{tmp_path}/documents"], options("paragraphs"), bloom=settings, workers=1)


def test_a_threshold_is_a_number():
    with pytest.raises(ConfigError, match="not a number"):
        options("ngrams", threshold=float("nan"))


def test_a_name_is_text():
    with pytest.raises(ConfigError, match="not valid UTF-8"):
        options("paragraphs", name="\udcff")


@pytest.mark.parametrize("place", ["quiz.jsonl", "quiz/documents/quiz.jsonl"])
def test_a_benchmark_to_compare_with_points_to_decontaminate(tmp_path, place):
    write_documents(tmp_path, ["What is a lantern?"])
    write_lines(tmp_path / place, [json.dumps({"id": "1", "question": "What is a lantern?", "answer": "a lamp"})])
    with pytest.raises(ConfigError, match=r"questions of a benchmark.*feedmill documents decontaminate"):
        fm.dedupe(f"{tmp_path}/documents", against=[f"{tmp_path}/{place}"], progress=False)


def test_documents_with_questions_are_documents(tmp_path):
    row = {"id": "1", "question": "What?", "answer": "a lamp", "text": "What is a lantern?"}
    write_documents(tmp_path, ["What is a lantern?"])
    write_lines(tmp_path / "quiz/documents/quiz.jsonl", [json.dumps(row)])
    report = fm.dedupe(f"{tmp_path}/documents", against=[f"{tmp_path}/quiz/documents"], progress=False)
    assert report.documents == 1


def test_references_that_a_program_did_not_find_are_an_error(tmp_path: Path) -> None:
    """Before, an empty list meant no references: the documents were compared with each other instead."""
    with pytest.raises(ConfigError, match="--against names no documents"):
        fm.dedupe(f"{tmp_path}/documents", against=[], progress=False)
