"""Run Dolma's own tests with Feedmill in place of Dolma: ``import dolma`` is `feedmill.compat.dolma`.

    python tests/interop/dolma_tests.py DOLMA/tests/python [arguments of pytest]

DOLMA is a copy of Dolma's repository. The tests need the packages smart-open, boto3, beautifulsoup4, tokenizers, and
those of the extras curation, langid, lingua, adblock and secrets. Tests of S3 are skipped. Models and tokenizers that
Dolma downloads are looked up in the folder that FEEDMILL_MODELS names.

Three differences that the migration page lists are switched off: ``tokens`` replaces token files of another job, and
``mix`` uses attributes of other texts, and rules over attributes that no row has.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from feedmill.compat.dolma import mix, tokens
from feedmill.compat.dolma.config import FLAG, Key
from feedmill.curation.registry import importable

_MORE = ("--continue-on-collection-errors", "-q", "--tb=short")


def main(folder: str, *arguments: str) -> int:
    """Run the tests, and return pytest's exit code."""
    tokens.SCHEMA["overwrite"] = Key(FLAG, True)
    mix.SCHEMA["allow_stale"] = mix.SCHEMA["allow_missing"] = Key(FLAG, True)
    os.environ.setdefault("DOLMA_TESTS_SKIP_AWS", "true")
    tests = Path(folder).resolve()
    root = tests.parents[1]
    os.chdir(root)  # the tests name their data from here
    sys.path.insert(0, str(root))
    with importable():
        return int(pytest.main([str(tests), f"--rootdir={root}", "-p", "no:cacheprovider", *_MORE, *arguments]))


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
