"""Cells of documents: columns of the index, of rows, and through lineage; each compared with a plain loop over rows."""

from __future__ import annotations

import gzip
import json
import os
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.documents.lineage.chain import Lineages
from feedmill.errors import ConfigError, DataError, EmptyResult, FeedmillError, NotFound
from feedmill.formats.cells import CellTable, Rule, cells_of
from feedmill.mixture import columnfiles
from feedmill.mixture.verbs.cells import CellsReport, cells
from helpers.lineage_data import TOKENIZER, build

QUIET = {"workers": 1, "progress": False}


def lines_of(path: Path | str) -> list[dict[str, Any]]:
    data = Path(path).read_bytes()
    return [json.loads(line) for line in (gzip.decompress(data) if str(path).endswith(".gz") else data).splitlines()]


def table(report: CellsReport) -> CellTable:
    (sidecar,) = report.sidecars
    folder, _, name = sidecar.file.rpartition("/.feedmill-cells/")
    return CellTable(fm.open_store(folder), f".feedmill-cells/{name}")


def labels(report: CellsReport) -> list[str | None]:
    """The name of each document's cell."""
    found = table(report)
    names = found.names()
    return [None if code == 65535 else names[code] for code in found.codes().tolist()]


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Raw documents with attributes, filtered, tokenized, merged and shuffled."""
    root = tmp_path_factory.mktemp("chain")
    build(root, 600)
    fm.tokens.merge([str(path) for path in sorted(root.glob("numbered/*.pbin"))], str(root / "merged.ds"), **QUIET)
    fm.tokens.shuffle([str(root / "merged.ds")], str(root / "shuffled.pbin"), seed=3, **QUIET)
    return root


def raw_rows(path: Path) -> list[tuple[str, int]]:
    """The raw row behind each document of a token file, followed one by one."""
    lineages, found = Lineages(), []
    for row in range(len(fm.open(path))):
        (raw,) = lineages.follow(str(path), row).raw
        found.append((raw.path, raw.row))
    return found


def scores_of(rows: list[tuple[str, int]]) -> list[float]:
    known = {path: lines_of(path.replace("/documents/", "/attributes/quality/")) for path, _ in set(rows)}
    return [known[path][row]["attributes"]["good"][0][2] for path, row in rows]


def in_bins(value: float, edges: list[float]) -> int:
    return sum(value >= edge for edge in edges)


@pytest.mark.parametrize("name", ["tokens/web.pbin", "tokens/web.ds", "merged.ds", "shuffled.pbin"])
def test_attributes_of_raw_documents_are_found_through_every_step(chain: Path, name: str) -> None:
    path, edges = chain / name, [0.55, 0.7, 0.9]
    report = cells(path, by=[{"column": "good", "edges": edges}], **QUIET)
    shown = ["..0.55", "0.55..0.7", "0.7..0.9", "0.9.."]
    expected = [f"good={shown[in_bins(score, edges)]}" for score in scores_of(raw_rows(path))]
    assert labels(report) == expected
    lengths = fm.open(path).lengths
    assert lengths is not None
    for cell in report.sidecars[0].cells:
        of = [number for number, label in enumerate(expected) if label == cell.name]
        assert (cell.documents, cell.tokens) == (len(of), int(lengths[of].sum()))
    assert [cell.loss_tokens for cell in table(report).cells] == [cell.tokens for cell in table(report).cells]
    assert not table(report).verify()


def test_quantiles_are_those_of_the_documents_that_are_left(chain: Path) -> None:
    path = chain / "shuffled.pbin"
    scores = scores_of(raw_rows(path))
    report = cells(path, by=[{"column": "good", "quantiles": 5}], **QUIET)
    ordered = sorted(scores)
    edges = sorted({ordered[k * len(ordered) // 5] for k in range(1, 5)} - {ordered[0]})
    assert report.sidecars[0].columns[0].edges == edges
    assert labels(report) == [f"good={in_bins(score, edges)}" for score in scores]


def test_a_folder_of_token_files_and_columns_of_three_places(chain: Path) -> None:
    path = chain / "numbered"
    report = cells(
        path, by=["source", {"column": "tokens", "edges": [20, 40]}], where={"good": {"min": 0.5, "max": 0.9}}, **QUIET
    )
    dataset = fm.open(path)
    files = sorted(path.glob("*.pbin"))
    rows = [row for file in files for row in raw_rows(file)]
    expected = []
    for tokens, score in zip(dataset.lengths.tolist(), scores_of(rows), strict=True):  # type: ignore[union-attr]
        bins = ["..20", "20..40", "40.."][in_bins(tokens, [20, 40])]
        expected.append(f"source=raw,tokens={bins}" if 0.5 <= score <= 0.9 else None)
    assert labels(report) == expected
    assert report.sidecars[0].unmatched == expected.count(None) == report.sidecars[0].outside
    assert len(cells_of(dataset, table(report).rule)) == len(set(expected) - {None})


def test_what_did_not_change_is_not_read_again(chain: Path, tmp_path: Path) -> None:
    path = chain / "tokens/web.pbin"
    first = cells(path, by=["source", {"column": "good", "edges": [0.8]}], **QUIET)
    data = Path(first.sidecars[0].file).read_bytes()
    assert not first.sidecars[0].up_to_date
    again = cells(path, by=["source", {"column": "good", "edges": [0.8]}], **QUIET)
    assert again.sidecars[0].up_to_date
    assert again.sidecars[0].cells == first.sidecars[0].cells
    other = cells(path, by=["source", {"column": "good", "edges": [0.7]}], **QUIET)
    columns = other.sidecars[0].columns
    assert not other.sidecars[0].up_to_date
    assert [column.reused for column in columns] == [column.files for column in columns]
    # One file of attributes changes, and a value in it: it alone is read, and only its column.
    attributes = chain / "attributes/quality/part-0.jsonl"
    kept = attributes.read_bytes()
    rows = lines_of(attributes)
    attributes.write_text("".join(json.dumps({**row, "attributes": {"good": [[0, 1, 0.99]]}}) + "\n" for row in rows))
    try:
        changed = cells(path, by=["source", {"column": "good", "edges": [0.8]}], **QUIET)
        assert not changed.sidecars[0].up_to_date
        assert [column.files - column.reused for column in changed.sidecars[0].columns] == [0, 1]
        assert changed.sidecars[0].cells != first.sidecars[0].cells
    finally:
        attributes.write_bytes(kept)
    back = cells(path, by=["source", {"column": "good", "edges": [0.8]}], overwrite=True, **QUIET)
    assert Path(back.sidecars[0].file).read_bytes() == data
    assert [column.reused for column in back.sidecars[0].columns] == [0, 0]


def test_a_dry_run_writes_nothing(chain: Path) -> None:
    path = chain / "numbered"
    before = sorted(chain.rglob("*"))
    report = cells(path, by=[{"column": "good", "quantiles": 3}, "id"], dry_run=True, **QUIET)
    assert sorted(chain.rglob("*")) == before
    assert report.dry_run is not None
    assert report.dry_run.outputs[-1].path == report.sidecars[0].file
    assert all(out.path.endswith(".column") for out in report.dry_run.outputs[:-1])
    assert report.dry_run.files > 0


def make_documents(root: Path, rows: list[list[dict[str, Any]]]) -> Path:
    for number, documents in enumerate(rows):
        path = root / f"d/documents/{number}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(json.dumps(document) + "\n" for document in documents))
    return root / "d/documents"


def make_attributes(root: Path, name: str, rows: list[list[dict[str, Any]]]) -> None:
    for number, attributes in enumerate(rows):
        path = root / f"d/attributes/{name}/{number}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            "".join(json.dumps({"id": f"{number}-{n}", "attributes": a}) + "\n" for n, a in enumerate(attributes))
        )


def documents(count: int, files: int = 2, **fields: Any) -> list[list[dict[str, Any]]]:
    return [
        [
            {"id": f"{file}-{n}", "text": f"water stone {n}", **{k: v(file, n) for k, v in fields.items()}}
            for n in range(count)
        ]
        for file in range(files)
    ]


def tokenized(root: Path, source: Path) -> Path:
    fm.tokenize(str(source), str(root / "t/x"), tokenizer=TOKENIZER, formats=("ds",), **QUIET)
    return root / "t/x.ds"


def test_values_of_all_kinds(tmp_path: Path) -> None:
    """Texts, numbers, booleans, nested fields, nothing, null: each is what it is."""
    topics = ["b", "a", None, 7, 7.0, 2.5, True, "8", "é/x", 1e300]
    rows = documents(
        10, topic=lambda f, n: topics[n], metadata=lambda f, n: {"lang": ["en", "de"][n % 2]} if n else None
    )
    source = make_documents(tmp_path, rows)
    report = cells(tokenized(tmp_path, source), by=["topic", "metadata.lang"], **QUIET)
    expected = []
    for n, topic in enumerate(topics):
        shown = {7.0: "7", 1e300: "1e+300", True: "true"}.get(topic, topic) if topic is not True else "true"  # type: ignore[call-overload]
        lang = ["en", "de"][n % 2] if n else None
        expected.append(
            None if topic is None or lang is None else f"topic={shown},metadata.lang={lang}".replace("/", "_")
        )
    found = labels(report)
    assert [label and label.replace('"', "") for label in found] == expected * 2
    columns = {column.name: column for column in report.sidecars[0].columns}
    assert columns["topic"].missing == 2
    assert columns["metadata.lang"].missing_in == {"../d/documents/0.jsonl": 1, "../d/documents/1.jsonl": 1}
    assert report.sidecars[0].outside == 4


def test_documents_without_a_value_can_have_a_cell_or_be_an_error(tmp_path: Path) -> None:
    source = make_documents(tmp_path, documents(4, topic=lambda f, n: "a" if n else None))
    path = tokenized(tmp_path, source)
    report = cells(path, by=[{"column": "topic", "missing": "none"}], **QUIET)
    assert labels(report) == ["topic=none", "topic=a", "topic=a", "topic=a"] * 2
    assert report.sidecars[0].columns[0].missing == 2
    with pytest.raises(ConfigError, match=r"2 documents have no value of 'topic': .*0\.jsonl \(1\)"):
        cells(path, by=["topic"], require_values=True, **QUIET)
    with pytest.raises(EmptyResult, match=r"'where' does not hold"):
        cells(path, by=["topic"], where={"topic": "z"}, **QUIET)


def test_spans_of_an_attribute(tmp_path: Path) -> None:
    spans = [[], [[0, 3, 0.5]], [[0, 1, 1.0], [1, 3, 3.0]]]
    source = make_documents(tmp_path, documents(3))
    make_attributes(tmp_path, "pii", [[{"pii__x__mail": each} for each in spans]] * 2)
    path = tokenized(tmp_path, source)
    with pytest.raises(DataError, match=r"line 3.*has 2 spans.*max\(pii__x__mail\)"):
        cells(path, by=["pii__mail"], **QUIET)
    expected = {
        "count": [0, 1, 2], "sum": [0, 0.5, 4], "max": [None, 0.5, 3], "min": [None, 0.5, 1], "mean": [None, 0.5, 2],
        "first": [None, 0.5, 1],
    }  # fmt: skip
    for rule, values in expected.items():
        column = f"{rule}(pii__mail)"
        found = labels(cells(path, by=[column], **QUIET))
        assert found == [None if value is None else f"{column}={value}" for value in values] * 2
    assert labels(cells(path, where={"count(pii__x__mail)": {"not": 0}}, **QUIET)) == [None, "", ""] * 2


def test_names_of_several_places_are_an_error_that_lists_them(tmp_path: Path) -> None:
    source = make_documents(tmp_path, documents(3, tokens=lambda f, n: n, q__x=lambda f, n: "field"))
    make_attributes(tmp_path, "q", [[{"q__x": [[0, 1, n]], "q__a__y": [], "q__b__y": []} for n in range(3)]] * 2)
    make_attributes(tmp_path, "z", [[{"q__x": [[0, 1, 5]]} for n in range(3)]] * 2)
    path = tokenized(tmp_path, source)
    with pytest.raises(ConfigError, match=r"fits 2 places: index:tokens, fields:tokens") as error:
        cells(path, by=["tokens"], **QUIET)
    assert error.value.kind == "ambiguous"
    assert labels(cells(path, by=["fields:tokens"], **QUIET)) == [f"fields:tokens={n}" for n in (0, 1, 2)] * 2
    with pytest.raises(ConfigError, match=r"3 places: fields:q__x, attributes/q:q__x, attributes/z:q__x"):
        cells(path, by=["q__x"], **QUIET)
    assert labels(cells(path, by=["attributes/q:q__x"], **QUIET))[:3] == [f"attributes_q:q__x={n}" for n in (0, 1, 2)]
    with pytest.raises(ConfigError, match=r"2 places: attributes/q:q__a__y, attributes/q:q__b__y"):
        cells(path, by=["q__y"], **QUIET)
    with pytest.raises(
        ConfigError, match=r"no column 'sorce'.*Found are index: tokens, loss_tokens, bytes; fields: .*attributes/q:"
    ):
        cells(path, by=["sorce"], **QUIET)


def test_many_numbers_need_bins(tmp_path: Path) -> None:
    source = make_documents(tmp_path, documents(1500, files=1, score=lambda f, n: n / 7, label=lambda f, n: f"x{n}"))
    path = tokenized(tmp_path, source)
    with pytest.raises(ConfigError, match=r"1,500 different numbers \(0, 0\.14.*quantiles: 10"):
        cells(path, by=["score"], **QUIET)
    assert len(cells(path, by=["label"], **QUIET).sidecars[0].cells) == 1500
    with pytest.raises(ConfigError, match="values that are no numbers, such as 'x0'"):
        cells(path, by=[{"column": "label", "edges": [1]}], **QUIET)


def test_too_many_cells(tmp_path: Path) -> None:
    draw = random.Random(1)
    row = [{"id": str(n), "text": "a", "x": f"{n % 700}", "y": f"{n // 700}"} for n in range(70_000)]
    draw.shuffle(row)
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(each) + "\n" for each in row))
    with pytest.raises(ConfigError, match=r"or more combinations of values \(\d+, \d+; .*at most 65,535"):
        cells(tmp_path / "rows.jsonl", by=["x", "y"], **QUIET)


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({}, "nothing says what makes cells"),
        ({"by": ["a", "a"]}, "given twice"),
        ({"by": [{"column": "a", "edges": [2, 1]}]}, "ascending"),
        ({"by": [{"column": "a", "edges": [float("nan")]}]}, "expected finite, ascending"),
        ({"by": [{"column": "a", "edges": [1, 10**400]}]}, "cannot be stored: Integer exceeds 64-bit"),
        ({"where": {"a": {"max": 2**70}}}, "cannot be stored: Integer exceeds 64-bit"),
        ({"by": [{"column": "a", "edges": [1], "quantiles": 3}]}, "edges and quantiles"),
        ({"by": [{"column": "a", "quantiles": 1}]}, "2 to 1,000"),
        ({"by": [{"colum": "a"}]}, "invalid column"),
        ({"where": {"a": {"least": 3}}}, "Use min, max, not"),
        ({"where": {"a": []}}, "empty list"),
        ({"where": {"a": {"min": "x"}}}, "expected a number"),
    ],
)
def test_invalid_rules(tmp_path: Path, options: dict[str, Any], what: str) -> None:
    (tmp_path / "x.jsonl").write_text('{"id": "1", "text": "a", "a": 1}\n')
    with pytest.raises(ConfigError, match=what):
        cells(tmp_path / "x.jsonl", **options, **QUIET)


def test_missing_lineage_documents_and_attributes(tmp_path: Path) -> None:
    source = make_documents(tmp_path, documents(3, topic=lambda f, n: "a"))
    make_attributes(tmp_path, "q", [[{"q__s": [[0, 1, n]]} for n in range(3)]] * 2)
    path = tokenized(tmp_path, source)
    missing = tmp_path / "d/attributes/q/1.jsonl"
    kept = missing.read_bytes()
    missing.unlink()
    with pytest.raises(DataError, match=r"1\.jsonl.*there are no attributes 'q'") as error:
        cells(path, by=["q__s"], **QUIET)
    assert error.value.kind == "no-such-attribute"
    missing.write_bytes(kept.splitlines(keepends=True)[0])
    with pytest.raises(DataError, match="the attributes have 1 rows"):
        cells(path, by=["q__s"], **QUIET)
    missing.write_bytes(kept.replace(b'"1-1"', b'"1-7"'))
    with pytest.raises(DataError, match=r"'line 2': the row belongs to the id '1-7', but the document in .* is '1-1'"):
        cells(path, by=["q__s"], **QUIET)
    missing.write_bytes(kept + kept)
    with pytest.raises(DataError, match="have more rows than"):
        cells(path, by=["q__s"], **QUIET)
    missing.write_bytes(kept)
    fm.tag(str(source), ["char_length_v1"], name="len", **QUIET)
    assert cells(path, by=["len__length"], **QUIET).sidecars[0].outside == 0
    lines = (source / "0.jsonl").read_text()
    (source / "0.jsonl").write_text(lines.replace("water", "WATER"))
    with pytest.raises(DataError) as error:
        cells(path, by=["len__length"], **QUIET)
    assert error.value.kind == "stale-attributes"
    (source / "0.jsonl").write_text(lines + lines)
    with pytest.raises(DataError, match="has changed since"):
        cells(path, by=["topic"], **QUIET)
    (source / "0.jsonl").unlink()
    with pytest.raises(NotFound, match="not there any more"):
        cells(path, by=["fields:topic"], **QUIET)
    Path(f"{path}.feedmill.lineage").unlink()
    with pytest.raises(ConfigError, match="no lineage; 'topic' is no column of its index") as other:
        cells(path, by=["topic"], **QUIET)
    assert other.value.kind == "no-lineage"
    assert len(cells(path, by=[{"column": "tokens", "quantiles": 2}], **QUIET).sidecars[0].cells) == 1


def test_values_that_are_no_values(tmp_path: Path) -> None:
    source = make_documents(
        tmp_path, documents(3, topic=lambda f, n: ["a", "b"] if n == 2 else "a", m=lambda f, n: "t")
    )
    path = tokenized(tmp_path, source)
    with pytest.raises(DataError, match=r"0\.jsonl 'line 3'.*'topic' is list .*expected a number, a text or spans"):
        cells(path, by=["topic"], **QUIET)
    (tmp_path / "wide.jsonl").write_text("".join(f'{{"text": "a", "n": {n}}}\n' for n in (1, 2**63 - 1, -(2**63))))
    assert labels(cells(tmp_path / "wide.jsonl", by=["n"], **QUIET)) == ["n=1", f"n={2**63 - 1}", f"n={-(2**63)}"]
    (tmp_path / "wider.jsonl").write_text("".join(f'{{"text": "a", "n": {n}}}\n' for n in (1, 2**63)))
    with pytest.raises(DataError, match=r"wider.jsonl 'line 2'.*'n' is int 9223372036854775808: expected .* 64 bits"):
        cells(tmp_path / "wider.jsonl", by=["n"], **QUIET)
    with pytest.raises(EmptyResult, match=r"without 'fields:m\.x'"):
        cells(path, by=["fields:m.x"], **QUIET)


def test_two_token_files_of_one_file_of_documents(tmp_path: Path) -> None:
    source = make_documents(tmp_path, documents(40, files=1, topic=lambda f, n: "ab"[n % 3 == 0]))
    fm.tokenize(str(source), str(tmp_path / "t/x"), tokenizer=TOKENIZER, formats=("ds",), max_file_size="200B", **QUIET)
    assert len(list((tmp_path / "t").glob("*.ds"))) > 1
    report = cells(tmp_path / "t", by=["topic"], **QUIET)
    assert labels(report) == [f"topic={'ab'[n % 3 == 0]}" for n in range(40)]
    assert report.sidecars[0].columns[0].files == 1


def test_sequences_of_several_documents_are_refused(chain: Path) -> None:
    (folder,) = {path.parent for path in (chain / "tokens").rglob("*.tar")}
    with pytest.raises(FeedmillError, match="sequences"):
        cells(folder, by=["source"], **QUIET)


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "arrow"])
def test_rows_with_columns_of_their_own(tmp_path: Path, kind: str) -> None:
    draw = random.Random(4)
    rows = [
        {
            "id": str(n),
            "text": "a",
            "topic": draw.choice(["code", "math", None]),
            "n": draw.choice([1, 2, 3]),
            "meta": {"score": draw.random(), "ok": draw.random() < 0.5} if draw.random() < 0.9 else None,
        }
        for n in range(500)
    ]
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    else:
        import pyarrow as pa
        import pyarrow.parquet as pq

        found = pa.Table.from_pylist(rows)
        if kind == "parquet":
            pq.write_table(found, path, row_group_size=130)
        else:
            with pa.ipc.new_file(path, found.schema) as out:
                out.write_table(found, 130)
    report = cells(path, by=["topic", "n", {"column": "meta.score", "edges": [0.5]}], where={"meta.ok": True}, **QUIET)
    expected = []
    for row in rows:
        meta: Any = row["meta"] or {}
        inside = row["topic"] is not None and meta.get("ok")
        bins = ["..0.5", "0.5.."][meta.get("score", 0) >= 0.5]
        expected.append(f"topic={row['topic']},n={row['n']},meta.score={bins}" if inside else None)
    assert labels(report) == expected
    assert Counter(expected).most_common() == Counter(labels(report)).most_common()


def test_samples_of_shards(tmp_path: Path) -> None:
    rows = [{"__key__": f"s{n:03d}", "json": {"topic": "ab"[n % 2], "n": n}, "cls": n % 3} for n in range(60)]
    fm.write(tmp_path / "wds", rows, max_shard_samples=20)
    report = cells(tmp_path / "wds", by=["topic", "cls"], where={"json.n": {"min": 10}}, **QUIET)
    assert labels(report) == [f"topic={'ab'[n % 2]},cls={n % 3}" if n >= 10 else None for n in range(60)]


def test_brute_force_over_random_rules(chain: Path) -> None:
    """Random columns, bins and conditions over a chain of files, beside a loop over its rows."""
    path = chain / "shuffled.pbin"
    scores = scores_of(raw_rows(path))
    tokens = fm.open(path).lengths
    assert tokens is not None
    for seed in range(12):
        draw = random.Random(seed)
        edges = sorted({round(draw.random(), 2) for _ in range(draw.randint(1, 4))})
        sizes = sorted(draw.sample(range(5, 60), draw.randint(1, 3)))
        low, high = sorted((draw.random(), draw.random()))
        report = cells(
            path,
            by=[{"column": "good", "edges": edges}, {"column": "tokens", "edges": sizes}],
            where={"good": {"min": low, "max": high}} if seed % 3 and high > 0.4 else None,
            **QUIET,
        )
        inside = [low <= score <= high if seed % 3 and high > 0.4 else True for score in scores]
        pairs = [(in_bins(s, edges), in_bins(t, sizes)) for s, t in zip(scores, tokens.tolist(), strict=True)]
        order = sorted({pair for pair, there in zip(pairs, inside, strict=True) if there})
        found = [order.index(pair) if there else 65535 for pair, there in zip(pairs, inside, strict=True)]
        assert table(report).codes().tolist() == found


def test_rules_are_the_same_however_they_are_written(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text('{"id": "1", "text": "a", "a": 1}\n')
    first = cells(tmp_path / "x.jsonl", by="a", **QUIET)  # type: ignore[arg-type]
    assert cells(tmp_path / "x.jsonl", by=["a"], **QUIET).sidecars[0].file == first.sidecars[0].file
    assert table(first).rule == Rule(("a",))
    assert os.path.dirname(first.sidecars[0].file) == str(tmp_path / ".feedmill-cells")
    assert np.array_equal(table(first).codes(), [0])


def test_the_report_has_the_lines_of_a_recipe(chain: Path) -> None:
    words = ["mixture", "cells", str(chain / "merged.ds"), "--by", "source", "--by", "{column: good, quantiles: 2}"]
    done = CliRunner().invoke(app, words)
    found = re.search(r"^in a recipe: (.*)$", done.stdout, re.M)
    assert found and "next:" not in done.stderr  # a plan of the dataset would have no cells
    assert fm.Recipe.parse(found[1]).plan().names == [f"merged[source=raw,good={n}]" for n in range(2)]


def test_a_recipe_gets_all_sidecars_that_it_needs(chain: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of its cells and of `where`, and those of recipes in it; then it plans, and another source is not read."""
    inner = {"blend": [{"path": "tokens/web.pbin", "where": {"good": {"min": 0.8}}}, {"path": "tokens/web.ds"}]}
    by = ["source", {"column": "good", "quantiles": 3}]
    outer = {"blend": [{"name": "cells", "cells": {"of": {"path": "numbered"}, "by": by}}, {"recipe": "inner.yaml"}]}
    (chain / "inner.yaml").write_text(json.dumps(inner))
    (chain / "outer.yaml").write_text(json.dumps(outer))
    with pytest.raises(ConfigError, match=r"Run 'feedmill mixture cells .*outer\.yaml'"):
        fm.Recipe.load(chain / "outer.yaml").plan()
    read: list[str] = []
    lines = columnfiles.read_lines

    def noted(store: Any, path: str, **options: Any) -> Any:
        read.append(path)
        return lines(store, path, **options)

    monkeypatch.setattr(columnfiles, "read_lines", noted)
    report = cells(chain / "outer.yaml", overwrite=True, **QUIET)
    assert len(read) == len(set(read)) > 0  # attributes once, although they are those of both datasets
    assert [Path(sidecar.dataset).name for sidecar in report.sidecars] == ["numbered", "web.pbin"]
    assert [cell.name for cell in report.sidecars[0].cells] == [f"source=raw,good={n}" for n in range(3)]
    plan = fm.Recipe.load(chain / "outer.yaml").plan()
    assert plan.names[:3] == [f"cells[source=raw,good={n}]" for n in range(3)]
    assert all(sidecar.up_to_date for sidecar in cells(chain / "outer.yaml", **QUIET).sidecars)
    with pytest.raises(ConfigError, match="--by is for a dataset"):
        cells(chain / "outer.yaml", by=["source"], **QUIET)
    with pytest.raises(ConfigError, match="the recipe needs no cells"):
        (chain / "plain.yaml").write_text(json.dumps({"blend": [{"path": "tokens/web.ds"}]}))
        cells(chain / "plain.yaml", **QUIET)


