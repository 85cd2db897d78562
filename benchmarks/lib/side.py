"""One measurement in a process of its own: ``python -m benchmarks.SUBJECT.peers.NAME FUNCTION WORDS``, from the root.

Peers' Pythons need not have Feedmill, so this needs nothing but Python.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from typing import Any


def answer(functions: Mapping[str, Any]) -> None:
    """Call the function that the first word names with the others, and print what it gives as a line of JSON."""
    name, *words = sys.argv[1:]
    print(json.dumps(functions[name.replace("-", "_")](*words)))
    sys.stdout.flush()
    if not any(module.partition(".")[0] == "feedmill" for module in sys.modules):
        os._exit(0)  # a peer's worker processes and watchdog threads would be waited for
