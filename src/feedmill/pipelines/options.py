"""Options of the verb ``run``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY
from typing import Annotated, Any

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
    on_step: Annotated[
        Callable[[Any], None] | None,
        PythonOnly("Called before each step that runs, with its `feedmill.pipelines.run.StepReport`."),
    ] = None
