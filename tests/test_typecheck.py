"""`make lint` checks the samples of the documentation as an editor does: what it would miss is missed here."""

from __future__ import annotations

import pytest

from typecheck import check, module

GOOD = """A page.

```python
import feedmill as fm

plan = fm.Recipe.load("recipe.yaml").plan()
```

And then:

```python
class Task(fm.TaskEncoder):
    def encode_sample(self, widths, rng):
        return widths

loader = fm.Loader(plan, 8, workers="auto", output="numpy", task_encoder=Task())
loader = fm.Loader(fm.tokens.PackedPlan(plan, fm.tokens.Packing(seq_len=16)), 8)
```
"""
BAD = """
```python
import feedmill as fm
fm.Loader(7, 8)
```

```python
>>> fm.Recipe.load("x.yaml").plans()
[1]
>>> fm.Loader(fm.Recipe.load("x.yaml").plan(), 8, workers="atuo", output="torhc")
```
"""


TYPED = """
```python
import feedmill as fm

ds = fm.open("coco")
ds[0].raw("jpg").decode().nothing
ds[0].caption.anything + ds[0]["jpg"]
typed: fm.Dataset[fm.samples.CaptioningSample] = fm.open("coco")
typed[0].captoin
typed[:2][0].caption.nothing
[sample.nothing for sample in typed.select([0])]
typed.map(lambda sample: sample.caption)[0].nothing
for batch in fm.Loader("recipe.yaml", 8, transform=lambda sample: sample.image):
    batch.keys().nothing
    batch["image"].shape, batch.shape
for batch in fm.Loader(ds, 8, output="samples"):
    batch[0].raw("jpg").nothing
def train(loader: fm.Loader) -> None: ...
def together(samples: list[fm.samples.CaptioningSample]) -> str:
    return samples[0].caption
for batch in fm.Loader(typed, 8, collate=together, workers=2):
    batch.nothing
train(fm.Loader(typed, 8, collate=together if ds else None))
together([ds[0]]).nothing
fm.load_dataset("coco")
fm.tokens.merged(["a.pbin"], "b.pbin")
fm.Loader(ds, 8, num_workers=2)
```
"""
"""Lines that a checker accepts without an error, and those with ``nothing`` or a misspelt name."""


def test_lines_are_where_the_page_has_them() -> None:
    lines = module(BAD).splitlines()
    assert lines[2:4] == ["import feedmill as fm", "fm.Loader(7, 8)"]
    assert lines[7:9] == ['fm.Recipe.load("x.yaml").plans()', ""]


MISSPELT = {
    "fm.Loader(plan, 8, output={})": "numpy",
    "fm.Loader(plan, 8, workers={})": "auto",
    "fm.Loader(plan, 8, on_error={})": "substitute",
    "fm.Loader(plan, 8, deal={})": "contiguous",
    "fm.Loader(plan, 8, remainder={})": "uneven",
    'fm.Plan.over(["a"], shuffle={})': "block",
    "fm.tokens.Packing(16, method={})": "concat",
    "fm.tokens.Packing(16, last={})": "keep",
    "fm.tokens.Packing(16, long={})": "truncate",
    'fm.bench("r.yaml", 8, output={})': "torch",
    'fm.import_data("a", "b", type={})': "captioning",
    'fm.import_data("a", "b", compression={})': "zst",
    'fm.prepare("a", on_error={})': "skip",
    'fm.tag(["a"], ["char_length_v1"], on_error={})': "skip",
    'fm.documents.stat(["a"], on_error={})': "skip",
    'fm.convert("a", "b", to="jsonl", on_error={})': "skip",
    'fm.edit.delete("a", ["k"], on_error={})': "skip",
    'fm.tokens.index("a", on_error={})': "skip",
    'fm.dedupe(["a"], {})': "paragraphs",
    'fm.dedupe(["a"], keep={})': "longest",
    'fm.documents.extract(["a"], "b", linearizer={})': "trafilatura",
}
"""Calls with an option of which only some words are valid, and one of them."""


@pytest.fixture(scope="module")
def errors(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """By page: what pyright finds in all of them, for which it starts once."""
    pytest.importorskip("pyright")
    begin = ["```python", "import feedmill as fm", 'plan = fm.Recipe.load("r.yaml").plan()']
    right = [call.format(repr(word)) for call, word in MISSPELT.items()]
    wrong = [call.format(repr(word[:-1])) for call, word in MISSPELT.items()]
    calls = {n: "\n".join([*begin, *rows, "```"]) for n, rows in (("right.md", right), ("wrong.md", wrong))}
    pages = {"good.md": GOOD, "bad.md": BAD, "typed.md": TYPED, **calls}
    found = check(pages, tmp_path_factory.mktemp("pages"))
    return {page: [error for error in found if error.startswith(f"{page}:")] for page in pages}


def test_what_a_user_would_see_is_found_by_page_and_line(errors: dict[str, list[str]]) -> None:
    assert not errors["good.md"]
    bad = errors["bad.md"]
    assert sorted({error.split(": ")[0] for error in bad}) == ["bad.md:10", "bad.md:4", "bad.md:8"], bad
    assert sum("torhc" in error or "atuo" in error for error in bad) == 2


def test_a_misspelt_word_of_an_option_is_an_error_in_an_editor(errors: dict[str, list[str]]) -> None:
    assert not errors["right.md"]
    expected = {f"wrong.md:{number}" for number in range(4, 4 + len(MISSPELT))}
    assert {error.split(": ")[0] for error in errors["wrong.md"]} == expected, errors


def test_samples_and_batches_have_types(errors: dict[str, list[str]]) -> None:
    misspelt = ("nothing", "load_dataset", "captoin", "merged(", "num_workers")
    wrong = [n for n, line in enumerate(TYPED.splitlines(), 1) if any(word in line for word in misspelt)]
    assert sorted({int(error.split(":")[1]) for error in errors["typed.md"]}) == wrong, errors["typed.md"]
