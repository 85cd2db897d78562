"""In tests, an error that the package raises must have a listed kind, however the word reached it."""

from __future__ import annotations

import errno
import re
import sys
from typing import Any

from feedmill import errors

LISTED = [kind for kinds in errors.KINDS.values() for kind in kinds]
OF_THE_SYSTEM = {code.lower() for code in errno.errorcode.values()}
_KNOWN = {*LISTED, *OF_THE_SYSTEM}
_init = errors.FeedmillError.__init__


def _checked(self: errors.FeedmillError, *args: Any, **fields: Any) -> None:
    _init(self, *args, **fields)
    module = sys._getframe(1).f_globals.get("__name__", "")
    ours = module.startswith("feedmill.") and module != errors.__name__  # which makes errors of worker processes again
    word = re.fullmatch(r"[a-z-]+", self.kind)  # else the class of an exception
    assert not (ours and word and self.kind not in _KNOWN), f"{module} raises the kind {self.kind!r}: list it in KINDS"


def refuse_unlisted() -> None:
    """Check every error that this process makes from now on."""
    errors.FeedmillError.__init__ = _checked  # type: ignore[method-assign]
