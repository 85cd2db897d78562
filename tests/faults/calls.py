"""The system calls by which programs change files, on x86-64: their numbers, and where they say which file.

`CALLS` has what `tracer` counts. ``file`` says how a call names its file: a path (``path``), a path below a folder's
descriptor (``at``), a descriptor (``fd``); the number behind it is the argument. A call that moves or links something
has a second name, ``to``.
"""

from __future__ import annotations

import os
import struct
from typing import NamedTuple

FLAGS_OF_OPENING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Kind(NamedTuple):
    """A system call.

    Attributes:
        name: as its manual page has it.
        file: ``path``, ``at`` or ``fd``.
        argument: which argument that is, from 0.
        to: the argument with the second path (of an ``at`` call, with its folder's descriptor).
        flags: the argument whose bits say whether a file is opened for writing.
        size: the argument with the number of bytes that are written.
        space: whether a full disk refuses it.
    """

    name: str
    file: str
    argument: int = 0
    to: int | None = None
    flags: int | None = None
    size: int | None = None
    space: bool = False


CALLS: dict[int, Kind] = {
    1: Kind("write", "fd", size=2, space=True),
    18: Kind("pwrite64", "fd", size=2, space=True),
    20: Kind("writev", "fd", space=True),
    296: Kind("pwritev", "fd", space=True),
    328: Kind("pwritev2", "fd", space=True),
    40: Kind("sendfile", "fd", size=3, space=True),
    326: Kind("copy_file_range", "fd", 2, size=4, space=True),
    275: Kind("splice", "fd", 2, size=4, space=True),
    2: Kind("open", "path", flags=1, space=True),
    257: Kind("openat", "at", flags=2, space=True),
    437: Kind("openat2", "at", space=True),
    85: Kind("creat", "path", space=True),
    76: Kind("truncate", "path", space=True),
    77: Kind("ftruncate", "fd", space=True),
    285: Kind("fallocate", "fd", space=True),
    74: Kind("fsync", "fd", space=True),
    75: Kind("fdatasync", "fd", space=True),
    277: Kind("sync_file_range", "fd", space=True),
    82: Kind("rename", "path", 0, to=1),
    264: Kind("renameat", "at", 0, to=2),
    316: Kind("renameat2", "at", 0, to=2),
    86: Kind("link", "path", 1, space=True),
    265: Kind("linkat", "at", 2, space=True),
    88: Kind("symlink", "path", 1, space=True),
    266: Kind("symlinkat", "at", 1, space=True),
    83: Kind("mkdir", "path", space=True),
    258: Kind("mkdirat", "at", space=True),
    133: Kind("mknod", "path", space=True),
    259: Kind("mknodat", "at", space=True),
    84: Kind("rmdir", "path"),
    87: Kind("unlink", "path"),
    263: Kind("unlinkat", "at"),
    90: Kind("chmod", "path"),
    91: Kind("fchmod", "fd"),
    268: Kind("fchmodat", "at"),
    452: Kind("fchmodat2", "at"),
    92: Kind("chown", "path"),
    93: Kind("fchown", "fd"),
    94: Kind("lchown", "path"),
    260: Kind("fchownat", "at"),
    235: Kind("utimes", "path"),
    280: Kind("utimensat", "at"),
    188: Kind("setxattr", "path"),
    190: Kind("fsetxattr", "fd"),
}
SYNCS = tuple(number for number, kind in CALLS.items() if "sync" in kind.name)
"""Calls that take long, and whose work no trial needs: they are counted, but not made."""

_LOAD, _EQUAL, _ANY_OF, _RETURN = 0x20, 0x15, 0x45, 0x06
_TRACE, _ALLOW, _DONE = 0x7FF00000, 0x7FFF0000, 0x00050000
_X86_64 = 0xC000003E
_NUMBER, _ARCHITECTURE, _ARGUMENTS = 0, 4, 16


_HEAD = [(_LOAD, 0, 0, _ARCHITECTURE), (_EQUAL, 1, 0, _X86_64), (_RETURN, 0, 0, _ALLOW), (_LOAD, 0, 0, _NUMBER)]


def hurrying() -> bytes:
    """The seccomp filter that has syncs end at once."""
    steps = [*_HEAD]
    for number in SYNCS:
        steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _DONE)]
    return _packed(steps)


def stopping() -> bytes:
    """The seccomp filter that stops a process at these calls (at opening only where that is for writing)."""
    steps = [*_HEAD]
    for number, kind in CALLS.items():
        if kind.flags is None:
            steps += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _TRACE)]
        else:
            steps += [
                (_EQUAL, 0, 4, number),
                (_LOAD, 0, 0, _ARGUMENTS + 8 * kind.flags),
                (_ANY_OF, 0, 1, FLAGS_OF_OPENING),
                (_RETURN, 0, 0, _TRACE),
                (_RETURN, 0, 0, _ALLOW),
            ]
    return _packed(steps)


def _packed(steps: list[tuple[int, int, int, int]]) -> bytes:
    return b"".join(struct.pack("<HBBI", *step) for step in [*steps, (_RETURN, 0, 0, _ALLOW)])
