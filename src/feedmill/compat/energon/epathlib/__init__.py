"""Energon's path type, which works for local files and for all remote stores."""

from __future__ import annotations

from feedmill.compat.energon.epathlib.epath import DEFAULT_PROFILE_NAME, EPath

__all__ = ["DEFAULT_PROFILE_NAME", "EPath"]
