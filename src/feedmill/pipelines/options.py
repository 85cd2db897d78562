"""Options of the verb ``run``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any, Literal

from feedmill.jobs.options import Arg, Flag, Opt, Path, PythonOnly, WithProgress


class Run(WithProgress):
    """Run several verbs as the steps of a pipeline. Steps whose inputs, options and outputs are unchanged are skipped.

    Each step is recorded in a manifest beside the pipeline, with the hashes of all files that it read and wrote. After
    a kill, the same command resumes.
    """

    pipeline: Annotated[Path, Arg("PIPELINE", "A pipeline (docs/pipelines.md), in YAML or JSON; a path or a URL.")]
    _: KW_ONLY
    dry_run: Annotated[
        bool,
        Flag(
            "Write nothing; show what would be read and written.",
            more="The report has what would run, and why. Steps that read what others would write cannot be tried.",
        ),
    ] = False
    steps: Annotated[Sequence[str], Opt("NAME", "Run only this step; repeatable.", "--only")] = ()
    overwrite: Annotated[bool, Flag("Also run the steps that are up to date.")] = False
    hash: Annotated[bool, Flag("Compare files by their content, or by size and time of change.")] = True
    submit: Annotated[
        Literal["slurm", "kubernetes"] | None,
        Opt(
            "slurm|kubernetes",
            "Submit what is missing, and show the state of what is in the queue.",
            more="Nothing is submitted while earlier jobs wait or run. With `dry_run`, only the state.",
        ),
    ] = None
    print_scripts: Annotated[bool, Flag("submit: only print the scripts, as if no part had finished.", "--print")] = (
        False
    )
    cancel: Annotated[bool, Flag("submit: cancel the jobs that wait or run.")] = False
    parts: Annotated[int | None, Opt("N", "slurm: parts of each step; default: 16.", min=1)] = None
    array_limit: Annotated[int | None, Opt("N", "slurm: parts that run at a time.", min=1)] = None
    partition: Annotated[str | None, Opt("NAME", "slurm: as for sbatch.")] = None
    account: Annotated[str | None, Opt("NAME", "slurm: as for sbatch.")] = None
    qos: Annotated[str | None, Opt("NAME", "slurm: as for sbatch.")] = None
    time: Annotated[str | None, Opt("TIME", "slurm: limit of each part and finish, such as 2:00:00.")] = None
    sbatch: Annotated[Sequence[str], Opt("OPTION", "slurm: another option of sbatch, such as --nice; repeatable.")] = ()
    cpus: Annotated[int | None, Opt("N", "submit: cores of a part, or of a Ray worker.", min=1)] = None
    mem: Annotated[str | None, Opt("SIZE", "submit: memory of a part or Ray worker, such as 32G or 32Gi.")] = None
    image: Annotated[str | None, Opt("IMAGE", "kubernetes: image with feedmill[ray].")] = None
    volume: Annotated[str | None, Opt("CLAIM:PATH", "kubernetes: claim of the shared volume, and where it is.")] = None
    max_nodes: Annotated[int | None, Opt("N", "kubernetes: most Ray workers; default: 16.", min=1)] = None
    apply: Annotated[bool, Flag("kubernetes: also apply the job with kubectl.")] = False
    on_step: Annotated[
        Callable[[Any], None] | None,
        PythonOnly("Called before each step that runs, with its `feedmill.pipelines.run.StepReport`."),
    ] = None
