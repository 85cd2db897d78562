"""Run ``python -m feedmill.compat.dolma.cli COMMAND``, and Dolma's `main` for programs that call it."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from feedmill.compat.dolma.cli import run


def main(argv: Sequence[str] | None = None) -> None:
    """Run a command of Dolma's command line, by default of ``sys.argv``.

    Raises:
        FeedmillError: the command failed. The command line ``feedmill compat dolma`` prints it instead.
    """
    run([str(word) for word in (sys.argv[1:] if argv is None else argv)])


if __name__ == "__main__":
    from feedmill.__main__ import main as app

    sys.argv[1:1] = ["compat", "dolma"]
    app()
