"""The examples of docs/storage.md do what they say."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "storage.md"


def test_the_guide_shows_what_happens(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    checked = 0
    for block in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.S):
        for line in block.splitlines():
            code, _, shown = line.partition("  #")
            if shown:
                assert repr(eval(code, names)) == shown.strip(), code
                checked += 1
            else:
                exec(code, names)
    assert checked == 2
