"""Options of the verb ``mount``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY
from typing import Annotated

from feedmill.jobs.options import Arg, Flag, Options, Path, PythonOnly
from feedmill.samples.options import DatasetPath


class Mount(Options):
    """Mount a dataset as a read-only file system, until Ctrl-C or 'fusermount3 -u MOUNTPOINT'."""

    url: DatasetPath
    mountpoint: Annotated[Path, Arg("MOUNTPOINT", "An empty folder to mount at.")]
    _: KW_ONLY
    sample_folders: Annotated[bool, Flag("One folder per sample instead of one for all files.", "-s")] = False
    detach: Annotated[bool, Flag("Run in the background and return at once.")] = False
    ready: Annotated[
        Callable[[], object] | None, PythonOnly("Called after all checks, right before the files appear.")
    ] = None
