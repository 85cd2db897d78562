"""The templates, with the filters that they use. What is drawn is escaped, and hidden characters are made visible."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import xxhash
from jinja2 import BytecodeCache, Environment, PackageLoader, StrictUndefined, select_autoescape
from jinja2.bccache import Bucket
from markupsafe import Markup

from feedmill._version import __version__
from feedmill.samples.text import human_size
from feedmill.web.invisible import marked, visible
from feedmill.web.results import RecentResults
from feedmill.web.samples import column_names

STATIC = Path(__file__).parent / "static"
STYLE = "page.css"
"""Name of the styles, which are one file for browsers: nothing is drawn before it is there."""
_STYLES = ("tokens.css", "base.css")
_KEPT = 128
"""Histograms that are kept as they are drawn: they are a third of a page, and the same for all its numbers."""


@cache
def style() -> str:
    """Return the styles of pages and reports."""
    return "\n".join((STATIC / name).read_text(encoding="utf-8") for name in _STYLES)


@cache
def static_version() -> str:
    """Return the version of the files in `static`, which their addresses name, so that browsers keep them."""
    digest = xxhash.xxh3_64()
    for path in sorted(STATIC.rglob("*.*")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


class _Compiled(BytecodeCache):
    """The templates as they were compiled, for all reports and servers of a process: it takes a tenth of a second."""

    def __init__(self) -> None:
        self._codes: dict[tuple[str, str], Any] = {}

    def load_bytecode(self, bucket: Bucket) -> None:
        bucket.code = self._codes.get((bucket.key, bucket.checksum))

    def dump_bytecode(self, bucket: Bucket) -> None:
        self._codes[bucket.key, bucket.checksum] = bucket.code


_COMPILED = _Compiled()


def environment() -> Environment:
    """Return the templates of pages and reports."""
    made = Environment(
        loader=PackageLoader("feedmill.web", "templates"),
        autoescape=select_autoescape(default=True, default_for_string=True),
        undefined=StrictUndefined,
        finalize=visible,
        bytecode_cache=_COMPILED,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "size": human_size,
        "count": _count,
        "marked": marked,
        "hits": _hits,
        "percent": _percent,
        "quiet": _quiet,
        "one": _one,
        "brief": brief,
    }
    made.globals |= {"version": __version__, "column_names": column_names, "measure": _measure}
    made.globals["static"] = lambda name: f"/static/{name}?v={static_version()}"
    made.globals["kept"] = RecentResults(_KEPT)
    return made


def _count(value: Any) -> str:
    return "" if value is None else f"{value:,}".replace("-", "\u2212")


def _percent(value: float, digits: int = 2) -> str:
    return f"{100 * value:.{digits}f}".replace("-", "\u2212")


def _hits(text: str, wanted: str | None) -> Markup:
    """Return text as HTML with the places that a search found marked."""
    if not wanted:
        return marked(text)
    parts, last = [], 0
    for found in re.finditer(re.escape(wanted), text, re.IGNORECASE):
        parts += [marked(text[last : found.start()]), Markup('<mark class="hit">{}</mark>').format(marked(found[0]))]
        last = found.end()
    return Markup("").join([*parts, marked(text[last:])])


def _quiet(value: Any) -> str:
    """Return a number with as many digits as a reader needs."""
    if isinstance(value, float) and not value.is_integer():
        return f"{value:,.4g}"
    return f"{int(value):,}"


def _measure(name: str, value: Any) -> str:
    """Return a number of an index column with its unit."""
    return "" if value is None else human_size(value) if name == "bytes" else _quiet(value)


_COLUMN = re.compile(r"(?<=[\[,])[^\[\],=]+=")


def brief(name: str) -> str:
    """Return the name of a cell without its columns, for narrow places; other names as they are.

    >>> brief("web[topic=code,metadata.score=..0.3]"), brief("books")
    ('web[code,..0.3]', 'books')
    """
    return _COLUMN.sub("", name) if name.endswith("]") else name


def _one(items: Any) -> Any:
    """Return the first of some items; None if there is none."""
    return next(iter(items), None)
