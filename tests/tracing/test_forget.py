"""What `forget` reports is all that holds a document, and its lists remove it from the next filter, file and run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.errors import ConfigError, NotFound
from feedmill.tracing.forget import forget
from helpers.lineage_data import TOKENIZER, build


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("forget")
    build(folder, 240)
    return folder


def kept_ids(root: Path) -> list[str]:
    """The ids that the filter kept, in the order of the token file."""
    import gzip

    files = sorted((root / "kept").glob("*.gz"))
    return [json.loads(line)["id"] for path in files for line in gzip.decompress(path.read_bytes()).splitlines()]


def test_the_lists_remove_the_documents(root: Path, tmp_path: Path) -> None:
    ids = kept_ids(root)
    gone = [ids[3], ids[17]]
    paths = [root / "recipe.yaml", root / "tokens/web.ds", root / "kept"]
    report = forget(gone, paths, report=tmp_path / "gone", global_batch=4)
    assert [one.id for one in report.documents] == gone
    assert report.files[str(root / "tokens/web.pbin")] == report.files[str(root / "tokens/web.ds")] == [3, 17]
    for one in report.documents:
        seen = one.seen[str(root / "recipe.yaml")]
        assert seen["times"] >= 2 and seen["steps"] and f"{root}/attributes/quality" in str(one.document.attributes)
    # the recipe skips them, the token file is written without them, and so are the documents
    recipe = yaml.safe_load((root / "recipe.yaml").read_text())
    recipe["skip"] = [{"quarantine": str(tmp_path / "gone/skip-recipe.jsonl")}]
    (root / "skipping.yaml").write_text(yaml.safe_dump(recipe))
    assert {one["index"] for one in fm.trace(root / "skipping.yaml", document=3).facts["found"]} == {3}
    assert fm.trace(root / "skipping.yaml", document=3).facts["found"][0]["times"] == 0
    assert fm.trace(root / "skipping.yaml", document=4).facts["found"][0]["times"] > 0
    numbers = [int(line) for line in (tmp_path / "gone/drop-web.ds.txt").read_text().splitlines() if line[0] != "#"]
    fm.filter([str(root / "tokens/web.ds")], str(tmp_path / "less.ds"), drop=numbers)
    assert len(fm.open(tmp_path / "less.ds")) == len(ids) - 2
    with pytest.raises(ConfigError):
        forget(gone, paths, report=tmp_path / "gone")
    # by the list itself, which names the data that its numbers count in
    (tmp_path / "less.ds").unlink()
    words = ["--drop", str(tmp_path / "gone/drop-web.ds.txt"), "--overwrite"]
    web, less = str(root / "tokens/web.ds"), str(tmp_path / "less.ds")
    runner = CliRunner()
    assert runner.invoke(app, ["filter", web, less, *words]).exit_code == 0 and len(fm.open(less)) == len(ids) - 2
    for inputs in ([less], [web, web]):
        done = runner.invoke(app, ["filter", *inputs, str(tmp_path / "other.ds"), *words])
        assert done.exit_code == 1 and "counts in another file, or in one that has changed since" in done.output
    assert json.loads((tmp_path / "gone/report.json").read_text())["files"] == report.files


def test_exclusions_filter_the_raw_documents(root: Path, tmp_path: Path) -> None:
    gone = kept_ids(root)[5]
    forget(gone, root / "kept", report=tmp_path / "gone")
    stream = {
        "name": "less",
        "documents": [str(root / "documents/*")],
        "filter": yaml.safe_load((tmp_path / "gone/exclude.yaml").read_text()),
        "output": {"path": str(tmp_path / "less")},
    }
    report = fm.filter({"streams": [stream]}, workers=1, progress=False)
    assert report.streams[0].counts.kept == 239
    assert not (tmp_path / "gone/skip-recipe.jsonl").exists()  # no recipe was given


def test_bad_input_is_one_clear_error(root: Path, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="no raw file has a document with this id"):
        forget("nobody", root / "kept")
    with pytest.raises(ConfigError, match="no document was given"):
        forget([], root / "kept")
    (tmp_path / "a.jsonl").write_text('{"id": "a", "text": "b"}\n')
    with pytest.raises(NotFound, match="no raw file"):
        forget("b", tmp_path / "a.jsonl")
    (tmp_path / "endless.yaml").write_text(f"blend: [{{path: {root / 'tokens/web.pbin'}}}]\n")
    with pytest.raises(ConfigError, match="endless"):
        forget(kept_ids(root)[0], tmp_path / "endless.yaml")


def test_the_command_prints_where_documents_are(root: Path, tmp_path: Path) -> None:
    one, two = kept_ids(root)[:2]
    (tmp_path / "ids.txt").write_text(f"{one}\n\n{two}\r\n")
    done = CliRunner().invoke(
        app, ["documents", "forget", f"@{tmp_path / 'ids.txt'}", str(root / "recipe.yaml"), "--global-batch", "4"]
    )
    assert done.exit_code == 0, done.output
    assert f"{one}: {root}/documents/" in done.stdout and "in steps" in done.stdout and "hold them" in done.stdout
    data = CliRunner().invoke(app, ["documents", "forget", f"{one},{two}", str(root / "recipe.yaml"), "--json"])
    assert [entry["id"] for entry in json.loads(data.stdout)["documents"]] == [one, two]
    bare = CliRunner().invoke(app, ["documents", "forget", str(tmp_path / "ids.txt"), str(root / "recipe.yaml")])
    assert bare.exit_code == 1 and f"pass @{tmp_path / 'ids.txt'} to search" in bare.output
    failed = CliRunner().invoke(app, ["trace", str(root / "recipe.yaml"), "--source-document", "nobody"])
    assert failed.exit_code == 1 and "no raw file" in failed.output
    shown = CliRunner().invoke(app, ["trace", str(root / "recipe.yaml"), "--document", "1", "--origins", "--show"])
    assert shown.exit_code == 0 and f'"id": "{two}"' in shown.stdout


def tokens_of(path: Path, data: bytes, **options: object) -> Path:
    """Write a file of documents and its tokens; return the token file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    fm.tokenize([str(path)], str(path.with_suffix("")), tokenizer=TOKENIZER, workers=1, progress=False, **options)
    return path.with_suffix(".pbin")


