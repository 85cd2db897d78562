"""The known defects of Dolma 1.2.1 in deduplicating and mixing: fixed, unless --exact is asked for.

The lines are those of docs/migration/dolma.md.
"""

import json
import os

import pytest

from feedmill.compat.dolma import dedupe as dedupe_command
from feedmill.compat.dolma import mix as mix_command
from feedmill.errors import ConfigError, DataError
from feedmill.formats.bloom import read_bloom
from feedmill.storage import LocalStore
from helpers.document_folders import read, texts, write_documents, write_lines

FILES = [texts(30), texts(20, seed=1)]


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_documents(tmp_path, *FILES)
    os.rename("documents", "data.documents")
    os.makedirs("data")
    os.rename("data.documents", "data/documents")


def dedupe(exact=False, **more):
    config = {
        "documents": ["data/documents/*"],
        "dedupe": {"name": "dup", "paragraphs": {"attribute_name": "dup"}, **more.pop("dedupe", {})},
        "bloom_filter": {
            "file": "f.bin",
            "read_only": False,
            "estimated_doc_count": 1000,
            "desired_false_positive_rate": 1e-5,
            **more.pop("bloom_filter", {}),
        },
        **more,
    }
    with open("config.json", "w") as f:
        json.dump(config, f)
    dedupe_command.dedupe([], "config.json", exact)
    return [read(f"data/attributes/dup/part-{n}.jsonl.gz") for n in range(len(FILES))]


def mix(exact=False, allow_stale=False, **more):
    stream = {
        "name": "m",
        "documents": ["data/documents/*"],
        "attributes": ["made"],
        "output": {"path": "mixed", **more.pop("output", {})},
        **({"filter": {"exclude": ["$.nothing"]}} | more),
    }
    with open("mix.json", "w") as f:
        json.dump({"streams": [stream]}, f)
    mix_command.mix(["--allow_stale"] if allow_stale else [], "mix.json", exact)
    return read("mixed/m-0000.json.gz")


def attributes(spans=()):
    for n, members in enumerate(FILES):
        rows = [json.dumps({"id": f"{n}-{m}", "attributes": {"s": list(spans)}}) for m in range(len(members))]
        write_lines(f"data/attributes/made/part-{n}.jsonl.gz", rows)


def spans(rows):
    return sum(len(row["attributes"].get("dup", [])) for file in rows for row in file)


def test_min_words_leaves_short_paragraphs_alone_and_not_all():
    assert spans(dedupe(exact=True, dedupe={"min_words": 3})) == 0
    os.remove("f.bin")
    assert 0 < spans(dedupe(dedupe={"min_words": 3})) < spans(dedupe(dedupe={"name": "dup", "min_words": 0}))


def test_a_rerun_does_not_mark_everything():
    once = spans(dedupe())
    assert spans(dedupe()) == once
    assert spans(dedupe(exact=True)) > once


def test_a_temporary_file_left_over_does_not_stop_a_file():
    os.makedirs("data/attributes/dup")
    with open("data/attributes/dup/part-0.jsonl.gz.tmp", "w"):
        pass
    assert len(dedupe()[0]) == len(FILES[0])


def test_new_filters_have_few_hashes():
    dedupe(exact=True)
    assert len(read_bloom(LocalStore("."), "f.bin").seeds) == 5815
    os.remove("f.bin")
    dedupe()
    assert len(read_bloom(LocalStore("."), "f.bin").seeds) == 24


def test_a_size_needs_a_number_of_keys():
    with pytest.raises(ConfigError, match="number of items"):
        dedupe(bloom_filter={"size_in_bytes": 1 << 16, "estimated_doc_count": 0})


def test_documents_and_paragraphs_exclude_each_other():
    both = {"documents": {"attribute_name": "dup", "key": "$.text"}}
    with pytest.raises(ConfigError, match="both"):
        dedupe(dedupe=both)
    assert dedupe(exact=True, dedupe=both)


def test_a_filter_that_is_only_read_stays_as_it_is():
    dedupe()
    before = os.stat("f.bin").st_mtime_ns
    dedupe(dedupe={"name": "other"}, bloom_filter={"read_only": True})
    assert os.stat("f.bin").st_mtime_ns == before


def test_folders_are_no_files():
    os.makedirs("data/documents/deeper.jsonl.gz")
    dedupe()
    assert sorted(n for n in os.listdir("data/attributes/dup") if n[0] != ".") == ["part-0.jsonl.gz", "part-1.jsonl.gz"]


@pytest.mark.parametrize("verb", [dedupe, mix])
@pytest.mark.parametrize("row", ['{"id": "x"}', '{"id": "x", "text": null}', "", '{"id": "x", "text": "cut'])
def test_bad_rows_end_the_run(verb, row):
    attributes()
    write_lines("data/documents/part-0.jsonl.gz", ['{"id": "0-0", "text": "t"}', row])
    with pytest.raises(DataError, match="line 2") as caught:
        verb(**({"attributes": []} if verb is mix else {}))
    assert "part-0" in str(caught.value)
    assert not os.path.exists("data/attributes/dup/part-0.jsonl.gz") and not os.path.exists("mixed/m-0000.json.gz")


@pytest.mark.parametrize("verb", [dedupe, mix])
def test_cut_files_end_the_run(verb):
    attributes()
    with open("data/documents/part-1.jsonl.gz", "r+b") as f:
        f.truncate(200)
    with pytest.raises(DataError, match="truncated"):
        verb()


def test_attributes_have_to_be_there_and_to_line_up():
    attributes()
    os.remove("data/attributes/made/part-1.jsonl.gz")
    with pytest.raises(DataError, match="no attributes 'made'"):
        mix()
    assert not os.path.exists("mixed")
    assert len(mix(exact=True)) == sum(map(len, FILES))
    write_lines("data/attributes/made/part-1.jsonl.gz", ['{"id": "1-0", "attributes": {}}'])
    with pytest.raises(DataError, match="1 rows"):
        mix()


@pytest.mark.parametrize("span", [[3, 3, 1.0], [5, 3, 1.0], [900, 950, 1.0]])
def test_spans_of_no_text_leave_the_text_alone(span):
    attributes([span])
    replace = {"span_replacement": [{"span": "$.attributes.s", "min_score": 0, "replacement": "<{}>"}]}
    originals = [text for members in FILES for text in members]
    assert [row["text"] for row in mix(allow_stale=True, **replace)] == originals
    os.remove("mixed/m-0000.json.gz")
    assert [row["text"] for row in mix(exact=True, **replace)] != originals


@pytest.mark.parametrize("span", [[0.0, 3, 1], [-1, 3, 1], [0, 3], "text"])
def test_what_is_no_span_ends_the_run(span):
    attributes([span])
    with pytest.raises(DataError, match=r"not a span.*line 1|line 1.*not a span"):
        mix(span_replacement=[{"span": "$.attributes.s", "min_score": 0}])
    assert not os.path.exists("mixed/m-0000.json.gz")


def test_text_can_be_discarded():
    attributes()
    rows = mix(output={"discard_fields": ["text"], "min_text_length": 1})
    assert rows and "text" not in rows[0]


def test_a_finished_output_is_known_by_relative_paths_too(capsys):
    attributes()
    mix()
    before = os.stat("mixed/m-0000.json.gz").st_mtime_ns
    mix()
    assert os.stat("mixed/m-0000.json.gz").st_mtime_ns == before
    assert "before" in capsys.readouterr().out
