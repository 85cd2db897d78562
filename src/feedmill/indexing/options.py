"""Options of the verbs that make, check and repair indices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated

from feedmill.jobs.options import Arg, DryRunnable, Flag, Opt, Options, Path, PythonOnly, Threads, WithProgress
from feedmill.jobs.policy import METAVAR, RAISE, OnError
from feedmill.samples.options import DatasetPath, Described

if TYPE_CHECKING:
    from feedmill.samples.media import MediaFilter

MediaTarget = Annotated[Path, Arg("PATH", "A prepared dataset, or a folder of media files; a path or URL.")]


class Check(Described, Threads, WithProgress):
    """Compare a dataset with its index: truncated or corrupt shards, hashes, duplicate keys, wrong offsets, counts."""

    url: DatasetPath
    _: KW_ONLY
    read_samples: Annotated[bool, Flag("Also read and decode every sample.")] = False


class Repair(DryRunnable, Threads, WithProgress):
    """Truncate tar shards after their last complete sample, remove invalid lines from JSONL, and rebuild the index.

    Removed data is kept in .nv-meta/repair (or FILE.repair), with a report.
    """

    url: DatasetPath


def _fields(text: str) -> dict[str, str]:
    """Return the value of ``--field-map``. Raises `ConfigError` unless it is a JSON object of strings."""
    import orjson

    from feedmill.errors import ConfigError

    fix = 'Write for example: --field-map \'{"image": "jpg", "caption": "txt"}\''
    try:
        value = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ConfigError(f"--field-map is not JSON ({error})", kind="bad-field-map", fix=fix) from None
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ConfigError(
            "--field-map must be a JSON object that maps field names to strings", kind="bad-field-map", fix=fix
        )
    return value


class SplitAndDescribe(Options):
    """What ``prepare`` does in Energon's command line, too."""

    url: Annotated[Path, Arg("PATH", "Folder of tar shards, a .jsonl file, or a metadataset; a path or URL.")]
    _: KW_ONLY
    split_ratio: Annotated[
        Sequence[float | Fraction] | str | None,
        Opt(
            "A,B,C",
            "Ratio of shards (or lines of a .jsonl) for train, val and test.",
            text=str,
            more="Without it and `split_parts`, the present splits are kept and new shards go to the first of them; a"
            " new dataset has the splits that names of shards tell, such as ``train-0.tar`` and ``test-0.tar``, and new"
            " shards of it go where theirs tell; else it becomes one split, train.",
        ),
    ] = None
    split_parts: Annotated[Sequence[str], Opt("NAME:REGEX", "Shards of one split, by path; repeatable.")] = ()
    exclude: Annotated[str | None, Opt("REGEX", "Skip shards whose path matches.")] = None
    shuffle_tars: Annotated[
        bool,
        Flag(
            "Shuffle the shards (or blocks of lines) before a ratio split.",
            more="The shards with ``random.Random(42)``.",
        ),
    ] = False
    tar_index_only: Annotated[
        bool, Flag("Index only the listed shards again.", more="Splits and description stay.")
    ] = False
    sample_type: Annotated[
        str | None,
        Opt(
            "CLASS",
            "Sample type, such as CaptioningSample or CrudeWebdataset.",
            more="Without it no ``dataset.yaml`` is written.",
        ),
    ] = None
    field_map: Annotated[
        Mapping[str, str] | None,
        Opt("JSON", 'Fields from parts: \'{"image": "jpg", "caption": "json[text]"}\'.', text=str, parse=_fields),
    ] = None
    dataset_yaml_name: Annotated[str, Opt("FILE", "File name of the description in .nv-meta.")] = "dataset.yaml"


class Prepare(SplitAndDescribe, DryRunnable, Threads, WithProgress, kw_only=True):
    """Index a dataset, divide it into splits, and set how samples are read.

    Run it again after adding shards: only new shards are read; they join the first split.
    """

    media: Annotated[MediaFilter | None, PythonOnly("Media files whose metadata is added to the index.")] = None
    shards: Annotated[Sequence[str] | None, PythonOnly("Index only these, paths in the folder.")] = None
    on_error: Annotated[OnError, Opt(METAVAR, "Stop at an invalid shard, or skip and report it.")] = RAISE
    rescan: Annotated[bool, Flag("Also read unchanged shards.")] = False
    digest: Annotated[bool, Flag("Hash each shard, so that 'check' detects changes.", "--hash/--no-hash")] = True
    energon_exact: Annotated[
        bool, PythonOnly("Order and cut shards as Energon does, and do not keep the numbers of known shards.")
    ] = False


class PrepareMedia(DryRunnable, WithProgress):
    """Store sizes of images, durations and rates of audio and video in the index, without scanning the shards again.

    A plain folder gets an index of its media metadata only. Invalid media files are reported and skipped.
    """

    url: MediaTarget
    media: Annotated[MediaFilter, PythonOnly("Filter that selects the media files.")]
    _: KW_ONLY
    workers: Annotated[int | None, Opt("N", "Threads; default: one per core.", min=1)] = None


class MediaChoice(Options, kw_only=True):
    """Media files on the command line."""

    media_metadata: Annotated[bool, Flag("Store sizes and durations of media; requires one of the next three.")] = False
    media_by_extension: Annotated[
        bool, Flag("Choose media files by their extension.", "--media-metadata-by-extension --media-by-extension")
    ] = False
    media_by_header: Annotated[
        bool, Flag("Choose media files by their first bytes.", "--media-metadata-by-header --media-by-header")
    ] = False
    media_by_glob: Annotated[
        str | None,
        Opt("P[,P]", "Choose media files by name, e.g. '*.jpg,*.png'.", "--media-metadata-by-glob --media-by-glob"),
    ] = None

    def media_filter(self) -> MediaFilter | None:
        """Return the filter; None if no option is given. Raises `ConfigError` if the options contradict each other."""
        if all(getattr(self, name) == default for name, default in vars(MediaChoice()).items()):
            return None
        from feedmill.samples.media import MediaFilter

        return MediaFilter.parse(
            glob=self.media_by_glob, header=self.media_by_header, extension=self.media_by_extension
        )
