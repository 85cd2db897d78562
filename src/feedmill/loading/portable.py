"""Whether user code can be sent to worker processes."""

from __future__ import annotations

import pickle
from typing import Any


def portable(*sent: Any) -> bool:
    """Return whether these can be pickled, and nothing in them is defined in the main program.

    Workers would run the main program's file again to find it there, which a script that does not guard its main part
    (``if __name__ == "__main__"``) does not survive.
    """
    try:
        return b"__main__" not in pickle.dumps(sent)
    except Exception:  # whatever user code holds may refuse in its own way
        return False
