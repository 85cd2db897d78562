"""One corpus in every kind of documents gives each verb the same documents."""

from __future__ import annotations

import bz2
import gzip
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feedmill.converting.convert import convert
from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.mix.config import read_config
from feedmill.curation.mix.job import mix
from feedmill.curation.stat import stat
from feedmill.curation.tag import tag
from feedmill.documents.file import as_lines
from feedmill.documents.find import find_documents
from feedmill.errors import DataError
from feedmill.formats.documents import read_rows
from feedmill.storage import LocalStore
from feedmill.storage.codec import packed
from feedmill.tokens.verbs.tokenize import tokenize
from helpers.tokenizer_data import EOS, loaded, pbin_documents

TEXTS = [
    "One fine day it rained.\n\nThen it did not.",
    "Größe ist 名前.",
    "One fine day it rained.\n\nThen it did not.",
]
TEXTS += [f"This is document number {n}, which has some words of its own and others beside." for n in range(600)]
ROWS = [{"id": f"d{n}", "text": text, "source": "s", "n": n} for n, text in enumerate(TEXTS)]
LINES = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in ROWS)
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "": bytes,
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
}
COLUMNS = ("a.parquet", "a.arrow", "file.arrow")
KINDS = [*(f"a.jsonl{end}" for end in (*PACKED, ".zst")), "a.ndjson", *COLUMNS]


def write(path: Path, rows: list[dict[str, Any]] = ROWS) -> Path:
    """A corpus, of the kind that the name says."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)
    if path.name in COLUMNS:
        pa = pytest.importorskip("pyarrow")
        import pyarrow.ipc
        import pyarrow.parquet as pq

        table = pa.Table.from_pylist(rows)
        if path.suffix == ".parquet":
            pq.write_table(table, path, row_group_size=97)
        else:
            make = pyarrow.ipc.new_file if path.name == "file.arrow" else pyarrow.ipc.new_stream
            with make(path, table.schema) as writer:
                writer.write_table(table, max_chunksize=101)
    elif path.suffix == ".zst":
        with LocalStore(path.parent).write(path.name) as raw, packed(raw, "zst") as stream:
            stream.write(lines)
    else:
        path.write_bytes(PACKED[path.suffix if path.suffix in PACKED else ""](lines))
    return path


def read(path: Path) -> list[Any]:
    """The rows of a file of JSON lines, unpacked as its name says."""
    return [json.loads(row) for rows in read_rows(LocalStore(path.parent), path.name) for row in rows]


def attributes(name: str, of: str) -> list[Any]:
    found = read(Path("d/attributes", name, as_lines(of, str(find_documents([f"d/documents/{of}"]).files[0].kind))))
    return [(row["id"], row["attributes"]) for row in found]


def by_tag(name: str, **more: Any) -> Any:
    tag(["d/documents"], ["char_length_v1", "whitespace_tokenizer_v1"], name="n", progress=False, **more)
    return attributes("n", name)


def by_dedupe(name: str, **more: Any) -> Any:
    dedupe(["d/documents"], name="dup", keep_empty=True, workers=1, **more)
    return attributes("dup", name)


def by_near(name: str, **more: Any) -> Any:
    dedupe(["d/documents"], near=True, name="near", workers=1, progress=False, **more)
    return [
        (one, {key: value for key, value in found.items() if key == "near"}) for one, found in attributes("near", name)
    ]


def by_stat(name: str, **more: Any) -> Any:
    found = stat(["d/documents"], workers=1, progress=False, **more).as_dict()
    return found["rows"], found["documents"]


def by_mix(name: str, **more: Any) -> Any:
    sets = []
    if not more:
        by_dedupe(name)
        by_tag(name)
        sets = ["dup", "n"]
    stream = {"name": "m", "documents": ["d/documents"], "attributes": sets, "output": {"path": "out"}}
    stream["filter"] = {"exclude": ["$.attributes[?(@.dup && @.dup[0] && @.dup[0][2] >= 1.0)]"]}
    mix(read_config({"streams": [stream], **more}), workers=1, progress=False)
    rows = read(Path("out/m-0000.jsonl.gz"))
    for row in rows:
        row["metadata"]["provenance"] = row["metadata"]["provenance"].rpartition(":")[2]
    return rows


def by_tokenize(name: str) -> Any:
    tokenize([f"d/documents/{name}"], "tokens", tokenizer=loaded(), eos=EOS, workers=1)
    return [tokens.tolist() if hasattr(tokens, "tolist") else tokens for tokens in pbin_documents(Path("tokens.pbin"))]


VERBS: dict[str, Callable[..., Any]] = {
    "tag": by_tag,
    "dedupe": by_dedupe,
    "neardedupe": by_near,
    "stat": by_stat,
    "mix": by_mix,
    "tokenize": by_tokenize,
}


@pytest.fixture(scope="module")
def golden(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each verb gives of plain JSON lines."""
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        for verb, go in VERBS.items():
            patch.chdir(tmp_path_factory.mktemp(verb))
            write(Path("d/documents/a.jsonl"))
            found[verb] = go("a.jsonl")
    return found


