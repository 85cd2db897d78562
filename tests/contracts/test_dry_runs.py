"""Every verb that writes has a dry run: it changes nothing, fails as the real run does, and names what that one writes.

`GOOD` has commands that work, `BAD` commands that fail, by verb. Both run dry first, then in earnest, on the same data.
"""

from __future__ import annotations

import inspect
import io
import json
import os
import shlex
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.cli.verbs import GROUPS, VERBS, function_of
from feedmill.indexing.prepare import prepare
from helpers.tars import write_tar
from helpers.web_archives import archive, pages

GOLDEN = Path(__file__).parents[1] / "golden"

READING = {
    *("info", "preview", "serve", "check", "stat", "mount", "decode", "numbers", "plan", "trace", "forget", "bench"),
    *("demo", "report", "cache"),
}
"""Verbs whose result is what they show, or one file that the user names; `cache` copies, and its `clear` asks."""

GOOD: dict[str, list[str]] = {
    "import": [
        "import texts imported",
        "import photos imported --max-shard-samples 2",
        "import table.csv imported --compression gz",
    ],
    "prepare": [
        "prepare plain --split-ratio 1,1,0 --sample-type CaptioningSample"
        ' --field-map \'{"image": "jpg", "caption": "txt"}\'',
        "prepare lines.jsonl --split-ratio 3,1,0",
        "prepare coco",
        "prepare plain --media-metadata-by-extension",
        "prepare damaged --on-error skip",
    ],
    "prepare-media": ["prepare-media coco --media-by-extension", "prepare-media photos --media-by-extension"],
    "convert": ["convert coco coco_mds --to mds --allow-loss", "convert lines.jsonl lines --to webdataset"],
    "reshard": [
        "reshard coco coco2 --max-shard-samples 2",
        "reshard plain plain2 --max-shard-size 4kB --shuffle 3",
        "reshard coco more --max-shard-samples 3 --overwrite",
        "reshard lines.jsonl lines --max-shard-samples 4",
    ],
    "append": [
        "append coco more",
        "append coco more --max-shard-samples 1 --pattern 'new/%03d.tar'",
        "append coco coco --prefix again/",
    ],
    "add-parts": [
        "add-parts coco parts",
        "add-parts coco parts --into joined",
        "add-parts coco few --on-error skip",
        "add-parts coco few --into joined --on-error skip",
    ],
    "delete": [
        "delete coco 000001 --yes",
        "delete coco 000000 000001 000002 --yes",
        "delete coco 000001 x --on-error skip -y",
    ],
    "repair": ["repair coco", "repair damaged", "repair bad.jsonl", "repair damaged/shard_1.tar"],
    "extract": ["extract crawl -o pages"],
    "tag": [
        "tag web/documents -t char_length_v1 --name lengths",
        "tag web/documents -t char_length_v1 -t bytes_length_v1 --output there",
    ],
    "dedupe": [
        "dedupe web/documents",
        "dedupe web/documents --by paragraphs --name copies",
        "dedupe web/documents --bloom seen.bin --items 1000",
        "dedupe web/documents --against web/documents",
    ],
    "neardedupe": ["neardedupe web/documents", "neardedupe web/documents --signatures signs"],
    "filter": ["filter books.pbin short.pbin --max-length 100", "filter mix.yaml"],
    "mix": ["mix mix.yaml"],
    "run": ["run pipeline.yaml", "run filtering.yaml"],
    "tokenize": [
        "tokenize docs.jsonl -o tokens/docs -t tokenizer",
        "tokenize web -o tokens/docs -t tokenizer --to pbin,ds,megatron,dolma",
        "tokenize docs.jsonl -o tokens/docs -t tokenizer --max-file-size 200",
        "tokenize bad.jsonl -o tokens/docs -t tokenizer --on-error skip",
        "tokenize docs.jsonl -o tokens/docs -t tokenizer --to vla-text --seq-len 8",
    ],
    "merge": [
        "merge books.pbin news.pbin all.pbin",
        "merge books.pbin news.pbin 'all_{part}.ds' --max-tokens-per-file 100",
        "merge books.pbin all.bin",
        "merge lines.jsonl more.jsonl all.jsonl",
    ],
    "shuffle": ["shuffle books.pbin mixed.ds", "shuffle books.pbin 'mixed_{part}.pbin' --max-file-size 2kB --seed 3"],
    "split": [
        "split books.pbin '{part}.pbin' --ratio 3,1",
        "split lines.jsonl 'lines_{part}.jsonl' --chunks 3",
    ],
    "index": [
        "index lines.jsonl",
        "index bad.jsonl --on-error skip",
        "index books.pbin",
        "index flat.bin --eos-id 0 --token-size 2",
    ],
}
"""Verb -> commands."""
BAD: dict[str, list[str]] = {
    "import": [
        "import nowhere imported",
        "import texts texts",
        "import empty imported",
        "import texts imported --encoding x",
    ],
    "prepare": [
        "prepare nowhere",
        "prepare damaged",
        "prepare twice",
        "prepare plain --split-ratio 0,0",
        'prepare plain --sample-type CaptioningSample --field-map \'{"image": "png", "caption": "txt"}\'',
        "prepare bad.jsonl",
        "prepare plain --split-parts train:x",
    ],
    "prepare-media": ["prepare-media nowhere --media-by-extension", "prepare-media texts --media-by-extension"],
    "convert": [
        "convert nowhere x --to mds",
        "convert coco x --to nothing",
        "convert coco more --to webdataset",
        "convert coco coco.jsonl --to jsonl",
        "convert coco tokenizer --to mds",
    ],
    "reshard": [
        "reshard nowhere x --max-shard-samples 2",
        "reshard coco more --max-shard-samples 2",
        "reshard coco x",
        "reshard coco coco/below --max-shard-samples 2",
        "reshard books.pbin x --max-shard-samples 2",
        "reshard lines.jsonl x --max-shard-size 1kB",
    ],
    "append": ["append coco coco", "append plain more", "append coco nowhere", "append typed parts --prefix x/"],
    "add-parts": [
        "add-parts coco few",
        "add-parts coco coco",
        "add-parts plain parts",
        "add-parts coco more --on-error skip",
        "add-parts coco parts --part-name nothing",
        "add-parts coco parts --into more",
    ],
    "delete": ["delete coco x --yes", "delete nowhere 000001 --yes", "delete more 000006 000007 --yes"],
    "repair": ["repair nowhere", "repair books.pbin", "repair wholly.jsonl"],
    "extract": ["extract nowhere -o pages", "extract texts -o pages", "extract crawl -o pages --linearizer x"],
    "tag": [
        "tag nowhere -t char_length_v1",
        "tag web/documents -t nothing_v1",
        "tag noid/documents -t char_length_v1",
        "tag none/documents -t char_length_v1",
        "tag noid/documents -t char_length_v1 --on-error skip",
    ],
    "dedupe": [
        "dedupe nowhere",
        "dedupe docs.jsonl",
        "dedupe web/documents --ngram 3",
        "dedupe none/documents",
        "dedupe notext/documents",
        "dedupe web/documents --bloom nothing.bin --read-only",
    ],
    "neardedupe": [
        "neardedupe nowhere",
        "neardedupe noid/documents",
        "neardedupe none/documents",
        "neardedupe web/documents --signatures texts",
    ],
    "filter": [
        "filter nowhere.pbin short.pbin",
        "filter books.pbin short.pbin --min-length 100000",
        "filter nowhere.yaml",
        "filter typo.yaml",
        "filter nothing.yaml",
    ],
    "mix": ["mix nowhere.yaml", "mix nothing.yaml"],
    "run": ["run nowhere.yaml", "run broken.yaml"],
    "tokenize": [
        "tokenize nowhere -o t -t tokenizer",
        "tokenize docs.jsonl -o t -t nothing",
        "tokenize docs.jsonl -o t -t tokenizer --text body",
        "tokenize docs.jsonl -o t -t tokenizer --text body --on-error skip",
        "tokenize docs.jsonl -o books -t tokenizer",
        "tokenize none -o t -t tokenizer",
        "tokenize bad.jsonl -o t -t tokenizer",
        "tokenize docs.jsonl -o t -t tokenizer --to vla-text",
    ],
    "merge": [
        "merge nowhere.pbin all.pbin",
        "merge books.pbin news.pbin",
        "merge books.pbin books.pbin --overwrite",
        "merge books.pbin lines.jsonl all.pbin",
        "merge books.pbin all.pbin --max-tokens-per-file 5",
    ],
    "shuffle": ["shuffle nowhere.pbin x.pbin", "shuffle books.pbin news.pbin", "shuffle books.pbin x.txt"],
    "split": [
        "split nowhere.pbin '{part}.pbin' --chunks 2",
        "split books.pbin x.pbin --chunks 2",
        "split books.pbin '{part}.pbin'",
        "split books.pbin '{part}.pbin' --plan nowhere.yaml",
    ],
    "index": ["index nowhere.jsonl", "index bad.jsonl", "index indexed.jsonl", "index flat.bin", "index tokenizer"],
}
"""Verb -> commands that fail."""


