"""What the page on compatible orders shows is true."""

import doctest
import re
from pathlib import Path

import pytest

from feedmill.planning.recipes.recipe import Recipe
from helpers.number_dataset import Numbered

PAGE = Path(__file__).parents[3] / "docs" / "internals" / "compatible_orders.md"
RECIPES = re.findall(r"^```yaml\n(.*?)^```", PAGE.read_text(), re.M | re.S)


def test_the_page_is_a_doctest() -> None:
    failed, tried = doctest.testfile(str(PAGE), module_relative=False)
    assert tried >= 9 and not failed


@pytest.mark.parametrize("text", RECIPES)
def test_every_recipe_shown_makes_a_plan(text: str) -> None:
    assert len(Recipe.parse(text).plan(lambda path, **options: Numbered(path, 400_000)).read(range(64))) == 64


def test_the_recipes_are_found() -> None:
    assert len(RECIPES) == 3
