"""Run VLA Foundry's own tests of poses against Feedmill: ``python original_tests.py FOLDER``, its checkout.

The module that the tests import is replaced by Feedmill's in ``sys.modules``; the tests themselves are unchanged, and
nothing else of VLA Foundry is imported. Exit status and output are pytest's.
"""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest

from feedmill.compat.vla import robotics_utils

REPLACED = "vla_foundry.data.robotics.utils"
TESTS = ("tests/essential/data/test_robotics_utils.py",)


def main(folder: Path) -> int:
    """Run the tests of a checkout. Return pytest's exit status."""
    for name in ("vla_foundry", "vla_foundry.data", "vla_foundry.data.robotics"):
        package = types.ModuleType(name)
        package.__path__ = []
        sys.modules[name] = package
    sys.modules[REPLACED] = robotics_utils
    options = ["--noconftest", "-p", "no:cacheprovider", "-c", "/dev/null", "--rootdir", str(folder)]
    return int(pytest.main([*options, *(str(folder / test) for test in TESTS)]))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
