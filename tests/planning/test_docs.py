"""What the pages on recipes and the order show is true."""

import doctest
import re
from pathlib import Path

import numpy as np
import pytest

from feedmill.planning.recipes.cells import rules
from feedmill.planning.recipes.recipe import Recipe
from helpers.cells import put_in_cells
from helpers.number_dataset import Numbered
from helpers.token_dataset import Tokenized

KINDS = ("Member", "StageModel")
DOCS = Path(__file__).parents[2] / "docs"
SHOWN = re.findall(r"^```yaml\n(.*?)^```", (DOCS / "recipes.md").read_text(), re.M | re.S)
RECIPES = [text for text in SHOWN if not text.startswith("# .pre-commit-config.yaml")]


@pytest.mark.parametrize("text", RECIPES)
def test_every_recipe_shown_makes_a_plan(text: str, tmp_path: Path) -> None:
    recipe = Recipe.parse(text, base=str(tmp_path))
    for _, _, member, rule in rules(recipe):
        dataset = Numbered(str(tmp_path / str(member.path)), 20_000, tokens=100)
        put_in_cells(tmp_path, dataset, np.arange(20_000, dtype=np.uint16) % 2, [["code", 0], ["web", 2]], rule)
        (tmp_path / "weights.csv").write_text("topic,score,weight\ncode,0,0.3\nweb,2,0.7\n")
    plan = recipe.plan(lambda path, **options: Numbered(path, 20_000, tokens=100))
    assert len(plan.read(range(64))) == 64


def test_the_recipes_are_found() -> None:
    assert len(RECIPES) == len(SHOWN) - 1 == 9


def test_the_page_on_the_order_is_a_doctest() -> None:
    failed, tried = doctest.testfile(str(DOCS / "order.md"), module_relative=False)
    assert tried >= 7 and not failed


def test_the_recipe_shown_for_packing_gives_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEEDMILL_CACHE_DIR", str(tmp_path))
    page = (DOCS / "packing.md").read_text()
    text, longer, pairs, streamed, pictures = re.findall(r"^```yaml\n(.*?)^```", page, re.M | re.S)
    small = text.replace("4096", "64").replace("100_000", "10_000")
    plan = Recipe.parse(small).plan(lambda path, **options: Tokenized(path, range(300)))
    assert len(plan) == 10_000 and plan.read([9_999])[0]["input_ids"].shape == (64,)
    small = re.sub(r"tokens: \d+B", "samples: 2000", longer).replace("4096", "64").replace("32768", "256")
    plan = Recipe.parse(small).plan(lambda path, **options: Tokenized(path, range(300)))
    assert plan.widths([plan.borders[0] - 1, plan.borders[0]]).tolist() == [64, 256]
    keys = Recipe.json_schema()["$defs"]["PackModel"]["properties"]
    assert all(re.search(rf"\| (`\w+`, )*`{key}`(, `\w+`)* \|", page) for key in keys)
    tokenized = Recipe.parse(pairs.replace("8192", "256")).plan(lambda path, **options: Tokenized(path, range(300)))
    assert set(tokenized.read([0])[0]["member_ids"].tolist()) <= {-1, 0, 1}
    assert Recipe.parse(pictures).model.pack.media == 64
    assert all(f"`{key}`" in page for key in Recipe.json_schema()["$defs"]["LengthsModel"]["properties"])
    assert Recipe.parse(streamed).model.blend[1].tokenize.text == "content"
    assert all(f"`{key}`" in page for key in Recipe.json_schema()["$defs"]["TokenizeModel"]["properties"])


def test_every_key_is_documented() -> None:
    page = (DOCS / "recipes.md").read_text()
    schema = Recipe.json_schema()
    keys = set(schema["properties"]) | {key for name in KINDS for key in schema["$defs"][name]["properties"]}
    assert all(f"`{key}`" in page for key in keys)
    ledger = (DOCS / "ledger.md").read_text()
    assert all(key in ledger for key in schema["$defs"]["SkipModel"]["anyOf"][2]["properties"])
