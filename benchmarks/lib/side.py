"""Run one measurement in a separate process: ``python -m benchmarks.SUBJECT.peers.NAME FUNCTION ARGUMENTS``.

The environments of peers need not have Feedmill, so this module needs only Python.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any


def answer(functions: Mapping[str, Any]) -> None:
    """Call the function that the first argument names with the other arguments, and print its result as JSON."""
    name, *words = sys.argv[1:]
    print(json.dumps(functions[name.replace("-", "_")](*words)))
    sys.stdout.flush()
    if not any(module.partition(".")[0] == "feedmill" for module in sys.modules):
        os._exit(0)  # do not wait for the worker processes and watchdog threads of a peer
