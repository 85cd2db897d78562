"""Check whether user code can be sent to worker processes.

The loaders of `feedmill.compat.energon` use processes if it can, and threads if not.
"""

from __future__ import annotations

import pickle
from typing import Any


def portable(*sent: Any) -> bool:
    """Return whether the objects can be pickled, and nothing in them is defined in the main program.

    To import a definition from the main program, a worker would run its file again. A script without the guard
    ``if __name__ == "__main__"`` would then start its training again in the worker.

    Args:
        sent: the objects, for example a task encoder.
    """
    try:
        return b"__main__" not in pickle.dumps(sent)
    except Exception:  # user objects may raise any error when pickled
        return False