def commands(table: dict[str, list[str]]) -> list[Any]:
    return [pytest.param(verb, command, id=command) for verb, listed in table.items() for command in listed]


def captions(first: int, count: int) -> list[tuple[str, bytes]]:
    return [
        (f"{n:06d}.{part}", body)
        for n in range(first, first + count)
        for part, body in (("jpg", picture()), ("txt", b"one"))
    ]


def picture() -> bytes:
    image = io.BytesIO()
    Image.fromarray(np.zeros((8, 8, 3), np.uint8)).save(image, "JPEG")
    return image.getvalue()


def data(root: Path) -> None:
    """Inputs of all commands."""
    for folder, first in (("coco", 0), ("plain", 0), ("typed", 0)):
        write_tar(root / folder / "shard_0.tar", captions(first, 3))
        write_tar(root / folder / "shard_1.tar", captions(first + 3, 3))
    write_tar(root / "more/shard_0.tar", captions(6, 2))
    write_tar(root / "parts/shard_0.tar", [(f"{number:06d}.cls", b"1") for number in range(6)])
    write_tar(root / "few/shard_0.tar", [("000001.cls", b"1")])
    for folder in ("coco", "more", "parts", "few"):
        prepare(root / folder, split_ratio="1,0,0", progress=False)
    fields = {"image": "jpg", "caption": "txt"}
    prepare(root / "typed", sample_type="CaptioningSample", field_map=fields, progress=False)
    write_tar(root / "damaged/shard_0.tar", captions(0, 3))
    whole = write_tar(root / "damaged/shard_1.tar", captions(3, 3)).read_bytes()
    (root / "damaged/shard_1.tar").write_bytes(whole[:3000])
    for number in range(2):
        write_tar(root / f"twice/shard_{number}.tar", captions(0, 2))
    (root / "texts").mkdir()
    (root / "photos").mkdir()
    for number in range(3):
        (root / f"texts/note_{number}.txt").write_text(f"Note {number} is a text.\n")
        (root / f"photos/{number}.jpg").write_bytes(picture())
        (root / f"photos/{number}.txt").write_text("A black square.")
    (root / "photos/3.jpg").write_bytes(picture())  # without a caption
    (root / "empty").mkdir()
    (root / "table.csv").write_text("id,text\na,One text.\nb,Another text.\n")
    documents(root)
    for name in ("books", "news"):
        source = {"books": "main_2b", "news": "crlf_2b"}[name]
        shutil.copyfile(GOLDEN / f"modalities/{source}.pbin", root / f"{name}.pbin")
    (root / "flat.bin").write_bytes(np.asarray([5, 6, 0, 7, 0], "<u2").tobytes())
    shutil.copytree(GOLDEN / "nanosets/tok1k", root / "tokenizer")
    archive(root / "crawl/a.warc.gz", pages(3))


