"""A blend of cells is the blend of the same documents as datasets of their own; only its reads are those of one."""

from __future__ import annotations

import csv
import pickle
import re
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feedmill.errors import ConfigError, EmptyResult
from feedmill.formats.cells import Rule, cells_path, write_cells
from feedmill.planning.overview import plan as overview
from feedmill.planning.packing.packed import PackedPlan
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.cells import rules
from feedmill.planning.recipes.recipe import Recipe
from feedmill.planning.recipes.writing import moved, text_of
from feedmill.samples.cells import CellDataset
from feedmill.web.mixture import of_plan
from helpers.cells import BY, Members, codes_of, labels_of, put_in_cells, tokens_in_cells, values_of
from helpers.durations import examples
from helpers.number_dataset import Growing, Numbered, texts
from helpers.token_dataset import Tokenized


def opened(path: str, *, by_name: dict[str, Any], **_: Any) -> Any:
    return by_name[Path(path).name]


def opener(*datasets: Any) -> Any:
    return partial(opened, by_name={Path(dataset.url).name: dataset for dataset in datasets})


def of_cells(recipe: dict[str, Any], folder: Path, base: Any) -> Plan:
    blend = {"cells": {"of": "tok", "by": list(BY)}}
    return Recipe.parse({"blend": blend, **recipe}, base=str(folder)).plan(opener(base))


def of_copies(recipe: dict[str, Any], base: Any, codes: np.ndarray, cells: int, weights: list[Any] | None) -> Plan:
    """The same recipe over datasets that hold copies of the documents of each cell."""
    copies = [Members(base, np.flatnonzero(codes == cell)) for cell in range(cells)]
    names = [f"tok[{label}]" for label in labels_of(cells)]
    blend: list[dict[str, Any]] = [{"path": str(number), "name": name} for number, name in enumerate(names)]
    if weights is not None:
        blend = [{**member, "weight": weight} for member, weight in zip(blend, weights, strict=True)]
    return Recipe.parse({"blend": blend, **recipe}).plan(lambda path, **_: copies[int(Path(path).name)])


def same(cells: Plan, copies: Plan, total: int) -> None:
    """Both plans have the same documents at the same positions, and rows with the same tokens."""
    for one, other in [(cells, copies)]:
        if isinstance(one, PackedPlan):
            assert isinstance(other, PackedPlan)
            end = total if one.length is None else min(total, one.length)
            for a, b in zip(one.read(range(end)), other.read(range(end)), strict=True):
                assert (a["input_ids"] == b["input_ids"]).all() and (a["cu_seqlens"] == b["cu_seqlens"]).all()
            columns, expected = one.read_batch(range(end), "columns"), other.read_batch(range(end), "columns")
            if expected is not None:
                assert columns is not None and isinstance(columns, dict) and isinstance(expected, dict)
                assert (columns["input_ids"] == expected["input_ids"]).all()
            one, other = one.documents, other.documents
        end = total if one.length is None else min(total, one.length)
        mine, theirs = one.locate(range(end)), other.locate(range(end))
        assert (mine.source == theirs.source).all() and (mine.epoch == theirs.epoch).all()
        read = one.bases.read_from(mine).index
        for number, source in enumerate(other.sources):
            rows = theirs.source == number
            assert isinstance(source, Members)
            assert (read[rows] == source.numbers[theirs.index[rows]]).all()


