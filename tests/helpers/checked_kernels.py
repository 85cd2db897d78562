"""Run a module with kernels that end the process at the first index out of bounds:

    PYTHONPATH=src:tests python -m helpers.checked_kernels FOLDER MODULE ARGUMENTS...

FOLDER has the library of the level "checked" (``tools/kernels/build.py --checked FOLDER``).
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

from feedmill.kernels import native

if __name__ == "__main__":
    native.FOLDER = Path(sys.argv[1])
    os.environ["FEEDMILL_CPU"] = "checked"
    name, sys.argv = sys.argv[2], sys.argv[2:]
    runpy.run_module(name, run_name="__main__", alter_sys=True)
