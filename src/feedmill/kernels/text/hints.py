"""Whether a text may hold an e-mail address, a phone number or an IP address: what every one of them has at least.

Plain Python, the oracle of `feedmill.kernels.text.hints_compiled`. Most texts have none, and then need no regular
expression.
"""

from __future__ import annotations

import re

EMAIL, PHONE, ADDRESS = 1, 2, 4
_PHONE = re.compile(r"\s\(?\d{3}\)?[-. ]*\d{3}")
_ADDRESS = re.compile(r"[0-9]\.[0-9]{1,3}\.[0-9]{1,3}\.[0-9]")


def hints(text: str) -> int:
    """Return the bits of what the text may hold."""
    return EMAIL * ("@" in text) | PHONE * bool(_PHONE.search(text)) | ADDRESS * bool(_ADDRESS.search(text))
