"""Outputs of pipelines: files of others stay as they are, and what a step no longer writes is deleted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import feedmill as fm
from feedmill.errors import ConfigError, DataError
from feedmill.pipelines.history import History
from helpers.document_folders import write_documents
from helpers.engine_verbs import TOKENIZER
from helpers.web_archives import archive, pages

Step = dict[str, Any]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("web", "books"):
        write_documents(tmp_path / name, [f"{name} {number}" for number in range(3)])
    monkeypatch.chdir(tmp_path)
    return tmp_path


def kept(name: str, *, at_least: int = 1, stream: str = "") -> Step:
    """Return a step that filters the documents of a folder into ``kept``."""
    output = {"path": "kept", "min_text_length": at_least}
    streams = [{"name": stream or name, "documents": [f"{name}/documents/*"], "output": output}]
    where = {"name": name, "verb": "filter", "inputs": [f"{name}/documents"], "outputs": ["kept"]}
    return {**where, "options": {"inputs": {"streams": streams}}}


def tokens(of: str, to: str = "tok/x", **options: Any) -> Step:
    return {"verb": "tokenize", "inputs": [of], "outputs": [to], "options": {"tokenizer": TOKENIZER, **options}}


def tag(name: str = "lengths", *taggers: str) -> Step:
    options = {"taggers": list(taggers) or ["char_length_v1"], "name": name}
    return {"verb": "tag", "inputs": ["web/documents"], "outputs": [f"web/attributes/{name}"], "options": options}


def ran(*steps: Step, **options: Any) -> list[str]:
    """Run a pipeline of steps; return the names of those that were not up to date."""
    Path("p.json").write_text(json.dumps({"steps": steps}))
    return [step.name for step in fm.run("p.json", progress=False, **options).steps if step.ran]


def test_a_filter_deletes_no_file_of_others(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    Path("kept").mkdir()
    Path("kept/extra.jsonl").write_text('{"id": "mine", "text": "only copy"}\n')
    assert ran(kept("web")) == ["web"]
    Path("kept/later.jsonl").write_text("{}\n")
    assert ran(kept("web")) == []
    assert ran(kept("web", at_least=2)) == ["web"]
    assert sorted(os.listdir("kept")) == ["extra.jsonl", "later.jsonl", "web-0000.jsonl.gz"]
    assert "deleted" not in caplog.text


def test_two_steps_may_write_to_one_folder(folder: Path) -> None:
    steps = [kept("web"), kept("books"), tokens("kept")]
    assert ran(*steps) == ["web", "books", "tokenize"]
    assert ran(*steps) == []
    assert ran(*steps, overwrite=True) == ["web", "books", "tokenize"]
    assert ran(kept("web"), kept("books", at_least=2), tokens("kept")) == ["books"]  # the same documents
    assert sorted(os.listdir("kept")) == ["books-0000.jsonl.gz", "web-0000.jsonl.gz"]
    assert len(fm.open("tok/x.pbin")) == 6


def test_a_step_does_not_replace_what_another_one_wrote(folder: Path) -> None:
    with pytest.raises(ConfigError, match="would replace a file that the step 'web' has written") as caught:
        ran(kept("web"), kept("books", stream="web"))
    assert caught.value.file == "kept/web-0000.jsonl.gz" and caught.value.kind == "exists"
    Path("p.json").write_text(json.dumps({"steps": [kept("web"), kept("books", stream="web")]}))
    with pytest.raises(ConfigError, match="that the step 'web' has written"):
        fm.run("p.json", dry_run=True)


def test_token_files_of_others_stay_when_a_format_is_added(folder: Path) -> None:
    fm.tokenize(["books/documents"], "tok/x", tokenizer=TOKENIZER, formats=["ds"], progress=False)
    before = {name: Path("tok", name).read_bytes() for name in os.listdir("tok")}
    assert ran(tokens("web/documents")) == ["tokenize"]
    with pytest.raises(ConfigError, match="not written") as caught:
        ran(tokens("web/documents", formats=["pbin", "ds"]))
    assert caught.value.file == "tok/x.ds"
    assert ran(tokens("web/documents", eos=None)) == ["tokenize"]  # its own file is replaced
    assert {name: Path("tok", name).read_bytes() for name in before} == before


def test_attributes_and_documents_of_others_are_not_replaced(folder: Path) -> None:
    for path in ("web/attributes/lengths/part-0.jsonl.gz", "kept/web-0000.jsonl.gz"):
        Path(path).parent.mkdir(parents=True)
        Path(path).write_bytes(b"mine")
    for step in (tag(), kept("web")):
        with pytest.raises(ConfigError) as caught:
            ran(step)
        assert caught.value.kind == "exists"
    assert Path("kept/web-0000.jsonl.gz").read_bytes() == b"mine"
    assert Path("web/attributes/lengths/part-0.jsonl.gz").read_bytes() == b"mine"


def test_outputs_before_an_error_are_the_step_s(folder: Path) -> None:
    write_documents(folder / "web", ["a"], ["b"])
    good = Path("web/documents/part-1.jsonl.gz").read_bytes()
    Path("web/documents/part-1.jsonl.gz").write_bytes(b"not compressed")
    with pytest.raises(DataError):
        ran(tag())
    assert Path("web/attributes/lengths/part-0.jsonl.gz").exists()
    Path("web/documents/part-1.jsonl.gz").write_bytes(good)
    assert ran(tag("lengths", "doc_count_v1")) == ["tag"]


def test_archives_that_are_gone_leave_no_documents(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    for package in ("fastwarc", "resiliparse"):
        pytest.importorskip(package)
    for name in ("c1", "c2"):
        archive(folder / f"arcs/{name}.warc.gz", pages(1, name))
    extract = {"verb": "extract", "inputs": ["arcs"], "outputs": ["x"]}
    assert ran(extract, tokens("x/documents")) == ["extract", "tokenize"]
    os.remove("arcs/c2.warc.gz")
    assert ran(extract, tokens("x/documents")) == ["extract", "tokenize"]
    assert os.listdir("x/documents") == ["c1.jsonl.gz"] and "c2.jsonl.gz: deleted" in caplog.text
    assert len(fm.open("tok/x.pbin")) == 1


def test_parts_that_are_gone_leave_no_files(folder: Path) -> None:
    def split(*names: str) -> Step:
        options = {"output": "parts/{part}.pbin", "ratio": dict.fromkeys(names, 1), "seed": 1}
        return {"verb": "split", "inputs": ["tok/x.pbin"], "outputs": ["parts"], "options": options}

    first = tokens("web/documents")
    ran(first, split("a", "b", "c"))
    Path("parts/mine.pbin").write_bytes(b"mine")
    Path("p.json").write_text(json.dumps({"steps": [first, split("a", "b")]}))
    planned = fm.run("p.json", dry_run=True).dry_run
    assert planned is not None and str(folder / "parts/c.pbin") in planned.deletes
    assert ran(first, split("a", "b")) == ["split"]
    assert {name.split(".")[0] for name in os.listdir("parts")} == {"a", "b", "mine"}


def test_a_size_of_files_may_be_added_and_removed(folder: Path) -> None:
    ran(tokens("web/documents"))
    assert ran(tokens("web/documents", max_file_size=100)) == ["tokenize"]
    assert not Path("tok/x.pbin").exists() and len(list(Path("tok").glob("x_*.pbin"))) > 1
    assert ran(tokens("web/documents")) == ["tokenize"]
    assert [path.name for path in Path("tok").glob("*.pbin")] == ["x.pbin"]


def test_parts_that_published_outputs_own_them(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run that ends a step finds what its parts have published: it is the step's."""
    Path("p.json").write_text(json.dumps({"steps": [tag()]}))
    monkeypatch.setattr("feedmill.pipelines.history.is_alone", lambda: False)

    def record(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(History, "record", record)
        fm.run("p.json", progress=False)
    monkeypatch.undo()
    os.chdir(folder)
    assert ran(tag()) == ["tag"] and ran(tag("lengths", "doc_count_v1")) == ["tag"]


def test_outputs_that_are_complete_are_taken_over(folder: Path) -> None:
    steps = [kept("web"), tokens("kept")]
    ran(*steps)
    os.remove("p.run.json")
    assert ran(*steps) == ["web", "tokenize"]
    assert ran(kept("web"), tokens("kept", eos=None)) == ["tokenize"]
    shutil.rmtree("kept")
    assert ran(kept("web"), tokens("kept", eos=None)) == ["web"]
