"""One forked process that runs inputs under an audit hook, with bounded memory and time; it tells what it found."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import re
import resource
import shutil
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any

import numpy as np

from feedmill.errors import FeedmillError
from fuzzing.mutate import mutated
from fuzzing.readers import READERS, Reader, Seeds

SECONDS = 5
MEMORY = 1 << 30
_READS = ("/proc/", "/sys/", "/dev/null", "/usr/", "/etc/ld.so", "/etc/localtime", "/etc/mime.types", "/etc/nsswitch")
_RUNS = ("subprocess.Popen", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "socket.connect", "socket.bind", "socket.getaddrinfo", "pty.spawn")  # fmt: skip
_CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
_KERNEL = re.compile(r"/__pycache__(/|$)|/cache/tokenizers(/[^/]*\.json)?\b")
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC


class Audit:
    """What the input in progress did that no data may."""

    def __init__(self, allowed: list[str]) -> None:
        self.folder = ""
        self.seen: list[str] = []
        self.allowed = tuple(os.path.realpath(path) + "/" for path in allowed)
        self.on = False
        self.anywhere = False  # whether the input may name files anywhere, which then are not written either
        sys.addaudithook(self._hook)

    def _hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if not self.on:
            return
        self.on = False  # what is asked here is not to be audited
        try:
            self._look(event, arguments)
        finally:
            self.on = True

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str | bytes):
            path, flags = os.path.realpath(os.fsdecode(arguments[0])), arguments[2] or 0
            if path.startswith(self.folder) or (not flags & _WRITES and path.startswith((*_READS, *self.allowed))):
                return
            if path == os.devnull or _KERNEL.search(path):
                return
            if not self.anywhere:
                self.seen.append(f"opened {path} ({flags:#o})")
            if flags & _WRITES:
                raise PermissionError(errno.EACCES, "not in this folder", path)
        elif event in _CHANGES and isinstance(arguments[0], str | bytes):
            for name in arguments[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
                path = os.path.realpath(os.fsdecode(name))
                if not path.startswith((self.folder, self.allowed[-1])) and not _KERNEL.search(path):
                    if not self.anywhere:
                        self.seen.append(f"{event} {path}")
                    raise PermissionError(errno.EACCES, "not in this folder", path)
        elif event in _RUNS:
            self.seen.append(f"{event} {arguments!r:.200}")
        elif event == "pickle.find_class":
            self.seen.append(f"{event} {arguments!r}")
        elif event in ("import", "compile", "ctypes.dlopen"):
            name = arguments[1] if len(arguments) > 1 else arguments[0]
            if isinstance(name, str | bytes) and os.fsdecode(name).startswith(self.folder):
                self.seen.append(f"{event} {name!r:.200}")
        elif event == "exec" and getattr(arguments[0], "co_filename", "").startswith(self.folder):
            self.seen.append(f"ran {arguments[0]!r}")


def run(numbers: list[int], seed: int, seeds: Seeds, only: str | None, root: str, out: int) -> None:
    """Run inputs by number; a line of JSON on the descriptor `out` before each and after each."""
    os.environ["TMPDIR"] = tempfile.tempdir = root
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    source = Path(__file__).resolve().parents[2]
    audit = Audit([sys.prefix, sys.base_prefix, str(source / "src"), str(source / "tests"), root])
    limit = _status("VmSize") + MEMORY + (256 << 20)
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for number in numbers:
        _tell(out, {"begin": number})
        found = one(number, seed, seeds, only, root, audit)
        _tell(out, {"end": number, "found": found})


def choice(number: int, seed: int, seeds: Seeds, only: str | None) -> tuple[Reader, int, random.Random]:
    """The reader of an input, which of its seeds, and the randomness of the rest."""
    rng = random.Random(seed * 1_000_003 + number)
    readers = [reader for reader in READERS if only in (None, reader.name) and seeds.get(reader.name)]
    reader = rng.choices(readers, [reader.weight for reader in readers])[0]
    return reader, rng.randrange(len(seeds[reader.name])), rng


def make(number: int, seed: int, seeds: Seeds, only: str | None, folder: Path) -> tuple[Reader, str, random.Random]:
    """Write an input; gives its reader and the file that was damaged."""
    reader, which, rng = choice(number, seed, seeds, only)
    files = dict(seeds[reader.name][which])
    names = sorted(name for name in files if reader.damages(name))
    name = rng.choice(names)
    files[name] = mutated(files[name], name, rng)
    for path, data in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(data)
    return reader, name, rng


def one(number: int, seed: int, seeds: Seeds, only: str | None, root: str, audit: Audit) -> list[str]:
    """What is wrong with how an input was read; nothing where it was read or refused."""
    folder = Path(root) / f"{number}"
    folder.mkdir()
    found: list[str] = []
    _forget_peak()
    before = _status("VmRSS")
    try:
        reader, _, rng = make(number, seed, seeds, only, folder)
        np.random.seed(0)
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + SECONDS + 1, resource.RLIM_INFINITY))
        audit.anywhere = reader.names_files
        audit.folder, audit.on = f"{os.path.realpath(folder)}/", True
        try:
            os.chdir(folder)
            reader.run(folder, rng)
        except FeedmillError:
            pass
        except BaseException as error:
            audit.on = False
            found.append(_described(error))
        finally:
            audit.on = False
            os.chdir(root)
        found += sorted(set(audit.seen))
        audit.seen.clear()
        peak = _status("VmHWM") - before
        if peak > MEMORY:
            found.append(f"took {peak >> 20} MiB")
        spent = sum(resource.getrusage(resource.RUSAGE_SELF)[:2]) - used
        if spent > SECONDS:
            found.append(f"took {spent:.1f} s")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return found


def _described(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/feedmill/" in frame.filename]
    where = f"{frames[-1].filename.rpartition('/feedmill/')[2]}:{frames[-1].lineno}" if frames else "?"
    return f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:200]}"


def _status(field: str) -> int:
    """Bytes of a field of /proc/self/status; 0 where there is none."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        for line in file:
            if line.startswith(field + ":"):
                return int(line.split()[1]) << 10
    return 0


def _forget_peak() -> None:
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _tell(out: int, what: dict[str, Any]) -> None:
    os.write(out, json.dumps(what).encode() + b"\n")
