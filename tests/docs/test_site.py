"""The site has every page once, and every public name; it builds without a warning where Sphinx is installed."""

from __future__ import annotations

import inspect
import re
import runpy
import subprocess
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name

import pytest

from helpers.faces import names

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = runpy.run_path(str(DOCS / "pages.py"))
SECTIONS: dict[str, list[str]] = PAGES["navigation"]()


def pages() -> list[str]:
    return [page for section in SECTIONS.values() for page in section]


def test_every_page_is_in_the_navigation_once() -> None:
    there = {str(path.relative_to(DOCS).with_suffix("")) for kind in ("md", "rst") for path in DOCS.rglob(f"*.{kind}")}
    assert Counter(pages()) == Counter(there - {"index"})


def test_llms_lists_every_page_for_users() -> None:
    """`llms.txt` has a line for each page but the internals: a title, and a sentence that says what it is for."""
    listed = re.findall(r"^- \[[^\]]+\]\((\S+)\.html\): \S.{15,400}[.:?]$", PAGES["llms"](), re.M)
    assert listed == [page for title, section in SECTIONS.items() if title != "Internals" for page in section]


def test_user_pages_stay_short() -> None:
    """What only a maintainer needs is in `internals`: the pages for users have 60,000 words, code included."""
    paths = [path for path in DOCS.rglob("*.md") if "internals" not in path.parts]
    assert sum(len(path.read_text().split()) for path in paths) <= 60_000


def test_every_public_name_is_in_the_reference_once_with_members_that_exist() -> None:
    made = runpy.run_path(str(DOCS / "reference/write.py"))
    written = {path: path.read_text() for path in (DOCS / "reference").glob("*.rst")}
    assert written == made["references"](), "run: python docs/reference/write.py"
    listed = Counter(re.findall(r"auto(?:class|function):: ([\w.]+)", "\n".join(written.values())))
    assert listed == Counter(f"{module.__name__}.{name}" for module, name in names())
    for name, members in made["MEMBERS"].items():
        kind = resolve_name(f"feedmill:{name}")
        assert all(inspect.getdoc(getattr(kind, member)) for member in members.split()), name


@pytest.mark.parametrize("page", [page for page in pages() if (DOCS / f"{page}.md").exists()])
def test_a_page_begins_with_what_and_when(page: str) -> None:
    """A title, then a paragraph of some words, not a table, a list or a program."""
    title, first = (DOCS / f"{page}.md").read_text().split("\n\n")[:2]
    assert re.fullmatch(r"# \S.*", title)
    assert len(first.split()) >= 12 and not first.startswith(("|", "-", "```", "#", "!"))


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(find_spec, ("sphinx", "myst_parser", "furo"))), reason="Sphinx is not installed: make docs"
)
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (tmp_path / "reference/loading.html").stat().st_size > 20_000
