"""Write the tables of settings into the pages of the peers: ``python docs/migration/write.py``."""

from __future__ import annotations

import re
from itertools import groupby
from pathlib import Path

from feedmill.compat.settings import PEERS, Peer
from feedmill.formats.settings import Fate, Setting, Table

DOCS = Path(__file__).parents[1]
MARKED = re.compile(
    r"(<!-- settings of (\w+): made by docs/migration/write.py -->\n).*?(<!-- end of settings -->\n)", re.S
)
FATES = {Fate.MAPPED: "", Fate.REFUSED: "refused: ", Fate.NO_EFFECT: "no effect: "}


def pages() -> dict[Path, str]:
    """Return each page with tables and what it must contain."""
    paths = sorted({DOCS / peer.page for peer in PEERS.values()})
    return {
        path: MARKED.sub(lambda found: found[1] + section(PEERS[found[2]]) + found[3], path.read_text())
        for path in paths
    }


def section(peer: Peer) -> str:
    """Return the tables of a peer."""
    return "".join(f"\n### Settings: {table.face}\n\n{rows(table)}\n" for table in peer.tables)


def rows(table: Table) -> str:
    """Return a table as Markdown; settings of one fate that follow one another share a row."""
    lines = ["| setting | Feedmill |", "|---|---|"]
    for setting, group in groupby(table.settings.items(), key=lambda item: item[1]):
        named = ", ".join(f"`{name}`" for name, _ in group)
        lines.append(f"| {named} | {words(setting)} |")
    if table.open:
        lines.append("| any other word | named in a note `not used: ...` |")
    return "\n".join(lines) + "\n"


def words(setting: Setting) -> str:
    """Return what a page says of a setting."""
    accepted = [f"`{value}`" for value in setting.unless if value not in (None, False)]
    fate = "no effect, with a warning: " if setting.warns else FATES[setting.fate]
    return fate + setting.words + (f"; accepted: {', '.join(accepted)}" if accepted else "")


if __name__ == "__main__":
    for path, text in pages().items():
        path.write_text(text)
