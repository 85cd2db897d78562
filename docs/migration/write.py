"""Write the page of the settings of all peers, from the tables of the code: ``python docs/migration/write.py``."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

from feedmill.compat.settings import PEERS, Peer
from feedmill.formats.settings import Fate, Setting, Table

PAGE = Path(__file__).parents[1] / "internals/settings.md"
HEAD = """\
# Settings of other tools

This page lists every setting of the tools that Feedmill can replace, and what becomes of it: Feedmill follows it,
rejects it with a reason, or reports that it has no effect. Look here when you bring a configuration, a command line or
a training script.
"""
FATES = {Fate.MAPPED: "", Fate.REFUSED: "refused: ", Fate.NO_EFFECT: "no effect: "}


def page() -> str:
    """Return what the page must contain."""
    return HEAD + "".join(
        f"\n## {peer.title}\n\nAs of `{peer.release}`; see [how to move](../{peer.page}).\n{section(peer)}"
        for peer in PEERS.values()
    )


def section(peer: Peer) -> str:
    """Return the tables of a peer."""
    return "".join(f"\n### Settings: {table.face}\n\n{rows(table)}" for table in peer.tables)


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
    PAGE.write_text(page())
