"""Options of the verbs that write and change shards."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY
from typing import TYPE_CHECKING, Annotated, Any

from feedmill.jobs.options import (
    AllowEmpty,
    Arg,
    DryRunnable,
    Flag,
    Opt,
    Options,
    Path,
    Paths,
    Processes,
    PythonOnly,
    WithProgress,
)
from feedmill.jobs.policy import METAVAR, RAISE, OnError

if TYPE_CHECKING:
    from feedmill.formats.sample import Sample
    from feedmill.samples.encode import Encode


class ShardNames(Options, kw_only=True):
    """Names of shards and of their samples."""

    max_shard_size: Annotated[int | str | None, Opt("SIZE", "Maximum bytes per shard, such as 500MB or 1G.")] = None
    pattern: Annotated[str | None, Opt("PATH", "Pattern of shard names, such as 'shards/%06d.tar'.")] = None
    prefix: Annotated[str, Opt("TEXT", "Prefix for every key.")] = ""


class Reshard(ShardNames, DryRunnable, Processes, WithProgress):
    """Write the samples of a dataset to shards of another size or order; splits are kept.

    Samples that a split file excludes are dropped. After a kill, the same command resumes.
    """

    source: Annotated[Path, Arg("SOURCE", "A dataset of samples with parts.")]
    url: Annotated[Path, Arg("DESTINATION", "Folder of the new dataset.")]
    _: KW_ONLY
    max_shard_samples: Annotated[int | None, Opt("N", "Samples per shard.", min=1)] = None
    shuffle: Annotated[int | None, Opt("SEED", "Shuffle the samples of each split.")] = None
    overwrite: Annotated[bool, Flag("Replace an existing dataset.")] = False


class Append(ShardNames, DryRunnable, Processes, WithProgress):
    """Add the samples of other datasets as new shards, or answers to rollouts; what is there does not change.

    After a kill, the same command resumes.
    """

    url: Annotated[Path, Arg("DATASET", "The prepared dataset to append to; or rollouts, which may be new.")]
    sources: Annotated[Paths, Arg("SOURCE...", "Datasets of samples with parts; for rollouts, JSONL or Parquet files.")]
    _: KW_ONLY
    split: Annotated[str | None, Opt("NAME", "Split of the new samples; default: the first.")] = None
    max_shard_samples: Annotated[int | None, Opt("N", "Samples per shard.", min=1)] = 10_000
    policy: Annotated[int | None, Opt("N", "Rollouts: version of the policy, for files that do not say it.", min=0)] = (
        None
    )
    reward: Annotated[Sequence[str], Opt("COLUMN", "Rollouts: column whose sum is the reward; repeatable.")] = ()
    group_size: Annotated[int | None, Opt("N", "Rollouts: answers of each group, from the first commit on.", min=1)] = (
        None
    )


class AddParts(DryRunnable, AllowEmpty, Processes, WithProgress):
    """Add the parts that another dataset has under the same keys.

    All shards are rewritten and published at once. After a kill, the same command resumes.
    """

    url: Annotated[Path, Arg("DATASET", "A prepared dataset.")]
    source: Annotated[
        Path | Callable[[list[Sample]], Sequence[Mapping[str, Any]]],
        Arg(
            "SOURCE",
            "A dataset with the same keys, whose parts are added.",
            more="Or a function at the top level of a module that takes a list of samples and returns one mapping of"
            " new parts for each (values as for `write`).",
        ),
    ]
    _: KW_ONLY
    parts: Annotated[Sequence[str] | str | None, Opt("NAME", "Only this part; repeatable.", "--part-name")] = None
    into: Annotated[str | None, Opt("FOLDER", "Write the new parts to a separate dataset in this folder.")] = None
    on_error: Annotated[OnError, Opt(METAVAR, "Stop if SOURCE lacks a key, or leave the sample as it is.")] = RAISE
    overwrite: Annotated[bool, Flag("Replace parts with the same name.")] = False
    encode: Annotated[
        Mapping[str, Encode] | None, PythonOnly("Suffix or part name -> function that returns bytes.")
    ] = None


class Delete(DryRunnable, Processes, WithProgress):
    """Delete samples by key; only the shards that hold them are rewritten.

    After a kill, the same command finishes the work.
    """

    url: Annotated[Path, Arg("DATASET", "A prepared dataset on a local disk.")]
    keys: Annotated[Sequence[str] | str, Arg("KEY...", "Keys of the samples to delete.")]
    _: KW_ONLY
    on_error: Annotated[OnError, Opt(METAVAR, "Stop at a key that does not exist, or skip it.")] = RAISE
