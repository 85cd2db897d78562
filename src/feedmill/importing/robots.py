"""Recognize LeRobot datasets among files, by their ``meta/info.json``."""

from __future__ import annotations

from feedmill.errors import ConfigError
from feedmill.formats.lerobot.meta import INFO
from feedmill.formats.unread_files import is_about
from feedmill.importing import kinds
from feedmill.importing.scanning import File, Files
from feedmill.jobs.left_out import LeftOut
from feedmill.storage import open_store

_OLD = "meta_data/info.json"
"""The description of version 1."""
BESIDE = "beside a LeRobot dataset"


def lerobot_folders(files: Files) -> list[tuple[int, str]]:
    """Return root and folder of each LeRobot dataset among the files.

    Raises:
        ConfigError: there is a dataset of version 1, whose layout is another one.
    """
    found = []
    for file in files.files:
        if not file.path.endswith("info.json"):
            continue
        for place in (INFO, _OLD):
            if (file.path == place or file.path.endswith(f"/{place}")) and _is_description(files, file):
                if place == _OLD:
                    raise ConfigError(
                        "this is a LeRobot dataset of version 1, which is not read",
                        file=files.name(file),
                        kind="unsupported",
                        fix="Convert it to version 2 or 3 with LeRobot's own scripts, or leave it out with --exclude.",
                    )
                found.append((file.root, file.path[: -len(place)].rstrip("/")))
    return found


def _is_description(files: Files, file: File) -> bool:
    return b'"codebase_version"' in open_store(files.roots[file.root]).read(file.path)


def leave_out_others(files: Files, folders: list[tuple[int, str]], left: LeftOut, *, refuse: bool) -> None:
    """Add the files outside of LeRobot datasets to `left`.

    Args:
        refuse: raise `ConfigError` if one of them could be imported.
    """
    known = set(folders)
    for file in files.files:
        folder = file.path
        inside = (file.root, "") in known
        while not inside and "/" in folder:
            folder = folder.rpartition("/")[0]
            inside = (file.root, folder) in known
        if inside:
            continue
        if refuse and kinds.divide(file.path).kind and not is_about(file.path):
            raise ConfigError(
                f"the files are of several kinds: {len(folders):,} LeRobot dataset{'s' * (len(folders) > 1)}, and"
                f" {files.name(file)!r} outside of them",
                file=files.roots[file.root],
                kind="mixed-formats",
                fix="Choose with --type episodes or --type media, or with --include or --exclude PATTERN.",
            )
        left.add(BESIDE, files.name(file))
