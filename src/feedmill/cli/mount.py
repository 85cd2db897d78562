"""``feedmill mount``: mount a dataset as a file system."""

from __future__ import annotations

from typing import Annotated

import typer

from feedmill.cli.options import DatasetPath


def mount(
    path: DatasetPath,
    mountpoint: Annotated[str, typer.Argument(metavar="MOUNTPOINT", help="An empty folder to mount at.")],
    sample_folders: Annotated[
        bool, typer.Option("--sample-folders", "-s", help="One folder per sample instead of one for all files.")
    ] = False,
    detach: Annotated[bool, typer.Option("--detach", help="Run in the background and return at once.")] = False,
) -> None:
    """Mount a dataset as a read-only file system, until Ctrl-C or 'fusermount3 -u MOUNTPOINT'."""
    from feedmill.mounting.mount import mount as mount_dataset

    def ready() -> None:
        if not detach:
            typer.echo(f"{path} is mounted at {mountpoint}; press Ctrl-C to unmount", err=True)

    mount_dataset(path, mountpoint, sample_folders=sample_folders, detach=detach, ready=ready)
