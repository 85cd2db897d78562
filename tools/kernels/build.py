"""Compile the kernels of this checkout to shared libraries, one for each level of processor.

    python tools/kernels/build.py            # into src/feedmill/kernels, for a checkout that is used as it is
    python tools/kernels/build.py --checked  # the level "checked" alone, which stops at an index out of bounds

The compiler is that of the package ``ziglang``, which needs nothing else on the machine, or the command that the
environment variable ``FEEDMILL_CC`` names, such as ``cc``. ``FEEDMILL_TARGET`` compiles for another machine: one of
`TARGETS`. Files between the sources and the libraries, and all caches, are in ``build/kernels``.

The libraries are linked without the C library: their only undefined names are a few of its functions (``memcpy``,
``pread``), which every Python process has. So one library serves all distributions, with glibc and with musl.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shlex
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from feedmill.kernels.interface import FOLDER, fingerprint, machine
from kernels.translate import KernelError, modules_below, translate

ROOT = Path(__file__).parents[2]
ZIG = "ziglang>=0.15,<0.18"
"""The requirement of builds, and of the extra ``dev``."""
CHECKED = "checked"


class Target(NamedTuple):
    """A kind of machine.

    Attributes:
        zig: its name for zig.
        levels: for each library, the names of the processor for zig and for other compilers.
        tag: the platform of its wheels.
    """

    zig: str
    levels: dict[str, tuple[str, str]]
    tag: str


_PC = {"x86_64": ("x86_64", "x86-64"), "x86_64_v3": ("x86_64_v3", "x86-64-v3")}
TARGETS = {
    "linux-x86_64": Target("x86_64-linux-gnu", _PC, "manylinux_2_17_x86_64.musllinux_1_1_x86_64"),
    "linux-aarch64": Target(
        "aarch64-linux-gnu", {"aarch64": ("generic", "armv8-a")}, "manylinux_2_17_aarch64.musllinux_1_1_aarch64"
    ),
    "macos-aarch64": Target("aarch64-macos", {"aarch64": ("apple_m1", "armv8-a")}, "macosx_11_0_arm64"),
    "macos-x86_64": Target("x86_64-macos", _PC, "macosx_10_13_x86_64"),
}
_FLAGS = (
    "-std=gnu11", "-O3", "-g0", "-fPIC", "-fvisibility=hidden", "-fno-stack-protector",
    "-fno-asynchronous-unwind-tables", "-fno-unwind-tables",  # a tenth of the library; nothing is thrown through it
    "-fomit-frame-pointer",  # which zig keeps by default: loops need the register
    "-fwrapv", "-fno-strict-aliasing", "-ffp-contract=off",  # every machine gives the same bits
    "-Wall", "-Wno-unused-function", "-Wno-unused-variable", "-Wno-unused-but-set-variable",
    "-Wno-parentheses-equality", "-Werror=return-type",
)  # fmt: skip
_CLANG = ("-mllvm", "-epilogue-vectorization-minimum-VF=17")
"""For zig alone: what is left over after a loop over vectors takes a second one only if they have 17 elements or more.
With the default of 16, the library for AVX2 is 5 % larger, and no kernel faster."""
# Shifts and sums of kernels wrap, and a part of a file need not be aligned.
_SANITIZE = (
    "-DCHECKED", "-O1", "-fsanitize=undefined", "-fsanitize-trap=undefined",
    "-fno-sanitize=shift-base,signed-integer-overflow,alignment,pointer-overflow",
)  # fmt: skip


def target() -> str | None:
    """Return the key in `TARGETS` of the machine to compile for; None for a machine that is not listed."""
    system = {"darwin": "macos"}.get(sys.platform, sys.platform)
    name = os.environ.get("FEEDMILL_TARGET") or f"{system}-{machine()}"
    if name not in TARGETS and "FEEDMILL_TARGET" in os.environ:
        raise SystemExit(f"FEEDMILL_TARGET={name}: expected one of {', '.join(TARGETS)}")
    return name if name in TARGETS else None


def build(out: Path, *, checked: bool = False, source: str | None = None, work: Path | None = None) -> list[Path]:
    """Compile the kernels, and return the libraries.

    Args:
        out: folder for the libraries.
        checked: build the level "checked" alone.
        source: the kernels in C; default: those of the package.
        work: folder for all other files; default: ``build/kernels``.
    """
    work = work or ROOT / "build/kernels"
    work.mkdir(parents=True, exist_ok=True)
    out.mkdir(parents=True, exist_ok=True)
    text = source or translate(modules_below(Path(FOLDER), "feedmill.kernels"))
    name = target()
    levels = dict(TARGETS[name].levels) if name else {machine(): ("", "")}
    if checked:
        levels = {CHECKED: next(iter(levels.values()))}
    code = work / "kernels.c"
    code.write_text(text)

    def one(level: str) -> Path:
        flags = [*_FLAGS, *(_SANITIZE if level == CHECKED else ())]
        compiler, link = _compiler(name, levels[level], level == CHECKED)
        state = hashlib.blake2b(repr((text, flags, compiler)).encode(), digest_size=8).hexdigest()
        made, rest = work / f"{level}.{state}.o", work / f"{level}.calls.o"
        if not made.exists():
            for old in work.glob(f"{level}.*.o"):
                old.unlink()
            part = made.with_suffix(".part")
            _run(work, [*compiler, *flags, "-c", "-o", str(part), str(code)])
            part.replace(made)
        named = f'-DFEEDMILL_SOURCES="{fingerprint()}"'
        # The calls are short, and as fast when they are small.
        _run(work, [*compiler, *_FLAGS, "-Os", named, "-c", "-o", str(rest), str(Path(__file__).with_name("calls.c"))])
        path, new = out / f"kernels.{level}.so", out / f"kernels.{level}.so.{os.getpid()}"
        _run(work, [*compiler, *link, "-o", str(new), str(made), str(rest)])
        new.replace(path)  # a process may use the old one
        return path

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, levels))


def _compiler(name: str | None, processor: tuple[str, str], checked: bool) -> tuple[list[str], list[str]]:
    """Return the command of the compiler with the processor, and the options for linking."""
    link = ["-shared", "-s", "-Wl,--hash-style=gnu"]
    link += [] if name and name.startswith("macos") else ["-nostdlib", "-Wl,-z,norelro"]
    own = os.environ.get("FEEDMILL_CC")
    if own is None and name is not None and find_spec("ziglang") is not None:
        command = [sys.executable, "-m", "ziglang", "cc", "-target", TARGETS[name].zig, f"-mcpu={processor[0]}"]
        return [*command, *_CLANG, *([] if checked else ["-fno-sanitize=all"])], link  # after which it ignores others
    return [*shlex.split(own or "cc"), *([f"-march={processor[1]}"] if processor[1] else [])], link


def _run(work: Path, command: Sequence[str]) -> None:
    caches = {name: str(work / "zig") for name in ("ZIG_GLOBAL_CACHE_DIR", "ZIG_LOCAL_CACHE_DIR")}
    try:
        done = subprocess.run(command, env={**os.environ, **caches}, capture_output=True, text=True)
    except FileNotFoundError:
        raise SystemExit(f"no compiler {command[0]}: install the package ziglang, or set FEEDMILL_CC") from None
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stderr[-4000:]}")
    if done.stderr.strip():
        print(done.stderr.strip(), file=sys.stderr)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checked", action="store_true", help='build the level "checked" alone')
    parser.add_argument("folder", nargs="?", type=Path, default=Path(FOLDER))
    options = parser.parse_args()
    try:
        found = build(options.folder, checked=options.checked)
    except KernelError as error:
        raise SystemExit(str(error)) from None
    for path in found:
        print(f"{path}  {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
