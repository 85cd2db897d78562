"""Options of the verb ``convert``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any

from feedmill.errors import ConfigError
from feedmill.jobs.options import Arg, DryRunnable, Flag, Opt, Path, Processes, PythonOnly, WithProgress
from feedmill.jobs.policy import METAVAR, RAISE, OnError
from feedmill.samples.options import DatasetPath, Split

if TYPE_CHECKING:
    from feedmill.converting.preview import Preview

_OF_BYTES = (
    *("split", "fields", "max_shard_samples", "max_shard_size", "token_size", "seq_len"),
    *("fps", "videos", "wids", "regroup", "allow_loss", "on_error"),
)


def _fields(text: str) -> list[str]:
    """Return the names in ``A,B``. Raises `ConfigError` if there is none: an empty list would select all parts."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise ConfigError("--fields is empty", kind="bad-option", fix="Name at least one field, or omit the option.")
    return names


class Convert(DryRunnable, Processes, WithProgress):
    """Convert a dataset to another format: samples, tokens, or rows of text. After a kill, the same command resumes.

    What the format cannot store is reported first; losing content requires --allow-loss. Every sample is read back and
    compared with the source, and the proof is stored beside the destination.
    """

    source: DatasetPath
    destination: Annotated[Path, Arg("DST", "Destination: a folder or a file.")]
    to: Annotated[str, Opt("FORMAT", "The format to write (docs/convert.md).")]
    _: KW_ONLY
    split: Split = None
    fields: Annotated[
        Sequence[str] | str,
        Opt("A,B", "Convert only these parts; '*' matches all.", text=str, parse=_fields),
    ] = ()
    max_shard_samples: Annotated[
        int | None, Opt("N", "Maximum samples per output; default: 10,000, or 100,000 rows.", min=1)
    ] = None
    max_shard_size: Annotated[int | str | None, Opt("SIZE", "Maximum source bytes per output; default: 1G.")] = None
    token_size: Annotated[int | None, Opt("1|2|4", "Bytes per token; required if the inputs differ.")] = None
    seq_len: Annotated[int | None, Opt("N", "vla-text: sequence length of the training program.", min=1)] = None
    fps: Annotated[float | None, Opt("N", "lerobot: steps a second, if the source does not say it.", min=0.001)] = None
    videos: Annotated[bool, Flag("lerobot: write cameras as videos, which lose pixels, not as images.")] = False
    wids: Annotated[bool, Flag("wds: also write the index wids.json.")] = False
    regroup: Annotated[bool, Flag("Bring together the parts of samples of tars that are not adjacent.")] = False
    allow_loss: Annotated[bool, Flag("Convert even if the format cannot store some of the content.")] = False
    on_error: Annotated[OnError, Opt(METAVAR, "Stop at an invalid sample, or skip and list it.")] = RAISE
    error_budget: Annotated[float | None, Opt("N", "Maximum skipped samples: a number, or a share below 1.", min=0)] = (
        None
    )
    verify: Annotated[bool, Flag("Read the destination back and compare every sample.")] = True
    overwrite: Annotated[
        bool,
        Flag(
            "Replace existing files.",
            more="On a local disk, the old output is kept until the new one is complete and verified.",
        ),
    ] = False
    on_preview: Annotated[
        Callable[[Preview], None] | None, PythonOnly("Called with the preview before anything is written.")
    ] = None

    @property
    def shard_bytes(self) -> int | None:
        """Return `max_shard_size` as a number."""
        from feedmill.storage.limits import parse_size

        return parse_size(self.max_shard_size)

    def identity(self) -> dict[str, Any]:
        """Return the options that determine the output bytes, as plain data."""
        return {name: getattr(self, name) for name in _OF_BYTES}
