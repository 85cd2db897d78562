"""``feedmill compat dolma tokens`` beside what Dolma wrote, and where it does better."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from helpers.dolma_golden import RUNS, digest, dolma, inputs, plain, token_records
from helpers.tokenizer_data import write_lines

TOKENIZER = ("--tokenizer.name_or_path", "tokenizer/tokenizer.json", "--tokenizer.eos_token_id", "2")
RUN_NAMES = sorted(name for name in RUNS if name.startswith("tokens_"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return inputs(tmp_path, "data/documents", "data_nested", "tokenizer", "configs")


@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("name", RUN_NAMES)
def test_golden(name: str, exact: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = RUNS[name]
    done = dolma(folder, *["--exact"] * exact, *run["argv"][1:], monkeypatch=monkeypatch)
    assert done.exit_code == run["returncode"], done.output
    paths = [folder / output["path"] for output in run["outputs"]]
    assert {path.name for path in paths} == {
        p.name for p in paths[0].parent.iterdir() if p.name.endswith((".npy", ".csv.gz"))
    }
    if "records_sha256" in run:
        records = [
            [key, src, loc, digest(np.array(tokens, "<u2").tobytes())[:16]]
            for key, src, loc, tokens in token_records(paths[0].parent)
        ]
        assert digest(json.dumps(sorted(records), ensure_ascii=False).encode()) == run["records_sha256"]
    else:
        for output, path in zip(run["outputs"], paths, strict=True):
            assert digest(plain(path)) == output["sha256"], path.name


def words(*more: object, documents: str = "a.jsonl") -> tuple[object, ...]:
    return ("tokens", "--documents", documents, "--destination", "out", *TOKENIZER, *more)


def write(folder: Path, *texts: str, name: str = "a.jsonl") -> None:
    write_lines(folder / name, [{"id": str(n), "text": text} for n, text in enumerate(texts)])


def test_a_seed_decides_the_order(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for out, seed in (("one", 1), ("two", 1), ("three", 2)):
        more = (*words(documents="data/documents"), "--destination", out, "--seed", seed, "--processes", 2)
        assert dolma(folder, *more, monkeypatch=monkeypatch).exit_code == 0
        found.append(token_records(folder / out))
    assert found[0] == found[1] != found[2]
    assert sorted(found[0]) == sorted(found[2])


def test_a_document_longer_than_a_file_has_a_file_of_its_own(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "one two", "long " * 100, "three four")
    done = dolma(folder, *words("--max_size", 50, "--batch_size", 1), monkeypatch=monkeypatch)
    assert done.exit_code == 0, done.output
    assert [record[0] for record in token_records(folder / "out")] == ["0", "1", "2"]
    assert len(list((folder / "out").glob("*.npy"))) == 3
    done = dolma(
        folder, "--exact", *words("--max_size", 50), "--destination", "exact", monkeypatch=monkeypatch
    )  # Dolma never ends there
    assert done.exit_code == 1 and "line 2" in done.output


def test_a_group_without_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "  ", "\n", name="a.jsonl")
    write(folder, "words", name="b.jsonl")
    more = ("--processes", 2, "--max_size", 1000)
    done = dolma(folder, *words(*more, documents="?.jsonl"), monkeypatch=monkeypatch)
    assert done.exit_code == 0 and "1 group of files had no tokens" in done.output
    assert "empty documents  2" in done.output
    assert len(list((folder / "out").glob("*.npy"))) == 1
    done = dolma(
        folder, "--exact", *words(*more, documents="?.jsonl"), "--destination", "exact", monkeypatch=monkeypatch
    )
    assert sorted(path.stat().st_size for path in (folder / "exact").glob("*.npy"))[1] == 2000  # of zeros


def test_bad_documents(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines: list[object] = [{"id": "0", "text": "one"}, b'{"id": "1", "te', {"id": 2, "text": "x"}, {"id": "3"}, b"", {}]
    write_lines(folder / "a.jsonl", [*lines, {"id": "6", "text": "six"}])
    done = dolma(folder, *words(), monkeypatch=monkeypatch)
    assert done.exit_code == 1 and "a.jsonl" in done.output and "line 2" in done.output
    assert not list((folder / "out").glob("*.npy"))
    done = dolma(folder, *words("--on_error", "skip", "--batch_size", 1), monkeypatch=monkeypatch)
    assert done.exit_code == 0 and "4 documents" in done.output and "a.jsonl line 3" in done.output
    records = token_records(folder / "out")
    assert [(record[0], record[2]) for record in records] == [("0", 1), ("6", 7)]
    done = dolma(folder, "--exact", *words(), "--destination", "exact", monkeypatch=monkeypatch)
    assert done.exit_code == 0 and sorted(token_records(folder / "exact")) == sorted(records)


@pytest.mark.parametrize("exact", [True, False])
def test_a_cut_file_is_never_passed_over(exact: bool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = gzip.compress(b'{"id": "1", "text": "words"}\n' * 10_000)
    (folder / "a.jsonl.gz").write_bytes(data[:-100])
    more = words("--on_error", "skip", documents="a.jsonl.gz")
    done = dolma(folder, *["--exact"] * exact, *more, monkeypatch=monkeypatch)
    assert done.exit_code == 1 and "a.jsonl.gz" in done.output
    assert not list((folder / "out").glob("*.npy"))


def test_types_of_tokens(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "one")
    for dtype, good, exact in (("uint32", True, False), ("uint32", False, True), ("uint8", False, True)):
        out = ("--destination", f"{dtype}{exact}", "--dtype", dtype)
        done = dolma(folder, *["--exact"] * (exact), *words(), *out, monkeypatch=monkeypatch)
        assert (done.exit_code == 0) == good, done.output
        if good:
            assert token_records(folder / f"{dtype}{exact}", "<u4")
        else:
            assert "uint16" in done.output
    done = dolma(folder, *words("--tokenizer.eos_token_id", 70_000), monkeypatch=monkeypatch)
    assert done.exit_code == 0, done.output  # the type follows the special ids too
    assert token_records(folder / "out", "<u4")[0][3][-1] == 70_000


def test_again_and_other_options(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, *["some words"] * 50)
    assert dolma(folder, *words("--max_size", 20), monkeypatch=monkeypatch).exit_code == 0
    before = {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    done = dolma(folder, *words("--max_size", 20), monkeypatch=monkeypatch)
    assert done.exit_code == 0 and "already complete" in done.output
    assert before == {path: path.stat().st_mtime_ns for path in (folder / "out").iterdir()}
    done = dolma(folder, *words("--max_size", 100), monkeypatch=monkeypatch)
    assert done.exit_code == 1 and "--overwrite" in done.output
    done = dolma(folder, *words("--max_size", 100, "--overwrite"), monkeypatch=monkeypatch)
    assert done.exit_code == 0 and len(token_records(folder / "out")) == 50  # no part of before is left


def test_ids_of_other_types(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lines(folder / "a.jsonl", [{"key": {"n": 7}, "text": "one"}, {"key": {"n": 8}, "text": "two"}])
    more = ("--fields.id_field_name", "key.n", "--fields.id_field_type", "int", "--batch_size", 1)
    assert dolma(folder, *words(*more), monkeypatch=monkeypatch).exit_code == 0
    assert [record[0] for record in token_records(folder / "out")] == ["7", "8"]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("--tokenizer.fast", "--no-tokenizer.fast"), "slow tokenizers"),
        (("--fields.text_field_type", "list"), "only text"),
        (("--fields.id_field_type", "uuid"), "unknown id type 'uuid'"),
        (("--fields.id_field_name", "text.x"), "text.x"),
        (("--on_error", "ignore"), "unknown error policy"),
        (("--ring_size", 0), "sizes"),
    ],
)
def test_refused(more: tuple[object, ...], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "one")
    done = dolma(folder, *words(*more), monkeypatch=monkeypatch)
    assert done.exit_code == 1 and message in done.output


def test_a_pattern_without_files_is_a_warning(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "one")
    done = dolma(folder, *words(documents="*.gz"), "--documents", "*.gz", "*.jsonl", monkeypatch=monkeypatch)
    assert done.exit_code == 0 and "no files match *.gz" in done.output
    done = dolma(folder, *words(documents="*.gz"), monkeypatch=monkeypatch)
    assert done.exit_code == 1 and "any pattern" in done.output


def test_without_bos_and_eos(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "one")
    (folder / "c.yaml").write_text("tokenizer: {name_or_path: tokenizer/tokenizer.json}\ndestination: out\n")
    done = dolma(folder, "-c", "c.yaml", "tokens", "--documents", "a.jsonl", monkeypatch=monkeypatch)
    assert done.exit_code == 1 and "nothing would separate documents" in done.output


def test_object_stores(folder: Path, s3_bucket: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from feedmill.storage import open_store

    rows = b"".join(b'{"id": "%d", "text": "some words"}\n' % n for n in range(30))
    open_store(s3_bucket).write_bytes("documents/a/0.jsonl.gz", gzip.compress(rows))
    more = ("--destination", f"{s3_bucket}/tokens", "--max_size", 30)
    again = words(*more, documents=f"{s3_bucket}/documents/**/*.gz")
    done = dolma(folder, *again, monkeypatch=monkeypatch)
    assert done.exit_code == 0, done.output
    store = open_store(f"{s3_bucket}/tokens")
    names = [entry.path for entry in store.files()]
    assert "part-0-00001.npy" in names and "part-0-00001.csv.gz" in names
    rows = b"".join(gzip.decompress(store.read(name)) for name in names if name.endswith(".csv.gz"))
    assert rows.count(f"{s3_bucket}/documents/a/0.jsonl.gz".encode()) == 30
    assert "already complete" in dolma(folder, *again, monkeypatch=monkeypatch).output


def test_dry_run_and_old_name(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "one")
    old = ("tokens", "--documents", "a.jsonl", "--tokenizer_name_or_path", "tokenizer/tokenizer.json")
    done = dolma(folder, *old, "--dryrun", monkeypatch=monkeypatch)
    assert done.exit_code == 0 and "max_size: 1073741824" in done.output and not (folder / "out").exists()
    done = dolma(folder, *old, "--destination", "out", monkeypatch=monkeypatch)
    assert done.exit_code == 0 and "deprecated" in done.output
    from feedmill.tokens.tokenizer import load_tokenizer

    last = load_tokenizer(folder / "tokenizer/tokenizer.json").vocab_size - 1
    assert token_records(folder / "out")[0][3][-1] == last
