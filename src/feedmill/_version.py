"""The version of this package, for modules that write it into their outputs."""

from __future__ import annotations

__version__ = "0.1.0"