def test_an_id_is_found_however_its_json_is_written(tmp_path: Path) -> None:
    lines = [
        b'\xef\xbb\xbf{"id": "bom", "text": "a"}',
        json.dumps({"id": "é1", "text": "b"}, ensure_ascii=False).encode(),
        json.dumps({"id": "é1", "text": "c"}).encode(),
        rb'{"id": "https:\/\/x.org", "text": "d"}',
        b'{"id": "n1", "text": "e", "score": NaN}',
        rb'{"\u0069d": 7, "text": "f"}',
        b'{"id": null, "text": "g"}',
    ]
    tokens = tokens_of(tmp_path / "a.jsonl", b"\n".join(lines))
    assert len(fm.open(tokens)) == len(lines)
    report = forget(["bom", "é1", "https://x.org", "n1", "7"], tokens, report=tmp_path / "gone")
    found = [(one.asked, one.id, one.document.row) for one in report.documents]
    assert found == [
        ("bom", "bom", 0),
        ("é1", "é1", 1),
        ("é1", "é1", 2),
        ("https://x.org", "https://x.org", 3),
        ("n1", "n1", 4),
        ("7", 7, 5),
    ]
    assert report.files[str(tokens)] == [0, 1, 2, 3, 4, 5]
    rules = yaml.safe_load((tmp_path / "gone/exclude.yaml").read_text())["exclude"]
    assert sorted(rules) == sorted(f".id == {one}" for one in ('"bom"', '"é1"', '"https://x.org"', '"n1"', "7"))
    with pytest.raises(NotFound, match="no raw file has a document with this id"):
        forget("None", tokens)


def test_a_folder_is_searched_as_a_whole(tmp_path: Path) -> None:
    data = b'{"id": "a", "text": "b"}\n'
    folder = tmp_path / "f"
    (tmp_path / "a.jsonl").write_bytes(data)
    fm.tokenize([str(tmp_path / "a.jsonl")], str(folder / "a"), tokenizer=TOKENIZER, workers=1, progress=False)
    (folder / "extra.jsonl").write_bytes(b"\n" + data)
    (folder / "attributes/x").mkdir(parents=True)
    (folder / "attributes/x/extra.jsonl").write_bytes(b'\n{"id": "a", "attributes": {}}\n')
    (folder / "README.txt").write_bytes(b"\xff")
    (folder / ".hidden.jsonl").write_bytes(data)
    report = forget("a", folder)
    found = {"a.jsonl": [0], "f/extra.jsonl": [1], "f/a.pbin": [0]}
    assert report.files == {str(tmp_path / name): rows for name, rows in found.items()}


@pytest.mark.parametrize("format", ["pbin", "ds", "megatron", "dolma"])
def test_tokens_without_lineage_are_an_error(tmp_path: Path, format: str) -> None:
    data = b'{"id": "a", "text": "b"}\n'
    known = tokens_of(tmp_path / "known.jsonl", data)
    lost = tokens_of(tmp_path / "f/lost.jsonl", data, formats=(format,))
    merged = tmp_path / "merged.pbin"
    for path in (tmp_path / "f").glob("*.feedmill.lineage"):
        path.unlink()
    main = {"megatron": ".idx", "dolma": ".npy"}.get(format, f".{format}")
    fm.tokens.merge([str(lost.with_suffix(main))], str(merged), progress=False)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"concat": [{"path": str(known)}, {"path": str(lost.with_suffix(main))}]}))
    for paths in (tmp_path / "f", [known, lost.with_suffix(main)], [known, merged], recipe):
        with pytest.raises(NotFound, match=r"f/lost\.\w+: .*has no lineage") as caught:
            forget("a", paths)
        assert caught.value.kind == "no-lineage"
    assert forget("a", known).files


def test_columns_of_bytes_do_not_hide_documents(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    images = [{"bytes": b"\xff\xd8", "name": "x"}, {"bytes": b"plain", "name": "y"}]
    table = pa.table({"id": ["a", "b"], "text": ["x", "y"], "image": images, "blob": [b"\xff", None]})
    raw = tmp_path / "a.parquet"
    pytest.importorskip("pyarrow.parquet").write_table(table, raw)
    tokens = tmp_path / "a.pbin"
    fm.tokenize([str(raw)], str(tmp_path / "a"), tokenizer=TOKENIZER, workers=1, progress=False)
    for word, row in {"b": 1, "a.parquet:1": 0}.items():
        (one,) = forget(word, tokens).documents
        assert (one.document.row, one.id) == (row, "ab"[row])
    (tmp_path / "run.yaml").write_text(f"concat: [{{path: {tokens}}}]\n")
    found = fm.trace(tmp_path / "run.yaml", document=0, origins=True, show=True, samples=2).facts["found"]
    shown = {"id": "a", "text": "x", "image": {"bytes": "(2 bytes)", "name": "x"}, "blob": "(1 bytes)"}
    assert json.loads(found[0]["origins"][0]["text"]) == shown
