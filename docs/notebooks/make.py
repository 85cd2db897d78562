"""Make the notebooks from pages of the documentation: ``python docs/notebooks/make.py``.

A page is the source: its prose, its programs (``python`` blocks), its commands (``console`` blocks, as ``!feedmill
...``) and its files (``yaml`` blocks that begin with their names) become cells, without outputs. Blocks of ``text``
stay text. The tests run the cells, and compare the notebooks with what this makes (tests/docs/test_notebooks.py).
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PAGES = ("tutorials/text_to_gpt", "tutorials/images_and_captions", "concepts/order")
DATA = "feedmill demo --data ."
_FENCE = re.compile(r"^```(?!text\b)(\w+)[^\n]*\n(.*?)^```\n", re.M | re.S)


def cells(page: Path) -> list[dict[str, Any]]:
    """Return the cells of a page, in order."""
    text = page.read_text()
    found = [] if DATA in text else [_code(0, f"!{DATA}\n")]
    end = 0
    for match in [*_FENCE.finditer(text), None]:
        prose = text[end : match.start() if match else len(text)].strip()
        if prose:
            found.append(_cell(len(found), "markdown", _from_here(prose, page) + "\n"))
        if match:
            end = match.end()
            found += [_code(len(found), code) for code in [_source(match[1], match[2])] if code]
    return found


def _source(language: str, text: str) -> str:
    """Return a block as IPython reads it; an empty text if it is only shown."""
    if language == "python":
        return text
    if language == "console":
        commands = re.findall(r"^\$ (.*(?:\\\n.*)*)", text, re.M)
        return "".join(f"!{command}\n" for command in commands)
    if language == "yaml":
        name = re.match(r"# ([\w./-]+\.yaml)\n", text)
        return f"%%writefile {name[1]}\n{text}" if name else ""
    return ""


def _from_here(prose: str, page: Path) -> str:
    """Return prose whose links between neighbors lead there from this folder."""
    return re.sub(r"\]\((?=[\w-]+\.md)", f"](../{page.parent.name}/", prose)


def _code(number: int, text: str) -> dict[str, Any]:
    return _cell(number, "code", text) | {"execution_count": None, "outputs": []}


def _cell(number: int, kind: str, text: str) -> dict[str, Any]:
    return {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.rstrip("\n").splitlines(True)}


def notebooks() -> dict[Path, str]:
    """Return each notebook's path and what it must contain."""
    made = {}
    for name in PAGES:
        page = HERE.parent / f"{name}.md"
        kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
        book = {"cells": cells(page), "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
        made[HERE / f"{page.stem}.ipynb"] = json.dumps(book, indent=1, ensure_ascii=False) + "\n"
    return made


if __name__ == "__main__":
    for path, text in notebooks().items():
        path.write_text(text)
