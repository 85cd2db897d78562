"""The pages of the site by section, and ``llms.txt``, a list of them with what each is about, for programs."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

HERE = Path(__file__).parent


def navigation() -> dict[str, list[str]]:
    """Return the pages of each section, without suffix; a pattern stands for the pages that fit it, by name."""
    sections: dict[str, list[str]] = yaml.safe_load((HERE / "navigation.yaml").read_text(encoding="utf-8"))
    named = {page for pages in sections.values() for page in pages}

    def found(line: str) -> list[str]:
        if "*" not in line:
            return [line]
        return sorted({str(path.relative_to(HERE).with_suffix("")) for path in HERE.glob(line)} - named)

    return {title: [page for line in pages for page in found(line)] for title, pages in sections.items()}


def llms() -> str:
    """Return ``llms.txt``: every page that is for users, with its title and its first sentence."""
    home = (HERE / "index.md").read_text(encoding="utf-8")
    lines = [home.split("\n\n")[0], "", "> " + _first(home)]
    for title, pages in navigation().items():
        if title != "Internals":
            lines += ["", f"## {title}", "", *(_line(page) for page in pages)]
    return "\n".join(lines) + "\n"


def _line(page: str) -> str:
    path = HERE / f"{page}.md"
    if path.exists():
        text = path.read_text(encoding="utf-8")
        return f"- [{_plain(text.splitlines()[0].lstrip('# '))}]({page}.html): {_first(text)}"
    text = (HERE / f"{page}.rst").read_text(encoding="utf-8")
    return f"- [{text.splitlines()[0]}]({page}.html): functions and classes of `import feedmill as fm`."


def _first(text: str) -> str:
    """Return the first sentence after the title of a page."""
    paragraph = " ".join(text.split("\n\n")[1].split())
    return _plain(re.split(r"(?<=[.!?:]) (?=[A-Z])", paragraph)[0])


def _plain(text: str) -> str:
    """Return text without links and bold type."""
    return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("**", "")
