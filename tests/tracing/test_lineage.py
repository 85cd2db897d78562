"""Every row leads to its raw line, byte for byte, through filter, dedupe, tokenize and pack; and back."""

from __future__ import annotations

import functools
import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.documents.lineage.chain import Descent, Lineages, read_raw
from feedmill.documents.lineage.sidecar import Origins, Runs, read_lineage
from feedmill.errors import ConfigError, DataError, NotFound
from feedmill.planning import ledger
from feedmill.tokens.outputs import FORMATS as ENDS
from feedmill.tracing.document import Documents, sightings
from feedmill.tracing.held import Held
from feedmill.tracing.trace import trace
from helpers.durations import slow_but
from helpers.lineage_data import FORMATS, SEQUENCE, build
from helpers.tokenizer_data import loaded

COUNTS = [2000, pytest.param(100_000, marks=pytest.mark.slow)]


@pytest.fixture(scope="module", params=COUNTS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[bytes]]]:
    root = tmp_path_factory.mktemp("lineage")
    return root, build(root, request.param, max_size=60_000 * request.param // 2000)


@functools.cache
def ids_of(line: bytes) -> list[int]:
    """The token ids of a raw line, with the EOS."""
    tokenizer = loaded()
    assert tokenizer.declared_eos is not None
    return [*tokenizer.encode([json.loads(line)["text"]])[0].tolist(), tokenizer.require(tokenizer.declared_eos, "EOS")]


def chosen(count: int, most: int = 1000) -> list[int]:
    return sorted(random.Random(1).sample(range(count), min(count, most)))


def raw_lines(root: Path, path: str, rows: list[int]) -> list[list[bytes]]:
    """The raw lines from which each of these rows was made."""
    lineages = Lineages()
    origins = [lineages.follow(path, row).raw for row in rows]
    assert all(Path(one.path).parent == root / "documents" for found in origins for one in found)
    wanted: dict[str, set[int]] = {}
    for one in (one for found in origins for one in found):
        wanted.setdefault(one.path, set()).add(one.row)
    lines = {name: read_raw(name, numbers) for name, numbers in wanted.items()}
    return [[lines[one.path][one.row] for one in found] for found in origins]


@pytest.mark.parametrize("format", ["pbin", "ds", "megatron", "dolma"])
def test_every_document_of_a_token_file_leads_to_its_raw_line(
    made: tuple[Path, list[list[bytes]]], format: str
) -> None:
    root, _ = made
    path = str(root / "tokens" / f"web{ENDS[format][0]}")
    dataset = fm.open(str(root / "tokens" / f"web{'.npy' if format == 'dolma' else ENDS[format][0]}"))
    rows = chosen(len(dataset))
    for row, lines, sample in zip(rows, raw_lines(root, path, rows), dataset.read(rows), strict=True):
        assert [ids_of(line) for line in lines] == [sample["input_ids"].tolist()], row


def test_every_sequence_leads_to_the_raw_lines_in_it(made: tuple[Path, list[list[bytes]]]) -> None:
    root, _ = made
    dataset = fm.open(str(root / "tokens/web"))
    rows = chosen(len(dataset), 300)
    for row, lines, sample in zip(
        rows, raw_lines(root, str(root / "tokens/web/manifest.jsonl"), rows), dataset.read(rows), strict=True
    ):
        wanted = json.loads(sample.raw("json.gz")) if not isinstance(sample["json.gz"], list) else sample["json.gz"]
        found = [token for line in lines for token in ids_of(line)]
        assert len(wanted) == SEQUENCE + 1
        at = [n for n in range(len(ids_of(lines[0]))) if found[n : n + len(wanted)] == wanted]
        assert at and len(found) - at[0] - len(wanted) < len(ids_of(lines[-1])), row  # no document too many


def test_numbered_files_have_the_lineage_of_their_own_documents(made: tuple[Path, list[list[bytes]]]) -> None:
    root, _ = made
    paths = sorted((root / "numbered").glob("*.pbin"))
    assert len(paths) > 2
    for path in paths[:: max(1, len(paths) // 5)]:
        dataset = fm.open(str(path))
        rows = chosen(len(dataset), 100)
        for lines, sample in zip(raw_lines(root, str(path), rows), dataset.read(rows), strict=True):
            assert [ids_of(line) for line in lines] == [sample["input_ids"].tolist()]


def test_lines_of_a_filter_lead_to_their_raw_lines(made: tuple[Path, list[list[bytes]]]) -> None:
    root, _ = made
    for path in sorted((root / "kept").iterdir())[:5]:
        kept = read_raw(str(path), range(read_lineage(str(path)).header.rows))  # type: ignore[union-attr]
        rows = chosen(len(kept), 200)
        for row, (line,) in zip(rows, raw_lines(root, str(path), rows), strict=True):
            raw, found = json.loads(line), json.loads(kept[row])
            assert (raw["id"], raw["text"]) == (found["id"], found["text"])


@pytest.mark.parametrize("world", slow_but([1, 2, 8], 2))
def test_every_packed_row_leads_to_its_raw_lines_on_any_layout_of_ranks(
    made: tuple[Path, list[list[bytes]]], world: int
) -> None:
    root, _ = made
    plan = fm.Recipe.load(root / "recipe.yaml").plan()
    batch, seen = 16, 0
    for step in chosen(len(plan) // batch, 400 // batch + 1):
        for rank in range(world):
            report = trace(plan, step=step, global_batch=batch, rank=rank, world=world, origins=True, show=True)
            for entry in report.facts["entries"]:
                (origin,) = entry["origins"]
                (tokens,) = plan.source(entry["source"]).read_tokens(
                    *(np.array([n]) for n in (entry["index"], entry["span"][0], entry["span"][1] - entry["span"][0]))
                )
                assert ids_of(origin["text"].encode())[slice(*entry["span"])] == tokens.tolist()
                assert [one["verb"] for one in origin["through"]] == ["tokenize", "filter"]
            seen += len({entry["position"] for entry in report.facts["entries"]})
    assert seen >= min(400, len(plan) - batch)


def test_a_raw_line_leads_to_all_outputs_and_steps(made: tuple[Path, list[list[bytes]]]) -> None:
    """Compared with a search through the whole run."""
    root, lines = made
    plan = fm.Recipe.load(root / "recipe.yaml").plan()
    lineages = Lineages()
    held = Held.of(plan, lineages)
    documents = Documents([*held.paths, *map(str, sorted((root / "numbered").glob("*.pbin")))], lineages)
    drop, places = 0, [(f, r) for f, rows in enumerate(lines) for r in range(len(rows))]
    for file, row in random.Random(2).sample(places, 40):
        name = f"documents/part-{file}.jsonl{'.gz' if file % 2 else ''}:{row + 1}"
        (found,) = documents.find([name])[name]
        assert found.raw() == lines[file][row]
        by_verb = {verb: [one for one in found.artefacts if one.verb == verb] for verb in ("filter", "tokenize")}
        kept = [one for one in by_verb["filter"] if one.rows]
        if not kept:
            drop += 1
            assert all(
                one.dropped and ("include" in one.dropped or "exclude" in one.dropped) for one in found.artefacts
            )
            assert not sightings(plan, held, found)
            continue
        assert len(by_verb["tokenize"]) == 2 and all(len(one.rows) == 1 for one in by_verb["tokenize"])
        seen = sightings(plan, held, found, global_batch=4)
        (index,) = {one.index for one in seen}
        assert plan.source(seen[0].source).read([index])[0]["input_ids"].tolist() == ids_of(lines[file][row])
        for one in seen:
            entries = ledger.entries(plan, ledger.batch(plan, one.step or 0, 4).positions)
            assert (one.position, one.index, one.span) in [(e.position, e.index, e.span) for e in entries]
    assert 5 < drop < 38


def test_ids_are_found_and_dropped_documents_name_their_rule(made: tuple[Path, list[list[bytes]]]) -> None:
    root, lines = made
    scores = [json.loads(line) for line in (root / "attributes/quality/part-0.jsonl").read_bytes().splitlines()]
    low = next(n for n, one in enumerate(scores) if one["attributes"]["good"][0][2] < 0.3)
    report = trace(root / "recipe.yaml", source_document=f"d0-{low}", show=True)
    (document,) = report.facts["documents"]
    assert document["text"].encode() == lines[0][low] and document["line"] == low + 1 and document["times"] == 0
    assert [one["dropped"] for one in document["artefacts"]] == ["include"]
    with pytest.raises(NotFound, match="no raw file has a document with this id"):
        trace(root / "recipe.yaml", source_document="d9-9")
    with pytest.raises(NotFound, match="lines"):
        trace(root / "recipe.yaml", source_document=f"part-0.jsonl:{len(lines[0]) + 1}")


def test_lineage_takes_less_than_two_bytes_a_document(made: tuple[Path, list[list[bytes]]]) -> None:
    root, _ = made
    found = [*(root / ".feedmill").rglob("*.lineage"), *(root / "tokens").rglob("*.lineage")]
    assert len(found) >= len(FORMATS) + 3
    for path in found:
        name = str(path.relative_to(root))
        output = name.replace(".feedmill/mix-", "").removesuffix(".lineage").removesuffix(".feedmill")
        lineage = read_lineage(str(root / output))
        assert lineage is not None
        assert sum(lineage.header.parts) < 2 * lineage.header.documents  # without names and rules
        if lineage.header.documents > 10_000:
            assert path.stat().st_size < 2 * lineage.header.documents


def test_lineage_is_no_data(made: tuple[Path, list[list[bytes]]]) -> None:
    root, _ = made
    assert len(fm.open(str(root / "numbered"))) == len(fm.open(str(root / "tokens/web.pbin")))
    report: Any = fm.check(str(root / "tokens/web.pbin"))
    assert not report.findings


def test_a_file_that_another_program_replaced_has_no_lineage(tmp_path: Path) -> None:
    build(tmp_path, 60)
    path = next((tmp_path / "kept").iterdir())
    before = path.read_bytes()
    path.write_bytes(before + before)
    with pytest.raises(DataError, match="its lineage"):
        Lineages().follow(str(path), 0)
    path.write_bytes(before)
    raw = tmp_path / "documents/part-0.jsonl"
    raw.write_bytes(raw.read_bytes() + b'{"text": "more"}\n')
    with pytest.raises(DataError, match="has changed since"):
        Lineages().follow(str(path), 0)


def test_a_token_file_without_lineage_is_named(tmp_path: Path) -> None:
    build(tmp_path, 60)
    (tmp_path / "tokens/web.pbin.feedmill.lineage").unlink()
    report = trace(tmp_path / "recipe.yaml", step=0, global_batch=2, origins=True)
    (origin,) = report.facts["entries"][0]["origins"]
    assert origin["line"] is None and origin["file"].endswith("web.pbin")
    shown = CliRunner().invoke(app, ["trace", str(tmp_path / "recipe.yaml"), "--document", "1", "--origins"])
    assert "unknown, because" in shown.stdout and "has no lineage" in shown.stdout
    with pytest.raises(NotFound, match="the raw documents are unknown"):
        trace(tmp_path / "recipe.yaml", source_document="d0-1")


def test_a_lineage_cannot_make_files_be_read_that_are_no_documents(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret\n")
    origins = Origins("tokenize")
    origins.add(Runs.whole(origins.number(str(tmp_path / "secret"), 7), 1))
    (tmp_path / "x.ds").write_bytes(b"12")
    (tmp_path / "x.ds.feedmill.lineage").write_bytes(origins.encoded(str(tmp_path / "x.ds"), 2))
    with pytest.raises(ConfigError, match="not documents"):
        Documents([str(tmp_path / "x.ds")]).find([f"{tmp_path / 'secret'}:1"])


def test_a_tree_that_was_moved_keeps_its_lineage(tmp_path: Path) -> None:
    lines = build(tmp_path / "a", 60)
    (tmp_path / "a").rename(tmp_path / "b")
    (row,) = Lineages().follow(str(tmp_path / "b/tokens/web.pbin"), 3).raw
    assert row.path.startswith(str(tmp_path / "b/documents"))
    assert read_raw(row.path, [row.row])[row.row] in [line for rows in lines for line in rows]
    assert {Path(path).name for path in Descent([str(tmp_path / "b/tokens/web.ds")]).raw} == {
        f"part-{n}.jsonl{'.gz' if n % 2 else ''}" for n in range(3)
    }
