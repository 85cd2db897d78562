"""Which boot of the machine this is: what was not synced before another one may be lost."""

from __future__ import annotations


def boot_id() -> str:
    """Return an id of this boot of the machine; empty if the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as f:
            return f.read().strip()
    except OSError:
        return ""
