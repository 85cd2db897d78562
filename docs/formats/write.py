"""Write the tables of types into their page, from the table of the code: ``python docs/formats/write.py``."""

from __future__ import annotations

import re
from pathlib import Path

from feedmill.formats.arrowtypes.table import EXTENSIONS, FEATURES, TYPES, Row

PAGE = Path(__file__).parents[1] / "internals/arrow_types.md"
MARKED = re.compile(r"(<!-- (\w+): made by docs/formats/write.py -->\n).*?(<!-- end -->\n)", re.S)
TABLES = {"types": ("type", TYPES), "extensions": ("extension type", EXTENSIONS), "features": ("feature", FEATURES)}


def pages() -> dict[Path, str]:
    """Return each page with tables and what it must contain."""
    return {PAGE: MARKED.sub(lambda found: f"{found[1]}\n{table(*TABLES[found[2]])}\n{found[3]}", PAGE.read_text())}


def table(head: str, rows: tuple[Row, ...]) -> str:
    """Return rows as a table in Markdown."""
    cells = [(head, "value"), ("---", "---"), *((row.title, row.value) for row in rows)]
    return "".join(f"| {left} | {right} |\n" for left, right in cells)


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
