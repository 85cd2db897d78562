"""Cheap test whether a text may contain an e-mail address, a phone number or an IP address.

Each hint tests a necessary condition. Most texts meet none, which saves the full regular expressions. This is plain
Python, the test oracle of `feedmill.kernels.text.hints_compiled`.
"""

from __future__ import annotations

import re

EMAIL, PHONE, ADDRESS = 1, 2, 4
_PHONE = re.compile(r"\s\(?\d{3}\)?[-. ]*\d{3}")
_ADDRESS = re.compile(r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]")


def hints(text: str) -> int:
    """Return the bits of what the text may contain."""
    return EMAIL * ("@" in text) | PHONE * bool(_PHONE.search(text)) | ADDRESS * bool(_ADDRESS.search(text))
