"""``python -m feedmill.cli.precommit FILE...``: parse recipes and filter configurations; no data is opened.

The hook ``feedmill-recipes`` of ``.pre-commit-hooks.yaml`` runs it on the files of a commit.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from feedmill.errors import FeedmillError


def problem(path: str) -> str:
    """Return the error message of a file; an empty text if it is valid."""
    from feedmill.curation.mix.config import read_config
    from feedmill.formats.yamls import read_yaml
    from feedmill.planning.recipes.recipe import Recipe

    try:
        tree = read_yaml(Path(path).read_text(encoding="utf-8"), path).value
        if isinstance(tree, Mapping) and "streams" in tree:
            read_config(tree)
        else:
            Recipe.load(path)
    except FeedmillError as error:
        text = str(error)
        return text if path in text else f"{path}: {text}"
    except (OSError, UnicodeDecodeError) as error:
        return f"{path}: this file cannot be read: {getattr(error, 'strerror', None) or error}"
    return ""


def main(paths: Sequence[str]) -> int:
    """Print the problems of these files. Return the exit status: 1 if there are any."""
    problems = [text for text in map(problem, paths) if text]
    sys.stderr.write("".join(f"error: {text}\n" for text in problems))
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
