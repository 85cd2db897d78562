#!/usr/bin/env bash
# With `deduplicate=True`, as in datatrove's extractor, the text that trafilatura gives of a page depends on pages before it.
#
# The option compares with all that the process has extracted. A paragraph that pages share is in the first three of them
# and in no later one; a page that comes a fourth time has no text at all. So the text of a page is another in another
# task, after a restart, or with another number of tasks. `reset_caches`, as a new process, gives the whole text again.
# Exits 0 while this is so, 1 when it has changed.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install --quiet --disable-pip-version-check \
    datatrove==0.10.1 trafilatura==2.3.1 lxml_html_clean==0.4.6 numpy==2.4.6 regex==2026.11.19
"$work/venv/bin/python" - <<'PYTHON'
from importlib.metadata import version

from datatrove.pipeline.extractors import Trafilatura
from trafilatura.meta import reset_caches

NOTE = "All pages of this site are under one license, which readers accept by reading on, whatever the day or hour may be."


def page(number):
    own = "".join(
        f"<p>Page {number} has a paragraph {part}, in which some quite ordinary words, of which there are enough here, tell"
        f" its reader something about the subject of number {10 * number + part}, at some length and without haste.</p>"
        for part in range(5)
    )
    return f"<html><body><article><h1>Page {number}</h1>{own}<p>{NOTE}</p></article></body></html>"


def noted(number, **options):
    return NOTE in Trafilatura(**options).extract(page(number))


print(f"datatrove {version('datatrove')}, trafilatura {version('trafilatura')}: is the note below a page in its text?")
for options, expected in (({}, [True] * 3 + [False] * 5), ({"deduplicate": False}, [True] * 8)):
    reset_caches()
    seen = [noted(number, **options) for number in range(8)]
    reset_caches()
    alone = noted(7, **options)
    reset_caches()
    texts = [Trafilatura(**options).extract(page(7)) for _ in range(4)]
    print(f"  {options or 'by default'}: pages 0 to 7 {seen}; page 7 first {alone}; page 7 four times: "
          f"{[text and len(text) for text in texts]} characters")
    assert seen == expected and alone and bool(texts[3]) == bool(options) and all(texts[:3]), "changed"
PYTHON