def test_rows_of_token_ids(tmp_path: Path) -> None:
    rows = [{"input_ids": list(range(n % 5 + 1)), "topic": "ab"[n % 2]} for n in range(20)]
    (tmp_path / "ids.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    recipe = {"blend": {"cells": {"of": {"path": "ids.jsonl", "tokens": "input_ids"}, "by": ["topic"]}}}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    (sidecar,) = cells(tmp_path / "recipe.yaml", **QUIET).sidecars
    assert [(cell.name, cell.documents, cell.tokens) for cell in sidecar.cells] == [
        ("topic=a", 10, sum(n % 5 + 1 for n in range(0, 20, 2))),
        ("topic=b", 10, sum(n % 5 + 1 for n in range(1, 20, 2))),
    ]
    assert fm.Recipe.load(tmp_path / "recipe.yaml").plan().names == ["ids[topic=a]", "ids[topic=b]"]


def test_a_value_that_yaml_reads_as_another_kind_is_refused(tmp_path: Path) -> None:
    """Before, ``where: {lang: [no, de]}`` left out Norwegian, and ``{not: no}`` nothing, without a word."""
    path = tmp_path / "d.jsonl"
    rows = [{"text": "x", "lang": ("no", "de", "08")[n % 3], "n": n % 3, "flag": n % 2 == 0} for n in range(12)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))

    def kept(where: str) -> int:
        (one,) = cells(path, by=["n"], where=yaml.safe_load(where), **QUIET).sidecars
        return one.documents - one.outside

    for where, count in (
        ("{lang: ['no', de]}", 8),
        ("{lang: {not: 'no'}}", 8),
        ("{lang: 08}", 4),
        ("{n: [0, 1.0]}", 8),
        ("{flag: yes}", 6),
    ):
        assert kept(where) == count, where
    for where, message in (
        ("{lang: [no, de]}", "has False, but the column has texts such as"),
        ("{lang: {not: no}}", "has False, but the column has texts"),
        ("{lang: [8, de]}", "has 8, but the column has texts"),
        ("{n: ['1', 2]}", "has '1', but the column has numbers"),
        ("{n: {not: true}}", "has True, but the column has numbers"),
        ("{flag: ['true']}", "has 'true', but the column has booleans such as"),
        ("{lang: {min: 3}}", "has 3, but the column has texts such as"),
        ("{flag: {max: 1}}", "has 1, but the column has booleans such as"),
    ):
        with pytest.raises(ConfigError, match=message):
            kept(where)
    with pytest.raises(ConfigError, match="'missing' of 'lang' has False, but the column has texts"):
        cells(path, by=[{"column": "lang", "missing": False}], **QUIET)