def documents(root: Path) -> None:
    rows = [{"id": f"d{n}", "text": f"Document {n} has a few words. " * (n + 1)} for n in range(6)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    for folder in ("web", "noid", "notext", "none"):
        (root / folder / "documents").mkdir(parents=True)
    for path in ("docs.jsonl", "lines.jsonl", "more.jsonl", "indexed.jsonl", "web/documents/part-0.jsonl"):
        (root / path).write_text(lines)
    (root / "indexed.idx").write_bytes(b"")
    (root / "web/documents/part-1.jsonl").write_text(lines.replace('"d', '"e'))
    (root / "noid/documents/part-0.jsonl").write_text('{"text": "one"}\n')
    (root / "notext/documents/part-0.jsonl").write_text('{"id": "one"}\n')
    (root / "none/documents/part-0.jsonl").write_text("")
    (root / "bad.jsonl").write_text(lines + "not JSON\n" + lines)
    (root / "wholly.jsonl").write_text("not JSON\n")
    stream = "streams: [{name: web, documents: [web/documents/*], filter: {include: [%s]}, output: {path: kept}}]\n"
    (root / "mix.yaml").write_text(stream % '"$.id"')
    (root / "typo.yaml").write_text((stream % '"$.id"').replace("filter:", "fliter:"))
    (root / "nothing.yaml").write_text(stream % '"$.nothing"')
    step = "{verb: dedupe, inputs: [web/documents], outputs: [web/attributes/copies], options: {name: copies}}"
    (root / "pipeline.yaml").write_text(f"steps: [{step}]")
    (root / "broken.yaml").write_text(f"steps: [{step.replace('web/', 'notext/', 1)}]")
    after = "{verb: filter, inputs: [web], outputs: [kept], options: {inputs: mix.yaml}}"
    (root / "filtering.yaml").write_text(f"steps: [{after}]")


@pytest.fixture(scope="session")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dry-runs")
    data(root)
    return root


@pytest.fixture
def root(template: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(template, tmp_path / "data")  # keeps times, which indices know
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path / "data")
    return tmp_path / "data"


def state(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return mode, time of change and content of every file and folder; a folder's content is the names in it."""
    found = {}
    for folder, _, names in os.walk(root):
        for path in [folder, *(os.path.join(folder, name) for name in names)]:
            status = os.lstat(path)
            content = b"" if os.path.isdir(path) else Path(path).read_bytes()
            found[os.path.relpath(path, root)] = (status.st_mode, status.st_mtime_ns, content)
    return found


def run(command: str, *more: str) -> Any:
    done = CliRunner().invoke(app, [*shlex.split(command), *more])
    assert done.exception is None or isinstance(done.exception, SystemExit), command
    assert "defect" not in done.output, done.output
    return done


def test_every_verb_that_writes_is_here() -> None:
    others = set(GROUPS["Commands of other tools"]) - {"mix"}
    writing = set(VERBS) - READING - others
    assert set(GOOD) == set(BAD) == writing


@pytest.mark.parametrize("verb", sorted(GOOD))
def test_the_function_has_the_option_too(verb: str) -> None:
    module = import_module(VERBS[verb].module)
    here = inspect.signature(getattr(module, function_of(verb))).parameters["dry_run"]
    assert here.default is False
    if verb != "mix":
        face = getattr(fm, {"import": "import_data"}.get(verb, function_of(verb)))
        assert inspect.signature(face).parameters["dry_run"].default is False


@pytest.mark.parametrize(("verb", "command"), commands(GOOD))
def test_a_dry_run_changes_nothing_and_names_the_outputs(root: Path, verb: str, command: str) -> None:
    before = state(root)
    dry = run(command, "--dry-run", "--json")
    assert dry.exit_code in (0, 1), dry.output  # 1: lines were skipped, as in earnest
    after = state(root)
    assert after == before, set(after) ^ set(before) or {path for path in after if after[path] != before[path]}
    shown = run(command, "--dry-run")
    assert state(root) == before and shown.exit_code == dry.exit_code
    done = run(command)
    assert done.exit_code == dry.exit_code, done.output
    planned = json.loads(dry.stdout)["dry_run"]
    line = "dry run: " + ("nothing was written" if planned["outputs"] else "there is nothing to write")
    assert line in shown.stdout.splitlines()  # `convert` shows its plan before, and `run` its steps
    compare(root, planned, before, state(root))


def compare(root: Path, planned: dict[str, Any], before: dict[str, Any], after: dict[str, Any]) -> None:
    """Check that what a dry run names is what the real run has written, replaced and deleted."""
    outputs = {relative(root, out["path"]): out for out in planned["outputs"]}
    changed = {path for path, what in after.items() if (root / path).is_file() and what != before.get(path)}
    companions = {path for path in changed if is_companion(path, outputs)}
    assert not {path for path in changed - companions if not any(names(out, path) for out in outputs)}, outputs
    for out, facts in outputs.items():
        made = [path for path in after if names(out, path) and (root / path).is_file()]
        assert made, f"{out} was not written: {sorted(changed)}"
        assert facts["replaces"] == (out.rstrip("/") in before), out
        if facts["bytes"] is not None:
            assert 0.5 < (root / out).stat().st_size / facts["bytes"] <= 1, out
    gone = {path for path in before if path not in after and not is_companion(path, dict.fromkeys(before, 0))}
    assert gone == {relative(root, path) for path in planned["deletes"]}


def relative(root: Path, path: str) -> str:
    return os.path.relpath(root / path, root) + ("/" if path.endswith("/") else "")


def names(out: str, path: str) -> bool:
    """Return whether a planned name stands for a file."""
    if out.endswith("/"):
        return path.startswith(out)
    before, part, behind = out.partition("{part}")
    return path.startswith(before) and path.endswith(behind) if part else path == out


def is_companion(path: str, outputs: dict[str, Any]) -> bool:
    """Return whether a file belongs to another one: an index, a manifest, a lineage, a record, a lock."""
    folder, _, name = path.rpartition("/")
    if "/.feedmill/" in f"/{path}" or name.startswith(".feedmill"):
        return True
    stem = name.removesuffix(".idx") if name.endswith(".tar.idx") else ""
    beside = (".feedmill.json", ".lineage", ".feedmill-lock", ".feedmill.loss", ".feedmill.bounds", ".metadata")
    return (bool(stem) and f"{folder}/{stem}".lstrip("/") in outputs) or name.endswith(beside)


@pytest.mark.parametrize(("verb", "command"), commands(BAD))
def test_a_dry_run_fails_as_the_real_run(root: Path, verb: str, command: str) -> None:
    before = state(root)
    dry = run(command, "--dry-run", "--json")
    assert state(root) == before
    done = run(command, "--json")
    assert dry.exit_code == done.exit_code == 1, (verb, dry.output, done.output)
    if verb != "tag":  # its errors are part of a report where invalid files are skipped
        assert error_of(dry.stdout) == error_of(done.stdout)


def error_of(text: str) -> Any:
    found = json.loads(text)
    error = dict(found.get("error") or (found.get("failed") or found.get("remaining"))[0])
    return {**error, "file": os.path.abspath(error.get("file") or "")}  # processes name it in full


def test_a_dry_run_of_finished_work_has_nothing_to_do(root: Path) -> None:
    for command in ("tag web/documents -t char_length_v1", "dedupe web/documents", "neardedupe web/documents"):
        assert run(command).exit_code == 0
        before = state(root)
        assert run(command, "--dry-run").stdout.startswith("dry run: there is nothing to write"), command
        assert state(root) == before


def test_a_dry_run_leaves_the_work_of_a_killed_run(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both for the same command, which would resume, and for another one, which is refused as in earnest."""
    killed(monkeypatch, "feedmill.tokens.rewrite.run", "merge books.pbin news.pbin all.pbin")
    before = state(root)
    assert any("feedmill-work" in path for path in before)
    assert run("merge books.pbin news.pbin all.pbin", "--dry-run").exit_code == 0
    other = run("merge news.pbin books.pbin all.pbin", "--dry-run")
    assert other.exit_code == 1 and "was not finished" in other.output
    assert state(root) == before
    assert run("merge books.pbin news.pbin all.pbin").exit_code == 0


def killed(monkeypatch: pytest.MonkeyPatch, function: str, command: str) -> None:
    def stop(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(function, stop)
        assert run(command).exit_code == 130


@pytest.mark.parametrize("verb", ["merge", "reshard", "tag"])
def test_python_has_the_same_dry_run(root: Path, verb: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "merge": lambda: fm.merge(["books.pbin", "news.pbin"], "all.pbin", dry_run=True),
        "reshard": lambda: fm.reshard("coco", "x", max_shard_samples=2, dry_run=True, progress=False),
        "tag": lambda: fm.tag(["web/documents"], ["char_length_v1"], dry_run=True, progress=False),
    }
    before = state(root)
    report = calls[verb]()
    assert state(root) == before
    assert report.dry_run.outputs and report.as_dict()["dry_run"] == report.dry_run.as_dict()
    assert report.dry_run.files == {"merge": 2, "reshard": 2, "tag": 2}[verb]


def test_a_dry_run_sees_that_another_process_writes(root: Path) -> None:
    from feedmill.jobs.work import Work
    from feedmill.storage import open_store

    with Work(open_store("."), "all.pbin") as work:
        work.begin({"verb": "other"})
        dry = run("merge books.pbin news.pbin all.pbin", "--dry-run", "--json")
        assert error_of(dry.stdout)["kind"] == "busy"