@st.composite
def mixtures(draw: st.DrawFn) -> dict[str, Any]:
    cells = draw(st.integers(1, 7))
    weight = st.sampled_from([0, 1, 2, "0.3", "0.125", "1/7"])
    some = st.lists(weight, min_size=cells, max_size=cells).filter(lambda given: any(given))
    recipe: dict[str, Any] = {"seed": draw(st.integers(0, 5)), "samples": draw(st.integers(100, 1500))}
    recipe["shuffle"] = draw(st.sampled_from(["none", "global", "block", {"kind": "block", "block": 16, "window": 3}]))
    recipe["unit"] = draw(st.sampled_from(["samples", "tokens"]))
    if draw(st.booleans()):
        recipe["pack"] = draw(
            st.sampled_from(
                [{"seq_len": 64, "buffer": 200}, {"seq_len": 128, "method": "concat"}, {"seq_len": 48, "long": "drop"}]
            )
        )
    stages = draw(st.integers(0, 3))
    if "pack" not in recipe and draw(st.booleans()):
        recipe["proxy"] = {"samples": recipe["samples"] // 3 + 1, "of": recipe["samples"]}
    return {
        "cells": cells,
        "documents": draw(st.integers(cells, 400)),
        "seed": draw(st.integers(0, 99)),
        "recipe": recipe,
        "weights": draw(some),
        "stages": [
            {"weights": draw(some), "samples": draw(st.integers(100, 300)), "ramp": n > 0 and draw(st.booleans())}
            for n in range(stages)
        ],
    }


LONG = r"\n *tok\[[^\n]*\]: [\d,]+ samples of [^\n]*\n *(dropped|truncated|split): [^\n]*"


@given(mixture=mixtures())
@settings(max_examples=examples(40), deadline=None)
def test_as_copies(tmp_path_factory: pytest.TempPathFactory, mixture: dict[str, Any]) -> None:
    folder = tmp_path_factory.mktemp("cells")
    cells, labels = mixture["cells"], labels_of(mixture["cells"])
    base, codes = tokens_in_cells(folder, mixture["documents"], cells, mixture["seed"])
    base._lengths[:cells] = 5  # no cell is without tokens
    base.begins = 1 + np.cumsum(base._lengths) - base._lengths
    put_in_cells(folder, base, codes, values_of(cells))

    def stages(named: Any) -> list[dict[str, Any]]:
        return [
            {
                "weights": dict(zip(named, stage["weights"], strict=True)),
                "samples": stage["samples"],
                **({"ramp": "linear"} if stage["ramp"] else {}),
            }
            for stage in mixture["stages"]
        ]

    recipe, blend = mixture["recipe"], {"cells": {"of": "tok", "by": list(BY)}}
    if mixture["stages"]:
        del recipe["samples"]
        if "proxy" in recipe:
            whole = sum(stage["samples"] for stage in mixture["stages"])
            recipe["proxy"] = {"samples": -(-whole // 3), "of": whole}
        found = of_cells({**recipe, "stages": stages(labels)}, folder, base)
        copies = of_copies({**recipe, "stages": stages([f"tok[{one}]" for one in labels])}, base, codes, cells, None)
    else:
        weights = dict(zip(labels, mixture["weights"], strict=True))
        found = of_cells({**recipe, "blend": {**blend, "weights": weights}}, folder, base)
        copies = of_copies(recipe, base, codes, cells, mixture["weights"])
    if recipe["unit"] == "tokens" and str(found) != str(copies):  # shares in units of 2^-50
        for total in (1, 10, 100, 300):
            if not (found.length or total) < total:
                drawn = zip(found.drawn(total), copies.drawn(total), strict=True)
                assert all(abs(a - b) <= 3 for a, b in drawn)
        return
    same(found, copies, 1500)
    total = None if found.length is None else min(found.length, 700)
    # Documents that are too long for a row are not named by cell, which would copy their lengths.
    assert str(found.report(total)) == re.sub(LONG, "", str(copies.report(total)))
    assert overview(found, samples=total).facts["tokens"] == overview(copies, samples=total).facts["tokens"]


def test_natural_shares_are_those_of_documents_in_every_unit(tmp_path: Path) -> None:
    base, codes = tokens_in_cells(tmp_path, 3000, 5)
    sizes = np.bincount(codes[codes < 5])
    for unit in ("samples", "tokens"):
        plan = of_cells({"unit": unit, "samples": int(sizes.sum())}, tmp_path, base)
        assert plan.drawn(int(sizes.sum())) == sizes.tolist()
        proxy = of_cells({"unit": unit, "samples": int(sizes.sum()), "proxy": {"samples": 285}}, tmp_path, base)
        amounts = sizes if unit == "samples" else np.bincount(codes[codes < 5], base.lengths[codes < 5]).astype(int)
        assert [source.asked for source in proxy.report().sources] == [
            Fraction(int(n), int(amounts.sum())) for n in amounts
        ]


def test_a_batch_is_one_read(tmp_path: Path) -> None:
    base = Numbered(str(tmp_path / "tok"), 1000)
    codes = codes_of(3, 1000, 6)
    put_in_cells(tmp_path, base, codes, values_of(6))
    plan = of_cells({"samples": 1000}, tmp_path, base)
    located = plan.locate(range(200))
    found = texts(plan.read(range(200)))
    assert len(base.reads) == 1 and base.reads[0] == sorted(base.reads[0])
    pairs = zip(located.source.tolist(), located.index.tolist(), strict=True)
    keys = [plan.sources[source].locate(index).key for source, index in pairs]
    assert found == [f"{base.url}:{key}" for key in keys]
    again = pickle.loads(pickle.dumps(plan))
    assert texts(again.read(range(200))) == found and len(again.bases.datasets) == 1
    source = plan.sources[2]
    assert isinstance(source, CellDataset)
    members = np.flatnonzero(codes == 2)
    assert texts(source.read(range(len(source)))) == [f"{base.url}:{number}" for number in members.tolist()]
    assert source.find(str(members[3])) == 3 and source.samples_of_row(0, 5) == []
    everywhere = plan.bases.read_from(plan.locate(range(1000))).index
    assert plan.positions(2, 3).tolist() == np.flatnonzero(everywhere == members[3]).tolist()


def test_where_selects_documents(tmp_path: Path) -> None:
    base, codes = tokens_in_cells(tmp_path, 500, 4)
    rule = Rule(where={"quality": {"min": 2}, "topic": ["t0", "t1"]})
    chosen = np.where(codes == 2, np.uint16(0), np.uint16(0xFFFF))
    put_in_cells(tmp_path, base, chosen, [[]], rule)
    text = "source: {path: tok, where: {quality: {min: 2}, topic: [t0, t1]}, subset: [0, '50%']}\nepochs: 1"
    recipe = Recipe.parse(text, base=str(tmp_path))
    ((_, place, member, needed),) = rules(recipe)
    assert (place, member.path, needed.text) == (("source",), "tok", rule.text)
    plan = recipe.plan(opener(base))
    half = np.flatnonzero(codes == 2)[: (codes == 2).sum() // 2]
    assert sorted(plan.bases.read_from(plan.locate(range(len(plan)))).index.tolist()) == half.tolist()
    put_in_cells(tmp_path, base, np.full(500, 0xFFFF, np.uint16), [[]], rule)
    with pytest.raises(EmptyResult, match=r"recipe:1.*'where' selects none of the 500 documents"):
        recipe.plan(opener(base))


def test_cells_among_other_sources(tmp_path: Path) -> None:
    base, _ = tokens_in_cells(tmp_path, 500, 3)
    other = Tokenized(str(tmp_path / "code"), [7] * 50)
    text = """
    blend:
    - {path: code, weight: 1}
    - {name: web, weight: 3, blend: {cells: {of: {path: tok, name: crawl}, by: [quality, topic]}, max_repeats: 9}}
    samples: 1000
    """
    plan = Recipe.parse(text, base=str(tmp_path)).plan(opener(base, other))
    assert plan.names == ["code", *(f"web/crawl[{label}]" for label in labels_of(3))]
    assert plan.drawn(1000)[0] == 250
    listed = text.replace("{name: web, weight: 3, blend: {cells:", "{weight: 3, cells:").replace(": 9}}", ": 9}")
    assert Recipe.parse(listed, base=str(tmp_path)).plan(opener(base, other)).names[1:] == [
        f"crawl[{label}]" for label in labels_of(3)
    ]


def test_weights_from_files(tmp_path: Path) -> None:
    base, codes = tokens_in_cells(tmp_path, 500, 3)
    labels = labels_of(3)
    (tmp_path / "w.csv").write_text("topic,quality,weight\n" + "".join(f"t0,{n},{n + 1}\n" for n in range(3)))
    (tmp_path / "c.csv").write_text("cell,weight\n" + "".join(f'"{label}",{n}\n' for n, label in enumerate(labels)))
    blend = {"cells": {"of": "tok", "by": list(BY)}, "weights": "w.csv"}
    plan = of_cells({"blend": blend, "samples": 600}, tmp_path, base)
    assert plan.drawn(600) == [100, 200, 300]
    awkward = ["a\nb", "\u2028", "x\x0by", ' q"\t', "c/d", ""]
    put_in_cells(tmp_path, base, np.arange(500) % 6, [[0, value] for value in awkward])
    with (tmp_path / "awkward.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["quality", "topic", "weight"])
        rows.writerows([0, value, weight] for weight, value in enumerate(awkward))
    blend["weights"] = "awkward.csv"
    assert of_cells({"blend": blend, "samples": 150}, tmp_path, base).drawn(150) == [0, 10, 20, 30, 40, 50]
    put_in_cells(tmp_path, base, codes, values_of(3))
    stages = [{"weights": "w.csv", "samples": 60}, {"weights": "c.csv", "samples": 30}]
    plan = of_cells({"stages": stages}, tmp_path, base)
    assert plan.drawn(90) == [10, 20 + 10, 30 + 20]


@pytest.mark.parametrize("by", [("quality", "source"), ("source", "cell")])
def test_weights_by_columns_that_are_named_as_keys_of_files(tmp_path: Path, by: tuple[str, str]) -> None:
    base = Tokenized(str(tmp_path / "tok"), [3] * 30)
    rule = Rule(by)
    put_in_cells(tmp_path, base, np.arange(30, dtype=np.uint16) % 3, [[str(n), "w/i"] for n in range(3)], rule)
    (tmp_path / "w.csv").write_text(f"weight,{by[1]},{by[0]}\n" + "".join(f"{n + 1},w/i,{n}\n" for n in range(3)))
    text = f"{{blend: {{cells: {{of: tok, by: [{', '.join(by)}]}}, weights: w.csv}}, samples: 60}}"
    assert Recipe.parse(text, base=str(tmp_path)).plan(opener(base)).drawn(60) == [10, 20, 30]


BAD = [
    ("{weights: {'quality=0,topic=t0': 1, 'quality=1,topic=t0': 1}}", "1 cell has no weight: 'quality=2,topic=t0'"),
    ("{weights: {a: 1, b: 2}}", "2 weights are of cells that are not there: 'a', 'b'"),
    ("{weights: {t0: 1}}", r"The cells are: quality=0,topic=t0, quality=1,topic=t0, quality=2,topic=t0\."),
    ("{weights: {'quality=0,topic=t0': -1}}", "the weight '-1' is negative"),
    ("{weights: {}}", "at least 1 item"),
    ("{weights: missing.csv}", "missing.csv"),
    ("{weights: bad.csv}", "bad.csv:1: the columns are a, weight, expected quality, topic, weight; or cell, weight"),
    ("{weights: twice.csv}", "twice.csv:3: 'quality=0,topic=t0' has a second weight"),
    ("{weights: number.csv}", "number.csv:2: .*'x' is not a"),
    ("{weights: long.csv}", "long.csv:1: this is not valid CSV: field larger than"),
    ("{weights: short.csv}", "short.csv:2: the row has 2 values, expected 3"),
    ("{wieghts: w.csv}", "unknown key 'wieghts'"),
    ("{max_repeats: 1}, samples: 9000", "max_repeats"),
]


@pytest.mark.parametrize(("rest", "message"), BAD)
def test_bad_blends_are_refused_with_their_line(tmp_path: Path, rest: str, message: str) -> None:
    base, _ = tokens_in_cells(tmp_path, 100, 3)
    for name, text in {
        "bad": "a,weight\nx,1\n",
        "twice": "quality,topic,weight\n0,t0,1\n0,t0,2\n",
        "number": "quality,topic,weight\n0,t0,x\n",
        "short": "quality,topic,weight\n0,1\n",
        "long": f"quality,topic,weight\n0,{'x' * (1 << 20)}x,1\n",
    }.items():
        (tmp_path / f"{name}.csv").write_text(text)
    text = f"seed: 1\nblend: {{cells: {{of: tok, by: [quality, topic]}}, {rest[1:]}"
    (tmp_path / "r.yaml").write_text(text.replace("}, samples", "}\nsamples"))
    with pytest.raises(Exception, match=message) as caught:
        Recipe.load(str(tmp_path / "r.yaml")).plan(opener(base))
    assert "csv" in rest or "r.yaml:2" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("blend: {of: tok}", "a mapping with 'cells'"),
        ("blend: {cells: {of: tok}}", "cells.by: field required"),
        ("blend: {cells: {of: tok, by: []}}", "at least 1 item"),
        ("blend: {cells: {of: tok, by: [a, a]}}", "the column 'a' is named twice"),
        ("blend: {cells: {of: tok, by: [{column: a}]}}", "exactly one of 'edges' or 'quantiles'"),
        ("blend: {cells: {of: tok, by: [{column: a, edges: [2, 1]}]}}", "do not ascend"),
        ("blend: {cells: {of: tok, by: [{column: a, edges: [.nan]}]}}", "are not finite"),
        ("blend: {cells: {of: {recipe: a.yaml}, by: [a]}}", "give its 'path'"),
        ("blend: {cells: {of: {path: tok, epochs: 1}, by: [a]}}", "'epochs' is for the cells"),
        ("{blend: {cells: {of: tok, by: [a]}}, epochs: 1}", "a blend has no 'epochs'"),
        ("{blend: {cells: {of: tok, by: [a]}}, seed: 1, order: nanoset}", "cannot be combined"),
        ("{blend: {cells: {of: tok, by: [a]}, weights: {x: 1}}, stages: [{weights: {x: 1}}]}", "not both"),
        ("source: {join: [{path: a}, {path: b}], where: {a: 1}}", "'where' needs a dataset"),
        ("source: {path: a, where: {a: {mni: 1}}}", "unknown key 'mni'"),
        ("source: {path: a, where: {}}", "at least 1 item"),
    ],
)
def test_bad_recipes(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe.parse(text)


def test_missing_and_old_cells_name_the_command(tmp_path: Path) -> None:
    base = Tokenized(str(tmp_path / "tok"), [3] * 20)
    (tmp_path / "r.yaml").write_text("blend:\n  cells: {of: tok, by: [quality, topic]}\n")
    recipe = Recipe.load(str(tmp_path / "r.yaml"))
    with pytest.raises(
        ConfigError, match=r"r\.yaml:2: .*has no cells by quality,topic\. Run 'feedmill mixture cells .*r\."
    ):
        recipe.plan(opener(base))
    put_in_cells(tmp_path, base, np.zeros(20, np.uint16), [[1, "a"]])
    recipe.plan(opener(base))
    with pytest.raises(ConfigError, match="made before its data changed"):
        recipe.plan(opener(Tokenized(base.url, [3] * 21)))


def test_empty_cells_are_left_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    base = Tokenized(str(tmp_path / "tok"), [3] * 20)
    codes = np.array([0] * 12 + [0xFFFF] * 8, np.uint16)
    store, path = cells_path(base.url, Rule(BY))
    facts = {"columns": {"topic": {"missing": 8}, "quality": {"missing": 0}}}
    write_cells(store, path, Rule(BY), base.fingerprint(), 20, [[1, "a"], [2, "b"]], [codes], facts=facts)
    plan = of_cells({"samples": 10}, tmp_path, base)
    assert plan.names == ["tok[quality=1,topic=a]"]
    assert "8 of 20 documents are in no cell and are never drawn (8 without 'topic')" in caplog.text
    blend = {"cells": {"of": "tok", "by": list(BY)}, "weights": {"quality=1,topic=a": 1, "quality=2,topic=b": 1}}
    with pytest.raises(ConfigError, match="cell without documents: 'quality=2,topic=b'"):
        of_cells({"blend": blend}, tmp_path, base)
    put_in_cells(tmp_path, base, np.full(20, 0xFFFF, np.uint16), [[1, "a"]])
    with pytest.raises(EmptyResult, match=r"no document of .* is in a cell"):
        of_cells({}, tmp_path, base)


def test_shards_of_cells(tmp_path: Path) -> None:
    base = Growing(str(tmp_path / "tok"), 100)
    codes = codes_of(1, 100, 3)
    put_in_cells(tmp_path, base, codes, values_of(3))
    plan = of_cells({"shuffle": "shards", "samples": 100}, tmp_path, base)
    for cell, source in enumerate(plan.sources):
        expected = np.searchsorted(np.flatnonzero(codes == cell), base.shard_bounds)
        assert source.shard_bounds.tolist() == expected.tolist()
    assert len(plan.read(range(100))) == 100


def test_a_recipe_moves_with_its_files(tmp_path: Path) -> None:
    base, _ = tokens_in_cells(tmp_path, 300, 3)
    (tmp_path / "w.csv").write_text("quality,topic,weight\n" + "".join(f"{n},t0,{n + 1}\n" for n in range(3)))
    for rest in (
        "  weights: w.csv\n",
        "stages: [{weights: w.csv, samples: 60}, {weights: {'quality=0,topic=t0': 1}}]\n",
    ):
        (tmp_path / "r.yaml").write_text(f"blend:\n  cells: {{of: tok, by: [quality, topic]}}\n{rest}")
        recipe = Recipe.load(str(tmp_path / "r.yaml"))
        (tmp_path / "deep").mkdir(exist_ok=True)
        (tmp_path / "deep/r.yaml").write_text(text_of(moved(recipe, str(tmp_path / "deep"))))
        other = Recipe.load(str(tmp_path / "deep/r.yaml"))
        assert other.plan(opener(base)).fingerprint == recipe.plan(opener(base)).fingerprint


def test_cells_in_the_order_of_a_column(tmp_path: Path) -> None:
    base = Numbered(str(tmp_path / "tok"), 200, tokens=3)
    codes = codes_of(1, 200, 3)
    put_in_cells(tmp_path, base, codes, values_of(3))
    blend = {"cells": {"of": "tok", "by": list(BY)}, "curriculum": {"by": "tokens", "window": 1}}
    for proxy in ({}, {"proxy": {"samples": 50, "of": 100}}):
        plan = of_cells({"blend": blend, "samples": 100, **proxy}, tmp_path, base)
        located = plan.locate(range(plan.length or 0))
        read = plan.bases.read_from(located).index
        for source in range(3):
            tokens = base.lengths[read[(located.source == source) & (located.epoch == 0)]]
            assert len(tokens) and (np.diff(tokens) >= 0).all()


def test_many_cells_are_reported_by_their_dataset(tmp_path: Path) -> None:
    base, codes = tokens_in_cells(tmp_path, 3000, 15)
    labels = labels_of(15)
    weights = dict.fromkeys(labels, 1)
    stages = [{"weights": weights, "samples": 500}, {"weights": {**weights, labels[3]: 20}, "samples": 700}]
    plan = of_cells({"stages": stages}, tmp_path, base)
    report = plan.report(1200)
    (group,) = report.groups
    assert (group.prefix, group.cells, group.total.name) == ("tok", 15, "tok[15 cells]")
    assert (group.total.drawn, group.total.used) == (1200, int((codes < 15).sum()))
    first = max(report.sources, key=lambda source: source.repeats or 0).name
    assert group.total.asked == 1 and group.worst[0] == first and len(group.worst) == 5
    text = str(report)
    assert text.count("tok[quality") == 5 and "of 15 cells those that repeat most" in text
    assert "tok[15 cells] 100.0000% -> 100.0000%" in text
    assert str(plan).splitlines()[-1].endswith("12 more cells")
    facts = overview(plan, samples=1200).facts
    assert len(facts["sources"]) == 15 and facts["groups"][0]["drawn_tokens"] == facts["tokens"]
    rows = of_plan(plan, 1200)["sources"]
    assert [row["name"] for row in rows[:2]] == ["tok[15 cells]", first] and len(rows) == 16
