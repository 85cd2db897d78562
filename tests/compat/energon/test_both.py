"""One script, two packages: `both.py` gives with Feedmill what it gave with megatron-energon 7.4.1 (`both.json`)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.digests import GOLDEN

pytest.importorskip("torch")

HERE = Path(__file__).parent
PEER = os.environ.get("FEEDMILL_ENERGON_PYTHON")


def run(python: str, package: str, environment: dict[str, str]) -> Any:
    command = [python, str(HERE / "both.py"), package, str(GOLDEN)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout.splitlines()[-1])


def test_the_script_gives_what_energon_gave() -> None:
    environment = {**os.environ, "PYTHONPATH": ":".join(sys.path)}
    assert run(sys.executable, "feedmill.compat.energon", environment) == json.loads((HERE / "both.json").read_text())


@pytest.mark.interop
@pytest.mark.skipif(not PEER, reason="FEEDMILL_ENERGON_PYTHON names no Python with megatron-energon 7.4")
def test_energon_still_gives_it() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    assert run(PEER or "", "megatron.energon", environment) == json.loads((HERE / "both.json").read_text())