def test_whole_numbers_are_compared_as_they_are(tmp_path: Path) -> None:
    """Ids and hashes of 64 bits: before, ``where: {id: 9007199254740993}`` kept its neighbors, too."""
    rng = random.Random(5)
    near = [2**53 + n for n in range(-3, 4)] + [2**62 + n for n in range(3)] + [2**63 - 1, 2**63 - 2, -(2**63), 0]
    tables: list[list[Any]] = [[{"text": "x", "n": rng.choice(near)} for _ in range(40)] for _ in range(2)]
    tables[1] = [{"text": "x", "n": float(row["n"])} for row in tables[1]] + [{"text": "x"}]
    for number, rows in enumerate(tables):
        path = tmp_path / f"{number}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        values = [row.get("n") for row in rows]
        for wanted in near:
            for where, passes in (
                (wanted, lambda value, wanted=wanted: value == wanted),
                ([wanted, 1], lambda value, wanted=wanted: value == wanted),
                ({"not": wanted}, lambda value, wanted=wanted: value != wanted),
                ({"min": wanted}, lambda value, wanted=wanted: value >= wanted),
                ({"max": wanted}, lambda value, wanted=wanted: value <= wanted),
            ):
                count = sum(1 for value in values if value is not None and passes(value))
                if not count:
                    with pytest.raises(EmptyResult):
                        cells(path, where={"n": where}, **QUIET)
                    continue
                (one,) = cells(path, where={"n": where}, **QUIET).sidecars
                assert one.documents - one.outside == count, (number, where)