@pytest.mark.parametrize("name", KINDS[1:])
@pytest.mark.parametrize("verb", VERBS)
def test_the_same_documents(
    verb: str, name: str, golden: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("d/documents", name))
    assert VERBS[verb](name) == golden[verb]


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "tokenize"])
def test_texts_are_documents_with_ids_of_their_files(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for n, text in enumerate(TEXTS[:3]):
        path = Path(f"d/documents/web/{n}.txt")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    if verb == "stat":
        assert by_stat("")[0] == 3
        return
    if verb == "mix":
        stream = {"name": "m", "documents": ["d/documents"], "output": {"path": "out"}}
        mix(read_config({"streams": [stream]}), workers=1, progress=False)
        rows = read(Path("out/m-0000.jsonl.gz"))
        assert [row["id"] for row in rows] == [f"web/{n}.txt:1" for n in range(3)]
        return
    assert [one for one, _ in VERBS[verb]("web/1.txt")] == ["web/1.txt:1"]


@pytest.mark.parametrize("name", ["a.jsonl", "a.jsonl.xz", "a.parquet", "a.arrow"])
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "tokenize"])
def test_ids_are_made_of_file_and_row_where_that_is_said(
    verb: str, name: str, golden: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{key: value for key, value in row.items() if key != "id"} for row in ROWS]
    write(Path("d/documents/web", name), rows)
    if verb != "mix":
        with pytest.raises(DataError, match="has no 'id'"):
            VERBS[verb](f"web/{name}")
    found = VERBS[verb](f"web/{name}", id="auto")
    if verb == "stat":
        assert found == golden["stat"]
    elif verb == "mix":
        assert [row["id"] for row in found] == [f"web/{name}:{n + 1}" for n in range(len(ROWS))]
    else:
        assert found == [(f"web/{name}:{n + 1}", of) for n, (_, of) in enumerate(golden[verb])]


def test_ids_that_are_there_are_kept_and_may_be_in_another_field(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows: list[dict[str, Any]] = [{"id": 7, "text": "a", "url": "u"}, {"id": None, "text": "b", "url": 8}]
    write(Path("d/documents/a.jsonl"), rows)
    assert [one for one, _ in by_tag("a.jsonl", id="auto")] == [7, "a.jsonl:2"]
    assert [one for one, _ in by_tag("a.jsonl", id="url")] == ["u", 8]
    with pytest.raises(DataError, match=r"a.jsonl 'line 1': the document has no field 'uri' to read its id from"):
        by_tag("a.jsonl", id="uri")


def test_a_mirrored_mix_of_columns_is_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path("d/documents/web/a.parquet"))
    stream = {"name": "m", "documents": ["d/documents"], "output": {"path": "out"}}
    mix(read_config({"streams": [stream], "shuffle": False}), workers=1, progress=False)
    assert [row["id"] for row in read(Path("out/documents/web/a.parquet.jsonl.gz"))] == [row["id"] for row in ROWS]


@pytest.mark.parametrize("end", [*PACKED, ".zst"])
def test_trees_of_lines_are_converted_from_every_compression(
    end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(Path(f"d/documents/a.jsonl{end}"))
    convert("d", "out", "jsonl", progress=False)
    assert [row["id"] for row in read(Path("out/documents/a.jsonl"))] == [row["id"] for row in ROWS]
