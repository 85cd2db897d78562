"""VLA Foundry's own tests of poses and windows pass with Feedmill inside.

They run where FEEDMILL_VLA_FOUNDRY names a checkout of VLA Foundry.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.interop
def test_all_of_them_pass() -> None:
    folder = os.environ.get("FEEDMILL_VLA_FOUNDRY")
    if not folder:
        pytest.skip("FEEDMILL_VLA_FOUNDRY names no checkout of VLA Foundry")
    script = Path(__file__).with_name("original_tests.py")
    done = subprocess.run([sys.executable, str(script), folder], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout
    passed = re.search(r"(\d+) passed", done.stdout)
    assert passed is not None and int(passed[1]) >= 56
