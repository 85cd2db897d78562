"""Write the page of the kinds of errors from the list in the code: ``python docs/reference/write.py``."""

from __future__ import annotations

from pathlib import Path

from feedmill.errors import KINDS

PAGE = Path(__file__).parents[1] / "internals/errors.md"
HEAD = """\
# Kinds of errors

This page lists the kinds of errors. You need it to decide in a program what to do about an error: a kind is a short
word that stays the same, while messages may change. `error.kind` has it in Python, `--json` prints it as `kind`,
`feedmill check` gives each finding one, and so do the quarantine lists of loaders.

```python
import feedmill as fm

try:
    fm.open("no/such/folder")
except fm.FeedmillError as error:
    assert error.kind == "not-found"
```

Storage errors of the operating system have its names as kinds, such as `eacces` (permission denied) and `enospc` (the
disk is full). A sample whose transform raised an exception has the exception's class as its kind in quarantine lists,
such as `ValueError`. `feedmill.errors.KINDS` has these tables as data.
"""


def page() -> str:
    """Return what the page must contain."""
    tables = [
        f"\n## {subject}\n\n| kind | what it means, and what to do |\n|---|---|\n"
        + "".join(f"| `{kind}` | {sentence} |\n" for kind, sentence in sorted(kinds.items()))
        for subject, kinds in KINDS.items()
    ]
    return HEAD + "".join(tables)


if __name__ == "__main__":
    PAGE.write_text(page())
