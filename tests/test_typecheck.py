"""`make lint` checks the samples of the documentation as an editor does: what it would miss is missed here."""

from __future__ import annotations

from pathlib import Path

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
loader = fm.Loader(fm.PackedPlan(plan, fm.Packing(seq_len=16)), 8)
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


def test_lines_are_where_the_page_has_them() -> None:
    lines = module(BAD).splitlines()
    assert lines[2:4] == ["import feedmill as fm", "fm.Loader(7, 8)"]
    assert lines[7:9] == ['fm.Recipe.load("x.yaml").plans()', ""]


def test_what_a_user_would_see_is_found_by_page_and_line(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    errors = check({"good.md": GOOD, "bad.md": BAD}, tmp_path)
    assert sorted({error.split(": ")[0] for error in errors}) == ["bad.md:10", "bad.md:4", "bad.md:8"], errors
    assert sum("torhc" in error or "atuo" in error for error in errors) == 2
